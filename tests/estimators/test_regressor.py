"""The regressor against closed forms, simulated noise of known kind and scale, and changes of units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from estimator_cases import (
    COEF,
    INTERCEPT,
    PARITY,
    SquaredHinge,
    assert_same_model,
    batches,
    gaussian_regressor,
    line,
    orthogonal,
    regressor,
    two_classes,
    unsettled,
)
from scipy import sparse
from scipy.special import erf
from scipy.stats import norm, poisson

import cavity
from cavity import LinearFactor, Status
from cavity.losses import Absolute, Huber, Logistic, Poisson, Quantile, Squared

# Losses with kinks need a scheme that sees further than their curvature, which is zero.
SCHEMES = {"squared": "la", "huber": "la", "absolute": "vq", "quantile": "vq", "poisson": "la"}
REAL = ["squared", "huber", "absolute", "quantile"]


def of(loss, **options):
    return regressor(loss=loss, scheme=SCHEMES[loss], **options)


def counts(n=600, seed=0):
    rng = np.random.default_rng(seed)
    X = 0.5 * rng.normal(size=(n, 4))
    return X, rng.poisson(np.exp(X @ COEF + INTERCEPT)).astype(float)


def huber_noise(rng, n, threshold=1.35, scale=0.7):
    """Draws from the density whose logarithm is minus the Huber loss, by rejection from a Gaussian and two tails."""
    middle = np.sqrt(2.0 * np.pi) * erf(threshold / np.sqrt(2.0))
    tails = 2.0 * np.exp(-0.5 * threshold**2) / threshold
    inside = rng.normal(size=20 * n)
    inside = inside[np.abs(inside) < threshold][:n]
    outside = (threshold + rng.exponential(1.0 / threshold, n)) * rng.choice([-1.0, 1.0], n)
    return scale * np.where(rng.random(n) < middle / (middle + tails), inside, outside)


def pinball_noise(rng, n, quantile, scale=0.7):
    """Draws from the asymmetric Laplace density, below zero with the probability of the quantile."""
    below = rng.random(n) < quantile
    return scale * np.where(below, -rng.exponential(1.0 / (1.0 - quantile), n), rng.exponential(1.0 / quantile, n))


def noisy(kind, n, seed, quantile=0.3):
    """A plane with noise of the kind of a loss."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    noise = {
        "squared": lambda: 0.7 * rng.normal(size=n),
        "absolute": lambda: rng.laplace(scale=0.7, size=n),
        "huber": lambda: huber_noise(rng, n),
        "quantile": lambda: pinball_noise(rng, n, quantile),
    }
    return X, X @ COEF + INTERCEPT + noise[kind]()


# Closed forms.


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_orthogonal_design_is_bayesian_linear_regression(weighted, storage):
    X, y = orthogonal()
    weights = np.random.default_rng(0).uniform(0.2, 3.0, y.size) if weighted else np.ones(y.size)
    model = gaussian_regressor(fit_intercept=False, prior_mean=0.4).fit(storage(X), y, weights if weighted else None)
    precision = np.diag(1.0 / 2.0 + (weights[:, None] * X).T @ X / 0.49)
    mean = (0.4 / 2.0 + (weights * y) @ X / 0.49) / precision
    np.testing.assert_allclose(model.coef_, mean, rtol=1e-10)
    np.testing.assert_allclose(model.coef_std_, precision**-0.5, rtol=1e-10)
    assert (model.intercept_, model.intercept_std_) == (0.0, 0.0)
    value, std = model.predict(storage(X), return_std=True)
    np.testing.assert_allclose(value, X @ mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(std, np.sqrt(X**2 @ (1.0 / precision) + 0.49), rtol=1e-10)
    np.testing.assert_allclose(model.predict(X, quantile=0.9), value + norm.ppf(0.9) * std, rtol=1e-10, atol=1e-12)
    assert model.n_iter_ <= 3


def test_any_design_has_the_exact_mean_and_a_narrower_posterior():
    """Factorised EP finds the mean of the full posterior, and its conditional variances."""
    X, y = line()
    model = gaussian_regressor(tol=1e-9, intercept_prior_variance=2.0).fit(X, y)
    rows = np.column_stack([X, np.ones(len(X))])
    precision = np.eye(5) / 2.0 + rows.T @ rows / 0.49
    mean = np.linalg.solve(precision, rows.T @ y / 0.49)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), mean, rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(np.append(model.coef_std_, model.intercept_std_), np.diag(precision) ** -0.5, rtol=1e-8)


