from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit
from scipy.special import log_ndtr

from cases import SIGN_LOSSES, all_components, assert_close, fit, random_targets, standard_prior
from cavity import LinearFactor, losses
from cavity.losses import (
    Absolute,
    Gamma,
    Hinge,
    Huber,
    Logistic,
    NegativeBinomial,
    Offers,
    Poisson,
    Quantile,
    QuasiZeroOne,
    Squared,
    offers,
)
from cavity.testing import check_loss

LOSSES = [
    *all_components(losses),
    Logistic(0.3),
    Logistic(20.0),
    Hinge(0.0),
    Hinge(2.5),
    QuasiZeroOne(1.0),
    QuasiZeroOne(0.01),
    Squared(0.1),
    Squared(7.0),
    Absolute(0.1),
    Huber(0.5, 2.0),
    Huber(3.0, 0.25),
    Quantile(0.05),
    Quantile(0.9, 3.0),
    Poisson(2.0),
    NegativeBinomial(0.1),
    NegativeBinomial(3.0),
    Gamma(0.2),
    Gamma(2.0, 1.5),
]
sizes = st.floats(1e-3, 1e3)
shares = st.floats(0.01, 0.99)
PIECEWISE = {
    Hinge: st.builds(Hinge, st.floats(-10.0, 10.0)),
    QuasiZeroOne: st.builds(QuasiZeroOne, st.floats(1e-3, 1.0)),
    Absolute: st.builds(Absolute, sizes),
    Quantile: st.builds(Quantile, shares, sizes),
}
LARGEST = float(np.finfo(float).max)
MARGINS = np.linspace(-3.0, 3.0, 241)
ROUNDING = 1e-12

every_float = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_every_loss_keeps_the_contract(loss):
    check_loss(loss)


@pytest.mark.parametrize("loss", SIGN_LOSSES, ids=repr)
@given(every_float)
@example(LARGEST)
@example(-LARGEST)
def test_nothing_overflows_for_any_finite_margin(loss, z):
    for y in (-1.0, 1.0):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            answers = loss.value(y, z), *loss.derivatives(y, z), *loss.derivatives(np.array([y]), np.array([z]))
        assert np.all([np.isfinite(a).all() for a in answers])


@pytest.mark.parametrize(
    "loss", [Squared(), Absolute(), Huber(), Quantile(), Poisson(), NegativeBinomial(), Gamma()], ids=repr
)
@given(st.floats(-1e150, 1e150), st.floats(-1e150, 1e150))
@example(0.0, 1e150)
@example(1.0, -1e150)
def test_losses_of_numbers_are_finite_as_far_as_their_value_is_a_number(loss, y, z):
    y = abs(y) + (loss.targets == "positives") * 1e-300 if loss.targets != "reals" else y
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert np.all(np.isfinite([loss.value(y, z), *loss.derivatives(y, z)]))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if not isinstance(loss, QuasiZeroOne)], ids=repr)
@given(st.integers(0, 2**32 - 1))
def test_every_loss_but_one_is_convex(loss, seed):
    """Slopes rise, the curvature is not negative, and no tangent lies above."""
    rng = np.random.default_rng(seed)
    y, z = random_targets(loss, rng, 1), np.sort(3.0 * rng.standard_normal(30))
    value, slope, curvature = loss.derivatives(np.repeat(y, 30), z)
    assert np.all(np.diff(slope) >= -ROUNDING * np.max(np.abs(slope)))
    assert np.all(curvature >= 0.0)
    tangents = value + slope * (z[:, None] - z)
    assert np.all(tangents <= value[:, None] + ROUNDING * (1.0 + np.abs(tangents)))


@pytest.mark.parametrize("loss", [Squared(0.5), Absolute(0.5), Huber(1.0, 0.5), Quantile(0.2, 0.5)], ids=repr)
@given(st.floats(-1e3, 1e3), st.floats(0.1, 10.0))
def test_losses_of_reals_are_functions_of_the_scaled_residual(loss, z, factor):
    wanted = loss.derivatives(0.0, z)
    moved = loss._replace(scale=loss.scale * factor).derivatives(3.0, factor * z + 3.0)
    assert_close(moved[0], wanted[0], 1e-9 * (1.0 + wanted[0]))
    if abs(z) > 1e-6:
        assert_close(factor * moved[1], wanted[1], 1e-9 * (1.0 + abs(wanted[1])))


