"""The working posterior with a full covariance is always that of its prior and sites, and refusals change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from cavity import FactorialGaussian
from cavity.ep.posteriors import DenseNatural, DensePosterior, row_blocks
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import ImproperError


def work_of(n=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    prior = FactorialGaussian.from_moments(rng.normal(size=d), rng.uniform(0.5, 3.0, d))
    rows = Rows.arrange(X, np.ones((1, n)), None, False)
    return DensePosterior(rows, prior), rows.block(slice(None)), prior, rng


def assert_posterior(work, block, prior, T, R):
    precision = np.diag(prior.precision) + (block * T[:, None]).T @ block
    mean = np.linalg.solve(precision, prior.shift + block.T @ R)
    np.testing.assert_allclose(work.mean, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(work.variance(), np.diag(np.linalg.inv(precision)), rtol=1e-9)
    found, variance = work.predictors(slice(0, len(block)))
    np.testing.assert_allclose(found, block @ mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(variance, np.sum(block @ np.linalg.inv(precision) * block, axis=1), rtol=1e-9)


def test_sites_of_either_sign_add_up():
    work, block, prior, rng = work_of()
    T, R = np.zeros(30), np.zeros(30)
    for part in (slice(0, 10), slice(10, 30), slice(5, 25)):
        size = part.stop - part.start
        t, r = rng.uniform(-0.02, 1.0, size), rng.normal(size=size)
        work = work.with_sites(part, t, r)
        T[part] += t
        R[part] += r
        assert_posterior(work, block, prior, T, R)
    assert work.scale(0.5, 0.5)
    assert_posterior(work, block, prior, 0.5 * T, 0.5 * R)
    other = FactorialGaussian.from_moments(np.zeros(4), 7.0)
    assert work.scale(1.0, 1.0, other)
    assert_posterior(work, block, other, 0.5 * T, 0.5 * R)
    precision = np.diag(other.precision) + 0.5 * (block * T[:, None]).T @ block
    assert work.log_det == pytest.approx(np.linalg.slogdet(precision)[1], rel=1e-12)
    known = work.natural(1.5)
    np.testing.assert_allclose(known.information, 0.5 * (block * T[:, None]).T @ block, rtol=1e-9, atol=1e-10)
    assert known.log_scale == 1.5


def test_what_would_be_improper_changes_nothing():
    work, block, prior, _ = work_of()
    part = slice(0, 30)
    nothing = np.zeros(30)
    for precisions, shifts in ((np.full(30, -5.0), nothing), (nothing, nothing + np.inf)):
        assert work.with_sites(part, precisions, shifts) is None
        assert_posterior(work, block, prior, nothing, nothing)
    assert work.with_sites(part, nothing, np.full(30, 100.0)) is not None
    assert_posterior(work, block, prior, nothing, nothing)
    mean = work.mean
    assert not work.scale(1.0, 1.0, FactorialGaussian.uniform(4))
    assert work.mean is mean
    assert work.prior is prior


def test_it_goes_on_from_what_is_known():
    work, block, prior, rng = work_of()
    T, R = rng.uniform(0.0, 1.0, 30), rng.normal(size=30)
    work = work.with_sites(slice(0, 30), T, R)
    again = DensePosterior(work.rows, prior, work.natural(0.0))
    assert_posterior(again, block, prior, T, R)
    again = again.with_sites(slice(0, 30), T, R)
    assert_posterior(again, block, prior, 2.0 * T, 2.0 * R)
    with pytest.raises(ImproperError):
        DensePosterior(work.rows, prior, DenseNatural(-100.0 * np.eye(4), np.zeros(4)))


@pytest.mark.parametrize("rows", [0, 1, 3, 49, 50, 101, 5000])
@pytest.mark.parametrize("first", [True, False])
def test_blocks_cover_all_rows_once(rows, first):
    work, _, _, _ = work_of(n=max(rows, 1))
    doubled, equal = row_blocks(rows, 10, doubling=True), row_blocks(rows, 10)
    for parts in (work.parts(first), doubled, equal):
        covered = np.concatenate([np.arange(p.start, p.stop) for p in parts])
        np.testing.assert_array_equal(covered, np.arange(covered.size))
    assert doubled[-1].stop == equal[-1].stop == rows
    assert all(part.stop - part.start <= part.start for part in doubled[1:])
