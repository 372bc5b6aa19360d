"""Who waits for a compiler is told so, once, and not where nothing is compiled."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

import cavity
from cavity.kernels import _notice
from cavity.losses import Squared


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


def fit(loss, rows=np.asarray, scheme="qla", sites="none"):
    X = np.random.default_rng(0).normal(size=(12, 2))
    prior = cavity.FactorialGaussian.from_moments(np.zeros(2), 1.0)
    factors = cavity.LinearFactor.batches(loss, rows(X), X[:, 0], batch_size=4)
    return cavity.fit(factors, prior, scheme, sites=sites)


@pytest.fixture
def lines(monkeypatch):
    """Lines that were announced, at once and not after a while."""
    found = []

    class AtOnce:
        def __init__(self, delay, function, arguments):
            assert delay == _notice.PATIENCE
            self.start = lambda: function(*arguments)
            self.cancel = lambda: found.append("done")

    monkeypatch.setattr(_notice.threading, "Timer", AtOnce)
    monkeypatch.setattr(_notice, "announce", found.append)
    return found


def test_the_line_names_what_is_compiled_once_and_waiting_ends_with_compiling(lines):
    class Mine(Local):
        pass

    loss = Mine()
    first = fit(loss)
    assert len(lines) == 2
    assert lines[0].startswith("cavity: compiling the loops of QuickLaplace for the loss Mine over dense rows; ")
    assert lines[0].endswith("in every new process, as no cache serves")
    assert lines[1] == "done"
    again = fit(loss)
    assert len(lines) == 2
    np.testing.assert_array_equal(first.mean, again.mean)


@pytest.mark.parametrize(("scheme", "name"), [("qla", "QuickLaplace"), ("vq", "VariationalQuadrature")])
def test_single_passes_over_sparse_rows_name_their_scheme(lines, scheme, name):
    class Mine(Local):
        pass

    fit(Mine(), sparse.csr_array, scheme)
    named = [line for line in lines if "the loss Mine" in line]
    assert len(named) == 1
    assert f"the loops of {name} for the loss Mine over sparse rows" in named[0]


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
    _notice.announce("a line")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a line\n")
    monkeypatch.setattr(sys, "stderr", None)
    _notice.announce("a line")


def test_a_cache_on_disk_is_loaded_in_silence(tmp_path):
    code = (
        "import numpy as np, cavity\n"
        "from cavity.kernels import _notice\n"
        "_notice.PATIENCE = 0.0\n"
        "X = np.random.default_rng(0).normal(size=(12, 2))\n"
        "prior = cavity.FactorialGaussian.from_moments(np.zeros(2), 1.0)\n"
        "factors = cavity.LinearFactor.batches(cavity.losses.Squared(), X, X[:, 0], batch_size=4)\n"
        "cavity.fit(factors, prior, 'qla', sites='none')"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)
    )
    wanted = f"cavity: compiling the loops of QuickLaplace for the loss {Squared.__name__} over dense rows"
    assert first.stderr.startswith(wanted)
    assert first.stderr.endswith("once: later runs find it on disk\n")
    assert second.stderr == ""