def test_huber_is_squared_near_and_absolute_far():
    for y in (-0.5, 2.0):
        u = (MARGINS - y) / 0.5
        wanted = np.where(np.abs(u) <= 1.5, 0.5 * u**2, 1.5 * np.abs(u) - 0.5 * 1.5**2)
        assert_close(Huber(1.5, 0.5).value(y, MARGINS), wanted, ROUNDING)
    for a, b in zip(Huber(100.0, 2.0).derivatives(1.0, MARGINS), Squared(2.0).derivatives(1.0, MARGINS), strict=True):
        assert_close(a, b, ROUNDING)


def test_quantile_is_the_pinball_and_at_one_half_half_the_absolute():
    r = 0.7 - MARGINS
    wanted = (0.2 * np.maximum(r, 0.0) + 0.8 * np.maximum(-r, 0.0)) / 3.0
    assert_close(Quantile(0.2, 3.0).value(0.7, MARGINS), wanted, ROUNDING)
    for a, b in zip(Quantile().derivatives(0.7, MARGINS), Absolute(2.0).derivatives(0.7, MARGINS), strict=True):
        assert_close(a, b, ROUNDING)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.8])
def test_the_pinball_is_least_at_the_quantile(q):
    y, z = np.random.default_rng(0).exponential(size=2001), np.linspace(0.0, 4.0, 4001)
    best = z[np.argmin(np.sum(Quantile(q).value(y[:, None], z), axis=0))]
    assert best == pytest.approx(np.quantile(y, q), abs=2e-3)


def test_poisson_is_minus_the_logarithm_of_the_probability_and_its_tangent_beyond_the_ceiling():
    loss, z = Poisson(2.0), np.linspace(-3.0, 4.0, 57)
    for y in (0.0, 3.0):
        wanted = np.where(z <= 2.0, np.exp(z), np.exp(2.0) * (z - 1.0)) - y * z
        assert_close(loss.value(y, z), wanted, 1e-11)
    assert Poisson().derivatives(4.0, np.log(4.0))[1] == pytest.approx(0.0, abs=ROUNDING)
    below, there, above = (loss.derivatives(1.0, t) for t in (2.0 - 1e-9, 2.0, 2.0 + 1e-9))
    assert above[1] == there[1] == pytest.approx(below[1], rel=1e-8)
    assert (below[2], there[2], above[2]) == pytest.approx((np.exp(2.0), 0.5 * np.exp(2.0), 0.0))


def test_a_loss_that_is_linear_in_pieces_says_so():
    assert {type(loss) for loss in LOSSES if offers(loss).pieces} == set(PIECEWISE)


class Own(NamedTuple):
    scale: float = 1.0


class Rough(NamedTuple):
    scale: float = 1.0

    @property
    def is_smooth(self):
        return False


def test_what_a_loss_does_not_offer_has_a_default():
    assert offers(Own()) == offers(Own) == Offers() == (None, None, None, True, None)
    assert not offers(Rough()).smooth


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_what_a_loss_offers_is_read_from_it_and_from_its_class(loss):
    offered = offers(loss)
    assert offered.logistic == (loss.sharpness if isinstance(loss, Logistic) else None)
    assert offered.squared == (loss.scale if isinstance(loss, Squared) else None)
    assert offered.smooth == (type(loss) not in PIECEWISE)
    assert [part is None for part in offers(type(loss))] == [part is None for part in offered]


@pytest.mark.parametrize("kind", PIECEWISE, ids=lambda kind: kind.__name__)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_pieces_are_the_value(kind, data, seed):
    rng = np.random.default_rng(seed)
    loss = data.draw(PIECEWISE[kind])
    (y,) = 5.0 * random_targets(loss, rng, 1) if loss.targets == "reals" else random_targets(loss, rng, 1)
    pieces = loss.pieces(y)
    ends, slopes, offsets = np.transpose(pieces)
    assert ends[-1] == np.inf
    assert np.all(np.diff(ends) > 0.0)
    z = np.concatenate([ends[:-1], ends[:-1] + 1e-3, 10.0 * rng.standard_normal(50)])
    which = np.searchsorted(ends, z)
    size = 1.0 + np.abs(offsets[which]) + np.abs(slopes[which] * z)
    assert np.all(np.abs(loss.value(y, z) - offsets[which] - slopes[which] * z) <= 1e-14 * size)
    inside = np.abs(z[:, None] - ends).min(axis=1) > 0.0
    assert_close(loss.derivatives(y, z)[1][inside], slopes[which][inside], ROUNDING * (1.0 + np.max(np.abs(slopes))))


