"""Numbers that the array form of the moments and the compiled one share."""

from __future__ import annotations

import math

import numpy as np

# Inverse height of the standard normal density, and the factor of the arguments of erfc.
ROOT_2PI = math.sqrt(2.0 * math.pi)
ROOT_HALF = math.sqrt(0.5)

# Tails: from so many standard deviations on, this many terms of a continued fraction are exact to 1e-12, while
# differences of error functions lose digits.
FAR_TAIL, TAIL_TERMS = 4.5, 20
# Pieces over which the logarithm of the product changes by less than this: integrated by nodes, since differences of
# tails would cancel. Ten nodes are exact to 1e-12 there.
NARROW_PIECE = 2.0
NARROW_NODES, NARROW_WEIGHTS = np.polynomial.legendre.leggauss(10)

# How often the nodes of the first Gauss-Hermite rule are doubled, and the share of mass, variance and standard
# deviation to which two rules must agree: below the promised 1e-6, above the rounding of sums.
DOUBLINGS, AGREEMENT = 2, 1e-7
# The search for the peak ends where a Newton step would gain less than this of the logarithm: a rule about any point
# so near is as good.
PEAK_GAIN, NEWTON_STEPS = 0.0025, 100

# Panels end where the logarithm has fallen by this (e^-28 = 7e-13) to twice this.
FALL = 28.0
# Panels are cut where a loss begins to bend: where the change of its slope times the distance lies between these.
BEND_LOW, BEND_HIGH = 1e-6, 1e-3
# Most steps of a search by doubling or halving, and most panels of a row that are halved.
SEARCH_STEPS, HALVINGS = 80, 200
# Rule of a panel, which is halved until both halves agree with it.
PANEL_NODES, PANEL_WEIGHTS = np.polynomial.legendre.leggauss(16)


def _probits() -> tuple[np.ndarray, np.ndarray]:
    r"""Squared scales and weights of the logistic function as a mixture of probits.

    A logistic variable is a Gaussian whose scale is drawn from twice Kolmogorov's distribution, of density f:

    .. math:: \sigma(z) = \int_0^\infty f(k)\, \Phi\!\left(\frac{z}{2k}\right) dk
        \approx \sum_j w_j\, \Phi\!\left(\frac{z}{s_j}\right), \qquad
        f(k) = 8k \sum_{j \ge 1} (-1)^{j+1} j^2 e^{-2 j^2 k^2}
        = \frac{\sqrt{2\pi}}{k^2} \sum_{j \ge 1} (a_j^2 - 1)\, e^{-a_j^2/2}, \quad a_j = \frac{(2j - 1)\pi}{2k},

    of which the first sum converges fast for large k, the second for small. The trapezoidal rule in log k is exact to
    rounding, since f falls faster than exponentially on both sides: beyond 0.2 and 4 lies less than 1e-12 of any mass
    that is used. Under a Gaussian every probit stays one, of variance :math:`s_j^2 + v`.
    """
    first, last, nodes = 0.2, 4.0, 24
    k, j = np.geomspace(first, last, nodes), np.arange(1.0, 6.0)[:, None]
    a = (j - 0.5) * math.pi / k
    large = 8.0 * k * np.sum((-1.0) ** (j + 1.0) * j * j * np.exp(-2.0 * (j * k) ** 2), axis=0)
    small = ROOT_2PI / k**2 * np.sum((a * a - 1.0) * np.exp(-0.5 * a * a), axis=0)
    step = math.log(last / first) / (nodes - 1)
    return 4.0 * k * k, step * k * np.where(k < 1.0, small, large)


# Squared scales and weights of the mixture.
PROBIT_SQUARES, PROBIT_WEIGHTS = _probits()
# A smaller mass comes from the tail, where the mixture has fewer than ten digits.
LEAST_MASS = 1e-4
