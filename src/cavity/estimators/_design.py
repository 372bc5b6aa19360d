"""Data that were checked, and what is made of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils.validation import _check_sample_weight

from cavity._checks import number_between, positive_number, shown
from cavity.estimators._parameters import LARGEST_NUMBER
from cavity.estimators._preprocessing import EncodedRows


class SumsTargets(Protocol):
    """Rows of which a sum over targets can be asked."""

    def sum_over_targets(self, function: Callable[[Any], Any]) -> float:
        """Weighted sum of a function of the first targets."""


class Data(NamedTuple):
    """Rows of positive weight: matrix, targets ``(predictors, rows)``, weights unless all are one, offsets if any."""

    X: Any
    targets: Any
    weights: Any
    offset: Any = None

    def sum_over_targets(self, function: Callable[[Any], Any]) -> float:
        """Weighted sum of a function of the first targets."""
        values = function(self.targets[0])
        return float(np.sum(values) if self.weights is None else self.weights @ values)


def with_intercept(X: Any) -> Any:
    """Append a column of ones."""
    n, d = X.shape
    if not sparse.issparse(X):
        rows = np.ones((n, d + 1), dtype=X.dtype)
        rows[:, :d] = X
        return rows
    ends = X.indptr[1:]
    data, indices = np.insert(X.data, ends, 1.0), np.insert(X.indices, ends, d)
    starts = X.indptr + np.arange(n + 1, dtype=X.indptr.dtype)
    return sparse.csr_array((data, indices, starts), shape=(n, d + 1))


def rows_of_weight(X: Any, targets: Any, sample_weight: ArrayLike | None, factors: Any = None) -> tuple[Any, Any, Any]:
    """Check the weights, times factors of their own if there are any, and drop the rows of weight zero.

    Such rows count as absent, also where mini-batches are cut. Without weights the third value is None.
    """
    weights = factors
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if np.any(weights > LARGEST_NUMBER):
            raise ValueError(f"sample_weight must be at most {LARGEST_NUMBER:g}, got {np.max(weights):g}")
        weights = weights if factors is None else weights * factors
    if weights is None or np.all(weights > 0.0):
        return X, targets, weights
    kept = weights > 0.0
    if not np.any(kept):
        raise ValueError("sample_weight must be positive for at least one row, got zeros only")
    return X[kept], targets[..., kept], weights[kept]


def checked_offset(offset: ArrayLike | None, rows: int) -> Any:
    """Check known parts of the linear predictors, one per row."""
    if offset is None:
        return None
    try:
        found = np.asarray(offset, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    if found.shape != (rows,) or not np.all(np.abs(found) <= LARGEST_NUMBER):
        raise ValueError(f"offset must hold one finite number for each of {rows} rows, got {shown(offset)}")
    return found


def forgetting(forget: Any, halflife: Any, sample_weight: ArrayLike | None, X: Any) -> tuple[float, Any]:
    """Give the share of what is known that a call gives up, and the weights of its rows.

    With a half-life H, in rows, every row multiplies what was said before by :math:`2^{-1/H}`, rows of the same call
    included: these have weights that fall from the last one to the first.
    """
    share = number_between("forget", forget, 0.0, 1.0, "[)")
    if halflife is None:
        return share, sample_weight
    if share:
        raise ValueError("forget and halflife say the same in two ways: give one of them")
    X = X.matrix if isinstance(X, EncodedRows) else X
    rows = np.shape(X)[0]
    rate = np.log(2.0) / positive_number("halflife", halflife)
    if rows <= 1:
        return float(-np.expm1(-rate * rows)), sample_weight
    falling = np.exp(-rate * np.arange(rows - 1.0, -1.0, -1.0))
    given = 1.0 if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
    return min(float(-np.expm1(-rate * rows)), 1.0 - 1e-12), np.maximum(falling, 1e-12) * given


def squared(X: Any) -> Any:
    """Entries squared, dense or sparse."""
    return X.power(2) if sparse.issparse(X) else np.square(X)
