"""Numbers for every batch of rows and every column it touches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.factors import LinearBatches

FloatArray = NDArray[np.float64]

_BLOCK_ROWS = 4096


class Table(Protocol):
    """What is asked of the shape of such numbers. A table itself is an array, with the arithmetic of arrays."""

    def sums(self, values: FloatArray, squared: bool = False) -> FloatArray:
        """Sum the rows of every batch, each times its value, the entries squared or not."""

    def along(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Repeat what is known of the columns for every batch."""

    def total(self, table: FloatArray) -> FloatArray:
        """Sum over the batches."""

    def largest(self, table: FloatArray) -> FloatArray:
        """Largest number of every column, zero if none is above."""

    def by_batch(self, table: FloatArray) -> FloatArray:
        """Sum over the columns."""

    def filled(self, table: FloatArray) -> Any:
        """Return an array or CSR array of batches and columns."""


class DenseTable:
    """An array of batches and columns."""

    def __init__(self, factors: LinearBatches) -> None:
        self._X, self._cuts = factors.X, factors.cuts

    def sums(self, values: FloatArray, squared: bool = False) -> FloatArray:
        """Multiply blocks of rows by a sparse matrix with a row for every batch."""
        result = np.empty((self._cuts.size - 1, self._X.shape[1]))
        for first, last in self._blocks():
            cuts = self._cuts[first : last + 1]
            rows = slice(cuts[0], cuts[-1])
            entries = np.asarray(self._X[rows], dtype=np.float64)
            batches = sparse.csr_array((values[rows], np.arange(len(entries)), cuts - cuts[0]))
            result[first:last] = batches @ (entries * entries if squared else entries)
        return result

    def along(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Leave it to broadcasting."""
        return columns

    def total(self, table: FloatArray) -> FloatArray:
        """Sum over the first axis."""
        result: FloatArray = np.sum(table, axis=0)
        return result

    def largest(self, table: FloatArray) -> FloatArray:
        """Compare along the first axis."""
        result: FloatArray = np.max(table, axis=0, initial=0.0)
        return result

    def by_batch(self, table: FloatArray) -> FloatArray:
        """Sum over the second axis."""
        result: FloatArray = np.sum(table, axis=1)
        return result

    def filled(self, table: FloatArray) -> FloatArray:
        """Return the array."""
        return table

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Cut the batches into groups of few rows, of one batch at least."""
        first, count = 0, self._cuts.size - 1
        while first < count:
            fitting = int(np.searchsorted(self._cuts, self._cuts[first] + _BLOCK_ROWS, side="right")) - 1
            last = max(fitting, first + 1)
            yield first, last
            first = last


class SparseTable:
    """The columns that every batch touches, one batch after the other."""

    def __init__(self, factors: LinearBatches) -> None:
        X, used = factors.X, np.ones(factors.targets.size, dtype=np.bool_)
        if factors.weights is not None:
            used = factors.weights > 0.0
        starts = np.concatenate([[0], np.cumsum(used)])[factors.cuts]
        shape = (factors.cuts.size - 1, used.size)
        self._batches = sparse.csr_array((np.ones(starts[-1]), np.flatnonzero(used), starts), shape=shape)
        self._X, self._row_of = X, np.repeat(np.arange(used.size), np.diff(X.indptr))
        pattern = self._product(np.zeros(X.nnz))
        self._indices, self._indptr, self._shape = pattern.indices, pattern.indptr, pattern.shape

    def sums(self, values: FloatArray, squared: bool = False) -> FloatArray:
        """Multiply by a sparse matrix with a row for every batch."""
        entries = self._X.data.astype(np.float64)
        entries *= entries if squared else 1.0
        entries *= values[self._row_of]
        result: FloatArray = np.ascontiguousarray(self._product(entries).data.real)
        return result

    def along(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Look the columns up."""
        result: NDArray[Any] = columns[self._indices]
        return result

    def total(self, table: FloatArray) -> FloatArray:
        """Count by column."""
        return np.bincount(self._indices, weights=table, minlength=self._shape[1]).astype(np.float64)

    def largest(self, table: FloatArray) -> FloatArray:
        """Compare by column."""
        result = np.zeros(self._shape[1])
        np.maximum.at(result, self._indices, table)
        return result

    def by_batch(self, table: FloatArray) -> FloatArray:
        """Sum over the rows of the CSR array."""
        result: FloatArray = np.asarray(self.filled(table).sum(axis=1), dtype=np.float64)
        return result

    def filled(self, table: FloatArray) -> Any:
        """Return the CSR array."""
        return sparse.csr_array((table, self._indices, self._indptr), shape=self._shape)

    def _product(self, entries: FloatArray) -> Any:
        """Sum the entries of every batch; a count in the imaginary part keeps sums of zero in the pattern."""
        X = sparse.csr_array((entries + 1j, self._X.indices, self._X.indptr), shape=self._X.shape)
        product = self._batches @ X
        product.sort_indices()
        return product


def table_of(factors: LinearBatches) -> Table:
    """Choose by the storage of the rows."""
    return SparseTable(factors) if sparse.issparse(factors.X) else DenseTable(factors)
