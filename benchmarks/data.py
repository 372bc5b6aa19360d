"""Data of the benchmarks: real sets, standardised, and simulated designs; labels -1 and +1, no constant column."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes, load_digits, load_wine

from cavity import datasets
from reference.problems import FloatArray


class Data(NamedTuple):
    """Rows and labels."""

    name: str
    X: FloatArray
    y: FloatArray

    @property
    def title(self) -> str:
        """Name and shape for people."""
        return f"{self.name}, {self.X.shape[0]:,} x {self.X.shape[1]:,}"


def standardised(X: FloatArray) -> FloatArray:
    """Columns of mean zero and variance one; constant ones are left out."""
    spread = np.std(X, axis=0)
    kept = spread > 1e-12
    return np.ascontiguousarray((X[:, kept] - np.mean(X[:, kept], axis=0)) / spread[kept])


def _of_the_paper(name: str) -> tuple[FloatArray, FloatArray]:
    """A set of the paper in a fixed random order, so that its first rows are a sample."""
    design = datasets.paper(name, scale="std")
    order = np.random.default_rng(0).permutation(design.y.size)
    return np.ascontiguousarray(design.X[order, :-1]), design.y[order].astype(np.float64)


def _wine() -> tuple[FloatArray, FloatArray]:
    """Class 0 against the rest."""
    X, y = load_wine(return_X_y=True)
    return standardised(X), np.where(y == 0, 1.0, -1.0)


def _digits() -> tuple[FloatArray, FloatArray]:
    """3 against 8."""
    X, y = load_digits(return_X_y=True)
    kept = (y == 3) | (y == 8)
    return standardised(X[kept]), np.where(y[kept] == 3, 1.0, -1.0)


def _diabetes() -> tuple[FloatArray, FloatArray]:
    """Progression above its median."""
    X, y = load_diabetes(return_X_y=True)
    return standardised(X), np.where(y > np.median(y), 1.0, -1.0)


def _labels(z: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Labels of a logistic model."""
    return np.where(z + rng.logistic(size=z.size) > 0.0, 1.0, -1.0)


def _correlated() -> tuple[FloatArray, FloatArray]:
    """500 rows of 20 columns, any two of which have the correlation 0.9."""
    rng = np.random.default_rng(1)
    X = np.sqrt(0.9) * rng.standard_normal((500, 1)) + np.sqrt(0.1) * rng.standard_normal((500, 20))
    return X, _labels(X @ rng.standard_normal(20), rng)


def _rare() -> tuple[FloatArray, FloatArray]:
    """1000 rows of 20 columns: ten of them zero in 98 of 100 rows."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((1000, 20))
    X[:, 10:] *= rng.random((1000, 10)) < 0.02
    return X, _labels(X @ rng.standard_normal(20), rng)


def _separable() -> tuple[FloatArray, FloatArray]:
    """200 rows of 10 columns, split by a plane."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 10))
    return X, np.where(X @ rng.standard_normal(10) > 0.0, 1.0, -1.0)


def _one_hot() -> tuple[FloatArray, FloatArray]:
    """1000 rows of three factors of 5, 10 and 20 levels, all of their levels as columns, and two numbers."""
    rng = np.random.default_rng(4)
    parts = [np.eye(k)[rng.integers(k, size=1000)] for k in (5, 10, 20)]
    X = np.column_stack([*parts, rng.standard_normal((1000, 2))])
    return X, _labels(X @ rng.standard_normal(X.shape[1]), rng)


_REAL: dict[str, Callable[[], tuple[FloatArray, FloatArray]]] = {
    **{name: (lambda name=name: _of_the_paper(name)) for name in datasets.NAMES},
    "wine, 0 against the rest": _wine,
    "digits, 3 against 8": _digits,
    "diabetes, above the median": _diabetes,
}
_SIMULATED: dict[str, Callable[[], tuple[FloatArray, FloatArray]]] = {
    "correlation 0.9": _correlated,
    "rare columns": _rare,
    "separable": _separable,
    "one-hot, a redundant level": _one_hot,
}
REAL, SIMULATED = tuple(_REAL), tuple(_SIMULATED)


@cache
def load(name: str) -> Data:
    """One of `REAL` or `SIMULATED`."""
    return Data(name, *{**_REAL, **_SIMULATED}[name]())
