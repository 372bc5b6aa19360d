"""The regressor against closed forms, simulated noise of known kind and scale, and changes of units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from estimator_cases import (
    COEF,
    INTERCEPT,
    SquaredHinge,
    assert_same_model,
    batches,
    gaussian_regressor,
    line,
    orthogonal,
    product_regressor,
    regressor,
    two_classes,
)
from scipy import sparse
from scipy.special import erf
from scipy.stats import multivariate_normal, norm, poisson

from cavity import EPRegressor, FactorialGaussian, LinearFactor, Status, fit
from cavity.losses import Absolute, Huber, Logistic, Poisson, Quantile, Squared
from cavity.losses.noise import log_normalizer

REAL = ["squared", "huber", "absolute", "quantile"]


def of(loss, **options):
    return regressor(loss=loss, **options)


def spread(model, X):
    """Variance of the predictor at rows, from the covariance of coefficients and intercept."""
    rows = np.column_stack([X, np.ones(len(X))])
    return np.sum(rows @ model.covariance_ * rows, axis=1)


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


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_bayesian_linear_regression(weighted, storage, covariance):
    """Exact for any design with all correlations, and as a product of Gaussians for an orthogonal one."""
    X, y = orthogonal() if covariance == "diagonal" else line(n=60)
    weights = np.random.default_rng(0).uniform(0.2, 3.0, y.size) if weighted else np.ones(y.size)
    model = gaussian_regressor(fit_intercept=False, prior_mean=0.4, covariance=covariance)
    model.fit(storage(X), y, weights if weighted else None)
    # Sites of a sparse precision begin with small steps, and so come to what is exact only in the limit.
    close = {"rtol": 1e-5, "atol": 1e-6} if covariance == "sparse" else {"rtol": 1e-9, "atol": 1e-12}
    precision = np.eye(4) / 2.0 + (weights[:, None] * X).T @ X / 0.49
    mean, inverse = np.linalg.solve(precision, 0.4 / 2.0 + (weights * y) @ X / 0.49), np.linalg.inv(precision)
    np.testing.assert_allclose(model.coef_, mean, **close)
    np.testing.assert_allclose(model.covariance_, inverse, **close)
    assert (model.intercept_, model.intercept_std_) == (0.0, 0.0)
    value, std = model.predict(storage(X), return_std=True)
    np.testing.assert_allclose(value, X @ mean, **close)
    np.testing.assert_allclose(std, np.sqrt(np.sum(X @ inverse * X, axis=1) + 0.49), **close)
    np.testing.assert_allclose(model.predict(X, quantile=0.9), value + norm.ppf(0.9) * std, **close)


def test_a_product_of_gaussians_has_the_exact_mean_and_a_narrower_posterior():
    """Factorised EP finds the mean of the full posterior, by Laplace's scheme exactly, and conditional variances."""
    X, y = line()
    rows = np.column_stack([X, np.ones(len(X))])
    precision = np.eye(5) / 2.0 + rows.T @ rows / 0.49
    mean, std = np.linalg.solve(precision, rows.T @ y / 0.49), np.diag(precision) ** -0.5
    prior = FactorialGaussian.from_moments(np.zeros(5), 2.0)
    factors = LinearFactor.batches(Squared(0.7), rows, y, 10)
    found = fit(factors, prior, "la", max_iter=50, tol=1e-9, order="shuffled", safeguards=True)
    np.testing.assert_allclose(found.mean, mean, rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(found.std, std, rtol=1e-8)
    model = product_regressor(
        scale=0.7, normalize_y=False, prior_variance=2.0, tol=1e-9, intercept_prior_variance=2.0
    ).fit(X, y)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), mean, rtol=0.0, atol=0.01 * np.min(std))
    np.testing.assert_allclose(np.append(model.coef_std_, model.intercept_std_), std, rtol=0.01)


