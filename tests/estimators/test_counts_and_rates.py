"""Counts and positive targets: parity with scikit-learn, truth of what is found, scores and errors."""

import numpy as np
import pytest
from estimator_cases import regressor
from scipy.stats import gamma, nbinom
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import d2_absolute_error_score, d2_pinball_score, d2_tweedie_score, r2_score

from cavity.losses import Gamma, NegativeBinomial
from cavity.losses.noise import log_normalizer

COEF, INTERCEPT = np.array([1.0, -1.0, 0.5, 0.0]), 0.7
RATES = ["gamma", "negative_binomial"]
MAKERS = {"gamma": Gamma, "negative_binomial": NegativeBinomial}
weak = {"prior_variance": 1e6, "intercept_prior_variance": 1e6}


def data(loss, n=1500, scale=0.5, seed=0):
    """Rows and targets of mean e^z with this scale."""
    rng = np.random.default_rng(seed)
    X = 0.5 * rng.normal(size=(n, 4))
    k, mean = scale**-2, np.exp(X @ COEF + INTERCEPT)
    if loss == "gamma":
        return X, rng.gamma(k, mean / k)
    return X, rng.poisson(mean if loss == "poisson" else rng.gamma(k, mean / k)).astype(float)


@pytest.mark.parametrize(("loss", "other"), [("gamma", GammaRegressor), ("poisson", PoissonRegressor)])
def test_with_a_weak_prior_means_are_near_those_of_scikit_learn(loss, other):
    X, y = data(loss)
    model, likeliest = regressor(loss=loss, **weak).fit(X, y), other(alpha=0.0, tol=1e-8, max_iter=1000).fit(X, y)
    assert np.max(np.abs(model.coef_ - likeliest.coef_) / model.coef_std_) < 0.1
    assert abs(model.intercept_ - likeliest.intercept_) < 0.1 * model.intercept_std_
    assert model.score(X, y) == pytest.approx(likeliest.score(X, y), abs=1e-3)


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
@pytest.mark.parametrize("scale", [0.3, 0.8])
@pytest.mark.parametrize("loss", RATES)
def test_scale_and_coefficients_are_found(loss, scale, covariance):
    X, y = data(loss, 3000, scale)
    model = regressor(loss=loss, covariance=covariance).fit(X, y)
    assert model.scale_ == pytest.approx(scale, rel=0.1)
    assert np.max(np.abs(model.coef_ - COEF) / model.coef_std_) < 5.0
    assert (model.y_offset_, model.y_scale_) == (0.0, 1.0)


def test_counts_of_poisson_have_no_dispersion_and_its_posterior():
    X, y = data("poisson")
    found, wanted = (regressor(loss=loss, prior_variance=4.0).fit(X, y) for loss in ("negative_binomial", "poisson"))
    assert found.scale_ < 0.25
    assert np.max(np.abs(found.coef_ - wanted.coef_) / wanted.coef_std_) < 0.3
    known = regressor(loss="negative_binomial", scale=1e-4, prior_variance=4.0).fit(X, y)
    np.testing.assert_allclose(known.coef_, wanted.coef_, atol=1e-4)
    assert known.log_evidence_ == pytest.approx(wanted.log_evidence_, abs=0.01)


@pytest.mark.parametrize("loss", RATES)
def test_the_evidence_is_the_logarithm_of_the_density_of_the_targets(loss):
    """One coefficient: an integral over a line."""
    rng = np.random.default_rng(3)
    X, k = np.ones((12, 1)), 4.0
    y = rng.gamma(k, 2.0 / k, 12) if loss == "gamma" else rng.negative_binomial(k, k / (k + 2.0), 12).astype(float)
    model = regressor(loss=loss, scale=0.5, prior_variance=1.0, fit_intercept=False, tol=1e-6).fit(X, y)
    z = np.linspace(-8.0, 8.0, 8001)
    means = np.exp(z)[:, None]
    each = gamma.logpdf(y, k, scale=means / k) if loss == "gamma" else nbinom.logpmf(y, k, k / (k + means))
    log = np.sum(each, axis=1) - 0.5 * z**2 - 0.5 * np.log(2.0 * np.pi)
    density = np.exp(log - np.max(log))
    assert model.log_evidence_ == pytest.approx(np.max(log) + np.log(np.sum(density) * (z[1] - z[0])), abs=0.01)
    mean = np.average(z, weights=density)
    assert model.coef_[0] == pytest.approx(mean, abs=0.01)
    assert model.coef_std_[0] ** 2 == pytest.approx(np.average((z - mean) ** 2, weights=density), rel=0.03)


@pytest.mark.parametrize("loss", RATES)
def test_the_scale_found_is_near_that_of_highest_evidence(loss):
    X, y = data(loss, 300, 0.6)
    found = regressor(loss=loss, prior_variance=1.0).fit(X, y)
    given = [regressor(loss=loss, prior_variance=1.0, scale=f * found.scale_).fit(X, y) for f in (0.8, 1.0, 1.25)]
    evidence = [model.log_evidence_ for model in given]
    assert evidence[1] > max(evidence[0], evidence[2])
    assert found.log_evidence_ == pytest.approx(evidence[1], abs=0.05)


@pytest.mark.parametrize("loss", RATES)
def test_new_targets_lie_in_their_intervals(loss):
    X, y = data(loss, 2000)
    model, (fresh, targets) = regressor(loss=loss).fit(X, y), data(loss, 4000, seed=9)
    low, high = model.predict(fresh, quantile=[0.05, 0.95]).T
    assert np.mean(targets <= high) == pytest.approx(0.95, abs=0.02 if loss == "gamma" else 0.04)
    assert np.mean(targets >= low) > 0.93
    mean, std = model.predict(fresh, return_std=True)
    assert np.mean(((targets - mean) / std) ** 2) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("loss", RATES)
