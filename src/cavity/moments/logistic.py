r"""The logistic function under a Gaussian: its mean, far into the tails, and what it does to the Gaussian.

A logistic variable is a Gaussian whose scale is drawn from twice Kolmogorov's distribution, of density f. So the
logistic function is a mixture of probits, and under a Gaussian every probit stays one, of variance :math:`s_j^2 + v`:

.. math:: \sigma(u) = \int_0^\infty f(k)\, \Phi\!\left(\frac{u}{2k}\right) dk, \qquad
    E[\sigma(u)] \approx \sum_j w_j\, \Phi\!\left(\frac{m}{\sqrt{s_j^2 + v}}\right), \quad u \sim N(m, v).

The sum is exact to rounding, but not relative to itself where :math:`\sigma` falls like an exponential and a probit
faster. There, :math:`E[\sigma(u)] = e^{m + v/2}\, E[\sigma(-u - v)]` exchanges a mean below :math:`-v/2` for one above.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx

from cavity._types import FloatArray

# Inverse height of the standard normal density.
ROOT_2PI = math.sqrt(2.0 * math.pi)
# Rows times nodes that are computed at once: they stay within the caches, and memory is bounded.
NUMBERS_AT_ONCE = 8192


def _probits() -> tuple[FloatArray, FloatArray]:
    r"""Squared scales and weights of the mixture, by the trapezoidal rule in log k.

    .. math:: f(k) = 8k \sum_{j \ge 1} (-1)^{j+1} j^2 e^{-2 j^2 k^2}
        = \frac{\sqrt{2\pi}}{k^2} \sum_{j \ge 1} (a_j^2 - 1)\, e^{-a_j^2/2}, \qquad a_j = \frac{(2j - 1)\pi}{2k},

    of which the first sum converges fast for large k, the second for small. The rule is exact to rounding, since f
    falls faster than exponentially on both sides: beyond 0.2 and 4 lies less than 1e-12 of any mass that is used.
    """
    first, last, nodes = 0.2, 4.0, 24
    k, j = np.geomspace(first, last, nodes), np.arange(1.0, 6.0)[:, None]
    a = (j - 0.5) * math.pi / k
    large = 8.0 * k * np.sum((-1.0) ** (j + 1.0) * j * j * np.exp(-2.0 * (j * k) ** 2), axis=0)
    small = ROOT_2PI / k**2 * np.sum((a * a - 1.0) * np.exp(-0.5 * a * a), axis=0)
    step = math.log(last / first) / (nodes - 1)
    return 4.0 * k * k, step * k * np.where(k < 1.0, small, large)


PROBIT_SQUARES, PROBIT_WEIGHTS = _probits()


def log_logistic_mean(sign: FloatArray | float, mean: FloatArray, variance: FloatArray) -> FloatArray:
    r"""Logarithm of :math:`E[\sigma(y z)]`, :math:`z \sim N(m, v)`: the log predictive of the logistic loss.

    Errors are below 1e-9 or, in far tails, rounding, at every mean and variance; and below a billionth of the
    logarithm where it is near zero. `NaN` where mean or variance is no number.

    Parameters
    ----------
    sign
        Labels y, -1 and +1, one per row or one for all; times the sharpness of the loss.
    mean, variance
        Means and variances of the predictors, of shape ``(n,)``.

    Examples
    --------
    >>> log_logistic_mean(-1.0, np.array([0.0, 30.0, 690.8]), np.array([1.0, 1.0, 1e3])).round(4)
    array([  -0.6931,  -29.5   , -241.6482])
    """
    with np.errstate(all="ignore"):
        m = sign * mean
        less_likely = log_mean_and_slopes(-np.abs(m), np.square(sign) * variance)[0]
        return np.where(m > 0.0, np.log1p(-np.exp(less_likely)), less_likely)


def log_mean_and_slopes(m: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Compute :math:`\log E[\sigma(u)]`, :math:`u \sim N(m, v)`, and its first two derivatives in m.

    Parameters
    ----------
    m, v
        Means and variances, of shape ``(n,)``.
    """
    is_low = m < -0.5 * v
    center = np.where(is_low, -(m + v), m)
    # The mean at minus the distance from zero, its density there, and minus the slope of that over the distance; all
    # relative to the widest probit's, which bounds the others.
    distance, sums = np.minimum(np.abs(center), 1e150), np.empty((3, m.size))  # the square is finite
    top = -0.5 * distance * distance / (PROBIT_SQUARES[-1] + v)
    length = NUMBERS_AT_ONCE // PROBIT_SQUARES.size
    for start in range(0, m.size, length):
        some = slice(start, start + length)
        r = 1.0 / np.sqrt(PROBIT_SQUARES[:, None] + v[some])
        u = distance[some] * r
        density = np.exp(-0.5 * u * u - top[some]) / ROOT_2PI
        sums[0, some] = PROBIT_WEIGHTS @ (density * erfcx(math.sqrt(0.5) * u)) * (0.5 * ROOT_2PI)
        density *= r
        sums[1, some] = PROBIT_WEIGHTS @ density
        density *= r * r
        sums[2, some] = PROBIT_WEIGHTS @ density
    height = np.exp(top)
    mass = np.where(center > 0.0, 1.0 / height - sums[0], sums[0])
    log_mean = np.where(center > 0.0, np.log1p(-height * sums[0]), top + np.log(sums[0]))
    slope = sums[1] / mass
    second = -(center * sums[2] / mass + slope * slope)
    return np.where(is_low, m + 0.5 * v + log_mean, log_mean), np.where(is_low, 1.0 - slope, slope), second
