"""Sandwich errors: those of least squares in closed form, and of repeated rows and clusters."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cavity.ep import blocks
from cavity.ep.driver import Options
from cavity.ep.posteriors import DensePosterior, JointPosterior
from cavity.ep.robust import influences, scatter, scatter_of_clusters
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Logistic, Squared
from cavity.losses.joint import Softmax

RNG = np.random.default_rng(1)
X = RNG.standard_normal((80, 3))
Y = X @ [1.0, 0.0, -1.0] + RNG.standard_normal(80) * (0.3 + np.abs(X[:, 0]))
A = np.column_stack([X, np.ones(80)])


def fitted(loss, X, y, weights=None):
    count = getattr(loss, "predictors", 1)
    prior = FactorialGaussian.from_moments(np.zeros(4 * count), np.full(4 * count, 1e6 if count == 1 else 4.0))
    rows = Rows.arrange(X, y[None], weights, intercept=True)
    posterior = (DensePosterior if count == 1 else JointPosterior)(rows, prior)
    return rows, blocks.run(loss, rows, posterior, Options(100, 1e-6))


def test_least_squares_have_the_jackknife_of_white():
    rows, found = fitted(Squared(1.0), X, Y)
    s = influences(rows.weights, found.row_sites)
    bread = found.posterior.covariance
    ours = bread @ scatter(A[rows.order], s, rows.weights) @ bread
    inverse = np.linalg.inv(A.T @ A)
    residuals = (Y - A @ inverse @ A.T @ Y) / (1.0 - np.einsum("ij,jk,ik->i", A, inverse, A))
    assert_allclose(ours, inverse @ (A.T * residuals**2) @ A @ inverse, rtol=1e-4)


@pytest.mark.parametrize("count", [7, 40])
@pytest.mark.parametrize("loss", [Squared(1.0), Softmax(3)], ids=repr)
def test_clusters_are_left_out_as_a_whole(loss, count):
    y = Y if isinstance(loss, Squared) else (np.arange(80) % 3).astype(float)
    rows, found = fitted(loss, X, y)
    clusters = (np.arange(80) * 3) % count
    B, S = A[rows.order], found.posterior.covariance
    ours = S @ scatter_of_clusters(B, found.row_sites, np.ones(80), clusters[rows.order], S) @ S
    wanted = np.zeros_like(ours)
    for c in range(count):
        kept = clusters != c
        if isinstance(loss, Squared):
            move = found.posterior.mean - fitted(loss, X[kept], y[kept])[1].posterior.mean
        else:  # with the sites of the other rows as they are
            precision, shift = np.linalg.inv(S), np.linalg.solve(S, found.posterior.mean)
            for i in np.flatnonzero(clusters[rows.order] == c):
                x = np.kron(np.eye(2), B[i])
                precision = precision - x.T @ found.row_sites.precision[i] @ x
                shift = shift - x.T @ found.row_sites.shift[i]
            move = found.posterior.mean - np.linalg.solve(precision, shift)
        wanted += np.outer(move, move) * (1.0 - 1.0 / count)
    assert_allclose(ours, wanted, rtol=1e-5, atol=1e-7 * np.max(wanted))


def test_equal_rows_of_several_clusters_share_a_site():
    twice, y = np.repeat(X, 2, axis=0), np.repeat(Y, 2)
    rows, found = fitted(Squared(1.0), twice, y)
    assert rows.shape[0] == 80
    clusters, place = np.arange(160) % 8, rows.place
    S = found.posterior.covariance
    B = np.column_stack([twice, np.ones(160)])
    ours = scatter_of_clusters(B, found.row_sites.part(place), np.full(160, 0.5), clusters, S)
    apart, alone = np.arange(160), np.empty((8, 4))
    for c in range(8):
        kept = apart % 8 != c
        alone[c] = found.posterior.mean - fitted(Squared(1.0), twice[kept], y[kept])[1].posterior.mean
    assert_allclose(S @ ours @ S, alone.T @ alone * 7.0 / 8.0, rtol=1e-5)


def test_a_row_moves_the_mean_as_a_fit_without_it_says():
    signs = np.where(Y > 0.0, 1.0, -1.0)
    prior = FactorialGaussian.from_moments(np.zeros(4), np.full(4, 1.0))

    def fit(X, y):
        rows = Rows.arrange(X, y[None], None, intercept=True)
        return rows, blocks.run(Logistic(), rows, DensePosterior(rows, prior), Options(100, 1e-6))

    rows, found = fit(X, signs)
    s = influences(rows.weights, found.row_sites)
    for i in range(0, 80, 16):
        _, other = fit(np.delete(X, rows.order[i], axis=0), np.delete(signs, rows.order[i]))
        move = s[i] * found.posterior.covariance @ A[rows.order[i]]
        assert_allclose(move, found.posterior.mean - other.posterior.mean, atol=0.1 * np.min(found.posterior.std))


@pytest.mark.parametrize("loss", [Squared(1.0), Logistic(), Softmax(3)], ids=repr)
def test_two_equal_rows_count_as_one_of_weight_two(loss):
    y = {"reals": Y, "signs": np.where(Y > 0.0, 1.0, -1.0), "classes": (np.arange(80) % 3).astype(float)}[loss.targets]
    twice = []
    for data in ((np.repeat(X, 2, axis=0), np.repeat(y, 2), None), (X, y, np.full(80, 2.0))):
        rows, found = fitted(loss, *data)
        A = np.column_stack([data[0], np.ones(len(data[0]))])[rows.order]
        twice.append(scatter(A, influences(rows.weights, found.row_sites), rows.weights))
    assert_allclose(twice[0], twice[1], rtol=1e-9)
