"""Hyperparameters of priors with structure: the evidence and its gradient, posteriors, averages and states."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from cavity import FactorialGaussian
from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import (
    Group,
    Hyperparameters,
    NormalRows,
    coordinates,
    evidence,
    hyperparameters_of,
    interval,
    maximise_evidence,
    settings_around,
    with_hyperparameters,
)
from cavity.ep.posteriors import DenseNatural, DensePosterior, SparsePosterior
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.losses import Logistic, Squared
from cavity.terms.prior import Block, StructuredPrior, upper_of
from cavity.terms.structures import Correlated, Exponential, Scaled

STORAGES = ("dense", "sparse")
LEVELS, POINTS, TIMES = 6, 8, 5


def walk(n):
    steps = np.diff(np.eye(n), 2, axis=0)
    return sparse.csr_array(steps.T @ steps)


def problem(n=120, seed=0, classify=False):
    """An intercept, two coefficients of one variance, slopes by level, a random walk, and an AR(1)."""
    rng = np.random.default_rng(seed)
    level, point, time = (rng.integers(k, size=n) for k in (LEVELS, POINTS, TIMES))
    z = np.column_stack([np.ones(n), rng.normal(2.0, 1.0, n)])
    slopes = np.zeros((n, 2 * LEVELS))
    slopes[np.arange(n), 2 * level], slopes[np.arange(n), 2 * level + 1] = z.T
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 2)), slopes, np.eye(POINTS)[point], np.eye(TIMES)[time]])
    ends = np.cumsum([3, 2 * LEVELS, POINTS, TIMES])
    structures = (
        Correlated(("Intercept", "x"), LEVELS, z.T @ z / n),
        Scaled(walk(POINTS), POINTS - 2, 3.0),
        Exponential(np.array([1.0, 0.5, 1.0, 2.0])),
    )
    psi = (np.array([-0.3, -1.0, 0.4]), np.array([-2.0]), np.array([-0.5, 0.8]))
    places = [np.arange(a, b) for a, b in pairwise(ends)]
    blocks = tuple(Block(s, p[None], v) for s, p, v in zip(structures, places, psi, strict=True))
    each = np.ones(X.shape[1])
    each[:3] = 10.0, 0.5, 0.5
    prior = StructuredPrior(FactorialGaussian.from_moments(np.zeros(X.shape[1]), each), blocks)
    groups = (Group(np.array([1, 2]), 2.0, 0.3), *(Group(p, 1.0, 0.3, k) for k, p in enumerate(places)))
    dense = matrix_of(prior)
    theta = np.linalg.solve(np.linalg.cholesky(dense + 0.1 * np.eye(len(dense))).T, rng.normal(size=len(dense)))
    eta = X @ theta
    y = np.where(eta + rng.logistic(size=n) > 0.0, 1.0, -1.0) if classify else eta + 0.7 * rng.normal(size=n)
    return X, y, prior, groups


def matrix_of(prior):
    upper = upper_of(prior).toarray()
    return upper + np.triu(upper, 1).T


def posterior_of(storage, rows, prior):
    if storage == "dense":
        return DensePosterior(rows, prior)
    left, right, values = prior.couplings
    coupled = sparse.csr_array((np.ones(values.size), (left, right)), shape=(prior.dim, prior.dim))
    return SparsePosterior(rows, analyse(rows.matrix(), coupled=coupled), prior, rows.matrix())


def normal_posterior(storage, X, y, prior, scale=0.7):
    """Posterior with the sites of normal noise, and what its rows add to the evidence."""
    rows = Rows.arrange(sparse.csr_array(X) if storage == "sparse" else X, y[None], None, False)
    work = posterior_of(storage, rows, prior)
    run(Squared(scale), rows, work, Options())
    return work, NormalRows(float(y.size), float(y @ y), scale)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_posterior_is_that_of_the_dense_precision_matrix(storage):
    X, y, prior, _ = problem()
    work, rows = normal_posterior(storage, X, y, prior)
    precision = matrix_of(prior) + X.T @ X / rows.scale**2
    np.testing.assert_allclose(work.mean, np.linalg.solve(precision, X.T @ y / rows.scale**2), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(work.variance(), np.diag(np.linalg.inv(precision)), rtol=1e-7)
    assert work.log_det == pytest.approx(np.linalg.slogdet(precision)[1], abs=1e-8)
    posterior = work.natural(0.0).posterior(prior)
    np.testing.assert_allclose(posterior.mean, work.mean, rtol=1e-7, atol=1e-9)
    left, right, _ = prior.couplings
    inside = np.linalg.inv(precision)[left, right]
    np.testing.assert_allclose(work.covariances_of_couplings(prior.couplings), inside, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_the_gradient_is_that_of_the_value(storage, noise):
    X, y, prior, groups = problem()

    def at(psi, log_scale):
        work, rows = normal_posterior(storage, X, y, with_hyperparameters(prior, groups, psi), np.exp(log_scale))
        return evidence(work, groups, rows if noise else None)

    psi, log_scale, h = hyperparameters_of(prior, groups), np.log(0.7), 1e-4
    point = at(psi, log_scale)
    found = []
    for step in h * np.eye(psi.size):
        found.append((at(psi + step, log_scale).value - at(psi - step, log_scale).value) / (2.0 * h))
    if noise:
        found.append((at(psi, log_scale + h).value - at(psi, log_scale - h).value) / (2.0 * h))
    np.testing.assert_allclose(point.gradient, found, atol=2e-5)
    assert np.linalg.eigvalsh(point.curvature)[0] > -1e-9


@pytest.mark.parametrize("storage", STORAGES)
def test_the_value_is_the_log_marginal_likelihood_less_the_bounds_and_a_constant(storage):
    X, y, prior, groups = problem()
    psi, apart = hyperparameters_of(prior, groups), []
    for seed in range(4):
        moved = with_hyperparameters(prior, groups, psi + np.random.default_rng(seed).normal(0.0, 0.7, psi.size))
        work, rows = normal_posterior(storage, X, y, moved, 0.4 + 0.3 * seed)
        marginal = X @ np.linalg.inv(matrix_of(moved)) @ X.T + rows.scale**2 * np.eye(y.size)
        penalty = 0.5 * 0.3**2 * 2.0 / moved.precision[1]
        penalty += sum(0.5 * 0.3**2 * block.structure.spread(block.psi)[0] for block in moved.blocks)
        wanted = multivariate_normal.logpdf(y, np.zeros(y.size), 0.5 * (marginal + marginal.T)) - penalty
        apart.append(evidence(work, groups, rows).value - wanted)
    np.testing.assert_allclose(apart, apart[0], rtol=0.0, atol=1e-5)


def test_dense_and_sparse_maxima_are_one_and_the_gradient_vanishes_there():
    X, y, prior, groups = problem()
    found = []
    for storage in STORAGES:
        work, rows = normal_posterior(storage, X, y, prior)
        point = maximise_evidence(work, groups, rows)
        assert np.all(np.abs(point.gradient) < 1e-3)
        found.append(np.append(hyperparameters_of(work.prior, groups), np.log(rows.scale)))
        _, lower, upper, _ = coordinates(work.prior, groups)
        assert np.all((lower <= found[-1][:-1]) & (found[-1][:-1] <= upper))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("storage", STORAGES)
def test_ep_finds_the_hyperparameters_of_a_logistic_model(storage):
    X, y, prior, groups = problem(n=400, classify=True)
    rows = Rows.arrange(sparse.csr_array(X) if storage == "sparse" else X, y[None], None, False)

    def evidence_at(moved):
        work = posterior_of(storage, rows, moved)
        result = run(Logistic(), rows, work, Options(tol=1e-5, max_iter=200))
        penalty = 0.3 * np.sqrt(2.0 / moved.precision[1])
        return result.log_evidence - penalty - sum(0.3 * np.sqrt(b.structure.spread(b.psi)[0]) for b in moved.blocks)

    work = posterior_of(storage, rows, prior)
    # The variance of the walk goes to zero: its precision of 1e9 leaves means of a dense posterior 4 digits.
    result = run(Logistic(), rows, work, Options(tol=1e-3), hyperparameters=Hyperparameters(groups))
    assert result.status.name == "CONVERGED"
    psi = hyperparameters_of(result.prior, groups)
    psi = np.maximum(psi, -12.0)  # a run begins at the prior, whose ridge is rounding below
    best = evidence_at(with_hyperparameters(result.prior, groups, psi))
    for k in range(psi.size):
        for step in (-0.5, 0.5):
            moved = psi.copy()
            moved[k] += step
            assert evidence_at(with_hyperparameters(result.prior, groups, moved)) < best + 0.02


def test_a_posterior_needs_no_prior_that_is_proper_to_rounding():
    """At the smallest variance the ridge of a walk is rounding; the rows determine the level."""
    X, y, prior, groups = problem()
    psi = hyperparameters_of(prior, groups)
    psi[4] = coordinates(prior, groups).lower[4]
    moved = with_hyperparameters(prior, groups, psi)
    work, _ = normal_posterior("sparse", X, y, prior)
    again = work.natural(0.0).working(moved)
    precision = matrix_of(moved) + X.T @ X / 0.7**2
    np.testing.assert_allclose(again.variance(), np.diag(np.linalg.inv(precision)), rtol=1e-3)
    sites = again.natural(0.0).information.toarray()
    np.testing.assert_allclose(sites, np.triu(X.T @ X) / 0.7**2, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_continued_run_is_the_whole_one(storage, tmp_path):
    X, y, prior, groups = problem(n=200, classify=True)
    rows = Rows.arrange(sparse.csr_array(X) if storage == "sparse" else X, y[None], None, False)

    def fitted(most, state=None):
        work = posterior_of(storage, rows, prior)
        return run(Logistic(), rows, work, Options(max_iter=most), hyperparameters=Hyperparameters(groups), state=state)

    whole, part = fitted(7), fitted(3)
    np.savez(tmp_path / "state.npz", **part.state)
    with np.load(tmp_path / "state.npz") as saved:
        continued = fitted(7, dict(saved))
    np.testing.assert_array_equal(continued.posterior.mean, whole.posterior.mean)
    psi = hyperparameters_of(whole.prior, groups)
    np.testing.assert_array_equal(hyperparameters_of(continued.prior, groups), psi)
    assert continued.log_evidence == whole.log_evidence


def test_a_run_whose_updates_were_all_rejected_has_no_evidence():
    class Spoilt:
        targets = "signs"

        def value(self, y, z):
            return np.nan * z

        def derivatives(self, y, z):
            return np.nan * z, np.nan * z, np.nan * z

    X, y, prior, _ = problem(n=50, classify=True)
    rows = Rows.arrange(X, y[None], None, False)
    result = run(Spoilt(), rows, DensePosterior(rows, prior), Options(max_iter=2))
    assert result.status.name == "NONFINITE"
    assert np.isnan(result.log_evidence)


def test_averages_of_a_block_are_those_of_a_fine_grid():
    """One random walk whose variance is uncertain: in its logarithm as dense as steps are determined by the rows."""
    n, count = 30, 6
    rng = np.random.default_rng(1)
    point = rng.integers(count, size=n)
    X = np.column_stack([np.ones(n), np.eye(count)[point]])
    y = np.sin(point) + rng.normal(size=n)
    blocks = (Block(Scaled(walk(count), count - 2, 4.0), np.arange(1, count + 1)[None], np.array([-1.0])),)
    prior = StructuredPrior(
        FactorialGaussian.from_moments(np.zeros(count + 1), np.append(10.0, np.ones(count))), blocks
    )
    groups = (Group(np.arange(1, count + 1), 1.0, 0.3, 0),)
    posterior = DensePosterior(None, prior, DenseNatural(X.T @ X, X.T @ y))
    maximise_evidence(posterior, groups)
    settings = settings_around(posterior, groups, None, 1.0, None)
    assert len(settings) > 5

    def moments(parts):
        weights = np.array([w for w, *_ in parts])
        means, variances = (np.array([p[k] for p in parts]) for k in (1, 2))
        weights = weights / weights.sum()
        mean = weights @ means
        return mean, weights @ (variances + np.square(means)) - np.square(mean)

    def part(weight, moved):
        assert posterior.scale(1.0, 1.0, moved)
        return weight, posterior.mean.copy(), posterior.variance()

    found = moments([part(s.weight, s.prior) for s in settings])
    logs, exact = np.linspace(-12.0, 8.0, 400), []
    for log_variance in logs:
        moved = with_hyperparameters(prior, groups, np.array([log_variance]))
        mean, cov = np.zeros(n), X @ np.linalg.inv(matrix_of(moved)) @ X.T + np.eye(n)
        value = multivariate_normal.logpdf(y, mean, 0.5 * (cov + cov.T)) - 0.5 * 0.3**2 * 4.0 * np.exp(log_variance)
        V = np.linalg.inv(matrix_of(moved) + X.T @ X)[1:, 1:]
        free = count - 2 - np.trace(walk(count) @ V) * np.exp(-log_variance)
        exact.append(part(value + np.log(max(free, 1e-12)), moved))
    top = max(one[0] for one in exact)
    wanted = moments([(np.exp(value - top), mean, variance) for value, mean, variance in exact])
    np.testing.assert_allclose(found[0], wanted[0], atol=0.03 * np.sqrt(wanted[1]).max())
    np.testing.assert_allclose(np.sqrt(found[1]), np.sqrt(wanted[1]), rtol=0.04)


def test_intervals_of_the_hyperparameters_of_blocks_hold_their_maximum():
    X, y, prior, groups = problem(n=400)
    work, rows = normal_posterior("dense", X, y, prior)
    maximise_evidence(work, groups, rows)
    psi = hyperparameters_of(work.prior, groups)
    for number in range(psi.size):
        error, low, high = interval(work, groups, number, rows, rows.scale, 0.95)
        assert error >= 0.0
        assert low <= psi[number] <= high
    np.testing.assert_array_equal(hyperparameters_of(work.prior, groups), psi)
