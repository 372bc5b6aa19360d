"""Columns as users give them: levels of categories, preprocessing of tables, and the encoded matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array

from cavity._checks import shown
from cavity._types import FloatArray


class EncodedRows(NamedTuple):
    """Rows that a source has encoded for a model: they need no further look."""

    matrix: Any


class Preprocessing(NamedTuple):
    """What is done to the columns of a table, by their names."""

    numbers: tuple[str, ...]  # columns of numbers
    means: FloatArray  # what stands in for missing ones
    filled: tuple[str, ...] = ()  # those where the mean stands in for missing ones, which a column of 0 and 1 marks
    # Columns that a fit took for these, None where there was none: files need not be told again.
    target: str | None = None
    weight: str | None = None
    offset: str | None = None

    @property
    def features(self) -> list[str]:
        """Names of the columns that it makes."""
        return [*self.numbers, *(f"{name} (missing)" for name in self.filled)]

    @property
    def width(self) -> int:
        """Number of the columns that it makes of numbers."""
        return len(self.numbers) + len(self.filled)

    def apply(self, values: FloatArray) -> FloatArray:
        """Fill columns of numbers, and append which were missing."""
        if not self.filled:
            return values
        missing = np.isnan(values)
        found = np.where(missing, self.means, values)
        places = [self.numbers.index(name) for name in self.filled]
        return np.column_stack([found, missing[:, places]])

    def plain(self) -> dict[str, Any]:
        """Give names, numbers and arrays only."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Preprocessing:
        """Undo `plain`; `ValueError` unless all parts fit together."""
        try:
            numbers, filled = tuple(plain["numbers"]), tuple(plain["filled"])
            means = np.asarray(plain["means"], dtype=np.float64)
        except (KeyError, TypeError) as error:
            raise ValueError(f"the model is not consistent: its preprocessing lacks {error}") from error
        fits = means.shape == (len(numbers),) and set(filled) <= set(numbers) and bool(np.all(np.isfinite(means)))
        fits &= all(isinstance(name, str) for name in numbers)
        roles = [plain.get(name) for name in ("target", "weight", "offset")]
        fits &= all(name is None or isinstance(name, str) for name in roles)
        if not fits:
            raise ValueError("the model is not consistent: its preprocessing does not fit together")
        return cls(numbers, means, filled, *roles)

    def frame(self, X: Any, categories: Sequence[str]) -> Any:
        """Apply it to a DataFrame, which keeps columns of numbers and of categories."""
        if not hasattr(X, "columns"):
            raise ValueError(f"X must be a table or a DataFrame with the columns {[*self.numbers, *categories]}")
        lacking = [name for name in (*self.numbers, *categories) if name not in X.columns]
        if lacking:
            raise ValueError(f"X has no column {lacking[0]!r}; it needs {[*self.numbers, *categories]}")
        values = np.empty((len(X), len(self.numbers)))
        for k, name in enumerate(self.numbers):
            values[:, k] = np.asarray(X[name], dtype=np.float64)
        made = dict(zip(self.features, self.apply(values).T, strict=True))
        return type(X)({**made, **{name: X[name] for name in categories}})


def encode_rows(
    numbers: FloatArray,
    codes: NDArray[np.int64],
    levels: Sequence[int],
    preprocessing: Preprocessing,
    dense: bool,
    constant: bool = False,
) -> Any:
    """Encode rows: numbers preprocessed, then one column per level and one for levels that are not known.

    ``codes`` has one column per column of categories, the number of levels for one that is not known. CSR without
    stored zeros, or dense, and then with a column of ones at the end if ``constant``.
    """
    made, n = preprocessing.apply(numbers), len(numbers)
    first = made.shape[1]
    starts = first + np.concatenate([[0], np.cumsum(np.asarray(levels, dtype=np.int64) + 1)])
    width = int(starts[-1])
    if dense or not len(levels):
        rows = np.zeros((n, width + constant))
        rows[:, :first] = made
        rows[:, width:] = 1.0
        for k in range(len(levels)):
            rows[np.arange(n), starts[k] + codes[:, k]] = 1.0
        return rows
    return with_levels(made, codes + starts[:-1], width)