@pytest.mark.parametrize("kind", PIECEWISE, ids=lambda kind: kind.__name__)
def test_pieces_are_compiled_as_they_are(kind):
    """Also for a field that is a whole number, and with one type for all pieces."""
    compiled = njit(kind.pieces)
    for loss in (kind(), kind(1)):
        for y in (-1.0, 1.0):
            assert compiled(loss, y) == loss.pieces(y)


@pytest.mark.parametrize("loss", SIGN_LOSSES, ids=repr)
@given(st.floats(-1e6, 1e6))
def test_only_the_product_of_label_and_prediction_counts(loss, z):
    up, down = loss.derivatives(1.0, z), loss.derivatives(-1.0, -z)
    assert (up[0], up[1], up[2]) == (down[0], -down[1], down[2])
    assert up[0] >= 0.0


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 4.0])
def test_logistic_is_the_logarithm_of_the_sigmoid(sharpness):
    for y in (-1.0, 1.0):
        b = sharpness * y
        value, slope, curvature = Logistic(sharpness).derivatives(y, MARGINS)
        sigmoid = 1.0 / (1.0 + np.exp(b * MARGINS))
        assert_close(value, np.logaddexp(0.0, -b * MARGINS), ROUNDING)
        assert_close(slope, -b * sigmoid, ROUNDING)
        assert_close(curvature, b * b * sigmoid * (1.0 - sigmoid), ROUNDING)


def test_logistic_keeps_its_digits_far_out():
    value, slope, curvature = Logistic().derivatives(1.0, 200.0)
    assert (value, -slope, curvature) == pytest.approx((np.exp(-200.0),) * 3, rel=ROUNDING)
    assert Logistic().derivatives(1.0, -200.0)[1] == -1.0


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_quasi_zero_one_is_the_formula_of_the_paper(epsilon):
    for y in (-1.0, 1.0):
        a = y * MARGINS
        wanted = np.where(a < 0.0, 1.0 - epsilon * a, np.where(a < epsilon, 1.0 - a / epsilon, 0.0))
        assert_close(QuasiZeroOne(epsilon).value(y, MARGINS), wanted, ROUNDING)


def test_quasi_zero_one_with_epsilon_one_is_the_hinge():
    for a, b in zip(QuasiZeroOne(1.0).derivatives(1.0, MARGINS), Hinge().derivatives(1.0, MARGINS), strict=True):
        assert_close(a, b, ROUNDING)


def test_the_defaults_are_those_of_the_paper():
    assert QuasiZeroOne().epsilon == 0.1
    assert Hinge().margin == Logistic().sharpness == 1.0


@pytest.mark.parametrize(
    ("loss", "y", "z", "slope"),
    [
        (Hinge(), 1.0, 1.0, -0.5),
        (Hinge(), -1.0, -1.0, 0.5),
        (Hinge(2.0), 1.0, 2.0, -0.5),
        (QuasiZeroOne(0.25), 1.0, 0.0, -0.5 * (0.25 + 4.0)),
        (QuasiZeroOne(0.25), -1.0, 0.0, 0.5 * (0.25 + 4.0)),
        (QuasiZeroOne(0.25), 1.0, 0.25, -2.0),
        (QuasiZeroOne(0.25), -1.0, -0.25, 2.0),
        (Absolute(0.5), 3.0, 3.0, 0.0),
        (Quantile(0.25, 0.5), -2.0, -2.0, 0.5),
    ],
)
def test_a_kink_has_the_half_sum_of_both_slopes(loss, y, z, slope):
    assert loss.derivatives(y, z)[1] == slope
    left, right = (loss.derivatives(y, z + h)[1] for h in (-1e-6, 1e-6))
    assert left != right
    assert slope == 0.5 * (left + right)


class Probit(NamedTuple):
    """A loss of a user's own: minus the logarithm of the normal distribution function."""

    scale: float = 1.0

    @property
    def targets(self):
        return "signs"

    def value(self, y, z):
        return -log_ndtr(y * z / self.scale)

    def derivatives(self, y, z):
        a = y * z / self.scale
        ratio = np.exp(-0.5 * np.minimum(np.abs(a), 1e3) ** 2 - log_ndtr(a)) / np.sqrt(2.0 * np.pi)
        return -log_ndtr(a), -y * ratio / self.scale, ratio * (a + ratio) / self.scale**2


@pytest.mark.parametrize("scheme", ["la", "qla", "gq", "vq"])
def test_a_loss_of_ones_own_is_one_small_class(scheme):
    check_loss(Probit(), largest=30.0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    result = fit(LinearFactor.batches(Probit(), X, y), standard_prior(2), scheme)
    assert result.mean[0] > 1.0
    assert abs(result.mean[1]) < 0.5
