"""What every kind of noise can do, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import erfcx, ndtr

from cavity._types import FloatArray

# Largest logarithm whose exponential is still far from overflow.
LARGEST_LOG = 700.0


class Noise:
    """The noise of targets, given a predictor that is Gaussian; ``scale`` says how wide it is.

    ``log_normalizer`` of targets is the logarithm of the integral of the unnormalised density; ``std``, ``quantile``
    and ``cdf``, the probability of at most a target, are those of new targets, from mean and variance of the predictor.
    """

    __slots__ = ()
    scale: float
    log_normalizer: Callable[[FloatArray], FloatArray]
    std: Callable[[FloatArray, FloatArray], FloatArray]
    quantile: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    cdf: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

    def site_factor(self, scale: float, center: float) -> float:
        """Factor of the precisions of sites if the scale becomes another."""
        return (self.scale / scale) ** 2


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
