"""Priors with structure are Gaussians of a dense precision matrix."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from cavity import FactorialGaussian
from cavity.terms.prior import Block, StructuredPrior, upper_of
from cavity.terms.structures import RIDGE, Correlated, Exponential, Scaled

DIM = 24
WALK = np.diff(np.eye(5), 2, axis=0)
# Coefficients of all blocks are in mixed order; the last block has two copies.
PLACES = np.random.default_rng(0).permutation(DIM)
BLOCKS = (
    Block(Scaled(sparse.csr_array(WALK.T @ WALK), 3), PLACES[None, :5], np.array([-0.5])),
    Block(
        Correlated(("one", "two"), 2, np.array([[1.0, 0.4], [0.4, 2.0]])),
        PLACES[None, 5:9],
        np.array([0.3, -1.0, 0.6]),
    ),
    Block(Exponential(np.array([1.0, 0.5, 2.0])), PLACES[9:17].reshape(2, 4), np.array([0.2, 0.7])),
)


def prior():
    """Blocks, and coefficients in none of variance 2 and mean 0.3."""
    alone = np.isin(np.arange(DIM), PLACES[17:])
    independent = FactorialGaussian.from_moments(np.where(alone, 0.3, 0.0), np.where(alone, 2.0, 1.0))
    return StructuredPrior(independent, BLOCKS)


def of_block(block, values):
    """Matrix of all coefficients with these entries of a block."""
    found = np.zeros((DIM, DIM))
    for columns in block.columns:
        found[columns[block.structure.left], columns[block.structure.right]] = values
        found[columns[block.structure.right], columns[block.structure.left]] = values
    return found


def dense(prior):
    alone = np.where(np.isin(np.arange(DIM), PLACES[17:]), prior.independent.precision, 0.0)
    return np.diag(alone) + sum(of_block(b, b.structure.entries(b.psi)) for b in prior.blocks)


def test_the_precision_matrix_has_the_blocks_where_their_columns_are():
    P, found = prior(), np.zeros((DIM, DIM))
    left, right, values = P.couplings
    found[left, right] = found[right, left] = values
    np.testing.assert_allclose(found + np.diag(P.precision), dense(P), rtol=1e-14)
    upper = upper_of(P).toarray()
    np.testing.assert_array_equal(upper, np.triu(upper))
    np.testing.assert_allclose(upper, np.triu(dense(P)), rtol=1e-14)
    x = np.random.default_rng(1).normal(size=DIM)
    np.testing.assert_allclose(P.times(x), dense(P) @ x, rtol=1e-12)


def test_its_density_is_normalised():
    P = prior()
    assert P.log_det == pytest.approx(np.linalg.slogdet(dense(P))[1], abs=1e-9)
    covariance = np.linalg.inv(dense(P))
    at_origin = multivariate_normal.logpdf(np.zeros(DIM), P.mean, 0.5 * (covariance + covariance.T))
    assert P.log_scale == pytest.approx(at_origin, abs=1e-6)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_products_with_the_derivatives_of_a_block(number):
    P, block, x = prior(), BLOCKS[number], np.random.default_rng(2).normal(size=DIM)
    each = [of_block(block, values) for values in block.structure.derivatives(block.psi)]
    slopes = P.slopes(number, x)
    assert slopes.shape == (len(block.columns), len(each), DIM)
    np.testing.assert_allclose(slopes.sum(axis=0), [one @ x for one in each], rtol=1e-12, atol=1e-14)
    inverse = np.linalg.inv(dense(P))
    expected = [[x @ a @ inverse @ b @ x for b in each] for a in each]
    np.testing.assert_allclose(P.information(number, x, slopes), expected, rtol=1e-5)
    np.testing.assert_allclose(P.slopes_of_log_det(number), [np.trace(inverse @ one) for one in each], rtol=1e-8)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_traces_with_a_covariance(number):
    P, block = prior(), BLOCKS[number]
    half = np.random.default_rng(3).normal(size=(DIM, DIM))
    covariance = half @ half.T
    shared = covariance[P.couplings.left, P.couplings.right]
    expected = [np.trace(of_block(block, one) @ covariance) for one in block.structure.derivatives(block.psi)]
    np.testing.assert_allclose(P.traces(number, np.diag(covariance), shared), expected, rtol=1e-10)


def test_at_other_hyperparameters():
    P = prior()
    psi = [block.psi + 0.5 for block in P.blocks]
    moved = P.at(P.independent, psi)
    assert [block.psi.tolist() for block in moved.blocks] == [one.tolist() for one in psi]
    assert moved.log_det == pytest.approx(np.linalg.slogdet(dense(moved))[1], abs=1e-6)
    assert P.log_det == pytest.approx(np.linalg.slogdet(dense(P))[1], abs=1e-9)


def test_directions_without_a_penalty_keep_the_ridge():
    P = prior()
    columns = BLOCKS[0].columns[0]
    np.testing.assert_allclose(dense(P)[np.ix_(columns, columns)] @ np.ones(5), RIDGE, rtol=1e-6)
