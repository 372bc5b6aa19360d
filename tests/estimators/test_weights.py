"""Weights of rows and classes: zero is absence, whole numbers are repetition, classes multiply rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from estimator_cases import (
    CLASSES,
    PARITY,
    STORAGES,
    assert_same_model,
    classifier,
    gaussian_regressor,
    line,
    regressor,
    three_classes,
    two_classes,
    unsettled,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import compute_sample_weight

import cavity
from cavity import EPClassifier, EPRegressor, FactorialGaussian, LinearFactor, fit
from cavity.losses import Logistic


def whole_weights(n, least=0, seed=3):
    return np.random.default_rng(seed).integers(least, 4, n)


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("storage", STORAGES)
def test_weight_zero_is_the_row_removed_to_the_last_bit(storage, count):
    X, y = CLASSES[count]()
    X, weights = STORAGES[storage](X), whole_weights(y.size).astype(float)
    kept = weights > 0.0
    for options in ({}, {"max_iter": 1}, {"covariance": "sparse"}):
        a, b = classifier(**options).fit(X, y, weights), classifier(**options).fit(X[kept], y[kept], weights[kept])
        assert_same_model(a, b)


@pytest.mark.parametrize("make", [gaussian_regressor, regressor], ids=["known scale", "normalised, scale estimated"])
def test_the_same_for_regression(make):
    X, y = line(seed=1)
    weights = whole_weights(y.size).astype(float)
    kept = weights > 0.0
    a, b = make().fit(X, y, weights), make().fit(X[kept], y[kept], weights[kept])
    assert_same_model(a, b)
    assert (a.scale_, a.y_offset_, a.y_scale_) == (b.scale_, b.y_offset_, b.y_scale_)
    a, b = make().partial_fit(X, y, weights), make().partial_fit(X[kept], y[kept], weights[kept])
    assert_same_model(a, b)
    assert (a.scale_, a.y_offset_, a.y_scale_) == (b.scale_, b.y_offset_, b.y_scale_)


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_the_same_whatever_the_defaults_are(make):
    X, y = two_classes()
    weights = whole_weights(y.size).astype(float)
    kept = weights > 0.0
    with unsettled():
        a = make(random_state=0).fit(X, y, weights)
        b = make(random_state=0).fit(X[kept], y[kept], weights[kept])
    assert_same_model(a, b)


@pytest.mark.parametrize("covariance", ["full", "sparse"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", ["logistic", "hinge", "quasi01"])
def test_a_whole_weight_is_the_row_repeated(loss, storage, covariance):
    X, y = two_classes()
    weights = whole_weights(y.size)
    shuffled = np.random.default_rng(0).permutation(np.sum(weights))
    rows, labels = np.repeat(X, weights, axis=0)[shuffled], np.repeat(y, weights)[shuffled]
    with unsettled():
        a = classifier(loss=loss, covariance=covariance).fit(STORAGES[storage](X), y, weights)
        b = classifier(loss=loss, covariance=covariance).fit(STORAGES[storage](rows), labels)
    assert_same_model(a, b, PARITY)


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_a_whole_weight_is_the_row_repeated_whatever_the_defaults_are(make):
    X, y = two_classes()
    weights = whole_weights(y.size)
    a, b = make().fit(X, y, weights), make().fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert_same_model(a, b, 1e-8)
    assert a.prior_variance_ == pytest.approx(b.prior_variance_, rel=1e-8)
    assert a.log_evidence_ == pytest.approx(b.log_evidence_, rel=1e-8)


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_a_whole_weight_of_a_regression_is_the_row_repeated(loss):
    X, y = line()
    weights = whole_weights(y.size)
    a = regressor(loss=loss).fit(X, y, weights)
    b = regressor(loss=loss).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert_same_model(a, b, 1e-8)
    assert (a.scale_, a.y_offset_, a.y_scale_) == pytest.approx((b.scale_, b.y_offset_, b.y_scale_), rel=1e-9)


def test_a_whole_weight_is_the_row_repeated_in_a_chunk_of_a_stream():
    X, y = two_classes()
    weights = whole_weights(y.size)
    a = classifier().partial_fit(X, y, [0, 1], weights)
    b = classifier().partial_fit(np.repeat(X, weights, axis=0), np.repeat(y, weights), [0, 1])
    assert_same_model(a, b, PARITY)


def test_a_whole_weight_is_the_row_repeated_within_one_mini_batch_of_laplace_s_scheme():
    X, y = two_classes()
    weights, prior = whole_weights(y.size, least=1), FactorialGaussian.from_moments(np.zeros(4), 1.0)
    signs = 2.0 * y - 1.0
    weighted = LinearFactor.batches(Logistic(), X, signs, 1000, weights)
    repeated = LinearFactor.batches(Logistic(), np.repeat(X, weights, axis=0), np.repeat(signs, weights), 1000)
    one, other = (fit(factors, prior, "la", max_iter=50, safeguards=True) for factors in (weighted, repeated))
    np.testing.assert_allclose(one.mean, other.mean, rtol=PARITY)
    np.testing.assert_allclose(one.std, other.std, rtol=PARITY)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=PARITY)


@pytest.mark.parametrize("weight", [0.25, 0.9])
def test_one_weight_below_one_for_all_is_an_inverse_temperature(weight):
    X, y = two_classes()
    model = classifier(fit_intercept=False, tol=1e-12).fit(X, y, np.full(y.size, weight))
    prior = FactorialGaussian.from_moments(np.zeros(4), 1.0)
    warm = cavity.fit(
        LinearFactor.batches(Logistic(), X, 2.0 * y - 1.0), prior, covariance="full", tol=1e-12, beta=weight
    )
    np.testing.assert_allclose(model.coef_[0], warm.mean, rtol=PARITY)
    np.testing.assert_allclose(model.covariance_[0], warm.posterior.covariance, rtol=PARITY, atol=PARITY)
    assert model.log_evidence_ == pytest.approx(warm.log_evidence, rel=PARITY)


def test_weights_between_are_between():
    """From one copy of a row to two, the posterior moves without a jump."""
    X, y = two_classes()
    means = []
    for weight in (1.0, 1.0 + 1e-6, 1.5, 2.0 - 1e-6, 2.0):
        weights = np.ones(y.size)
        weights[5] = weight
        means.append(classifier(tol=1e-8).fit(X, y, weights).coef_[0])
    np.testing.assert_allclose(means[1], means[0], atol=1e-5)
    np.testing.assert_allclose(means[3], means[4], atol=1e-5)
    assert 0.0 < np.linalg.norm(means[2] - means[0]) < np.linalg.norm(means[4] - means[0])


@pytest.mark.parametrize("weight", [1e-30, 1e-300, 1e6, 1e30, 1e99])
@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_weights_of_any_size_give_finite_numbers_or_a_status(make, weight):
    X, y = two_classes()
    weights = np.ones(y.size)
    weights[3] = weight
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make().fit(X, y, weights)
    assert np.all(np.isfinite(model.coef_))
    assert np.all(np.isfinite(model.coef_std_))
    assert np.isfinite(model.intercept_)
    assert model.status_.is_success or any(issubclass(w.category, ConvergenceWarning) for w in caught)


def test_weights_beyond_all_bounds_are_refused():
    X, y = two_classes()
    for make in (EPClassifier, EPRegressor):
        with pytest.raises(ValueError, match="sample_weight must be at most"):
            make().fit(X, y, np.full(y.size, 1e308))


@pytest.mark.parametrize("count", CLASSES)
def test_weights_of_classes_multiply_those_of_rows(count):
    X, y = CLASSES[count]()
    labels = np.unique(y)
    weights, each = np.random.default_rng(0).uniform(0.1, 2.0, y.size), {labels[0]: 3.0, labels[1]: 0.5}
    of_rows = np.array([each.get(label, 1.0) for label in y])
    assert_same_model(classifier(class_weight=each).fit(X, y), classifier().fit(X, y, of_rows))
    assert_same_model(classifier(class_weight=each).fit(X, y, weights), classifier().fit(X, y, weights * of_rows))
    balanced = compute_sample_weight("balanced", y)
    assert_same_model(classifier(class_weight="balanced").fit(X, y), classifier().fit(X, y, balanced), PARITY)
    stream = (
        classifier(class_weight=each).partial_fit(X, y, labels).partial_fit(X[:9], y[:9], sample_weight=weights[:9])
    )
    wanted = (
        classifier().partial_fit(X, y, labels, of_rows).partial_fit(X[:9], y[:9], sample_weight=(weights * of_rows)[:9])
    )
    assert_same_model(stream, wanted)


def test_a_weight_of_zero_for_a_class_removes_its_rows():
    X, y = three_classes()
    model = classifier(class_weight={"ash": 0.0}).fit(X, y)
    assert_same_model(model, classifier().fit(X, y, (y != "ash").astype(float)))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_weights_of_classes_are_checked(bad):
    X, y = two_classes()
    with pytest.raises(ValueError, match="class_weight"):
        classifier(class_weight={0: bad, 1: 1.0}).fit(X, y)
    with pytest.raises(ValueError, match="class_weight"):
        classifier(class_weight={0: bad, 1: 1.0}).partial_fit(X, y, [0, 1])


def test_a_class_that_is_not_there_has_no_weight():
    X, y = two_classes()
    with pytest.raises(ValueError, match=r"not in class_weight|not present"):
        classifier(class_weight={0: 1.0, 7: 1.0}).fit(X, y)