def with_levels(numbers: FloatArray, columns: NDArray[np.int64], width: int) -> Any:
    """Append to rows of numbers a one in each of some columns, which every row names; CSR without stored zeros."""
    (n, first), count = numbers.shape, columns.shape[1]
    data, indices = np.ones((n, first + count)), np.empty((n, first + count), dtype=np.int32)
    data[:, :first], indices[:, :first], indices[:, first:] = numbers, np.arange(first), columns
    starts = np.arange(n + 1, dtype=np.int64) * data.shape[1]
    starts = starts if starts[-1] > np.iinfo(np.int32).max else starts.astype(np.int32)
    found = sparse.csr_array((data.ravel(), indices.ravel(), starts), shape=(n, width))
    found.eliminate_zeros()
    return found


Levels = dict[str, list[Any]]

# A whole number as files write a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)\.0")


def level_text(level: Any) -> str:
    """Write a level as text: 5, 5.0, "5" and "5.0" are one level, whatever type a column has."""
    if isinstance(level, float | np.floating) and level.is_integer():
        return str(int(level))
    text = str(level)
    return text[:-2] if _WHOLE.fullmatch(text) else text


def level_order(level: str) -> tuple[bool, float, str]:
    """Key by which levels are sorted: numbers by their value, then other text."""
    try:
        value = float(level)
    except ValueError:
        value = np.inf
    return (False, value, level) if isfinite(value) else (True, 0.0, level)


