"""Sandwich errors: those of least squares in closed form, and of repeated rows and clusters."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cavity.ep import blocks
from cavity.ep.driver import Options
from cavity.ep.posteriors import DensePosterior, JointPosterior
from cavity.ep.robust import influences, scatter
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


def test_clusters_are_summed_up_first():
    rows, found = fitted(Squared(1.0), X, Y)
    s, clusters = influences(rows.weights, found.row_sites), np.arange(80) % 7
    sums = np.zeros((7, 4))
    np.add.at(sums, clusters[rows.order], s[:, None] * A[rows.order])
    ours = scatter(A[rows.order], s, rows.weights, clusters[rows.order])
    assert_allclose(ours, sums.T @ sums * 7.0 / 6.0, rtol=1e-10)


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
