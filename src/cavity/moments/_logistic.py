r"""The logistic loss: Gauss-Hermite rules for narrow Gaussians, a mixture of probits for wide ones.

With :math:`u = b y z` of mean m and standard deviation s, and :math:`q = \sigma(m) = 1 - p`, the factor relative to its
value at the mean is

.. math:: \frac{\sigma(m + s x)}{\sigma(m)} = \frac{1}{q + p\, e^{-s x}},

which never overflows and takes one exponential per node.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from cavity._types import FloatArray
from cavity.moments._values import Tilts, put, slices
from cavity.moments.constants import LEAST_MASS, PROBIT_SQUARES, PROBIT_WEIGHTS, ROOT_2PI
from cavity.quadrature import hermite_polynomials


def by_logistic(slope: FloatArray, mean: FloatArray, variance: FloatArray, power: FloatArray) -> Tilts:
    r"""Tilts of :math:`N(z; m, v)\, \sigma(b z)^\beta` for slopes b, NaN where neither form serves."""
    m, s = slope * mean, slope * np.sqrt(variance)
    is_one = bool((power == 1.0).all())
    width = np.abs(s) if is_one else np.abs(s) * np.maximum(power, 1.0)
    least, most = width.min(), width.max()
    narrower, found = 0.0, Tilts(*np.full((3, m.size), np.nan))
    # Widths up to which a rule of so many nodes keeps the errors of log mass, of the shift in tilted standard
    # deviations and of the ratio below 3e-10 for every mean.
    for widest, order in (0.17, 6), (0.52, 12), (0.95, 24), (1.8, 64):
        if narrower <= least and most < widest:
            return _by_rule(order, m, s, None if is_one else power)
        chosen = np.flatnonzero((narrower <= width) & (width < widest))
        narrower = widest
        if chosen.size:
            put(found, chosen, _by_rule(order, m[chosen], s[chosen], None if is_one else power[chosen]))
    chosen = np.flatnonzero((narrower <= width) & (power == 1.0))
    if chosen.size:
        put(found, chosen, _by_probits_of_either_side(m[chosen], s[chosen]))
    return found


def _by_rule(order: int, m: FloatArray, s: FloatArray, power: FloatArray | None) -> Tilts:
    """Integrate by one Gauss-Hermite rule about the mean; no power stands for one."""
    nodes, weights = hermite_polynomials(order)
    margin = np.minimum(-m, 700.0)  # beyond, exp would overflow, and the loss is straight to rounding
    e = np.exp(margin)
    cost = np.log1p(e) - (m + margin)
    q = 1.0 / (1.0 + e)
    p, sums = e * q, np.empty((3, m.size))
    for some in slices(m.size, order):
        f = -nodes[:, None] * s[some]
        np.exp(f, out=f)
        f *= p[some]
        f += q[some]
        if power is None:
            np.divide(1.0, f, out=f)
        else:
            np.log(f, out=f)
            f *= -power[some]
            np.exp(f, out=f)
        np.matmul(weights, f, out=sums[:, some])
    mass, first, second = sums
    shift = first / mass
    log_mass = np.log(mass) - (cost if power is None else power * cost)
    return Tilts(log_mass, shift, 1.0 + (second / mass - shift * shift))


def _by_probits_of_either_side(m: FloatArray, s: FloatArray) -> Tilts:
    r"""Take the mixture, of :math:`\sigma(u) = e^u \sigma(-u)` where the mass is too small for that of the left side.

    The exponential moves the mean by the variance. Both masses are too small for large variances only.
    """
    found = by_probits(m, s)
    low = np.flatnonzero(np.isnan(found.log_mass))
    if low.size:
        m, s = m[low], s[low]
        v = s * s
        log_mass, shift, ratio = by_probits(-(m + v), -s)
        put(found, low, Tilts(m + 0.5 * v + log_mass, s + shift, ratio))
    return found


def by_probits(m: FloatArray, s: FloatArray) -> Tilts:
    """Sum the closed forms of the mixture of probits, NaN where the mass is too small for it.

    Errors of the log mass, of the shift in tilted standard deviations and of the ratio are below 1e-10.
    """
    v, a = s * s, -np.abs(m)
    # Far from zero is the smaller of the masses of both signs; the other is what is left.
    far, first, second = np.empty((3, m.size))
    squares, weights = PROBIT_SQUARES[:, None], PROBIT_WEIGHTS[:, None]
    densities = weights / ROOT_2PI
    for some in slices(m.size, squares.size):
        r = squares + v[some]
        np.sqrt(r, out=r)
        np.divide(1.0, r, out=r)
        u = a[some] * r
        tail = ndtr(u)
        tail *= weights
        np.sum(tail, axis=0, out=far[some])
        u *= u
        u *= -0.5
        np.exp(u, out=u)
        u *= r
        u *= densities
        np.sum(u, axis=0, out=first[some])
        r *= r
        u *= r
        np.sum(u, axis=0, out=second[some])
    mass = np.where(m > 0.0, 1.0 - far, far)
    mass = np.where(mass >= LEAST_MASS, mass, np.nan)
    change = first / mass
    log_mass = np.where(m > 0.0, np.log1p(-far), np.log(mass))
    return Tilts(log_mass, s * change, 1.0 - v * (m * second / mass + change * change))
