"""What every kind of noise can do, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # loads its optimize when it is first used
from scipy.special import erfcx, ndtr

from cavity._types import FloatArray
from cavity.quadrature import hermite

# Where rows come in parts, an equation for the scale is summed up at the present scale times the exponentials of these:
# close together near zero, where the root is once the scale has converged, and up to a factor of ten.
_NEAR = np.array([0.003, 0.03, 0.3, 1.2, 2.303])
_NEAR_SCALES = np.concatenate([-_NEAR[::-1], [0.0], _NEAR])
# Largest logarithm whose exponential is still far from overflow.
LARGEST_LOG = 700.0


@dataclass(frozen=True, eq=False)
class Observed:
    """Targets, means and standard deviations of the predictors, and weights, each of shape ``(n,)``."""

    y: FloatArray
    mean: FloatArray
    std: FloatArray
    weights: FloatArray

    def sum(self, values: FloatArray) -> float:
        return float(self.weights @ values)

    @property
    def total(self) -> float:
        return float(np.sum(self.weights))

    def average(self, values: FloatArray) -> float:
        return self.sum(values) / self.total

    @cached_property
    def means(self) -> tuple[FloatArray, FloatArray]:
        """Exponentials of the predictors at nodes, one column per node, and weights of the nodes."""
        nodes, weights = hermite(9)
        z = self.mean[:, None] + self.std[:, None] * nodes
        return np.exp(np.clip(z, -LARGEST_LOG, LARGEST_LOG / 4.0)), weights


class Noise:
    """The noise of targets, given a predictor that is Gaussian; ``scale`` says how wide it is.

    ``log_normalizer`` of targets is the logarithm of the integral of the unnormalised density; ``std`` and ``quantile``
    are those of new targets, from mean and variance of the predictor. The likeliest scale follows from ``sums``, a
    numerator and a denominator: their ratio is `ratio` at that scale, and `scale_of` the inverse.
    """

    __slots__ = ()
    scale: float
    log_normalizer: Callable[[FloatArray], FloatArray]
    std: Callable[[FloatArray, FloatArray], FloatArray]
    quantile: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    sums: Callable[[Observed], tuple[float, float]]

    @property
    def ratio(self) -> float:
        return self.scale

    def scale_of(self, ratio: float) -> float:
        return ratio

    def likeliest_scale(self, rows: Observed) -> float:
        return self.scale_of_terms(self.terms(rows))

    def terms(self, rows: Observed) -> FloatArray:
        """Sum up over these rows what, added up over all, gives the likeliest scale by `scale_of_terms`."""
        return np.array(self.sums(rows))

    def scale_of_terms(self, terms: FloatArray) -> float:
        return self.scale_of(float(terms[0]) / float(terms[1]))

    def sums_of_scale(self, rows: float, center: float) -> tuple[float, float]:
        """Give the sums of so many rows of this scale and average target."""
        return rows * self.ratio, rows

    def site_factor(self, scale: float, center: float) -> float:
        """Factor of the precisions of sites if the scale becomes another."""
        return (self.scale / scale) ** 2


class ScaleByRoot(Noise):
    """Noise whose likeliest scale, within ``bounds(rows)``, is the root of an equation.

    ``surplus(rows, scale)`` is what every row adds to it: negative below the root in sum, and positive above.
    """

    __slots__ = ()
    bounds: Callable[[Observed], tuple[float, float]]
    surplus: Callable[[Observed, float], FloatArray]

    def likeliest_scale(self, rows: Observed) -> float:
        low, high = self.bounds(rows)

        def surplus(log_scale: float) -> float:
            return rows.average(self.surplus(rows, float(np.exp(log_scale))))

        if not 0.0 < low < high < np.inf or not surplus(np.log(high)) > 0.0:
            return high
        if not surplus(np.log(low)) < 0.0:
            return low
        return float(np.exp(scipy.optimize.brentq(surplus, np.log(low), np.log(high), xtol=1e-12)))

    def terms(self, rows: Observed) -> FloatArray:
        """Sum up the equation at scales near this one."""
        return np.array([rows.sum(self.surplus(rows, self.scale * near)) for near in np.exp(_NEAR_SCALES)])

    def scale_of_terms(self, terms: FloatArray) -> float:
        above = int(np.argmax(terms > 0.0)) if np.any(terms > 0.0) else terms.size
        if above in (0, terms.size):
            return self.scale * float(np.exp(_NEAR_SCALES[min(above, terms.size - 1)]))
        pair = slice(above - 1, above + 1)
        return self.scale * float(np.exp(np.interp(0.0, terms[pair], _NEAR_SCALES[pair])))


def tilted(x: FloatArray, c: FloatArray) -> FloatArray:
    r""":math:`e^{c^2/2 - c x}\,\Phi(x - c)` for c of zero or more, in two forms of which neither overflows."""
    w = c - x
    scaled = 0.5 * np.exp(-0.5 * x * x) * erfcx(np.maximum(w, 0.0) / np.sqrt(2.0))
    plain = np.exp(np.minimum(c * (0.5 * c - x), 0.0)) * ndtr(-w)
    return np.asarray(np.where(w > 0.0, scaled, plain))


def invert(
    below: Callable[[FloatArray], tuple[FloatArray, FloatArray]], center: float, std: FloatArray, p: FloatArray
) -> FloatArray:
    """Find where a distribution function of this mean and standard deviation is p.

    Newton's method within Cantelli's bounds of a quantile, which narrow, and bisection where it would leave them.
    Bisection alone comes from a probability of 1e-6, a thousand standard deviations away, to rounding in 64 steps.
    """
    low, high = center - std * np.sqrt((1.0 - p) / p), center + std * np.sqrt(p / (1.0 - p))
    r = np.full_like(std, center)
    for _ in range(64):
        value, density = below(r)
        low, high = np.where(value < p, r, low), np.where(value < p, high, r)
        with np.errstate(all="ignore"):
            newton = r - (value - p) / density
        before, r = r, np.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        if np.max(np.abs(r - before) / std, initial=0.0) < 1e-10:
            break
    return r
