"""Columns are read alike from tables of any kind and type."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cavity.terms.frames import codes, is_numeric, names_of, nearest, numbers

NUMBERS = [3, 1, 2]
WHEN = ["2024-03-01", "2024-03-02", "2024-03-11"]
FORMS = {
    "list": {"v": NUMBERS},
    "array": {"v": np.array(NUMBERS, dtype=np.int8)},
    "pandas": pd.DataFrame({"v": NUMBERS}),
    "nullable": pd.DataFrame({"v": pd.array(NUMBERS, dtype="Int64")}),
    "arrow": pd.DataFrame({"v": pd.array(NUMBERS, dtype="int64[pyarrow]")}),
    "polars": pl.DataFrame({"v": NUMBERS}),
    "chunked": pl.concat([pl.DataFrame({"v": NUMBERS[:1]}), pl.DataFrame({"v": NUMBERS[1:]})]),
}


@pytest.mark.parametrize("frame", FORMS.values(), ids=FORMS)
def test_numbers_are_doubles(frame):
    found = numbers(frame, "v", "here")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, NUMBERS)
    assert is_numeric(frame["v"])
    place, levels = codes(frame, "v", "here")
    assert levels == ["1", "2", "3"]
    np.testing.assert_array_equal(place, [2, 0, 1])


@pytest.mark.parametrize(
    "frame",
    [
        {"v": np.array(WHEN, dtype="datetime64[D]")},
        pd.DataFrame({"v": pd.to_datetime(WHEN)}),
        pd.DataFrame({"v": pd.to_datetime(WHEN, utc=True)}),
        pl.DataFrame({"v": WHEN}).with_columns(pl.col("v").str.to_date()),
        pl.DataFrame({"v": WHEN}).with_columns(pl.col("v").str.to_datetime()),
    ],
)
def test_dates_are_days(frame):
    np.testing.assert_array_equal(np.diff(numbers(frame, "v", "here")), [1.0, 9.0])


@pytest.mark.parametrize(
    "frame",
    [
        {"v": [1.0, np.nan]},
        pd.DataFrame({"v": pd.array([1, None], dtype="Int64")}),
        pl.DataFrame({"v": [1, None]}),
        pd.DataFrame({"v": pd.to_datetime(["2024-01-01", None])}),
    ],
)
def test_missing_numbers_are_named(frame):
    with pytest.raises(ValueError, match="here: column 'v' has 1 missing or infinite values, the first in row 1"):
        numbers(frame, "v", "here")


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"v": ["a", None]}),
        pd.DataFrame({"v": pd.Categorical(["a", None])}),
        pl.DataFrame({"v": ["a", None]}),
        {"v": np.array(["a", np.nan], dtype=object)},
    ],
)
def test_missing_levels_are_named(frame):
    with pytest.raises(ValueError, match="here: column 'v' has missing values"):
        codes(frame, "v", "here")


def test_ordered_categories_keep_their_order():
    levels = ["low", "mid", "top"]
    for frame in (
        pd.DataFrame({"v": pd.Categorical(["top", "low"], levels, ordered=True)}),
        pl.DataFrame({"v": ["top", "low"]}, schema={"v": pl.Enum(levels)}),
    ):
        place, found = codes(frame, "v", "here")
        assert found == levels
        np.testing.assert_array_equal(place, [2, 0])


def test_names_that_are_not_known_are_told_from_near_ones():
    assert nearest("Subject", ["subject", "days"]) == "did you mean 'subject'?"
    assert nearest("zzz", ["subject", "days"]) == "there are 'subject', 'days'"
    assert names_of(pd.DataFrame({1: [0]})) == ["1"]
    with pytest.raises(ValueError, match="terms need a table with named columns"):
        names_of([1, 2])
    with pytest.raises(ValueError, match="here: column 'v' must hold text, numbers or categories of these"):
        codes({"v": np.array([(1,), "a"], dtype=object)}, "v", "here")
