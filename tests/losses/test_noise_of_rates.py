"""Gamma and negative binomial noise against the densities of scipy and brute-force integrals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gamma, nbinom, norm

from cavity.losses import Gamma, NegativeBinomial, Poisson
from cavity.losses.noise import log_normalizer, predictive_quantile, predictive_std, site_factor, with_scale

SCALES = [0.1, 0.5, 1.0, 3.0]
KINDS = [Gamma, NegativeBinomial]
NODES = np.linspace(-10.0, 10.0, 20_001)
INTEGRAL = 1e-7

probabilities = st.floats(1e-5, 1.0 - 1e-5)


def density_of(loss, mean):
    """The distribution of a target of this mean."""
    k = loss.scale**-2
    return gamma(k, scale=mean / k) if isinstance(loss, Gamma) else nbinom(k, k / (k + mean))


def log_density(loss, y, z):
    frozen = density_of(loss, np.exp(z))
    return frozen.logpdf(y) if isinstance(loss, Gamma) else frozen.logpmf(y)


def below(loss, y, mean, std):
    """Probability of at most y, the predictor being N(mean, std^2)."""
    return float(np.average(density_of(loss, np.exp(mean + std * NODES)).cdf(y), weights=norm.pdf(NODES)))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_normaliser_are_the_logarithm_of_the_density(kind, scale):
    loss, z = kind(scale), np.linspace(-4.0, 5.0, 19)
    for y in (1.0, 4.0, 60.0) if kind is Gamma else (0.0, 1.0, 4.0, 60.0):
        found = -loss.value(y, z) - log_normalizer(loss, np.full(z.size, y))
        np.testing.assert_allclose(found, log_density(loss, y, z), rtol=1e-10, atol=1e-10)


def test_without_dispersion_counts_are_those_of_poisson():
    y, z = np.arange(8.0), np.linspace(-3.0, 3.0, 8)
    loss = NegativeBinomial(1e-6)
    for found, wanted in zip(loss.derivatives(y, z), Poisson().derivatives(y, z), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-9)
    np.testing.assert_allclose(log_normalizer(loss, y), log_normalizer(Poisson(), y), atol=1e-9)
    mean, variance = np.zeros(5), np.array([0.0, 0.1, 1.0, 2.0, 4.0])
    for q in (0.1, 0.5, 0.95):
        found, wanted = (predictive_quantile(one, mean, variance, q) for one in (loss, Poisson()))
        np.testing.assert_array_equal(found, wanted)
    assert predictive_std(loss, mean, variance) == pytest.approx(predictive_std(Poisson(), mean, variance))


@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.0), (0.3, 0.2), (-2.0, 1.5), (3.0, 0.05)])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_deviation_is_that_of_the_mixture(kind, scale, mean, variance):
    centers = np.exp(mean + np.sqrt(variance) * NODES)
    own = density_of(kind(scale), centers).var()
    first, second = (np.average(centers**k, weights=norm.pdf(NODES)) for k in (1, 2))
    wanted = np.sqrt(np.average(own, weights=norm.pdf(NODES)) + second - first**2)
    assert predictive_std(kind(scale), mean, variance) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("std", [0.0, 0.01, 0.3, 0.9, 1.5, 4.0])
@pytest.mark.parametrize("scale", SCALES)
def test_the_quantile_of_gamma_inverts_the_distribution(scale, std):
    q = np.array([0.001, 0.2, 0.5, 0.9, 0.999])
    found = predictive_quantile(Gamma(scale), np.full(5, 1.3), np.full(5, std**2), q)
    assert [below(Gamma(scale), y, 1.3, std) for y in found] == pytest.approx(q, abs=INTEGRAL)


@pytest.mark.parametrize("std", [0.0, 0.01, 0.3, 0.9, 1.5, 4.0])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 4.0])
@pytest.mark.parametrize("scale", SCALES)
def test_the_quantile_of_dispersed_counts_is_the_smallest_that_reaches_it(scale, mean, std):
    loss, q = NegativeBinomial(scale), np.array([0.01, 0.2, 0.5, 0.9, 0.999])
    found = predictive_quantile(loss, np.full(5, mean), np.full(5, std**2), q)
    assert np.array_equal(found, np.round(found))
    for n, wanted in zip(found, q, strict=True):
        assert below(loss, n, mean, std) >= wanted - INTEGRAL
        assert n == 0.0 or below(loss, n - 1.0, mean, std) < wanted + INTEGRAL


@pytest.mark.parametrize("kind", KINDS)
@given(st.floats(0.01, 10.0), st.floats(-20.0, 25.0), st.floats(0.0, 10.0), probabilities, probabilities)
def test_quantiles_rise_and_are_not_negative(kind, scale, mean, std, p, q):
    low, high = predictive_quantile(kind(scale), mean, std**2, np.sort([p, q]))
    assert 0.0 <= low <= high * (1.0 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_very_large_means_are_numbers(kind):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = predictive_quantile(kind(0.5), np.array([40.0, 40.0, 900.0]), np.array([0.0, 1e4, 1.0]), 0.8)
        assert np.all(predictive_std(kind(), np.array([-900.0, 0.0, 900.0]), np.array([0.0, 900.0, 1.0])) >= 0.0)
    assert np.all(np.isfinite(found))
    assert np.log(found[0]) == pytest.approx(40.0 + np.log(gamma.ppf(0.8, 4.0, scale=0.25)), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_site_factor_is_the_ratio_of_expected_curvatures(kind):
    rng = np.random.default_rng(2)
    y = density_of(kind(0.7), 5.0).rvs(size=400_000, random_state=rng)
    old, new = (np.mean(kind(s).derivatives(y, np.full(y.size, np.log(5.0)))[2]) for s in (0.7, 1.4))
    assert site_factor(kind(0.7), 1.4, 5.0) == pytest.approx(new / old, rel=0.01)
    assert with_scale(kind(0.7), 1.4) == kind(1.4)
