"""Both estimators keep scikit-learn's contract, and get along with the rest of it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from estimator_cases import (
    PARITY,
    assert_same_model,
    cancer,
    classifier,
    frozen,
    line,
    product_classifier,
    regressor,
    three_classes,
    two_classes,
    unsettled,
)
from scipy import sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from cavity import EPClassifier, EPRegressor
from cavity.kernels.bridge import entry
from cavity.kernels.sweep import sweep
from cavity.losses import Logistic

MAKERS = {"classifier": (classifier, two_classes), "regressor": (regressor, line)}
both = pytest.mark.parametrize("kind", MAKERS)


def parts(kind):
    make, data = MAKERS[kind]
    X, y = data()
    return make, np.array(X), np.array(y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@estimator_checks.parametrize_with_checks([EPClassifier(), EPRegressor()])
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)


def test_scikit_learn_knows_what_they_are():
    assert is_classifier(EPClassifier())
    assert not is_regressor(EPClassifier())
    assert is_regressor(EPRegressor())


# Containers.


@both
@pytest.mark.parametrize(
    "container",
    [
        np.asfortranarray,
        np.ndarray.tolist,
        pd.DataFrame,
        lambda X: pl.DataFrame(X, schema=[f"c{j}" for j in range(X.shape[1])]),
        sparse.csr_array,
        sparse.csr_matrix,
        sparse.csc_array,
        sparse.coo_array,
    ],
    ids=["fortran", "list", "pandas", "polars", "csr_array", "csr_matrix", "csc", "coo"],
)
def test_every_container_gives_the_answer_of_an_array(kind, container):
    make, X, y = parts(kind)
    plain = make().fit(X, y)
    held = container(X)
    model = make().fit(held, pd.Series(y) if isinstance(held, pd.DataFrame) else y)
    assert_same_model(model, plain, PARITY)
    np.testing.assert_allclose(model.predict(held), plain.predict(X), rtol=PARITY, atol=PARITY)
    assert hasattr(model, "feature_names_in_") == (isinstance(held, pl.DataFrame))


def test_names_of_columns_are_kept_and_asked_for_again():
    X, y = two_classes()
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = classifier().fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["d", "c", "b", "a"]])
    before = frozen(model)
    with pytest.raises(ValueError, match="feature names should match"):
        model.partial_fit(frame.rename(columns={"a": "e"}), y)
    assert frozen(model) == before


def test_csr_with_stored_zeros_duplicates_and_unsorted_columns_is_mended_in_a_copy():
    data, indices, starts = [1.0, 2.0, 0.0, 3.0, -1.0], [2, 0, 1, 0, 0], [0, 2, 3, 5]
    X, y = sparse.csr_array((np.array(data), np.array(indices), np.array(starts)), shape=(3, 3)), [0, 1, 0]
    before = X.data.copy(), X.indices.copy()
    model, dense = classifier(max_iter=1).fit(X, y), classifier(max_iter=1).fit(X.toarray(), y)
    assert_same_model(model, dense, PARITY)
    assert_same_model(model.partial_fit(X, y), dense.partial_fit(X.toarray(), y), PARITY)
    np.testing.assert_array_equal(X.data, before[0])
    np.testing.assert_array_equal(X.indices, before[1])


# What fit leaves alone.


@both
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_fit_leaves_parameters_and_data_alone(kind, method):
    make, X, y = parts(kind)
    weights = np.linspace(0.0, 2.0, y.size)
    model = make(prior_mean=np.zeros(4), prior_variance=np.full(4, 2.0), random_state=np.random.RandomState(0))
    params, copies = model.get_params(), (X.copy(), y.copy(), weights.copy())
    extra = {"classes": [0, 1]} if (kind, method) == ("classifier", "partial_fit") else {}
    getattr(model, method)(X, y, sample_weight=weights, **extra)
    assert all(model.get_params()[name] is value for name, value in params.items())
    for now, before in zip((X, y, weights), copies, strict=True):
        np.testing.assert_array_equal(now, before)


@both
def test_read_only_memory_maps_work(kind, tmp_path):
    make, X, y = parts(kind)
    maps = []
    for name, array in (("X", X), ("y", y), ("w", np.ones(y.size))):
        np.save(tmp_path / f"{name}.npy", array)
        maps.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    mapped_X, mapped_y, weights = maps
    model = make().fit(mapped_X, mapped_y)
    assert_same_model(model, make().fit(X, y))
    assert_same_model(make().fit(mapped_X, mapped_y, weights), make().fit(X, y, np.ones(y.size)))
    np.testing.assert_array_equal(model.predict(mapped_X), model.predict(X))
    model.partial_fit(mapped_X, mapped_y)


def test_one_compiled_form_serves_memory_of_every_kind():
    """Read-only weights, as pandas gives them, and targets picked by weight: each other form costs seconds."""
    X, y = three_classes()
    weights = np.ones(y.size)
    product_classifier().fit(X, y, weights)
    sweep_of_rows = entry(sweep, Logistic())
    forms = set(sweep_of_rows.signatures)
    frozen_weights = np.array(weights)
    frozen_weights.flags.writeable = False
    some = np.arange(y.size) % 2.0
    product_classifier().fit(X, y, frozen_weights)
    product_classifier().fit(X, y, some)
    model = product_classifier().partial_fit(X, y, np.unique(y), weights)
    for given in (frozen_weights, pd.Series(weights), some, None):
        model.partial_fit(X, y, sample_weight=given)
    assert set(sweep_of_rows.signatures) == forms


@both
def test_a_refused_fit_leaves_the_model_as_it_was(kind):
    make, X, y = parts(kind)
    bad = X.copy()
    bad[3, 1] = np.nan
    model = make().fit(X, y)
    before = frozen(model)
    for arguments in ((bad, y), (X, y[:-1]), (X[:0], y[:0]), (X, y, -np.ones(y.size)), (X, y, np.zeros(y.size))):
        with pytest.raises(ValueError):  # noqa: PT011
            model.fit(*arguments)
        assert frozen(model) == before
    fresh = make()
    unfitted = frozen(fresh)
    with pytest.raises(ValueError, match="NaN"):
        fresh.fit(bad, y)
    assert frozen(fresh) == unfitted


@both
def test_attributes_of_a_model_that_is_not_fitted_say_so(kind):
    make, X, _ = parts(kind)
    for name in ("coef_", "coef_std_", "intercept_", "intercept_std_", "log_evidence_", "posterior_"):
        assert not hasattr(make(), name)
        with pytest.raises(NotFittedError, match="not fitted"):
            getattr(make(), name)
    for use in (
        lambda m: m.predict(X),
        lambda m: m.sample_coef(),
        lambda m: m.summary(),
        lambda m: m.plot_trace(),
        lambda m: m.merge(m),
    ):
        with pytest.raises(NotFittedError):
            use(make())


# Tools of scikit-learn.


@both
def test_pipeline_search_and_cross_validation(kind):
    make, X, y = parts(kind)
    pipeline = make_pipeline(StandardScaler(), make())
    with unsettled():
        scores = cross_val_score(pipeline, X, y, cv=3)
        name = f"{type(make()).__name__.lower()}__prior_variance"
        search = GridSearchCV(pipeline, {name: [1e-4, 1.0]}, cv=3).fit(X, y)
    assert np.all(np.isfinite(scores))
    assert search.best_params_[name] == 1.0
    assert search.best_score_ == pytest.approx(np.mean(scores), abs=0.1)
    np.testing.assert_array_equal(search.predict(X), search.best_estimator_.predict(X))


def test_calibration_takes_the_classifier():
    X, y = cancer()
    with unsettled():
        model = CalibratedClassifierCV(classifier(), cv=2).fit(X, y)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert model.score(X, y) > 0.95


@both
def test_clone_copies_parameters_only(kind):
    make, X, y = parts(kind)
    model = make(prior_variance=3.0).fit(X, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert not hasattr(twin, "coef_")
    assert_same_model(twin.fit(X, y), model)


@both
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_copies_are_equal_and_independent(kind, duplicate, method):
    make, X, y = parts(kind)
    extra = {"classes": [0, 1]} if (kind, method) == ("classifier", "partial_fit") else {}
    model = getattr(make(scale=1.0) if kind == "regressor" else make(), method)(X, y, **extra)
    twin = duplicate(model)
    assert_same_model(twin, model)
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    assert (twin.status_, twin.trace_.updates, twin.n_iter_) == (model.status_, model.trace_.updates, model.n_iter_)
    before = frozen(model)
    twin.partial_fit(X[:20], y[:20])
    assert frozen(model) == before
    assert_same_model(model.partial_fit(X[:20], y[:20]), twin)


@both
@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_set_output_of_a_scaler_before_it(kind, output):
    make, X, y = parts(kind)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    plain = make_pipeline(StandardScaler(), make()).fit(X, y)
    named = make_pipeline(StandardScaler().set_output(transform=output), make()).fit(frame, y)
    assert named[-1].feature_names_in_.tolist() == ["a", "b", "c", "d"]
    # The scaler rounds otherwise, and the bits of the rows decide on their order.
    assert_same_model(named[-1], plain[-1], 1e-4)
    np.testing.assert_allclose(named.predict(frame), plain.predict(X), rtol=1e-4, atol=1e-4)


@both
def test_weights_are_routed_through_a_pipeline(kind):
    make, X, y = parts(kind)
    weights = np.random.default_rng(0).uniform(0.1, 3.0, y.size)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, make().set_fit_request(sample_weight=True)).fit(X, y, sample_weight=weights)
        ignored = make_pipeline(scaler, make().set_fit_request(sample_weight=False))
        with pytest.raises(TypeError, match="sample_weight"):
            ignored.fit(X, y, sample_weight=weights)
        deaf = make_pipeline(scaler, make()).fit(X, y)
    scaled = StandardScaler().fit_transform(X)
    assert_same_model(routed[-1], make().fit(scaled, y, weights))
    assert_same_model(deaf[-1], make().fit(scaled, y))


# Draws and tables that both have.


@both
@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
def test_draws_have_the_moments_of_the_posterior(kind, covariance):
    make, X, y = parts(kind)
    model, n = make(covariance=covariance, tol=1e-3).fit(X, y), 20_000
    coef, intercept = model.sample_coef(n, random_state=0, return_intercept=True)
    assert (coef.shape, intercept.shape) == ((n, 4), (n,))
    mean, std = (
        np.append(model.coef_.ravel(), model.intercept_),
        np.append(model.coef_std_.ravel(), model.intercept_std_),
    )
    draws = np.column_stack([coef, intercept])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), 5.0 * std / np.sqrt(n))
    np.testing.assert_array_less(np.abs(draws.std(axis=0) / std - 1.0), 5.0 / np.sqrt(2.0 * n))
    whole = np.squeeze(model.covariance_)
    np.testing.assert_allclose((np.cov(draws.T) - whole) / np.outer(std, std), 0.0, atol=0.05)
    np.testing.assert_array_equal(coef, model.sample_coef(n, random_state=0))
    assert not np.array_equal(coef, model.sample_coef(n, random_state=1))
    assert model.sample_coef().shape == (1, 4)


def test_draws_of_three_classes_and_without_an_intercept():
    X, y = three_classes()
    coef, intercept = classifier(fit_intercept=False).fit(X, y).sample_coef(7, 0, return_intercept=True)
    assert (coef.shape, intercept.shape) == ((7, 3, 4), (7, 3))
    assert not np.any(intercept)
