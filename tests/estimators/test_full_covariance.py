"""With a full covariance the estimators give back what `fit_full` finds, in every form they have."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    check_classifiers_classes,
    check_dict_unchanged,
    check_estimators_pickle,
    check_fit2d_1sample,
    check_methods_sample_order_invariance,
    check_regressors_train,
)

from cavity import FactorialGaussian, losses
from cavity.correlated import CorrelatedGaussian
from cavity.estimators import EPClassifier, EPRegressor, load, save
from cavity.factors import LinearBatches
from cavity.full import fit_full
from cavity.result import Status

SAME = 1e-9
SETTLED = {"loops": 100, "tol": 1e-6}


def signed_data(n=120, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d))
    return X, (X @ rng.standard_normal(d) + rng.standard_normal(n) > 0.0).astype(int)


@pytest.fixture(scope="module")
def fitted():
    X, y = signed_data()
    return EPClassifier(covariance="full", prior_variance=4.0, **SETTLED).fit(X, y), X, y


def test_equals_fit_full_on_rows_with_a_constant_column(fitted):
    model, X, y = fitted
    rows = np.column_stack([X, np.ones(len(X))])
    prior = FactorialGaussian.from_moments(np.zeros(4), [4.0, 4.0, 4.0, 100.0])
    result = fit_full(LinearBatches(losses.Logistic(), rows, 2.0 * y - 1.0), prior, **SETTLED)
    assert model.status_ is result.status is Status.CONVERGED
    np.testing.assert_allclose(model.coef_[0], result.mean[:3], rtol=SAME)
    np.testing.assert_allclose(model.intercept_, result.mean[3:], rtol=SAME)
    np.testing.assert_allclose(model.covariance_[0], result.covariance, rtol=SAME, atol=SAME)
    np.testing.assert_allclose(model.coef_std_[0], result.std[:3], rtol=SAME)
    np.testing.assert_allclose(model.intercept_std_, result.std[3:], rtol=SAME)
    assert model.log_evidence_ == pytest.approx(result.log_evidence, rel=SAME)
    assert model.trace_.changes == result.trace.changes
    assert isinstance(model.posterior_[0], CorrelatedGaussian)
    mean, std = model.decision_function(X, return_std=True)
    np.testing.assert_allclose(mean, rows @ result.mean, rtol=SAME, atol=SAME)
    np.testing.assert_allclose(std**2, np.sum((rows @ result.covariance) * rows, axis=1), rtol=SAME)


def test_draws_have_the_covariance_and_tables_the_deviations(fitted):
    model = fitted[0]
    coef, intercept = model.sample_coef(40_000, random_state=0, return_intercept=True)
    scale = np.sqrt(np.diag(model.covariance_[0]))
    found = np.cov(np.column_stack([coef, intercept]).T) / np.outer(scale, scale)
    np.testing.assert_allclose(found, model.covariance_[0] / np.outer(scale, scale), atol=0.03)
    table = model.summary()
    np.testing.assert_allclose(table["std"], scale[[3, 0, 1, 2]])
    np.testing.assert_array_equal(table["mean"], np.append(model.intercept_, model.coef_))


def test_the_start_does_not_matter_and_sparse_rows_are_as_dense_ones(fitted):
    model, X, y = fitted
    from_prior = clone(model).set_params(init="prior").fit(X, y)
    np.testing.assert_allclose(from_prior.covariance_, model.covariance_, rtol=1e-4)
    few = np.where(np.abs(X) < 0.4, 0.0, X)
    dense, csr = (clone(model).fit(convert(few), y) for convert in (np.asarray, sparse.csr_array))
    np.testing.assert_allclose(csr.covariance_, dense.covariance_, rtol=1e-7)
    np.testing.assert_allclose(csr.predict_proba(sparse.csr_array(few)), dense.predict_proba(few), rtol=1e-7)


def test_every_class_has_its_covariance():
    X, _ = signed_data(90)
    y = np.digitize(X[:, 0], np.quantile(X[:, 0], [0.3, 0.7]))
    model = EPClassifier(covariance="full").fit(X, y)
    assert model.covariance_.shape == (3, 4, 4)
    for k in range(3):
        one = EPClassifier(covariance="full").fit(X, y == k)
        np.testing.assert_allclose(model.covariance_[k], one.covariance_[0], rtol=SAME)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    np.testing.assert_allclose(np.sqrt([np.diag(c)[:3] for c in model.covariance_]), model.coef_std_)


def test_regression_has_the_covariance_of_bayes_in_units_of_y():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 3))
    y = 100.0 + 7.0 * (X @ [1.0, -2.0, 0.5]) + rng.standard_normal(50)
    model = EPRegressor(covariance="full", scale=2.0, normalize_y=False, prior_variance=9.0).fit(X, y)
    rows = np.column_stack([X, np.ones(50)])
    expected = np.linalg.inv(rows.T @ rows / 4.0 + np.diag([1 / 9, 1 / 9, 1 / 9, 1 / 100]))
    np.testing.assert_allclose(model.covariance_, expected, rtol=1e-7)
    scaled = EPRegressor(covariance="full", scale=2.0).fit(X, y)
    np.testing.assert_allclose(np.sqrt(np.diag(scaled.covariance_)[:3]), scaled.coef_std_)
    mean, std = scaled.predict(X, return_std=True)
    np.testing.assert_allclose(std**2, 4.0 + np.sum((rows @ scaled.covariance_) * rows, axis=1), rtol=1e-7)
    assert np.sqrt(np.mean((y - mean) ** 2)) < 2.0


def test_a_product_has_a_covariance_too(fitted):
    _, X, y = fitted
    for basis in (None, "pca"):
        model = EPClassifier(basis=basis).fit(X, y)
        np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_[0])[:3]), model.coef_std_[0])
        apart = np.abs(model.covariance_[0] - np.diag(np.diag(model.covariance_[0]))).max()
        assert (apart > 0.0) == (basis is not None)


def test_files_keep_the_covariance(fitted, tmp_path):
    model, X, _ = fitted
    save(model, tmp_path / "model.cavity")
    other = load(tmp_path / "model.cavity")
    np.testing.assert_array_equal(other.covariance_, model.covariance_)
    np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    assert other.log_evidence_ == model.log_evidence_


def test_models_of_squared_losses_merge_to_the_model_of_all_rows():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(40)
    whole, one, other = (
        EPRegressor(covariance="full", scale=1.5, normalize_y=False).fit(X[rows], y[rows])
        for rows in (slice(None), slice(15), slice(15, None))
    )
    merged = one.merge(other)
    np.testing.assert_allclose(merged.covariance_, whole.covariance_, rtol=1e-6)
    np.testing.assert_allclose(merged.coef_, whole.coef_, rtol=1e-6)
    assert merged.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-6)
    taken = one.partial_fit(X[15:], y[15:])
    np.testing.assert_allclose(taken.covariance_, whole.covariance_, rtol=1e-6)
    stream = EPRegressor(covariance="full", scale=1.5, normalize_y=False).partial_fit(X, y)
    np.testing.assert_allclose(stream.covariance_, whole.covariance_, rtol=1e-6)
    np.testing.assert_allclose(stream.coef_, whole.coef_, rtol=1e-6)


def test_what_goes_against_it_is_refused_with_a_remedy():
    X, y = signed_data(20)
    wide = sparse.csr_array(([1.0, 1.0], ([0, 1], [0, 5000])), shape=(2, 5001))
    for parameters, message in (
        ({"covariance": "half"}, "covariance must be 'auto', 'diagonal' or 'full', got 'half'"),
        ({"scheme": "vq"}, "leave scheme at 'exact', got 'vq'"),
        ({"power": 0.5}, "one number for beta, and power=1, got beta=1.0 and power=0.5"),
        ({"beta": [0.5, 1.0]}, "one number for beta"),
        ({"init": "middle"}, "init must be 'mode' or 'prior'"),
    ):
        with pytest.raises(ValueError, match=message):
            EPClassifier(**{"covariance": "full", **parameters}).fit(X, y)
    for fit in (EPClassifier(covariance="full").fit, lambda X, y: EPClassifier(covariance="full").partial_fit(X, y, y)):
        with pytest.raises(ValueError, match="at most 5000 columns, got 5002; leave covariance at 'auto'"):
            fit(wide, [0, 1])


def test_a_covariance_too_wide_to_write_out_is_refused(fitted, monkeypatch):
    monkeypatch.setattr("cavity.estimators._posteriors.WIDEST_COVARIANCE", 3)
    with pytest.raises(ValueError, match="at most 3 columns, got 4; coef_std_"):
        _ = fitted[0].covariance_


@pytest.mark.parametrize(
    ("check", "model"),
    [
        (check_classifiers_classes, EPClassifier),
        (check_dict_unchanged, EPClassifier),
        (check_estimators_pickle, EPClassifier),
        (check_fit2d_1sample, EPRegressor),
        (check_methods_sample_order_invariance, EPClassifier),
        (check_regressors_train, EPRegressor),
    ],
)
def test_checks_of_scikit_learn(check, model):
    check(model.__name__, model(covariance="full"))
