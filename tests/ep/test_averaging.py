"""Posteriors averaged over hyperparameters are those of brute-force integration over a fine grid."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from scipy.stats import t as student

from cavity import EPRegressor, FactorialGaussian
from cavity.ep.hyperparameters import (
    Group,
    NormalRows,
    evidence,
    hyperparameters_of,
    interval,
    maximise_evidence,
    set_hyperparameters,
    settings_around,
)
from cavity.ep.posteriors import DenseNatural, DensePosterior
from cavity.gaussians.mixture import normal_mixture_quantile

RATE = 0.2


def one_way(levels: int, rows: int, variance: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indicators of levels with a constant, and targets with noise of one."""
    rng = np.random.default_rng(seed)
    level = np.repeat(np.arange(levels), rows)
    X = np.column_stack([np.eye(levels)[level], np.ones(level.size)])
    return X, np.sqrt(variance) * rng.normal(size=levels)[level] + rng.normal(size=level.size)


def at_maximum(X: np.ndarray, y: np.ndarray) -> tuple[DensePosterior, list[Group], NormalRows]:
    d = X.shape[1] - 1
    prior = FactorialGaussian.from_moments(np.zeros(d + 1), np.append(np.ones(d), 100.0))
    posterior = DensePosterior(None, prior, DenseNatural(X.T @ X, X.T @ y))
    groups, rows = [Group(np.arange(d), 1.0, RATE)], NormalRows(float(y.size), float(y @ y), 1.0, 1e-4)
    maximise_evidence(posterior, groups, rows)
    return posterior, groups, rows


@pytest.mark.parametrize(("levels", "rows", "variance"), [(3, 4, 1.0), (5, 3, 0.0), (8, 2, 0.3)])
def test_averages_are_those_of_a_fine_grid(levels, rows, variance):
    """Jeffreys' prior of the variance of the effects, flat in the logarithm of the noise, times the half-normal one."""
    X, y = one_way(levels, rows, variance)
    posterior, groups, normal = at_maximum(X, y)
    settings = settings_around(posterior, groups, normal, normal.scale, None)
    assert len(settings) > 5
    assert sum(setting.weight for setting in settings) == pytest.approx(1.0)
    parts = []
    for weight, prior, scale in settings:
        assert set_hyperparameters(posterior, prior, scale, normal)
        parts.append((weight, posterior.mean.copy(), posterior.variance(), 1.0 / prior.precision[0]))
    sds, noises = np.linspace(0.04, 16.0, 200), np.exp(np.linspace(-2.0, 2.5, 40))
    exact = []
    for noise in noises:
        for sd in sds:
            diagonal = np.append(np.full(levels, sd**2), 100.0)
            covariance = (X * diagonal) @ X.T + noise**2 * np.eye(y.size)
            value = multivariate_normal.logpdf(y, np.zeros(y.size), covariance) - 0.5 * (RATE * sd) ** 2
            V = np.linalg.inv(np.diag(1.0 / diagonal) + X.T @ X / noise**2)
            # The information about the logarithm of the variance; the grid is one of standard deviations.
            value += np.log(np.linalg.norm(np.eye(levels) - V[:levels, :levels] / sd**2) * 2.0 / sd)
            exact.append((value, V @ X.T @ y / noise**2, np.diagonal(V), sd**2))
    values = np.array([one[0] for one in exact])
    weights = np.exp(values - np.max(values)) / np.sum(np.exp(values - np.max(values)))

    def moments(parts):
        mean = sum(w * m for w, m, *_ in parts)
        return mean, np.sqrt(sum(w * (v + (m - mean) ** 2) for w, m, v, _ in parts))

    mean, std = moments(parts)
    exact_mean, exact_std = moments([(w, *one[1:]) for w, one in zip(weights, exact, strict=True)])
    assert np.max(np.abs(mean - exact_mean) / exact_std) < 0.05
    np.testing.assert_allclose(std[:levels], exact_std[:levels], rtol=0.08)


