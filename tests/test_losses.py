from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from cases import SIGN_LOSSES, all_components, assert_close, fit, standard_prior
from cavity import LinearFactor, losses
from cavity.losses import Hinge, Logistic, QuasiZeroOne, Squared
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
]
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


@given(st.floats(-1e150, 1e150), st.floats(-1e150, 1e150))
def test_squared_is_finite_as_far_as_its_value_is_a_number(y, z):
    assert np.all(np.isfinite([Squared().value(y, z), *Squared().derivatives(y, z)]))


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
