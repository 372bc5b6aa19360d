"""The basis of the curvature: eigenvectors of the Hessian at the minimum; a posterior near the full covariance's."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import cancer
from scipy.optimize import minimize
from sklearn.datasets import load_iris

from cavity import EPClassifier, datasets, losses
from cavity.estimators._base import ROWS_A_COLUMN
from cavity.estimators._frame import principal_basis
from cavity.estimators._prior import build_prior


def correlated(rows, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d)) @ rng.standard_normal((d, d))
    return X, (X[:, 0] + rng.logistic(size=rows) > 0.0).astype(int)


def model(**choices):
    return EPClassifier(random_state=0, **choices)


def largest_correlation(matrix):
    scale = np.sqrt(np.diag(matrix))
    return np.max(np.abs(matrix / np.outer(scale, scale) - np.eye(len(matrix))))


def test_the_hessian_at_the_minimum_is_diagonal_in_it():
    X, y = correlated(200)
    variances = np.array([0.5, 1.0, 4.0])
    fitted = model(basis="curvature", prior_variance=variances).fit(X, y)
    rows, signs = np.column_stack([X, np.ones(len(X))]), 2.0 * y - 1.0
    precision, loss = 1.0 / np.append(variances, 100.0), losses.Logistic()
    cost = lambda t: np.sum(loss.value(signs, rows @ t)) + 0.5 * precision @ t**2  # noqa: E731
    curvatures = loss.derivatives(signs, rows @ minimize(cost, np.zeros(4)).x)[2]
    turn = np.diag(1.0 / np.sqrt(precision)) @ fitted._frame.basis
    turned = turn.T @ (rows.T * curvatures) @ rows @ turn
    assert largest_correlation(turned) < 0.01  # the minimum is found to a tenth of a standard deviation
    assert largest_correlation((rows.T * curvatures) @ rows) > 0.5
    assert np.all(np.diff(np.diag(turned)) < 0.0)


def test_auto_takes_it_where_rows_are_many():
    few, many = (correlated(ROWS_A_COLUMN * 4 + extra) for extra in (-1, 0))
    principal = principal_basis(few[0], build_prior(3, 0.0, 25.0, 100.0), intercept=True)
    np.testing.assert_array_equal(model().fit(*few)._frame.basis, principal)
    asked, auto = (model(basis=b).fit(*many) for b in ("curvature", "auto"))
    np.testing.assert_array_equal(auto._frame.basis, asked._frame.basis)
    np.testing.assert_array_equal(auto.coef_, asked.coef_)
    from_prior = model(init="prior").fit(*many)
    np.testing.assert_array_equal(
        from_prior._frame.basis, principal_basis(many[0], build_prior(3, 0.0, 25.0, 100.0), intercept=True)
    )


@pytest.mark.parametrize("name", ["haberman", "breast_cancer"])
def test_the_posterior_is_near_that_of_a_full_covariance(name):
    design = datasets.paper(name, "std")
    X, y = design.X[:, :-1], design.y
    full = model(covariance="full").fit(X, y)
    fitted = model().fit(X, y)
    assert np.sqrt(np.mean(((fitted.coef_ - full.coef_) / full.coef_std_) ** 2)) < 0.1
    assert 0.9 < np.median(fitted.coef_std_ / full.coef_std_) < 1.1
    assert fitted.n_iter_ < model(basis="pca").fit(X, y).n_iter_ or fitted.n_iter_ <= 2


def test_classes_share_one_basis():
    X, y = load_iris(return_X_y=True)
    fitted = model(basis="curvature").fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert len(fitted.posterior_) == 3
    assert fitted._frame.basis.shape == (5, 5)


def test_a_warm_start_stays_in_the_basis_of_its_sites():
    X, y = cancer()
    fitted = model(warm_start=True).fit(X, y)
    basis, mean = fitted._frame.basis, fitted.coef_
    again = fitted.fit(X, y)
    assert again.n_iter_ <= 2
    np.testing.assert_array_equal(again._frame.basis, basis)
    np.testing.assert_allclose(again.coef_, mean, atol=0.05 * np.max(fitted.coef_std_))


def test_a_stream_has_no_minimum_to_ask():
    X, y = correlated(50)
    with pytest.raises(ValueError, match="needs all data at once"):
        model(basis="curvature").partial_fit(X, y, classes=[0, 1])


def test_a_product_can_be_insisted_on_in_a_stream():
    X, y = correlated(50)
    insisted = model(covariance="diagonal", basis=None).partial_fit(X, y, classes=[0, 1])
    single = model(covariance="diagonal", basis=None, loops=1, shuffle=False).fit(X, y)
    np.testing.assert_allclose(insisted.coef_, single.coef_, rtol=1e-10)
    np.testing.assert_allclose(insisted.covariance_[0], np.diag(np.diag(insisted.covariance_[0])))
    stepped = model(basis="auto").partial_fit(X, y, classes=[0, 1])
    assert np.any(np.abs(stepped.covariance_[0] - np.diag(np.diag(stepped.covariance_[0]))) > 1e-3)