def test_normalised_targets_mean_a_prior_in_units_of_their_spread():
    X, y = line()
    model = regressor(scale=0.5).fit(X, y)
    offset, unit = model.y_offset_, model.y_scale_
    assert (offset, unit) == pytest.approx((np.mean(y), np.std(y)), rel=1e-8)
    rows = np.column_stack([X, np.ones(len(X))])
    precision = np.diag(1.0 / (unit**2 * np.array([25.0] * 4 + [100.0]))) + rows.T @ rows / 0.25
    mean = np.linalg.solve(precision, rows.T @ (y - offset) / 0.25)
    np.testing.assert_allclose(model.coef_, mean[:4], rtol=1e-9)
    assert model.intercept_ == pytest.approx(offset + mean[4], rel=1e-9)
    np.testing.assert_allclose(model.covariance_, np.linalg.inv(precision), rtol=1e-8, atol=1e-12)
    assert model.coef_.shape == model.coef_std_.shape == (4,)
    assert isinstance(model.intercept_, float)
    assert isinstance(model.intercept_std_, float)
    assert model.scale_ == pytest.approx(0.5)


# The evidence.


def log_density(X, y, variances, scale, center=0.0):
    """Log density of the targets of Bayesian linear regression."""
    cov = scale**2 * np.eye(y.size) + (X * variances) @ X.T
    return multivariate_normal.logpdf(y, np.full(y.size, center), cov)


