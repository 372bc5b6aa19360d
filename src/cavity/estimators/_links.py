r"""From a Gaussian linear predictor to the probability of a class.

A loss gives every class the unnormalised likelihood :math:`e^{-\ell(y, z)}`; normalised over both signs,

.. math:: P(+ \mid z) = \frac{1}{1 + e^{-g(z)}}, \qquad g(z) = \ell(-1, z) - \ell(+1, z),

which is the logistic link for the logistic loss, and the stated link of every other. What is predicted is its mean
under the posterior of :math:`z`, not its value at the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from cavity.losses import Loss, offers
from cavity.losses.joint import Softmax
from cavity.moments import joint_means
from cavity.quadrature import hermite

FloatArray = NDArray[np.float64]


def positive_probability(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean of the link under N(mean, variance), per row; exact to 1e-8 for the logistic loss, 1e-3 for kinks."""
    return _probability(loss, mean, np.sqrt(variance), 1.0)


def log_odds(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Log odds of the two probabilities, each computed for itself: their logarithms keep their digits."""
    std = np.sqrt(variance)
    positive, negative = (np.maximum(_probability(loss, mean, std, s), 1e-300) for s in (1.0, -1.0))
    return np.log(positive) - np.log(negative)


def softmax_probability(mean: FloatArray, variance: FloatArray, classes: int) -> FloatArray:
    """Mean of the softmax in the classes' own order, from means and covariances of its contrasts."""
    loss = Softmax(classes)
    out = joint_means(loss.mean_probabilities, mean, variance)
    return out / np.sum(out, axis=1, keepdims=True)


def _in_parts(function: Any, mean: FloatArray, spread: FloatArray, length: int) -> FloatArray:
    """Apply a function to so many rows at a time."""
    parts = [slice(i, i + length) for i in range(0, max(len(mean), 1), length)]
    return np.concatenate([function(mean[part], spread[part]) for part in parts])


def _probability(loss: Loss, mean: FloatArray, std: FloatArray, sign: float) -> FloatArray:
    def link(z: FloatArray) -> FloatArray:
        gap = loss.value(np.float64(-sign), sign * z) - loss.value(np.float64(sign), sign * z)
        return np.asarray(expit(gap))

    sharpness = offers(loss).logistic
    rule: Any = partial(_any_link, link) if sharpness is None else _logistic
    slope = 1.0 if sharpness is None else float(sharpness)
    m, s = sign * slope * mean, abs(slope) * std
    # With 200 to 480 nodes per row, 16 MB of doubles; sums of weights round.
    return np.clip(_in_parts(rule, m, s, 4096), 0.0, 1.0)


def _logistic(m: FloatArray, s: FloatArray) -> FloatArray:
    r"""Mean of :math:`1/(1+e^{-z})`: over z where it is narrow, over the threshold of the link where it is wide.

    Wide: the probability that z exceeds a logistic variable, :math:`E\,\Phi((m - l)/s)`, by the trapezoid rule, whose
    error falls exponentially for such smooth functions.
    """
    out, narrow = np.empty_like(m), s < 1.0
    (nodes, weights), (thresholds, density) = hermite(32), _logistic_rule()
    out[narrow] = expit(m[narrow, None] + s[narrow, None] * nodes) @ weights
    out[~narrow] = ndtr((m[~narrow, None] - thresholds) / s[~narrow, None]) @ density
    return out


@cache
def _logistic_rule() -> tuple[FloatArray, FloatArray]:
    """Thresholds of the logistic link and their weights.

    Its density is below 1e-10 beyond 24; steps of a half give 1e-8 for standard deviations of one and more.
    """
    thresholds = np.arange(-24.0, 24.5, 0.5)
    density = expit(thresholds) * expit(-thresholds)
    return thresholds, density / np.sum(density)


def _any_link(link: Callable[[FloatArray], FloatArray], m: FloatArray, s: FloatArray) -> FloatArray:
    """Mean of any link: over z where it is narrow, by parts over fixed thresholds where it is wide.

    Narrow: by equal steps of 0.06 standard deviations; links with kinks gain nothing from rules of high order. Wide:
    over thresholds that are fine around the border of the classes and coarse far out, where slow links rise.
    """
    out, narrow = np.empty_like(m), s < 0.2
    steps, edges = np.linspace(-6.0, 6.0, 201), np.sinh(np.linspace(-12.0, 12.0, 481)) / 10.0
    density = np.exp(-0.5 * steps**2)
    out[narrow] = link(m[narrow, None] + s[narrow, None] * steps) @ (density / np.sum(density))
    rises = link(edges)
    above = ndtr((m[~narrow, None] - 0.5 * (edges[1:] + edges[:-1])) / s[~narrow, None])
    out[~narrow] = rises[0] + above @ np.diff(rises)
    return out
