"""The noise of every loss against integrals of the density that the loss itself stands for."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm, poisson

from cavity.losses import Absolute, Hinge, Huber, Logistic, Poisson, Quantile, Squared
from cavity.losses.noise import log_normalizer, predictive_quantile, predictive_std, site_factor, with_scale

REALS = [
    Squared(0.7),
    Absolute(0.7),
    Huber(1.35, 0.7),
    Huber(0.2, 2.0),
    Huber(5.0, 0.3),
    Quantile(0.5, 0.7),
    Quantile(0.15, 0.4),
    Quantile(0.95, 0.1),
]
STDS = [1e-3, 0.2, 1.0, 8.0]
PROBABILITIES = [1e-4, 0.03, 0.5, 0.8, 0.999]
INTEGRAL = 1e-8

real_losses = st.one_of(
    st.builds(Squared, st.floats(0.1, 10.0)),
    st.builds(Absolute, st.floats(0.1, 10.0)),
    st.builds(Huber, st.floats(0.05, 8.0), st.floats(0.1, 10.0)),
    st.builds(Quantile, st.floats(0.02, 0.98), st.floats(0.1, 10.0)),
)
stds = st.one_of(st.just(0.0), st.floats(1e-6, 1e3))
probabilities = st.floats(1e-5, 1.0 - 1e-5)


def edges(loss):
    """Places where the loss of a residual has kinks."""
    k = getattr(loss, "threshold", 0.0) * loss.scale
    return {-k, 0.0, k}


def reach(loss):
    """A length over which the density falls by e, on its slower side."""
    q = getattr(loss, "quantile", 0.5)
    return loss.scale / min(getattr(loss, "threshold", 1.0), q, 1.0 - q)


def integral(function, low, high, cuts):
    """Integral between two ends, in pieces."""
    inner = sorted(c for c in cuts if low < c < high)
    return sum(quad(function, a, b, epsabs=1e-13, limit=400)[0] for a, b in pairwise([low, *inner, high]))


def density(loss, beta=1.0):
    """The density of the residual, normalised numerically."""
    far = 150.0 * reach(loss)
    total = integral(lambda e: np.exp(-beta * loss.value(e, 0.0)), -far, far, edges(loss))
    return lambda e: np.exp(-beta * loss.value(e, 0.0)) / total


def distribution(loss, std, y):
    """Probability that noise and a latent variable of mean zero are below y together, by brute force."""
    p, low, high = density(loss), y - 9.0 * std, y + 9.0 * std
    mass = integral(p, low - 80.0 * reach(loss), low, edges(loss))
    return mass + integral(lambda e: p(e) * norm.cdf((y - e) / std), low, high, {*edges(loss), y - std, y, y + std})


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("loss", REALS, ids=repr)
def test_the_normaliser_is_the_integral_of_the_factor(loss, beta):
    far = 150.0 * reach(loss)
    total = integral(lambda e: np.exp(-beta * loss.value(e, 0.0)), -far, far, edges(loss))
    np.testing.assert_allclose(log_normalizer(loss, [0.3, -5.0], beta=beta), np.log(total), rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("loss", REALS, ids=repr)
def test_the_variance_of_the_noise_is_that_of_the_density(loss, beta):
    p, far = density(loss, beta), 150.0 * reach(loss)
    mean = integral(lambda e: e * p(e), -far, far, edges(loss))
    variance = integral(lambda e: (e - mean) ** 2 * p(e), -far, far, edges(loss))
    found = predictive_std(loss, np.zeros(3), np.array([0.0, 1.0, 4.0]), beta=beta)
    assert found**2 == pytest.approx(variance + np.array([0.0, 1.0, 4.0]), rel=1e-7)


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("loss", REALS, ids=repr)
def test_the_quantile_inverts_the_distribution_of_noise_and_posterior_together(loss, std):
    found = predictive_quantile(loss, np.zeros(5), np.full(5, std**2), PROBABILITIES)
    assert [distribution(loss, std, y) for y in found] == pytest.approx(PROBABILITIES, abs=INTEGRAL)


@pytest.mark.parametrize("loss", REALS, ids=repr)
def test_without_posterior_variance_the_quantile_is_that_of_the_noise(loss):
    found = predictive_quantile(loss, 0.0, 0.0, np.array([0.1, 0.6]))
    masses = [integral(density(loss), -80.0 * reach(loss), y, edges(loss)) for y in found]
    assert masses == pytest.approx([0.1, 0.6], abs=INTEGRAL)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.7])
def test_the_noise_of_the_pinball_has_its_quantile_at_zero(q):
    assert predictive_quantile(Quantile(q, 3.0), 2.0, 0.0, q) == pytest.approx(2.0, abs=1e-6)


@given(real_losses, st.floats(-100.0, 100.0), stds, probabilities, probabilities)
def test_quantiles_rise_with_the_probability(loss, mean, std, p, q):
    low, high = predictive_quantile(loss, mean, std**2, np.sort([p, q]))
    assert low <= high + 1e-9 * (1.0 + abs(high))


@given(real_losses, st.floats(-10.0, 10.0), stds, probabilities, st.floats(0.01, 100.0))
def test_quantiles_and_deviations_follow_the_units_of_the_targets(loss, mean, std, q, unit):
    other = with_scale(loss, unit * loss.scale)
    size = unit * float(predictive_std(loss, mean, std**2))
    assert predictive_std(other, unit * mean, (unit * std) ** 2) == pytest.approx(size, rel=1e-12)
    moved = predictive_quantile(other, unit * mean + 5.0, (unit * std) ** 2, q)
    assert moved == pytest.approx(5.0 + unit * predictive_quantile(loss, mean, std**2, q), abs=1e-6 * (5.0 + size))


@given(st.floats(0.05, 8.0), st.floats(0.1, 10.0), stds, probabilities)
def test_symmetric_noise_has_symmetric_quantiles(threshold, scale, std, q):
    for loss in (Huber(threshold, scale), Absolute(scale)):
        low, high = predictive_quantile(loss, 0.0, std**2, np.array([q, 1.0 - q]))
        assert low == pytest.approx(-high, abs=1e-6 * (scale / min(threshold, 1.0) + std))


@pytest.mark.parametrize("loss", REALS, ids=repr)
def test_wide_and_narrow_posteriors_overflow_nowhere(loss):
    variance = np.array([0.0, 1e-300, 1e-20, 1e-8, 1e8, 1e20, 1e200])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = predictive_quantile(loss, np.zeros(7), variance, 0.9)
    assert np.all(np.isfinite(found))
    assert found[4:] == pytest.approx(norm.ppf(0.9) * np.sqrt(variance[4:]), rel=1e-2)


@pytest.mark.parametrize("limit", [(Huber(50.0, 2.0), Squared(2.0)), (Huber(1e-3, 1e-3), Absolute(1.0))], ids=repr)
def test_huber_lies_between_squared_and_absolute(limit):
    huber, other = limit
    assert predictive_std(huber, 0.0, 1.0) == pytest.approx(predictive_std(other, 0.0, 1.0), rel=1e-4)
    found, wanted = (predictive_quantile(loss, 0.0, 1.0, np.array([0.05, 0.7])) for loss in limit)
    assert found == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("loss", REALS, ids=repr)
def test_site_factors_are_in_units_of_the_scale(loss):
    assert site_factor(loss, 3.0 * loss.scale, 0.0) == pytest.approx(1.0 / 9.0, rel=1e-12)


def test_another_scale_leaves_the_rest_of_a_loss():
    assert with_scale(Huber(2.0, 1.0), 3.0) == Huber(2.0, 3.0)
    assert with_scale(Quantile(0.3), 3) == Quantile(0.3, 3.0)


@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.0), (0.3, 0.2), (-2.0, 1.5), (3.0, 0.05)])
def test_the_deviation_of_counts_is_that_of_their_mixture(mean, variance):
    z, weight = np.linspace(-12.0, 12.0, 4001), norm.pdf(np.linspace(-12.0, 12.0, 4001))
    rate = np.exp(mean + np.sqrt(variance) * z)
    first, second = (np.average(rate**k, weights=weight) for k in (1, 2))
    assert predictive_std(Poisson(), mean, variance) == pytest.approx(np.sqrt(second + first - first**2), rel=1e-6)


def counts_below(n, mean, std):
    """Probability of at most n, by a rule fine enough for all cases below."""
    z = np.linspace(-10.0, 10.0, 20_001)
    return float(np.average(poisson.cdf(n, np.exp(mean + std * z)), weights=norm.pdf(z)))


@pytest.mark.parametrize("std", [0.0, 0.01, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 1.5, 6.0])
def test_the_quantile_of_counts_is_the_smallest_count_that_reaches_it(mean, std):
    q = np.array([0.01, 0.2, 0.5, 0.9, 0.999])
    found = predictive_quantile(Poisson(), np.full(5, mean), np.full(5, std**2), q)
    assert np.array_equal(found, np.round(found))
    for n, wanted in zip(found, q, strict=True):
        assert counts_below(n, mean, std) >= wanted - 1e-7
        assert n == 0.0 or counts_below(n - 1.0, mean, std) < wanted + 1e-7


@given(st.floats(-20.0, 25.0), st.one_of(st.just(0.0), st.floats(1e-6, 10.0)), probabilities, probabilities)
def test_quantiles_of_counts_are_counts_and_rise(mean, std, p, q):
    low, high = predictive_quantile(Poisson(), mean, std**2, np.sort([p, q]))
    assert 0.0 <= low <= high
    assert low == np.round(low)


def test_very_large_counts_are_finite_and_near_the_quantile_of_their_mean():
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = predictive_quantile(Poisson(), np.array([40.0, 40.0, 900.0]), np.array([0.0, 4.0, 1.0]), 0.8)
        assert np.all(predictive_std(Poisson(), np.array([-900.0, 0.0, 900.0]), np.array([0.0, 900.0, 1.0])) >= 0.0)
    assert np.log(found[:2]) == pytest.approx([40.0, 40.0 + 2.0 * norm.ppf(0.8)], rel=1e-6)
    assert np.isfinite(found[2])


def test_rows_have_any_shape_and_there_may_be_many_or_none():
    for loss in (Squared(), Absolute(), Huber(), Quantile(), Poisson()):
        for shape in ((), (0,), (3, 2), (5000,)):
            mean = np.zeros(shape)
            assert predictive_std(loss, mean, mean + 1.0).shape == shape
            assert predictive_quantile(loss, mean, mean + 1.0, 0.3).shape == shape
        many = predictive_quantile(loss, np.linspace(-1.0, 2.0, 5000), np.ones(5000), 0.6)
        assert np.all(np.diff(many) >= 0.0)


class Own(NamedTuple):
    """A loss of a user's own."""

    scale: float = 1.0


@pytest.mark.parametrize("loss", [Own(), Logistic(), Hinge()], ids=repr)
def test_a_loss_whose_noise_is_not_known_is_refused_with_a_remedy(loss):
    message = f"the noise that {type(loss).__name__} stands for is not known.*give the scale in the loss.*Squared"
    for ask in (
        lambda: predictive_std(loss, np.ones(2), np.ones(2)),
        lambda: predictive_quantile(loss, np.ones(2), np.ones(2), 0.5),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    assert with_scale(Own(), 2.0) == Own(2.0)


def test_counts_have_no_scale():
    with pytest.raises(ValueError, match=r"must have a field `scale` .* got Poisson"):
        with_scale(Poisson(), 2.0)


@pytest.mark.parametrize("loss", [Squared(1e200), Absolute(1e200), Quantile(0.1, 1e200)], ids=repr)
def test_the_deviation_of_enormous_noise_is_a_number(loss):
    assert np.all(np.isfinite(predictive_std(loss, [0.0], [1.0])))
