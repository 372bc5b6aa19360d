"""A sparse precision over rows read block by block: the same posterior as with all rows at once."""

import numpy as np
import pytest
from scipy import sparse

from cavity import losses
from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.posteriors import SparsePosterior
from cavity.factors.rows import Rows
from cavity.gaussians import FactorialGaussian, analyse
from cavity.gaussians.sparse import PatternSums, analyse_blocks, factorise, factorise_sums, rows_on


class InBlocks:
    """Arranged rows that are given out in blocks only."""

    def __init__(self, rows, at_once):
        self._rows, self._matrix, self.csr_at_once = rows, rows.matrix(), at_once
        self.shape, self.targets, self.weights, self.offset, self.order = (
            rows.shape,
            rows.targets,
            rows.weights,
            rows.offset,
            rows.order,
        )

    def csr(self, part):
        return self._matrix[part]

    def blocks(self):
        for i in range(0, self.shape[0], self.csr_at_once):
            yield self.csr(slice(i, min(i + self.csr_at_once, self.shape[0])))


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    n, levels = 400, (12, 40)
    codes = [rng.integers(0, count, n) for count in levels]
    pairs = zip(codes, levels, strict=True)
    one_hot = [sparse.csr_array((np.ones(n), (np.arange(n), c)), shape=(n, k)) for c, k in pairs]
    X = sparse.csr_array(sparse.hstack([*one_hot, rng.normal(size=(n, 2))]))
    y = np.where(rng.random(n) < 0.5 + 0.1 * codes[0] / 12.0, 1.0, -1.0)
    rows = Rows.arrange(X, y[None], None, intercept=True)
    return rows, FactorialGaussian.from_moments(np.zeros(rows.shape[1]), 2.0)


def test_sums_over_blocks_factorise_as_all_rows_do(problem):
    rows, prior = problem
    whole, weights = analyse(rows.matrix()), np.random.default_rng(1).random(rows.shape[0])
    pattern = analyse_blocks(InBlocks(rows, 37).blocks).pattern
    sums = PatternSums.nothing(pattern)
    for i in range(0, rows.shape[0], 37):
        part = slice(i, i + 37)
        sums = sums.plus(PatternSums.of(rows_on(pattern, rows.matrix()[part]), weights[part]))
    one, other = factorise_sums(pattern, sums, prior.precision), factorise(whole, weights, prior.precision)
    np.testing.assert_allclose(one.matrix.toarray(), other.matrix.toarray(), atol=1e-12)
    np.testing.assert_allclose(one.variances(), other.variances(), rtol=1e-10)
    np.testing.assert_allclose(one.row_variances(rows_on(pattern, rows.matrix())), other.row_variances(), rtol=1e-10)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
def test_the_posterior_is_that_of_all_rows_at_once(loss, problem):
    rows, prior = problem
    matrix, blocks = rows.matrix(), InBlocks(rows, 60)
    expected = run(loss, rows, SparsePosterior(rows, analyse(matrix), prior, matrix), Options(200, 1e-6))
    found = run(loss, blocks, SparsePosterior(blocks, analyse_blocks(blocks.blocks), prior), Options(200, 1e-6))
    assert found.status.is_success
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-4)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-4)
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-3)


def test_a_run_continues_bit_for_bit(problem):
    rows, prior = problem
    blocks = InBlocks(rows, 60)
    analysis = analyse_blocks(blocks.blocks)

    def fit(loops, state=None):
        work = SparsePosterior(blocks, analysis, prior)
        return run(losses.Hinge(), blocks, work, Options(loops, 0.0), state=state)

    found, whole = fit(6, fit(2).state), fit(6)
    np.testing.assert_array_equal(found.mean, whole.mean)
    np.testing.assert_array_equal(found.variance, whole.variance)


def test_rows_that_would_fill_in_are_refused_before_they_are_factorised():
    X = sparse.random_array((2000, 4000), density=0.02, random_state=np.random.default_rng(0), format="csr")
    assert not np.isfinite(analyse_blocks(lambda: iter([X]), max_work=1e9).work)
