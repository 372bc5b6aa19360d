"""Rows of a linear model, dense or CSR: how they are checked, and the operations in which the two differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity._types import FloatArray, IndexArray

# Entries that are copied, hashed or compared at once: 128 kB, which stay in the cache. A worker of Dask gives larger
# temporary arrays back to the system at once, and they take three times as long.
ENTRIES_AT_ONCE = 1 << 14


def squared(X: Any) -> Any:
    """Entries squared."""
    return X.power(2) if sparse.issparse(X) else np.square(X)


def dense_rows(X: Any, intercept: bool, order: Any = slice(None)) -> FloatArray:
    """Chosen rows as a C-ordered array of double precision, with a constant column at the end if wanted."""
    n, d = len(range(X.shape[0])[order]) if isinstance(order, slice) else len(order), X.shape[1]
    block = np.empty((n, d + int(intercept)))
    block[:, d:] = 1.0
    if sparse.issparse(X):
        chosen = X[order]
        block[:, :d] = 0.0
        block[row_of_entries(chosen), chosen.indices] = chosen.data
    elif isinstance(order, slice):
        block[:, :d] = X[order]
    else:
        length = max(1, ENTRIES_AT_ONCE // max(d, 1))
        for i in range(0, n, length):
            block[i : i + length, :d] = X[order[i : i + length]]
    return block


def dense_blocks(X: Any, length: int) -> Iterator[tuple[slice, FloatArray]]:
    """Blocks of so many rows as arrays of double precision, and which rows they are."""
    for start in range(0, X.shape[0], length):
        rows = slice(start, start + length)
        yield rows, dense_rows(X, False, rows)


def row_of_entries(X: Any) -> IndexArray:
    """Row of every stored entry of a CSR matrix."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))


def touched(X: Any) -> tuple[Any, IndexArray | None]:
    """Reduce checked rows to the columns with a non-zero, in double precision, and name these; None for all."""
    if sparse.issparse(X):
        nonzero = X.data != 0.0
        columns, inverse = np.unique(X.indices[nonzero], return_inverse=True)
        counts = np.bincount(row_of_entries(X)[nonzero], minlength=X.shape[0])
        data = X.data[nonzero].astype(np.float64)
        reduced = (data, inverse, np.concatenate([[0], np.cumsum(counts)]))
        matrix = sparse.csr_array(reduced, shape=(X.shape[0], columns.size))
        return matrix, None if columns.size == X.shape[1] else columns.astype(np.intp)
    columns = np.flatnonzero(np.any(X != 0.0, axis=0))
    if columns.size == X.shape[1]:
        return np.asarray(X, dtype=np.float64), None
    return np.asarray(X[:, columns], dtype=np.float64), columns


def widened(X: Any, coordinates: IndexArray | None, dim: int) -> Any:
    """Put the columns back among ``dim``: the inverse of `touched`."""
    if coordinates is None:
        return X
    if sparse.issparse(X):
        return sparse.csr_array((X.data, coordinates[X.indices], X.indptr), shape=(X.shape[0], dim))
    wide = np.zeros((X.shape[0], dim))
    wide[:, coordinates] = X
    return wide


def sum_shifted(X: Any, term: Callable[[Any, Any], FloatArray], *steps: FloatArray) -> list[FloatArray]:
    """Sum ``term(row, entry * step)`` over the entries of every column, for each of the steps."""
    if not sparse.issparse(X):
        every_row = np.arange(X.shape[0])[:, None]
        return [np.sum(term(every_row, X * step), axis=0) for step in steps]
    row_of, d = row_of_entries(X), X.shape[1]
    terms = (term(row_of, X.data * step[X.indices]) for step in steps)
    return [np.bincount(X.indices, weights=values, minlength=d).astype(np.float64) for values in terms]