def test_a_loss_object_is_the_loss_of_that_name_and_scale(loss):
    X, y = data(loss, 200)
    named, given = regressor(loss=loss, scale=0.7).fit(X, y), regressor(loss=MAKERS[loss](0.7)).fit(X, y)
    np.testing.assert_array_equal(named.coef_, given.coef_)
    assert named.log_evidence_ == given.log_evidence_
    assert "exp(mean)" in named.summary()
    assert np.all(log_normalizer(named.loss_, y) == log_normalizer(given.loss_, y))


@pytest.mark.parametrize("loss", RATES)
@pytest.mark.parametrize("chunk", [1, 60])
def test_a_stream_comes_near_the_fit(loss, chunk):
    """Streams find dispersion from moments of the rows, which are less precise than the likelihood of a fit."""
    X, y = data(loss, 2400)
    model, fitted = regressor(loss=loss), regressor(loss=loss).fit(X, y)
    for start in range(0, len(y), chunk):
        model.partial_fit(X[start : start + chunk], y[start : start + chunk])
    assert model.scale_ == pytest.approx(fitted.scale_, rel=0.1)
    assert np.max(np.abs(model.coef_ - fitted.coef_) / fitted.coef_std_) < 0.5
    np.testing.assert_allclose(model.coef_std_, fitted.coef_std_, rtol=0.15)
    assert model.log_evidence_ == pytest.approx(fitted.log_evidence_, abs=0.01 * len(y))


@pytest.mark.parametrize("loss", RATES)
def test_halves_merge_to_the_whole(loss):
    X, y = data(loss, 1200)
    halves = [regressor(loss=loss, prior_variance=1.0).fit(X[k::2], y[k::2]) for k in range(2)]
    whole, merged = regressor(loss=loss, prior_variance=1.0).fit(X, y), halves[0].merge(halves[1])
    assert merged.scale_ == pytest.approx(whole.scale_, rel=0.02)
    assert np.max(np.abs(merged.coef_ - whole.coef_) / whole.coef_std_) < 0.2
    assert merged.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1.0)


@pytest.mark.parametrize("loss", RATES)
def test_a_whole_weight_is_a_row_repeated(loss):
    X, y = data(loss, 150)
    weights = np.arange(150) % 3
    found = regressor(loss=loss).fit(X, y, sample_weight=weights)
    wanted = regressor(loss=loss).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(found.coef_, wanted.coef_, atol=0.02 * np.max(wanted.coef_std_))
    assert found.scale_ == pytest.approx(wanted.scale_, rel=1e-2)
    assert found.log_evidence_ == pytest.approx(wanted.log_evidence_, abs=0.1)


@pytest.mark.parametrize(
    ("loss", "bad", "message"),
    [
        ("gamma", 0.0, "needs positive targets, got 0; drop these rows"),
        ("gamma", -1.0, "needs positive targets, got -1"),
        (Gamma(), 0.0, "needs positive targets"),
        ("negative_binomial", -1.0, "needs counts, zero or more, got negative targets"),
        (NegativeBinomial(), -0.5, "needs counts"),
    ],
)
def test_targets_that_a_loss_is_not_made_for_are_refused(loss, bad, message):
    X, y = data("gamma", 50)
    y[7] = bad
    with pytest.raises(ValueError, match=message):
        regressor(loss=loss).fit(X, y)


@pytest.mark.parametrize("loss", RATES)
def test_odd_targets_give_a_model(loss):
    X = data(loss, 40)[0]
    for y in (
        np.full(40, 3.0),
        np.full(40, 1e-12) if loss == "gamma" else np.zeros(40),
        np.geomspace(1.0, 1e9, 40).round(),
    ):
        model = regressor(loss=loss).fit(X, y)
        assert np.all(np.isfinite(model.coef_))
        assert np.isfinite(model.log_evidence_)
        assert 0.0 < model.scale_ < np.inf


def negative_binomial_d2(y, mean, alpha, weights):
    """From log probabilities: of the targets themselves, of a constant, and of the predictions."""
    r = 1.0 / alpha

    def total(m):
        return np.average(nbinom.logpmf(y, r, r / (r + m)), weights=weights)

    best, constant = total(np.maximum(y, 1e-300)), total(np.average(y, weights=weights))
    return 1.0 - (best - total(mean)) / (best - constant)


def test_scores_are_those_of_scikit_learn_for_the_loss():
    X, y = data("negative_binomial", 300)
    y = y + 1.0
    weights = np.random.default_rng(0).uniform(0.1, 2.0, len(y))
    wanted = {
        "squared": r2_score,
        "huber": r2_score,
        "absolute": d2_absolute_error_score,
        "quantile": lambda *a, **k: d2_pinball_score(*a, alpha=0.3, **k),
        "poisson": lambda *a, **k: d2_tweedie_score(*a, power=1, **k),
        "gamma": lambda *a, **k: d2_tweedie_score(*a, power=2, **k),
    }
    for loss, score in wanted.items():
        model = regressor(loss=loss, quantile=0.3, tol=0.01).fit(X, y)
        for w in (None, weights):
            assert model.score(X, y, w) == pytest.approx(score(y, model.predict(X), sample_weight=w)), loss
    model = regressor(loss="negative_binomial").fit(X, y - 1.0)
    for w in (None, weights):
        again = negative_binomial_d2(y - 1.0, model.predict(X), model.scale_**2, w)
        assert model.score(X, y - 1.0, w) == pytest.approx(again, rel=1e-6)
    assert np.isnan(model.score(X[:3], np.ones(3)))
