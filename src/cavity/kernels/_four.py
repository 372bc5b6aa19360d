"""Four rows at a time: their predictors, and the derivatives of their losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from cavity.kernels._bridge import kernel
from cavity.kernels._functions import exponential
from cavity.kernels._tricks import INNER, prefetch
from cavity.losses import offers

Four = tuple[float, float, float, float]

# Rows asked for ahead of their use: the processor itself does not look past a page, nor far enough while it computes.
# It takes few requests at a time, so that rows are asked for one by one, with work in between. `_tricks` says what this
# saves.
ROWS_AHEAD = 12


@kernel
def all_ones(weights: Any) -> bool:
    others = 0
    for i in range(weights.size):
        others += weights[i] != 1.0
    return others == 0


@kernel
def fetch_row(X: Any, i: int) -> None:
    """Ask for a row, soon to be used, of a C-ordered block."""
    for e in range(0, X.shape[1], 64 // X.itemsize):  # bytes of a cache line
        prefetch(X, (i, e))


@kernel
def dot(X: Any, i: int, point: Any) -> float:
    total = 0.0
    for j in range(point.size):
        total += X[i, j] * point[j]
    return total


@kernel
def four_dots(X: Any, i: int, point: Any) -> Four:
    z0 = z1 = z2 = z3 = 0.0
    for j in range(point.size):
        m = point[j]
        z0 += X[i, j] * m
        z1 += X[i + 1, j] * m
        z2 += X[i + 2, j] * m
        z3 += X[i + 3, j] * m
    return z0, z1, z2, z3


@kernel
def weighted(loss: Any, by_slope: bool, target: float, weight: float, z: float) -> tuple[float, float, float]:
    """Value, slope and curvature of one row times its weight; a row of weight zero counts as absent."""
    if weight == 0.0:
        return 0.0, 0.0, 0.0
    value, slope, curvature = loss.derivatives(target, z)
    if by_slope:
        curvature = abs(slope)
    return weight * value, weight * slope, weight * curvature


def four_derivatives(
    loss: Any, by_slope: bool, targets: Any, weights: Any, i: int, z: Four
) -> tuple[float, Four, Four]:
    """Sum of the values of four rows, their slopes and their curvatures. Chosen by the loss when compiled."""
    raise NotImplementedError


@overload(four_derivatives, strict=False, jit_options=INNER)
def _choose(loss: Any, by_slope: Any, targets: Any, weights: Any, i: Any, z: Any) -> Any:
    return _any_four if offers(loss.instance_class).logistic is None else _logistic_four


def _any_four(loss: Any, by_slope: bool, targets: Any, weights: Any, i: int, z: Four) -> tuple[float, Four, Four]:
    v0, g0, c0 = weighted(loss, by_slope, targets[i], weights[i], z[0])
    v1, g1, c1 = weighted(loss, by_slope, targets[i + 1], weights[i + 1], z[1])
    v2, g2, c2 = weighted(loss, by_slope, targets[i + 2], weights[i + 2], z[2])
    v3, g3, c3 = weighted(loss, by_slope, targets[i + 3], weights[i + 3], z[3])
    return v0 + v1 + v2 + v3, (g0, g1, g2, g3), (c0, c1, c2, c3)


def _logistic_four(loss: Any, by_slope: bool, targets: Any, weights: Any, i: int, z: Four) -> tuple[float, Four, Four]:
    b = loss.sharpness
    v0, q0, g0, c0 = _logistic(b * targets[i], weights[i], z[0], by_slope)
    v1, q1, g1, c1 = _logistic(b * targets[i + 1], weights[i + 1], z[1], by_slope)
    v2, q2, g2, c2 = _logistic(b * targets[i + 2], weights[i + 2], z[2], by_slope)
    v3, q3, g3, c3 = _logistic(b * targets[i + 3], weights[i + 3], z[3], by_slope)
    # One logarithm of a product of numbers between one and two serves the rows of weight one.
    return v0 + v1 + v2 + v3 + np.log((q0 * q1) * (q2 * q3)), (g0, g1, g2, g3), (c0, c1, c2, c3)


@kernel
def _logistic(b: float, weight: float, z: float, by_slope: bool) -> tuple[float, float, float, float]:
    """Value less the logarithm of the second number, that number, slope and curvature."""
    a = b * z
    e = exponential(-abs(a))
    q = 1.0 / (1.0 + e)
    slope = -b * (q * e if a > 0.0 else q)
    curvature = abs(slope) if by_slope else b * b * e * q * q
    linear = -a if a < 0.0 else 0.0
    if weight == 1.0:
        return linear, 1.0 + e, slope, curvature
    if weight == 0.0:
        return 0.0, 1.0, 0.0, 0.0
    return weight * (linear + np.log1p(e)), 1.0, weight * slope, weight * curvature
