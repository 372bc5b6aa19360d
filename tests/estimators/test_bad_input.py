"""What is wrong with data is named, with what to do about it; rows of weight zero say nothing."""

import re
import warnings
from datetime import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from estimator_cases import frozen, two_classes
from scipy import sparse

from cavity import EPClassifier, EPRegressor
from cavity.estimators import ConditionalDeviationsWarning
from cavity.estimators.parameters import plan_fit, plan_stream

IMPUTE = r"drop these rows, or fill them, for example by sklearn.impute.SimpleImputer\(add_indicator=True\)"


def with_gaps(value):
    frame = pd.DataFrame({"age": np.arange(10.0), "height": np.arange(10.0), "kind": ["a", "b"] * 5})
    frame.loc[[1, 4], "age"] = value
    return frame


@pytest.mark.parametrize("columns", [["age", "height"], ["height", "kind", "age"]])
def test_missing_and_infinite_numbers_name_their_columns(columns):
    y = np.arange(10.0)
    with pytest.raises(ValueError, match=rf"Input X contains NaN in 2 of 10 rows, in column 'age': {IMPUTE}"):
        EPRegressor().fit(with_gaps(np.nan)[columns], y)
    with pytest.raises(ValueError, match="Input X contains infinity in 2 of 10 rows, in column 'age': drop these rows"):
        EPRegressor().fit(with_gaps(np.inf)[columns], y)
    model = EPRegressor().fit(with_gaps(1.0)[columns], y)
    with pytest.raises(ValueError, match="Input X contains NaN in 2 of 10 rows, in column 'age'"):
        model.predict(with_gaps(np.nan)[columns])


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_columns_without_names_are_counted(storage):
    X = np.zeros((5, 20))
    X[2, 3:16] = np.nan
    with pytest.raises(ValueError, match=r"1 of 5 rows, in columns 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 3 more: drop"):
        EPClassifier().fit(storage(X), [0, 1, 0, 1, 1])
    with pytest.raises(ValueError, match=r"Input y contains NaN"):
        EPRegressor().fit(storage(np.zeros((5, 2))), np.full(5, np.nan))


@pytest.mark.parametrize("make", [EPClassifier, EPRegressor])
@pytest.mark.parametrize("options", [{}, {"forget": 0.5}, {"halflife": 10.0}])
def test_a_call_of_weight_zero_changes_nothing(make, options):
    X, y = two_classes(n=60)
    first = {"classes": [0, 1]} if make is EPClassifier else {}
    model = make().partial_fit(X[:30], y[:30], **first)
    before = frozen(model)
    model.partial_fit(X[30:], y[30:], sample_weight=np.zeros(30), **options)
    assert frozen(model) == before
    with pytest.raises(ValueError, match="NaN"):  # its rows must be fine all the same
        model.partial_fit(np.full_like(X[30:], np.nan), y[30:], sample_weight=np.zeros(30), **options)
    needed = "must be positive for at least one row of a fit, and of the first call of partial_fit, got zeros only"
    with pytest.raises(ValueError, match=needed):
        make().partial_fit(X, y, sample_weight=np.zeros(60), **first)
    with pytest.raises(ValueError, match=needed):
        model.fit(X, y, sample_weight=np.zeros(60))
    assert frozen(model) == before


class Wide:
    """Rows of which only the shape is known, without zeros."""

    density, widest, patience, most_rows = 1.0, 5000, 1.0, 5000

    def __init__(self, rows, columns):
        self.shape = rows, columns

    def analysis(self):
        return None


def test_a_full_covariance_is_advised_only_where_it_is_accepted():
    for columns in (3000, 5000, 5001, 100_000):
        plan = plan_fit(Wide(10**6, columns), "auto")[0]
        assert plan.covariance == "diagonal"
        if columns <= Wide.widest:
            assert "covariance='full' if you can wait" in plan.reason
            assert plan_fit(Wide(10**6, columns), "full")[0].covariance == "full"
        else:
            assert "covariance='full'" not in plan.reason
            with pytest.raises(ValueError, match="covariance='full' has at most 5000 columns here"):
                plan_fit(Wide(10**6, columns), "full")
    for columns in (600, 10**6):
        reason = plan_stream(columns, "auto").reason
        assert ("covariance='full' if you can wait" in reason) == (columns == 600)
    with pytest.raises(ValueError, match="leave covariance at 'auto'"):
        plan_stream(10**6, "full")


def test_the_warning_of_conditional_deviations_gives_the_plan_s_advice(monkeypatch):
    monkeypatch.setattr("cavity.estimators.base.MOST_ROWS", 50)
    rng = np.random.default_rng(0)
    X = sparse.random_array((60, 20_000), density=0.2, rng=rng, format="csr")
    with pytest.warns(ConditionalDeviationsWarning) as found:
        EPClassifier(max_iter=2, tol=10.0).fit(X, rng.integers(2, size=60))
    text = str(found[0].message)
    assert "60 rows of 20001 columns are too many for a full covariance, of at most 5000 columns, and the space" in text
    assert "of the rows needs at most 50 rows" in text
    assert "covariance='full'" not in text
    assert text.endswith("Use fewer rows or columns; covariance='diagonal' accepts this without a warning")


@pytest.mark.parametrize("share", [0.3, 1e-3, 1e-6])
def test_the_squared_loss_of_a_small_given_scale_is_exact_and_does_not_warn(share):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = X @ [1.0, -2.0, 0.5, 0.0] + rng.normal(size=200)
    options = {"scale": share, "prior_variance": 2.0, "normalize_y": False, "fit_intercept": False}
    covariance = np.linalg.inv(X.T @ X / share**2 + np.eye(4) / 2.0)
    fitted, stream = EPRegressor(**options), EPRegressor(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.fit(X, y)
        for start in (0, 50, 100, 150):
            stream.partial_fit(X[start : start + 50], y[start : start + 50])
        for model in (fitted, stream):
            np.testing.assert_allclose(model.coef_, covariance @ X.T @ y / share**2, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(model.coef_std_, np.sqrt(np.diagonal(covariance)), rtol=1e-6)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_dates_say_how_they_become_numbers(kind):
    days = [datetime(2020, 1, day) for day in (3, 1, 2)]
    X = kind({"x": [1.0, 2.0, 4.0], "day": days})
    with pytest.raises(ValueError, match="column 'day' holds dates, which are not numbers") as told:
        EPRegressor().fit(X, [1.0, 2.0, 3.0])
    advice = re.search(r"days since the first by (.*), or drop it", str(told.value)).group(1)
    assert list(eval(advice, {"X": X})) == [2, 0, 1]
