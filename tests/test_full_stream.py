"""Streams with a full covariance: exact for Gaussian noise, at the joint mode else, whatever the calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.linalg import block_diag

from cavity import FactorialGaussian, LinearFactor
from cavity.correlated import CorrelatedGaussian
from cavity.full_stream import TOGETHER, FullStream
from cavity.losses import Absolute, Hinge, Huber, Logistic, Poisson, Quantile, QuasiZeroOne, Squared
from cavity.mode import find_mode

# Equal but for the order in which rounding happens.
PARITY = 1e-9
# How far, in standard deviations, a batch may settle from its mode.
NEAR = 0.02
DIM = 4
PRIOR = FactorialGaussian.from_moments(np.linspace(-1.0, 1.0, DIM), [25.0, 4.0, 1.0, 9.0])


def rows(n=60, seed=0):
    """Correlated rows, signs and reals."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, DIM)) @ (np.eye(DIM) + 0.7)
    z = X @ np.linspace(1.0, -1.0, DIM)
    return X, np.where(z + rng.logistic(size=n) > 0.0, 1.0, -1.0), z + rng.normal(size=n)


def after(loss, X, targets, weights=None, size=TOGETHER, prior=PRIOR, **options):
    stream = FullStream(loss, CorrelatedGaussian.of(prior), **options)
    assert not stream.take(X, targets, weights, size).any()
    return stream.posterior


@pytest.mark.parametrize("calls", [1, 3])
def test_gaussian_noise_is_taken_in_exactly(calls):
    X, _, y = rows(150)
    weights, beta, scale = np.random.default_rng(1).uniform(0.2, 3.0, y.size), 0.7, 0.5
    stream = FullStream(Squared(scale), CorrelatedGaussian.of(PRIOR), beta=beta)
    for part in np.array_split(np.arange(y.size), calls):
        stream.take(X[part], y[part], weights[part], TOGETHER)
    noise = beta * weights / scale**2
    precision = np.diag(PRIOR.precision) + (noise[:, None] * X).T @ X
    mean = np.linalg.solve(precision, PRIOR.shift + X.T @ (noise * y))
    found = stream.posterior
    np.testing.assert_allclose(found.mean, mean, rtol=PARITY)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=PARITY, atol=PARITY * 1e-3)
    # The integral of prior times factors: their height at the mean, times the volume there.
    apart = (mean - PRIOR.mean) / PRIOR.std
    height = -0.5 * float(np.sum(noise * (y - X @ mean) ** 2) + apart @ apart)
    volume = -0.5 * float(np.linalg.slogdet(precision)[1] + np.sum(np.log(PRIOR.variance)))
    assert found.log_mass == pytest.approx(height + volume, rel=PARITY)


@pytest.mark.parametrize("loss", [Logistic(), Huber(), Poisson(), Logistic(3.0)], ids=repr)
def test_a_batch_settles_at_its_mode_with_the_curvature_there(loss):
    """Where it leaves the posterior narrow against the loss's own scale, so that nothing is smoothed."""
    X, signs, reals = rows(400)
    targets = {"signs": signs, "reals": reals, "counts": np.abs(np.round(reals))}[loss.targets]
    X = 0.3 * X if loss.targets == "counts" else X
    weights = np.random.default_rng(1).uniform(0.2, 3.0, targets.size)
    mode = find_mode(LinearFactor.batches(loss, X, targets, 100, weights=weights), PRIOR, 0.7)
    precision = np.diag(PRIOR.precision) + (0.7 * weights * mode.curvatures * X.T) @ X
    found = after(loss, X, targets, weights, size=400, beta=0.7)
    apart = found.mean - mode.point
    assert np.sqrt(apart @ precision @ apart) < NEAR
    np.testing.assert_allclose(found.covariance @ precision, np.eye(DIM), atol=0.1)


@pytest.mark.parametrize("loss", [Hinge(), Absolute(), Quantile(0.3)], ids=repr)
def test_a_loss_with_kinks_settles_where_its_smoothed_cost_is_least(loss):
    """Where the posterior is narrow against the loss's own scale, smoothing is that of `find_mode`."""
    X, signs, reals = rows(400)
    targets = signs if loss.targets == "signs" else reals
    mode = find_mode(LinearFactor.batches(loss, X, targets, 100), PRIOR)
    precision = np.diag(PRIOR.precision) + (mode.curvatures * X.T) @ X
    found = after(loss, X, targets, size=400)
    apart = found.mean - mode.point
    assert np.sqrt(apart @ precision @ apart) < 0.1
    np.testing.assert_allclose(found.std, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.1)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=repr)
