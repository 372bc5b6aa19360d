r"""One factor of the log odds, by leave-one-out predictions: what makes probabilities neither too bold nor too timid.

With :math:`p_{ik}` the probability of class k for row i under the posterior without that row, the factor a maximises

.. math:: \sum_i w_i \log \frac{p_{i y_i}^a}{\sum_k p_{ik}^a} - \tfrac12 (\log a)^2.

The last term is a prior with its middle at one and a standard deviation of one: a factor of e. Where there are many
rows, or a posterior that needs no repair, the factor is one; on separable classes, whose posterior is as wide as the
prior lets it, it is well above.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_softmax

from cavity._types import FloatArray

# Logarithm of the largest factor, where rows are so many that the prior does not hold it.
_LARGEST = 5.0


def scaled(logs: FloatArray, factor: float) -> FloatArray:
    """Multiply log odds by a factor: log probabilities ``(n, classes)`` of rows."""
    return logs if factor == 1.0 else np.asarray(log_softmax(factor * logs, axis=1))


def calibrating_factor(logs: FloatArray, codes: Any, weights: FloatArray) -> float:
    """Find the factor from log probabilities ``(n, classes)`` of rows without themselves.

    Parameters
    ----------
    logs
        Log probabilities; rows that are not finite do not count.
    codes
        Class of every row.
    weights
        Weights of the rows.
    """
    fine = np.all(np.isfinite(logs), axis=1)
    logs, w = logs[fine], weights[fine]
    own = np.arange(len(logs)), np.asarray(codes, dtype=np.intp)[fine]

    def slope(log_factor: float) -> float:
        a = float(np.exp(log_factor))
        expected = np.sum(np.exp(scaled(logs, a)) * logs, axis=1)
        return a * float(w @ (logs[own] - expected)) - log_factor

    low, high = -_LARGEST, _LARGEST
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
    return float(np.exp(0.5 * (low + high)))