def levels_of(X: Any) -> Levels:
    """Levels of every column of categories, by its name; none where ``X`` is not such a table."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "shape")):
        return {}
    found: Levels = {}
    for place, name in enumerate(X.columns):
        column = X.iloc[:, place] if hasattr(X, "iloc") else X[name]
        if _is_number(column.dtype):
            continue
        if getattr(column.dtype, "kind", "O") == "M" or str(column.dtype).startswith(("Date", "Datetime")):
            days = "days" if hasattr(X, "iloc") else "total_days()"  # of pandas, of polars
            raise ValueError(
                f"column {name!r} holds dates, which are not numbers: convert it, for example to days since the first "
                f"by (X[{name!r}] - X[{name!r}].min()).dt.{days}, or drop it"
            )
        levels = list(dict.fromkeys(_coded(column, name)[1]))
        if not getattr(column.dtype, "ordered", False):
            levels.sort(key=level_order)
        if not levels:
            raise ValueError(f"column {name!r} has no levels: it needs at least one row or one category")
        found[str(name)] = levels
    return found


def encode(X: Any, levels: Levels, unseen: bool) -> Any:
    """Numbers first, then one column per level and one for levels that are not known; CSR.

    Where ``unseen`` is False a level that is not known is an error.
    """
    numbers = [name for name in X.columns if str(name) not in levels]
    width, columns = len(numbers), np.empty((X.shape[0], len(levels)), dtype=np.int64)
    for k, (name, known) in enumerate(levels.items()):
        columns[:, k] = width + _codes(X[next(c for c in X.columns if str(c) == name)], name, known, unseen)
        width += len(known) + 1
    with naming_columns(X[numbers]):
        values = check_array(X[numbers], dtype=np.float64) if numbers else np.empty((X.shape[0], 0))
    return with_levels(values, columns, width)


@contextmanager
def naming_columns(X: Any) -> Iterator[None]:
    """Let scikit-learn's error of a number in ``X`` that is missing or infinite name its columns, and what to do."""
    try:
        yield
    except ValueError as error:
        found = re.match(r"Input (?:X )?contains (NaN|infinity)", str(error))
        if found is None:
            raise
        values = check_array(X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        bad = (np.isnan if found[1] == "NaN" else np.isinf)(values.data if sparse.issparse(values) else values)
        where = sparse.csr_array((bad, values.indices, values.indptr), values.shape) if bad.ndim == 1 else bad
        rows, columns = (np.unique(places) for places in where.nonzero())
        names = [repr(str(X.columns[j])) if hasattr(X, "columns") else str(j) for j in columns[:10]]
        more = f" and {columns.size - 10} more" if columns.size > 10 else ""
        advice = "drop these rows, or replace the values"
        if found[1] == "NaN":
            advice = "drop these rows, or fill them, for example by sklearn.impute.SimpleImputer(add_indicator=True)"
        raise ValueError(
            f"Input X contains {found[1]} in {rows.size} of {values.shape[0]} rows, in "
            f"{'column' if columns.size == 1 else 'columns'} {', '.join(names)}{more}: {advice}"
        ) from error


def _codes(column: Any, name: str, known: list[Any], unseen: bool) -> NDArray[np.intp]:
    """Give the number of every row's level among the known ones, or their count where it is none of them."""
    codes, given = _coded(column, name)
    places = {level_text(level): j for j, level in enumerate(known)}
    each = np.array([places.get(level, len(known)) for level in given], dtype=np.intp)
    found: NDArray[np.intp] = each[codes]
    if not unseen and np.any(found == len(known)):
        new = [shown(level) for level in sorted({given[j] for j in np.unique(codes[found == len(known)])})]
        raise ValueError(
            f"column {name!r} has levels that were not among the known ones: {', '.join(new[:10])}; give it a "
            "categorical type that names all levels before the first call"
        )
    return found


def _coded(column: Any, name: Any) -> tuple[NDArray[Any], list[str]]:
    """Give the number of every row's level, and the levels: Python looks at each level once, not at each row."""
    if bool((column.isna() if hasattr(column, "isna") else column.is_null()).any()):
        raise ValueError(f"column {name!r} has missing values: give them a level of their own, such as 'missing'")
    try:
        if not hasattr(column, "factorize"):
            codes, each = _of_polars(column)
        elif hasattr(column, "cat"):
            codes, each = column.cat.codes, column.cat.categories
        else:
            codes, each = column.factorize()
    except TypeError:  # a level without a hash, such as a list
        raise ValueError(f"column {name!r} must hold strings, numbers or categories of these") from None
    return np.asarray(codes), [_text(level, name) for level in each]


def _of_polars(column: Any) -> tuple[Any, list[Any]]:
    """Do the same for a column of polars: an ``Enum`` names all its levels, other types have those that occur."""
    if str(column.dtype).startswith("Enum"):
        return column.to_physical(), list(column.dtype.categories)
    places: dict[Any, int] = {}
    return [places.setdefault(level, len(places)) for level in column], list(places)


def names_of(features: list[str], levels: Levels) -> list[str]:
    """Names of the columns that `encode` makes."""
    names = [name for name in features if name not in levels]
    for name, known in levels.items():
        names += [*(f"{name}={level}" for level in known), f"{name}=(unseen)"]
    return names


def columns_of(features: int, levels: Levels) -> dict[str, NDArray[np.intp]]:
    """Which of the columns that `encode` makes belong to which column of categories."""
    start, found = features - len(levels), {}
    for name, known in levels.items():
        found[name] = np.arange(start, start + len(known) + 1)
        start += len(known) + 1
    return found


def _is_number(dtype: Any) -> bool:
    if hasattr(dtype, "is_numeric"):  # polars
        return bool(dtype.is_numeric()) or str(dtype) == "Boolean"
    return getattr(dtype, "kind", "O") in "biufc" and not hasattr(dtype, "categories")


def _text(level: Any, name: Any) -> str:
    """Give a level that is a string, number or truth value as text."""
    if not isinstance(level, str | int | float | bool | np.number | np.bool_):
        raise ValueError(f"column {name!r} must hold strings, numbers or categories of these, got {shown(level)}")
    return level_text(level)
