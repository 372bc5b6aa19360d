"""EP by blocks against closed forms, against EP row by row, and under changes that must not matter."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import integral, row_by_row
from scipy import sparse
from scipy.stats import multivariate_normal

import cavity
from cases import quietly
from cavity import FactorialGaussian, LinearFactor, Status
from cavity.ep.blocks import Blocks, RowSites, log_scale, run
from cavity.ep.driver import Diagnostics, Options
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.ep.result import Refusal
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.losses import (
    Absolute,
    Gamma,
    Hinge,
    Huber,
    Logistic,
    NegativeBinomial,
    Poisson,
    Quantile,
    QuasiZeroOne,
    Squared,
)

CONVEX = [
    Logistic(),
    Logistic(3.0),
    Hinge(),
    Squared(0.5),
    Absolute(0.7),
    Huber(1.35, 0.7),
    Quantile(0.2, 0.5),
    Poisson(),
    NegativeBinomial(0.7),
    Gamma(0.7),
]
LOSSES = [*CONVEX, QuasiZeroOne()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def problem(loss, n=40, d=3, seed=0, correlated=False):
    """Rows, targets of the kind of the loss, and a prior."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    if correlated:
        X = X @ (0.2 * np.eye(d) + rng.normal(size=(d, d)) / np.sqrt(d))
    z = X @ np.linspace(1.0, -0.5, d)
    if loss.targets == "signs":
        y = np.where(z + rng.logistic(size=n) > 0.0, 1.0, -1.0)
    elif loss.targets == "counts":
        y = rng.poisson(np.exp(z)).astype(float)
    elif loss.targets == "positives":
        y = rng.gamma(2.0, 0.5 * np.exp(z))
    else:
        y = z + 0.7 * rng.normal(size=n)
    return X, y, FactorialGaussian.from_moments(np.linspace(0.0, 0.4, d), np.linspace(2.0, 5.0, d))


def fitted(loss, X, y, prior, weights=None, **options):
    factors, choices = LinearFactor.batches(loss, X, y, 10, weights), {"tol": 1e-6, "max_iter": 300, **options}
    return quietly(cavity.fit, factors, prior, covariance="full", **choices)


def assert_near(found, mean, covariance, sd, share):
    std = np.sqrt(np.diag(covariance))
    assert np.max(np.abs(found.mean - mean) / std) < sd
    np.testing.assert_allclose(found.std, std, rtol=share)


@pytest.mark.parametrize("loss", CONVEX, ids=repr)
@pytest.mark.parametrize("correlated", [False, True])
def test_it_is_ep_row_by_row(loss, correlated):
    X, y, prior = problem(loss, correlated=correlated)
    found = fitted(loss, X, y, prior, tol=1e-3)
    assert found.status is Status.CONVERGED
    assert_near(found, *row_by_row(loss, X, y, prior.mean, prior.variance, tol=1e-4), sd=0.01, share=0.02)


def test_it_is_ep_row_by_row_where_that_converges_on_a_cost_that_is_not_convex():
    loss = QuasiZeroOne()
    X, y, prior = problem(loss, n=60)
    found = fitted(loss, X, y, prior, tol=1e-3)
    assert_near(found, *row_by_row(loss, X, y, prior.mean, prior.variance, tol=1e-4), sd=0.05, share=0.05)


def test_squared_losses_are_bayesian_linear_regression():
    X, y, prior = problem(Squared())
    weights = np.random.default_rng(1).uniform(0.1, 5.0, y.size)
    for w, given in ((np.ones(y.size), None), (weights, weights)):
        for beta in (1.0, 0.3):
            found = fitted(Squared(0.5), X, y, prior, given, beta=beta)
            precision = np.diag(prior.precision) + beta * (w[:, None] * X).T @ X / 0.25
            mean = np.linalg.solve(precision, prior.shift + beta * X.T @ (w * y) / 0.25)
            np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
            np.testing.assert_allclose(found.posterior.covariance, np.linalg.inv(precision), rtol=1e-9, atol=1e-12)
    cov = 0.25 * np.eye(y.size) + (X * prior.variance) @ X.T
    wanted = multivariate_normal.logpdf(y, X @ prior.mean, cov) + y.size * np.log(0.5 * np.sqrt(2.0 * np.pi))
    assert fitted(Squared(0.5), X, y, prior).log_evidence == pytest.approx(wanted, rel=1e-9)


