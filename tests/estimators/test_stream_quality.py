"""One pass over correlated columns with a wide prior, rare columns among them: `partial_fit` with its defaults."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from estimator_cases import assert_same_model, batches, frozen, two_classes
from scipy import sparse

from cavity import EPClassifier, EPRegressor, FactorialGaussian, LinearFactor
from cavity.correlated import CorrelatedGaussian
from cavity.full import fit_full
from cavity.losses import Hinge, Logistic
from cavity.mode import find_mode

CALL = 100
PRIOR = FactorialGaussian.from_moments(np.zeros(21), np.append(np.full(20, 25.0), 100.0))
LOSSES = {"logistic": Logistic(), "hinge": Hinge()}


@cache
def ordinary():
    """Columns of unit variance that hang together, and some with a few entries each: one of them all of one sign."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 20)) @ (0.3 * np.eye(20) + rng.normal(size=(20, 20)) / 4.0)
    rare = [rng.choice(3000, 12, replace=False) for _ in range(4)]
    for j, chosen in enumerate(rare):
        X[:, j] = np.isin(np.arange(3000), chosen)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    theta = np.append(np.zeros(4), rng.normal(size=16) / 2.0)
    y = (X @ theta - 0.5 + rng.logistic(size=3000) > 0.0).astype(int)
    y[rare[0]] = 0
    return X, y


@cache
def truth(name):
    """The lowest cost, and the posterior of EP with a full covariance."""
    X, y = ordinary()
    factors = LinearFactor.batches(LOSSES[name], np.column_stack([X, np.ones(y.size)]), 2.0 * y - 1.0, CALL)
    return factors, cost(factors, find_mode(factors, PRIOR, width=0.01).point), fit_full(factors, PRIOR)


def cost(factors, point):
    return float(np.sum(factors.losses(point)) + 0.5 * PRIOR.precision @ point**2)


def streamed(model, X, y, size=CALL, **first):
    for rows in batches(y.size, size):
        model.partial_fit(X[rows], y[rows], **first)
        first = {}
    return model


@pytest.mark.parametrize(("name", "bar"), [("logistic", 1.02), ("hinge", 1.05)])
def test_one_pass_comes_near_the_minimum_and_knows_how_near(name, bar):
    X, y = ordinary()
    factors, lowest, full = truth(name)
    model = streamed(EPClassifier(name), X, y, classes=[0, 1])
    mean, std = np.append(model.coef_[0], model.intercept_), np.append(model.coef_std_[0], model.intercept_std_)
    assert cost(factors, mean) < bar * lowest
    ratios = std / np.sqrt(full.variance)
    assert 0.9 < np.median(ratios) < 1.15
    assert np.min(ratios) > 0.33
    assert np.sqrt(np.mean((mean - full.mean) ** 2 / full.variance)) < 1.5


def test_all_rows_at_once_equal_hundreds_one_by_one():
    X, y = ordinary()
    one_by_one = streamed(EPClassifier("hinge"), X[:450], y[:450], classes=[0, 1])
    at_once = EPClassifier("hinge").partial_fit(X[:450], y[:450], classes=[0, 1])
    assert_same_model(one_by_one, at_once)
    assert one_by_one.trace_.updates == at_once.trace_.updates == 5