def test_a_fit_is_that_of_the_library_on_normalised_targets():
    X, y = line()
    model = regressor(scale=0.5, shuffle=False).fit(X, y)
    spread = np.std(y)
    assert (model.y_offset_, model.y_scale_) == pytest.approx((np.mean(y), spread), rel=1e-14)
    rows = np.column_stack([X, np.ones(len(X))])
    prior = cavity.FactorialGaussian.from_moments(np.zeros(5), [25.0] * 4 + [100.0])
    factors = LinearFactor.batches(Squared(0.5 / model.y_scale_), rows, (y - model.y_offset_) / model.y_scale_)
    result = cavity.fit(factors, prior, "la", loops=50)
    assert model.posterior_ == (result.posterior,)
    np.testing.assert_allclose(model.coef_, model.y_scale_ * result.mean[:4], rtol=1e-14)
    np.testing.assert_allclose(model.coef_std_, model.y_scale_ * result.std[:4], rtol=1e-14)
    assert model.intercept_ == pytest.approx(model.y_offset_ + model.y_scale_ * result.mean[4])
    assert model.intercept_std_ == pytest.approx(model.y_scale_ * result.std[4])
    assert (model.status_, model.trace_, model.n_iter_) == (result.status, result.trace, len(result.trace.changes))
    assert model.log_evidence_ == result.log_evidence
    assert model.coef_.shape == model.coef_std_.shape == (4,)
    assert isinstance(model.intercept_, float)
    assert isinstance(model.intercept_std_, float)
    assert model.scale_ == pytest.approx(0.5)


# Losses.


@pytest.mark.parametrize("loss", REAL)
def test_the_plane_and_the_scale_of_the_noise_are_found(loss):
    X, y = noisy(loss, 2000, seed=1)
    model = of(loss, quantile=0.3).fit(X, y)
    assert model.status_ is Status.CONVERGED
    assert model.scale_ == pytest.approx(0.7, rel=0.1)
    np.testing.assert_array_less(np.abs(model.coef_ - COEF), 5.0 * model.coef_std_)
    assert abs(model.intercept_ - INTERCEPT) < 5.0 * model.intercept_std_


@pytest.mark.parametrize("scale", [0.01, 0.7, 30.0])
def test_the_scale_is_found_whatever_it_is(scale):
    X, y = line(size=scale)
    assert regressor().fit(X, y).scale_ == pytest.approx(scale, rel=0.1)
    assert regressor(normalize_y=False).fit(X, y).scale_ == pytest.approx(scale, rel=0.1)


def test_a_given_scale_is_kept():
    X, y = line()
    for normalize in (True, False):
        assert regressor(scale=2.5, normalize_y=normalize).fit(X, y).scale_ == pytest.approx(2.5)
    assert regressor(loss=Squared(2.0), normalize_y=False).fit(X, y).scale_ == 2.0


@pytest.mark.parametrize("q", [0.1, 0.25, 0.5, 0.9])
def test_the_predicted_quantile_has_its_share_of_targets_below(q):
    X, y = noisy("squared", 2000, seed=2)
    model = of("quantile", quantile=q).fit(X, y)
    assert np.mean(y < model.predict(X)) == pytest.approx(q, abs=0.02)
    fresh, targets = noisy("squared", 4000, seed=3)
    assert np.mean(targets < model.predict(fresh)) == pytest.approx(q, abs=0.03)
    _, std = model.predict(fresh, return_std=True)
    np.testing.assert_allclose(std**2, fresh**2 @ model.coef_std_**2 + model.intercept_std_**2, rtol=1e-10)


def test_outliers_pull_the_squared_loss_only():
    X, y = line()
    spoilt = np.array(y)
    spoilt[::15] += 60.0
    errors = {loss: np.max(np.abs(of(loss).fit(X, spoilt).coef_ - COEF)) for loss in ("squared", "huber", "absolute")}
    assert errors["huber"] < 0.2
    assert errors["absolute"] < 0.2
    assert errors["squared"] > 2.0 * max(errors["huber"], errors["absolute"])


