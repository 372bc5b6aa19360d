"""Centre and unit of columns, in which the prior of their coefficients is found.

The unit of a column is its standard deviation, and its centre the mean. Where a column has two values, or more than
half of its rows hold one value (zero, its smallest or its largest), that value is the centre and the unit is the root
mean square distance of the other rows from it: a rare level has the prior of a frequent one, and sparse columns stay
sparse. Without an intercept nothing is centred, and distances are those from zero.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cavity._types import FloatArray

# A deviation below this share of the mean is rounding.
_CONSTANT = 1e-12
# Columns of smaller numbers are columns of zeros: variances of their coefficients, by the square, leave the numbers
# that there are.
_LEAST = float(np.finfo(np.float64).tiny) ** 0.25
# Dense entries that are summed at once: 512 kB.
_ENTRIES_AT_ONCE = 1 << 16


class Columns(NamedTuple):
    """Coefficients belong to ``(x - center) / unit``; an intercept, if any, follows these columns."""

    center: FloatArray
    unit: FloatArray

    @classmethod
    def plain(cls, width: int) -> Columns:
        """Columns as they are."""
        return cls(np.zeros(width), np.ones(width))

    def standardised(self, X: Any) -> Any:
        """Rows in these units, dense or CSR, in double precision; columns with a centre other than zero are full."""
        if not np.any(self.center) and np.all(self.unit == 1.0):
            return X
        if not sparse.issparse(X):
            return (X - self.center) / self.unit
        moved = self.center != 0.0
        scaled = sparse.csr_array((X.data / self.unit[X.indices], X.indices, X.indptr), shape=X.shape)
        if not np.any(moved):
            return scaled
        columns = np.flatnonzero(moved)
        full = (X[:, columns].toarray() - self.center[columns]) / self.unit[columns]
        starts = np.arange(X.shape[0] + 1) * columns.size
        dense = sparse.csr_array((full.ravel(), np.tile(columns, X.shape[0]), starts), shape=X.shape)
        scaled.data[moved[X.indices]] = 0.0
        found = sparse.csr_array(scaled + dense)
        found.eliminate_zeros()
        return found

    def standardise(self, block: FloatArray) -> None:
        """Bring the first columns of dense rows to these units, in place."""
        block[:, : self.unit.size] -= self.center
        block[:, : self.unit.size] /= self.unit

    def matrix(self, other: Columns, intercept: bool) -> FloatArray:
        """Matrix that turns coefficients for these columns into those for others, intercept last."""
        ratio = other.unit / self.unit
        change = np.diag(np.append(ratio, [1.0] * intercept))
        if intercept:
            change[-1, :-1] = (other.center - self.center) / self.unit
        return change


class ColumnSums(NamedTuple):
    """What decides on centres and units of columns, one number per column: sums over rows that can be added up.

    Parameters
    ----------
    weight
        Sum of the weights of the rows.
    mean, squares
        Weighted mean, and sum of squared distances from it.
    least, largest
        Smallest and largest entry.
    at_least, at_largest, at_zero
        Weights of the rows that hold them, and zero.
    """

    weight: FloatArray
    mean: FloatArray
    squares: FloatArray
    least: FloatArray
    largest: FloatArray
    at_least: FloatArray
    at_largest: FloatArray
    at_zero: FloatArray

    @classmethod
    def nothing(cls, width: int) -> ColumnSums:
        """No rows."""
        zeros = np.zeros(width)
        return cls(zeros, zeros, zeros, np.full(width, np.inf), np.full(width, -np.inf), zeros, zeros, zeros)

    @classmethod
    def of(cls, X: Any, weights: FloatArray | None = None) -> ColumnSums:
        """Sum over rows, dense or canonical CSR."""
        w = np.ones(X.shape[0]) if weights is None else weights
        if sparse.issparse(X):
            return cls._of_csr(X, w)
        length = max(1, _ENTRIES_AT_ONCE // max(X.shape[1], 1))
        if len(X) > length:
            return reduce(cls.plus, (cls.of(X[i : i + length], w[i : i + length]) for i in range(0, len(X), length)))
        if not len(X):
            return cls.nothing(X.shape[1])
        A = np.asarray(X, dtype=np.float64)
        missing = np.isnan(A)
        if np.any(missing):  # these entries do not count
            present = w[:, None] * ~missing
            weight = np.sum(present, axis=0)
            least, largest = np.min(np.where(missing, np.inf, A), axis=0), np.max(np.where(missing, -np.inf, A), axis=0)
            A = np.where(missing, 0.0, A)
            mean = np.sum(present * A, axis=0) / np.where(weight > 0.0, weight, 1.0)
            squares = np.sum(present * np.square(A - mean), axis=0)
            counts = [np.sum(present * (value == A), axis=0) for value in (least, largest, 0.0)]
        else:
            weight = np.full(A.shape[1], float(np.sum(w)))
            mean = w @ A / weight
            least, largest = np.min(A, axis=0), np.max(A, axis=0)
            squares = w @ np.square(A - mean)
            counts = [w @ (value == A) for value in (least, largest, 0.0)]
        return cls(weight, mean, squares, least, largest, *counts)

    @classmethod
    def of_row(cls, row: FloatArray) -> ColumnSums:
        """Sum over one dense row."""
        one = np.ones(row.size)
        return cls(one, row.copy(), np.zeros(row.size), row, row, one, one, (row == 0.0).astype(np.float64))

    @classmethod
    def of_flags(cls, weight: float, ones: FloatArray) -> ColumnSums:
        """Sum over columns of zeros and ones, of which so many are ones."""
        all_rows, zeros = np.full(ones.size, weight), weight - ones
        varies = (ones > 0.0) & (zeros > 0.0)
        least, largest = np.where(zeros > 0.0, 0.0, 1.0), np.where(ones > 0.0, 1.0, 0.0)
        mean = ones / max(weight, np.finfo(np.float64).tiny)
        at_least, at_largest = np.where(varies, zeros, weight), np.where(varies, ones, weight)
        return cls(all_rows, mean, ones * (1.0 - mean), least, largest, at_least, at_largest, zeros)

    def beside(self, other: ColumnSums) -> ColumnSums:
        """Append the columns of other sums over the same rows."""
        return ColumnSums(*(np.concatenate(parts) for parts in zip(self, other, strict=True)))

    @classmethod
    def _of_csr(cls, X: Any, w: FloatArray) -> ColumnSums:
        by_column, width, weight = X.tocsc(), X.shape[1], float(np.sum(w))
        data, own = by_column.data.astype(np.float64), w[by_column.indices]
        column = np.repeat(np.arange(width), np.diff(by_column.indptr))

        def total(values: FloatArray) -> FloatArray:
            return np.bincount(column, weights=values, minlength=width).astype(np.float64)

        at_zero = np.maximum(weight - total(own), 0.0)
        filled = np.diff(by_column.indptr) == X.shape[0]
        at_zero[filled] = 0.0
        mean = total(own * data) / weight
        squares = total(own * np.square(data - mean[column])) + at_zero * np.square(mean)
        least, largest = np.where(filled, np.inf, 0.0), np.where(filled, -np.inf, 0.0)
        np.minimum.at(least, column, data)
        np.maximum.at(largest, column, data)
        at_least = total(own * (data == least[column])) + at_zero * (least == 0.0)
        at_largest = total(own * (data == largest[column])) + at_zero * (largest == 0.0)
        return cls(np.full(width, weight), mean, squares, least, largest, at_least, at_largest, at_zero)

    def plus(self, other: ColumnSums) -> ColumnSums:
        """Add the sums over other rows."""
        weight = self.weight + other.weight
        share = other.weight / np.maximum(weight, np.finfo(np.float64).tiny)
        apart = other.mean - self.mean
        least, largest = np.minimum(self.least, other.least), np.maximum(self.largest, other.largest)
        return ColumnSums(
            weight,
            self.mean + share * apart,
            self.squares + other.squares + self.weight * share * np.square(apart),
            least,
            largest,
            self.at_least * (self.least == least) + other.at_least * (other.least == least),
            self.at_largest * (self.largest == largest) + other.at_largest * (other.largest == largest),
            self.at_zero + other.at_zero,
        )

    def wider(self, columns: int) -> ColumnSums:
        """Add columns of zeros."""
        return self.beside(ColumnSums.of_flags(float(np.max(self.weight, initial=0.0)), np.zeros(columns)))

    def times(self, factor: float) -> ColumnSums:
        """Keep a share of all weights."""
        kept = {name: factor * getattr(self, name) for name in ("weight", "squares", "at_least", "at_largest")}
        return self._replace(**kept, at_zero=factor * self.at_zero)

    def columns(self, centred: bool = True) -> Columns:
        """Centres and units; all centres are zero unless ``centred``."""
        weight = np.maximum(self.weight, np.finfo(np.float64).tiny)
        counts = np.array([self.at_zero, self.at_least, self.at_largest])
        is_common = counts > 0.5 * weight
        has_two = self.at_least + self.at_largest > (1.0 - 1e-9) * weight
        if centred:
            deviation = np.sqrt(self.squares / weight)
            constant = (self.largest <= self.least) | (deviation <= _CONSTANT * np.abs(self.mean))
            chosen = np.where(has_two, np.where(self.at_zero > 0.0, 0, 1), np.argmax(is_common, axis=0))
            has_common = ~constant & (has_two | np.any(is_common, axis=0))
            values = np.array([np.zeros(chosen.size), self.least, self.largest])
            center = np.where(has_common, np.take_along_axis(values, chosen[None], axis=0)[0], self.mean)
            at_center, otherwise = np.take_along_axis(counts, chosen[None], axis=0)[0], np.abs(center)
        else:
            constant, center = np.zeros(weight.size, dtype=bool), np.zeros(weight.size)
            at_center, otherwise = self.at_zero, np.ones(weight.size)
            has_common = is_common[0] | (has_two & (self.at_zero > 0.0))
        others = np.where(has_common, weight - at_center, weight)
        with np.errstate(all="ignore"):
            unit = np.sqrt((self.squares + weight * np.square(self.mean - center)) / others)
        unit = np.where(constant | ~np.isfinite(unit) | ~(unit > 0.0), otherwise, unit)
        # To a billionth: sums over weighted and over repeated rows then agree to the last bit.
        fraction, exponent = np.frexp(np.where(unit > _LEAST, unit, 1.0))
        unit = np.ldexp(np.round(np.ldexp(fraction, 30)), exponent - 30)
        return Columns(np.where(np.isfinite(center), unit * np.round(center / unit * 2.0**30) / 2.0**30, 0.0), unit)

    def sizes(self, columns: Columns) -> FloatArray:
        """Mean square of every column in these units."""
        weight = np.maximum(self.weight, np.finfo(np.float64).tiny)
        mean_square = self.squares / weight + np.square(self.mean - columns.center)
        return np.where(self.weight > 0.0, mean_square / np.square(columns.unit), 0.0)
