"""Default fits end where the evidence has its maximum, in any units, after few more loops than with a given prior."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from estimator_cases import state_of
from sklearn.preprocessing import scale

from cavity import EPClassifier, EPRegressor, Status

CLASSES = ["logistic", "hinge"]
REALS = ["squared", "absolute", "huber", "quantile"]
RATES = ["poisson", "negative_binomial", "gamma"]
N, D = 150, 6


def penalised(model, size):
    """Log evidence with the half-normal prior of the standard deviation of the predictor."""
    rate = 0.04 if model.loss_.targets == "reals" else 0.2
    return model.log_evidence_ - 0.5 * rate**2 * size * model.prior_variance_


def data(loss, n=N, size=0.6, seed=0):
    """Standardised rows, and targets of the kind that the loss is for."""
    rng = np.random.default_rng(seed)
    X = scale(rng.normal(size=(n, D)))
    z = X @ (size * rng.normal(size=D))
    if loss in CLASSES:
        return X, (z + rng.logistic(size=n) > 0.0).astype(int)
    if loss in REALS:
        return X, z + rng.standard_t(4, size=n)
    mean = np.exp(0.5 + 0.5 * z)
    return X, {
        "poisson": lambda: rng.poisson(mean),
        "negative_binomial": lambda: rng.poisson(mean * rng.gamma(4.0, 0.25, n)),
        "gamma": lambda: mean * rng.gamma(4.0, 0.25, n),
    }[loss]()


def model_of(loss, **options):
    return EPClassifier(loss, **options) if loss in CLASSES else EPRegressor(loss, **options)


def bounded(model):
    """Log evidence and the half-normal prior of the deviation of the predictor, for standardised columns."""
    return penalised(model, D)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("loss", [*CLASSES, *REALS, *RATES])
def test_the_evidence_found_is_that_of_the_best_of_a_grid(loss, seed):
    X, y = data(loss, seed=seed)
    found = model_of(loss).fit(X, y)
    assert found.status_ is Status.CONVERGED
    np.testing.assert_allclose(found.prior_units_, 1.0, rtol=1e-6)
    has_scale = loss in REALS or loss in ("negative_binomial", "gamma")
    factors = np.exp([-0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.5]) if has_scale else [None]
    best = -np.inf
    for v in found.prior_variance_ * np.exp([-3.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 3.0]):
        for factor in factors:
            given = {} if factor is None else {"scale": factor * found.scale_}
            best = max(best, bounded(model_of(loss, prior_variance=v, tol=1e-4, **given).fit(X, y)))
    assert bounded(found) > best - 0.02


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_of_more_columns_than_rows_too(loss):
    rng = np.random.default_rng(1)
    X = scale(rng.normal(size=(40, 60)))
    y = X @ rng.normal(size=60) / 8.0 + 0.3 * rng.normal(size=40)
    found = EPRegressor(loss).fit(X, y)
    size = 60.0

    def value(model):
        return penalised(model, size)

    grid = [
        value(EPRegressor(loss, prior_variance=v, scale=s, tol=1e-4).fit(X, y))
        for v in found.prior_variance_ * np.exp([-2.0, -0.5, 0.0, 0.5, 2.0])
        for s in found.scale_ * np.exp([-2.0, -0.5, 0.0, 0.5, 1.0])
    ]
    assert value(found) > max(grid) - 0.02


@pytest.mark.parametrize("loss", [*CLASSES, *REALS, *RATES])
def test_loops_are_at_most_a_few_more_than_with_what_was_found(loss):
    found, given = 0, 0
    for seed in range(4):
        X, y = data(loss, seed=seed)
        model = model_of(loss).fit(X, y)
        fixed = {} if loss in CLASSES or loss == "poisson" else {"scale": model.scale_}
        found += model.n_iter_
        given += model_of(loss, prior_variance=model.prior_variance_, **fixed).fit(X, y).n_iter_
    assert found <= 2.5 * given


@pytest.mark.parametrize("loss", [*CLASSES, *REALS, *RATES])
def test_columns_that_say_nothing_have_next_to_no_variance(loss):
    """Targets are the same at x and at -x: no slope explains anything."""
    X, y = data(loss, size=0.0)
    model = model_of(loss, tol=1e-6).fit(np.concatenate([X, -X]), np.concatenate([y, y]))
    assert model.status_ is Status.CONVERGED
    assert 0.0 < model.prior_variance_ * D < 1e-3
    np.testing.assert_allclose(model.coef_, 0.0, atol=1e-6)


# Units.


@pytest.mark.parametrize("loss", ["logistic", "squared", "huber"])
@pytest.mark.parametrize("seed", range(2))
def test_units_and_origins_of_the_columns_do_not_matter(loss, seed):
    rng = np.random.default_rng(seed)
    X, y = data(loss)
    unit, shift = 10.0 ** rng.uniform(-8.0, 8.0, D), rng.uniform(-1000.0, 1000.0, D)
    raw = unit * (X + shift)
    one, other = model_of(loss, tol=1e-6).fit(X, y), model_of(loss, tol=1e-6).fit(raw, y)
    if loss == "logistic":
        np.testing.assert_allclose(other.predict_proba(raw), one.predict_proba(X), rtol=0.0, atol=1e-6)
    else:
        for found, wanted in zip(other.predict(raw, return_std=True), one.predict(X, return_std=True), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert other.prior_variance_ == pytest.approx(one.prior_variance_, rel=1e-4)
    np.testing.assert_allclose(other.coef_ * unit, one.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(other.coef_std_ * unit, one.coef_std_, rtol=1e-4)
    assert other.log_evidence_ == pytest.approx(one.log_evidence_, abs=0.2)  # priors of intercepts differ in place


def test_a_given_variance_is_that_of_coefficients_of_the_columns_as_they_are():
    X, y = data("logistic")
    units = np.array([1e-3, 1.0, 50.0, 1.0, 2.0, 10.0])
    one = EPClassifier(prior_variance=2.0, tol=1e-6).fit(X, y)
    other = EPClassifier(prior_variance=2.0 / units**2, tol=1e-6).fit(X * units, y)
    np.testing.assert_array_equal(other.prior_units_, 1.0)
    np.testing.assert_allclose(other.coef_ * units, one.coef_, rtol=1e-5)
    assert other.log_evidence_ == pytest.approx(one.log_evidence_, rel=1e-8)


def people(n=600):
    rng = np.random.default_rng(0)
    X = np.c_[rng.uniform(20.0, 80.0, n), rng.lognormal(10.0, 0.5, n)]
    return X, rng


def test_age_and_income_in_their_own_units():
    X, rng = people()
    y = 0.06 * (X[:, 0] - 50.0) + rng.logistic(size=600) > 0.0
    model, given = EPClassifier().fit(X, y), EPClassifier(prior_variance=1e-3).fit(X, y)
    assert model.status_ is Status.CONVERGED
    assert model.log_evidence_ > -373.0
    assert abs(model.coef_[0, 0] - 0.06) < 3.0 * model.coef_std_[0, 0]
    assert model.coef_[0, 0] == pytest.approx(given.coef_[0, 0], abs=0.5 * given.coef_std_[0, 0])
    assert model.coef_std_[0, 0] == pytest.approx(0.0057, rel=0.1)
    assert model.score(X, y) > 0.65


def test_a_slope_of_three_per_year():
    X, rng = people()
    y = 3.0 * X[:, 0] + rng.normal(size=600)
    model = EPRegressor().fit(X, y)
    assert model.coef_[0] == pytest.approx(3.0, abs=4.0 * model.coef_std_[0])
    assert model.coef_std_[0] < 0.01
    assert model.score(X, y) > 0.99
    assert model.scale_ == pytest.approx(1.0, rel=0.1)


# The same model in two spellings.


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_a_text_column_and_its_dummies_in_a_group_have_the_same_variance(make):
    rng = np.random.default_rng(2)
    level, x = rng.integers(0, 12, 800), rng.normal(size=800)
    z = x + rng.normal(size=12)[level]
    y = (z + rng.logistic(size=800) > 0.0).astype(int) if make is EPClassifier else z + rng.normal(size=800)
    text = pd.DataFrame({"x": x, "level": np.char.add("l", level.astype(str))})
    dummies = np.column_stack([x, level[:, None] == np.arange(12)]).astype(float)
    one = make(prior_variance=100.0).fit(text, y)
    other = make(prior_variance=100.0, prior_groups={"level": np.arange(1, 13).tolist()}).fit(dummies, y)
    assert other.prior_variance_["level"] == pytest.approx(one.prior_variance_["level"], rel=0.01)
    assert other.coef_.ravel()[0] == pytest.approx(one.coef_.ravel()[0], abs=0.02 * one.coef_std_.ravel()[0])


@pytest.mark.parametrize("variance", [0.0, 1.0])
def test_few_levels_have_the_variance_of_an_analysis_of_variance(variance):
    """Balanced levels: the expected mean squares between and within give the restricted maximum in closed form."""
    rng = np.random.default_rng(4)
    levels, rows = 20, 50
    effects = rng.normal(size=levels)
    effects = np.sqrt(variance) * (effects - np.mean(effects)) / np.std(effects)
    y = (effects[:, None] + scale(rng.normal(size=(levels, rows)), axis=1)).ravel()
    text = pd.DataFrame({"level": np.repeat([f"l{k}" for k in range(levels)], rows)})
    means = y.reshape(levels, rows).mean(axis=1)
    within = np.sum((y.reshape(levels, rows) - means[:, None]) ** 2) / (levels * (rows - 1))
    between = max(np.var(means, ddof=1) - within / rows, 0.0)
    model = EPRegressor(intercept_prior_variance=1e6).fit(text, y)
    assert np.max(state_of(model).priors[0].variance[:levels]) * model.y_scale_**2 == pytest.approx(
        between, rel=0.03, abs=0.001
    )
    assert model.scale_ == pytest.approx(np.sqrt(within), rel=0.01)
