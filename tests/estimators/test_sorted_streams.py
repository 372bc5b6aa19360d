"""Streams whose rows come sorted by their labels or targets warn; rows in random order do not."""

import warnings

import numpy as np
import pytest
from estimator_cases import line, two_classes

from cavity import EPClassifier, EPRegressor
from cavity.estimators import SortedStreamWarning


def stream(model, X, y, size, **options):
    """Take rows in calls of so many; whether a warning said that they are sorted."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(0, len(y), size):
            model.partial_fit(X[i : i + size], y[i : i + size], **options)
    return any(issubclass(one.category, SortedStreamWarning) for one in told)


def of_classes(count, n=240):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, np.digitize(X[:, 0] + rng.logistic(size=n), np.linspace(-1.0, 1.0, count - 1))


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("count", [2, 3])
def test_labels_that_come_class_by_class_are_told(count, size):
    X, y = of_classes(count)
    order = np.argsort(y, kind="stable")
    assert stream(EPClassifier(), X[order], y[order], size, classes=np.unique(y))
    assert not stream(EPClassifier(), X, y, size, classes=np.unique(y))


def test_a_rare_class_in_the_last_call_is_told():
    X, y = two_classes(n=400)
    y = np.zeros_like(y)
    y[-6:] = 1
    assert stream(EPClassifier(), X, y, 20, classes=[0, 1])


@pytest.mark.parametrize("loss", ["huber", "absolute", "poisson"])
def test_sorted_targets_are_told_in_whatever_unit_they_are(loss):
    X, y = line(n=200)
    y = np.round(np.exp(0.5 * y)) if loss == "poisson" else 1e3 * y - 7.0
    order = np.argsort(y)
    assert stream(EPRegressor(loss), X[order], y[order], 10)
    assert not stream(EPRegressor(loss), X, y, 10)


def test_the_squared_loss_does_not_depend_on_the_order():
    X, y = line(n=200)
    order, model = np.argsort(y), EPRegressor()
    assert not stream(model, X[order], y[order], 10)
    whole = EPRegressor().fit(X, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-6)