@every_loss
def test_the_information_is_that_of_the_sites(loss):
    """G = X'TX and h = X'R after any number of loops."""
    X, y, prior = problem(loss)
    rows = Rows.arrange(X, y[None], None, False)
    sites = RowSites.uniform(rows.shape[0], None, rows.offset)
    outcome = run(loss, rows, DensePosterior(rows, prior), Options(max_iter=7, tol=0.0), sites=sites)
    block = rows.block(slice(None))
    known = outcome.sites
    scale = np.max(np.abs(known.information))
    np.testing.assert_allclose(known.information, (block * sites.precision[:, None]).T @ block, atol=1e-10 * scale)
    np.testing.assert_allclose(known.shift, block.T @ sites.shift, atol=1e-10 * np.max(np.abs(known.shift)))
    np.testing.assert_array_equal(known.information, known.information.T)
    precision = np.linalg.inv(outcome.posterior.covariance)
    np.testing.assert_allclose(precision - np.diag(prior.precision), known.information, atol=1e-8 * scale)


@every_loss
@pytest.mark.parametrize("storage", [np.asfortranarray, sparse.csr_array, lambda X: X.astype(np.float32)])
def test_storage_order_and_repetition_do_not_matter(loss, storage):
    X, y, prior = problem(loss)
    X = X.astype(np.float32).astype(np.float64)  # the same numbers in either precision
    wanted = fitted(loss, X, y, prior)
    rng = np.random.default_rng(3)
    order, times = rng.permutation(y.size), rng.integers(1, 4, y.size)
    for rows, targets in ((X, y), (X[order], y[order])):
        found = fitted(loss, storage(rows), targets, prior)
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(found.posterior.covariance, wanted.posterior.covariance, rtol=1e-8, atol=1e-10)
    repeated = fitted(loss, storage(np.repeat(X, times, axis=0)), np.repeat(y, times), prior)
    weighted = fitted(loss, storage(X), y, prior, times)
    np.testing.assert_allclose(repeated.mean, weighted.mean, rtol=1e-8, atol=1e-9)
    assert repeated.log_evidence == pytest.approx(weighted.log_evidence, rel=1e-8)


