"""The working posterior with a sparse precision is that of the dense one, step by step."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.linalg import solveh_banded

from cavity import FactorialGaussian
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.terms.prior import Block, StructuredPrior
from cavity.terms.structures import Scaled


def pair(n=120, levels=8, seed=0):
    """Two crossed factors and a constant column, as dense and as sparse work."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 2 * levels))
    X[np.arange(n), rng.integers(levels, size=n)] = rng.normal(size=n)
    X[np.arange(n), levels + rng.integers(levels, size=n)] = 1.0
    rows = Rows.arrange(sparse.csr_array(X), np.ones((1, n)), None, True)
    prior = FactorialGaussian.from_moments(rng.normal(size=2 * levels + 1), rng.uniform(0.5, 3.0, 2 * levels + 1))
    matrix = rows.matrix()
    return DensePosterior(rows, prior), SparsePosterior(rows, analyse(matrix), prior, matrix), rng


def assert_same(dense, found, part):
    np.testing.assert_allclose(found.mean, dense.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.variance(), dense.variance(), rtol=1e-8)
    np.testing.assert_allclose(found.log_det, dense.log_det, rtol=1e-8)
    for one, other in zip(found.predictors(part), dense.predictors(part), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_it_does_what_the_dense_work_does():
    dense, found, rng = pair()
    n = dense.rows.shape[0]
    whole = slice(0, n)
    assert_same(dense, found, whole)
    for part in (slice(0, n // 2), slice(n // 2, n), whole):
        size = part.stop - part.start
        t, r = rng.uniform(-0.01, 1.0, size), rng.normal(size=size)
        dense, found = (work.with_sites(part, t, r) for work in (dense, found))
        assert_same(dense, found, whole)
    for work in (dense, found):
        assert work.scale(0.7, 0.7)
        assert work.scale(1.0, 1.0, FactorialGaussian.from_moments(np.zeros(17), 3.0))
    assert_same(dense, found, whole)
    a, b = dense.natural(0.3), found.natural(0.3)
    upper = b.information.toarray()
    np.testing.assert_allclose(upper + np.triu(upper, 1).T, a.information, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(b.shift, a.shift, rtol=1e-8, atol=1e-9)
    prior = dense.prior
    np.testing.assert_allclose(b.posterior(prior).log_mass, a.posterior(prior).log_mass, rtol=1e-8)


def test_what_would_be_improper_changes_nothing():
    dense, found, _ = pair()
    n = dense.rows.shape[0]
    part = slice(0, n)
    found.predictors(part)
    for precisions, shifts in (
        (np.full(n, -50.0), np.zeros(n)),
        (np.full(n, np.nan), np.zeros(n)),
        (np.zeros(n), np.full(n, np.inf)),
    ):
        assert found.with_sites(part, precisions, shifts) is None
        assert_same(dense, found, part)
    assert found.with_sites(part, np.zeros(n), np.full(n, 100.0)) is not None
    assert_same(dense, found, part)


def test_natural_parameters_with_entries_of_zero_make_the_posterior():
    """Rows far from the kink of a hinge have sites of zero, whose products are stored."""
    dense, found, _ = pair()
    n = dense.rows.shape[0]
    t = np.where(np.arange(n) < 5, 1.0, 0.0)
    dense, found = (work.with_sites(slice(0, n), t, t) for work in (dense, found))
    posterior = found.natural(0.0).posterior(found.prior)
    np.testing.assert_allclose(posterior.mean, dense.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(posterior.variance, dense.variance(), rtol=1e-8)


def test_blocks_cover_all_rows_once():
    _, found, _ = pair(n=700)
    n = found.rows.shape[0]
    for first in (True, False):
        covered = np.concatenate([np.arange(p.start, p.stop) for p in found.parts(first)])
        np.testing.assert_array_equal(covered, np.arange(n))


def test_a_long_walk_starts_although_rounding_makes_its_prior_improper():
    """Its smallest eigenvalue is less than the rounding error of its entries."""
    n = 50_000
    second = sparse.eye_array(n + 2, format="csr")
    for _ in range(2):
        second = sparse.csr_array(second[1:] - second[:-1])
    penalty = sparse.csr_array((second.T @ second)[1:-1][:, 1:-1])
    structure = Scaled(penalty, n, 1.0, 2.0 * np.log(n + 1.0))
    independent = FactorialGaussian.from_moments(np.zeros(n), np.ones(n))
    prior = StructuredPrior(independent, (Block(structure, np.arange(n)[None], np.zeros(1)),))
    rows = Rows.arrange(sparse.eye_array(n, format="csr"), np.ones((1, n)), None, intercept=False)
    matrix = rows.matrix()
    posterior = SparsePosterior(rows, analyse(matrix, coupled=penalty), prior, matrix)
    shifts = np.random.default_rng(0).normal(size=n)
    _, variance = posterior.predictors(slice(0, n))
    assert np.all(variance > 0.0)
    posterior = posterior.with_sites(slice(0, n), np.ones(n), shifts)
    banded = np.zeros((3, n))
    for k in range(3):
        banded[2 - k, k:] = penalty.diagonal(k) + (k == 0)
    np.testing.assert_allclose(posterior.mean, solveh_banded(banded, matrix.T @ shifts), rtol=1e-6, atol=1e-9)
