"""Weights of rows and classes: zero is absence, whole numbers are repetition, classes multiply rows."""

from __future__ import annotations

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
from sklearn.utils import compute_sample_weight

from cavity import EPClassifier, EPRegressor

# How far a fit to weights lies from one to repeated rows, in standard deviations of the posterior, when both have
# settled. "la": the mean is the mode of the whole posterior, however the rows are cut; what is left is the tolerance of
# the loops (measured: 1.2e-6). "qla" and "vq" expand at each cavity, which depends on the cuts (measured: 0.07).
APART = {"la": 1e-5, "qla": 0.15, "vq": 0.15}


def whole_weights(n, least=0, seed=3):
    return np.random.default_rng(seed).integers(least, 4, n)


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("storage", STORAGES)
def test_weight_zero_is_the_row_removed_to_the_last_bit(storage, count):
    X, y = CLASSES[count]()
    X, weights = STORAGES[storage](X), whole_weights(y.size).astype(float)
    kept = weights > 0.0
    for loops in (1, 50):
        a = classifier(loops=loops).fit(X, y, weights)
        b = classifier(loops=loops).fit(X[kept], y[kept], weights[kept])
        assert_same_model(a, b)
        assert a.trace_ == b.trace_ or loops == 1


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


@pytest.mark.parametrize("scheme", ["la", "qla", "vq"])
def test_a_whole_weight_is_the_row_repeated_within_one_mini_batch(scheme):
    X, y = two_classes()
    weights = whole_weights(y.size)
    options = {"scheme": scheme, "batch_size": 1000, "damping": 0.5}
    a = classifier(**options).fit(X, y, weights)
    b = classifier(**options).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert_same_model(a, b, PARITY)


def test_the_same_for_regression_within_one_mini_batch():
    X, y = line()
    weights = whole_weights(y.size)
    repeated = np.repeat(X, weights, axis=0), np.repeat(y, weights)
    a, b = (make(batch_size=10_000) for make in (gaussian_regressor, gaussian_regressor))
    assert_same_model(a.fit(X, y, weights), b.fit(*repeated), PARITY)
    a, b = (regressor(batch_size=10_000, tol=1e-9) for _ in range(2))
    a.fit(X, y, weights), b.fit(*repeated)
    assert (a.scale_, a.y_offset_, a.y_scale_) == pytest.approx((b.scale_, b.y_offset_, b.y_scale_), rel=1e-9)
    np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("scheme", APART)
def test_mini_batches_settle_near_the_same_place(scheme, batch_size):
    X, y = two_classes(n=300, d=4, seed=2)
    weights = whole_weights(y.size, least=1)
    options = {"scheme": scheme, "batch_size": batch_size, "tol": 1e-6, "loops": 200, "prior_variance": 25.0}
    a = classifier(**options).fit(X, y, weights)
    b = classifier(**options).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_array_less(np.abs(a.coef_ - b.coef_), APART[scheme] * b.coef_std_)
    np.testing.assert_allclose(np.log(a.coef_std_), np.log(b.coef_std_), atol=0.1 * APART[scheme])


@pytest.mark.parametrize("weight", [0.25, 3.0])
def test_one_weight_for_all_is_an_inverse_temperature(weight):
    X, y = two_classes()
    a, b = classifier().fit(X, y, np.full(y.size, weight)), classifier(beta=weight).fit(X, y)
    assert_same_model(a, b, PARITY)


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
