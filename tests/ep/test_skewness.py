"""Skewed marginals: cumulants and tails of posteriors that can be integrated, where EP's Gaussian is too narrow."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from cavity.ep import blocks, skewness
from cavity.ep.driver import Options
from cavity.ep.posteriors import DensePosterior
from cavity.ep.skewness import marginal_shapes, skewed_probability, skewed_quantile, third_cumulants
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Hinge, Logistic, Poisson, Squared

RNG = np.random.default_rng(2)


def fitted(loss, X, y, variance):
    prior = FactorialGaussian.from_moments(np.zeros(X.shape[1]), np.full(X.shape[1], variance))
    rows = Rows.arrange(X, y[None], None, intercept=False)
    found = blocks.run(loss, rows, DensePosterior(rows, prior), Options(200, 1e-6))
    return rows, found


def exact(loss, X, y, variance, half=16.0, points=801):
    """Deviation, skewness and both twentieths of the first of two coefficients, by a grid."""
    axis = np.linspace(-half, half, points)
    z = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1) @ X.T
    log = -np.sum(loss.value(y, z), axis=-1) - 0.5 * (axis[:, None] ** 2 + axis**2) / variance
    density = np.sum(np.exp(log - np.max(log)), axis=1)
    density /= np.sum(density)
    mean = density @ axis
    std = np.sqrt(density @ (axis - mean) ** 2)
    tails = np.interp([0.05, 0.95], np.cumsum(density) - 0.5 * density, axis)
    return std, density @ ((axis - mean) / std) ** 3, tails


CASES = [(Logistic(), 9.0), (Hinge(), 9.0), (Poisson(), 1.0)]


@pytest.mark.parametrize(("loss", "variance"), CASES, ids=repr)
def test_skewness_width_and_tails_are_those_of_the_posterior(loss, variance):
    X = RNG.normal([0.5, 0.0], 1.0, (12, 2))
    y = np.where(X[:, 0] + 0.5 * RNG.logistic(size=12) > 0.0, 1.0, -1.0)
    y = np.maximum(y, 0.0) if loss.targets == "counts" else y
    rows, found = fitted(loss, X, y, variance)
    shapes = marginal_shapes(loss, rows, rows.targets[0], found.row_sites, found.posterior)
    std, skewness, tails = exact(loss, X, y, variance)
    ep = found.posterior.std[0]
    assert abs(skewness) > 0.2
    assert shapes.skewness[0] == pytest.approx(skewness, abs=0.15)
    # Most of what EP's deviation lacks is found.
    assert abs(np.log(ep * np.sqrt(shapes.widening[0]) / std)) < max(0.4 * abs(np.log(ep / std)), 0.01)
    ours = [found.posterior.mean[0] + ep * shapes.quantiles(q)[0] for q in (0.05, 0.95)]
    gauss = found.posterior.mean[0] + ep * stats.norm.ppf([0.05, 0.95])
    assert np.max(np.abs(ours - tails)) < 0.6 * np.max(np.abs(gauss - tails))


def test_gaussian_posteriors_have_no_skewness():
    X, y = RNG.standard_normal((30, 2)), RNG.standard_normal(30)
    rows, found = fitted(Squared(0.5), X, y, 1.0)
    assert_allclose(third_cumulants(Squared(0.5), rows.targets[0], rows.weights, found.row_sites), 0.0, atol=1e-9)


def test_combinations_are_skewed_as_the_coefficients_they_are():
    X = RNG.standard_normal((20, 3))
    y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    turned = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, -1.0]])
    rows, found = fitted(Logistic(), X, y, 9.0)
    plain = marginal_shapes(Logistic(), rows, rows.targets[0], found.row_sites, found.posterior)
    again = marginal_shapes(Logistic(), rows, rows.targets[0], found.row_sites, found.posterior, turned)
    for ours, wanted in zip(again, plain, strict=True):
        assert ours[1] == pytest.approx(wanted[1], rel=1e-12)
    assert again.skewness[0] != pytest.approx(plain.skewness[0])


@pytest.mark.parametrize("skewness", [-1.5, -0.3, 1e-5, 0.02, 0.8])
def test_quantiles_are_those_of_pearsons_type_three(skewness):
    q = np.array([0.01, 0.05, 0.5, 0.95, 0.99])
    g = np.full(5, skewness)
    found = np.array([skewed_quantile(g[:1], p)[0] for p in q])
    assert_allclose(found, stats.pearson3.ppf(q, skewness), atol=1e-4)
    assert_allclose(skewed_probability(g, found), q, atol=1e-6)


@pytest.mark.parametrize("loss", [Logistic(), Poisson()], ids=repr)
def test_many_rows_bound_the_skewness_so_that_it_need_not_be_summed(loss, monkeypatch):
    X = RNG.normal(0.0, 0.5, (2000, 3))
    y = np.where(RNG.uniform(size=2000) < 0.5, 1.0, -1.0) if loss.targets == "signs" else RNG.poisson(1.0, 2000)
    rows, found = fitted(loss, X, y.astype(np.float64), 4.0)
    b = third_cumulants(loss, rows.targets[0], rows.weights, found.row_sites)
    bound = skewness._largest_skewness(b, found.row_sites)
    assert bound < skewness.SKEWED
    arguments = loss, rows, rows.targets[0], found.row_sites, found.posterior
    assert not np.any(marginal_shapes(*arguments).skewness)
    monkeypatch.setattr(skewness, "SKEWED", -1.0)
    summed = marginal_shapes(*arguments).skewness
    assert np.all(summed != 0.0)
    assert np.max(np.abs(summed)) <= bound
