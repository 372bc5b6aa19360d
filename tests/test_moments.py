"""Tilted moments against 150 digits, brute-force integration, their laws, and their compiled form."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numba import njit
from scipy.special import erfcx, expit, ndtr

from cases import all_components
from cavity import losses
from cavity.kernels import _functions as functions
from cavity.kernels import _mixture as compiled_mixture
from cavity.kernels import _moments as compiled
from cavity.kernels import _pieces as compiled_pieces
from cavity.kernels import _rows  # noqa: F401 (opens the methods of losses to compiled code)
from cavity.mixture import LEAST_MASS, probits
from cavity.moments import tail, tilt, tilted

CLOSED = 1e-9
MIXED = 1e-10
INTEGRATED = 1e-6
PARITY = 1e-10
# Those of NumPy may be off by up to four units in the last place, ours by as many.
LAST_DIGIT = 2e-15

# Computed with 150 digits: target, mean, width, beta; log mass, shift of the mean in widths, ratio of variances.
REFERENCES = [
    (losses.Hinge(), 1.0, 0.25, 0.75, 1.0, (-0.62864097433271538, 0.52688383929665336, 0.77727397199023194)),
    (losses.Hinge(), 1.0, -1e6, 1e-8, 1.0, (-1000001.0, 1e-8, 1.0)),
    (losses.Hinge(), 1.0, 1e6, 1e8, 1.0, (-0.68520012955711547, 0.79152928288636714, 0.36556610150452971)),
    (losses.Hinge(), 1.0, -1e6, 1e3, 1.0, (-500001.69155268545, 999.2033886400173, 0.36381712081636199)),
    (losses.Hinge(), 1.0, -1e6, 1.0, 2e6, (-500001000014.5413, 1000001.0, 1.999999999996e-12)),
    (losses.Hinge(), 1.0, 3.0, 1e4, 1e6, (-0.69298761630011377, 0.79775724114515953, 0.36342383267245903)),
    (losses.Hinge(), 1.0, -40.0, 1.0, 0.01, (-0.40995, 0.01, 1.0)),
    (losses.Hinge(), 1.0, 0.99, 1e-3, 1e5, (-53.124956633347068, 10.087077983080755, 0.0095866064710262378)),
    (losses.QuasiZeroOne(), -1.0, 0.25, 0.75, 1.0, (-0.56593419744722042, -0.43651914354759183, 0.96065010266985507)),
    (losses.QuasiZeroOne(), -1.0, -1e6, 1e-8, 1.0, (0.0, 0.0, 1.0)),
    (losses.QuasiZeroOne(), -1.0, 1e6, 1e8, 1.0, (-0.70115786415310955, -0.80426161681215196, 0.36120583859956461)),
    (losses.QuasiZeroOne(), -1.0, 3.0, 1e4, 1e6, (-0.69339455535647587, -0.79808192340091673, 0.36331264892896674)),
    (losses.QuasiZeroOne(), -1.0, 0.99, 1e-3, 1e5, (-109850.0, -10.0, 1.0)),
    (losses.Absolute(), 0.5, 0.25, 0.75, 1.0, (-0.53407077172058262, 0.14354357693608518, 0.57624947073749137)),
    (losses.Absolute(), 0.5, 1e6, 1e8, 1.0, (-18.646522096547093, -0.009999994999999998, 2e-16)),
    (losses.Absolute(), 0.5, -1e6, 1e3, 1.0, (-500001.19234961441, 999.20275204949338, 0.36359845776146101)),
    (losses.Absolute(), 0.5, -1e6, 1.0, 2e6, (-500000500014.57177, 1000000.4999993333, 1.1111120740692778e-12)),
    (losses.Absolute(), 0.5, 3.0, 1e4, 1e6, (-23.251642313835184, -0.00025, 2e-20)),
]
TAILS = [
    (0.0, (1.2533141373155003, 0.79788456080286536, 0.36338022763241866)),
    (2.0, (0.42136922928805447, 0.37321553282284087, 0.11427910041408126)),
    (4.4, (0.21700110806030058, 0.2082713998037211, 0.040228864887425633)),
    (4.6, (0.20831136169438402, 0.2005062799556344, 0.037468343902434587)),
    (8.0, (0.1231319632579323, 0.12136811223611268, 0.01432488344334091)),
    (30.0, (0.033296419072497213, 0.033259667433677037, 0.001103771511890091)),
    (1e8, (9.999999999999999e-9, 9.999999999999998e-9, 9.9999999999999617e-17)),
]


class Insensitive(NamedTuple):
    """A user's own loss of three pieces: nothing within a width."""

    width: float = 1e-3

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.maximum(np.abs(z - y) - self.width, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return self.value(y, z), np.sign(r) * (0.5 + 0.5 * np.sign(np.abs(r) - self.width)), 0.0 * r

    def pieces(self, y: float) -> tuple[tuple[float, float, float], ...]:
        low, high = y - self.width, y + self.width
        return (low, -1.0, low), (high, 0.0, 0.0), (np.inf, 1.0, -high)


class WithoutPieces(NamedTuple):
    """The absolute loss as a user writes it: a kink, and no pieces."""

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.abs(z - y) / self.scale

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), np.sign(z - y) / self.scale, 0.0 * z


