r"""Prior variance and noise scale, found while EP runs.

The prior variance follows MacKay's fixed point, with :math:`\nu` coefficients of a typical variance :math:`v_0` added:

.. math:: v \leftarrow \frac{\sum_j (m_j - \mu_j)^2 + \nu v_0}{\sum_j (1 - s_j^2 / v) + \nu},

over coefficients of posterior mean :math:`m_j`, variance :math:`s_j^2` and prior mean :math:`\mu_j`. Its fixed point
maximises the evidence, up to the added coefficients, which keep it finite where the data alone do not: one column, none
that matters, or separable classes. In the first loops, far from the fixed point, it is averaged with the step of
expectation maximisation, which is slower and never overshoots.

The noise scale follows the step of expectation maximisation, :mod:`cavity.noise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.sites import RowSites
from cavity.gaussian import FactorialGaussian
from cavity.losses import Loss
from cavity.noise import estimate_scale, with_scale

FloatArray = NDArray[np.float64]

# Coefficients of typical size that are added: enough to bound the variance, too few to matter beside five columns.
_ADDED = 0.5
# Prior variance of the linear predictor of a typical row that a typical variance means: log odds of two standard
# deviations around two. On the data sets of the paper, standardised, the variance found gives 0.4 to 60.
_TYPICAL_SPREAD = 5.0
# Loops averaged with expectation maximisation, and the largest factor by which one loop changes a variance or scale.
_CAUTIOUS_LOOPS, _LARGEST_FACTOR = 3, 10.0
# Smaller changes of the logarithm are none.
_NO_CHANGE = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Adaptive:
    """Revises prior variance, noise scale, or both.

    Parameters
    ----------
    free
        Coefficients that share a prior variance to be found; none if it is given.
    typical
        Their typical variance.
    scale
        Whether the field ``scale`` of the loss is to be found.
    beta
        Power of all factors.
    """

    free: NDArray[np.bool_] | None = None
    typical: float = 1.0
    scale: bool = False
    beta: float = 1.0

    def prior(self, prior: FactorialGaussian, mean: FloatArray, variance: FloatArray, loop: int) -> FactorialGaussian:
        """Prior with the revised variance."""
        if self.free is None or not np.any(self.free):
            return prior
        center = prior.shift / prior.precision
        v = 1.0 / float(prior.precision[self.free][0])
        new = revised_variance(v, (mean - center)[self.free], variance[self.free], self.typical, loop < _CAUTIOUS_LOOPS)
        if abs(np.log(new / v)) < _NO_CHANGE:
            return prior
        return FactorialGaussian.from_moments(center, np.where(self.free, new, 1.0 / prior.precision))

    def loss(self, loss: Loss, targets: FloatArray, weights: FloatArray, sites: RowSites) -> Loss:
        """Loss with the revised scale."""
        if not self.scale:
            return loss
        before = float(loss.scale)  # type: ignore[attr-defined]
        found = estimate_scale(loss, targets - sites.mean, sites.variance, weights, beta=self.beta)
        new = min(max(found, before / _LARGEST_FACTOR), before * _LARGEST_FACTOR)
        return loss if abs(np.log(new / before)) < _NO_CHANGE else with_scale(loss, new)


def revised_variance(v: float, deviations: FloatArray, variances: FloatArray, typical: float, cautious: bool) -> float:
    """One step of the fixed point from the variance ``v``."""
    squares, added = float(deviations @ deviations), _ADDED * typical
    known = max(deviations.size - float(np.sum(variances)) / v, 0.0)
    new = (squares + added) / (known + _ADDED)
    if cautious:
        averaged = (squares + float(np.sum(variances)) + added) / (deviations.size + _ADDED)
        new = float(np.sqrt(new * averaged))
    return min(max(new, v / _LARGEST_FACTOR), v * _LARGEST_FACTOR)


def typical_variance(X: Any, spread: float = _TYPICAL_SPREAD) -> float:
    """Variance of the coefficients under which the predictor of an average row has this variance."""
    entries = X.data if sparse.issparse(X) else np.asarray(X)
    flat = entries.astype(np.float64, copy=False).ravel()
    size = float(flat @ flat) / max(X.shape[0], 1)
    return spread / size if 0.0 < size < np.inf else 1.0
