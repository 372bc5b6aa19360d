"""Mixtures of Gaussians have the moments, quantiles and draws of their parts, weighted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import ndtr

from cavity.gaussians import AffineGaussian, Change, DenseGaussian, FactorialGaussian, GaussianMixture
from cavity.gaussians.mixture import normal_mixture_quantile


def mixture(dense: bool = True) -> GaussianMixture:
    """Three Gaussians of four coordinates, in very different units."""
    rng, units = np.random.default_rng(0), np.array([1e-6, 1.0, 1e3, 1e6])
    weights = np.array([0.2, 0.5, 0.3])
    parts = []
    for _ in weights:
        mean, root = units * rng.normal(size=4), units[:, None] * rng.normal(size=(4, 4))
        parts.append(DenseGaussian(mean, root, 0.0) if dense else FactorialGaussian.from_moments(mean, units**2))
    return GaussianMixture(weights, tuple(parts), -3.0)


@pytest.mark.parametrize("dense", [True, False])
def test_moments_are_those_of_draws(dense):
    one = mixture(dense)
    draws = one.draws(np.random.default_rng(1).standard_normal((400_000, 4)))
    np.testing.assert_allclose(np.mean(draws, axis=0) / one.std, one.mean / one.std, atol=0.01)
    np.testing.assert_allclose(np.std(draws, axis=0), one.std, rtol=0.01)
    np.testing.assert_allclose(np.corrcoef(draws.T), one.covariance / one.std / one.std[:, None], atol=0.01)
    np.testing.assert_allclose(np.diagonal(one.covariance), one.variance)
    for q in (0.05, 0.5, 0.9):
        np.testing.assert_allclose(np.mean(draws < one.quantile(q), axis=0), q, atol=0.003)
    np.testing.assert_allclose(np.mean(draws > 0.0, axis=0), one.positive(), atol=0.003)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_predictors_are_linear_combinations(dense, storage):
    """Also where coordinates differ by twelve orders of magnitude: nothing small is lost beside the large."""
    one = mixture(dense)
    rows = np.vstack([np.eye(4), np.diag(1.0 / one.std), np.ones(4) / one.std])
    expected = np.einsum("ri,ij,rj->r", rows, one.covariance, rows)
    np.testing.assert_allclose(one.predictor_variance(storage(rows)), expected, rtol=1e-9)
    means, variances = one.predictors(storage(rows))
    center = one.weights @ means
    np.testing.assert_allclose(one.weights @ (variances + (means - center) ** 2), expected, rtol=1e-9)


def test_a_quantile_of_one_part_is_its_own():
    mean, std = np.array([[1.0, -2.0]]), np.array([[0.5, 3.0]])
    np.testing.assert_allclose(
        normal_mixture_quantile(np.ones(1), mean, std, 0.9), mean[0] + 1.2815515655446004 * std[0]
    )


def test_quantiles_solve_the_distribution_function():
    rng = np.random.default_rng(2)
    weights, means, stds = np.array([0.1, 0.6, 0.3]), rng.normal(size=(3, 50)), rng.uniform(0.1, 3.0, (3, 50))
    for q in (0.01, 0.3, 0.99):
        found = normal_mixture_quantile(weights, means, stds, q)
        np.testing.assert_allclose(weights @ ndtr((found - means) / stds), q, atol=1e-9)


def test_parts_may_be_in_other_units():
    one, unit = mixture(), np.array([2.0, 0.5, 4.0])
    change = Change(np.array([1.0, 0.0, -3.0]), unit, True)
    moved = GaussianMixture(one.weights, tuple(AffineGaussian(part, change) for part in one.parts), 0.0)
    np.testing.assert_allclose(moved.mean, change.coefficients(one.mean[:, None])[:, 0])
    np.testing.assert_allclose(moved.variance, np.diagonal(moved.covariance))
