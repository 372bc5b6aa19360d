"""A Gaussian of changed coefficients is the one that is transformed explicitly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from cavity.ep.posteriors import DenseNatural, SparseNatural
from cavity.gaussians.affine import AffineGaussian, Change
from cavity.gaussians.factorial import FactorialGaussian

KINDS = ["dense", "sparse", "factorial"]
# Three numbers, and two columns of categories whose last level stands for unknown ones.
NUMBERS, LEVELS = 3, (np.arange(3, 7), np.arange(7, 10))
D = 10
CENTRES = {"centred": np.array([0.7, -2.0, 3.0]), "some centred": np.array([0.0, 5.0, 0.0]), "plain": np.zeros(3)}


def inner_of(kind, dim):
    """A Gaussian of this kind."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, dim)) * (rng.random((9, dim)) < 0.5)
    prior, shift = (
        FactorialGaussian.from_moments(rng.normal(size=dim), rng.uniform(0.5, 2.0, dim)),
        rng.normal(size=dim),
    )
    if kind == "factorial":
        return prior
    if kind == "dense":
        return DenseNatural(rows.T @ rows, shift, 0.3).posterior(prior)
    upper = sparse.csc_array(sparse.triu(sparse.csc_array(rows.T @ rows)))
    return SparseNatural(upper, shift, np.array([dim - 1]), 0.3).posterior(prior)


@pytest.fixture(params=[True, False], ids=["intercept", "no intercept"])
def intercept(request):
    return request.param


@pytest.fixture(params=[(), LEVELS], ids=["numbers", "levels"])
def levels(request):
    return request.param


@pytest.fixture(params=CENTRES)
def change(request, intercept, levels):
    center = np.append(CENTRES[request.param] * intercept, np.zeros(D - NUMBERS))
    unit = np.append([1e-3, 1.0, 300.0], np.ones(D - NUMBERS))
    return Change(center, unit, intercept, levels)


def matrix_of(change):
    """What the change does, written out."""
    found = np.diag(1.0 / np.append(change.unit, [1.0] * change.intercept))
    if change.intercept:
        found[D, :D] = -change.center / change.unit
        for columns in change.levels:
            known = columns[:-1]
            found[np.ix_(columns, known)] -= 1.0 / known.size
            found[D, known] += 1.0 / known.size
    return found


def test_the_change_is_a_matrix(change):
    matrix, rng = matrix_of(change), np.random.default_rng(1)
    values = rng.normal(size=(len(matrix), 4))
    np.testing.assert_allclose(change.coefficients(values), matrix @ values, rtol=1e-10, atol=1e-10)
    assert change.is_identity == np.array_equal(matrix, np.eye(len(matrix)))
    identity = Change(np.zeros(D), np.ones(D), change.intercept)
    assert identity.is_identity
    np.testing.assert_array_equal(identity.coefficients(values), values)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_weights_of_coefficients_change_the_other_way(change, form):
    """Of rows with one level and a constant, and of any other combination."""
    matrix, rng = matrix_of(change), np.random.default_rng(2)
    rows = np.zeros((6, len(matrix)))
    rows[:, :NUMBERS] = rng.normal(size=(6, NUMBERS)) * change.unit[:NUMBERS]
    for columns in LEVELS:
        rows[np.arange(6), rng.choice(columns, 6)] = 1.0
    rows[:, D:] = 1.0
    others = rng.normal(size=rows.shape) * (rng.random(rows.shape) < 0.6)
    for some in (rows, others, np.vstack([rows, others])):
        found = change.rows(form(some))
        found = found.toarray() if sparse.issparse(found) else found
        np.testing.assert_allclose(found, some @ matrix, rtol=1e-9, atol=1e-9)


def test_rows_of_known_levels_have_the_predictors_of_before(change):
    """What a column of categories shares goes to the intercept, so that it is counted once."""
    change = replace(change, intercept=True)
    rng = np.random.default_rng(3)
    theta, rows = rng.normal(size=D + 1), np.zeros((8, D + 1))
    rows[:, :NUMBERS] = rng.normal(size=(8, NUMBERS))
    for columns in LEVELS:
        rows[np.arange(8), rng.choice(columns, 8)] = 1.0
    rows[:, D] = 1.0
    before = rows.copy()
    before[:, :D] = (rows[:, :D] - change.center) / change.unit
    np.testing.assert_allclose(rows @ change.coefficients(theta[:, None])[:, 0], before @ theta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_map(kind, change):
    matrix = matrix_of(change)
    inner = inner_of(kind, len(matrix))
    found, covariance = AffineGaussian(inner, change), matrix @ np.asarray(inner.covariance) @ matrix.T
    assert found.dim == len(matrix)
    assert found.log_mass == inner.log_mass
    np.testing.assert_allclose(found.mean, matrix @ inner.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.variance, np.diag(covariance), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-12 * np.max(np.diag(covariance)))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_the_inner_gaussian_changed(kind, change):
    matrix = matrix_of(change)
    inner, noise = inner_of(kind, len(matrix)), np.random.default_rng(4).normal(size=(7, len(matrix)))
    found = AffineGaussian(inner, change).draws(noise)
    np.testing.assert_allclose(found, inner.draws(noise) @ matrix.T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("kind", KINDS)
def test_variances_of_predictors_are_those_of_the_covariance(kind, form, change):
    matrix, rng = matrix_of(change), np.random.default_rng(5)
    inner = inner_of(kind, len(matrix))
    rows = rng.normal(size=(6, len(matrix))) * (rng.random((6, len(matrix))) < 0.6)
    rows[:, :D] *= change.unit
    covariance = matrix @ np.asarray(inner.covariance) @ matrix.T
    wanted = np.einsum("ij,jk,ik->i", rows, covariance, rows)
    np.testing.assert_allclose(AffineGaussian(inner, change).predictor_variance(form(rows)), wanted, rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_stays_as_it_is(kind, change):
    dim = len(matrix_of(change))
    inner, rows = inner_of(kind, dim), np.ones((3, dim))
    found, before = AffineGaussian(inner, change), np.array(inner.mean)
    for _ in range(2):
        found.predictor_variance(rows)
        found.draws(np.ones((2, dim)))
        assert np.array_equal(rows, np.ones((3, dim)))
        assert np.array_equal(inner.mean, before)
