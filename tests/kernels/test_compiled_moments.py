"""The compiled moments equal the array form over the whole range, and their functions those of NumPy and SciPy."""

import math

import numpy as np
import pytest
from numba import njit
from scipy.special import erfcx, ndtr

from cavity import losses
from cavity.kernels import moments as compiled
from cavity.kernels import speed
from cavity.moments import Tilts, tilts
from cavity.moments.logistic import LEAST_MASS, PROBIT_SQUARES, PROBIT_WEIGHTS
from tilt_cases import (
    CLOSED,
    LOSSES,
    PIECEWISE,
    REFERENCES,
    TAILS,
    TARGETS,
    WithoutPieces,
    assert_tilt,
    assert_tilts,
    random_rows,
)

# Both forms integrate alike; narrow Gaussians times the logistic loss take a rule of their own as arrays.
PARITY, LOGISTIC_PARITY = 1e-10, 1e-9
# Those of NumPy may be off by up to four units in the last place, ours by as many.
LAST_DIGIT = 2e-15
RULES = compiled.rules_for(8)


# Kernels that only kernels call have no form that Python could call.
tail = njit(lambda a: compiled.tail(a))
by_probits = njit(lambda slope, m, v: compiled.by_probits(slope, m, v))
exponential = njit(lambda v: speed.exponential(v))
log_one_plus = njit(lambda e: speed.log_one_plus(e))


@njit
def _one_by_one(loss, y, m, v, power, rules, out):
    for i in range(y.size):
        out[0, i], out[1, i], out[2, i] = compiled.tilt(loss, y[i], m[i], v[i], power[i], rules)


def compiled_tilts(loss, y, m, v, power):
    out = np.empty((3, y.size))
    _one_by_one(loss, y, m, v, power, RULES, out)
    return Tilts(*out)


def compiled_tilt(loss, *row):
    return tuple(float(a[0]) for a in compiled_tilts(loss, *(np.array([a]) for a in row)))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_both_forms_agree(loss):
    tol = LOGISTIC_PARITY if losses.offers(loss).logistic else PARITY
    for power in (1.0, None):
        rows = random_rows(loss, 0, 500, power)
        assert_tilts(compiled_tilts(loss, *rows), tilts(loss, *rows), tol)
    y, m, v, power = random_rows(loss, 5)
    power[::2] = 1.0
    assert_tilts(compiled_tilts(loss, y, m, v, power), tilts(loss, y, m, v, power), tol)


@pytest.mark.parametrize("loss", PIECEWISE, ids=repr)
def test_closed_forms_agree_over_the_whole_range(loss):
    rng, n = np.random.default_rng(0), 2000
    y, s, power = (rng.choice(TARGETS[loss.targets], n), *(10.0 ** rng.uniform((-8.0, -2.0), (8.0, 6.0), (n, 2)).T))
    m = rng.choice([-1.0, 1.0], n) * 10.0 ** rng.uniform(-6.0, 6.0, n)
    assert_tilts(compiled_tilts(loss, y, m, s * s, power), tilts(loss, y, m, s * s, power), CLOSED)


@pytest.mark.parametrize("loss", [losses.Logistic(0.3), losses.Logistic(2.5), losses.Huber(0.1, 3.0)], ids=repr)
@pytest.mark.parametrize("power", [1.0, None])
def test_the_parameters_of_a_loss_count(loss, power):
    rows = random_rows(loss, 0, 500, power)
    assert_tilts(compiled_tilts(loss, *rows), tilts(loss, *rows), LOGISTIC_PARITY)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 2.5])
def test_the_mixture_gives_way_where_the_mass_is_small(sharpness):
    rng, loss = np.random.default_rng(0), losses.Logistic(sharpness)
    y, s = rng.choice([-1.0, 1.0], 500), 10.0 ** rng.uniform(-3.0, 4.0, 500)
    m = 2.0 * s * rng.standard_normal(500) + 5.0 * rng.standard_normal(500)
    wanted = tilts(loss, y, m, s * s)
    assert_tilts(compiled_tilts(loss, y, m, s * s, np.ones(500)), wanted, LOGISTIC_PARITY)
    assert 0 < np.sum(wanted.log_mass < math.log(LEAST_MASS)) < 100


@pytest.mark.parametrize(("loss", "y", "m", "s", "beta", "wanted"), REFERENCES)
def test_closed_forms_neither_underflow_nor_cancel(loss, y, m, s, beta, wanted):
    assert_tilt(compiled_tilt(loss, y, m, s * s, beta), wanted, CLOSED)


@pytest.mark.parametrize(("a", "wanted"), TAILS)
def test_tails_are_right_on_both_sides_of_the_switch(a, wanted):
    assert tail(a) == pytest.approx(wanted, rel=2e-12)


def test_the_tail_is_that_of_scipy():
    for a in np.concatenate([np.linspace(0.0, 12.0, 500), np.geomspace(12.0, 1e12, 50)]):
        mass = tail(a)[0]
        assert mass == pytest.approx(math.sqrt(0.5 * math.pi) * float(erfcx(a * math.sqrt(0.5))), rel=1e-13)


def test_the_mixture_is_that_of_scipy_to_twelve_digits():
    for v in (0.0, 1.0, 1e8):
        for u in np.linspace(-3.5, 0.0, 200):
            m = u * math.sqrt(1.0 + v)
            is_enough, (log_mass, _, _) = by_probits(1.0, m, v)
            assert is_enough
            wanted = float(PROBIT_WEIGHTS @ ndtr(m / np.sqrt(PROBIT_SQUARES + v)))
            assert math.exp(log_mass) == pytest.approx(wanted, rel=1e-12)


def test_the_exponential_and_the_logarithm_are_those_of_numpy():
    for v in np.concatenate([-np.geomspace(1e-12, 690.0, 400), np.linspace(0.0, 5.0, 50)]):
        assert exponential(v) == pytest.approx(np.exp(v), rel=LAST_DIGIT)
    assert exponential(-1e9) < 1e-300
    assert np.isnan(exponential(np.nan))
    for e in np.geomspace(1e-20, 1.0, 200):
        assert log_one_plus(e) == pytest.approx(np.log1p(e), rel=LAST_DIGIT)


@pytest.mark.parametrize("scale", [np.nan, 0.0, -0.0])
def test_trouble_is_data(scale):
    """Costs that are not a number, infinite, or minus infinite, of a loss that is compiled already."""
    assert not np.all(np.isfinite(compiled_tilt(WithoutPieces(scale), 0.0, 0.1, 1.0, 1.0)))


@pytest.mark.parametrize(("m", "v"), [(np.nan, 1.0), (0.0, np.nan)])
def test_a_mixture_under_no_gaussian_is_data(m, v):
    assert not np.all(np.isfinite(compiled_tilt(losses.Logistic(), 1.0, m, v, 1.0)))