@every_loss
def test_a_sparse_precision_gives_the_same_posterior(loss):
    X, y, prior = problem(loss, n=80, d=6)
    X = np.where(np.random.default_rng(2).random(X.shape) < 0.4, X, 0.0)
    rows = Rows.arrange(sparse.csr_array(X), y[None], None, False)
    options = Options(max_iter=500, tol=1e-5)
    dense = run(loss, rows, DensePosterior(rows, prior), options)
    matrix = rows.matrix()
    found = run(loss, rows, SparsePosterior(rows, analyse(matrix), prior, matrix), options)
    assert_near(found, dense.mean, dense.posterior.covariance, sd=1e-2, share=1e-2)
    assert found.log_evidence == pytest.approx(dense.log_evidence, abs=1e-2)
    np.testing.assert_allclose(found.posterior.covariance, dense.posterior.covariance, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("loss", CONVEX, ids=repr)
def test_the_units_of_the_columns_do_not_matter(loss):
    X, y, prior = problem(loss)
    units = np.array([1e-3, 7.0, 1e4])
    scaled = FactorialGaussian.from_moments(prior.mean / units, prior.variance / units**2)
    a, b = fitted(loss, X, y, prior), fitted(loss, X * units, y, scaled)
    np.testing.assert_allclose(b.mean * units, a.mean, rtol=0.0, atol=1e-4)
    np.testing.assert_allclose(b.std * units, a.std, rtol=1e-4)
    assert b.log_evidence == pytest.approx(a.log_evidence, abs=1e-4)


@pytest.mark.parametrize("loss", CONVEX, ids=repr)
def test_the_evidence_is_near_the_integral(loss):
    X, y, prior = problem(loss, d=1)
    assert fitted(loss, X, y, prior).log_evidence == pytest.approx(
        integral(loss, X, y, prior.mean, prior.variance), abs=0.05
    )


def test_a_power_of_one_half_fits_half_a_factor_twice():
    """Exact where factors are Gaussian; near plain EP where they are not."""
    X, y, prior = problem(Squared())
    for power in (0.5, 1.0):
        np.testing.assert_allclose(
            fitted(Squared(), X, y, prior, power=power).mean, fitted(Squared(), X, y, prior).mean
        )
    X, y, prior = problem(Logistic())
    a, b = fitted(Logistic(), X, y, prior), fitted(Logistic(), X, y, prior, power=0.5)
    assert 0.0 < np.max(np.abs(a.mean - b.mean) / a.std) < 0.1


def test_rows_of_zeros_count_in_the_evidence_only():
    X, y, prior = problem(Logistic())
    with_zeros = fitted(Logistic(), np.vstack([X, np.zeros((5, 3))]), np.append(y, [1.0, -1.0, 1.0, 1.0, -1.0]), prior)
    plain = fitted(Logistic(), X, y, prior)
    np.testing.assert_allclose(with_zeros.mean, plain.mean, rtol=0.0, atol=1e-4)
    assert with_zeros.log_evidence == pytest.approx(plain.log_evidence - 5.0 * np.log(2.0), abs=1e-4)


def test_no_informative_row_leaves_the_prior():
    _, _, prior = problem(Logistic())
    found = fitted(Logistic(), np.zeros((4, 3)), [1.0, -1.0, 1.0, 1.0], prior)
    np.testing.assert_allclose(found.mean, prior.mean)
    np.testing.assert_allclose(found.std**2, prior.variance)
    assert found.status is Status.CONVERGED


# How a run ends.


def test_statuses_say_how_it_ended():
    X, y, prior = problem(Logistic())
    assert fitted(Logistic(), X, y, prior, max_iter=1).status is Status.SINGLE_PASS
    assert fitted(Logistic(), X, y, prior, max_iter=2, tol=0.0).status is Status.MAX_ITER
    found = fitted(Logistic(), X, y, prior, max_iter=10**30)
    assert found.status is Status.CONVERGED
    assert len(found.trace.changes) == len(found.trace.betas)
    assert found.trace.updates == y.size * len(found.trace.changes)


class Seesaw(DensePosterior):
    """Blocks move the mean by a standard deviation to and fro, so that a loop moves it by nothing."""

    def with_sites(self, part, precisions, shifts):
        new = super().with_sites(part, precisions, shifts)
        new.mean = new.mean + np.sqrt(new.variance()) * (1.0 if part.start == 0 else -1.0)
        return new


class Reluctant(DensePosterior):
    """Every block is held back once."""

    held = False

    def with_sites(self, part, precisions, shifts):
        self.held = not self.held
        return None if self.held else super().with_sites(part, precisions, shifts)


@pytest.mark.parametrize("work", [Seesaw, Reluctant])
def test_a_loop_whose_blocks_undo_each_other_or_are_held_back_has_not_converged(work):
    loss = Huber(1.35)
    X, y, prior = problem(loss, n=120, d=1)
    rows = Rows.arrange(X, y[None], None, False)
    assert len(DensePosterior(rows, prior).parts(False)) == 2
    found = run(loss, rows, work(rows, prior), Options(max_iter=30))
    assert min(found.trace.changes) < 1e-6
    assert found.status is Status.MAX_ITER
    assert run(loss, rows, DensePosterior(rows, prior), Options(max_iter=30)).status is Status.CONVERGED


def test_a_block_moves_its_predictors_by_five_standard_deviations_at_most():
    X, loss = 1.0 + 1e-3 * np.arange(30.0)[:, None], Absolute()
    rows = Rows.arrange(X, np.full((1, 30), 1000.0), None, False)
    prior = FactorialGaussian.from_moments(np.zeros(1), 1.0)
    blocks = Blocks(loss, DensePosterior(rows, prior), Options(), Hyperparameters(), rows, RowSites.uniform(30))
    blocks.visit(slice(0, 30), True, Diagnostics())
    assert blocks.held_back
    assert blocks.mean[0] / prior.std[0] == pytest.approx(4.0, rel=0.01)  # 0.8 of the largest step


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 121.0) % 4])
def test_one_loop_of_the_squared_loss_is_exact(weights):
    X, y, prior = problem(Squared(), n=120, d=3)
    rows = Rows.arrange(X, y[None], weights, False)
    found = run(Squared(0.5), rows, DensePosterior(rows, prior), Options(max_iter=30, tol=1e-12))
    assert found.status is Status.CONVERGED
    assert len(found.trace.changes) == 1
    w = 4.0 * (np.ones(120) if weights is None else weights)
    covariance = np.linalg.inv(np.diag(prior.precision) + (X.T * w) @ X)
    np.testing.assert_allclose(found.posterior.covariance, covariance, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(found.mean, covariance @ (prior.shift + X.T @ (w * y)), rtol=1e-9)


def test_refused_rows_are_counted_named_and_as_good_as_absent():
    class Spoilt:
        targets = "signs"

        def value(self, y, z):
            return np.where(np.abs(z) > 1e4, np.nan, Logistic().value(y, z))

        def derivatives(self, y, z):
            value, slope, curvature = Logistic().derivatives(y, z)
            return np.where(np.abs(z) > 1e4, np.nan, value), slope, curvature

    X, y, prior = problem(Logistic())
    bad = np.vstack([X[:20], np.full((1, 3), 1e8), X[20:]])
    rows = Rows.arrange(bad, np.insert(y, 20, 1.0)[None], None, False)
    found = run(Spoilt(), rows, DensePosterior(rows, prior), Options(max_iter=50, tol=1e-4))
    assert found.status is Status.NONFINITE
    assert set(found.trace.refusals) == {(20, Refusal.NONFINITE)}
    wanted = fitted(Logistic(), X, y, prior)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=0.0, atol=1e-3)


