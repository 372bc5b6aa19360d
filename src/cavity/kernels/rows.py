"""Rows of a mini-batch, dense or CSR: their predictors, gradients, stars and projections."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels.bridge import kernel, open_method


class DenseData(NamedTuple):
    """A C-ordered matrix."""

    entries: Any

    def open(self, first: int, last: int, weights: Any, state: Any, work: Any) -> tuple[Any, int]:
        """Rows of a batch; every coordinate is local, and those without a non-zero are marked."""
        X = self.entries[first:last]
        mark_touched(X, weights, work.touched)
        return DenseRows(X), X.shape[1]


class SparseData(NamedTuple):
    """A CSR matrix without stored zeros."""

    data: Any
    indices: Any
    starts: Any

    def open(self, first: int, last: int, weights: Any, state: Any, work: Any) -> tuple[Any, Any]:
        """Rows of a batch; coordinates are numbered as they first appear. No branches but for idle rows.

        The place of a coordinate that the batch has not seen lies below the base, and wraps around to a large number.
        """
        base, size = state.cursor[0], np.uint64(0)
        begin, end = np.uint64(self.starts[first]), np.uint64(self.starts[last])
        places, coordinate, local = state.places, work.coordinate, work.local
        for i in range(first, last):
            if weights[i - first] > 0.0:
                for e in range(np.uint64(self.starts[i]), np.uint64(self.starts[i + 1])):
                    j = np.uint32(self.indices[e])
                    place = min(places[j, 3] - base, size)
                    places[j, 3] = base + place
                    coordinate[size] = j
                    local[e - begin] = place
                    size += np.uint64(place == size)
        state.cursor[0] = base + size
        return SparseRows(self.data[begin:end], local[: end - begin], self.starts[first : last + 1]), np.int64(size)


@kernel
def mark_touched(X: Any, weights: Any, touched: Any) -> None:
    """Mark the columns with a non-zero in a row of positive weight; the first row is usually enough."""
    n, d = X.shape
    missing = 0
    for j in range(d):
        touched[j] = n > 0 and weights[0] > 0.0 and X[0, j] != 0.0
        missing += not touched[j]
    i = 1
    while missing and i < n:
        if weights[i] > 0.0:
            for j in range(d):
                if not touched[j] and X[i, j] != 0.0:
                    touched[j] = True
                    missing -= 1
        i += 1


class DenseRows(NamedTuple):
    """Rows as a C-ordered block, float64 or float32. Row ``i`` has an entry at every place of its span."""

    entries: Any

    def span(self, i: int) -> tuple[int, int]:
        return 0, self.entries.shape[1]

    def entry(self, i: int, e: int) -> float:
        return np.float64(self.entries[i, e])

    def column(self, e: int) -> int:
        return e


class SparseRows(NamedTuple):
    """Rows in CSR form, with the same methods; ``local`` holds their columns renumbered to the touched ones."""

    data: Any
    local: Any
    starts: Any

    def span(self, i: int) -> tuple[Any, Any]:
        base = np.uint64(self.starts[0])  # unsigned: Numba looks at every signed index for one counted from the end
        return np.uint64(self.starts[i]) - base, np.uint64(self.starts[i + 1]) - base

    def entry(self, i: int, e: int) -> float:
        return np.float64(self.data[e])

    def column(self, e: int) -> int:
        return self.local[e]


@kernel
def dot(rows: Any, i: int, point: Any) -> float:
    """Linear predictor of a row."""
    total = 0.0
    first, last = rows.span(i)
    for e in range(first, last):
        total += rows.entry(i, e) * point[rows.column(e)]
    return total


@kernel
def predict(rows: Any, point: Any, weights: Any, z: Any) -> None:
    """Linear predictor of every row of positive weight."""
    for i in range(weights.size):
        if weights[i] > 0.0:
            z[i] = dot(rows, i, point)


@kernel
def pull(rows: Any, values: Any, weights: Any, out: Any) -> None:
    """Sum of the rows, each times its value."""
    out[:] = 0.0
    for i in range(weights.size):
        if weights[i] > 0.0:
            v, (first, last) = values[i], rows.span(i)
            for e in range(first, last):
                out[rows.column(e)] += v * rows.entry(i, e)


@kernel
def pull_squares(rows: Any, values: Any, weights: Any, out: Any) -> None:
    """Sum of the rows squared entry by entry, each times its value."""
    out[:] = 0.0
    for i in range(weights.size):
        if weights[i] > 0.0:
            v, (first, last) = values[i], rows.span(i)
            for e in range(first, last):
                x = rows.entry(i, e)
                out[rows.column(e)] += v * x * x


@kernel
def taylor(rows: Any, loss: Any, by_slope: bool, targets: Any, weights: Any, point: Any, out: Any) -> float:
    """Cost at a point; gradient into ``out[0]``, curvature into ``out[1]``."""
    gradient, curvature = out
    gradient[:] = 0.0
    curvature[:] = 0.0
    total = 0.0
    for i in range(weights.size):
        if weights[i] > 0.0:
            value, slope, second = loss.derivatives(targets[i], dot(rows, i, point))
            total += weights[i] * value
            g, c = weights[i] * slope, weights[i] * (abs(slope) if by_slope else second)
            first, last = rows.span(i)
            for e in range(first, last):
                x, j = rows.entry(i, e), rows.column(e)
                gradient[j] += g * x
                curvature[j] += c * x * x
    return total


def plain_star(rows: Any, loss: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    """Cost at the centre; rises along every axis into ``work.up`` and ``work.down``."""
    up, down = work.up[: point.size], work.down[: point.size]
    up[:] = 0.0
    down[:] = 0.0
    total = 0.0
    for i in range(weights.size):
        if weights[i] > 0.0:
            z = dot(rows, i, point)
            total += weights[i] * add_rises(rows, loss, i, targets[i], weights[i], z, steps, up, down)
    return total


@kernel
def add_rises(
    rows: Any, loss: Any, i: int, target: float, weight: float, z: float, steps: Any, up: Any, down: Any
) -> float:
    """Add the rises of a row's cost along every axis; return its cost at the centre."""
    here = loss.value(target, z)
    first, last = rows.span(i)
    for e in range(first, last):
        j = rows.column(e)
        t = rows.entry(i, e) * steps[j]
        up[j] += weight * (loss.value(target, z + t) - here)
        down[j] += weight * (loss.value(target, z - t) - here)
    return here


@kernel
def project(rows: Any, i: int, mean: Any, variance: Any) -> tuple[float, float]:
    """Mean and variance of the linear predictor of row ``i``."""
    m = v = 0.0
    first, last = rows.span(i)
    for e in range(first, last):
        x, j = rows.entry(i, e), rows.column(e)
        m += x * mean[j]
        v += x * x * variance[j]
    return m, v


@kernel
def absorb(rows: Any, i: int, gain: float, bend: float, least: float, mean: Any, variance: Any) -> None:
    """Let every mean follow row ``i``, and every variance, down to ``least`` of it at most."""
    first, last = rows.span(i)
    for e in range(first, last):
        j = rows.column(e)
        s = variance[j]
        covariance = s * rows.entry(i, e)
        mean[j] += covariance * gain
        s, floor = s + covariance * covariance * bend, least * s
        variance[j] = floor if s < floor else s


open_method("open", 5)
open_method("span", 1)
open_method("entry", 2)
open_method("column", 1)
