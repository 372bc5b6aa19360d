"""Priors mean what they say, and the variance that is found is that of highest evidence, within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import STORAGES, classifier, gaussian_regressor, line, regressor, state_of, two_classes
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from cavity import EPClassifier, EPRegressor, Status
from cavity.estimators.columns import ColumnDesign
from cavity.estimators.parameters import Parameters
from cavity.factors.columns import Columns


def test_numbers_and_vectors_make_a_prior():
    design = ColumnDesign.of(Parameters.of(EPClassifier(prior_mean=0.5, prior_variance=[1.0, 2.0, 4.0])), 3)
    prior, groups = design.prior(Columns.plain(3), np.ones(3), 7.0, 0.3)
    np.testing.assert_allclose(prior.mean, [0.5, 0.5, 0.5, 0.0])
    np.testing.assert_allclose(prior.variance, [1.0, 2.0, 4.0, 100.0])
    assert prior.log_mass == pytest.approx(0.0, abs=1e-12)
    assert groups == ()
    design = ColumnDesign.of(Parameters.of(EPClassifier(prior_mean=np.array([1.0, -1.0]), fit_intercept=False)), 2)
    prior, _ = design.prior(Columns(np.zeros(2), np.array([2.0, 5.0])), np.array([1.0, 2.0]), 9.0, 0.3)
    np.testing.assert_allclose(prior.mean, [2.0, -5.0])
    np.testing.assert_allclose(prior.variance, 3.0)  # the predictor has the variance nine


def test_a_narrow_prior_holds_a_coefficient_where_it_is():
    X, y = two_classes()
    model = classifier(prior_mean=[0.5, 0.0, 0.0, -2.0], prior_variance=[1e-12, 1.0, 1.0, 1e-12]).fit(X, y)
    np.testing.assert_allclose(model.coef_[0, [0, 3]], [0.5, -2.0], atol=1e-5)
    np.testing.assert_allclose(model.coef_std_[0, [0, 3]], 1e-6, rtol=1e-3)
    assert np.all(model.coef_std_[0, [1, 2]] > 1e-3)
    np.testing.assert_allclose(model.prior_variance_, [1e-12, 1.0, 1.0, 1e-12])


def test_a_prior_for_every_feature_is_one_of_scaled_columns():
    """Variance v of a coefficient is variance one of the coefficient of the column times the root of v."""
    X, y = two_classes()
    variances = np.array([0.1, 1.0, 5.0, 30.0])
    a = classifier(prior_variance=variances, tol=1e-8).fit(X, y)
    b = classifier(prior_variance=1.0, tol=1e-8).fit(X * np.sqrt(variances), y)
    np.testing.assert_allclose(a.coef_, b.coef_ * np.sqrt(variances), rtol=1e-5)
    np.testing.assert_allclose(a.coef_std_, b.coef_std_ * np.sqrt(variances), rtol=1e-5)
    assert a.log_evidence_ == pytest.approx(b.log_evidence_, rel=1e-6)


# The variance that is found.


def signal(n=200, d=12, size=1.0, seed=0, factor=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return factor * X, factor * (X @ (size * rng.normal(size=d)) + 0.7 * rng.normal(size=n))


def exact_evidence(X, y, variance, scale=0.7):
    n = y.size
    return multivariate_normal.logpdf(y, np.zeros(n), scale**2 * np.eye(n) + variance * X @ X.T)


@pytest.mark.parametrize("size", [0.3, 1.0, 10.0])
def test_it_is_near_that_of_highest_exact_evidence(size):
    X, y = signal(size=size)
    model = gaussian_regressor(fit_intercept=False, prior_variance="auto", tol=1e-4).fit(X, y)
    rows, rate = X / model.prior_units_, 0.04  # the bound per deviation of the predictor

    def bounded(v):
        return exact_evidence(rows, y, v) - 0.5 * rate**2 * 12.0 * v

    best = minimize_scalar(lambda v: -bounded(10.0**v), bounds=(-5.0, 5.0), method="bounded")
    assert model.log_evidence_ == pytest.approx(exact_evidence(rows, y, model.prior_variance_), abs=1e-6)
    assert bounded(model.prior_variance_) > -best.fun - 0.01
    raw = model.prior_variance_ / model.prior_units_**2
    fixed = gaussian_regressor(fit_intercept=False, prior_variance=raw, tol=1e-4).fit(X, y)
    assert fixed.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-6)
    known = state_of(model).posteriors[0]  # but for what is not known of the variance
    np.testing.assert_allclose(fixed.posterior_[0].mean, known.mean / model.prior_units_, rtol=1e-6)
    assert model.prior_variance == "auto"


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
def test_its_evidence_is_not_far_below_that_of_any_other(covariance):
    X, y = two_classes(n=200, seed=3)
    options = {"covariance": covariance, "max_iter": 200, "tol": 1e-3}
    found = classifier(prior_variance="auto", **options).fit(X, y)
    others = [classifier(prior_variance=v, **options).fit(X, y).log_evidence_ for v in (0.01, 0.1, 1.0, 10.0, 100.0)]
    assert found.log_evidence_ > max(others) - 0.5
    assert 0.1 < found.prior_variance_ < 1e3


@pytest.mark.parametrize("factor", [1e-4, 1e3])
@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_the_units_of_the_columns_do_not_matter(make, factor):
    X, y = two_classes(n=200, seed=3)
    a, b = make(fit_intercept=False, tol=1e-4).fit(X, y), make(fit_intercept=False, tol=1e-4).fit(factor * X, y)
    assert a.prior_variance_ == pytest.approx(b.prior_variance_, rel=1e-3)
    np.testing.assert_allclose(b.prior_units_, factor * a.prior_units_, rtol=1e-6)
    np.testing.assert_array_less(np.abs(a.coef_ - factor * b.coef_), 0.01 * a.coef_std_)
    np.testing.assert_allclose(factor * b.coef_std_, a.coef_std_, rtol=0.01)


def test_the_units_of_the_columns_change_nothing_with_a_power_of_two():
    X, y = two_classes(n=200, seed=3)
    a, b = EPClassifier(fit_intercept=False).fit(X, y), EPClassifier(fit_intercept=False).fit(1024.0 * X, y)
    assert a.prior_variance_ == b.prior_variance_
    np.testing.assert_array_equal(a.coef_, 1024.0 * b.coef_)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "quasi01"])
def test_it_stays_bounded_on_separable_classes(loss):
    X = np.linspace(-1.0, 1.0, 40)[:, None]
    for rows, y in (
        (X, (X[:, 0] > 0.0).astype(int)),
        (np.eye(8), np.arange(8) % 2),
        (np.random.default_rng(0).normal(size=(20, 40)), np.arange(20) % 2),
    ):
        model = EPClassifier(loss, max_iter=1000).fit(rows, y)
        assert 0.0 < model.prior_variance_ * rows.shape[1] < 1e4  # beyond 100 log odds: less than 1e-13 a priori
        assert np.all(np.isfinite(model.coef_))
        assert model.status_.is_success


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_columns_that_say_nothing_get_a_small_variance_that_is_not_zero(make):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 10)), rng.integers(0, 2, 300)
    model = make(max_iter=500).fit(X, y)
    assert 0.0 < model.prior_variance_ < 0.5
    assert np.max(np.abs(model.coef_)) < 0.5
    assert make(max_iter=500).fit(X[:, :1], y).prior_variance_ > 0.0
    assert make().fit(np.zeros((20, 3)), y[:20]).prior_variance_ > 0.0


def test_every_class_has_its_own():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    y = np.where(rng.random(400) < 0.3, 2, (X[:, 0] > 0.0).astype(int))  # the third class cannot be told
    model = EPClassifier(loss="hinge", max_iter=500).fit(X, y)
    assert model.prior_variance_.shape == (3,)
    assert model.prior_variance_[2] < 0.5 * min(model.prior_variance_[:2])


@pytest.mark.parametrize("storage", STORAGES)
def test_streams_find_it_too(storage):
    X, y = two_classes(n=600, seed=3)
    whole, stream = EPClassifier(tol=1e-3).fit(X, y), EPClassifier()
    rows = STORAGES[storage](X)
    for i in range(0, 600, 50):
        stream.partial_fit(rows[i : i + 50], y[i : i + 50], classes=[0, 1])
    assert stream.prior_variance_ == pytest.approx(whole.prior_variance_, rel=0.3)
    np.testing.assert_array_less(np.abs(stream.coef_ - whole.coef_), 0.5 * whole.coef_std_)
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.15)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_intervals_are_wider_where_the_variance_was_found(make):
    """By what is not known of it; the evidence is that of the variance found."""
    X, y = (two_classes if make is classifier else line)(n=40)
    found = make(prior_variance="auto").fit(X, y)
    options = {"scale": found.scale_} if make is regressor else {}
    given = make(prior_variance=found.prior_variance_ / found.prior_units_**2, **options).fit(X, y)
    assert found.posterior_[0].log_mass == state_of(found).posteriors[0].log_mass
    assert np.all(np.abs(found.coef_ - given.coef_) < found.coef_std_)
    assert np.max(found.coef_std_ / given.coef_std_) > 1.005
    assert given.posterior_[0] is state_of(given).posteriors[0]


@pytest.mark.parametrize("rows", [1, 7])
def test_a_stream_that_is_looked_at_stays_near_a_fit(rows):
    X, y = two_classes(n=120)
    watched, other = EPClassifier(), EPClassifier()
    for i in range(0, 120, rows):
        for model in (watched, other):
            model.partial_fit(X[i : i + rows], y[i : i + rows], classes=[0, 1])
        assert np.all(np.isfinite(watched.coef_std_))
    whole = EPClassifier().fit(X, y)
    assert np.all(np.abs(watched.coef_ - whole.coef_) < 0.3 * whole.coef_std_)
    assert np.all(np.abs(np.log(watched.coef_std_ / whole.coef_std_)) < np.log(1.4))
    np.testing.assert_allclose(other.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(other.coef_std_, whole.coef_std_, rtol=1e-6)


def test_a_given_variance_of_a_regression_is_in_units_of_the_spread():
    X, y = line()
    small, large = regressor(prior_variance=1.0).fit(X, y), regressor(prior_variance=1.0).fit(X, 1e3 * y)
    np.testing.assert_allclose(large.coef_, 1e3 * small.coef_, rtol=1e-4)
    assert small.status_ is Status.CONVERGED
