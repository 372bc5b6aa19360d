"""Models of fewer rows than columns: exact in the space of the rows, with everything that a model offers."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import sparse

import cavity
from cavity import EPClassifier, EPRegressor
from cavity.estimators import ConditionalDeviationsWarning


def made(n=40, d=260, classes=2, seed=0, kind="dense"):
    """Rows with an effect of few columns, some of them not centred, and labels or targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0, d) + rng.normal(size=d)
    if kind == "csr":
        X[rng.random(X.shape) < 0.95] = 0.0
        X[:, :3] = 1.0 + rng.normal(size=(n, 3))
    w = rng.normal(size=d) * (rng.random(d) < 0.2)
    z = (X - X.mean(axis=0)) @ w
    z = z / z.std() + 0.7 * rng.normal(size=n)
    y = z if classes == 0 else np.digitize(z, np.quantile(z, np.arange(1, classes) / classes))
    given = {"csr": sparse.csr_array, "fortran": np.asfortranarray, "float32": np.float32}.get(kind, np.asarray)(X)
    return given, y


CASES = [
    (EPClassifier, 2, {"prior_variance": 0.02}),
    (EPClassifier, 2, {"tol": 1e-4}),
    (EPClassifier, 3, {"prior_variance": 0.02}),
    (EPClassifier, 3, {"loss": "hinge", "prior_variance": 0.02}),
    (EPRegressor, 0, {}),
    (EPRegressor, 0, {"loss": "absolute", "scale": 0.5, "prior_variance": 0.01}),
    (EPRegressor, 0, {"scale": "linear", "prior_variance": 0.001}),
]


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize(("model", "classes", "parameters"), CASES)
def test_everything_is_that_of_a_full_covariance(model, classes, parameters, kind):
    X, y = made(classes=classes, kind=kind)
    exact = {"tol": 1e-6} | parameters
    full, wide = (model(covariance=form, **exact).fit(X, y) for form in ("full", "rows"))
    assert wide.plan_.covariance == "rows"
    close = {"atol": 5e-3}
    np.testing.assert_allclose((wide.coef_ - full.coef_) / full.coef_std_, 0.0, **close)
    np.testing.assert_allclose(wide.coef_std_ / full.coef_std_, 1.0, **close)
    np.testing.assert_allclose((wide.intercept_ - full.intercept_) / full.intercept_std_, 0.0, **close)
    np.testing.assert_allclose(wide.log_evidence_, full.log_evidence_, **close)
    scales = np.sqrt(np.einsum("...ii->...i", full.covariance_))
    apart = (wide.covariance_ - full.covariance_) / (scales[..., :, None] * scales[..., None, :])
    np.testing.assert_allclose(apart, 0.0, **close)
    rows = X[:9] * 1.5
    if model is EPClassifier:
        np.testing.assert_allclose(wide.predict_proba(rows), full.predict_proba(rows), **close)
        np.testing.assert_array_equal(wide.predict(rows), full.predict(rows))
    else:
        for one, other in zip(wide.predict(rows, True), full.predict(rows, True), strict=True):
            np.testing.assert_allclose(one, other, **close)
    if classes != 3:
        weights = {"x0": 1.0, "x1": -2.0}
        moments = [np.asarray(one.contrast(weights))[:, :2] for one in (wide, full)]
        np.testing.assert_allclose(*moments, **close)


@pytest.mark.parametrize("kind", ["dense", "csr", "fortran", "float32"])
@pytest.mark.parametrize("classes", [2, 3, 0])
def test_files_pickles_and_copies_have_the_same_posterior(kind, classes, tmp_path):
    X, y = made(classes=classes, kind=kind)
    model = (EPClassifier if classes else EPRegressor)().fit(X, y)
    assert model.plan_.covariance == "rows"
    cavity.save(model, tmp_path / "model")
    for again in (cavity.load(tmp_path / "model"), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(again.coef_std_, model.coef_std_, rtol=1e-8)
        np.testing.assert_allclose(again.log_evidence_, model.log_evidence_, rtol=1e-8)


@pytest.mark.parametrize("classes", [2, 3])
def test_draws_have_the_moments_of_the_posterior(classes):
    X, y = made(classes=classes)
    model = EPClassifier().fit(X, y)
    draws, intercepts = model.sample_coef(4000, random_state=0, return_intercept=True)
    assert draws.shape == ((4000, 260) if classes == 2 else (4000, 3, 260))
    std = model.coef_std_[0] if classes == 2 else model.coef_std_
    mean = model.coef_[0] if classes == 2 else model.coef_
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / std, 0.0, atol=0.08)
    np.testing.assert_allclose(draws.std(axis=0) / std, 1.0, atol=0.07)
    z = np.einsum("...d,d->...", draws, X[0]) + intercepts
    if classes == 2:
        middle, spread = model.decision_function(X[:1], return_std=True)
        np.testing.assert_allclose([z.mean(), z.std()], [middle[0], spread[0]], rtol=0.1)


def test_the_plan_follows_rows_and_columns():
    X, y = made()
    assert EPClassifier().fit(X, y).plan_.covariance == "rows"
    assert EPClassifier().fit(X[:, :100], y).plan_.covariance == "full"
    long = np.tile(X, (8, 1)) + 1e-3 * np.random.default_rng(0).normal(size=(320, 260))
    assert EPClassifier().fit(long, np.tile(y, 8)).plan_.covariance == "full"
    repeated = EPClassifier().fit(np.tile(X, (8, 1)), np.tile(y, 8))  # rows that are merged count once
    assert repeated.plan_.covariance == "rows"
    weighted = EPClassifier().fit(X, y, sample_weight=np.full(40, 8.0))
    np.testing.assert_allclose(repeated.coef_, weighted.coef_, rtol=1e-6, atol=1e-9)
    assert "space of the rows" in str(repeated.plan_)


