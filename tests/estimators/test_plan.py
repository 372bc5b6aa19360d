"""One rule for every storage says which posterior a fit gets, the plan says why, and a product of Gaussians warns."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from estimator_cases import STORAGES, two_classes
from scipy import sparse

from cavity import EPClassifier, EPRegressor
from cavity.estimators import parameters, runs
from cavity.estimators.base import ConditionalDeviationsWarning
from cavity.estimators.parameters import WIDEST_STREAM, Plan, full_work, plan_stream
from cavity.gaussians import Analysis
from cavity.gaussians.dense import WIDEST_COVARIANCE

OPTIONS = {"prior_variance": 1.0, "max_iter": 20, "tol": 0.1}


def one_hot(n=400, levels=150, seed=0):
    """Two crossed factors: many columns, two entries per row."""
    rng = np.random.default_rng(seed)
    columns = np.column_stack([rng.integers(levels, size=n), levels + rng.integers(levels, size=n)])
    X = sparse.csr_array((np.ones(2 * n), columns.ravel(), np.arange(0, 2 * n + 1, 2)), shape=(n, 2 * levels))
    return X, rng.integers(0, 2, n)


@pytest.mark.parametrize("storage", STORAGES)
def test_few_columns_get_a_full_covariance_whatever_the_storage(storage):
    X, y = two_classes()
    for make in (EPClassifier, EPRegressor):
        model = make().fit(STORAGES[storage](X), y)
        assert (model.plan_.covariance, model.plan_.chosen) == ("full", True)
        assert "57 rows of 5 columns" in str(model.plan_) or "rows of 5 columns" in str(model.plan_)
        assert str(model.plan_).startswith("full covariance: ")


def test_one_hot_columns_get_a_sparse_precision_in_either_storage():
    X, y = one_hot()
    plans = [EPClassifier(prior_variance=1.0).fit(rows, y).plan_ for rows in (X, X.toarray())]
    assert plans[0] == plans[1]
    assert plans[0].covariance in ("sparse", "full")
    assert "301 columns" in plans[0].reason


def test_what_is_asked_for_is_given_and_said():
    X, y = two_classes()
    for covariance in ("full", "sparse", "diagonal"):
        plan = EPClassifier(covariance=covariance, **OPTIONS).fit(X, y).plan_
        assert (plan.covariance, plan.chosen) == (covariance, False)
        assert f"asked for by covariance='{covariance}'" in str(plan)


def test_a_sparse_precision_is_taken_where_a_full_one_is_not_bearable(monkeypatch):
    X, y = one_hot()
    monkeypatch.setattr(parameters, "WIDEST_COVARIANCE", 100)
    model = EPClassifier(prior_variance=1.0).fit(X, y)
    assert model.plan_.covariance == "sparse"
    assert "numbers in the factor" in str(model.plan_)


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
def test_a_product_that_was_not_asked_for_warns_once_and_says_what_to_do(make, monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(parameters, "_BEARABLE", 1.0)
    with pytest.warns(ConditionalDeviationsWarning, match="deviations are conditional") as record:
        model = make(**OPTIONS).fit(X, y)
    (warning,) = [w for w in record if w.category is ConditionalDeviationsWarning]
    assert warning.filename == __file__
    assert "covariance='full'" in str(warning.message)
    assert (model.plan_.covariance, model.plan_.chosen) == ("diagonal", True)
    assert "rows are not sparse" in str(model.plan_) or "fill in" in str(model.plan_)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConditionalDeviationsWarning)
        make(covariance="diagonal", **OPTIONS).fit(X, y)


def test_a_wide_stream_is_a_product_and_warns_at_its_first_call(monkeypatch):
    X, y = two_classes()
    monkeypatch.setattr(parameters, "WIDEST_STREAM", 3)
    with pytest.warns(ConditionalDeviationsWarning) as record:
        model = EPClassifier(**OPTIONS).partial_fit(X, y, classes=[0, 1])
    assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConditionalDeviationsWarning)
        model.partial_fit(X, y)
    assert model.plan_.covariance == "diagonal"
    assert "more than 3" in str(model.plan_)


def test_a_stream_leaves_a_sparse_fit_for_a_full_covariance_or_a_product(monkeypatch):
    X, y = one_hot(levels=20)
    fitted = [EPClassifier(covariance="sparse", **OPTIONS).fit(X, y) for _ in range(2)]
    mean, std = fitted[0].coef_, fitted[0].coef_std_
    for model, widest in zip(fitted, (500, 3), strict=True):
        monkeypatch.setattr(parameters, "WIDEST_STREAM", widest)
        model.set_params(covariance="auto")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConditionalDeviationsWarning)
            model.partial_fit(X[:1].toarray(), y[:1], sample_weight=[1e-12])
        assert model.plan_.covariance == ("full" if widest == 500 else "diagonal")
        np.testing.assert_allclose(model.coef_, mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(model.coef_std_, std, rtol=1e-6)


def test_widths_have_limits():
    X, y = sparse.csr_array((3, WIDEST_COVARIANCE + 1)), [0, 1, 0]
    with pytest.raises(ValueError, match=f"at most {WIDEST_COVARIANCE} columns"):
        EPClassifier(covariance="full").fit(X, y)
    with pytest.raises(ValueError, match=f"at most {WIDEST_COVARIANCE} columns"):
        EPClassifier(covariance="full").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="needs all rows at once"):
        plan_stream(10, "sparse")
    assert plan_stream(WIDEST_STREAM, "auto").covariance == "full"
    assert plan_stream(WIDEST_STREAM + 1, "auto").covariance == "diagonal"


def test_a_sparse_precision_that_fills_in_is_refused(monkeypatch):
    X, y = one_hot()
    monkeypatch.setattr(runs, "analyse", lambda matrix, coupled: Analysis(0, np.inf, np.inf))
    with pytest.raises(ValueError, match="would fill in"):
        EPClassifier(covariance="sparse").fit(X, y)


def test_work_grows_with_rows_and_columns():
    assert full_work(1000, 10) < full_work(2000, 10) < full_work(2000, 20)
    bound = parameters._BEARABLE
    assert full_work(100_000, 1000) <= bound < full_work(1_000_000, 1000)


def test_a_plan_is_a_value_in_words():
    assert Plan("full", "so") == Plan("full", "so")
    assert (
        str(Plan("diagonal", "so"))
        == "diagonal covariance, standard deviations conditional on the other coefficients: so"
    )
    assert "all correlations exact" in str(Plan("sparse", "so"))
