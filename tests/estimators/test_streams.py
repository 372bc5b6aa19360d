"""A call takes its rows in whole or not at all, whatever is raised; scales and priors follow a stream."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest
from estimator_cases import Broken, assert_same_model, frozen, line, state_of, two_classes, unsettled
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from cavity import EPClassifier, EPRegressor, Status
from cavity.ep import blocks, hyperparameters, online
from cavity.ep.posteriors import DensePosterior, JointPosterior
from cavity.ep.product_streams import Stream
from cavity.estimators import streams
from cavity.estimators.numbers import Numbers
from cavity.losses import Logistic

CLASSES = np.arange(6)
KINDS = {"full": {"loss": "hinge"}, "joint": {}, "product": {"covariance": "diagonal"}}
STORAGES = {"dense": np.asarray, "sparse": sparse.csr_array}
ERRORS = [KeyboardInterrupt, MemoryError, RuntimeError]


def rows_of_six(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) * (rng.random((n, 4)) < 0.7)
    return X, rng.integers(6, size=n)


def raising_at(function, count, error):
    """Let a function raise at its count-th call."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == count:
            raise error("not today")
        return function(*args, **kwargs)

    return wrapped


# Where a call of each kind can be interrupted: what to patch, and at which of its calls.
POINTS = {
    "full": [
        (blocks, "propose", 1),
        (blocks, "propose", 4),
        (DensePosterior, "with_sites", 3),
        (DensePosterior, "natural", 6),
        (hyperparameters, "evidence", 1),
        (hyperparameters, "evidence", 9),
        (streams, "_with_taken", 1),
        (streams, "_forget", 1),
        (streams, "_with_trace", 1),
    ],
    "joint": [
        (blocks, "propose", 1),
        (blocks, "propose", 2),
        (JointPosterior, "with_sites", 2),
        (JointPosterior, "natural", 1),
        (hyperparameters, "evidence", 1),
        (streams, "_with_taken", 1),
        (streams, "_forget", 1),
        (streams, "_with_trace", 1),
    ],
    "product": [
        (Stream, "take", 1),
        (Stream, "take", 4),
        (Stream, "take", 6),
        (streams, "maximise_evidence", 1),
        (streams, "maximise_evidence", 6),
        (streams, "with_variances_found", 1),
        (streams, "_with_trace", 1),
        (streams.ProductStreams, "__init__", 1),
    ],
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_raised_in_a_call_leaves_the_model_as_it_was(kind, storage, error, monkeypatch):
    X, y = rows_of_six()
    X = STORAGES[storage](X)
    begun = EPClassifier(**KINDS[kind]).partial_fit(X[:30], y[:30], classes=CLASSES).partial_fit(X[30:40], y[30:40])
    untouched = copy.deepcopy(begun)
    with unsettled():
        untouched.partial_fit(X[40:], y[40:], forget=0.3)
    for owner, name, count in POINTS[kind]:
        model = copy.deepcopy(begun)
        before = frozen(model)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising_at(getattr(owner, name), count, error))
            with pytest.raises(error, match="not today"):
                model.partial_fit(X[40:], y[40:], forget=0.3)
        assert frozen(model) == before, (owner, name, count)
        with unsettled():
            model.partial_fit(X[40:], y[40:], forget=0.3)
        assert_same_model(model, untouched)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_first_call_leaves_a_model_that_is_not_fitted(kind, error, monkeypatch):
    X, y = rows_of_six()
    owner, name, count = POINTS[kind][1]
    model = EPClassifier(**KINDS[kind])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising_at(getattr(owner, name), count, error))
        with pytest.raises(error):
            model.partial_fit(X, y, classes=CLASSES)
    assert not hasattr(model, "coef_")
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_fit_leaves_the_fit_before(error, monkeypatch):
    X, y = rows_of_six()
    model = EPClassifier(loss="hinge", prior_variance=1.0).fit(X, y)
    before = frozen(model)
    for count in (1, 7):
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "propose", raising_at(blocks.propose, count, error))
            with pytest.raises(error):
                model.set_params(prior_variance=2.0).fit(X, y)
        model.set_params(prior_variance=1.0)
        assert frozen(model) == before