LOSSES = [*all_components(losses), Insensitive(), WithoutPieces()]
PIECEWISE = [loss for loss in LOSSES if hasattr(loss, "pieces")]
OTHERS = [loss for loss in LOSSES if not hasattr(loss, "pieces")]
CONVEX = [loss for loss in LOSSES if not isinstance(loss, losses.QuasiZeroOne)]
NON_NEGATIVE = [loss for loss in LOSSES if not isinstance(loss, losses.Poisson)]
TARGETS = {"signs": (-1.0, 1.0), "reals": (-1.5, 2.0), "counts": (0.0, 3.0)}

widths = st.floats(-3.0, 4.0).map(lambda a: 10.0**a)
means = st.floats(-6.0, 6.0)
betas = st.sampled_from([0.1, 0.7, 1.0, 5.0])


def brute(loss, y, m, s, beta):
    """Integrate on panels graded about every place where the loss or the product may bend."""
    places = [0.0, y, *(piece[0] for piece in (loss.pieces(y)[:-1] if hasattr(loss, "pieces") else ()))]
    if isinstance(loss, losses.Huber):
        places += [y - loss.threshold, y + loss.threshold]
    grades = np.geomspace(1e-7, 1e3, 180)
    slope = loss.derivatives(y, m)[1]
    edges = [m + s * np.linspace(-40.0, 40.0, 321), m - beta * s * s * slope + s * np.linspace(-12.0, 12.0, 97)]
    edges += [np.concatenate([p - grades, [p], p + grades]) for p in places]
    cuts = np.unique(np.concatenate(edges))
    x, w = np.polynomial.legendre.leggauss(30)
    half = 0.5 * np.diff(cuts)[:, None]
    z = 0.5 * (cuts[1:] + cuts[:-1])[:, None] + half * x
    t = (z - m) / s
    height = -beta * loss.value(y, z) - 0.5 * t * t
    f = half * w * np.exp(height - np.max(height))
    mass = np.sum(f)
    shift = np.sum(f * t) / mass
    log_mass = np.max(height) + np.log(mass / (s * np.sqrt(2.0 * np.pi)))
    return float(log_mass), float(shift), float(np.sum(f * (t - shift) ** 2) / mass)


def assert_tilt(found, wanted, tol):
    """Compare log masses, means in units of the tilted width or their own size, and variances relatively."""
    assert found[0] == pytest.approx(wanted[0], rel=tol, abs=tol)
    assert found[1] == pytest.approx(wanted[1], rel=tol, abs=tol * math.sqrt(wanted[2]))
    assert found[2] == pytest.approx(wanted[2], rel=tol)


