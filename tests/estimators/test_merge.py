"""Merged models: what the rows say adds up, the prior counts once, both inputs stay as they were."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from estimator_cases import (
    CLASSES,
    PARITY,
    assert_same_model,
    classifier,
    frozen,
    gaussian_regressor,
    line,
    orthogonal,
    product_classifier,
    regressor,
    state_of,
    two_classes,
)
from sklearn.exceptions import NotFittedError

from cavity import EPClassifier, EPRegressor
from cavity.losses import Logistic

HALF = 30


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
@pytest.mark.parametrize("prior_mean", [0.0, 1.5])
def test_merged_models_of_gaussian_factors_equal_one_trained_on_all(prior_mean, covariance):
    X, y = orthogonal() if covariance == "diagonal" else line(n=60)
    options = {"prior_mean": prior_mean, "covariance": covariance, "fit_intercept": False, "tol": 1e-9}
    a, b, whole = (
        gaussian_regressor(**options).fit(X[rows], y[rows]) for rows in (slice(0, HALF), slice(HALF, None), slice(None))
    )
    merged = a.merge(b)
    assert_same_model(merged, whole, 1e-6 if covariance == "sparse" else PARITY)
    assert merged.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-6)
    np.testing.assert_allclose(merged.predict(X), whole.predict(X), rtol=1e-6, atol=1e-6)


def test_streams_merge_as_fits_do():
    X, y = line(n=60)
    parts = [gaussian_regressor().partial_fit(X[rows], y[rows]) for rows in (slice(0, HALF), slice(HALF, None))]
    whole = gaussian_regressor().fit(X, y)
    assert_same_model(parts[0].merge(parts[1]), whole, 1e-9)
    mixed = gaussian_regressor().fit(X[:HALF], y[:HALF]).merge(parts[1])
    assert_same_model(mixed, whole, 1e-9)
    assert_same_model(mixed.partial_fit(X, y), copy.deepcopy(whole).partial_fit(X, y), 1e-9)


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
def test_natural_parameters_beyond_the_prior_add_up(covariance):
    X, y = two_classes()
    options = {"covariance": covariance, "fit_intercept": False}
    a, b = classifier(**options).fit(X[:HALF], y[:HALF]), classifier(**options).fit(X[HALF:], y[HALF:])
    precision = [np.linalg.inv(m.covariance_[0]) for m in (a, b, a.merge(b))]
    np.testing.assert_allclose(precision[0] + precision[1] - np.eye(4), precision[2], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", CLASSES)
def test_the_order_does_not_matter_and_both_stay_as_they_were(count):
    X, y = CLASSES[count]()
    for make in (classifier, product_classifier):
        a = make().partial_fit(X[:HALF], y[:HALF], np.unique(y))
        b = make().partial_fit(X[HALF:], y[HALF:], np.unique(y))
        before = frozen(a), frozen(b)
        ab, ba = a.merge(b), b.merge(a)
        assert_same_model(ab, ba, PARITY)
        c = copy.deepcopy(b)
        assert_same_model(ab.merge(c), a.merge(b.merge(c)), PARITY)
        assert (frozen(a), frozen(b)) == before
        ab.partial_fit(X, y)
        assert (frozen(a), frozen(b)) == before


@pytest.mark.parametrize("count", CLASSES)
def test_the_prior_counts_once(count):
    """A model that has seen only rows of zeros stands at the prior, and adds nothing."""
    X, y = CLASSES[count]()
    mean = 0.5 if count == 2 else 0.0  # a softmax knows no mean that all classes share
    model = classifier(fit_intercept=False, prior_mean=mean).fit(X, y)
    idle = classifier(fit_intercept=False, prior_mean=mean).partial_fit(np.zeros_like(X), y, np.unique(y))
    np.testing.assert_allclose(idle.coef_, mean, rtol=1e-12)
    merged = model.merge(idle)
    np.testing.assert_allclose(merged.coef_, model.coef_, rtol=1e-10)
    np.testing.assert_allclose(merged.coef_std_, model.coef_std_, rtol=1e-10)


@pytest.mark.parametrize("make", [classifier, EPClassifier], ids=["fixed variance", "found variance"])
def test_merged_models_know_more_and_predict_as_well_as_one_trained_on_all(make):
    X, y = two_classes(n=600, seed=4)
    a, b = make().fit(X[:300], y[:300]), make().fit(X[300:], y[300:])
    merged, whole = a.merge(b), make().fit(X, y)
    assert np.all(merged.coef_std_ < np.minimum(a.coef_std_, b.coef_std_))
    np.testing.assert_array_less(np.abs(merged.coef_ - whole.coef_), 0.5 * whole.coef_std_)
    np.testing.assert_allclose(merged.coef_std_, whole.coef_std_, rtol=0.15)
    assert merged.score(X, y) > whole.score(X, y) - 0.01
    np.testing.assert_array_equal(merged.classes_, whole.classes_)
    low, high = sorted([a.prior_variance_, b.prior_variance_])
    assert low <= merged.prior_variance_ <= high


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_regressors_of_other_units_and_scales_are_pooled(covariance, loss):
    """Halves whose targets have another mean and spread, and that found scales of their own."""
    X, y = line(n=600)
    if covariance == "full":  # without correlations, halves of other columns cannot be joined exactly
        order = np.argsort(X[:, 0])  # the first half has lower targets
        X, y = X[order], y[order]
    options = {"loss": loss, "covariance": covariance, "tol": 1e-4}
    a, b, whole = (
        EPRegressor(**options).fit(X[rows], y[rows]) for rows in (slice(0, 300), slice(300, None), slice(None))
    )
    merged = a.merge(b)
    assert a.y_offset_ != b.y_offset_
    exact = loss == "squared" and covariance == "full"
    assert merged.scale_ == pytest.approx(whole.scale_, rel=1e-6 if exact else 0.05)
    np.testing.assert_allclose(merged.coef_, whole.coef_, rtol=0.0, atol=0.05)
    np.testing.assert_allclose(merged.coef_std_, whole.coef_std_, rtol=0.1)
    assert merged.intercept_ == pytest.approx(whole.intercept_, abs=0.1)
    np.testing.assert_allclose(b.merge(a).predict(X), merged.predict(X), rtol=1e-6, atol=1e-6)
    if covariance == "full":
        merged.partial_fit(X, y)
        assert merged.scale_ == pytest.approx(whole.scale_, rel=0.05)


def test_it_does_not_matter_which_model_is_merged_into_which():
    """Halves whose columns have other means and deviations."""
    X, y = two_classes(n=400)
    X = X[np.argsort(X[:, 0])] * [1.0, 10.0, 0.1, 1.0] + 5.0
    y = y[np.argsort(two_classes(n=400)[0][:, 0])]
    a, b = EPClassifier(tol=1e-6).fit(X[:200], y[:200]), EPClassifier(tol=1e-6).fit(X[200:], y[200:])
    np.testing.assert_allclose(b.merge(a).predict_proba(X), a.merge(b).predict_proba(X), rtol=0.0, atol=1e-6)


def test_exact_knowledge_of_other_units_adds_up():
    """Two normalised halves with a given scale: the sums of both, under the first one's prior."""
    X, y = line(n=60)
    options = {"scale": 0.7, "prior_variance": "auto", "tol": 1e-6}
    a, b = EPRegressor(**options).fit(X[:HALF], y[:HALF]), EPRegressor(**options).fit(X[HALF:], y[HALF:])
    merged = a.merge(b)
    state = state_of(merged)
    columns, prior = state.columns, state.priors[0]
    rows = np.column_stack([columns.standardised(X), np.ones(60)])
    variance = a.y_scale_**2 * prior.variance
    center = a.y_scale_ * prior.mean
    center[-1] += a.y_offset_
    precision = np.diag(1.0 / variance) + rows.T @ rows / 0.49
    mean = np.linalg.solve(precision, center / variance + rows.T @ y / 0.49)
    raw = mean[:-1] / columns.unit
    mode = np.append(raw, mean[-1] - raw @ columns.center)
    found = state.posteriors[0]  # but for what is not known of the prior
    np.testing.assert_allclose(a.y_scale_ * found.mean + a.y_offset_ * np.eye(5)[-1], mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(merged.predict(X), X @ mode[:-1] + mode[-1], rtol=0.0, atol=0.02)
    covariance = a.y_scale_**2 * found.covariance
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"prior_variance": 2.0}, "different priors"),
        ({"prior_variance": "auto"}, "different priors"),
        ({"prior_mean": 0.5}, "different priors"),
        ({"intercept_prior_variance": 7.0}, "different priors"),
        ({"fit_intercept": False}, "the same columns"),
        ({"loss": Logistic(2.0)}, "different losses"),
        ({"covariance": "sparse"}, "different posteriors"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_models_of_other_parameters_are_refused(options, match):
    X, y = two_classes()
    one, other = classifier().fit(X, y), classifier(**options).fit(X, y)
    for a, b in ((one, other), (other, one)):
        with pytest.raises(ValueError, match=match):
            a.merge(b)


def test_models_of_other_data_or_kind_are_refused():
    X, y = two_classes()
    model = classifier().fit(X, y)
    for other, match in (
        (classifier().fit(X[:, :3], y), "4 and 3 features"),
        (classifier().fit(X, y + 1), "different classes"),
        (gaussian_regressor().fit(X, y), "only another EPClassifier"),
        (None, "only another EPClassifier"),
    ):
        with pytest.raises(ValueError, match=match):
            model.merge(other)
    for pair in ((model, classifier()), (classifier(), model)):
        with pytest.raises(NotFittedError):
            pair[0].merge(pair[1])
    with pytest.raises(ValueError, match="different losses"):
        gaussian_regressor().fit(X, y).merge(gaussian_regressor(scale=2.0).fit(X, y))
    with pytest.raises(ValueError, match="different losses"):
        regressor(loss="huber").fit(X, y).merge(regressor(loss="huber", epsilon=2.0).fit(X, y))