def test_hundreds_one_by_one_equal_all_at_once(loss):
    X, y, _ = rows(5 * TOGETHER - 30)
    stream = FullStream(loss, CorrelatedGaussian.of(PRIOR))
    for i in range(0, y.size, TOGETHER):
        stream.take(X[i : i + TOGETHER], y[i : i + TOGETHER], None, 10)
    whole = after(loss, X, y, size=10)
    np.testing.assert_array_equal(stream.posterior.mean, whole.mean)
    np.testing.assert_array_equal(stream.posterior.root, whole.root)
    assert stream.posterior.log_mass == whole.log_mass


def test_rows_may_be_of_single_precision():
    X, y, _ = rows()
    a, b = after(Logistic(), X.astype(np.float32), y), after(Logistic(), X.astype(np.float32).astype(float), y)
    np.testing.assert_array_equal(a.mean, b.mean)


def test_forgetting_takes_a_share_off_what_was_learned():
    X, y, _ = rows()
    stream = FullStream(Logistic(), CorrelatedGaussian.of(PRIOR))
    stream.take(X, y, None, TOGETHER)
    before = stream.posterior
    stream.forget(0.3, PRIOR)
    learned = before.precision - np.diag(PRIOR.precision)
    np.testing.assert_allclose(stream.posterior.precision, np.diag(PRIOR.precision) + 0.3 * learned, rtol=1e-8)
    shift = 0.3 * before.precision @ before.mean + 0.7 * PRIOR.shift
    np.testing.assert_allclose(stream.posterior.precision @ stream.posterior.mean, shift, rtol=1e-8)


@pytest.mark.parametrize("loss", [Logistic(), Hinge(), QuasiZeroOne(), Squared(), Absolute(), Poisson()], ids=repr)
def test_any_scale_leaves_a_proper_posterior(loss):
    X, signs, reals = rows(250)
    targets = {"signs": signs, "reals": reals, "counts": np.abs(np.round(reals))}[loss.targets]
    X = X * 10.0 ** np.array([-6.0, 6.0, 0.0, 3.0])
    X[:, 2] = 1.0
    stream = FullStream(loss, CorrelatedGaussian.of(PRIOR))
    stream.take(X, targets, None, TOGETHER)
    assert stream.posterior.is_proper
    assert np.all(stream.posterior.variance > 0.0)
    assert np.all(stream.posterior.variance <= PRIOR.variance * (1.0 + 1e-9))


def test_a_column_seen_rarely_ends_where_its_rows_agree():
    """Two rows that contradict each other pin a column down to their own scale, however wide the prior."""
    prior, loss = FactorialGaussian.from_moments([0.0, 0.0], 25.0), Logistic()
    stream = FullStream(loss, CorrelatedGaussian.of(prior))
    for y in (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0):
        stream.take(np.array([[60.0, 1.0]]), np.array([y]), None, TOGETHER)
    assert abs(stream.posterior.mean @ [60.0, 1.0]) < 3.0


class Fragile(NamedTuple):
    """Logistic loss, but NaN far out."""

    edge: float = 50.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return Logistic().value(y, z) + np.where(np.abs(z) > self.edge, np.nan, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        value, slope, curvature = Logistic().derivatives(y, z)
        return value + np.where(np.abs(z) > self.edge, np.nan, 0.0), slope, curvature


def test_a_batch_that_is_not_finite_is_refused_and_leaves_no_mark():
    X, y, _ = rows(2 * TOGETHER)
    X[TOGETHER:] *= 1e3
    prior = FactorialGaussian.from_moments(np.ones(DIM), 1e-4)
    stream = FullStream(Fragile(), CorrelatedGaussian.of(prior))
    outcomes = stream.take(X, y, None, TOGETHER)
    assert [o != 0 for o in outcomes] == [False, True]
    np.testing.assert_array_equal(stream.posterior.mean, after(Fragile(), X[:TOGETHER], y[:TOGETHER], prior=prior).mean)


def test_blocks_of_columns_that_never_meet_stay_apart():
    """Rows of one block change nothing of the other, as a full covariance knows."""
    X, y, _ = rows(40)
    stream = FullStream(Logistic(), CorrelatedGaussian.of(PRIOR))
    stream.take(block_diag(X[:20, :2], X[20:, 2:]), y, None, TOGETHER)
    np.testing.assert_allclose(stream.posterior.covariance[:2, 2:], 0.0, atol=1e-12)
