"""The star of a dense block: rises of the cost along every axis, one loss for every entry.

Any loss goes entry by entry, which vectorises where the loss is plain arithmetic. The logistic loss has its own form:
one exponential serves both directions, since exp(-(a ± t)) = exp(-a) exp(∓t), and a sum of logarithms over many rows
is one logarithm of a product, kept in range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from cavity.kernels._bridge import kernel
from cavity.kernels._four import ROWS_AHEAD, all_ones, fetch_row, four_dots
from cavity.kernels._functions import exponential
from cavity.kernels._tricks import INNER
from cavity.losses import offers


def dense_star(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    """Cost at the centre; rises into ``work.up`` and ``work.down``. Chosen by the loss when compiled."""
    raise NotImplementedError


@overload(dense_star, strict=False, jit_options=INNER)
def _choose(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> Any:
    return _any_star if offers(loss.instance_class).logistic is None else _logistic_star


def _any_star(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    n, d = entries.shape
    up, down = work.up[:d], work.down[:d]
    up[:] = 0.0
    down[:] = 0.0
    total, done = 0.0, 0
    if all_ones(weights) and n >= 4:
        done = n - n % 4
        for i in range(0, done, 4):
            total += _four_rows_star(loss, entries, targets, i, point, steps, up, down)
    for i in range(done, n):
        if weights[i] > 0.0:
            total += _row_star(loss, entries[i], targets[i], weights[i], point, steps, up, down)
    for j in range(d):
        up[j] -= total
        down[j] -= total
    return total


@kernel
def _four_rows_star(loss: Any, X: Any, targets: Any, i: int, point: Any, steps: Any, up: Any, down: Any) -> float:
    """Add the costs of four rows of weight one along every axis; return their cost at the centre."""
    y0, y1, y2, y3 = targets[i], targets[i + 1], targets[i + 2], targets[i + 3]
    fetch_row(X, i + ROWS_AHEAD)
    z0, z1, z2, z3 = four_dots(X, i, point)
    fetch_row(X, i + ROWS_AHEAD + 1)
    for j in range(point.size):
        h = steps[j]
        t0, t1, t2, t3 = X[i, j] * h, X[i + 1, j] * h, X[i + 2, j] * h, X[i + 3, j] * h
        up[j] += (loss.value(y0, z0 + t0) + loss.value(y1, z1 + t1)) + (
            loss.value(y2, z2 + t2) + loss.value(y3, z3 + t3)
        )
        down[j] += (loss.value(y0, z0 - t0) + loss.value(y1, z1 - t1)) + (
            loss.value(y2, z2 - t2) + loss.value(y3, z3 - t3)
        )
    fetch_row(X, i + ROWS_AHEAD + 2)
    fetch_row(X, i + ROWS_AHEAD + 3)
    # Added in the same order as along the axes: where no row lies on an axis, nothing rises.
    return (loss.value(y0, z0) + loss.value(y1, z1)) + (loss.value(y2, z2) + loss.value(y3, z3))


@kernel
def _row_star(loss: Any, row: Any, target: float, weight: float, point: Any, steps: Any, up: Any, down: Any) -> float:
    """Add one row's cost along every axis; return its cost at the centre."""
    z = 0.0
    for j in range(row.size):
        z += row[j] * point[j]
    for j in range(row.size):
        t = row[j] * steps[j]
        up[j] += weight * loss.value(target, z + t)
        down[j] += weight * loss.value(target, z - t)
    return weight * loss.value(target, z)


def _logistic_star(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    n, d = entries.shape
    up, down = work.up[:d], work.down[:d]
    ups, downs, shift = work.fit_shift[:d], work.fit_precision[:d], work.step[:d]
    up[:] = 0.0
    down[:] = 0.0
    ups[:] = 1.0
    downs[:] = 1.0
    shift[:] = 0.0
    largest = 600.0  # logarithm of a running product, inside the range of doubles (709)
    # The centre is summed up as the axes are: along an axis on which no row lies nothing rises, to the last digit.
    total, center, room = 0.0, 1.0, largest
    for i in range(n):
        row = entries[i]
        fetch_row(entries, i + ROWS_AHEAD)
        z, squares = 0.0, 0.0
        for j in range(d):
            t = row[j] * steps[j]
            z += row[j] * point[j]
            squares += t * t
        b = loss.sharpness * targets[i]
        a = b * z
        spent = abs(a) + abs(b) * np.sqrt(squares) + 0.7  # bounds the logarithm of what this row multiplies by
        if weights[i] != 1.0 or not spent < largest:
            if weights[i] > 0.0:
                total += _row_star(loss, row, targets[i], weights[i], point, steps, up, down)
            continue
        if spent > room:
            _flush(ups, downs, up, down)
            total += np.log(center)
            center, room = 1.0, largest
        room -= spent
        e = np.exp(-a)
        center *= 1.0 + e
        _multiply(row, steps, b, e, ups, downs, work.buffer)
        for j in range(d):
            shift[j] += b * (row[j] * steps[j])
    _flush(ups, downs, up, down)
    total += np.log(center)
    for j in range(d):
        up[j] -= total
        down[j] += shift[j] - total
    return total


@kernel
def _multiply(row: Any, steps: Any, b: float, e: float, ups: Any, downs: Any, powers: Any) -> None:
    """Take one row into the running products: 1 + e E upwards, E + e downwards."""
    for j in range(ups.size):
        powers[j] = exponential(-b * (row[j] * steps[j]))
    for j in range(ups.size):
        ups[j] *= 1.0 + e * powers[j]
        downs[j] *= powers[j] + e


@kernel
def _flush(ups: Any, downs: Any, up: Any, down: Any) -> None:
    """Turn the running products into sums of logarithms and begin again."""
    for j in range(ups.size):
        up[j] += np.log(ups[j])
        down[j] += np.log(downs[j])
        ups[j] = 1.0
        downs[j] = 1.0
