"""Who waits for a compiler is told so, once, and not where nothing is compiled."""

import sys
from typing import NamedTuple

import numpy as np
import pytest

import cavity
from cavity.kernels import bridge


class Local(NamedTuple):
    """A squared loss that no other test compiles."""

    scale: float = 1.0

    @property
    def targets(self):
        return "reals"

    def value(self, y, z):
        return 0.5 * (y - z) ** 2 / self.scale**2

    def derivatives(self, y, z):
        return self.value(y, z), (z - y) / self.scale**2, 0.0 * z + 1.0 / self.scale**2


def fit(loss):
    X = np.random.default_rng(0).normal(size=(12, 2))
    prior = cavity.FactorialGaussian.from_moments(np.zeros(2), 1.0)
    factors = cavity.LinearFactor.batches(loss, X, X[:, 0], batch_size=4)
    return cavity.fit(factors, prior, "qla", sites="none")


@pytest.fixture
def lines(monkeypatch):
    """Lines that were announced, at once and not after a while."""
    found = []

    class AtOnce:
        def __init__(self, delay, function, arguments):
            assert delay == bridge.PATIENCE
            self.start = lambda: function(*arguments)
            self.cancel = lambda: found.append("done")

    monkeypatch.setattr(bridge.threading, "Timer", AtOnce)
    monkeypatch.setattr(bridge, "announce", found.append)
    return found


def test_the_line_names_what_is_compiled_once_and_waiting_ends_with_compiling(lines):
    class Mine(Local):
        pass

    loss = Mine()
    first = fit(loss)
    assert len(lines) == 2
    assert lines[0].startswith("cavity: compiling loops for Mine, QuickLaplace; ")
    assert lines[0].endswith("in every new process")
    assert lines[1] == "done"
    again = fit(loss)
    assert len(lines) == 2
    np.testing.assert_array_equal(first.mean, again.mean)


def test_the_environment_turns_it_off(lines, monkeypatch):
    class Mine(Local):
        pass

    monkeypatch.setenv("CAVITY_NOTICES", "off")
    fit(Mine())
    assert lines == []


def test_what_others_compile_is_none_of_our_business(lines):
    from numba import njit

    assert njit(lambda x: x + 1)(2) == 3
    assert lines == []


def test_a_line_is_written_to_standard_error_and_only_if_there_is_one(capsys, monkeypatch):
    bridge.announce("a line")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a line\n")
    monkeypatch.setattr(sys, "stderr", None)
    bridge.announce("a line")
