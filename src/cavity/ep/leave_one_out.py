r"""Leave-one-out: what EP says of every row without that row, from its cavity and without a refit.

The cavity of a row is the posterior without the row's site. Where a row has weight w, it stands for w equal rows, and one
of them is left out: the predictor then has the distribution

.. math:: q_{-1}(z) \propto \frac{q(z)}{\tilde t(z)}\, t(z)^{w - 1},

a Gaussian for w of at most one, and replaced by the Gaussian of its mean and variance beyond. What a refit would change
beside this is how the sites of other rows answer; it is exact for the squared loss, of the first order in what a row
weighs else. A row that holds most of the precision of its own predictor has a cavity much wider than the posterior, and
what is left then hangs on sites that were fitted beside it: such rows are told by `LeftOut.leverage`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity._types import FloatArray
from cavity.ep.sites import RowSites
from cavity.moments import tilts

# Share of a predictor's precision that one row may hold for its leave-one-out density to be relied on.
RELIABLE = 0.5


class LeftOut(NamedTuple):
    """Predictors of rows under the posterior without one of these rows.

    Parameters
    ----------
    mean, variance
        Means and variances, known offsets included; means of shape ``(rows, K)`` and covariances ``(rows, K, K)`` where
        the loss has K predictors. NaN where what is left is improper.
    leverage
        Share of the precision of its predictor that the row holds; of several predictors, in the direction where that
        is largest.
    """

    mean: FloatArray
    variance: FloatArray
    leverage: FloatArray

    @property
    def is_reliable(self) -> Any:
        """For which rows the rest determines the predictor at least as well as the row itself does."""
        return self.leverage <= RELIABLE


def leave_one_out(loss: Any, targets: FloatArray, weights: FloatArray, sites: RowSites) -> LeftOut:
    """Remove every row from the posterior of its own predictor.

    Parameters
    ----------
    loss, targets, weights
        The rows.
    sites
        Their sites; ``sites.mean`` and ``sites.variance`` hold the predictors under the posterior.
    """
    with np.errstate(all="ignore"):
        if sites.shift.ndim > 1:
            return _of_several(weights, sites)
        t, r, m, v = sites.precision, sites.shift, sites.mean, sites.variance
        left = 1.0 - t * v
        variance = np.where(left > 1e-10, v / left, np.nan)
        mean = m + variance * (t * m - r) + sites.offset
        repeated = np.flatnonzero(weights > 1.0)
        if repeated.size:
            chosen = mean[repeated], variance[repeated]
            again = tilts(loss, targets[repeated], *chosen, weights[repeated] - 1.0)
            mean[repeated] += again.shift * np.sqrt(chosen[1])
            variance[repeated] *= again.ratio
        return LeftOut(mean, variance, np.where(v > 0.0, 1.0 - v / variance, 0.0))


def _of_several(weights: FloatArray, sites: RowSites) -> LeftOut:
    """Remove a site, or the share of it that is one of several equal rows."""
    share = (1.0 / np.maximum(weights, 1.0))[:, None, None]
    t, v, k = share * sites.precision, sites.variance, sites.shift.shape[1]
    left = np.eye(k) - t @ v
    # Eigenvalues of T V are those of a symmetric matrix, real.
    leverage = np.max(np.linalg.eigvals(t @ v).real, axis=1)
    proper = leverage < 1.0 - 1e-10
    variance = v @ np.linalg.inv(np.where(proper[:, None, None], left, np.eye(k)))
    variance = np.where(proper[:, None, None], 0.5 * (variance + variance.transpose(0, 2, 1)), np.nan)
    slope = np.einsum("bij,bj->bi", t, sites.mean) - share[:, :, 0] * sites.shift
    return LeftOut(sites.mean + np.einsum("bij,bj->bi", variance, slope) + sites.offset, variance, leverage)
