"""What must hold of the arrays that a kernel is given. Kernels look at nothing: an index outside an array is undefined.

Whoever calls a kernel has checked what users gave; this is the second look, at sizes and indices alone, for faults in
between. It costs a pass over the indices of sparse rows, and nothing in proportion to dense ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.factors import check_compressed


def check_rows(X: Any, targets: NDArray[Any], weights: NDArray[Any], cuts: NDArray[Any], dim: int) -> None:
    """Check rows, dense or CSR, with their targets and weights (or none), cut into batches, against a posterior."""
    rows, columns = X.shape
    if columns != dim or dim >= 2**32:  # kernels hold coordinates in 32 bits
        raise ValueError(f"X must have a column for each of the {dim} coordinates of the posterior, got {columns}")
    if targets.shape != (rows,) or weights.shape not in ((0,), (rows,)):
        raise ValueError(f"{rows} rows need as many targets and weights, got {targets.size} and {weights.size}")
    if cuts.ndim != 1 or cuts.size == 0 or cuts[0] < 0 or cuts[-1] > rows or np.any(cuts[1:] < cuts[:-1]):
        raise ValueError(f"cuts between batches must lie from 0 to {rows} and never decrease, got {cuts}")
    if sparse.issparse(X):
        if X.format != "csr":
            raise ValueError(f"sparse rows must be in CSR form, got {X.format}; call X.tocsr()")
        check_compressed(X.data, X.indices, X.indptr, rows, columns)


def check_visits(visits: NDArray[Any], following: NDArray[Any], count: int) -> None:
    """Check the batches to visit, and the one after each, against the number of batches."""
    if following.size < visits.size:
        raise ValueError(f"{visits.size} visits need as many batches to follow, got {following.size}")
    for numbers in (visits, following):
        if numbers.ndim != 1 or numbers.dtype.kind != "i":
            raise ValueError(
                f"visits must be whole numbers, one per visit, got {numbers.dtype} of shape {numbers.shape}"
            )
        if numbers.size and not 0 <= np.min(numbers) <= np.max(numbers) < count:
            raise ValueError(f"visits must lie from 0 to {count - 1}, got {np.min(numbers)} to {np.max(numbers)}")