@njit
def compiled_tilt(loss, y, m, v, beta, rules):
    return compiled.tilt(loss, y, m, v, beta, rules)


@pytest.mark.parametrize(("loss", "y", "m", "s", "beta", "wanted"), REFERENCES)
def test_closed_forms_neither_underflow_nor_cancel(loss, y, m, s, beta, wanted):
    assert_tilt(tilt(loss, y, m, s * s, beta), wanted, CLOSED)


@pytest.mark.parametrize(("a", "wanted"), TAILS)
def test_tails_are_right_on_both_sides_of_the_switch(a, wanted):
    for found in (tail(a), compiled_pieces.tail(a)):
        assert found == pytest.approx(wanted, rel=2e-12)


def test_the_compiled_tail_is_that_of_scipy():
    for a in np.concatenate([np.linspace(0.0, 12.0, 500), np.geomspace(12.0, 1e12, 50)]):
        mass = compiled_pieces.tail(a)[0]
        assert mass == pytest.approx(math.sqrt(0.5 * math.pi) * float(erfcx(a * math.sqrt(0.5))), rel=1e-13)


def test_the_compiled_mixture_is_that_of_scipy_to_twelve_digits():
    squares, weights = probits()
    for v in (0.0, 1.0, 1e8):
        for u in np.linspace(-3.5, 0.0, 200):
            m = u * math.sqrt(1.0 + v)
            is_enough, (log_mass, _, _) = compiled_mixture.tilt_by_probits(1.0, m, v)
            assert is_enough
            wanted = float(weights @ ndtr(m / np.sqrt(squares + v)))
            assert math.exp(log_mass) == pytest.approx(wanted, rel=1e-12)


def test_the_compiled_exponential_and_logarithm_are_those_of_numpy():
    for v in np.concatenate([-np.geomspace(1e-12, 690.0, 400), np.linspace(0.0, 5.0, 50)]):
        assert functions.exponential(v) == pytest.approx(np.exp(v), rel=LAST_DIGIT)
    assert functions.exponential(-1e9) < 1e-300
    assert np.isnan(functions.exponential(np.nan))
    for e in np.geomspace(1e-20, 1.0, 200):
        assert functions.log_one_plus(e) == pytest.approx(np.log1p(e), rel=LAST_DIGIT)


@pytest.mark.parametrize("loss", PIECEWISE, ids=repr)
@given(st.data(), widths, means, betas)
def test_closed_forms_are_the_integrals(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    m = place * s + data.draw(st.floats(-2.0, 2.0))
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), 1e-8)


@pytest.mark.parametrize("loss", OTHERS, ids=repr)
@given(st.data(), widths, means, betas)
def test_quadrature_is_right_for_every_width(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    m = place * s + data.draw(st.floats(-2.0, 2.0))
    if isinstance(loss, losses.Poisson):  # beyond its ceiling lies another kink, and costs of 1e13
        m = min(m, 20.0)
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), INTEGRATED)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Poisson()], ids=repr)
@given(st.data(), st.floats(1e-3, 0.7), st.floats(-4.0, 4.0), st.sampled_from([0.9, 1.0]))
def test_narrow_products_of_smooth_losses_are_right_to_ten_digits(loss, data, s, m, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), 1e-10)


def test_the_logistic_function_is_a_mixture_of_probits():
    squares, weights = probits()
    z, s = np.linspace(-12.0, 0.0, 1201)[:, None], np.sqrt(squares)
    mass, density = ndtr(z / s) @ weights, np.exp(-0.5 * (z / s) ** 2) @ (weights / s) / math.sqrt(2.0 * math.pi)
    wanted = expit(z[:, 0])
    enough = wanted >= LEAST_MASS
    assert np.max(np.abs(mass - wanted)) < 1e-14
    assert np.max(np.abs(mass / wanted - 1.0)[enough]) < 1e-11
    assert np.max(np.abs(density / (wanted * (1.0 - wanted)) - 1.0)[enough]) < 1e-11
    for known, found in zip((squares, weights), compiled_mixture.probits(), strict=True):
        np.testing.assert_array_equal(found, known)