@pytest.mark.parametrize("levels", [3, 5, 12])
def test_intervals_of_a_level_to_come_are_those_of_student(levels):
    """With many rows per level the means of levels are a sample, of which one more is predicted."""
    X, y = one_way(levels, 2000, 1.0, seed=4)
    X = np.insert(X, levels, 0.0, axis=1)
    prior = FactorialGaussian.from_moments(np.zeros(levels + 2), np.append(np.ones(levels + 1), 1e6))
    posterior = DensePosterior(None, prior, DenseNatural(X.T @ X, X.T @ y))
    groups = [Group(np.arange(levels + 1))]
    maximise_evidence(posterior, groups)
    parts = []
    for weight, moved, _ in settings_around(posterior, groups, None, 1.0, None):
        posterior.scale(1.0, 1.0, moved)
        chosen = np.zeros(levels + 2)
        chosen[-2:] = 1.0  # the new level and the constant
        parts.append((weight, chosen @ posterior.mean, np.sqrt(chosen @ posterior.solve(chosen[:, None])[:, 0])))
    weights, means, sds = (np.array(each) for each in zip(*parts, strict=True))
    low, high = (normal_mixture_quantile(weights, means[:, None], sds[:, None], q)[0] for q in (0.05, 0.95))
    each = np.array([np.mean(y[2000 * j : 2000 * (j + 1)]) for j in range(levels)])
    half = student(levels - 1).ppf(0.95) * np.std(each, ddof=1) * np.sqrt(1.0 + 1.0 / levels)
    assert 0.5 * (low + high) == pytest.approx(np.mean(each), abs=0.02 * half)
    assert 0.5 * (high - low) == pytest.approx(half, rel=0.05)


def test_hyperparameters_that_are_well_known_are_not_averaged_over():
    X, y = one_way(60, 50, 1.0)
    posterior, groups, normal = at_maximum(X, y)
    before = posterior.prior, posterior.mean.copy(), normal.scale
    assert len(settings_around(posterior, groups, normal, normal.scale, None)) == 1
    assert (posterior.prior, normal.scale) == (before[0], before[2])
    np.testing.assert_array_equal(posterior.mean, before[1])


@pytest.mark.parametrize("variance", [0.0, 1.0])
def test_an_interval_leaves_the_posterior_where_it_was_and_starts_at_zero_where_zero_is_likely(variance):
    X, y = one_way(6, 20, variance, seed=3)
    posterior, groups, normal = at_maximum(X, y)
    before = posterior.prior
    error, *ends = interval(posterior, groups, 0, normal, normal.scale, 0.95)
    lower, upper = np.exp(ends)
    v = float(np.exp(hyperparameters_of(posterior.prior, groups)[0]))
    assert np.array_equal(posterior.prior.precision, before.precision)
    assert error > 0.0
    assert lower <= v <= upper
    assert (lower == 0.0) == (variance == 0.0)


def test_with_many_levels_the_interval_is_that_of_the_curvature():
    X, y = one_way(100, 20, 1.0)
    posterior, groups, normal = at_maximum(X, y)
    error, *ends = interval(posterior, groups, 0, normal, normal.scale, 0.95)
    lower, upper = np.exp(ends)
    assert error == pytest.approx(np.sqrt(2.0 / 100.0), rel=0.15)
    assert np.log(upper / lower) == pytest.approx(2.0 * 1.96 * error, rel=1e-3)


def test_intervals_from_few_rows_are_those_of_student():
    """A constant alone: the mean of normal rows under a flat prior of the log noise is Student's."""
    y = np.array([1.0, 2.0, 4.0, 4.5, 7.0])
    model = EPRegressor(prior_variance=1e-8, intercept_prior_variance=1e6).fit(np.zeros((5, 1)), y)
    row = model.summary(0.9).loc["intercept"]
    half = 2.131847 * np.std(y, ddof=1) / np.sqrt(5.0)
    assert row["mean"] == pytest.approx(np.mean(y), abs=0.01)
    assert row["upper 90%"] - row["lower 90%"] == pytest.approx(2.0 * half, rel=0.05)
    low, high = model.predict(np.zeros((1, 1)), quantile=[0.05, 0.95])[0]
    assert high - low == pytest.approx(2.0 * 2.131847 * np.std(y, ddof=1) * np.sqrt(1.2), rel=0.05)


