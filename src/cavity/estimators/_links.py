r"""From a Gaussian linear predictor to the probability of a class.

A loss gives every class the unnormalised likelihood :math:`e^{-\beta \ell(y, z)}`; normalised over both signs,

.. math:: P(+ \mid z) = \frac{1}{1 + e^{-g(z)}}, \qquad g(z) = \beta\,(\ell(-1, z) - \ell(+1, z)),

which is the logistic link for the logistic loss, and the stated link of every other. What is predicted is its mean
under the posterior of :math:`z`, not its value at the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from cavity.losses import Loss, offers

FloatArray = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / np.sum(_WEIGHTS)
# Probabilities below this have this logarithm.
_LEAST = 1e-300
# Rows at a time, so that memory stays small.
_BLOCK = 4096


def positive_probability(loss: Loss, beta: float, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean of the link under N(mean, variance), row by row; about 1e-8 exact for the logistic loss, 1e-3 for kinks."""
    return _probability(loss, beta, mean, np.sqrt(variance), 1.0)


def log_odds(loss: Loss, beta: float, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Log odds of the two probabilities: the linear predictor, moderated by how little is known of it."""
    std = np.sqrt(variance)
    chances = [np.maximum(_probability(loss, beta, mean, std, sign), _LEAST) for sign in (1.0, -1.0)]
    return np.log(chances[0]) - np.log(chances[1])


def _probability(loss: Loss, beta: float, mean: FloatArray, std: FloatArray, sign: float) -> FloatArray:
    """Probability of a sign, each computed for itself: their sum is one to rounding, their logarithms keep digits."""
    logistic = offers(loss).logistic
    if logistic is not None:
        sharpness = beta * float(logistic)
        return _by_blocks(_logistic, sign * sharpness * mean, abs(sharpness) * std)

    def link(z: FloatArray) -> FloatArray:
        z = sign * z
        gap = beta * (loss.value(np.float64(-sign), z) - loss.value(np.float64(sign), z))
        return np.asarray(expit(gap))

    def integrate(m: FloatArray, s: FloatArray) -> FloatArray:
        return _mean_of(link, m, s)

    return _by_blocks(integrate, sign * mean, std)


def _by_blocks(function: Any, mean: FloatArray, std: FloatArray) -> FloatArray:
    parts = [function(mean[i : i + _BLOCK], std[i : i + _BLOCK]) for i in range(0, mean.size, _BLOCK)]
    return np.clip(np.concatenate(parts), 0.0, 1.0) if parts else np.empty(0)  # sums of weights round


def _logistic(m: FloatArray, s: FloatArray) -> FloatArray:
    r"""Mean of :math:`1/(1+e^{-z})`: over z where it is narrow, over the threshold of the link where it is wide.

    Wide: the probability that z exceeds a logistic variable, :math:`E\,\Phi((m - l)/s)`, by the trapezoid rule, whose
    error falls exponentially for such smooth functions.
    """
    out = np.empty_like(m)
    narrow = s < 1.0
    out[narrow] = expit(m[narrow, None] + s[narrow, None] * _NODES) @ _WEIGHTS
    density = expit(_THRESHOLDS) * expit(-_THRESHOLDS)
    out[~narrow] = ndtr((m[~narrow, None] - _THRESHOLDS) / s[~narrow, None]) @ (density / np.sum(density))
    return out


_THRESHOLDS = np.arange(-24.0, 24.5, 0.5)


def _mean_of(link: Any, m: FloatArray, s: FloatArray) -> FloatArray:
    """Mean of any link: over z where it is narrow, by parts over fixed thresholds where it is wide.

    Links with kinks are no better served by rules of high order: many equal steps do as well.
    """
    out = np.empty_like(m)
    narrow = s < _NARROW
    out[narrow] = link(m[narrow, None] + s[narrow, None] * _STEPS) @ _SHARES
    rises = link(_EDGES)
    above = ndtr((m[~narrow, None] - 0.5 * (_EDGES[1:] + _EDGES[:-1])) / s[~narrow, None])
    out[~narrow] = rises[0] + above @ np.diff(rises)
    return out


_NARROW = 0.2
_STEPS = np.linspace(-6.0, 6.0, 201)
_SHARES = np.exp(-0.5 * _STEPS**2) / np.sum(np.exp(-0.5 * _STEPS**2))
# Fine around the threshold of a class, coarse far out, where only slow links still rise.
_EDGES = np.sinh(np.linspace(-12.0, 12.0, 481)) / 10.0
