"""Sparse matrices whose indices compiled code may follow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
