"""Exponential and logarithm by polynomials, in place: unlike calls of a library, they vectorise."""

from __future__ import annotations

import numpy as np

from cavity.kernels._bridge import careful, kernel

# Beyond, the power of two of an exponential would leave its range.
_RANGE = 700.0
_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10
# Adding this leaves the nearest whole number in the low bits of a double.
_ROUNDER = 6755399441055744.0
_BIAS = np.int64(1023) << np.int64(52)
_SHIFT = np.int64(52)


@careful
def exponential(v: float) -> float:
    """Exponential of a number below about 700, by a power of two and a polynomial.

    As written: the rounding to whole numbers by a large constant lives from the order of operations.
    """
    v = -_RANGE if v < -_RANGE else v
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
    p = p * r + 1.0
    exponent = np.float64(shifted).view(np.int64) << _SHIFT
    return p * np.int64(exponent + _BIAS).view(np.float64)


@kernel
def log_one_plus(e: float) -> float:
    """Logarithm of 1 + e for e between zero and one, by the series of the inverse hyperbolic tangent."""
    s = e / (2.0 + e)
    u = s * s
    p = 1.0 / 33.0
    p = p * u + 1.0 / 31.0
    p = p * u + 1.0 / 29.0
    p = p * u + 1.0 / 27.0
    p = p * u + 1.0 / 25.0
    p = p * u + 1.0 / 23.0
    p = p * u + 1.0 / 21.0
    p = p * u + 1.0 / 19.0
    p = p * u + 1.0 / 17.0
    p = p * u + 1.0 / 15.0
    p = p * u + 1.0 / 13.0
    p = p * u + 1.0 / 11.0
    p = p * u + 1.0 / 9.0
    p = p * u + 1.0 / 7.0
    p = p * u + 1.0 / 5.0
    p = p * u + 1.0 / 3.0
    p = p * u + 1.0
    return 2.0 * s * p
