r"""From a Gaussian linear predictor to the probability of a class.

A loss gives every class the unnormalised likelihood :math:`e^{-\ell(y, z)}`; normalised over both signs,

.. math:: P(+ \mid z) = \frac{1}{1 + e^{-g(z)}}, \qquad g(z) = \ell(-1, z) - \ell(+1, z),

which is the logistic link for the logistic loss, and the stated link of every other. What is predicted is its mean
under the posterior of :math:`z`, not its value at the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from cavity.losses import Loss, offers

FloatArray = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / np.sum(_WEIGHTS)
# Thresholds of the logistic link, in units of its argument: its density is below 1e-10 beyond. Steps of a half give
# 1e-8 for standard deviations of one and more.
_THRESHOLDS = np.arange(-24.0, 24.5, 0.5)
_DENSITY = expit(_THRESHOLDS) * expit(-_THRESHOLDS)
_DENSITY = _DENSITY / np.sum(_DENSITY)
# Standard deviation up to which any other link is integrated over the predictor, by equal steps of 0.06 standard
# deviations; links with kinks gain nothing from rules of high order.
_NARROW = 0.2
_STEPS = np.linspace(-6.0, 6.0, 201)
_SHARES = np.exp(-0.5 * _STEPS**2) / np.sum(np.exp(-0.5 * _STEPS**2))
# Beyond, over thresholds that are fine around the border of the classes and coarse far out, where slow links rise.
_EDGES = np.sinh(np.linspace(-12.0, 12.0, 481)) / 10.0
# Probabilities below this have this logarithm.
_LEAST_PROBABILITY = 1e-300
# Rows at a time: with 200 to 480 nodes each, 16 MB of doubles.
_ROWS_AT_ONCE = 4096


def positive_probability(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean of the link under N(mean, variance), per row; exact to 1e-8 for the logistic loss, 1e-3 for kinks."""
    return _probability(loss, mean, np.sqrt(variance), 1.0)


def log_odds(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Log odds of the two probabilities, each computed for itself: their logarithms keep their digits."""
    std = np.sqrt(variance)
    positive, negative = (np.maximum(_probability(loss, mean, std, s), _LEAST_PROBABILITY) for s in (1.0, -1.0))
    return np.log(positive) - np.log(negative)


def _probability(loss: Loss, mean: FloatArray, std: FloatArray, sign: float) -> FloatArray:
    def link(z: FloatArray) -> FloatArray:
        gap = loss.value(np.float64(-sign), sign * z) - loss.value(np.float64(sign), sign * z)
        return np.asarray(expit(gap))

    logistic = offers(loss).logistic
    if logistic is not None:
        sharpness = float(logistic)
        rule: Any = _logistic
        m, s = sign * sharpness * mean, abs(sharpness) * std
    else:
        m, s, rule = sign * mean, std, partial(_any_link, link)
    out = np.empty_like(m)
    for i in range(0, m.size, _ROWS_AT_ONCE):
        part = slice(i, i + _ROWS_AT_ONCE)
        out[part] = rule(m[part], s[part])
    return np.clip(out, 0.0, 1.0)  # sums of weights round


def _logistic(m: FloatArray, s: FloatArray) -> FloatArray:
    r"""Mean of :math:`1/(1+e^{-z})`: over z where it is narrow, over the threshold of the link where it is wide.

    Wide: the probability that z exceeds a logistic variable, :math:`E\,\Phi((m - l)/s)`, by the trapezoid rule, whose
    error falls exponentially for such smooth functions.
    """
    out, narrow = np.empty_like(m), s < 1.0
    out[narrow] = expit(m[narrow, None] + s[narrow, None] * _NODES) @ _WEIGHTS
    out[~narrow] = ndtr((m[~narrow, None] - _THRESHOLDS) / s[~narrow, None]) @ _DENSITY
    return out


def _any_link(link: Callable[[FloatArray], FloatArray], m: FloatArray, s: FloatArray) -> FloatArray:
    """Mean of any link: over z where it is narrow, by parts over fixed thresholds where it is wide."""
    out, narrow = np.empty_like(m), s < _NARROW
    out[narrow] = link(m[narrow, None] + s[narrow, None] * _STEPS) @ _SHARES
    rises = link(_EDGES)
    above = ndtr((m[~narrow, None] - 0.5 * (_EDGES[1:] + _EDGES[:-1])) / s[~narrow, None])
    out[~narrow] = rises[0] + above @ np.diff(rises)
    return out
