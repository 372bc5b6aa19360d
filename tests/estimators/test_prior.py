"""Priors mean what they say, and the evidence chooses the variance that it should."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import (
    assert_same_model,
    classifier,
    gaussian_regressor,
    orthogonal,
    regressor,
    two_classes,
    unsettled,
)
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from cavity.estimators._prior import build_prior, choose_variance, typical_variance


def test_numbers_and_vectors_make_a_prior():
    prior = build_prior(3, 0.5, [1.0, 2.0, 4.0], 100.0)
    np.testing.assert_allclose(prior.mean, [0.5, 0.5, 0.5, 0.0])
    np.testing.assert_allclose(prior.variance, [1.0, 2.0, 4.0, 100.0])
    assert prior.log_mass == pytest.approx(0.0, abs=1e-12)
    prior = build_prior(2, np.array([1.0, -1.0]), 9, None)
    np.testing.assert_allclose(prior.mean, [1.0, -1.0])
    np.testing.assert_allclose(prior.variance, 9.0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((2, 0.0, 0.0, None), "prior_variance must be positive and finite, got 0"),
        ((2, 0.0, [1.0, -2.0], None), "prior_variance must be positive and finite, got -2"),
        ((2, 0.0, np.inf, None), "prior_variance must be positive and finite"),
        ((2, 0.0, [1.0, np.nan], None), "prior_variance must be positive and finite"),
        ((2, np.nan, 1.0, None), "prior_mean must be finite"),
        ((2, 0.0, [1.0, 1.0, 1.0], None), r"prior_variance must be .* each of 2 features, got shape \(3,\)"),
        ((2, [[0.0, 0.0]], 1.0, None), "prior_mean must be .* each of 2 features"),
        ((2, "zero", 1.0, None), "prior_mean must be a number"),
        ((2, 0.0, 1.0, 0.0), "intercept_prior_variance must be positive and finite"),
        ((2, 0.0, 1.0, np.inf), "intercept_prior_variance must be positive and finite"),
    ],
)
def test_what_is_no_prior_is_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        build_prior(*arguments)


@pytest.mark.parametrize("best", [1e-4, 0.03, 1.0, 700.0])
def test_the_search_finds_the_best_variance_and_passes_over_failures(best):
    def evidence(variance):
        return -((np.log10(variance) - np.log10(best)) ** 2) if variance < 1e4 else np.nan

    assert np.log10(choose_variance(evidence)) == pytest.approx(np.log10(best), abs=0.1)


def ridge_evidence(seed):
    """Log evidence of a Gaussian model in the directions of its data, as a function of the prior variance."""
    rng = np.random.default_rng(seed)
    d, true = int(rng.integers(2, 200)), 10.0 ** rng.uniform(-2.0, 2.0)
    known = 10.0 ** rng.normal(rng.uniform(-1.0, 3.0), rng.uniform(0.1, 1.5), size=d)
    seen = known * (1.0 + true * known) * rng.chisquare(1, size=d)

    def evidence(variance):
        v = np.asarray(variance)[..., None]
        return 0.5 * np.sum(seen * v / (1.0 + v * known) - np.log1p(v * known), axis=-1)

    return evidence, true * 10.0 ** rng.uniform(-1.2, 1.2)


def test_the_search_loses_no_evidence_and_needs_about_five_fits():
    grid, fits, lost = np.logspace(-5.0, 5.0, 1001), [], []
    for seed in range(60):
        evidence, start = ridge_evidence(seed)
        looks = []
        chosen = choose_variance(lambda v, e=evidence, seen=looks: seen.append(v) or e(v), start)
        fits.append(len(looks))
        lost.append(np.max(evidence(grid)) - evidence(chosen))
    assert np.mean(fits) < 6.0
    assert max(fits) <= 10
    assert max(lost) < 0.15


@pytest.mark.parametrize(
    ("evidence", "chosen"),
    [(lambda v: np.nan, 3.0), (lambda v: 7.0, 3.0), (lambda v: v, 1e5), (lambda v: -v, 1e-5)],
    ids=["nowhere finite", "flat", "rising", "falling"],
)
def test_the_search_ends_where_there_is_no_best(evidence, chosen):
    assert choose_variance(evidence, 3.0) == pytest.approx(chosen)


@pytest.mark.parametrize("border", [2e-3, 0.5, 20.0])
def test_the_search_comes_close_to_the_border_of_what_can_be_fitted(border):
    """The evidence rises up to the border, and is not finite beyond."""
    chosen = choose_variance(lambda v: np.log10(v) if v < border else np.nan)
    assert 0.0 <= np.log10(border / chosen) < 0.1


def test_the_search_starts_where_the_scale_of_the_rows_says():
    X = np.random.default_rng(0).normal(size=(50, 4))
    start = typical_variance(X)
    assert typical_variance(10.0 * X) == pytest.approx(start / 100.0)
    assert typical_variance(sparse.csr_array(X)) == pytest.approx(start)
    assert typical_variance(np.concatenate([X, X])) == pytest.approx(start)
    assert typical_variance(np.zeros((3, 2))) == 1.0


def test_a_narrow_prior_holds_a_coefficient_where_it_is():
    X, y = two_classes()
    model = classifier(prior_mean=[0.5, 0.0, 0.0, -2.0], prior_variance=[1e-12, 1.0, 1.0, 1e-12]).fit(X, y)
    np.testing.assert_allclose(model.coef_[0, [0, 3]], [0.5, -2.0], atol=1e-5)
    np.testing.assert_allclose(model.coef_std_[0, [0, 3]], 1e-6, rtol=1e-3)
    assert np.all(model.coef_std_[0, [1, 2]] > 1e-3)
    np.testing.assert_array_equal(model.prior_variance_, [1e-12, 1.0, 1.0, 1e-12])


def test_a_prior_for_every_feature_is_one_of_scaled_columns():
    """Variance v of a coefficient is variance one of the coefficient of the column times the root of v."""
    X, y = two_classes()
    variances = np.array([0.1, 1.0, 5.0, 30.0])
    a = classifier(prior_variance=variances, tol=1e-8).fit(X, y)
    b = classifier(prior_variance=1.0, tol=1e-8).fit(X * np.sqrt(variances), y)
    np.testing.assert_allclose(a.coef_, b.coef_ * np.sqrt(variances), rtol=1e-6)
    np.testing.assert_allclose(a.coef_std_, b.coef_std_ * np.sqrt(variances), rtol=1e-6)
    assert a.log_evidence_ == pytest.approx(b.log_evidence_, rel=1e-8)


def exact_log_evidence(X, y, variance, scale):
    """Density of the targets, less the constant that the squared loss leaves out."""
    n = y.size
    density = multivariate_normal.logpdf(y, np.zeros(n), scale**2 * np.eye(n) + variance * X @ X.T)
    return density + 0.5 * n * np.log(2.0 * np.pi * scale**2)


@pytest.mark.parametrize("variance", [1e-3, 0.5, 40.0])
def test_the_evidence_of_a_gaussian_model_is_exact_on_an_orthogonal_design(variance):
    X, y = orthogonal()
    model = gaussian_regressor(fit_intercept=False, prior_variance=variance).fit(X, y)
    assert model.log_evidence_ == pytest.approx(exact_log_evidence(X, y, variance, 0.7), rel=1e-10)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_the_evidence_chooses_the_variance_of_highest_exact_evidence(factor):
    X, y = orthogonal(n=120, d=6)
    y = factor * y
    model = gaussian_regressor(fit_intercept=False, prior_variance="evidence", scale=0.7 * factor).fit(X, y)
    best = minimize_scalar(
        lambda v: -exact_log_evidence(X, y, 10.0**v, 0.7 * factor), bounds=(-5.0, 5.0), method="bounded"
    )
    assert np.log10(model.prior_variance_) == pytest.approx(best.x, abs=0.05)
    assert model.log_evidence_ == pytest.approx(-best.fun, abs=0.01)
    fixed = gaussian_regressor(fit_intercept=False, prior_variance=model.prior_variance_, scale=0.7 * factor)
    assert_same_model(model, fixed.fit(X, y))
    assert model.prior_variance == "evidence"


def test_the_evidence_is_higher_than_that_of_other_variances():
    X, y = two_classes(n=200, seed=3)
    with unsettled():
        chosen = classifier(prior_variance="evidence", tol=1e-5).fit(X, y)
        others = [classifier(prior_variance=v, tol=1e-5).fit(X, y).log_evidence_ for v in (0.01, 0.1, 10.0, 1e3)]
    assert chosen.log_evidence_ > max(others)
    assert 0.1 < chosen.prior_variance_ < 1e3
    stream = chosen.partial_fit(X[:10], y[:10])
    assert stream.prior_variance_ == chosen.prior_variance_


def test_another_word_is_refused():
    X, y = two_classes()
    with pytest.raises(ValueError, match="prior_variance must be a number, one a feature, or 'evidence', got 'large'"):
        classifier(prior_variance="large").fit(X, y)
    for make in (classifier, regressor):
        with pytest.raises(ValueError, match=r"prior_mean must be .* each of 4 features"):
            make(prior_mean=np.zeros(5)).fit(X, y)
