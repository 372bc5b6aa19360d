"""From raw columns to the design matrix of the paper."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from cavity._types import FloatArray

from ._tables import Column


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Design matrix and labels, rows in file order.

    Attributes
    ----------
    X : array, shape (n_rows, n_columns)
        C-contiguous; the last column is the constant.
    y : array, shape (n_rows,)
        Labels in {-1, +1}.
    names : tuple of str
        Column names: a number's own, ``column=level`` for a category, ``constant`` at last.
    """

    X: FloatArray
    y: FloatArray
    names: tuple[str, ...]


def encode(features: Mapping[str, Column], labels: FloatArray, scale: str) -> Design:
    """One-hot the categories, append the constant, and, but for raw columns, centre and scale every one."""
    n_rows = len(labels)
    names, columns = zip(*_numeric_columns(features), strict=True)
    X = np.empty((n_rows, len(columns) + 1))
    for j, column in enumerate(columns):
        X[:, j] = column if scale == "raw" else column - column.mean()
    X[:, -1] = 1.0
    if scale != "raw":
        lengths = np.linalg.norm(X, axis=0)
        X /= lengths if scale == "norm" else lengths / sqrt(n_rows)
    return Design(X, labels, (*names, "constant"))


def _numeric_columns(features: Mapping[str, Column]) -> Iterator[tuple[str, FloatArray]]:
    for name, column in features.items():
        if column.dtype.kind != "U":
            yield name, column.astype(np.float64)
            continue
        _, *kept = np.unique(column)  # sorted as text; the first level is the reference
        for level in kept:
            yield f"{name}={level}", (column == level).astype(np.float64)
