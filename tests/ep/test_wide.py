"""The posterior in the space of the rows is that of the coefficients, step by step and after a fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from cavity import FactorialGaussian, losses
from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import Group, Hyperparameters, NormalRows, evidence, set_hyperparameters
from cavity.ep.posteriors import DensePosterior, JointPosterior
from cavity.ep.wide import KernelPosterior, LinearKernel, RowsPosterior
from cavity.factors.rows import Rows
from cavity.gaussians.wide import WideRows
from cavity.losses.joint import Softmax


def kernel_of(rows, groups=()):
    d = rows.X.shape[1]
    return LinearKernel(WideRows(rows.X, rows.order, np.zeros(d), np.ones(d), rows.intercept), groups)


def pair(n=30, d=50, predictors=1, seed=0, groups=()):
    rng = np.random.default_rng(seed)
    rows = Rows.arrange(rng.normal(size=(n, d)), rng.normal(size=(1, n)), None, True)
    dim = predictors * (d + 1)
    means = rng.normal(size=dim) if predictors == 1 else np.zeros(dim)
    variance = rng.uniform(0.5, 3.0, d + 1)
    for columns in groups:
        variance[columns] = variance[columns[0]]
    prior = FactorialGaussian.from_moments(means, np.tile(variance, predictors))
    dense = (DensePosterior if predictors == 1 else JointPosterior)(rows, prior)
    return dense, RowsPosterior(kernel_of(rows, groups), prior), rng


def assert_same(dense, found, part):
    for one, other in zip(found.predictors(part), dense.predictors(part), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(found.means(part), found.predictors(part)[0])
    one, other = (work.natural(0.3).posterior(dense.prior) for work in (dense, found))
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-8)
    np.testing.assert_allclose(other.log_mass, one.log_mass, rtol=1e-9)
    if isinstance(dense, JointPosterior):
        return
    np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("lowest", [0.1, -0.01])
def test_it_does_what_the_dense_work_does(lowest):
    dense, found, rng = pair()
    n = dense.rows.shape[0]
    whole = slice(0, n)
    for part in (slice(0, n // 2), slice(n // 2, n), whole):
        size = part.stop - part.start
        t, r = rng.uniform(lowest, 0.2, size), rng.normal(size=size)
        dense, found = (work.with_sites(part, t, r) for work in (dense, found))
        assert_same(dense, found, whole)
    for work in (dense, found):
        assert work.scale(0.7, 0.7)
        assert work.scale(1.0, 1.0, FactorialGaussian.from_moments(np.zeros(51), 3.0))
    assert_same(dense, found, whole)


def test_sites_of_negative_precision_count_until_the_posterior_is_improper():
    dense, found, rng = pair()
    part = slice(0, 30)
    t, r = rng.normal(size=30), rng.normal(size=30)
    t[t < 0.0] *= 0.002
    dense, found = (work.with_sites(part, t, r) for work in (dense, found))
    assert np.sum(found.precisions < 0.0) > 5
    assert_same(dense, found, part)
    for work in (dense, found):
        before = work.means(part)
        assert work.with_sites(part, np.full(30, -5.0), r) is None
        np.testing.assert_array_equal(work.means(part), before)


def test_it_does_what_the_joint_work_does():
    dense, found, rng = pair(predictors=2)
    n = 30
    for part in (slice(0, n // 2), slice(n // 2, n), slice(0, n)):
        size = part.stop - part.start
        half = rng.normal(size=(size, 2, 2)) / 3.0
        half[::3, :, 1] = 0.0  # of rank one
        t, r = half @ half.transpose(0, 2, 1), rng.normal(size=(size, 2))
        dense, found = (work.with_sites(part, t, r) for work in (dense, found))
        assert_same(dense, found, slice(0, n))


GROUPS = (np.arange(20), np.arange(20, 50))


@pytest.mark.parametrize("with_noise", [False, True])
def test_the_evidence_and_its_gradient_are_those_of_the_coefficients(with_noise):
    dense, found, rng = pair(groups=GROUPS)
    part = slice(0, 30)
    t, targets = rng.uniform(0.5, 2.0, 30), rng.normal(size=30)
    dense, found = (work.with_sites(part, t, t * targets) for work in (dense, found))
    groups = tuple(Group(columns, 2.0, 0.3) for columns in GROUPS)
    scale = 0.8
    rows = NormalRows(float(np.sum(t)) * scale**2, float(t @ targets**2) * scale**2, scale) if with_noise else None
    one, other = (evidence(work, groups, rows) for work in (dense, found))
    np.testing.assert_allclose(other.gradient, one.gradient, rtol=1e-7)
    np.testing.assert_allclose(other.curvature, one.curvature, rtol=1e-7)
    # Evidences are known up to a constant: another prior decides it.
    before = one.value - other.value
    moved = FactorialGaussian.from_moments(dense.prior.mean, 0.7 * dense.prior.variance)
    for work, own in ((dense, rows), (found, None if rows is None else NormalRows(*vars_of(rows)))):
        assert set_hyperparameters(work, moved, 1.1 * scale, own)
        if own is not None:
            own.scale = 1.1 * scale
        last = evidence(work, groups, own).value
        before = before - last if work is dense else before + last
    np.testing.assert_allclose(before, 0.0, atol=1e-8)


def vars_of(rows):
    return rows.weight, rows.squares, 0.8


def made(loss, n=40, d=90, seed=3, sparse_rows=False):
    """Rows with targets that suit a loss."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    if sparse_rows:
        X[rng.random(X.shape) < 0.8] = 0.0
    z = X @ rng.normal(size=d) / np.sqrt(d)
    real = z + 0.5 * rng.normal(size=n)
    kind = type(loss)
    if kind in (losses.Logistic, losses.Hinge, losses.QuasiZeroOne):
        y = np.where(real > 0.0, 1.0, -1.0)
    elif kind in (losses.Poisson, losses.NegativeBinomial):
        y = rng.poisson(np.exp(z)).astype(float)
    elif kind is Softmax:
        y = np.digitize(real, [-0.5, 0.5]).astype(float)
    else:
        y = np.exp(real) if kind is losses.Gamma else real
    weights = rng.integers(1, 4, n).astype(float)
    offset = 0.3 * rng.normal(size=n)
    return Rows.arrange(sparse.csr_array(X) if sparse_rows else X, y[None], weights, True, offset)


