"""The rows of a mini-batch, dense or sparse, reduced to the columns they touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

FloatArray = NDArray[np.float64]


class Rows(Protocol):
    """What a linear factor asks of its rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of touched columns."""

    def predict(self, points: FloatArray) -> FloatArray:
        """Linear predictors ``(n, rows)`` at points ``(n, d)``."""

    def pull(self, values: FloatArray) -> FloatArray:
        """Sum of the rows, each times its value."""

    def pull_squares(self, values: FloatArray) -> FloatArray:
        """Sum of the rows squared entry by entry, each times its value."""

    def sum_shifted(self, term: Callable[[Any, Any], FloatArray], steps: FloatArray) -> FloatArray:
        """Sum of ``term(row, shift)`` over the entries of every column, shift being entry times step."""

    def dense(self) -> FloatArray:
        """Return the rows as one array."""

    def widened(self, coordinates: NDArray[np.intp] | None, dim: int) -> Any:
        """Put the columns back where they were among ``dim``."""


@dataclass(frozen=True, slots=True)
class DenseRows:
    """Rows as an array."""

    entries: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array."""
        return self.entries.shape[0], self.entries.shape[1]

    def predict(self, points: FloatArray) -> FloatArray:
        """One matrix product."""
        return points @ self.entries.T

    def pull(self, values: FloatArray) -> FloatArray:
        """One matrix product."""
        return values @ self.entries

    def pull_squares(self, values: FloatArray) -> FloatArray:
        """One matrix product."""
        return values @ self.entries**2

    def sum_shifted(self, term: Callable[[Any, Any], FloatArray], steps: FloatArray) -> FloatArray:
        """Sum over the rows."""
        every_row = np.arange(self.shape[0])[:, None]
        total: FloatArray = np.sum(term(every_row, self.entries * steps), axis=0)
        return total

    def dense(self) -> FloatArray:
        """Return the array itself."""
        return self.entries

    def widened(self, coordinates: NDArray[np.intp] | None, dim: int) -> FloatArray:
        """Fill in columns of zeros."""
        if coordinates is None:
            return self.entries
        wide = np.zeros((self.shape[0], dim))
        wide[:, coordinates] = self.entries
        return wide


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows in CSR form, their columns renumbered to the touched ones."""

    matrix: Any  # scipy.sparse.csr_array
    row_of: NDArray[np.intp]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the reduced matrix."""
        return self.matrix.shape[0], self.matrix.shape[1]

    def predict(self, points: FloatArray) -> FloatArray:
        """One sparse product."""
        result: FloatArray = (self.matrix @ points.T).T
        return result

    def pull(self, values: FloatArray) -> FloatArray:
        """Sum over the non-zeros."""
        return self._by_column(values[self.row_of] * self.matrix.data)

    def pull_squares(self, values: FloatArray) -> FloatArray:
        """Sum over the non-zeros."""
        return self._by_column(values[self.row_of] * self.matrix.data**2)

    def sum_shifted(self, term: Callable[[Any, Any], FloatArray], steps: FloatArray) -> FloatArray:
        """Sum over the non-zeros."""
        return self._by_column(term(self.row_of, self.matrix.data * steps[self.matrix.indices]))

    def dense(self) -> FloatArray:
        """Fill in the zeros."""
        result: FloatArray = self.matrix.toarray()
        return result

    def widened(self, coordinates: NDArray[np.intp] | None, dim: int) -> Any:
        """Renumber the columns."""
        m = self.matrix
        indices = m.indices if coordinates is None else coordinates[m.indices]
        return sparse.csr_array((m.data, indices, m.indptr), shape=(self.shape[0], dim))

    def _by_column(self, entries: FloatArray) -> FloatArray:
        sums: FloatArray = np.bincount(self.matrix.indices, weights=entries, minlength=self.shape[1]).astype(np.float64)
        return sums


def touched_rows(X: Any) -> tuple[Rows, NDArray[np.intp] | None]:
    """Reduce validated rows to the columns with a non-zero, and name these; None if that is all of them."""
    if sparse.issparse(X):
        nonzero = X.data != 0.0
        columns, inverse = np.unique(X.indices[nonzero], return_inverse=True)
        row_of = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[nonzero]
        starts = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=X.shape[0]))])
        data = X.data[nonzero].astype(np.float64)
        matrix = sparse.csr_array((data, inverse, starts), shape=(X.shape[0], columns.size))
        return SparseRows(matrix, row_of), _all_or(columns, X.shape[1])
    columns = np.flatnonzero(np.any(X != 0.0, axis=0))
    chosen = _all_or(columns, X.shape[1])
    return DenseRows(np.asarray(X if chosen is None else X[:, chosen], dtype=np.float64)), chosen


def _all_or(columns: NDArray[Any], width: int) -> NDArray[np.intp] | None:
    return None if columns.size == width else columns.astype(np.intp)