def checked_rows(X: Any) -> Any:
    """Check rows, and bring them to a float array or canonical CSR; a copy only where needed."""
    if np.iscomplexobj(X):
        raise ValueError(f"X must hold real numbers, got {X.dtype if hasattr(X, 'dtype') else 'complex'}")
    X = canonical(X) if sparse.issparse(X) else np.asarray(X)
    if not (np.issubdtype(X.dtype, np.number) or X.dtype == bool):
        raise ValueError(f"X must hold real numbers, got {X.dtype}")
    X = X if X.dtype in (np.float64, np.float32) else X.astype(np.float64)
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"X must be a matrix with at least one column, got shape {X.shape}")
    first = _first_nonfinite(X.data if sparse.issparse(X) else X)
    if first is not None:
        row = np.searchsorted(X.indptr, first, side="right") - 1 if sparse.issparse(X) else first
        raise ValueError(f"X must be finite, but row {row} has NaN or infinity; drop or fill these entries")
    return X


def canonical(X: Any) -> Any:
    """CSR with sorted indices, no duplicates and no stored zeros; a copy only where something has to change."""
    check_csr(X)
    if X.format != "csr":
        X = X.tocsr()
        check_csr(X)
    X = sparse.csr_array(X)
    if not X.has_canonical_format or np.count_nonzero(X.data) < X.nnz:
        X = X.copy()
        X.sum_duplicates()
        X.eliminate_zeros()
    return X


def check_csr(X: Any) -> None:
    """Check that every index of a sparse matrix, CSR or of another kind, stays within it; copies nothing.

    SciPy looks at the indices only when it builds a matrix, and its compiled code, as ours, trusts them afterwards.
    So this comes before any operation on a matrix that a user gave. One pass over the indices.
    """
    if len(X.shape) != 2 or min(X.shape) < 0:
        raise ValueError(f"X must be a matrix with at least one column, got shape {X.shape}")
    if X.format in ("csr", "csc", "bsr"):
        rows, columns = X.shape if X.format != "csc" else X.shape[::-1]
        high, wide = X.blocksize if X.format == "bsr" else (1, 1)
        check_compressed(X.data, X.indices, X.indptr, rows // high, columns // wide)
    elif X.format == "coo":
        for places, length in zip(X.coords, X.shape, strict=True):
            if places.shape != (X.data.size,):
                raise ValueError(f"X is malformed: {X.data.size} entries, but {places.size} indices of them")
            _check_range("indices", places, length)


def check_compressed(data: NDArray[Any], indices: NDArray[Any], starts: NDArray[Any], rows: int, columns: int) -> None:
    """Check the three arrays of a CSR matrix of so many rows and columns."""
    if starts.shape != (rows + 1,):
        raise ValueError(f"X is malformed: {rows} rows need {rows + 1} numbers in indptr, got {starts.size}")
    if indices.ndim != 1 or len(data) != indices.size:
        raise ValueError(f"X is malformed: {len(data)} entries in data, but {indices.size} in indices")
    _check_range("indptr", starts, indices.size + 1)
    if starts[0] != 0 or np.any(starts[1:] < starts[:-1]):
        raise ValueError("X is malformed: indptr must begin at 0 and never decrease")
    _check_range("indices", indices[: starts[-1]], columns)


def _check_range(name: str, numbers: NDArray[Any], end: int) -> None:
    """Check that whole numbers lie from 0 to below the end."""
    if numbers.dtype.kind != "i":
        raise ValueError(f"X is malformed: {name} must be signed whole numbers, got {numbers.dtype}")
    # Read without their sign negative numbers are large: one look for both ends.
    if numbers.size and int(np.max(numbers.view(numbers.dtype.str.replace("i", "u")))) >= end:
        raise ValueError(
            f"X is malformed: {name} must lie from 0 to {end - 1}, got {np.min(numbers)} to {np.max(numbers)}; build "
            "the matrix again from its entries"
        )


def _first_nonfinite(entries: NDArray[Any]) -> int | None:
    """Index along the first axis of the first entry that is not finite; sums first, which need no memory."""
    length = max(1, 1_000_000 // max(1, entries[:1].size))
    for start in range(0, len(entries), length):
        block = entries[start : start + length]
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.sum(block)
        if not np.isfinite(total) and not np.all(np.isfinite(block)):
            return start + int(np.nonzero(~np.isfinite(block))[0][0])
    return None