LOSSES = [
    losses.Logistic(),
    losses.Hinge(),
    losses.QuasiZeroOne(),
    losses.Squared(),
    losses.Quantile(0.2),
    losses.Absolute(),
    losses.Huber(),
    losses.Poisson(),
    losses.NegativeBinomial(),
    losses.Gamma(),
    Softmax(3),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_fits_with_a_given_prior_are_those_with_a_full_covariance(loss, sparse_rows):
    rows = made(loss, sparse_rows=sparse_rows)
    count, d = getattr(loss, "predictors", 1), rows.shape[1]
    variance = np.tile(np.append(np.full(d - 1, 3.0 / d), 100.0), count)
    prior = FactorialGaussian.from_moments(np.zeros(variance.size), variance)
    options = Options(300, 1e-8)
    dense = run(loss, rows, (DensePosterior if count == 1 else JointPosterior)(rows, prior), options)
    found = run(loss, rows, RowsPosterior(kernel_of(rows), prior), options)
    assert dense.status.is_success
    assert found.status.is_success
    np.testing.assert_allclose((found.mean - dense.mean) / dense.std, 0.0, atol=1e-6)
    np.testing.assert_allclose(found.std, dense.std, rtol=1e-6)
    np.testing.assert_allclose(found.log_evidence, dense.log_evidence, rtol=1e-8)


@pytest.mark.parametrize(
    "loss", [losses.Logistic(), losses.Poisson(), Softmax(3)], ids=lambda loss: type(loss).__name__
)
def test_variances_are_found_where_the_evidence_is_largest(loss):
    rows = made(loss, seed=5)
    count, d = getattr(loss, "predictors", 1), rows.shape[1]
    columns = np.arange(d - 1)
    variance = np.tile(np.append(np.full(d - 1, 3.0 / d), 100.0), count)
    prior = FactorialGaussian.from_moments(np.zeros(variance.size), variance)
    places = np.concatenate([columns + k * d for k in range(count)])
    free = Hyperparameters((Group(places, float(d - 1), 0.3),))
    found = run(loss, rows, RowsPosterior(kernel_of(rows, (places,)), prior), Options(300, 1e-5), hyperparameters=free)
    assert found.status.is_success

    def evidence_at(v):
        other = prior.variance.copy()
        other[places] = v
        at = FactorialGaussian.from_moments(prior.mean, other)
        result = run(loss, rows, RowsPosterior(kernel_of(rows), at), Options(300, 1e-7))
        return result.log_evidence - 0.5 * 0.3**2 * (d - 1) * v

    best = float(found.prior.variance[0])
    values = [evidence_at(best * np.exp(step)) for step in (-0.2, 0.0, 0.2)]
    assert values[1] > max(values[0], values[2])


def test_a_state_continues_bit_for_bit():
    rows, loss = made(losses.Logistic()), losses.Logistic()
    d = rows.shape[1]
    prior = FactorialGaussian.from_moments(np.zeros(d), 3.0 / d)
    free = [Hyperparameters((Group(np.arange(d), float(d), 0.3),)) for _ in range(3)]
    kernel = kernel_of(rows, (np.arange(d),))
    whole = run(loss, rows, RowsPosterior(kernel, prior), Options(6, 0.0), hyperparameters=free[0])
    half = run(loss, rows, RowsPosterior(kernel, prior), Options(3, 0.0), hyperparameters=free[1])
    rest = run(
        loss, rows, RowsPosterior(kernel, prior), Options(6, 0.0), hyperparameters=free[2], state=dict(half.state)
    )
    np.testing.assert_array_equal(rest.mean, whole.mean)
    assert rest.log_evidence == whole.log_evidence


def test_a_posterior_of_predictors_needs_no_columns():
    dense, found, rng = pair()
    work = KernelPosterior(found.kernel, found.prior)
    t, r = rng.uniform(0.1, 1.0, 30), rng.normal(size=30)
    dense, work = (one.with_sites(slice(0, 30), t, r) for one in (dense, work))
    for one, other in zip(work.predictors(slice(0, 30)), dense.predictors(slice(0, 30)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)
