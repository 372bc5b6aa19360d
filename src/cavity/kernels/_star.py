"""The star of a dense block: rises of the cost along every axis, one loss for every entry.

Any loss goes entry by entry, which vectorises where the loss is plain arithmetic. The logistic loss has its own form:
one exponential serves both directions, since exp(-(a ± t)) = exp(-a) exp(∓t), and a sum of logarithms over many rows
is one logarithm of a product, kept in range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from cavity.kernels._bridge import FASTMATH, kernel

# A running product stays within exp(±RANGE), well inside double precision.
_RANGE = 600.0
_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10
# Adding this leaves the nearest whole number in the low bits of a double.
_ROUNDER = 6755399441055744.0
_BIAS = np.int64(1023) << np.int64(52)


def dense_star(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    """Cost at the centre; rises into ``work.up`` and ``work.down``. Chosen by the loss when compiled."""
    raise NotImplementedError


@overload(dense_star, strict=False, jit_options={"fastmath": FASTMATH, "error_model": "numpy"})
def _choose(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> Any:
    if hasattr(loss.instance_class, "as_logistic"):
        return _logistic_star
    return _any_star


def _any_star(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    n, d = entries.shape
    up, down = work.up, work.down
    up[:d] = 0.0
    down[:d] = 0.0
    total = 0.0
    for i in range(n):
        if weights[i] > 0.0:
            total += _row_star(loss, entries[i], targets[i], weights[i], point, steps, up, down)
    return total


@kernel
def _row_star(loss: Any, row: Any, target: float, weight: float, point: Any, steps: Any, up: Any, down: Any) -> float:
    """Add one row's rises, entry by entry; return its cost at the centre."""
    z = 0.0
    for j in range(row.size):
        z += row[j] * point[j]
    here = loss.value(target, z)
    for j in range(row.size):
        t = row[j] * steps[j]
        up[j] += weight * (loss.value(target, z + t) - here)
        down[j] += weight * (loss.value(target, z - t) - here)
    return weight * here


def _logistic_star(loss: Any, entries: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    n, d = entries.shape
    up, down = work.up[:d], work.down[:d]
    ups, downs, shift = work.fit_shift[:d], work.fit_precision[:d], work.step[:d]
    up[:] = 0.0
    down[:] = 0.0
    ups[:] = 1.0
    downs[:] = 1.0
    shift[:] = 0.0
    total, here, room = 0.0, 0.0, _RANGE
    for i in range(n):
        row = entries[i]
        z, reach = 0.0, 0.0
        for j in range(d):
            z += row[j] * point[j]
            reach = max(reach, abs(row[j] * steps[j]))
        b = loss.sharpness * targets[i]
        a = b * z
        spent = abs(a) + abs(b) * reach + 0.7
        if weights[i] != 1.0 or not spent < _RANGE:
            if weights[i] > 0.0:
                total += _row_star(loss, row, targets[i], weights[i], point, steps, up, down)
            continue
        if spent > room:
            _flush(ups, downs, up, down)
            room = _RANGE
        room -= spent
        value = loss.value(targets[i], z)
        total += value
        here += value
        _exponentials(row, steps, -b, work.buffer, work.power_of_two)
        _multiply(work.buffer, work.power_of_two.view(np.float64), np.exp(-a), ups, downs)
        for j in range(d):
            shift[j] += b * (row[j] * steps[j])
    _flush(ups, downs, up, down)
    for j in range(d):
        up[j] -= here
        down[j] += shift[j] - here
    return total


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _exponentials(row: Any, steps: Any, factor: float, fraction: Any, exponent: Any) -> None:
    """exp(factor * row * steps) as fraction times a power of two, the latter as the bits of a double.

    No reassociation here: the rounding to whole numbers by a large constant lives from the order of operations.
    """
    rounded = exponent.view(np.float64)
    for j in range(row.size):
        v = factor * (row[j] * steps[j])
        shifted = v * _LOG2E + _ROUNDER
        whole = shifted - _ROUNDER
        r = v - whole * _LN2_HIGH - whole * _LN2_LOW
        p = 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        fraction[j] = p * r + 1.0
        rounded[j] = shifted
    for j in range(row.size):
        exponent[j] = (exponent[j] << 52) + _BIAS


@kernel
def _multiply(fraction: Any, power: Any, e: float, ups: Any, downs: Any) -> None:
    """Take one row into the running products: 1 + e E upwards, E + e downwards."""
    for j in range(ups.size):
        E = fraction[j] * power[j]
        ups[j] *= 1.0 + e * E
        downs[j] *= E + e


@kernel
def _flush(ups: Any, downs: Any, up: Any, down: Any) -> None:
    """Turn the running products into sums of logarithms and begin anew."""
    for j in range(ups.size):
        up[j] += np.log(ups[j])
        down[j] += np.log(downs[j])
        ups[j] = 1.0
        downs[j] = 1.0
