"""Leaving rows out: exact for the squared loss, near refits for others, and right for repeated rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cavity.ep import blocks
from cavity.ep.driver import Options
from cavity.ep.leave_one_out import leave_one_out
from cavity.ep.posteriors import DensePosterior, JointPosterior
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Absolute, Logistic, Poisson, Squared
from cavity.losses.joint import Softmax
from cavity.moments import joint_log_masses, tilts

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
BETTER = X @ [1.0, -0.5, 0.0]
TARGETS = {
    "signs": np.where(BETTER + RNG.logistic(size=60) > 0.0, 1.0, -1.0),
    "reals": BETTER + RNG.standard_normal(60),
    "counts": RNG.poisson(np.exp(0.5 * BETTER)).astype(float),
    "classes": np.argmax(X + RNG.gumbel(size=X.shape), axis=1).astype(float),
}


def fitted(loss, X, y, weights=None, variance=4.0):
    count = getattr(loss, "predictors", 1)
    prior = FactorialGaussian.from_moments(np.zeros(4 * count), np.full(4 * count, variance))
    rows = Rows.arrange(X, y[None], weights, intercept=True)
    posterior = (DensePosterior if count == 1 else JointPosterior)(rows, prior)
    found = blocks.run(loss, rows, posterior, Options(100, 1e-5))
    return rows, found


@pytest.mark.parametrize("loss", [Squared(0.7), Logistic(), Poisson(), Absolute(0.8)], ids=repr)
def test_rows_are_predicted_as_by_fits_without_them(loss):
    y = TARGETS[loss.targets]
    rows, found = fitted(loss, X, y)
    left = leave_one_out(loss, rows.targets[0], rows.weights, found.row_sites)
    exact = isinstance(loss, Squared)
    for i in range(0, 60, 6):
        _, other = fitted(loss, np.delete(X, rows.order[i], axis=0), np.delete(y, rows.order[i]))
        x = np.append(X[rows.order[i]], 1.0)
        mean, std = x @ other.posterior.mean, np.sqrt(x @ other.posterior.covariance @ x)
        assert left.mean[i] == pytest.approx(mean, abs=1e-9 if exact else 0.1 * std)
        assert left.variance[i] == pytest.approx(std**2, rel=1e-9 if exact else 0.2)
        density = [
            tilts(loss, rows.targets[0][i : i + 1], np.atleast_1d(m), np.atleast_1d(v)).log_mass[0]
            for m, v in ((left.mean[i], left.variance[i]), (mean, std**2))
        ]
        assert density[0] == pytest.approx(density[1], abs=1e-9 if exact else 0.03)


def test_least_squares_have_the_residuals_of_press():
    y = TARGETS["reals"]
    rows, found = fitted(Squared(1.0), X, y, variance=1e8)
    left = leave_one_out(Squared(1.0), rows.targets[0], rows.weights, found.row_sites)
    A = np.column_stack([X, np.ones(60)])
    hat = A @ np.linalg.solve(A.T @ A, A.T)
    press = (y - hat @ y) / (1.0 - np.diag(hat))
    assert_allclose(rows.targets[0] - left.mean, press[rows.order], rtol=1e-5)


def test_one_of_several_equal_rows_leaves_the_others():
    grid = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    chosen = RNG.integers(0, 4, size=40)
    y = np.where(RNG.random(40) < 0.7, 1.0, -1.0)
    rows, found = fitted(Logistic(), grid[chosen], y)
    assert rows.shape[0] < 10
    left = leave_one_out(Logistic(), rows.targets[0], rows.weights, found.row_sites)
    for i, row in enumerate(rows.order):
        _, other = fitted(Logistic(), np.delete(grid[chosen], row, axis=0), np.delete(y, row))
        x = np.append(grid[chosen[row]], 1.0)
        mean, std = x @ other.posterior.mean, np.sqrt(x @ other.posterior.covariance @ x)
        assert left.mean[i] == pytest.approx(mean, abs=0.15 * std)
        assert np.sqrt(left.variance[i]) == pytest.approx(std, rel=0.1)


def test_classes_are_predicted_as_by_fits_without_a_row():
    loss, y = Softmax(3), TARGETS["classes"]
    rows, found = fitted(loss, X, y)
    left = leave_one_out(loss, rows.targets[0], rows.weights, found.row_sites)
    for i in range(0, 60, 12):
        _, other = fitted(loss, np.delete(X, rows.order[i], axis=0), np.delete(y, rows.order[i]))
        x = np.kron(np.eye(2), np.append(X[rows.order[i]], 1.0))
        mean, variance = x @ other.posterior.mean, x @ other.posterior.covariance @ x.T
        y_i = rows.targets[0][i : i + 1]
        ours = joint_log_masses(loss, y_i, left.mean[i : i + 1], left.variance[i : i + 1])
        assert ours[0] == pytest.approx(joint_log_masses(loss, y_i, mean[None], variance[None])[0], abs=0.03)


def test_a_row_that_stands_alone_is_told():
    """A column that a single row has: without it nothing is known of its coefficient."""
    alone = X.copy()
    alone[:, 0] = 0.0
    alone[7, 0] = 5.0
    y = TARGETS["signs"].copy()
    y[7] = -np.sign(alone[7] @ [0.0, -0.5, 0.0])
    rows, found = fitted(Logistic(), alone, y, variance=25.0)
    left = leave_one_out(Logistic(), rows.targets[0], rows.weights, found.row_sites)
    place = np.flatnonzero(rows.order == 7)[0]
    assert np.argmax(left.moved) == place
