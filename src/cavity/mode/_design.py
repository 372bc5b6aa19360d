"""The rows of a whole data set as matrix products, without a second array of their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg.blas import dsyrk, dtrmm

FloatArray = NDArray[np.float64]

# Rows and entries of a block: it stays in the cache between being scaled and being multiplied.
_BLOCK_ROWS = 512
_BLOCK_ENTRIES = 1 << 20
# Entries that are not worth being cut into blocks.
_FEW_ENTRIES = 1 << 15
# A multiplication in a dense product takes about this share of one in a sparse product.
_DENSE_SHARE = 1.0 / 32.0
# Rows that weigh so little against the heaviest do not show in a sum of squares.
_WEIGHTLESS = 1e-17


class Design(Protocol):
    """What is asked of rows :math:`X`. Vectors are float64 whatever the entries are."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""

    def predict(self, point: FloatArray) -> FloatArray:
        r"""Linear predictors :math:`X \theta`."""

    def pull(self, values: FloatArray) -> FloatArray:
        r"""Sum of the rows, each times its value, :math:`X^\top u`."""

    def pull_squares(self, values: FloatArray) -> FloatArray:
        """Sum of the rows squared entry by entry, each times its value."""

    def gram(self, values: FloatArray) -> FloatArray:
        r"""Matrix :math:`X^\top \mathrm{diag}(u)\, X` for values of zero or more."""

    def squared_lengths(self, root: FloatArray) -> FloatArray:
        r"""Squared length of every row of :math:`X R`, for a matrix or, as a vector, a diagonal of one."""

    def every(self, stride: int) -> Design:
        """Keep every so many rows."""

    def take(self, rows: NDArray[np.intp]) -> Design:
        """Copy some rows."""


