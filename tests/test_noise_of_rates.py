"""Gamma and negative binomial noise against the densities of scipy and brute-force integrals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import digamma, polygamma
from scipy.stats import gamma, nbinom, norm, poisson

from cavity.losses import Gamma, NegativeBinomial, Poisson
from cavity.noise import (
    estimate_scale,
    log_normalizer,
    predictive_quantile,
    predictive_std,
    scale_of_sums,
    scale_sums,
    site_factor,
    sums_of_scale,
    with_scale,
)

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


def latent(kind, mean, std):
    """Predictors of equal probability: Gaussian, or for gamma with a gamma variable as inverse of the mean."""
    share = (np.arange(2000) + 0.5) / 2000
    if kind is NegativeBinomial:
        return mean + std * norm.ppf(share)
    shape = brentq(lambda a: polygamma(1, a) - std**2, 1e-3, 1e9)
    return mean + digamma(shape) - np.log(gamma.ppf(share, shape))


def expected(loss, y, z, weights):
    """Weighted mean of the expected log density."""
    log = -loss.value(y[:, None], z) - log_normalizer(loss, y)[:, None]
    return np.average(np.mean(log, axis=1), weights=weights)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_scale_is_that_of_highest_likelihood(kind, seed):
    rng = np.random.default_rng(seed)
    mean, std, weights = rng.normal(1.0, 1.0, 60), rng.uniform(0.01, 0.7, 60), rng.uniform(0.0, 2.0, 60)
    y = density_of(kind(0.8), np.exp(mean + std * rng.standard_normal(60))).rvs(random_state=rng)
    z = np.array([latent(kind, *row) for row in zip(mean, std, strict=True)])
    found = estimate_scale(kind(), y, mean, std**2, weights)
    best = minimize_scalar(
        lambda log: -expected(kind(np.exp(log)), y, z, weights),
        bounds=(np.log(found) - 2.0, np.log(found) + 2.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert np.log(found) == pytest.approx(best.x, abs=1e-3)
    assert estimate_scale(kind(7.0), y, mean, std**2, weights) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.05, 0.5, 2.0])
def test_the_scale_of_sampled_targets_is_found_at_once_and_from_sums_of_single_rows(kind, scale):
    rng = np.random.default_rng(5)
    mean = rng.normal(3.0, 0.5, 20_000)
    y = np.maximum(
        density_of(kind(scale), np.exp(mean)).rvs(random_state=rng), 0.0 if kind is NegativeBinomial else 1e-300
    )
    found = estimate_scale(kind(), y, mean, 0.0 * mean)
    assert found == pytest.approx(scale, rel=0.05)
    parts = [scale_sums(kind(scale), y[i : i + 1], mean[i : i + 1], [0.0]) for i in range(0, 20_000, 10)]
    assert scale_of_sums(kind(), np.sum(parts, axis=0)) == pytest.approx(scale, rel=0.25)


@pytest.mark.parametrize("kind", KINDS)
@given(st.floats(1e-3, 100.0), st.floats(0.1, 100.0), st.floats(1.0, 1e4))
def test_sums_of_a_scale_have_that_scale(kind, scale, center, rows):
    assert scale_of_sums(kind(), sums_of_scale(kind(scale), rows, center)) == pytest.approx(scale, rel=1e-6)


def test_counts_that_vary_less_than_those_of_poisson_have_no_dispersion():
    y = np.tile([3.0, 4.0, 5.0], 50)
    assert estimate_scale(NegativeBinomial(), y, np.full(150, np.log(4.0)), np.zeros(150), floor=1e-4) == 1e-4
    assert estimate_scale(NegativeBinomial(), np.zeros(9), np.full(9, 2.0), np.zeros(9)) == 1e3
    assert estimate_scale(Gamma(), np.full(9, 4.0), np.full(9, np.log(4.0)), np.zeros(9), floor=1e-4) == 1e-4


def test_small_dispersion_of_large_counts_is_found():
    rng = np.random.default_rng(1)
    y = rng.poisson(rng.gamma(1e6, 0.1, 4000)).astype(float)  # a rate of 1e5 that varies by 1e-3
    expected_scale = 1e-3
    found = estimate_scale(NegativeBinomial(), y, np.full(4000, np.log(1e5)), np.zeros(4000))
    assert found == pytest.approx(expected_scale, rel=0.5)
    assert poisson(1e5).std() < np.std(y)


@pytest.mark.parametrize("kind", KINDS)
def test_the_site_factor_is_the_ratio_of_expected_curvatures(kind):
    rng = np.random.default_rng(2)
    y = density_of(kind(0.7), 5.0).rvs(size=400_000, random_state=rng)
    old, new = (np.mean(kind(s).derivatives(y, np.full(y.size, np.log(5.0)))[2]) for s in (0.7, 1.4))
    assert site_factor(kind(0.7), 1.4, 5.0) == pytest.approx(new / old, rel=0.01)
    assert with_scale(kind(0.7), 1.4) == kind(1.4)