@pytest.mark.parametrize("covariance", ["full", "sparse"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("scale", [0.1, 0.7, 5.0])
@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_the_evidence_is_the_density_of_the_targets_in_their_own_units(factor, scale, normalize, covariance):
    X, y = line(n=60)
    y, scale = factor * y, factor * scale
    options = {"scale": scale, "normalize_y": normalize, "covariance": covariance, "intercept_prior_variance": 30.0}
    model = regressor(prior_variance=2.0, **options).fit(X, y)
    unit, center = (np.std(y), np.mean(y)) if normalize else (1.0, 0.0)
    rows = np.column_stack([X, np.ones(len(X))])
    wanted = log_density(rows, y, unit**2 * np.array([2.0] * 4 + [30.0]), scale, center)
    assert model.log_evidence_ == pytest.approx(wanted, rel=1e-8)


def test_the_evidence_ranks_columns_that_matter_above_noise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = X[:, :2] @ [2.0, -1.5] + 0.5 * rng.normal(size=60)
    for options in ({}, {"prior_variance": 1.0}, {"normalize_y": False}, {"loss": "huber"}, {"loss": "absolute"}):
        true, noise, none = (EPRegressor(**options).fit(X[:, c], y).log_evidence_ for c in ([0, 1], [2, 3], [2]))
        assert true > max(noise, none) + 20.0, options


def test_the_evidence_of_a_stream_is_that_of_the_fit():
    X, y = line(n=60)
    whole = gaussian_regressor().fit(X, y)
    stream = gaussian_regressor()
    for rows in batches(60, 7):
        stream.partial_fit(X[rows], y[rows])
    assert stream.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9)


@pytest.mark.parametrize("loss", ["absolute", "huber", "quantile", "poisson"])
def test_the_evidence_of_other_losses_is_near_the_integral_of_their_density(loss):
    """One coefficient: the density of all targets is integrated over a grid."""
    X, y = counts(40) if loss == "poisson" else line(n=40)
    X = X[:, :1]
    model = of(loss, fit_intercept=False, normalize_y=False, scale=0.7, quantile=0.3, prior_variance=4.0).fit(X, y)
    theta = np.linspace(-8.0, 8.0, 20001)
    z = X @ theta[None]
    values = model.loss_.value(y[:, None], z) + log_normalizer(model.loss_, y)[:, None]
    log_joint = norm.logpdf(theta, 0.0, 2.0) - np.sum(values, axis=0)
    peak = np.max(log_joint)
    wanted = peak + np.log(np.sum(np.exp(log_joint - peak)) * (theta[1] - theta[0]))
    assert model.log_evidence_ == pytest.approx(wanted, abs=0.05)


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
    assert product_regressor().fit(X, y).scale_ == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize(("n", "d", "noise"), [(100, 200, 0.3), (100, 400, 0.1), (60, 59, 0.3)])
def test_scale_and_prior_variance_are_found_together_where_columns_are_many(n, d, noise):
    """Neighbours of what was found have no more evidence, less the bound on the spread of the predictor."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) / np.sqrt(d) + noise * rng.normal(size=n)
    found = EPRegressor().fit(X, y)
    raw = found.prior_variance_ / found.prior_units_**2

    def bounded(scale_factor, variance_factor):
        other = EPRegressor(scale=scale_factor * found.scale_, prior_variance=variance_factor * raw).fit(X, y)
        return other.log_evidence_ - 0.5 * 0.04**2 * d * variance_factor * found.prior_variance_

    for factors in ((0.8, 1.0), (1.25, 1.0), (1.0, 0.7), (1.0, 1.4), (0.8, 1.2)):
        assert bounded(*factors) < bounded(1.0, 1.0) + 0.02


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
    np.testing.assert_allclose(std**2, spread(model, fresh), rtol=1e-8)


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
    variance = spread(model, X)
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
        assert_same_model(named, regressor(loss=loss, normalize_y=False).fit(X, y))
    assert of("huber", epsilon=2.0).fit(X, y).loss_.threshold == 2.0
    for wrong in ("logistic", Logistic(), SquaredHinge(), 3, None):
        with pytest.raises(ValueError, match="loss must be"):
            regressor(loss=wrong).fit(X, y)


@pytest.mark.parametrize("scale", [1, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2)])
def test_a_scale_may_be_any_kind_of_number(scale):
    X, y = line()
    model = gaussian_regressor(scale=scale).fit(X, y)
    assert_same_model(model, gaussian_regressor(scale=float(scale)).fit(X, y))
    # Another type would be another compilation of a product of Gaussians.
    assert {type(field) for field in model.loss_} == {float}
    assert {type(field) for field in of("huber", epsilon=1, scale=scale).fit(X, y).loss_} == {float}


# Units.


@pytest.mark.parametrize(("factor", "offset"), [(1e3, 0.0), (1e-4, 7.0), (2.0, -1e3)])
@pytest.mark.parametrize("loss", REAL)
def test_predictions_follow_the_units_of_the_targets(loss, factor, offset):
    X, y = line()
    a, b = of(loss).fit(X, y), of(loss).fit(X, factor * y + offset)
    tolerance = {"rtol": 1e-4, "atol": 1e-4 * factor}
    for options in ({}, {"quantile": 0.8}):
        np.testing.assert_allclose(b.predict(X, **options), factor * a.predict(X, **options) + offset, **tolerance)
    np.testing.assert_allclose(b.predict(X, True)[1], factor * a.predict(X, True)[1], **tolerance)
    np.testing.assert_allclose(b.coef_, factor * a.coef_, **tolerance)
    np.testing.assert_allclose(b.coef_std_, factor * a.coef_std_, **tolerance)
    assert b.intercept_ == pytest.approx(factor * a.intercept_ + offset, rel=1e-4, abs=1e-4 * factor)
    assert b.scale_ == pytest.approx(factor * a.scale_, rel=1e-4)
    draws = a.sample_coef(5, 0, return_intercept=True), b.sample_coef(5, 0, return_intercept=True)
    np.testing.assert_allclose(draws[1][0], factor * draws[0][0], **tolerance)
    np.testing.assert_allclose(draws[1][1], factor * draws[0][1] + offset, **tolerance)


@pytest.mark.parametrize("value", [0.0, 5.0, -1e9])
def test_constant_targets_are_predicted(value):
    X, _ = line()
    for loss in ("squared", "absolute"):
        model = of(loss, scale=1.0).fit(X[:50], np.full(50, value))
        np.testing.assert_allclose(model.predict(X[:50]), value, rtol=1e-6, atol=1e-6)
        assert (model.y_offset_, model.y_scale_) == (value, abs(value) or 1.0)


@pytest.mark.parametrize("offset", [1e6, -1e9])
def test_targets_far_from_zero_keep_their_digits(offset):
    X, y = line()
    a, b = regressor().fit(X, y), regressor().fit(X, y + offset)
    np.testing.assert_allclose(b.predict(X) - offset, a.predict(X), rtol=0.0, atol=1e-14 * abs(offset) + 1e-4)
    np.testing.assert_allclose(b.coef_, a.coef_, rtol=0.0, atol=1e-4)


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
    for wrong in (0.0, 1.0, -0.1, np.nan, [], [0.1, 1.5], [[0.5]], "0.5", True, [None], object()):
        with pytest.raises(ValueError, match=r"quantile must be one or several numbers in \(0, 1\)"):
            model.predict(X, quantile=wrong)


@pytest.mark.parametrize("loss", [*REAL, "poisson"])
def test_several_quantiles_are_columns(loss):
    X, y = counts(100) if loss == "poisson" else line(n=100)
    model = of(loss).fit(X, y)
    levels = [0.05, 0.5, 0.95]
    found = model.predict(X[:7], quantile=levels)
    assert found.shape == (7, 3)
    assert np.all(np.diff(found, axis=1) >= 0.0)
    for column, level in zip(found.T, levels, strict=True):
        np.testing.assert_array_equal(column, model.predict(X[:7], quantile=level))
    assert model.predict(X[:7], quantile=np.array([0.5])).shape == (7, 1)
    both, std = model.predict(X[:7], return_std=True, quantile=(0.1, 0.9))
    assert (both.shape, std.shape) == ((7, 2), (7,))


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson", "normal"])
def test_deviations_and_quantiles_of_the_mean_are_those_of_draws_of_the_coefficients(loss):
    X, y = counts(100) if loss == "poisson" else line(n=100)
    model = regressor(loss="normal", scale="linear").fit(X, y) if loss == "normal" else of(loss).fit(X, y)
    mean, std = model.predict(X[:5], return_std="mean")
    interval, same = model.predict(X[:5], return_std="mean", quantile=[0.05, 0.95])
    coef, intercept = model.sample_coef(200_000, random_state=0, return_intercept=True)
    predictors = coef @ X[:5].T + intercept[:, None]
    means = np.exp(predictors) if loss == "poisson" else predictors
    np.testing.assert_allclose(mean, np.mean(means, axis=0), rtol=0.01, atol=0.01)
    np.testing.assert_allclose(std, np.std(means, axis=0), rtol=0.02)
    np.testing.assert_allclose(interval.T, np.quantile(means, [0.05, 0.95], axis=0), rtol=0.02, atol=0.02)
    np.testing.assert_array_equal(same, std)
    assert np.all(std < model.predict(X[:5], return_std=True)[1])


def test_a_deviation_is_of_a_target_or_of_the_mean():
    X, y = line(n=30)
    with pytest.raises(ValueError, match="return_std must be 'mean', got 'target'"):
        regressor().fit(X, y).predict(X, return_std="target")


def test_few_rows_leave_more_doubt_than_many():
    X, y = line()
    few, many = (gaussian_regressor(prior_variance=25.0).fit(X[:n], y[:n]) for n in (6, 600))
    assert np.all(few.predict(X, True)[1] > many.predict(X, True)[1])
    np.testing.assert_allclose(many.predict(X, True)[1], 0.7, rtol=0.05)


@dataclass(frozen=True)
class LogCosh:
    """A user's own loss."""

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.logaddexp(z - y, y - z)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        slope = np.tanh(z - y)
        return self.value(y, z), slope, 1.0 - slope**2


@pytest.mark.parametrize("name", ["absolute", "huber"])
def test_a_loss_of_ones_own_is_in_units_of_the_targets(name):
    X, y = line(n=300)
    y = 40.0 + 10.0 * y
    own = Absolute(7.0) if name == "absolute" else Huber(1.35, 7.0)
    found, named = EPRegressor(own).fit(X, y), EPRegressor(name, scale=7.0).fit(X, y)
    assert found.scale_ == pytest.approx(7.0)
    assert np.all(np.abs(found.coef_ - named.coef_) < 0.02 * named.coef_std_)
    np.testing.assert_allclose(found.coef_std_, named.coef_std_, rtol=0.01)


def test_a_loss_of_ones_own_predicts_means_only():
    X, y = line(n=60)
    model = regressor(loss=LogCosh(), normalize_y=False).fit(X, y)
    np.testing.assert_allclose(model.coef_, COEF, atol=0.4)
    for options in ({"return_std": True}, {"quantile": 0.5}):
        with pytest.raises(ValueError, match="noise that LogCosh stands for is not known"):
            model.predict(X, **options)


# Streams.


def test_targets_of_other_kinds_stream_as_well():
    X, y = two_classes()
    wanted = gaussian_regressor().partial_fit(X, y.astype(float)).partial_fit(X, y.astype(float))
    for form in (np.ndarray.tolist, lambda a: a.astype(np.float32), lambda a: a.astype(bool), lambda a: a):
        model = gaussian_regressor().partial_fit(X, form(y)).partial_fit(X, form(y))
        assert_same_model(model, wanted)


def test_deviations_that_numbers_cannot_hold_are_an_error():
    """In units of y they may underflow, though those of the normalised targets do not."""
    X, y = line()
    with pytest.raises(ValueError, match="the posterior is beyond what numbers can hold"):
        EPRegressor().fit(1e30 * X, 1e-300 * y)
