"""Variances of random effects: restricted likelihood against closed forms, quadrature against brute force."""

import numpy as np
import pytest
from scipy.special import logsumexp

from reference.reml import LOGISTIC, POISSON, RandomIntercepts, dummies, reml


def one_way(rng, levels, rows, deviation):
    codes = np.repeat(np.arange(levels), rows)
    return codes, 3.0 + deviation * rng.standard_normal(levels)[codes] + rng.standard_normal(codes.size)


def mean_squares(y, levels, rows):
    table = y.reshape(levels, rows)
    between = rows * np.sum((table.mean(axis=1) - table.mean()) ** 2) / (levels - 1)
    return between, np.sum((table - table.mean(axis=1, keepdims=True)) ** 2) / (levels * (rows - 1))


def test_balanced_one_way_is_the_analysis_of_variance():
    codes, y = one_way(np.random.default_rng(0), 8, 5, 2.0)
    found = reml(y, np.ones((40, 1)), [dummies(codes)])
    between, within = mean_squares(y, 8, 5)
    assert found.noise == pytest.approx(within, rel=1e-5)
    assert found.variances == pytest.approx([(between - within) / 5], rel=1e-5)


def test_a_variance_below_zero_is_zero():
    seeds = (np.random.default_rng(k) for k in range(100))
    codes, y = next((c, y) for c, y in (one_way(rng, 6, 4, 0.0) for rng in seeds) if np.diff(mean_squares(y, 6, 4)) > 0)
    found = reml(y, np.ones((24, 1)), [dummies(codes)])
    assert found.variances == pytest.approx([0.0], abs=1e-9)
    assert found.noise == pytest.approx(np.var(y, ddof=1))


def test_two_factors_without_interaction_are_the_analysis_of_variance():
    rng = np.random.default_rng(1)
    rows, columns = (code.ravel() for code in np.indices((7, 6)))
    y = 2.0 * rng.standard_normal(7)[rows] + 3.0 * rng.standard_normal(6)[columns] + rng.standard_normal(42)
    table = y.reshape(7, 6)
    down, across = table.mean(axis=1) - table.mean(), table.mean(axis=0) - table.mean()
    noise = np.sum((table - table.mean() - down[:, None] - across) ** 2) / 30
    found = reml(y, np.ones((42, 1)), [dummies(rows), dummies(columns)])
    expected = (6 * np.sum(down**2) / 6 - noise) / 6, (7 * np.sum(across**2) / 5 - noise) / 7
    assert found.noise == pytest.approx(noise, rel=1e-4)
    assert found.variances == pytest.approx(expected, rel=1e-4)


def test_the_restricted_likelihood_is_that_of_residuals():
    # Of contrasts that are orthogonal to the fixed effects, from the whole covariance matrix.
    rng = np.random.default_rng(2)
    codes, x = rng.integers(4, size=15), rng.standard_normal(15)
    X, Z = np.column_stack([np.ones(15), x]), [dummies(codes), dummies(codes) * x[:, None]]
    y = X @ [1.0, 2.0] + Z[0] @ rng.standard_normal(4) + Z[1] @ rng.standard_normal(4) + rng.standard_normal(15)
    contrasts = np.linalg.svd(X)[0][:, 2:]

    def deviance(variances, noise):
        whole = noise * np.eye(15) + sum(v * one @ one.T for v, one in zip(variances, Z, strict=True))
        inner, seen = contrasts.T @ whole @ contrasts, contrasts.T @ y
        return np.linalg.slogdet(2.0 * np.pi * inner)[1] + seen @ np.linalg.solve(inner, seen)

    found = reml(y, X, Z)
    constant = np.linalg.slogdet(X.T @ X)[1]
    assert found.deviance == pytest.approx(deviance(found.variances, found.noise) + constant)
    for change in ([1.05, 1, 1], [1, 1.05, 1], [1, 1, 1.05], [0.95, 1, 1], [1, 0.95, 1], [1, 1, 0.95]):
        assert found.deviance < constant + deviance(found.variances * change[:2], found.noise * change[2])


@pytest.mark.parametrize("family", [LOGISTIC, POISSON], ids=lambda family: family.name)
@pytest.mark.parametrize("variance", [0.0, 0.01, 0.5, 3.0])
def test_quadrature_is_the_sum_over_a_fine_grid(family, variance):
    rng = np.random.default_rng(3)
    codes, x = np.repeat(np.arange(3), 8), rng.standard_normal(24)
    z = 0.4 + 0.7 * x + np.array([-0.6, 0.1, 0.5])[codes]
    y = rng.poisson(np.exp(z)) if family is POISSON else (z + rng.logistic(size=24) > 0.0)
    y, X = y.astype(float), np.column_stack([np.ones(24), x])
    # Grids of the two fixed effects and of an effect in units of its deviation; beyond them the integrand is nothing.
    first, second, effects = np.linspace(-9.0, 9.0, 181), np.linspace(-4.0, 8.0, 121), np.linspace(-7.0, 7.0, 71)
    normal = np.exp(-0.5 * effects**2) / np.sqrt(2.0 * np.pi) * (effects[1] - effects[0])
    inner = np.zeros((first.size, second.size))
    for level in range(3):
        logs = np.zeros((first.size, second.size, effects.size))
        for a, b in zip(x[codes == level], y[codes == level], strict=True):
            places = first[:, None, None] + a * second[:, None] + np.sqrt(variance) * effects
            logs += family.log_density(b, places)
        inner += logsumexp(logs, b=normal, axis=-1)
    expected = logsumexp(inner) + np.log((first[1] - first[0]) * (second[1] - second[0]))
    found = RandomIntercepts(family, y, X, codes, nodes=15, fixed_nodes=9).log_likelihood(variance)
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("family", [LOGISTIC, POISSON], ids=lambda family: family.name)
def test_the_maximum_is_higher_than_its_neighbours(family):
    rng = np.random.default_rng(4)
    codes, x = np.repeat(np.arange(10), 20), rng.standard_normal(200)
    z = x + rng.standard_normal(10)[codes]
    y = rng.poisson(np.exp(z)) if family is POISSON else (z + rng.logistic(size=200) > 0.0)
    model = RandomIntercepts(family, y, np.column_stack([np.ones(200), x]), codes)
    variance, value = model.maximum()
    assert value >= max(model.log_likelihood(variance * 1.03), model.log_likelihood(variance / 1.03))
