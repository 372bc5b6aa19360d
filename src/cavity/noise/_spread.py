r"""Normal targets whose log standard deviation is a linear predictor of its own.

.. math:: y \sim N(z_1, e^{2 z_2}), \qquad (z_1, z_2) \sim N(m, V).
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, ndtr

from cavity._types import FloatArray
from cavity.gaussians.factorial import LOG_2PI
from cavity.quadrature import hermite

# Nodes over the log standard deviation, and halvings of an interval: quantiles to about six digits.
_NODES, _HALVINGS = 15, 60


def spread_std(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Give standard deviations of new targets, from means ``(n, 2)`` and covariances ``(n, 2, 2)``."""
    with np.errstate(over="ignore"):
        return np.sqrt(variance[:, 0, 0] + np.exp(2.0 * mean[:, 1] + 2.0 * variance[:, 1, 1]))


def spread_quantile(mean: FloatArray, variance: FloatArray, q: float) -> FloatArray:
    """Give quantiles of new targets: the roots of their distribution functions, mixtures over the spread."""
    centers, widths, weights = _mixture(mean, variance)
    low, high = np.min(centers - 40.0 * widths, axis=1), np.max(centers + 40.0 * widths, axis=1)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = ndtr((middle[:, None] - centers) / widths) @ weights < q
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))


def spread_log_density(mean: FloatArray, variance: FloatArray, targets: FloatArray) -> FloatArray:
    """Logarithm of the density of targets, a mixture over the spread."""
    centers, widths, weights = _mixture(mean, variance)
    exponents = -0.5 * np.square((targets[:, None] - centers) / widths) - np.log(widths)
    return np.asarray(logsumexp(exponents, axis=1, b=weights)) - 0.5 * LOG_2PI


def _mixture(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means and standard deviations of targets at nodes over the spread, ``(n, nodes)``, and weights of the nodes."""
    nodes, weights = hermite(_NODES)
    std = np.sqrt(np.maximum(variance[:, 1, 1], 0.0))
    slope = np.divide(variance[:, 0, 1], std, out=np.zeros_like(std), where=std > 0.0)
    centers = mean[:, :1] + slope[:, None] * nodes
    left = np.maximum(variance[:, 0, 0] - slope**2, 0.0)[:, None]
    with np.errstate(over="ignore"):
        widths = np.sqrt(left + np.exp(2.0 * (mean[:, 1:] + std[:, None] * nodes)))
    return centers, np.clip(widths, 1e-300, 1e300), weights