def test_gaussian_noise_makes_streams_exact_and_merging_too():
    X, _ = ordinary()
    X, y = X[:600, 4:], X[:600, 4:] @ np.linspace(-1.0, 1.0, 16) + np.random.default_rng(1).normal(size=600)
    options = {"scale": 1.0, "normalize_y": False, "fit_intercept": False}
    whole = streamed(EPRegressor(**options), X, y, size=70)
    precision = np.eye(16) / 25.0 + X.T @ X
    np.testing.assert_allclose(whole.coef_, np.linalg.solve(precision, X.T @ y), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(whole.coef_std_, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-8)
    halves = [EPRegressor(**options).partial_fit(X[part], y[part]) for part in (slice(0, 250), slice(250, 600))]
    assert_same_model(halves[0].merge(halves[1]), whole, 1e-8)
    rows = X[:5]
    _, std = whole.predict(rows, return_std=True)
    np.testing.assert_allclose(std**2 - 1.0, np.sum(rows @ np.linalg.inv(precision) * rows, axis=1), rtol=1e-6)
    draws = whole.sample_coef(20000, random_state=0)
    apart = (np.cov(draws.T) - np.linalg.inv(precision)) / np.outer(whole.coef_std_, whole.coef_std_)
    np.testing.assert_allclose(apart, 0.0, atol=0.05)


def test_models_in_different_coordinates_are_not_merged():
    X, y = ordinary()
    one, other = EPClassifier().partial_fit(X[:200], y[:200], classes=[0, 1]), EPClassifier().fit(X[:200], y[:200])
    with pytest.raises(ValueError, match="different bases"):
        one.merge(other)


def test_forgetting_returns_to_the_prior():
    X, y = ordinary()
    model = EPClassifier().partial_fit(X[:200], y[:200], classes=[0, 1])
    model.partial_fit(X[:1], y[:1], sample_weight=[1e-9], forget=1.0 - 1e-9)
    np.testing.assert_allclose(model.coef_, 0.0, atol=1e-5)
    np.testing.assert_allclose(model.coef_std_, 5.0, rtol=1e-5)


def test_a_stream_goes_on_from_a_fit_with_all_it_knows():
    X, y = ordinary()
    model = EPClassifier(random_state=0).fit(X[:1000], y[:1000])
    mean, std = model.coef_.copy(), model.coef_std_.copy()
    model.partial_fit(X[:1], y[:1], sample_weight=[1e-12])
    np.testing.assert_allclose(model.coef_, mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.coef_std_, std, rtol=1e-6)
    assert isinstance(model.posterior_[0], CorrelatedGaussian)


def test_what_asks_for_a_product_gets_one():
    X, y = two_classes()
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    for options in ({"basis": None}, {"basis": "pca"}, {"basis": basis}, {"damping": 0.9}):
        model = EPClassifier(**options).partial_fit(X, y, classes=[0, 1])
        assert isinstance(model.posterior_[0], FactorialGaussian)
    model = EPClassifier().partial_fit(sparse.csr_array(X), y, classes=[0, 1])
    assert isinstance(model.posterior_[0], FactorialGaussian)
    assert isinstance(copy.deepcopy(model).partial_fit(X, y).posterior_[0], FactorialGaussian)


def test_sparse_rows_are_taken_by_a_stream_begun_with_dense_ones():
    X, y = two_classes()
    model = EPClassifier().partial_fit(X, y, classes=[0, 1])
    wanted = copy.deepcopy(model).partial_fit(X, y)
    assert_same_model(model.partial_fit(sparse.csr_array(X), y), wanted)


class Moody(NamedTuple):
    """A user's loss that raises at the third class's rows of the second call."""

    limit: float = 5.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return Logistic().value(y, z)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        if np.size(y) == 7 and np.sum(y) > 0.0:
            raise RuntimeError("not today")
        return Logistic().derivatives(y, z)


def test_a_loss_that_raises_leaves_the_model_as_it_was():
    X, y = ordinary()
    labels = np.where(y[:60] == 0, np.arange(60) % 2, 2)
    model = EPClassifier(Moody()).partial_fit(X[:60], labels, classes=[0, 1, 2])
    untouched, before = copy.deepcopy(model), frozen(model)
    with pytest.raises(RuntimeError, match="not today"):
        model.partial_fit(X[60:67], np.full(7, 2), forget=0.5)
    assert frozen(model) == before
    assert_same_model(model.partial_fit(X[60:65], np.full(5, 2)), untouched.partial_fit(X[60:65], np.full(5, 2)))
