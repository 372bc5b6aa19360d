r"""The logistic loss: Gauss-Hermite rules for narrow Gaussians, a mixture of probits for wide ones.

With :math:`u = b y z` of mean m and standard deviation s, and :math:`q = \sigma(m) = 1 - p`, the factor relative to its
value at the mean is

.. math:: \frac{\sigma(m + s x)}{\sigma(m)} = \frac{1}{q + p\, e^{-s x}},

which never overflows and takes one exponential per node.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import ndtr

from cavity.mixture import LEAST_MASS, probits
from cavity.tilting._values import ROOT_2PI, FloatArray, Tilts, put

# Largest standard deviation of u, times the power where that is above one, that a rule of so many nodes serves: the
# errors of log mass, of the shift in tilted standard deviations and of the ratio stay below 3e-10 for every mean.
_ORDERS = (0.17, 6), (0.52, 12), (0.95, 24), (1.8, 64)
# Beyond, an exponential overflows and the loss is straight.
_LARGEST = 700.0
_SQUARES, _WEIGHTS = (a[:, None] for a in probits())


def by_logistic(slope: FloatArray, mean: FloatArray, variance: FloatArray, power: FloatArray) -> Tilts:
    r"""Tilts of :math:`N(z; m, v)\, \sigma(b z)^\beta` for slopes b, NaN where neither form serves."""
    m, s = slope * mean, slope * np.sqrt(variance)
    is_one = bool((power == 1.0).all())
    width = np.abs(s) if is_one else np.abs(s) * np.maximum(power, 1.0)
    least, most = width.min(), width.max()
    narrower, found = 0.0, Tilts(*np.full((3, m.size), np.nan))
    for widest, order in _ORDERS:
        if narrower <= least and most < widest:
            return _by_rule(order, m, s, None if is_one else power)
        chosen = np.flatnonzero((narrower <= width) & (width < widest))
        narrower = widest
        if chosen.size:
            put(found, chosen, _by_rule(order, m[chosen], s[chosen], None if is_one else power[chosen]))
    chosen = np.flatnonzero((narrower <= width) & (power == 1.0))
    if chosen.size:
        put(found, chosen, _by_probits(m[chosen], s[chosen]))
    return found


def _by_rule(order: int, m: FloatArray, s: FloatArray, power: FloatArray | None) -> Tilts:
    """Integrate by one Gauss-Hermite rule about the mean; no power stands for one."""
    nodes, weights = _hermite(order)
    margin = np.minimum(-m, _LARGEST)
    e = np.exp(margin)
    q = 1.0 / (1.0 + e)
    f = nodes * s
    np.exp(f, out=f)
    f *= e * q
    f += q
    cost = np.log1p(e) - (m + margin)
    if power is None:
        np.divide(1.0, f, out=f)
    else:
        np.log(f, out=f)
        f *= -power
        np.exp(f, out=f)
        cost *= power
    mass, first, second = weights @ f
    shift = first / mass
    return Tilts(np.log(mass) - cost, shift, 1.0 + (second / mass - shift * shift))


@cache
def _hermite(order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes with the sign changed, of shape ``(order, 1)``, and weights for the means of 1, x and x² - 1."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return -x[:, None], np.stack([np.ones(order), x, x * x - 1.0]) * (w / np.sum(w))


def _by_probits(m: FloatArray, s: FloatArray) -> Tilts:
    """Sum the closed forms of a mixture of probits (`cavity.mixture`), NaN where the mass is too small for it.

    Errors of the log mass, of the shift in tilted standard deviations and of the ratio are below 1e-10.
    """
    v = s * s
    r = np.sqrt(_SQUARES + v)
    np.divide(1.0, r, out=r)
    u = -np.abs(m) * r
    # Far from zero is the smaller of the masses of both signs; the other is what is left.
    far = np.sum(_WEIGHTS * ndtr(u), axis=0)
    density = np.exp(-0.5 * u * u)
    density *= r
    density *= _WEIGHTS / ROOT_2PI
    first = np.sum(density, axis=0)
    density *= r
    density *= r
    second = np.sum(density, axis=0)
    mass = np.where(m > 0.0, 1.0 - far, far)
    mass = np.where(mass >= LEAST_MASS, mass, np.nan)
    change = first / mass
    log_mass = np.where(m > 0.0, np.log1p(-far), np.log(mass))
    return Tilts(log_mass, s * change, 1.0 - v * (m * second / mass + change * change))