@dataclass(frozen=True, slots=True)
class DenseDesign:
    """Rows as an array."""

    X: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array."""
        return self.X.shape[0], self.X.shape[1]

    def predict(self, point: FloatArray) -> FloatArray:
        """One matrix product, by blocks where the entries are single precision."""
        if self.X.dtype == np.float64:
            result: FloatArray = self.X @ point
            return result
        return np.concatenate([block @ point for _, block in self._blocks()])

    def pull(self, values: FloatArray) -> FloatArray:
        """One matrix product, by blocks where the entries are single precision."""
        if self.X.dtype == np.float64:
            result: FloatArray = values @ self.X
            return result
        return _total(values[rows] @ block for rows, block in self._blocks())

    def pull_squares(self, values: FloatArray) -> FloatArray:
        """One product a block."""
        return _total(values[rows] @ (block * block) for rows, block in self._blocks())

    def gram(self, values: FloatArray) -> FloatArray:
        """One symmetric product a block, rows of no weight left out; of few entries, one product."""
        if self.X.size <= _FEW_ENTRIES:
            product: FloatArray = (self.X * values[:, None]).T @ self.X
            return product
        used = np.flatnonzero(values > _WEIGHTLESS * np.max(values, initial=0.0))
        root, whole = np.sqrt(values[used]), used.size == values.size
        length = max(_BLOCK_ROWS, self.shape[1])
        total, buffer = np.zeros((self.shape[1], self.shape[1]), order="F"), np.empty((length, self.shape[1]))
        for start in range(0, used.size, length):
            rows = slice(start, start + length)
            factors = root[rows, None]
            scaled = np.multiply(self.X[rows if whole else used[rows]], factors, out=buffer[: len(factors)])
            total = dsyrk(1.0, scaled.T, beta=1.0, c=total, overwrite_c=True)
        return _mirrored(total)

    def squared_lengths(self, root: FloatArray) -> FloatArray:
        """One product a block; half of one for a triangular matrix."""
        if root.ndim == 1:
            return np.concatenate([np.square(block) @ (root * root) for _, block in self._blocks()])
        if root.shape[0] == root.shape[1] and not np.any(np.tril(root, -1)):
            upper = np.asfortranarray(root)
            parts = (
                dtrmm(1.0, upper, block.T.copy(order="F"), trans_a=1, overwrite_b=1).T for _, block in self._blocks()
            )
        else:
            parts = (block @ root for _, block in self._blocks())
        return np.concatenate([np.einsum("ij,ij->i", part, part) for part in parts])

    def every(self, stride: int) -> DenseDesign:
        """Take a view."""
        return DenseDesign(self.X[::stride])

    def take(self, rows: NDArray[np.intp]) -> DenseDesign:
        """Copy the rows kept."""
        return DenseDesign(self.X[rows])

    def _blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        for start in range(0, self.shape[0], _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            yield rows, np.asarray(self.X[rows], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class SparseDesign:
    """Rows in CSR form."""

    X: Any  # scipy.sparse.csr_array

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.X.shape[0], self.X.shape[1]

    def predict(self, point: FloatArray) -> FloatArray:
        """One sparse product, by blocks where the entries are single precision."""
        return np.concatenate([block @ point for _, block in self._blocks()])

    def pull(self, values: FloatArray) -> FloatArray:
        """One sparse product with the transpose, by blocks where the entries are single precision."""
        return _total(block.T @ values[rows] for rows, block in self._blocks())

    def pull_squares(self, values: FloatArray) -> FloatArray:
        """One product a block."""
        return _total(block.power(2).T @ values[rows] for rows, block in self._blocks())

    def gram(self, values: FloatArray) -> FloatArray:
        """One product a block, sparse or with the zeros filled in, whichever is less work."""
        n, d = self.shape
        lengths = np.diff(self.X.indptr).astype(np.float64)
        stays_sparse = float(lengths @ lengths) < _DENSE_SHARE * n * d * d
        total, root = np.zeros((d, d), order="F"), np.sqrt(values)
        for rows, block in self._blocks(None if stays_sparse else max(_BLOCK_ROWS, d)):
            scaled = sparse.diags_array(root[rows]) @ block
            if stays_sparse:
                product = (scaled.T @ scaled).tocoo()
                total[product.row, product.col] += product.data
            else:
                total = dsyrk(1.0, scaled.toarray().T, beta=1.0, c=total, overwrite_c=True)
        return total if stays_sparse else _mirrored(total)

    def squared_lengths(self, root: FloatArray) -> FloatArray:
        """One product a block."""
        if root.ndim == 1:
            return np.concatenate([block.power(2) @ (root * root) for _, block in self._blocks()])
        parts = (block @ root for _, block in self._blocks(_BLOCK_ROWS))
        return np.concatenate([np.einsum("ij,ij->i", part, part) for part in parts])

    def every(self, stride: int) -> SparseDesign:
        """Copy the rows kept."""
        return SparseDesign(self.X[::stride])

    def take(self, rows: NDArray[np.intp]) -> SparseDesign:
        """Copy the rows kept."""
        return SparseDesign(self.X[rows])

    def _blocks(self, length: int | None = None) -> Iterator[tuple[slice, Any]]:
        n = self.shape[0]
        if length is None and self.X.dtype == np.float64:
            yield slice(None), self.X
            return
        length = length or max(1, n * _BLOCK_ENTRIES // max(1, self.X.nnz))
        for start in range(0, n, length):
            rows = slice(start, start + length)
            yield rows, self.X[rows].astype(np.float64, copy=False)


def design_of(X: Any) -> Design:
    """Wrap validated rows, dense or CSR."""
    return SparseDesign(X) if sparse.issparse(X) else DenseDesign(X)


def _mirrored(upper: FloatArray) -> FloatArray:
    """Fill in the lower triangle, which is zero."""
    result: FloatArray = upper + upper.T
    result.flat[:: len(result) + 1] *= 0.5
    return result


def _total(parts: Iterator[FloatArray]) -> FloatArray:
    total = next(parts)
    for part in parts:
        total = total + part
    return total