def test_wide_tables_need_no_warning():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 6000))
    y = X[:, :20].sum(axis=1) > 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConditionalDeviationsWarning)
        model = EPClassifier().fit(X, y)
    assert model.plan_.covariance == "rows"
    with pytest.raises(ValueError, match="covariance_ holds dim² numbers: at most 5000 columns, got 6001"):
        model.covariance_  # noqa: B018
    with pytest.raises(ValueError, match="at most 5000 columns here, got 6001; leave covariance at 'auto'"):
        EPClassifier(covariance="full").fit(X, y)


def test_too_many_rows_are_refused_with_what_to_do():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5001, 3))
    with pytest.raises(ValueError, match="it needs at most 5000 rows, got 5001; leave covariance at 'auto'"):
        EPClassifier(covariance="rows").fit(X, X[:, 0] > 0.0)
    with pytest.raises(ValueError, match="covariance='rows' needs all rows at once: call fit"):
        EPClassifier(covariance="rows").partial_fit(X, X[:, 0] > 0.0, classes=[False, True])


def test_no_copy_of_a_matrix_in_single_precision_or_of_fortran_order():
    rng = np.random.default_rng(0)
    n, d = 50, 40_000
    y = rng.normal(size=n)
    for X in (rng.normal(size=(n, d)).astype(np.float32), np.asfortranarray(rng.normal(size=(n, d)))):
        tracemalloc.start()
        EPRegressor(prior_variance=1.0 / d).fit(X, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        vectors = 20 * 8 * d
        assert peak < X.nbytes + 10 * 8 * n * n + vectors


def test_rows_of_a_later_call_join_what_a_fit_knows():
    X, y = made()
    model = EPClassifier(prior_variance=0.02).fit(X[:30], y[:30])
    model.partial_fit(X[30:], y[30:])
    assert model.plan_.covariance == "full"  # a stream of up to 500 columns
    whole = EPClassifier(prior_variance=0.02).fit(X, y)
    np.testing.assert_allclose((model.coef_ - whole.coef_) / whole.coef_std_, 0.0, atol=0.1)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=0.02)


def test_models_are_merged_by_joining_their_rows():
    X, y = made()
    parameters = {"prior_variance": 0.02}
    parts = [EPClassifier(**parameters).fit(X[some], y[some]) for some in (slice(0, 20), slice(20, 40))]
    both = parts[0].merge(parts[1])
    halves = (slice(0, 20), slice(20, 40))
    dense = [EPClassifier(covariance="full", **parameters).fit(X[half], y[half]) for half in halves]
    expected = dense[0].merge(dense[1])
    assert both.plan_.covariance == "rows"
    np.testing.assert_allclose((both.coef_ - expected.coef_) / expected.coef_std_, 0.0, atol=5e-3)
    np.testing.assert_allclose(both.coef_std_, expected.coef_std_, rtol=5e-3)


def test_groups_have_variances_of_their_own():
    X, y = made(classes=0)
    groups = {"first": list(range(60))}
    full, wide = (EPRegressor(covariance=form, prior_groups=groups, tol=1e-5).fit(X, y) for form in ("full", "rows"))
    assert wide.prior_variance_.keys() == full.prior_variance_.keys()
    np.testing.assert_allclose(wide.log_evidence_, full.log_evidence_, atol=0.02)


def test_separable_classes_have_a_bounded_variance():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 2000))
    y = X[:, 0] > 0.0
    model = EPClassifier().fit(X, y)
    spread = np.sqrt(model.prior_variance_ * 2000)
    assert 0.0 < spread < 30.0
    assert np.all(np.isfinite(model.predict_log_proba(X)))
    assert model.score(X, y) > 0.9


def test_a_summary_of_the_largest_coefficients():
    X, y = made()
    model = EPClassifier(prior_variance=0.02).fit(X, y)
    whole, largest = model.summary(), model.summary(top=7)
    ratios = np.abs(whole["mean"]) / whole["std"]
    assert list(largest.index) == list(ratios.sort_values(ascending=False).index[:7])
    assert whole.loc[largest.index].equals(largest)
    with pytest.raises(ValueError, match="top must be"):
        model.summary(top=0)


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_rows_that_were_left_out_by_fits_are_those_of_a_full_covariance(classes):
    X, y = made(n=30, d=230, classes=classes)
    y = y.astype(float) if classes == 0 else y
    kind = EPClassifier if classes else EPRegressor
    parameters = {"prior_variance": 0.05, "loo_refit": True, "tol": 1e-5}
    parameters |= {} if classes else {"loss": "huber"}
    full, wide = (kind(covariance=form, **parameters).fit(X, y) for form in ("full", "rows"))
    np.testing.assert_allclose(wide.loo_, full.loo_, atol=2e-3)


def test_what_needs_a_matrix_of_columns_says_so():
    X, y = made(classes=0)
    with pytest.raises(ValueError, match="errors='robust' needs rows in memory and covariance='full'"):
        EPRegressor(errors="robust").fit(X, y)
    frame = {"x": X[:, 0], "y": y, "g": np.arange(40) % 5}
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="covariance='rows' is for independent coefficients, not for a formula"):
        EPRegressor(formula="y ~ x + (1 | g)", covariance="rows").fit(pandas.DataFrame(frame))
