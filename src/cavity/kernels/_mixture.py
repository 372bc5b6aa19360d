"""The logistic function as a mixture of probits, for one row: all nodes take the same steps, and so go in vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import erfcx

from cavity.kernels._bridge import careful, kernel
from cavity.kernels._functions import exponential
from cavity.kernels._pieces import Three
from cavity.moments.constants import LEAST_MASS, PROBIT_SQUARES, PROBIT_WEIGHTS, ROOT_2PI, ROOT_HALF

# Argument of Mills' ratio that the variable of its polynomial takes to zero: with degree 18, exact to 1e-13.
_CENTER = 5.0


def _mills_coefficients() -> Any:
    """Interpolate Mills' ratio times u + center, as a function of t = (u - center) / (u + center); highest first."""

    def scaled(t: Any) -> Any:
        u = _CENTER * (1.0 + t) / (1.0 - t)
        return (u + _CENTER) * 0.5 * ROOT_2PI * erfcx(u * ROOT_HALF)

    chebyshev = np.polynomial.chebyshev
    return np.ascontiguousarray(chebyshev.cheb2poly(chebyshev.chebinterpolate(scaled, 18))[::-1])


# Coefficients of that polynomial, the highest power first.
_MILLS = _mills_coefficients()


@kernel
def sums(a: float, v: float) -> Three:
    """Mass beyond a > 0 of the mixture under a Gaussian of variance v, its density at a, and minus its slope over a."""
    far = first = second = 0.0
    for j in range(PROBIT_SQUARES.size):
        square = PROBIT_SQUARES[j] + v
        c = math.sqrt(square)
        total = a + _CENTER * c
        inverse = 1.0 / (c * total)  # one division for all
        r = total * inverse
        u = a * r
        g = PROBIT_WEIGHTS[j] * exponential(-0.5 * u * u)
        t, mills = (a - _CENTER * c) * (c * inverse), 0.0
        for power in range(_MILLS.size):
            mills = mills * t + _MILLS[power]
        far += g * (square * inverse) * mills
        first += g * r
        second += g * r * (r * r)
    scale = 1.0 / ROOT_2PI
    return scale * far, scale * first, scale * second


@careful
def by_probits(slope: float, mean: float, variance: float) -> tuple[bool, Three]:
    """Whether the mass is large enough, and log mass, shift in widths and ratio of variances."""
    m, v = slope * mean, slope * slope * variance
    far, first, second = sums(abs(m), v)
    mass = 1.0 - far if m > 0.0 else far
    if not mass >= LEAST_MASS:
        return False, (np.nan, np.nan, np.nan)
    change = first / mass
    log_mass = math.log1p(-far) if m > 0.0 else math.log(far)
    return True, (log_mass, slope * math.sqrt(variance) * change, 1.0 - v * (m * second / mass + change * change))
