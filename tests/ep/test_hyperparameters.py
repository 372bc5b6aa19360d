"""Hyperparameters end where the evidence has its maximum, by gradients that are those of its value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from cavity import EPRegressor, FactorialGaussian
from cavity.ep.blocks import noise_slope, run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import (
    LEAST,
    Group,
    Hyperparameters,
    NormalRows,
    evidence,
    hyperparameters_of,
    maximise_evidence,
    maximise_normal_evidence,
    set_hyperparameters,
    with_hyperparameters,
)
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.losses import Absolute, Gamma, Huber, Logistic, NegativeBinomial, Quantile, Squared
from cavity.losses.noise import log_normalizer, predictive_quantile, with_scale
from cavity.moments import tilts

STORAGES = {"dense": np.asarray, "sparse": sparse.csr_array}
D = 7
GROUPS = (Group(np.arange(3), 2.5, 0.3), Group(np.arange(3, 6), 0.8, 0.03))


def variances_of(prior, groups):
    return np.exp(hyperparameters_of(prior, groups))


def with_variances(prior, groups, variances):
    return with_hyperparameters(prior, groups, np.log(variances))


def problem(n=40, noise=0.7, seed=0):
    """Rows, targets, and a prior: two groups of variances 0.5 and 2, and one coefficient in no group."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) * (rng.random((n, D)) < 0.6)
    each = np.array([0.5] * 3 + [2.0] * 3 + [10.0])
    mean = np.array([0.3, 0.0, -0.2, 0.0, 0.0, 0.5, 1.0])
    y = X @ (mean + np.sqrt(each) * rng.normal(size=D)) + noise * rng.normal(size=n)
    return X, y, FactorialGaussian.from_moments(mean, each)


def normal_posterior(storage, X, y, prior, scale, weights=None):
    """A posterior whose sites are those of normal noise, and the sums of the rows beside them."""
    w = np.ones(y.size) if weights is None else weights
    rows = Rows.arrange(STORAGES[storage](X), y[None], weights, False)
    if storage == "dense":
        work = DensePosterior(rows, prior)
    else:
        work = SparsePosterior(rows, analyse(rows.matrix()), prior, rows.matrix())
    free = Hyperparameters()
    run(Squared(scale), rows, work, Options(), hyperparameters=free)
    return work, NormalRows(float(np.sum(w)), float(w @ y**2), scale)


def log_marginal(X, y, prior, scale, weights=None):
    """Log density of the targets, all coefficients integrated out."""
    w = np.ones(y.size) if weights is None else weights
    covariance = np.diag(scale**2 / w) + (X * prior.variance) @ X.T
    # A row of weight w counts as w rows: normalisers and residuals of the w rows but their mean.
    repeated = 0.5 * np.sum(np.log(2.0 * np.pi * scale**2 / w) - w * np.log(2.0 * np.pi * scale**2))
    return multivariate_normal.logpdf(y, X @ prior.mean, covariance) + repeated


def penalty(prior, groups):
    sizes = np.array([g.size for g in groups])
    return 0.5 * float(np.square([g.rate for g in groups]) @ (variances_of(prior, groups) * sizes))


def at(storage, X, y, prior, logs, noise, groups=GROUPS, scale=0.7):
    """Value of the evidence at these logarithms."""
    k = len(groups)
    moved = with_variances(prior, groups, np.exp(logs[:k]))
    work, rows = normal_posterior(storage, X, y, moved, float(np.exp(logs[k])) if noise else scale)
    return evidence(work, groups, rows if noise else None)


# The evidence.


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("groups", [GROUPS, GROUPS[:1], ()], ids=len)
@pytest.mark.parametrize("storage", STORAGES)
def test_the_gradient_is_that_of_the_value(storage, groups, noise):
    X, y, prior = problem()
    here = np.append(np.log(variances_of(prior, groups)), [np.log(0.7)] * noise)
    point, h = at(storage, X, y, prior, here, noise, groups), 1e-4
    for i, step in enumerate(h * np.eye(here.size)):
        above, below = (at(storage, X, y, prior, here + s * step, noise, groups).value for s in (1.0, -1.0))
        assert point.gradient[i] == pytest.approx((above - below) / (2.0 * h), abs=1e-5)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_value_is_the_log_marginal_likelihood_less_the_bound_and_a_constant(storage):
    X, y, prior = problem()
    apart = []
    for factor, scale in ((1.0, 0.7), (0.01, 0.7), (30.0, 0.7), (1.0, 0.1), (5.0, 20.0)):
        moved = with_variances(prior, GROUPS, factor * variances_of(prior, GROUPS))
        work, rows = normal_posterior(storage, X, y, moved, scale)
        wanted = log_marginal(X, y, moved, scale) - penalty(moved, GROUPS)
        apart.append(evidence(work, GROUPS, rows).value - wanted)
    np.testing.assert_allclose(apart, apart[0], rtol=0.0, atol=1e-7)


