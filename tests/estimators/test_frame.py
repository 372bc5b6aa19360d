"""A basis turns the problem and nothing else: EP works in turned coordinates, answers come back in the user's."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import PARITY, assert_same_model, cancer, classifier, regressor, two_classes, unsettled
from scipy import sparse

import cavity
from cavity import LinearFactor
from cavity.estimators._frame import Frame, completed_basis, principal_basis
from cavity.estimators._prior import build_prior
from cavity.losses import Logistic


def turn(d=4, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def test_a_fit_in_a_basis_is_one_on_turned_and_scaled_columns():
    X, y = two_classes()
    V, variances = turn(), np.array([0.5, 1.0, 2.0, 4.0])
    model = classifier(basis=V, prior_variance=variances, prior_mean=0.3, shuffle=False).fit(X, y)
    S = np.diag(np.sqrt([*variances, 100.0]))
    basis = np.eye(5)
    basis[:4, :4] = V
    rows = np.column_stack([X, np.ones(len(X))]) @ S @ basis
    prior = cavity.FactorialGaussian.from_moments(basis.T @ np.linalg.solve(S, [0.3] * 4 + [0.0]), 1.0)
    result = cavity.fit(LinearFactor.batches(Logistic(), rows, 2.0 * y - 1.0), prior, "la", loops=50)
    np.testing.assert_allclose(model.posterior_[0].mean, result.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.posterior_[0].variance, result.variance, rtol=1e-9)
    covariance = S @ basis @ np.diag(result.variance) @ basis.T @ S
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), S @ basis @ result.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.append(model.coef_std_, model.intercept_std_) ** 2, np.diag(covariance), rtol=1e-9)
    mean, std = model.decision_function(X, return_std=True)
    np.testing.assert_allclose(mean, X @ model.coef_[0] + model.intercept_[0], rtol=1e-9, atol=1e-9)
    full = np.column_stack([X, np.ones(len(X))])
    np.testing.assert_allclose(std**2, np.sum(full @ covariance * full, axis=1), rtol=1e-9)
    coef, intercept = model.sample_coef(20_000, 0, return_intercept=True)
    empirical = np.cov(np.column_stack([coef, intercept]), rowvar=False)
    np.testing.assert_allclose(empirical, covariance, atol=0.04 * np.max(np.diag(covariance)))


def test_the_identity_is_no_basis():
    X, y = two_classes()
    plain, same = classifier().fit(X, y), classifier(basis=np.eye(4)).fit(X, y)
    np.testing.assert_allclose(same.coef_, plain.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(same.coef_std_, plain.coef_std_, rtol=1e-9)
    assert same.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-9)


def test_principal_directions_make_the_scaled_rows_orthogonal():
    X, _ = cancer()
    prior = build_prior(30, 0.0, np.linspace(0.1, 3.0, 30), 100.0)
    for rows in (X, sparse.csr_array(X), X.astype(np.float32)):
        V = principal_basis(rows, prior, intercept=True)
        np.testing.assert_allclose(V.T @ V, np.eye(31), atol=1e-10)
        turned = Frame(30, True, prior, V).rows(rows)
        gram = turned.T @ turned
        assert np.max(np.abs(gram - np.diag(np.diag(gram)))) < 1e-5 * np.max(gram)
        assert np.all(np.diff(np.diag(gram)) < 1e-5 * np.max(gram))


def test_data_that_span_nothing_have_a_basis_all_the_same():
    prior = build_prior(3, 0.0, 1.0, None)
    np.testing.assert_array_equal(principal_basis(np.zeros((5, 3)), prior, intercept=False), np.eye(3))
    X = np.ones((5, 3))
    V = principal_basis(X, prior, intercept=False)
    np.testing.assert_allclose(V.T @ V, np.eye(3), atol=1e-12)


def test_auto_takes_principal_directions_for_dense_data_only():
    X, y = two_classes()
    auto, pca, none = (classifier(basis=b).fit(X, y) for b in ("auto", "pca", None))
    assert_same_model(auto, pca)
    of_csr = [classifier(basis=b).fit(sparse.csr_array(X), y) for b in ("auto", None)]
    assert_same_model(*of_csr)
    assert_same_model(of_csr[0], none, PARITY)
    np.testing.assert_allclose(
        classifier(basis="pca").fit(sparse.csr_array(X), y).coef_, pca.coef_, rtol=1e-8, atol=1e-10
    )
    wide = np.random.default_rng(0).normal(size=(20, 501))
    with unsettled():
        model = classifier(basis="auto", loops=1).fit(wide, np.arange(20) % 2)
    assert model._frame.basis is None


def test_correlated_columns_settle_in_principal_directions_where_they_do_not_without():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) + 0.05 * rng.normal(size=(300, 5))
    y = (X[:, 0] + 0.5 * rng.normal(size=300) > 0.0).astype(int)
    model = classifier(basis="pca", prior_variance=25.0).fit(X, y)
    with unsettled():
        plain = classifier(prior_variance=25.0, loops=20).fit(X, y)
    assert model.n_iter_ < plain.n_iter_
    assert np.all(model.coef_std_ > plain.coef_std_)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_predictions_of_prior_and_data_do_not_depend_on_a_turn_of_both(make):
    """With an isotropic prior, turned columns in the turned basis are the same problem."""
    X, y = two_classes()
    V = turn()
    options = {"fit_intercept": False} | ({} if make is classifier else {"scale": 1.0})
    a, b = make(basis=None, **options).fit(X, y), make(basis=V.T, **options).fit(X @ V, y)
    np.testing.assert_allclose(b.coef_, a.coef_ @ V, rtol=1e-8, atol=1e-10)


def test_fewer_columns_than_features_are_completed():
    V = turn()
    basis = completed_basis(V[:, :2], 4, intercept=True)
    np.testing.assert_allclose(basis.T @ basis, np.eye(5), atol=1e-12)
    np.testing.assert_array_equal(basis[:4, :2], V[:, :2])
    np.testing.assert_array_equal(basis[4], [0.0, 0.0, 0.0, 0.0, 1.0])
    X, y = two_classes()
    np.testing.assert_allclose(classifier(basis=V[:, :2]).fit(X, y).decision_function(X).shape, 57)


@pytest.mark.parametrize(
    ("basis", "match"),
    [
        (np.ones((4, 4)), "orthonormal"),
        (np.eye(3), "matrix with 4 rows"),
        (np.ones((4, 5)), "matrix with 4 rows"),
        (np.zeros((4, 0)), "matrix with 4 rows"),
        (np.full((4, 4), np.nan), "orthonormal"),
        ("fourier", "basis must be"),
    ],
)
def test_what_is_no_basis_is_refused(basis, match):
    X, y = two_classes()
    with pytest.raises(ValueError, match=match):
        classifier(basis=basis).fit(X, y)
