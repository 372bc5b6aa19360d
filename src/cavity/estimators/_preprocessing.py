"""What is done to the columns of a table before its rows are encoded, and encoded rows themselves.

Where numbers may be missing, the mean stands in for them and a column of its own says so.
A model keeps this as plain values (``preprocessing_``), so that files can hold it, and applies it to tables and
DataFrames alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

FloatArray = NDArray[np.float64]


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
