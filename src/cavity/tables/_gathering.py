"""What one look at all rows gathers: moments of numbers, levels of categories, classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.tables._batches import Texts

FloatArray = NDArray[np.float64]

# Labels beyond which a target is taken for a number that varies.
MOST_CLASSES = 10_000


class RunningMoments:
    """Means and squared distances of columns over all rows seen, missing ones left out, without cancellation."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = np.zeros(columns), np.zeros(columns), np.zeros(columns)

    def add(self, values: FloatArray, weights: FloatArray | None = None) -> None:
        """Add rows ``(n, columns)``, by the formula of Chan, Golub and LeVeque for two sets of rows."""
        if weights is None and not np.isnan(np.sum(values)):
            mean = np.asarray(np.mean(values, axis=0) if len(values) else self.mean)
            apart = values - mean
            self._join(np.full(self.mean.shape, float(len(values))), mean, np.einsum("ij,ij->j", apart, apart))
            return
        present = ~np.isnan(values)
        w = present if weights is None else present * weights[:, None]
        count = np.asarray(np.sum(w, axis=0, dtype=np.float64))
        filled = np.where(present, values, 0.0)
        safe = np.where(count > 0.0, count, 1.0)
        mean = np.einsum("ij,ij->j", filled, np.asarray(w, dtype=np.float64)) / safe
        apart = np.where(present, values - mean, 0.0)
        self._join(count, mean, np.einsum("ij,ij,ij->j", apart, apart, np.asarray(w, dtype=np.float64)))

    def _join(self, count: FloatArray, mean: FloatArray, squares: FloatArray) -> None:
        """Take over what other rows have."""
        total = self.count + count
        share = count / np.where(total > 0.0, total, 1.0)
        delta = np.where(count > 0.0, mean - self.mean, 0.0)
        self.mean = self.mean + delta * share
        self.squares = self.squares + squares + delta * delta * self.count * share
        self.count = total


class Codes:
    """Numbers of distinct values in the order in which they were first seen, and in sorted order at the end.

    Parameters
    ----------
    write
        Form in which texts are compared.
    order
        Key by which values are sorted; their own order by default.
    """

    def __init__(self, write: Callable[[str], str] = str, order: Callable[[Any], Any] | None = None) -> None:
        self._places: dict[Any, int] = {}
        self._write, self._order = write, order

    def __len__(self) -> int:
        return len(self._places)

    def texts(self, column: Texts) -> FloatArray:
        """Give the numbers of a column of texts; -1 where missing."""
        places = self._places
        each = [places.setdefault(self._write(level), len(places)) for level in column.levels]
        return np.array([*each, -1], dtype=np.float64)[column.codes]  # the code -1 takes the last

    def numbers(self, column: NDArray[Any]) -> FloatArray:
        """Give the numbers of a column of numbers, of which whole ones may be integers; -1 where missing."""
        values, inverse = np.unique(column, return_inverse=True)
        places = self._places
        each = [-1 if np.isnan(v) else places.setdefault(v.item(), len(places)) for v in values]
        return np.asarray(each, dtype=np.float64)[inverse]

    def sorted(self) -> tuple[list[Any], NDArray[np.int64]]:
        """Values in order, and the place there of every number that was given."""
        values = list(self._places)
        order = sorted(range(len(values)), key=lambda k: self._order(values[k]) if self._order else values[k])
        places = np.empty(len(values), dtype=np.int64)
        places[order] = np.arange(len(values))
        return [values[k] for k in order], places


def first_bad(values: FloatArray, is_bad: Callable[[FloatArray], NDArray[np.bool_]]) -> int | None:
    """Row of the first value that is bad."""
    bad = np.flatnonzero(is_bad(values))
    return int(bad[0]) if bad.size else None


__all__ = ["MOST_CLASSES", "Codes", "RunningMoments", "first_bad"]