def test_an_interrupted_row_of_a_stream_leaves_it_as_it_was(monkeypatch):
    """One row per call has a path of its own."""
    X, y = rows_of_six()
    model = EPClassifier(loss="hinge").partial_fit(X[:60], y[:60], classes=CLASSES)
    untouched, before = copy.deepcopy(model), frozen(model)
    with monkeypatch.context() as patch:
        patch.setattr(online, "tilts", raising_at(online.tilts, 1, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X[60:61], y[60:61], forget=0.3)
    assert frozen(model) == before
    assert_same_model(model.partial_fit(X[60:61], y[60:61]), untouched.partial_fit(X[60:61], y[60:61]))


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_regression_is_what_it_was(error, monkeypatch):
    X, y = line(n=400)
    monkeypatch.setattr(streams, "KEPT_NUMBERS", 0)  # the rows of the first call are gone
    places = (
        (DensePosterior, "with_sites"),
        (hyperparameters, "evidence"),
        (Numbers, "with_noise_of_kept"),
        (Numbers, "at_scale"),
    )
    for owner, name in places:
        model = EPRegressor("huber").partial_fit(X[:190], y[:190]).partial_fit(X[190:400], y[190:400])
        before = frozen(model)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising_at(getattr(owner, name), 1, error))
            with pytest.raises(error):
                model.partial_fit(X[130:], y[130:], forget=0.3)
        assert frozen(model) == before


class Moody(NamedTuple):
    """A user's loss that raises far out."""

    limit: float = 1e6

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        if np.any(np.abs(z) > self.limit):
            raise RuntimeError("not today")
        return Logistic().value(y, z)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        if np.any(np.abs(z) > self.limit):
            raise RuntimeError("not today")
        return Logistic().derivatives(y, z)


