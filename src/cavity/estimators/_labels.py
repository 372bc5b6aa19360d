"""Labels as signs, and back to one column per class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

FloatArray = NDArray[np.float64]


def classes_and_codes(y: Any) -> tuple[Any, Any]:
    """Labels in order, and which of them every row has; two whole numbers are found without sorting."""
    if y.dtype.kind in "iubf" and y.size:
        low, high = np.min(y), np.max(y)
        upper = y == high
        whole = low != high and float(low).is_integer() and float(high).is_integer()
        if whole and np.count_nonzero(upper) + np.count_nonzero(y == low) == y.size:
            return np.array([low, high], dtype=y.dtype), upper.view(np.int8)
    try:
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"y must hold labels of one kind, numbers or strings: {error}") from error
    return classes, codes


def codes_of(y: Any, classes: Any, rows: int) -> Any:
    """Which of known classes every row has."""
    labels = y if type(y) is np.ndarray and y.ndim == 1 else column_or_1d(y, warn=True)
    if labels.shape[0] != rows:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: [{rows}, {labels.shape[0]}]")
    known = classes.tolist()
    if classes.size == 2:
        upper = labels == classes[1]
        if np.all(upper | (labels == classes[0])):
            return upper.view(np.int8)
    elif all(one in known for one in labels) if labels.dtype == object else np.all(np.isin(labels, classes)):
        return np.searchsorted(classes, labels)
    unknown = sorted({repr(label) for label in labels.tolist()} - {repr(label) for label in known})
    raise ValueError(f"y holds labels that were not among the classes {classes}: {', '.join(unknown[:10])}")


def signs_of(codes: Any, count: int) -> FloatArray:
    """Signs of class numbers: one row for two classes, one per class for more."""
    if count == 2:
        return (2.0 * codes - 1.0)[None]
    return np.where(codes == np.arange(count)[:, None], 1.0, -1.0)


def by_row(values: FloatArray) -> FloatArray:
    """One number per row for one linear predictor, a column per class for more."""
    return values[0] if len(values) == 1 else values.T


def normalised(positive: FloatArray) -> FloatArray:
    """Probabilities of two classes from that of the second, or of many from each against the rest."""
    if len(positive) == 1:
        return np.column_stack([1.0 - positive[0], positive[0]])
    total = np.sum(positive, axis=0)
    equal = np.full_like(positive, 1.0 / len(positive))
    return np.where(total > 0.0, positive / np.where(total > 0.0, total, 1.0), equal).T


def check_count(classes: Any) -> Any:
    """Refuse a single class, in scikit-learn's words."""
    if classes.size < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {classes.size} class")
    return classes


def ranks_of_classes(X: Any, codes: Any, weights: Any, count: int) -> list[int]:
    """Place of every class in an order that follows from its rows: by their weight, then by the sums of columns."""
    w = np.ones(codes.size) if weights is None else weights
    totals = np.bincount(codes, w, count)
    belongs = np.asarray(codes == np.arange(count)[:, None], dtype=np.float64) * w
    sums = np.asarray(belongs @ X)
    order = np.lexsort((*sums.T[::-1], totals))
    return [int(rank) for rank in np.argsort(order)]
