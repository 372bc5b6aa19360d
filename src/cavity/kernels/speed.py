"""Quicker forms of a few functions: what they save is said where they are. Each gives the numbers of its plain form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from cavity.kernels.bridge import INNER, careful, kernel
from cavity.kernels.rows import DenseRows, add_rises, plain_star
from cavity.losses import offers

# Coefficients of the series of artanh(s) / s in s², the highest power first: to the last digit for s up to 1 / 3.
_ARTANH_SERIES = np.array([1.0 / (2 * k + 1) for k in range(16, -1, -1)])


@careful
def exponential(v: float) -> float:
    """Exponential of a number below about 700, by a power of two and a polynomial: in a loop it is done in vectors.

    As written: the rounding to whole numbers by a large constant depends on the order of operations.
    """
    v = -700.0 if v < -700.0 else v  # the power of two would leave the range of doubles
    rounder = 6755399441055744.0  # adding it leaves the nearest whole number in the low bits of a double
    shifted = v * 1.4426950408889634 + rounder  # 1 / log 2
    whole = shifted - rounder
    r = v - whole * 0.693147180369123816490 - whole * 1.90821492927058770002e-10  # log 2 in two parts
    # Written out: in a loop over an array of coefficients the star of the logistic loss takes 1.15 x as long.
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
    p = p * r + 1.0
    exponent = np.float64(shifted).view(np.int64) << np.int64(52)
    return p * np.int64(exponent + (np.int64(1023) << np.int64(52))).view(np.float64)


@kernel
def log_one_plus(e: float) -> float:
    """Logarithm of 1 + e for e between zero and one, by the series of artanh: in a loop it is done in vectors."""
    s = e / (2.0 + e)
    u, p = s * s, 0.0
    for k in range(_ARTANH_SERIES.size):
        p = p * u + _ARTANH_SERIES[k]
    return 2.0 * s * p


def star(rows: Any, loss: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    """Cost at the centre; rises along every axis into ``work.up`` and ``work.down``. Chosen when compiled."""
    raise NotImplementedError


@overload(star, strict=False, jit_options=INNER)
def _choose_star(rows: Any, loss: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> Any:
    is_logistic = offers(loss.instance_class).logistic is not None
    return logistic_star if is_logistic and rows.instance_class is DenseRows else plain_star


def logistic_star(rows: Any, loss: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
    """Star of the logistic loss over dense rows: one exponential per entry in the place of two, and few logarithms.

    One exponential serves both directions, since exp(-(a ± t)) = exp(-a) exp(∓t). A sum of logarithms over many rows is
    one logarithm of a product, kept in range. Rows of other weights than one, and those that would leave the range,
    take the plain form.
    """
    X = rows.entries
    n, d = X.shape
    up, down = work.up[:d], work.down[:d]
    ups, downs, powers = work.fit_shift[:d], work.fit_precision[:d], work.buffer[:d]
    up[:] = 0.0
    down[:] = 0.0
    ups[:] = 1.0
    downs[:] = 1.0
    largest = 600.0  # logarithm of a running product, inside the range of doubles (709)
    total, center, room = 0.0, 1.0, largest
    for i in range(n):
        z, squares = 0.0, 0.0
        for j in range(d):
            t = X[i, j] * steps[j]
            z += X[i, j] * point[j]
            squares += t * t
        b = loss.sharpness * targets[i]
        spent = abs(b * z) + abs(b) * np.sqrt(squares) + 0.7  # bounds the logarithm of what this row multiplies by
        if weights[i] != 1.0 or not spent < largest:
            if weights[i] > 0.0:
                total += weights[i] * add_rises(rows, loss, i, targets[i], weights[i], z, steps, up, down)
            continue
        if spent > room:
            total += take_logarithms(center, ups, downs, up, down)
            center, room = 1.0, largest
        room -= spent
        e = np.exp(-b * z)
        center *= 1.0 + e
        for j in range(d):
            powers[j] = exponential(-b * (X[i, j] * steps[j]))
        for j in range(d):
            ups[j] *= 1.0 + e * powers[j]
            downs[j] *= powers[j] + e
        for j in range(d):
            down[j] += b * (X[i, j] * steps[j])
    return total + take_logarithms(center, ups, downs, up, down)


@kernel
def take_logarithms(center: float, ups: Any, downs: Any, up: Any, down: Any) -> float:
    """Turn the running products into rises and begin again; return the cost at the centre.

    Along an axis on which no row lies the products are equal, and nothing rises, to the last digit.
    """
    for j in range(ups.size):
        up[j] += np.log(ups[j] / center)
        down[j] += np.log(downs[j] / center)
        ups[j] = 1.0
        downs[j] = 1.0
    return np.log(center)
