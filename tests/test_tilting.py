"""Moments for arrays of rows: parity with those of single rows, truth, and what rows may not do to each other."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import all_components
from cavity import losses
from cavity.moments import tilt
from cavity.tilting import Tilts, tilts
from test_moments import INTEGRATED, LOSSES, REFERENCES, TARGETS, Bad, brute

CLOSED = 1e-9
# Both integrate alike; the logistic loss takes forms of its own, of errors below that of either.
PARITY = 1e-9

seeds = st.integers(0, 2**32 - 1)


def random_rows(loss, seed, n=60, power=None):
    """Means, widths and powers over the whole range, real targets anywhere."""
    rng = np.random.default_rng(seed)
    y, s = rng.choice(TARGETS[loss.targets], n), 10.0 ** rng.uniform(-3.0, 4.0, n)
    if loss.targets == "reals":
        y += rng.standard_normal(n)
    m = np.minimum(2.0 * s * rng.standard_normal(n) + 2.0 * rng.standard_normal(n), 20.0)
    return y, m, s * s, 10.0 ** rng.uniform(-1.0, 1.0, n) if power is None else np.full(n, power)


def one_by_one(loss, y, m, v, power):
    return Tilts(*np.array([tilt(loss, *(float(a) for a in row)) for row in zip(y, m, v, power, strict=True)]).T)


def assert_tilts(found, wanted, tol):
    """Compare log masses, means in units of the tilted width or their own size, and variances relatively."""
    size = np.maximum(np.sqrt(wanted.ratio), np.abs(wanted.shift))
    np.testing.assert_allclose(found.log_mass, wanted.log_mass, rtol=tol, atol=tol)
    np.testing.assert_array_less(np.abs(found.shift - wanted.shift), tol * size)
    np.testing.assert_allclose(found.ratio, wanted.ratio, rtol=tol)


@pytest.mark.parametrize("power", [1.0, None])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seeds)
def test_arrays_equal_single_rows(loss, power, seed):
    rows = random_rows(loss, seed, power=power)
    assert_tilts(tilts(loss, *rows), one_by_one(loss, *rows), PARITY)


@pytest.mark.parametrize("loss", [losses.Logistic(0.3), losses.Logistic(2.5), losses.Huber(0.1, 3.0)], ids=repr)
@pytest.mark.parametrize("power", [1.0, None])
def test_the_parameters_of_a_loss_count(loss, power):
    rows = random_rows(loss, 0, 500, power)
    assert_tilts(tilts(loss, *rows), one_by_one(loss, *rows), PARITY)


@pytest.mark.parametrize(("loss", "y", "m", "s", "beta", "wanted"), REFERENCES)
def test_closed_forms_neither_underflow_nor_cancel(loss, y, m, s, beta, wanted):
    found = tilts(loss, *(np.array([a]) for a in (y, m, s * s, beta)))
    assert_tilts(found, Tilts(*(np.array([a]) for a in wanted)), CLOSED)


@pytest.mark.parametrize("power", [0.1, 0.7, 1.0, 5.0])
@given(st.floats(-2.5, 1.0), seeds)
def test_logistic_rows_are_right_on_both_sides_of_every_switch(power, log_width, seed):
    rng, widths = np.random.default_rng(seed), (0.17, 0.52, 0.95, 1.8)
    s = np.repeat([*widths, 10.0**log_width], 2) * np.tile([1.0 - 1e-9, 1.0 + 1e-9], 5)
    y, m = rng.choice([-1.0, 1.0], 10), 20.0 * rng.uniform(-1.0, 1.0, 10)
    wanted = [brute(losses.Logistic(), *row, power) for row in zip(y, m, s, strict=True)]
    assert_tilts(
        tilts(losses.Logistic(), y, m, s * s, power), Tilts(*np.array(wanted).T), 1e-9 if power == 1.0 else 1e-7
    )


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seeds)
def test_moments_are_the_integrals(loss, seed):
    rows = random_rows(loss, seed, n=5)
    wanted = [brute(loss, y, m, np.sqrt(v), power) for y, m, v, power in zip(*rows, strict=True)]
    assert_tilts(tilts(loss, *rows), Tilts(*np.array(wanted).T), INTEGRATED)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_rows_do_not_depend_on_each_other(loss):
    rows = random_rows(loss, 1, n=1500)
    order = np.random.default_rng(0).permutation(1500)
    together, shuffled = tilts(loss, *rows), tilts(loss, *(a[order] for a in rows))
    assert_tilts(shuffled, Tilts(*(a[order] for a in together)), 1e-12)
    assert_tilts(tilts(loss, *(a[7:8] for a in rows)), Tilts(*(a[7:8] for a in together)), 1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_trouble_stays_in_its_row(loss):
    y, m, v, power = random_rows(loss, 2, n=40)
    known = tilts(loss, y, m, v, power)
    bad = {3: (np.nan, 0.0, 1.0), 11: (y[11], np.nan, 1.0), 17: (y[17], 0.0, np.nan), 23: (y[23], 0.0, -1.0)}
    for place, values in bad.items():
        y[place], m[place], v[place] = values
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tilts(loss, y, m, v, power)
    good = np.setdiff1d(np.arange(40), list(bad))
    assert_tilts(Tilts(*(a[good] for a in found)), Tilts(*(a[good] for a in known)), 1e-12)
    assert np.all(np.isnan([a[list(bad)] for a in found]))


@pytest.mark.parametrize("cost", [np.nan, np.inf, -np.inf])
def test_costs_that_are_not_finite_are_data(cost):
    assert np.all(np.isnan(tilts(Bad(cost), np.zeros(2), np.array([0.1, 3.0]), np.array([1.0, 0.0]))))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_without_variance_the_factor_is_a_constant(loss):
    y, m, v, power = random_rows(loss, 3, n=10)
    v[::3] = 0.0
    found = tilts(loss, y, m, v, power)
    np.testing.assert_allclose(found.log_mass[::3], -(power * loss.value(y, m))[::3])
    np.testing.assert_array_equal((found.shift[::3], found.ratio[::3]), (np.zeros(4), np.ones(4)))
    others = v > 0.0
    known = tilts(loss, *(a[others] for a in (y, m, v, power)))
    assert_tilts(Tilts(*(a[others] for a in found)), known, 1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_one_power_is_that_of_every_row(loss):
    y, m, v, _ = random_rows(loss, 4)
    for power in (1.0, 0.5, 3.0):
        assert_tilts(tilts(loss, y, m, v, power), tilts(loss, y, m, v, np.full(y.size, power)), 1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_powers_of_one_among_others(loss):
    y, m, v, power = random_rows(loss, 5)
    power[::2] = 1.0
    assert_tilts(tilts(loss, y, m, v, power), one_by_one(loss, y, m, v, power), PARITY)


@pytest.mark.parametrize("loss", all_components(losses), ids=repr)
def test_no_rows_give_nothing(loss):
    found = tilts(loss, np.zeros(0), np.zeros(0), np.zeros(0))
    assert [a.shape for a in found] == [(0,)] * 3


class Refuses(Bad):
    def derivatives(self, y, z):
        raise RuntimeError("no derivatives today")


def test_what_a_loss_raises_comes_through():
    with pytest.raises(RuntimeError, match="no derivatives today"):
        tilts(Refuses(), np.zeros(2), np.zeros(2), np.ones(2))