@given(st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([-1.0, 1.0]), widths, means, st.floats(-10.0, 10.0))
def test_the_mixture_is_right_for_every_width_to_ten_digits(sharpness, y, s, place, move):
    loss, m = losses.Logistic(sharpness), place * s + move
    wanted = brute(loss, y, m, s, 1.0)
    assume(wanted[0] > math.log(LEAST_MASS) + 1e-9)
    assert_tilt(tilt(loss, y, m, s * s, 1.0), wanted, MIXED)


@pytest.mark.parametrize(("m", "s"), [(-30.0, 0.1), (-60.0, 1.0), (-200.0, 4.0)])
def test_far_down_the_tail_the_logistic_function_is_an_exponential(m, s):
    wanted = m + 0.5 * s * s, s, 1.0
    assert_tilt(tilt(losses.Logistic(), 1.0, m, s * s, 1.0), wanted, CLOSED)


@given(st.floats(-1e3, 1e3), widths, st.floats(-10.0, 10.0), st.floats(0.1, 10.0), betas)
def test_the_squared_loss_is_exact_whatever_the_widths(m, s, y, scale, beta):
    v, noise = s * s, scale * scale / beta
    wanted = -0.5 * (y - m) ** 2 / (v + noise) + 0.5 * math.log(noise / (v + noise)), (y - m) * s / (v + noise)
    found = tilt(losses.Squared(scale), y, m, v, beta)
    assert found.log_mass == pytest.approx(wanted[0], rel=1e-10, abs=1e-10)
    assert found.shift == pytest.approx(wanted[1], rel=1e-10, abs=1e-10)
    assert found.ratio == pytest.approx(noise / (v + noise), rel=1e-10)


@pytest.mark.parametrize("loss", CONVEX, ids=repr)
@given(st.data(), widths, means, betas)
def test_a_log_concave_factor_never_widens(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    found = tilt(loss, y, min(place * s, 20.0), s * s, beta)
    assert 0.0 < found.ratio <= 1.0 + INTEGRATED


def test_a_factor_that_is_not_log_concave_may_widen():
    assert tilt(losses.QuasiZeroOne(), 1.0, -1.0, 0.25, 3.0).ratio > 1.1


@pytest.mark.parametrize("loss", NON_NEGATIVE, ids=repr)
@given(st.data(), widths, means, betas)
def test_costs_that_are_not_negative_lose_mass(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    assert tilt(loss, y, place * s, s * s, beta).log_mass <= INTEGRATED


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(st.data(), widths, means, betas)
def test_reflection_changes_signs_only(loss, data, s, place, beta):
    if loss.targets == "counts" or isinstance(loss, losses.Quantile):
        loss = losses.Quantile(0.5)
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    there, back = tilt(loss, y, place * s, s * s, beta), tilt(loss, -y, -place * s, s * s, beta)
    assert_tilt((back.log_mass, -back.shift, back.ratio), there, 1e-9)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.targets == "reals"], ids=repr)
@given(st.sampled_from([-512.0, 64.0]), st.floats(0.05, 1e3), means, betas)
def test_targets_and_predictions_move_together(loss, move, s, place, beta):
    there, moved = tilt(loss, 0.5, place * s, s * s, beta), tilt(loss, 0.5 + move, place * s + move, s * s, beta)
    assert_tilt(moved, there, INTEGRATED)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(st.data(), st.floats(0.05, 50.0), st.floats(-3.0, 3.0), betas)