def test_rows_that_are_weighted_have_the_evidence_of_repeated_ones():
    X, y, prior = problem()
    w = np.random.default_rng(1).integers(1, 4, y.size)
    one = evidence(*weighted_point(X, y, prior, w.astype(float)))
    other = evidence(*weighted_point(np.repeat(X, w, axis=0), np.repeat(y, w), prior, None))
    assert one.value == pytest.approx(other.value, rel=1e-10)
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-8)
    wanted = log_marginal(X, y, prior, 0.7, w.astype(float)) - log_marginal(X, y, prior, 1.4, w.astype(float))
    work, rows = normal_posterior("dense", X, y, prior, 1.4, w.astype(float))
    assert one.value - evidence(work, GROUPS, rows).value == pytest.approx(wanted, rel=1e-8)


def weighted_point(X, y, prior, weights):
    work, rows = normal_posterior("dense", X, y, prior, 0.7, weights)
    return work, GROUPS, rows


@pytest.mark.parametrize("noise", [False, True])
def test_dense_and_sparse_posteriors_have_the_same_evidence(noise):
    X, y, prior = problem()
    here = np.append(np.log(variances_of(prior, GROUPS)), [np.log(0.7)] * noise)
    one, other = (at(storage, X, y, prior, here, noise) for storage in STORAGES)
    assert one.value == pytest.approx(other.value, rel=1e-10)
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(one.curvature, other.curvature, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_curvature_is_that_of_an_information(seed):
    """The average information is positive semi-definite away from the maximum too."""
    X, y, prior = problem(seed=seed)
    for factor in (0.05, 1.0, 20.0):
        moved = with_variances(prior, GROUPS, factor * variances_of(prior, GROUPS))
        point = evidence(*normal_posterior_at(X, y, moved))
        np.testing.assert_allclose(point.curvature, point.curvature.T, rtol=1e-10)
        assert np.all(np.linalg.eigvalsh(point.curvature) >= -1e-9)


def normal_posterior_at(X, y, prior):
    work, rows = normal_posterior("dense", X, y, prior, 0.7)
    return work, GROUPS, rows


@pytest.mark.parametrize("unit", [1e-4, 1e3])
def test_units_of_the_columns_do_not_matter(unit):
    """Variances follow, and sizes with them."""
    X, y, prior = problem()
    scaled = FactorialGaussian.from_moments(prior.mean / unit, prior.variance / unit**2)
    groups = [g._replace(size=g.size * unit**2) for g in GROUPS]
    (one, rows), (other, same) = (
        normal_posterior("dense", *data, 0.7) for data in ((X, y, prior), (unit * X, y, scaled))
    )
    np.testing.assert_allclose(evidence(one, GROUPS, rows).gradient, evidence(other, groups, same).gradient, rtol=1e-7)
    maximise_evidence(one, GROUPS, rows)
    maximise_evidence(other, groups, same)
    found = variances_of(other.prior, groups) * unit**2
    np.testing.assert_allclose(found, variances_of(one.prior, GROUPS), rtol=1e-6)
    assert same.scale == pytest.approx(rows.scale, rel=1e-6)


# The maximum.


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("storage", STORAGES)
def test_newton_ends_at_the_best_of_a_grid(storage, start, noise):
    X, y, prior = problem()
    work, rows = normal_posterior(storage, X, y, with_variances(prior, GROUPS, np.full(2, start)), 0.7)
    found = maximise_evidence(work, GROUPS, rows if noise else None)
    assert np.all(np.abs(found.gradient) < 0.1)
    scales = 0.7 * np.exp(np.linspace(-0.5, 0.5, 9)) if noise else [0.7]
    best = -np.inf
    for scale in scales:
        other, sums = normal_posterior(storage, X, y, prior, scale)
        for v in np.geomspace(1e-3, 100.0, 30):
            for u in np.geomspace(1e-3, 100.0, 30):
                other.scale(1.0, 1.0, with_variances(prior, GROUPS, np.array([v, u])))
                best = max(best, evidence(other, GROUPS, sums if noise else None).value)
    assert found.value > best - 0.01


def test_nothing_but_the_variances_of_the_groups_changes():
    X, y, prior = problem()
    work, rows = normal_posterior("dense", X, y, prior, 0.7)
    maximise_evidence(work, GROUPS, rows)
    np.testing.assert_allclose(work.prior.mean, prior.mean)
    assert work.prior.variance[6] == pytest.approx(10.0)
    assert np.ptp(work.prior.variance[:3]) < 1e-12
    again, same = normal_posterior("dense", X, y, work.prior, rows.scale)
    np.testing.assert_allclose(again.mean, work.mean, rtol=1e-7, atol=1e-9)
    assert evidence(again, GROUPS, same).value == pytest.approx(evidence(work, GROUPS, rows).value, rel=1e-8)


def two_optima(seed):
    """Two rows more than columns and next to no noise: all noise and all signal both are maxima."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 10))
    return X, X @ rng.normal(size=10) + 0.01 * rng.normal(size=12)


@pytest.mark.parametrize("seed", range(8))
def test_the_better_of_two_optima_is_found(seed):
    X, y = two_optima(seed)
    groups, prior = [Group(np.arange(10), 10.0, 0.03)], FactorialGaussian.from_moments(np.zeros(10), 0.5)
    work, rows = normal_posterior("dense", X, y, prior, float(np.std(y)))
    rows.least = 1e-4 * float(np.std(y))
    maximise_normal_evidence(work, Hyperparameters(groups, True, rows.least), rows)
    best = -np.inf
    for scale in np.geomspace(rows.least, 10.0, 60):
        other, sums = normal_posterior("dense", X, y, prior, scale)
        for v in np.geomspace(1e-4, 100.0, 60):
            other.scale(1.0, 1.0, with_variances(prior, groups, np.array([v])))
            best = max(best, evidence(other, groups, sums).value)
    assert evidence(work, groups, rows).value > best - 0.02


def test_the_variance_of_columns_that_say_nothing_goes_to_zero():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(500, 6))
    X, _ = np.linalg.qr(X)
    y = rng.normal(size=500)
    y -= 0.99 * X @ (X.T @ y)  # less than noise alone would explain
    groups, prior = [Group(np.arange(6), 6.0 / 500.0)], FactorialGaussian.from_moments(np.zeros(6), 1.0)
    work, rows = normal_posterior("dense", X, y, prior, 1.0)
    maximise_normal_evidence(work, Hyperparameters(groups, True), rows)
    assert variances_of(work.prior, groups)[0] * groups[0].size < 1e-3
    assert rows.scale == pytest.approx(np.sqrt(np.mean(y**2)), rel=0.01)
    assert variances_of(work.prior, groups)[0] * groups[0].size >= (1.0 - 1e-9) * LEAST


def test_the_bound_acts_from_above_only():
    """It never widens: variances fall with the rate, and small ones are left as they are."""
    X, y, prior = problem(n=200)
    found = []
    for rate in (0.0, 0.03, 0.3, 3.0):
        groups = [Group(np.arange(3), 1.0, rate), Group(np.arange(3, 6), 1.0, rate)]
        work, _ = normal_posterior("dense", X, y, prior, 0.7)
        maximise_evidence(work, groups)
        found.append(variances_of(work.prior, groups))
    assert np.all(np.diff(found, axis=0) < 0.0)
    tiny = FactorialGaussian.from_moments(np.zeros(D), 1e-8)
    quiet = 1e-6 * np.random.default_rng(0).normal(size=200)
    gradients = []
    for rate in (0.0, 0.3):
        work, _ = normal_posterior("dense", X, quiet, tiny, 1e-3)
        gradients.append(evidence(work, [Group(np.arange(D), 1.0, rate)]).gradient[0])
    assert gradients[1] == pytest.approx(gradients[0], abs=1e-4)


def test_the_noise_stays_above_its_bound():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    y = X @ [1.0, -2.0, 0.5]
    groups, prior = [Group(np.arange(3), 3.0, 0.03)], FactorialGaussian.from_moments(np.zeros(3), 1.0)
    work, rows = normal_posterior("dense", X, y, prior, 1.0)
    rows.least = 1e-4
    maximise_normal_evidence(work, Hyperparameters(groups, True, 1e-4), rows)
    assert rows.scale == pytest.approx(1e-4, rel=1e-9)
    np.testing.assert_allclose(work.mean, [1.0, -2.0, 0.5], rtol=1e-4)


def test_hyperparameters_that_would_be_improper_change_nothing():
    X, y, prior = problem()
    work, rows = normal_posterior("dense", X, y, prior, 0.7)
    assert work.replace(-0.001 * work.flat, work.shift)
    before = work.mean.copy(), work.prior, rows.scale
    assert not set_hyperparameters(work, FactorialGaussian.from_moments(np.zeros(D), 1e9), 1e-3, rows)
    np.testing.assert_array_equal(work.mean, before[0])
    assert (work.prior, rows.scale) == before[1:]


# With the sites of EP.


def logistic_rows(n=200, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0.0, 1.0, -1.0)
    return Rows.arrange(X, y[None], None, False)


def test_no_hyperparameters_are_false():
    assert not Hyperparameters()
    assert Hyperparameters(scale=True)
    assert Hyperparameters([Group(np.arange(2))])


def test_a_restored_search_continues_bit_for_bit():
    rows, groups = logistic_rows(), [Group(np.arange(3), 3.0, 0.3), Group(np.arange(3, 5), 2.0, 0.3)]

    def states(state=None, posterior=None, steps=6):
        free = Hyperparameters(groups)
        work = DensePosterior(rows, FactorialGaussian.from_moments(np.zeros(5), 20.0))
        work.replace((5.0 * np.eye(5))[np.tril_indices(5)], np.arange(5.0))
        if state is not None:
            free.restore(state)
            work.replace(*posterior)
        found = []
        for _ in range(steps):
            found.append((free.update(work, np.zeros(2), 1.0, 0.5), variances_of(work.prior, groups), free.snapshot()))
            found[-1] += ((work.flat, work.shift, work.prior),)
        return found

    whole = states()
    again = states(whole[2][2], whole[2][3], steps=3)
    for one, other in zip(whole[3:], again, strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])
        for name in one[2]:
            np.testing.assert_array_equal(one[2][name], other[2][name])


def test_a_run_ends_at_the_maximum_with_its_sites():
    rows, groups = logistic_rows(), [Group(np.arange(5), 5.0, 0.3)]
    free = Hyperparameters(groups)
    found = run(
        Logistic(),
        rows,
        DensePosterior(rows, FactorialGaussian.from_moments(np.zeros(5), 1.0)),
        Options(100, 1e-4),
        hyperparameters=replace(free),
    )
    values = []
    for factor in (0.8, 1.0, 1.25):
        prior = with_variances(found.prior, groups, factor * variances_of(found.prior, groups))
        other = run(Logistic(), rows, DensePosterior(rows, prior), Options(100, 1e-6))
        values.append(other.log_evidence - penalty(prior, groups))
    assert values[1] > max(values[0], values[2])
    slope = (values[2] - values[0]) / np.log(1.25 / 0.8)
    curvature = (2.0 * values[1] - values[0] - values[2]) / np.log(1.25) ** 2
    assert abs(slope / curvature) < 0.03


# The noise.


SCALED = [Squared(0.7), Absolute(0.7), Huber(1.35, 0.7), Quantile(0.2, 0.7), NegativeBinomial(0.7), Gamma(0.7)]


def noisy_rows(loss, n=30, seed=0):
    rng = np.random.default_rng(seed)
    mean, variance = rng.normal(0.5, 1.0, n), rng.uniform(0.01, 1.0, n)
    targets = predictive_quantile(loss, mean, variance, rng.uniform(0.05, 0.95, n))
    weights = rng.choice([0.5, 1.0, 2.0, 3.0], n)
    return targets, mean, variance, weights


def density(loss, targets, mean, variance, weights):
    """Log masses of cavity times factor to the power of the weight, less as many normalisers."""
    masses = tilts(loss, targets, mean, variance, weights).log_mass
    return float(np.sum(masses) - weights @ log_normalizer(loss, targets))


@pytest.mark.parametrize("scale", [0.05, 0.7, 4.0])
@pytest.mark.parametrize("loss", SCALED, ids=repr)
def test_the_slope_of_the_noise_is_that_of_the_log_masses(loss, scale):
    data, loss = noisy_rows(loss), with_scale(loss, scale)
    slope, information = noise_slope(loss, *data)
    h = 0.01
    above, here, below = (density(with_scale(loss, scale * np.exp(s * h)), *data) for s in (1.0, 0.0, -1.0))
    size = float(np.sum(data[3]))
    assert slope == pytest.approx((above - below) / (2.0 * h), rel=2e-3, abs=2e-4 * size)
    assert information == pytest.approx((2.0 * here - above - below) / h**2, rel=0.01, abs=2e-3 * size)


@pytest.mark.parametrize("loss", SCALED, ids=repr)
def test_rows_of_weight_zero_and_rows_beyond_numbers_count_for_nothing(loss):
    targets, mean, variance, weights = noisy_rows(loss)
    weights[::3] = 0.0
    used = weights > 0.0
    found = noise_slope(loss, targets, mean, variance, weights)
    np.testing.assert_allclose(found, noise_slope(loss, *(a[used] for a in (targets, mean, variance, weights))))
    known = tilts(loss, targets, mean, variance, np.where(used, weights, 1.0)).log_mass
    np.testing.assert_allclose(noise_slope(loss, targets, mean, variance, weights, known), found, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("loss", SCALED, ids=repr)
def test_a_weight_is_a_power_of_the_factor(loss):
    """Where the cavity is narrow, that is the row repeated."""
    targets, mean, variance, _ = noisy_rows(loss)
    times = np.arange(targets.size) % 3 + 1
    narrow = 1e-8 * variance
    found = noise_slope(loss, targets, mean, narrow, times.astype(float))
    repeated = noise_slope(loss, *(np.repeat(a, times) for a in (targets, mean, narrow)), np.ones(np.sum(times)))
    np.testing.assert_allclose(found, repeated, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss", SCALED, ids=repr)
def test_the_slope_vanishes_at_the_scale_of_the_noise(loss):
    rng = np.random.default_rng(1)
    mean, narrow = rng.normal(1.0, 0.5, 20_000), np.full(20_000, 1e-6)
    targets = predictive_quantile(loss, mean, narrow, rng.uniform(1e-6, 1.0 - 1e-6, 20_000))
    slope, information = noise_slope(loss, targets, mean, narrow, np.ones(20_000))
    assert abs(slope / information) < 0.05
    for factor, sign in ((0.5, 1.0), (2.0, -1.0)):
        assert (
            sign * noise_slope(with_scale(loss, factor * loss.scale), targets, mean, narrow, np.ones(20_000))[0] > 0.0
        )


def test_the_slope_of_the_squared_loss_in_closed_form():
    targets, mean, variance, weights = noisy_rows(Squared(0.7))
    for s in (0.1, 1.0, 10.0):
        # A factor to the power w is one of the scale s / sqrt(w), its normaliser to the power w.
        total = variance + s**2 / weights
        wanted = np.sum(1.0 - weights - s**2 / weights / total * (1.0 - (targets - mean) ** 2 / total))
        found = noise_slope(Squared(s), targets, mean, variance, weights)[0]
        assert found == pytest.approx(wanted, rel=1e-3, abs=0.01)


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_a_second_maximum_at_large_variances_is_found(loss):
    """Without intercept, columns of large means explain the targets by their differences, under a wide prior."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 4)) + np.array([-140.0, 120.0, 100.0, 180.0])
    y = (X - X.mean(axis=0)) @ np.array([0.2, 0.4, -0.2, 0.2]) + rng.laplace(size=400)
    found = EPRegressor(loss=loss, fit_intercept=False).fit(X, y)
    small, large = (
        EPRegressor(loss=loss, fit_intercept=False, prior_variance=variance).fit(X, y).log_evidence_
        for variance in (1e-9, 0.01)
    )
    assert large > small + 5.0
    assert found.log_evidence_ > large - 1.0
