"""From a user's matrix to the rows that the kernels see: an intercept column at the end, dense or CSR."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def with_intercept(X: Any, out: Any = None) -> Any:
    """Append a column of ones; into ``out`` if a dense array of the right shape is given."""
    n, d = X.shape
    if sparse.issparse(X):
        ends = X.indptr[1:]
        data, indices = np.insert(X.data, ends, 1.0), np.insert(X.indices, ends, d)
        starts = X.indptr + np.arange(n + 1, dtype=X.indptr.dtype)
        return sparse.csr_array((data, indices, starts), shape=(n, d + 1))
    if out is None or sparse.issparse(out) or out.shape != (n, d + 1) or out.dtype != X.dtype:
        out = np.empty((n, d + 1), dtype=X.dtype)
        out[:, d] = 1.0
    out[:, :d] = X
    return out


def rows_of_weight(X: Any, targets: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Drop the rows of weight zero: they are as good as absent, also where mini-batches are cut."""
    if weights is None or np.all(weights > 0.0):
        return X, targets, weights
    kept = weights > 0.0
    if not np.any(kept):
        raise ValueError("sample_weight must be positive for at least one row, got zeros only")
    return X[kept], targets[..., kept], weights[kept]


def squared(X: Any) -> Any:
    """Entries squared, dense or sparse."""
    return X.power(2) if sparse.issparse(X) else np.square(X)
