"""The logistic function as a mixture of probits: the compiled form of `cavity.mixture`.

All nodes go through the same arithmetic, without branches, and so in vectors. Their tables are constants of the
compiled code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import erfcx

from cavity.kernels._bridge import careful, kernel, wide_vectors
from cavity.kernels._functions import exponential
from cavity.kernels._pieces import Three

_INVERSE_ROOT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_FIRST, _LAST, _NODES = 0.2, 4.0, 24
_TERMS = 5
_LEAST_MASS = 1e-4
# Degree of the polynomial for Mills' ratio, and the place that its variable takes to zero: together exact to 1e-13.
_DEGREE, _CENTER = 18, 5.0


def probits() -> tuple[Any, Any]:
    """Squared scales and weights."""
    k, j = np.geomspace(_FIRST, _LAST, _NODES), np.arange(1.0, _TERMS + 1.0)[:, None]
    a = (j - 0.5) * math.pi / k
    large = 8.0 * k * np.sum((-1.0) ** (j + 1.0) * j * j * np.exp(-2.0 * (j * k) ** 2), axis=0)
    small = math.sqrt(2.0 * math.pi) / k**2 * np.sum((a * a - 1.0) * np.exp(-0.5 * a * a), axis=0)
    step = math.log(_LAST / _FIRST) / (_NODES - 1)
    return 4.0 * k * k, step * k * np.where(k < 1.0, small, large)


def _mills_coefficients() -> Any:
    """Interpolate Mills' ratio times u + center, as a function of t = (u - center) / (u + center); highest first."""

    def scaled(t: Any) -> Any:
        u = _CENTER * (1.0 + t) / (1.0 - t)
        return (u + _CENTER) * math.sqrt(0.5 * math.pi) * erfcx(u * math.sqrt(0.5))

    chebyshev = np.polynomial.chebyshev
    return np.ascontiguousarray(chebyshev.cheb2poly(chebyshev.chebinterpolate(scaled, _DEGREE))[::-1])


_SQUARES, _WEIGHTS = probits()
_MILLS = _mills_coefficients()


@kernel
def sums(a: float, v: float) -> Three:
    """Mass beyond a > 0 of the mixture under a Gaussian of variance v, its density at a, and minus its slope over a."""
    wide_vectors()
    far = first = second = 0.0
    for j in range(_NODES):
        square = _SQUARES[j] + v
        c = math.sqrt(square)
        total = a + _CENTER * c
        inverse = 1.0 / (c * total)  # one division for all
        r = total * inverse
        u = a * r
        g = _WEIGHTS[j] * exponential(-0.5 * u * u)
        t, mills = (a - _CENTER * c) * (c * inverse), 0.0
        for power in range(_DEGREE + 1):
            mills = mills * t + _MILLS[power]
        far += g * (square * inverse) * mills
        first += g * r
        second += g * r * (r * r)
    return _INVERSE_ROOT_2PI * far, _INVERSE_ROOT_2PI * first, _INVERSE_ROOT_2PI * second


@careful
def tilt_by_probits(slope: float, mean: float, variance: float) -> tuple[bool, Three]:
    """Whether the mass is large enough, and log mass, shift in widths and ratio of variances."""
    m, v = slope * mean, slope * slope * variance
    far, first, second = sums(abs(m), v)
    mass = 1.0 - far if m > 0.0 else far
    if not mass >= _LEAST_MASS:
        return False, (np.nan, np.nan, np.nan)
    change = first / mass
    log_mass = math.log1p(-far) if m > 0.0 else math.log(far)
    return True, (log_mass, slope * math.sqrt(variance) * change, 1.0 - v * (m * second / mass + change * change))
