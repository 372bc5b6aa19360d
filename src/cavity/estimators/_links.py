r"""From a Gaussian linear predictor to the probability of a class.

A loss gives every class the unnormalised likelihood :math:`e^{-\ell(y, z)}`; normalised over both signs,

.. math:: P(+ \mid z) = \frac{1}{1 + e^{-g(z)}}, \qquad g(z) = \ell(-1, z) - \ell(+1, z),

which is the logistic link for the logistic loss, and the stated link of every other. What is predicted is its mean
under the posterior of :math:`z`, not its value at the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from cavity.losses import Loss, offers
from cavity.losses.joint import Softmax
from cavity.moments import joint_log_masses, joint_means, tilts

FloatArray = NDArray[np.float64]


# Nodes for links other than the logistic: places that are fine around the border of the classes and coarse far out,
# where slow links rise, and steps in standard deviations around the peak of link times Gaussian.
_PLACES, _STEPS = np.sinh(np.linspace(-12.0, 12.0, 121)) / 10.0, np.linspace(-6.0, 6.0, 41)
# Probability of a class of several below which its logarithm is integrated around its own peak.
_FAR = 1e-4


def log_probabilities(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Logarithms of the means of both links under N(mean, variance), of shape ``(2, n)``: of -1 and of +1.

    Exact to 1e-8 for the logistic loss and to 1e-3 for others, however small a probability is: that of the less likely
    class is integrated, and the other is what is left.
    """
    slope = offers(loss).logistic
    less = np.where((_gap(loss, 1.0, mean) if slope is None else slope * mean) > 0.0, -1.0, 1.0)
    if slope is not None:
        low = tilts(loss, less, mean, variance).log_mass
    else:
        parts = [slice(i, i + 1024) for i in range(0, max(len(mean), 1), 1024)]  # 160 nodes and their middles: 2.6 MB
        low = np.concatenate([_log_means(loss, less[part], mean[part], np.sqrt(variance[part])) for part in parts])
    low = np.minimum(low, -np.finfo(np.float64).eps)
    high = np.log1p(-np.exp(low))
    return np.where(less < 0.0, [low, high], [high, low])


def softmax_probability(mean: FloatArray, variance: FloatArray, classes: int) -> FloatArray:
    """Mean of the softmax in the classes' own order, from means and covariances of its contrasts."""
    loss = Softmax(classes)
    out = joint_means(loss.mean_probabilities, mean, variance)
    return out / np.sum(out, axis=1, keepdims=True)


def softmax_log_probability(mean: FloatArray, variance: FloatArray, classes: int) -> FloatArray:
    """Logarithms of these; small probabilities are integrated around their own peaks."""
    found = softmax_probability(mean, variance, classes)
    rows, far = np.nonzero(found < _FAR)
    logs = np.log(np.maximum(found, _FAR))
    logs[rows, far] = joint_log_masses(Softmax(classes), far.astype(np.float64), mean[rows], variance[rows])
    return np.asarray(log_softmax(logs, axis=1))


def log_odds(logs: FloatArray) -> FloatArray:
    """Log odds of every class against all others, from logarithms of probabilities ``(n, classes)``."""
    count = logs.shape[1]
    others = [np.delete(np.arange(count), k) for k in range(count)]
    return logs - np.column_stack([logsumexp(logs[:, rest], axis=1) for rest in others])


def _gap(loss: Loss, sign: Any, z: FloatArray) -> FloatArray:
    """Log odds of a class at known predictors."""
    return np.asarray(loss.value(-sign, z) - loss.value(sign, z))


def _log_link(loss: Loss, sign: Any, z: FloatArray) -> FloatArray:
    gap = _gap(loss, sign, z)
    return np.asarray(np.minimum(gap, 0.0) - np.log1p(np.exp(-np.abs(gap))))


def _log_means(loss: Loss, sign: FloatArray, m: FloatArray, s: FloatArray) -> FloatArray:
    """Logarithms of the means of any link, by Simpson's rule between nodes that follow the peak of the product."""
    out, center, left = _log_link(loss, sign, m), m.copy(), np.flatnonzero(s > 0.0)
    for _ in range(50):  # far into the tails of losses that grow fast, a peak lies many steps away
        if not left.size:
            break
        c, mean, std = center[left, None], m[left, None], s[left, None]
        ends = np.concatenate([c + std * _STEPS, np.broadcast_to(_PLACES, (left.size, _PLACES.size))], axis=1)
        ends.sort(axis=1, kind="stable")
        z = np.concatenate([ends, 0.5 * (ends[:, 1:] + ends[:, :-1])], axis=1)
        f = _log_link(loss, sign[left, None], z) - 0.5 * np.square((z - mean) / std)
        at = np.argmax(f, axis=1)[:, None]
        peak, top = np.take_along_axis(z, at, axis=1), np.take_along_axis(f, at, axis=1)
        f -= top
        np.exp(f, out=f)
        count = ends.shape[1]
        mass = np.sum((f[:, 1:count] + f[:, : count - 1] + 4.0 * f[:, count:]) * np.diff(ends, axis=1), axis=1) / 6.0
        out[left] = top[:, 0] + np.log(mass / (np.sqrt(2.0 * np.pi) * std[:, 0]))
        center[left] = peak[:, 0]
        left = left[(np.abs(peak - c) > 2.0 * std)[:, 0]]
    return out
