r"""The logistic function as a mixture of probits, and what it does to a Gaussian.

A logistic variable is a Gaussian whose scale is drawn from twice Kolmogorov's distribution, of density f:

.. math:: \sigma(z) = \frac{1}{1 + e^{-z}} = \int_0^\infty f(k)\, \Phi\!\left(\frac{z}{2k}\right) dk
    \approx \sum_j w_j\, \Phi\!\left(\frac{z}{s_j}\right).

The trapezoidal rule in log k is as good as exact, since f falls faster than exponentially on both sides. Under a
Gaussian every probit stays one, of variance :math:`s_j^2 + v`: mass and derivatives are sums of closed forms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

FloatArray = NDArray[np.float64]

_ROOT_2PI = math.sqrt(2.0 * math.pi)
# Beyond these scales lies less than 1e-12 of any mass that is not refused, between them so many nodes.
_FIRST, _LAST, _NODES = 0.2, 4.0, 24
# Terms of either series of Kolmogorov's density, on its side of one.
_TERMS = 5
# A smaller mass comes from the tail, where the rule loses digits.
LEAST_MASS = 1e-4


def probits() -> tuple[FloatArray, FloatArray]:
    r"""Squared scales :math:`s_j^2` and weights :math:`w_j`.

    .. math:: f(k) = 8k \sum_{j \ge 1} (-1)^{j+1} j^2 e^{-2 j^2 k^2}
        = \frac{\sqrt{2\pi}}{k^2} \sum_{j \ge 1} (a_j^2 - 1)\, e^{-a_j^2/2}, \qquad a_j = \frac{(2j - 1)\pi}{2k},

    of which the first converges fast for large k, the second for small.
    """
    k, j = np.geomspace(_FIRST, _LAST, _NODES), np.arange(1.0, _TERMS + 1.0)[:, None]
    a = (j - 0.5) * math.pi / k
    large = 8.0 * k * np.sum((-1.0) ** (j + 1.0) * j * j * np.exp(-2.0 * (j * k) ** 2), axis=0)
    small = _ROOT_2PI / k**2 * np.sum((a * a - 1.0) * np.exp(-0.5 * a * a), axis=0)
    step = math.log(_LAST / _FIRST) / (_NODES - 1)
    return 4.0 * k * k, step * k * np.where(k < 1.0, small, large)


_SQUARES, _WEIGHTS = probits()


def tilt_by_probits(slope: float, mean: float, variance: float) -> tuple[float, float, float] | None:
    r"""Log mass, shift in widths and ratio of variances of :math:`N(z; m, v)\, \sigma(b z)` for a slope b.

    Errors of the log mass, of the shift in tilted widths and of the ratio are below 1e-10, whatever the width; nothing
    where the mass is below ``LEAST_MASS``, or is not a number.
    """
    m, v = slope * mean, slope * slope * variance
    r = 1.0 / np.sqrt(_SQUARES + v)
    u = abs(m) * r
    density = _WEIGHTS * r * np.exp(-0.5 * u * u) / _ROOT_2PI
    # Far from zero is the smaller of the masses of both signs; the other is what is left.
    far, first, second = float(_WEIGHTS @ ndtr(-u)), float(np.sum(density)), float(density @ (r * r))
    mass = 1.0 - far if m > 0.0 else far
    if not mass >= LEAST_MASS:
        return None
    change = first / mass
    log_mass = math.log1p(-far) if m > 0.0 else math.log(far)
    return log_mass, slope * math.sqrt(variance) * change, 1.0 - v * (m * second / mass + change * change)