def test_an_improper_prior_and_wrong_arguments_are_refused():
    X, y, prior = problem(Logistic())
    factors = LinearFactor.batches(Logistic(), X, y)
    with pytest.raises(ValueError, match="prior must be proper"):
        cavity.fit(factors, FactorialGaussian.uniform(3), covariance="full")
    for name, value in (("max_iter", 0), ("tol", -1.0), ("beta", 0.0), ("power", "x"), ("max_iter", 1.5)):
        with pytest.raises(ValueError, match=name):
            cavity.fit(factors, prior, covariance="full", **{name: value})
    for name, value in (("sites", "tied"), ("damping", 0.5), ("start", "mode"), ("compiled", True)):
        with pytest.raises(ValueError, match=f"{name} has no meaning with all correlations"):
            cavity.fit(factors, prior, covariance="full", **{name: value})
    with pytest.raises(ValueError, match="needs linear factors of one loss"):
        cavity.fit([cavity.CostFactor(lambda t: float(t @ t), dim=3)], prior, covariance="sparse")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("loss", [Logistic(), Hinge(), Absolute()], ids=repr)
def test_convex_problems_of_many_kinds_converge(loss, seed):
    """Few rows, more columns than rows, rare and repeated columns, separable classes, a wide prior."""
    rng = np.random.default_rng(seed)
    n, d = int(10 ** rng.uniform(0.7, 2.7)), int(10 ** rng.uniform(0.0, 1.5))
    kinds = [
        rng.normal(size=(n, d)),
        (rng.random((n, d)) < 0.1).astype(float),
        rng.integers(0, 2, size=(n, d)).astype(float),
        rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-2.0, 2.0, d),
    ]
    X = np.column_stack([kinds[seed % 4], np.ones(n)])
    z = X @ rng.normal(size=d + 1)
    y = np.where(z + (seed % 3) * rng.logistic(size=n) > 0.0, 1.0, -1.0) if loss.targets == "signs" else z
    prior = FactorialGaussian.from_moments(np.zeros(d + 1), np.append(np.full(d, 25.0), 100.0))
    found = fitted(loss, X, y, prior, max_iter=500, tol=0.01)
    assert found.status is Status.CONVERGED
    assert np.all(np.isfinite(found.mean))
    assert np.all(found.std > 0.0)


@pytest.mark.parametrize(("seed", "n", "d", "share"), [(17, 30, 15, 1.0), (21, 30, 15, 1.0), (98, 200, 8, 0.1)])
def test_heavy_tails_under_a_wide_prior_converge(seed, n, d, share):
    """The first loop makes sites that are far too narrow; their rows are held back for many loops until they widen."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    if share < 1.0:
        X *= rng.random((n, d)) < share
    y = X @ rng.normal(size=d) + 10.0 * rng.standard_t(2.0, size=n)
    found = fitted(Absolute(), X, y, FactorialGaussian.from_moments(np.zeros(d), 1000.0), max_iter=100, tol=0.01)
    assert found.status is Status.CONVERGED


@pytest.mark.parametrize("share", [1e-4, 1e-8])
@pytest.mark.parametrize("far", [0.0, 1e3, 1e5])
def test_the_scale_of_a_site_does_not_drown_in_a_wide_cavity_that_is_far_away(share, far):
    """Of the squared loss it is known: the height of the factor at zero, whatever the cavity."""
    noise, y = 1e-4, np.array([1.0])
    sites = RowSites.uniform(1)
    sites.precision[:], sites.shift[:] = noise**-2.0, y / noise**2
    sites.variance[:] = (1.0 - share) * noise**2
    wide = sites.variance / (1.0 - sites.precision * sites.variance)
    sites.mean[:] = (far / wide + sites.shift) / (1.0 / wide + sites.precision)
    found = log_scale(Squared(noise), y, np.ones(1), sites)
    assert found == pytest.approx(-0.5 / noise**2, abs=0.1)