def test_counts_are_explained_by_their_logarithm():
    X, y = counts()
    model = of("poisson").fit(X, y)
    np.testing.assert_array_less(np.abs(model.coef_ - COEF), 5.0 * model.coef_std_)
    assert abs(model.intercept_ - INTERCEPT) < 5.0 * model.intercept_std_
    mean, std = model.predict(X, return_std=True)
    variance = X**2 @ model.coef_std_**2 + model.intercept_std_**2
    np.testing.assert_allclose(mean, np.exp(X @ model.coef_ + model.intercept_ + 0.5 * variance), rtol=1e-10)
    np.testing.assert_allclose(std**2, mean + mean**2 * np.expm1(variance), rtol=1e-8)
    median = model.predict(X, quantile=0.5)
    np.testing.assert_array_equal(median, np.round(median))
    assert np.mean(np.abs(median - poisson.ppf(0.5, mean)) <= 1.0) > 0.99
    assert (model.y_offset_, model.y_scale_, model.scale_) == (0.0, 1.0, 1.0)
    assert_same_model(model, regressor(loss=Poisson()).fit(X, y))


def test_counts_beyond_all_bounds_are_infinite_without_a_warning():
    X, y = counts()
    model = of("poisson").fit(X, y)
    mean, std = model.predict(np.full((1, 4), 1e4), return_std=True)
    assert (mean[0], std[0]) == (np.inf, np.inf)


@pytest.mark.parametrize("bad", [-1.0, -0.5])
def test_negative_counts_are_refused(bad):
    X, y = counts(50)
    y[7] = bad
    for model in (of("poisson"), regressor(loss=Poisson())):
        with pytest.raises(ValueError, match="counts"):
            model.fit(X, y)