def test_a_loss_that_raises_leaves_the_model_as_it_was():
    X, y = rows_of_six()
    model = EPClassifier(Moody()).partial_fit(X[:60], y[:60], classes=CLASSES)
    untouched, before = copy.deepcopy(model), frozen(model)
    for rows in (slice(60, 67), slice(60, 61)):
        with pytest.raises(RuntimeError, match="not today"):
            model.partial_fit(1e9 * X[rows], y[rows], forget=0.5)
        assert frozen(model) == before
    assert_same_model(model.partial_fit(X[60:65], y[60:65]), untouched.partial_fit(X[60:65], y[60:65]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_second_call_does_not_undo_the_first(kind):
    X, y = two_classes()
    model = EPClassifier(**KINDS[kind]).partial_fit(X, y, classes=[0, 1])
    before = frozen(model)
    with pytest.raises(ValueError, match="forget"):
        model.partial_fit(X, y, forget=2.0)
    assert frozen(model) == before


def test_a_warning_that_is_made_an_error_leaves_the_model_as_it_was():
    X, y = two_classes()
    model = EPClassifier(Broken(), prior_variance=1.0).partial_fit(X, y, classes=[0, 1])
    before = frozen(model)
    with pytest.raises(ConvergenceWarning):
        model.partial_fit(np.full((1, 4), 1e8), y[:1])
    assert frozen(model) == before


# What follows a stream.


@pytest.mark.parametrize("size", [1, 10, 100])
@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_the_noise_scale_follows_whatever_came_first(loss, size):
    """A first call of a single row says nothing of the noise; the intervals cover their share all the same."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = 10.0 + X @ [3.0, 0.0, -2.0] + rng.normal(size=500)
    model = EPRegressor(loss)
    for i in range(0, 400, size):
        model.partial_fit(X[i : i + size], y[i : i + size])
    whole = EPRegressor(loss).fit(X[:400], y[:400])
    assert model.scale_ == pytest.approx(whole.scale_, rel=0.3)
    low, high = model.predict(X[400:], quantile=[0.05, 0.95]).T
    assert 0.8 < np.mean((y[400:] > low) & (y[400:] < high)) <= 0.99
    np.testing.assert_array_less(np.abs(model.coef_ - whole.coef_), 1.5 * whole.coef_std_)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_the_noise_scale_of_a_product_of_gaussians_is_near_that_of_a_fit(loss):
    X, y = line()
    whole, stream = (EPRegressor(loss, covariance="diagonal") for _ in range(2))
    for i in range(0, 600, 50):
        stream.partial_fit(X[i : i + 50], y[i : i + 50])
    assert stream.scale_ == pytest.approx(whole.fit(X, y).scale_, rel=0.2)


@pytest.mark.parametrize("loss", ["absolute", "huber"])
def test_what_the_first_rows_say_of_the_noise_counts_once(loss):
    """They are fitted again whenever they have doubled."""
    X, y = line(n=48)
    one, many = EPRegressor(loss).partial_fit(X, y), EPRegressor(loss)
    for i in range(0, 48, 3):
        many.partial_fit(X[i : i + 3], y[i : i + 3])
    assert state_of(many).noise[0] == pytest.approx(state_of(one).noise[0], rel=0.1)


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
@pytest.mark.parametrize("size", [10, 540])
def test_the_noise_scale_follows_rows_that_are_noisier_than_the_first(loss, size):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(600, 3))
    y = X @ [1.0, -0.5, 0.0] + np.repeat([0.1, 1.0], [60, 540]) * rng.normal(size=600)
    whole, stream = EPRegressor(loss).fit(X, y), EPRegressor(loss).partial_fit(X[:60], y[:60])
    for i in range(60, 600, size):
        stream.partial_fit(X[i : i + size], y[i : i + size])
    assert stream.scale_ == pytest.approx(whole.scale_, rel=0.3)


def test_the_scale_of_the_squared_loss_is_that_of_all_rows():
    X, y = line()
    whole, stream = EPRegressor(tol=1e-4).fit(X, y), EPRegressor()
    for i in range(0, 600, 30):
        stream.partial_fit(X[i : i + 30], y[i : i + 30])
    assert stream.scale_ == pytest.approx(whole.scale_, rel=0.02)
    np.testing.assert_array_less(np.abs(stream.coef_ - whole.coef_), 0.05 * whole.coef_std_)
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.03)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_one_pass_is_near_the_fit_to_all_rows(loss):
    """Correlated columns, some of them rare, in calls of a hundred rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 12)) @ (0.3 * np.eye(12) + rng.normal(size=(12, 12)) / 4.0)
    X[:, 0] = rng.random(2000) < 0.01
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (X @ rng.normal(size=12) / 2.0 - 0.5 + rng.logistic(size=2000) > 0.0).astype(int)
    whole, stream = EPClassifier(loss).fit(X, y), EPClassifier(loss)
    for i in range(0, 2000, 100):
        stream.partial_fit(X[i : i + 100], y[i : i + 100], classes=[0, 1])
    np.testing.assert_array_less(np.abs(stream.coef_ - whole.coef_), 0.8 * whole.coef_std_)
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.2)
    assert stream.status_ is Status.SINGLE_PASS


def test_fit_intercept_must_not_change_in_the_middle():
    X, y = two_classes()
    model = EPClassifier().partial_fit(X, y, classes=[0, 1])
    before = frozen(model.set_params(fit_intercept=False))
    with pytest.raises(ValueError, match="fit_intercept was True"):
        model.partial_fit(X, y)
    assert frozen(model) == before


@pytest.mark.parametrize("variance", [1.0, 1e4])
@pytest.mark.parametrize("size", [1e7, 1e8, 1e9, 1e10])
def test_sums_whose_rounding_hides_the_prior_give_finite_numbers(size, variance):
    rng = np.random.default_rng(0)
    x = size * rng.normal(size=(20, 1))
    X = np.hstack([x, x, x + 1e-9 * size * rng.normal(size=(20, 1))])
    model = EPRegressor(prior_variance=variance).partial_fit(X, rng.normal(size=20))
    assert np.all(np.isfinite(model.coef_))
    assert np.all((model.coef_std_ > 0.0) & np.isfinite(model.coef_std_))