def test_the_shift_is_the_slope_of_the_log_mass(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    m, h = min(place * s, 3.0), 1e-3 * s
    below, here, above = (tilt(loss, y, m + a, s * s, beta) for a in (-h, 0.0, h))
    slope = (above.log_mass - below.log_mass) / (2.0 * h)
    assert slope * s == pytest.approx(here.shift, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_nothing_jumps_as_the_width_grows(loss):
    """Over every switch between forms: a relative step of 1e-6 in the width changes little."""
    y = TARGETS[loss.targets][1]
    for m in (-3.0, 0.1, 2.5):
        for s in np.geomspace(1e-2, 1e3, 60):
            here, next_to_it = tilt(loss, y, m, s * s, 1.0), tilt(loss, y, m, s * s * (1.0 + 1e-6), 1.0)
            assert_tilt(next_to_it, here, 1e-5)


@pytest.mark.parametrize("order", [1, 5, 8, 32])
def test_any_order_arrives(order):
    for s in (0.1, 1.0, 10.0):
        wanted = brute(losses.Logistic(), 1.0, 0.3, s, 0.9)
        assert_tilt(tilt(losses.Logistic(), 1.0, 0.3, s * s, 0.9, order), wanted, INTEGRATED)


def test_moments_are_those_of_the_tilt():
    log_mass, mean, variance = tilted(losses.Logistic(), 1.0, 0.5, 4.0, 2.0)
    t = tilt(losses.Logistic(), 1.0, 0.5, 4.0, 2.0)
    assert (log_mass, mean, variance) == (t.log_mass, 0.5 + 2.0 * t.shift, 4.0 * t.ratio)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_without_variance_the_factor_is_a_constant(loss):
    y = TARGETS[loss.targets][1]
    assert tilt(loss, y, 0.0, 0.0, 2.0) == (-2.0 * loss.value(y, 0.0), 0.0, 1.0)


class Bad(NamedTuple):
    cost: float = np.nan

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return self.cost + 0.0 * z

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), 0.0 * self.value(y, z), 0.0 * z


@pytest.mark.parametrize("cost", [np.nan, np.inf, -np.inf])
def test_trouble_is_data(cost):
    with np.errstate(all="ignore"):
        assert not np.all(np.isfinite(tilt(Bad(cost), 0.0, 0.1, 1.0, 1.0)))
    assert not np.all(np.isfinite(compiled_tilt(Bad(cost), 0.0, 0.1, 1.0, 1.0, compiled.rules_for(8))))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_compiled_equals_plain(loss):
    rng, rules = np.random.default_rng(0), compiled.rules_for(8)
    for _ in range(300):
        y, s, beta = rng.choice(TARGETS[loss.targets]), 10.0 ** rng.uniform(-3.0, 4.0), 10.0 ** rng.uniform(-1.0, 1.0)
        m = min(3.0 * s * rng.standard_normal() + rng.standard_normal(), 20.0)
        plain, fast = tilt(loss, y, m, s * s, beta), compiled_tilt(loss, y, m, s * s, beta, rules)
        assert_tilt(fast, plain, PARITY)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 2.5])
def test_the_compiled_mixture_equals_the_plain_one_and_gives_way_with_it(sharpness):
    rng, rules, loss = np.random.default_rng(0), compiled.rules_for(8), losses.Logistic(sharpness)
    gave_way = 0
    for _ in range(500):
        y, s = rng.choice([-1.0, 1.0]), 10.0 ** rng.uniform(-3.0, 4.0)
        m = 2.0 * s * rng.standard_normal() + 5.0 * rng.standard_normal()
        plain, fast = tilt(loss, y, m, s * s, 1.0), compiled_tilt(loss, y, m, s * s, 1.0, rules)
        gave_way += plain.log_mass < math.log(LEAST_MASS)
        assert_tilt(fast, plain, PARITY)
    assert 0 < gave_way < 100


@pytest.mark.parametrize(("m", "v"), [(np.nan, 1.0), (0.0, np.nan)])
def test_a_mixture_under_no_gaussian_is_data(m, v):
    assert not np.all(np.isfinite(tilt(losses.Logistic(), 1.0, m, v, 1.0)))
    assert not np.all(np.isfinite(compiled_tilt(losses.Logistic(), 1.0, m, v, 1.0, compiled.rules_for(8))))
