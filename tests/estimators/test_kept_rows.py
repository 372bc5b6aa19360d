"""The last rows of a stream, which are kept and fitted together until there are enough of them."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
from estimator_cases import state_of
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.preprocessing import scale

from cavity import EPClassifier, EPRegressor
from cavity.estimators import streams
from cavity.estimators.files import check_state
from cavity.estimators.streams import ROWS_PER_COEFFICIENT
from estimators.estimator_cases import assert_same_model

COLUMNS = 5
LATER = ROWS_PER_COEFFICIENT * (COLUMNS + 1)


def labelled(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, COLUMNS))
    return X, np.where(X[:, 0] + 0.5 * rng.logistic(size=n) > 0.0, 1.0, -1.0)


def streamed(model, X, y, cuts, **options):
    for i, (start, stop) in enumerate(pairwise(cuts)):
        first = {"classes": np.unique(y)} if i == 0 and isinstance(model, EPClassifier) else {}
        model.partial_fit(X[start:stop], y[start:stop], **first, **options)
    return model


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("cuts", [(0, 7, 14, 28, 56), (0, 50, 56), tuple(range(57))], ids=["doubling", "two", "single"])
def test_calls_are_one_fit_to_all(storage, cuts):
    X, y = labelled(56)
    X = storage(X)
    assert_same_model(streamed(EPClassifier(), X, y, cuts), EPClassifier().fit(X, y), 1e-9)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
def test_noise_and_normaliser_are_those_of_one_call(loss):
    X, y = labelled(40)
    y = X[:, 1] + 0.3 * y
    found, whole = (streamed(EPRegressor(loss, normalize_y=False), X, y, cuts) for cuts in ((0, 20, 40), (0, 40)))
    if loss == "squared":  # sums of two calls, which round otherwise than those of one
        np.testing.assert_allclose(found.coef_, whole.coef_, rtol=1e-9)
        np.testing.assert_allclose(found.coef_std_, whole.coef_std_, rtol=1e-9)
    else:
        assert_same_model(found, whole, 1e-9)
    assert found.scale_ == pytest.approx(whole.scale_, rel=1e-9)
    assert found.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9)


def test_counts_have_the_evidence_of_one_call():
    X, _ = labelled(40)
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * X[:, 0] + 1.0)).astype(float)
    for loss in ("poisson", "negative_binomial"):
        found, whole = (streamed(EPRegressor(loss), X, counts, cuts) for cuts in ((0, 20, 40), (0, 40)))
        assert_same_model(found, whole, 1e-9)
        assert found.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-12)


def test_weights_offsets_and_forgetting_are_kept_with_the_rows():
    X, y = labelled(40)
    y, offset, weights = X[:, 1] + 0.1 * y, np.linspace(0.0, 1.0, 40), np.linspace(0.5, 2.0, 40)
    model = EPRegressor(scale=0.5, normalize_y=False)
    model.partial_fit(X[:20], y[:20], sample_weight=weights[:20])
    model.partial_fit(X[20:], y[20:], offset=offset[20:], forget=0.25)
    joined = np.concatenate([0.75 * weights[:20], np.ones(20)]), np.concatenate([np.zeros(20), offset[20:]])
    whole = EPRegressor(scale=0.5, normalize_y=False).partial_fit(X, y, sample_weight=joined[0], offset=joined[1])
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-6)


def test_rows_may_be_written_into_the_same_arrays():
    X, y = labelled(40)
    fresh, reused = (streamed(EPRegressor(), X, y, (0, 20, 25)) for _ in range(2))
    rows = X[25:30].copy()
    reused.partial_fit(rows, y[25:30])
    fresh.partial_fit(X[25:30], y[25:30])
    rows[:] = 1e6
    for model in (fresh, reused):
        model.partial_fit(X[30:40], y[30:40])
    assert_same_model(reused, fresh)


def test_rows_that_are_all_but_forgotten_keep_a_weight():
    X, y = labelled(40)
    model = EPClassifier()
    for start in range(0, 40, 4):
        model.partial_fit(X[start : start + 4], y[start : start + 4], classes=[-1.0, 1.0], forget=1.0 - 1e-15)
    check_state(state_of(model))  # among other things, that weights are positive
    assert np.all(np.isfinite(model.coef_std_))


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_half_of_the_rows_go_when_there_are_enough(chunk, monkeypatch):
    monkeypatch.setattr(streams, "KEPT_NUMBERS", 0)
    X, y = labelled(300)
    model, size = EPClassifier(), 0
    for start in range(0, len(y), chunk):
        model.partial_fit(X[start : start + chunk], y[start : start + chunk], classes=[-1.0, 1.0])
        size += len(y[start : start + chunk])
        if size >= 2 * LATER:
            size = LATER
        kept = state_of(model).stream.kept
        assert kept.size == size
        assert kept.totals.rows == start + len(y[start : start + chunk]) - size
        assert len(kept.parts) <= 8  # joined as they come
    fitted = EPClassifier().fit(X, y)
    np.testing.assert_allclose(model.coef_, fitted.coef_, rtol=0.0, atol=0.3 * np.max(fitted.coef_std_))
    np.testing.assert_allclose(model.coef_std_, fitted.coef_std_, rtol=0.2)
    assert model.log_evidence_ == pytest.approx(fitted.log_evidence_, abs=2.0)


def test_an_outlier_stays_with_the_rows_that_are_kept(monkeypatch):
    """Its site is right only as long as the posterior stays where it is, and later rows of a wrong model move it."""
    monkeypatch.setattr(streams, "KEPT_NUMBERS", 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    X[0] *= 100.0
    y = rng.poisson(np.exp(np.clip(X @ [0.5, 0.3] + 1.0, -4.0, 4.0))).astype(float)
    model = streamed(EPRegressor("poisson", prior_variance=1.0), X, y, (*range(0, 600, 20), 600))
    kept = np.concatenate([part.X for part in state_of(model).stream.kept.parts])
    assert np.any(np.all(kept == X[0], axis=1))
    fitted = EPRegressor("poisson", prior_variance=1.0).fit(X, y)
    assert np.max(np.abs(model.coef_ - fitted.coef_) / fitted.coef_std_) < 0.5
    np.testing.assert_allclose(model.coef_std_, fitted.coef_std_, rtol=0.1)


@pytest.mark.parametrize("loss", ["absolute", "huber", "gamma"])
def test_the_noise_of_later_blocks_counts_as_much_as_that_of_the_first(loss, monkeypatch):
    monkeypatch.setattr(streams, "KEPT_NUMBERS", 0)
    rng = np.random.default_rng(1)
    X, level = rng.normal(size=(1200, 2)), np.repeat([0.5, 1.0], 600)
    y = X[:, 0] + level * rng.normal(size=1200) if loss != "gamma" else rng.gamma(level**-2.0, level**2.0)
    model = streamed(EPRegressor(loss), X, y, (*range(0, 1200, 60), 1200))
    assert model.scale_ == pytest.approx(EPRegressor(loss).fit(X, y).scale_, rel=0.1)


@pytest.mark.parametrize("loss", ["absolute", "quantile", "huber", "negative_binomial", "gamma"])
def test_a_stream_whose_rows_are_gone_has_the_evidence_of_a_fit(loss, monkeypatch):
    """The noise scale is found anew with every block, and what rows said before follows it."""
    monkeypatch.setattr(streams, "KEPT_NUMBERS", 0)
    rng = np.random.default_rng(5)
    X = rng.normal(size=(900, COLUMNS))
    z = 0.5 * X[:, 0] - 0.3 * X[:, 1]
    y = 3.0 * (z + 0.5 * rng.standard_t(4, size=900))
    if loss == "negative_binomial":
        y = rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(z + 1.0))).astype(float)
    if loss == "gamma":
        y = rng.gamma(3.0, np.exp(z) / 3.0)
    model, fitted = EPRegressor(loss), EPRegressor(loss).fit(X, y)
    for start in range(0, 900, 20):
        model.partial_fit(X[start : start + 20], y[start : start + 20])
    assert model.log_evidence_ == pytest.approx(fitted.log_evidence_, rel=0.01)
    assert model.scale_ == pytest.approx(fitted.scale_, rel=0.1)
    assert np.max(np.abs(model.coef_ - fitted.coef_) / fitted.coef_std_) < 0.5
    np.testing.assert_allclose(model.coef_std_, fitted.coef_std_, rtol=0.2)


def test_a_fit_a_merge_and_a_product_of_gaussians_keep_no_rows():
    X, y = labelled(20)
    model = EPClassifier().partial_fit(X, y, classes=[-1.0, 1.0])
    assert state_of(model.merge(model)).stream.kept is None
    assert state_of(copy.deepcopy(model).fit(X, y)).stream.kept is None
    product = EPClassifier(covariance="diagonal").partial_fit(X, y, classes=[-1.0, 1.0])
    assert state_of(product).stream.kept is None
    squared = EPRegressor().partial_fit(X, y)  # sums say all of it
    assert state_of(squared).stream.kept is None


@pytest.mark.parametrize("chunk", [10, 30, 100])
def test_a_short_stream_has_nearly_the_deviations_of_a_fit(chunk):
    """The first 100 of these rows are separable, and alone would ask for a prior that is far too wide."""
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    fitted, model = EPClassifier().fit(X[:455], y[:455]), EPClassifier()
    for start in range(0, 455, chunk):
        model.partial_fit(X[start : min(start + chunk, 455)], y[start : min(start + chunk, 455)], classes=[0, 1])
    ratios = model.coef_std_ / fitted.coef_std_
    assert np.all((ratios > 0.7) & (ratios < 1.4))
    losses = [log_loss(y[455:], one.predict_proba(X[455:])) for one in (model, fitted)]
    assert losses[0] < losses[1] + 0.01


def test_few_rows_that_say_nothing_of_the_dispersion_do_no_lasting_harm():
    """Ten rows of these counts alone give a dispersion of several hundred."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1200, 3))
    y = rng.poisson(rng.gamma(4.0, 0.25 * np.exp(X @ [0.5, -0.3, 0.2] + 1.0))).astype(float)
    model, fitted = EPRegressor("negative_binomial"), EPRegressor("negative_binomial").fit(X, y)
    for start in range(0, 1200, 10):
        model.partial_fit(X[start : start + 10], y[start : start + 10])
    assert model.scale_ == pytest.approx(fitted.scale_, rel=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": 3},
        {"fitted": "many"},
        {"X": np.zeros((20, 3))},
        {"X": np.full((20, COLUMNS), np.nan)},
        {"targets": np.zeros((1, 4))},
        {"weights": -np.ones(20)},
        {"weights": np.ones(3)},
        {"offset": np.ones((20, 2))},
        {"known": ()},
        {"noise": (np.nan, 0.0)},
        {"scale": -1.0},
    ],
    ids=str,
)
def test_kept_rows_that_do_not_fit_are_refused(change):
    X, y = labelled(20)
    model = EPClassifier().partial_fit(X, y, classes=[-1.0, 1.0])
    state = state_of(model)
    kept = state.stream.kept
    own = {name: value for name, value in change.items() if name in kept._fields}
    part = kept.parts[0]._replace(**{name: value for name, value in change.items() if name not in own})
    changed = kept._replace(parts=(part,))._replace(**own)
    with pytest.raises(ValueError, match="not consistent"):
        check_state(state.revised(stream=state.stream._replace(kept=changed)))


def test_an_outlier_among_the_first_counts_is_undone_by_later_rows(monkeypatch):
    """Also where no more rows are kept than coefficients ask for."""
    monkeypatch.setattr(streams, "KEPT_NUMBERS", 0)
    rng = np.random.default_rng(4)
    X = rng.normal(size=(400, 3))
    y = rng.poisson(20.0 * np.exp(0.5 * X[:, 0])).astype(float)
    y[0] = 1000.0
    cuts = np.arange(0, 401, 4)
    found, whole = streamed(EPRegressor("poisson"), X, y, cuts), EPRegressor("poisson").fit(X, y)
    assert np.max(np.abs(found.coef_ - whole.coef_) / whole.coef_std_) < 0.3


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_rows_of_known_classes_and_of_normal_noise_are_taken_by_the_short_path(loss, monkeypatch):
    X, y = labelled(202)
    make, first = (EPRegressor, {}) if loss == "squared" else (EPClassifier, {"classes": np.unique(y)})
    model, calls = streamed(make(loss), X, y, (0, 200, 201)), []
    monkeypatch.setattr(model, "_take", lambda *parts: calls.append(parts))
    model.partial_fit(X[201:], y[201:], **first)
    assert not calls
