"""A Gaussian in the space of the rows is the one that its covariance matrix says, without making that matrix."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from scipy import sparse

from cavity.gaussians.wide import RowsGaussian, WideRows


def wide_rows(kind, seed=0, n=7, d=40):
    """Rows in several forms, in other units, some of them left out; and what they are as a dense matrix."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + 3, d)) + 1.0
    X[rng.random(X.shape) < 0.6] = 0.0
    X[:, :5] = rng.normal(size=(n + 3, 5)) + 3.0
    center, unit = np.zeros(d), rng.uniform(0.5, 2.0, d)
    center[:5] = X[:, :5].mean(axis=0)
    if kind == "float32":
        X = X.astype(np.float32)
    order = rng.permutation(n + 3)[:n]
    Z = np.column_stack([(X.astype(np.float64)[order] - center) / unit, np.ones(n)])
    given = {"csr": sparse.csr_array, "fortran": np.asfortranarray}.get(kind, np.asarray)(X)
    return WideRows(given, order, center, unit, True), Z


KINDS = ["dense", "fortran", "float32", "csr"]


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_matrix(kind):
    rows, Z = wide_rows(kind)
    rng = np.random.default_rng(1)
    n, d = Z.shape
    assert rows.shape == (n, d)
    v, B, A, Y = rng.uniform(0.1, 2.0, d), rng.normal(size=(d, 3)), rng.normal(size=(n, 4)), rng.normal(size=(5, d))
    chosen = np.sort(rng.choice(d, 17, replace=False))
    exact = {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(rows.gram(v), (Z * v) @ Z.T, **exact)
    np.testing.assert_allclose(rows.gram(v, chosen), (Z[:, chosen] * v[chosen]) @ Z[:, chosen].T, **exact)
    np.testing.assert_allclose(rows.times(B), Z @ B, **exact)
    np.testing.assert_allclose(rows.transposed_times(A), Z.T @ A, **exact)
    np.testing.assert_allclose(rows.squares(A), np.sum((Z.T @ A) ** 2, axis=1), **exact)
    for other in (Y, sparse.csr_array(Y)):
        np.testing.assert_allclose(rows.products_with(other, v), (Y * v) @ Z.T, **exact)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_keep_the_rows(kind):
    rows, Z = wide_rows(kind)
    for again in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        np.testing.assert_allclose(again.times(np.eye(Z.shape[1])), Z, rtol=1e-12, atol=1e-12)
        assert again.X.shape[0] == len(Z)


def example(kind="dense", copies=1, negative=False, seed=2):
    """A posterior from site precisions, and its mean and covariance by brute force."""
    rows, Z = wide_rows(kind)
    rng = np.random.default_rng(seed)
    n, d = Z.shape
    v, mu, a = rng.uniform(0.5, 2.0, d * copies), rng.normal(size=d * copies), rng.normal(size=n * copies)
    F = np.kron(np.eye(copies), Z)
    K = (F * v) @ F.T
    G = rng.normal(size=(n * copies, n * copies)) / 5.0
    B = np.eye(n * copies) + G.T @ K @ G
    inverse = np.linalg.inv(np.linalg.cholesky(B))
    narrowed = G @ inverse.T
    V = np.diag(v)
    covariance = V - V @ F.T @ narrowed @ narrowed.T @ F @ V
    widened = np.zeros((n * copies, 0))
    if negative:
        widened = 0.3 * rng.normal(size=(n * copies, 2))
        covariance += V @ F.T @ widened @ widened.T @ F @ V
    found = RowsGaussian(rows, mu, v, a, narrowed, inverse, widened, 0.0)
    return found, mu + v * (F.T @ a), covariance, rng


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("negative", [False, True])
def test_moments_are_those_of_the_covariance(kind, copies, negative):
    found, mean, covariance, rng = example(kind, copies, negative)
    d = found.rows.shape[1]
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.variance, np.diag(covariance), rtol=1e-9)
    w = rng.normal(size=found.dim)
    np.testing.assert_allclose(found.covariance_with(w), covariance @ w, rtol=1e-9, atol=1e-9)
    Y = rng.normal(size=(6, d))
    for rows in (Y, sparse.csr_array(Y)):
        means, variances = found.predictors(rows)
        for i in range(copies):
            np.testing.assert_allclose(means[:, i], Y @ mean[i * d : (i + 1) * d], rtol=1e-9, atol=1e-9)
            for j in range(copies):
                block = covariance[i * d : (i + 1) * d, j * d : (j + 1) * d]
                expected = np.einsum("nd,de,ne->n", Y, block, Y)
                np.testing.assert_allclose(variances[:, i, j], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("negative", [False, True])
def test_draws_are_a_square_root_of_the_covariance(copies, negative):
    found, mean, covariance, _ = example("dense", copies, negative)
    root = (found.draws(np.eye(found.dim)) - mean).T
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-8, atol=1e-9)
