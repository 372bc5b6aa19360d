"""One row per call by the short way gives what the usual way gives, and declines what it does not know."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from estimator_cases import frozen, line, state_of, two_classes

from cavity import EPClassifier, EPRegressor

KINDS = {
    "full": (EPClassifier, {}, two_classes),
    "product": (EPClassifier, {"covariance": "diagonal"}, two_classes),
    "hinge": (EPClassifier, {"loss": "hinge"}, two_classes),
    "regression": (EPRegressor, {"loss": "huber", "scale": 0.5, "normalize_y": False}, line),
}


def begun(kind, n=300):
    """A stream of single rows that is on the short way."""
    make, choices, data = KINDS[kind]
    X, y = data(n=n, seed=3)
    first = {"classes": np.unique(y)} if make is EPClassifier else {}
    model = make(**choices).partial_fit(X[:200], y[:200], **first)
    for i in range(200, 220):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    return model, X, y


@pytest.mark.parametrize("kind", KINDS)
def test_the_short_way_is_the_usual_way(kind):
    model, X, y = begun(kind)
    assert model._path is not None
    other = copy.deepcopy(model)
    for i in range(220, 300):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        other._path = None
        other.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.coef_std_, other.coef_std_, rtol=1e-9)
    assert model.log_evidence_ == pytest.approx(other.log_evidence_, rel=1e-9)
    assert model.prior_variance_ == pytest.approx(other.prior_variance_, rel=1e-9)
    assert model.trace_.updates == other.trace_.updates
    assert state_of(model).totals == pytest.approx(state_of(other).totals, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_copies_leave_it_behind(kind):
    model, X, y = begun(kind)
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded._path is None
    for one in (model, loaded):
        one.partial_fit(X[220:221], y[220:221])
    np.testing.assert_allclose(loaded.coef_, model.coef_, rtol=1e-9, atol=1e-12)


REFUSED = {
    "nan": lambda X, y: (np.full((1, X.shape[1]), np.nan), y),
    "huge": lambda X, y: (np.full((1, X.shape[1]), 1e120), y),
    "wide": lambda X, y: (np.ones((1, X.shape[1] + 1)), y),
    "no target": lambda X, y: (X, []),
    "a text": lambda X, y: (X, ["nonsense"]),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_are_refused_as_ever_and_change_nothing(kind, case):
    model, X, y = begun(kind)
    before = frozen(model)
    with pytest.raises(ValueError):  # noqa: PT011  (each case has words of its own)
        model.partial_fit(*REFUSED[case](X[:1], y[:1]))
    assert frozen(model) == before


@pytest.mark.parametrize("kind", KINDS)
def test_changed_parameters_and_choices_take_the_usual_way(kind):
    model, X, y = begun(kind)
    with pytest.raises(ValueError, match="tol"):
        model.set_params(tol="none").partial_fit(X[:1], y[:1])
    model.set_params(tol=0.01)
    other = copy.deepcopy(model)
    model.partial_fit(X[:1], y[:1], sample_weight=[2.0])
    other.partial_fit(X[:1], y[:1])
    assert np.any(model.coef_ != other.coef_)
    forgetful = copy.deepcopy(other).partial_fit(X[1:2], y[1:2], forget=0.5)
    assert np.all(forgetful.coef_std_ > other.coef_std_)