def test_a_loss_has_a_name_or_is_an_object():
    X, y = line()
    for name, loss in (
        ("squared", Squared(0.7)),
        ("absolute", Absolute(0.7)),
        ("huber", Huber(1.35, 0.7)),
        ("quantile", Quantile(0.5, 0.7)),
    ):
        named = of(name, scale=0.7, normalize_y=False).fit(X, y)
        assert_same_model(named, regressor(loss=loss, scheme=SCHEMES[name], normalize_y=False).fit(X, y))
    assert of("huber", epsilon=2.0).fit(X, y)._loss.threshold == 2.0
    for wrong in ("logistic", Logistic(), SquaredHinge(), 3, None):
        with pytest.raises(ValueError, match="loss must be"):
            regressor(loss=wrong).fit(X, y)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"scale": 0.0}, "scale must be a positive number or 'auto'"),
        ({"scale": "large"}, "scale must be a positive number or 'auto'"),
        ({"scale": np.nan}, "scale must be a positive number or 'auto'"),
        ({"loss": "quantile", "quantile": 1.0}, r"quantile must lie in \(0, 1\)"),
        ({"loss": "huber", "epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_parameters_out_of_range_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        regressor(**options).fit(*line())


@pytest.mark.parametrize("scale", [1, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2)])
def test_a_scale_may_be_any_kind_of_number(scale):
    X, y = line()
    model = gaussian_regressor(scale=scale).fit(X, y)
    assert_same_model(model, gaussian_regressor(scale=float(scale)).fit(X, y))
    assert {type(field) for field in model._loss} == {float}  # another type would be another compilation
    assert {type(field) for field in of("huber", epsilon=1, scale=scale).fit(X, y)._loss} == {float}


# Units.


@pytest.mark.parametrize(("factor", "offset"), [(1e3, 0.0), (1e-4, 7.0), (2.0, -1e3)])
@pytest.mark.parametrize("loss", REAL)
def test_predictions_follow_the_units_of_the_targets(loss, factor, offset):
    X, y = line()
    a, b = of(loss).fit(X, y), of(loss).fit(X, factor * y + offset)
    tolerance = {"rtol": 1e-5, "atol": 1e-5 * factor}
    for options in ({}, {"quantile": 0.8}):
        np.testing.assert_allclose(b.predict(X, **options), factor * a.predict(X, **options) + offset, **tolerance)
    np.testing.assert_allclose(b.predict(X, True)[1], factor * a.predict(X, True)[1], **tolerance)
    np.testing.assert_allclose(b.coef_, factor * a.coef_, **tolerance)
    np.testing.assert_allclose(b.coef_std_, factor * a.coef_std_, **tolerance)
    assert b.intercept_ == pytest.approx(factor * a.intercept_ + offset, rel=1e-5, abs=1e-5 * factor)
    assert b.scale_ == pytest.approx(factor * a.scale_, rel=1e-5)
    draws = a.sample_coef(5, 0, return_intercept=True), b.sample_coef(5, 0, return_intercept=True)
    np.testing.assert_allclose(draws[1][0], factor * draws[0][0], **tolerance)
    np.testing.assert_allclose(draws[1][1], factor * draws[0][1] + offset, **tolerance)


@pytest.mark.parametrize("value", [0.0, 5.0, -1e9])
def test_constant_targets_are_predicted(value):
    X, _ = line()
    for loss in ("squared", "absolute"):
        model = of(loss, scale=1.0).fit(X[:50], np.full(50, value))
        np.testing.assert_allclose(model.predict(X[:50]), value, rtol=1e-6, atol=1e-6)
        assert (model.y_offset_, model.y_scale_) == (value, 1.0)


def test_targets_without_noise_are_met():
    X, _ = line()
    model = regressor().fit(X, X @ COEF + INTERCEPT)
    np.testing.assert_allclose(model.predict(X), X @ COEF + INTERCEPT, atol=1e-3)
    assert model.scale_ < 1e-2


# What is predicted of new targets.


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_deviations_and_quantiles_cover_their_share_of_new_targets(loss):
    X, y = noisy(loss, 1000, seed=4)
    model = of(loss).fit(X, y)
    fresh, targets = noisy(loss, 5000, seed=5)
    value, std = model.predict(fresh, return_std=True)
    assert np.std(targets - value) == pytest.approx(np.mean(std), rel=0.1)
    for share in (0.05, 0.5, 0.9):
        below = np.mean(targets < model.predict(fresh, quantile=share))
        assert below == pytest.approx(share, abs=0.04), share
    inside = (targets > model.predict(fresh, quantile=0.025)) & (targets < model.predict(fresh, quantile=0.975))
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_a_deviation_and_a_quantile_may_be_asked_for_at_once():
    X, y = line()
    model = regressor().fit(X, y)
    upper, std = model.predict(X[:3], return_std=True, quantile=0.9)
    np.testing.assert_allclose(upper, model.predict(X[:3]) + norm.ppf(0.9) * std)
    for wrong in (0.0, 1.0, -0.1, np.nan):
        with pytest.raises(ValueError, match=r"quantile must lie in \(0, 1\)"):
            model.predict(X, quantile=wrong)


def test_few_rows_leave_more_doubt_than_many():
    X, y = line()
    few, many = (gaussian_regressor(prior_variance=25.0).fit(X[:n], y[:n]) for n in (6, 600))
    assert np.all(few.predict(X, True)[1] > many.predict(X, True)[1])
    np.testing.assert_allclose(many.predict(X, True)[1], 0.7, rtol=0.05)


@dataclass(frozen=True)
class LogCosh:
    """A user's own loss; no tuple, so that the plain engine serves it."""

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.logaddexp(z - y, y - z)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        slope = np.tanh(z - y)
        return self.value(y, z), slope, 1.0 - slope**2


def test_a_loss_of_ones_own_predicts_means_only():
    X, y = line(n=60)
    model = regressor(loss=LogCosh(), normalize_y=False).fit(X, y)
    np.testing.assert_allclose(model.coef_, COEF, atol=0.4)
    for options in ({"return_std": True}, {"quantile": 0.5}):
        with pytest.raises(ValueError, match="noise that LogCosh stands for is not known"):
            model.predict(X, **options)


# Streams.


@pytest.mark.parametrize("loss", ["huber", "absolute", "poisson"])
def test_mini_batches_one_by_one_equal_a_single_pass(loss):
    X, y = counts() if loss == "poisson" else line()
    options = {"normalize_y": False} | ({} if loss == "poisson" else {"scale": 0.7})
    with unsettled():
        whole = of(loss, loops=1, shuffle=False, **options).fit(X, y)
        model = of(loss, **options)
        for rows in batches(y.size, 10):
            model.partial_fit(X[rows], y[rows])
    assert_same_model(model, whole, PARITY)


def test_targets_of_other_kinds_stream_as_well():
    X, y = two_classes()
    wanted = gaussian_regressor().partial_fit(X, y.astype(float)).partial_fit(X, y.astype(float))
    for form in (np.ndarray.tolist, lambda a: a.astype(np.float32), lambda a: a.astype(bool), lambda a: a):
        model = gaussian_regressor().partial_fit(X, form(y)).partial_fit(X, form(y))
        assert_same_model(model, wanted)
