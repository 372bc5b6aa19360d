"""Every constructor parameter of a wrong type or value is a ValueError that names it, before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import frozen, line, two_classes
from scipy import sparse

from cavity import EPClassifier, EPRegressor
from cavity.losses import Logistic, Squared

NO_NUMBERS = [None, "x", [], {}, (), object(), True, 1j, np.nan, [1.0, 2.0, 3.0], np.array("x"), b"1"]
NOT_POSITIVE = [*NO_NUMBERS, 0.0, -1.0, np.inf, -np.inf]
NOT_WHOLE = [None, "x", [], object(), np.nan, np.inf, 0, -1, 2.5, [3], 1j]
NO_FLAG = [None, "yes", 2, -1, 0.5, [], object(), np.nan]
SHARED = {
    "prior_variance": [None, "x", "evidence", [], object(), True, np.nan, np.inf, 0.0, -1.0, [1.0] * 3, [1, 1, 1, 0.0]],
    "prior_mean": [None, "x", [], object(), True, np.nan, np.inf, [0.0] * 3, np.zeros((2, 2)), 1e200, 1j],
    "fit_intercept": NO_FLAG,
    "intercept_prior_variance": NOT_POSITIVE,
    "covariance": [None, "whole", 1, [], np.eye(4), True],
    "max_iter": NOT_WHOLE,
    "tol": [None, "x", [], object(), np.nan, np.inf, -1.0, True, 1j, [0.1]],
    "verbose": ["yes", 2, -1, 0.5, [], object()],
}
OF_CLASSIFIER = {
    "loss": [None, "squared", "x", 3, Squared(), object(), [], Logistic],
    "class_weight": ["x", 3, {0: -1.0, 1: 1.0}, {0: np.nan, 1: 1.0}, {7: 1.0}, {0: "x", 1: 1.0}, [1.0, 2.0], object()],
}
OF_REGRESSOR = {
    "loss": [None, "logistic", "x", 3, Logistic(), object(), [], Squared],
    "scale": [*NOT_POSITIVE, "large"],
    "normalize_y": NO_FLAG,
}


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_wrong_parameters_are_refused_and_named(make, storage, method):
    X, y = two_classes()
    X = storage(X)
    extra = {"classes": [0, 1]} if make is EPClassifier and method == "partial_fit" else {}
    cases = {**SHARED, **(OF_CLASSIFIER if make is EPClassifier else OF_REGRESSOR)}
    for name, values in cases.items():
        for value in values:
            model = make(**{name: value})
            with pytest.raises(ValueError, match=name):
                getattr(model, method)(X, y, **extra)
            assert not hasattr(model, "coef_"), (name, value)


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_a_seed_that_is_none_is_refused_where_one_is_used(make):
    X, y = two_classes()
    for seed in ("x", -1, 2.5, object()):
        with pytest.raises(ValueError, match=r"[Ss]eed|random_state|RandomState"):
            make(covariance="diagonal", random_state=seed).fit(X, y)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        *(
            ({"loss": "quantile", "quantile": q}, "quantile")
            for q in (None, "x", [], 0.0, 1.0, -0.1, np.nan, True, [0.5])
        ),
        *(({"loss": "huber", "epsilon": e}, "epsilon") for e in (None, "x", [], 0.0, -1.0, np.nan, np.inf, True)),
    ],
)
def test_parameters_of_a_loss_are_refused_where_it_is_used(options, match):
    X, y = line()
    with pytest.raises(ValueError, match=match):
        EPRegressor(**options).fit(X, y)


def test_parameters_are_looked_at_before_the_data():
    """Neither rows nor targets make sense here; the message is about the parameter."""
    for make in (EPClassifier, EPRegressor):
        for name in ("intercept_prior_variance", "tol", "max_iter", "loss"):
            for method in ("fit", "partial_fit"):
                with pytest.raises(ValueError, match=name):
                    getattr(make(**{name: None}), method)("no rows", "no targets")


def test_an_intercept_without_a_prior_variance_never_reaches_a_stream():
    X, y = two_classes()
    model = EPClassifier(intercept_prior_variance=None)
    for rows in (X, sparse.csr_array(X)):
        with pytest.raises(ValueError, match=r"intercept_prior_variance must be positive and finite, .* got None"):
            model.partial_fit(rows, y, classes=[0, 1])
    assert not hasattr(model, "coef_")


def test_a_parameter_spoilt_in_mid_stream_leaves_the_model_as_it_was():
    X, y = two_classes()
    for options in ({}, {"covariance": "diagonal"}):
        model = EPClassifier(**options).partial_fit(X, y, [0, 1])
        for name in ("intercept_prior_variance", "tol", "max_iter", "prior_variance"):
            good = getattr(model, name)
            model.set_params(**{name: "spoilt"})
            before = frozen(model)
            with pytest.raises(ValueError, match=name):
                model.partial_fit(X, y, forget=0.5)
            assert frozen(model) == before
            model.set_params(**{name: good})


@pytest.mark.parametrize("number", [np.float32(2.0), np.int64(2), np.array(2.0), 2])
def test_numbers_of_any_kind_will_do(number):
    X, y = two_classes()
    options = {
        "prior_variance": number,
        "intercept_prior_variance": number,
        "prior_mean": number,
        "max_iter": np.int32(9),
    }
    a = EPClassifier(**options).fit(X, y)
    b = EPClassifier(**{name: float(value) for name, value in options.items()}).fit(X, y)
    np.testing.assert_array_equal(a.coef_, b.coef_)