def test_sites_are_not_believed_where_they_promise_more_than_the_maximum():
    """Under a prior next to zero sites of kinked losses are lines, whose evidence grows with the variance for ever."""
    natural = DenseNatural(1e-9 * np.eye(3), np.array([2.0, -1.0, 3.0]))
    prior = FactorialGaussian.from_moments(np.zeros(3), np.full(3, 1e-8))
    posterior, groups = DensePosterior(None, prior, natural), (Group(np.arange(3), 1.0, 0.06),)
    best = evidence(posterior, groups).value
    surplus, weights = [], []
    for setting in settings_around(posterior, groups, None, 1.0, None):
        assert posterior.scale(1.0, 1.0, setting.prior)
        surplus.append(evidence(posterior, groups).value - best)
        weights.append(setting.weight)
    # Points of more evidence count as if they had as much less: where it grows with the variance, exp(-3) are beyond 3.
    assert np.array(weights) @ (np.array(surplus) > 3.0) < 0.06
    assert np.max(surplus) > 0.5  # but there is no edge


def averaged(information: np.ndarray, shift: np.ndarray, groups: list[Group], prior: FactorialGaussian, rows=None):
    """Mean and variance of an averaged posterior, and the number of points."""
    posterior = DensePosterior(None, prior, DenseNatural(information, shift))
    settings = settings_around(posterior, groups, rows, 1.0, None)
    parts = []
    for weight, at, scale in settings:
        assert set_hyperparameters(posterior, at, scale, rows)
        parts.append((weight, posterior.mean, posterior.variance()))
    mean = sum(w * m for w, m, _ in parts)
    return mean, sum(w * (v + (m - mean) ** 2) for w, m, v in parts), len(parts)


@pytest.mark.parametrize("rounding", [1e-16, -1e-16])
def test_averages_do_not_depend_on_rounding_errors_of_straight_lines(rounding):
    """Sites of kinked losses under a prior next to zero are straight lines but for rounding errors."""
    prior = FactorialGaussian.from_moments(np.zeros(2), np.full(2, 6e-5))
    groups = [Group(np.arange(2), 2.0, RATE)]
    information = 6.0 * np.array([[0.0, 0.0], [0.0, 1e-16]])
    one = averaged(information, np.array([2.3, 0.3]), groups, prior)
    other = averaged(rounding / 1e-16 * (information + 1e-18), np.array([2.3, 0.3]), groups, prior)
    assert one[2] == other[2] > 1
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-6)
    assert np.all(one[1] > 1e-3)  # the evidence is level over all variances below one


def test_variances_that_rows_say_nothing_of_are_not_averaged_over():
    prior = FactorialGaussian.from_moments(np.zeros(2), np.array([0.3, 0.3]))
    information, shift = np.diag([0.0, 5.0]), np.array([0.0, 3.0])
    *_, both = averaged(information, shift, [Group(np.arange(2), 1.0, RATE)], prior)
    *_, none = averaged(information, shift, [Group(np.arange(1), 1.0, RATE)], prior)
    assert both > 1
    assert none == 1


def test_averages_do_not_depend_on_the_unit_of_the_targets():
    """Also where the variance was found at its lower bound, and the grid must begin there."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    found = []
    for unit in (1.0, 2.1):
        least = 1e-10 / 3.0 / unit**2
        prior = FactorialGaussian.from_moments(np.zeros(3), np.full(3, least))
        noise, t = 1.0 / unit, y / unit
        rows = NormalRows(30.0, float(t @ t), noise, 1e-6)
        posterior = DensePosterior(None, prior, DenseNatural(X.T @ X / noise**2, X.T @ t / noise**2))
        groups, parts = [Group(np.arange(3), 3.0 * unit**2, RATE)], []
        for weight, at, scale in settings_around(posterior, groups, rows, noise, None):
            assert set_hyperparameters(posterior, at, scale, rows)
            parts.append((weight, unit * posterior.mean))
        found.append(sum(w * m for w, m in parts))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8)
