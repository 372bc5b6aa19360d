r"""Leave-one-out: what EP says of every row without that row, from its cavity and without a refit.

The cavity of a row is the posterior without the row's site. Where a row has weight w, it stands for w equal rows, and
one of them is left out: the predictor then has the distribution

.. math:: q_{-1}(z) \propto \frac{q(z)}{\tilde t(z)}\, t(z)^{w - 1},

a Gaussian for w of at most one, and beyond replaced by the Gaussian of its mean and variance. A refit would also change
the sites of the other rows, which is of second order in what the row weighs, and nothing for the squared loss. A row
that moves its own predictor far moves those of others too: `LeftOut.moved` says by how much.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity._types import FloatArray
from cavity.ep.blocks import RowSites
from cavity.moments import tilts

# Standard deviations by which a row may move its own predictor for what is said without it to be relied on. Among 1,700
# rows of ten data sets, log densities of those that move theirs by less are within 0.06 of refits, of others 0.46.
RELIABLE = 1.0


class LeftOut(NamedTuple):
    """Predictors of rows under the posterior without one of these rows.

    Parameters
    ----------
    mean, variance
        Means and variances, known offsets included; means of shape ``(rows, K)`` and covariances ``(rows, K, K)`` where
        the loss has K predictors. NaN where what is left is improper.
    moved
        How far leaving the row out moves the predictor, in its posterior standard deviations.
    """

    mean: FloatArray
    variance: FloatArray
    moved: FloatArray

    @property
    def is_reliable(self) -> NDArray[np.bool_]:
        """For which rows a refit would say the same."""
        return self.moved <= RELIABLE


def leave_one_out(loss: Any, targets: FloatArray, weights: FloatArray, sites: RowSites) -> LeftOut:
    """Leave every row out of the posterior of its own predictor.

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
        cavity = sites.cavities(weights, 1.0, 1.0)
        mean, variance = cavity.mean + sites.offset, np.where(cavity.improper, np.nan, cavity.variance)
        repeated = np.flatnonzero(weights > 1.0)
        if repeated.size:
            m, v = mean[repeated], variance[repeated]
            others = tilts(loss, targets[repeated], m, v, weights[repeated] - 1.0)
            mean[repeated], variance[repeated] = m + others.shift * np.sqrt(v), v * others.ratio
        moved = np.abs(mean - sites.offset - sites.mean) / np.sqrt(sites.variance)
        return LeftOut(mean, variance, np.where(sites.variance > 0.0, moved, 0.0))


def _of_several(weights: FloatArray, sites: RowSites) -> LeftOut:
    """Remove a site, or the share of it that is one of several equal rows."""
    move, variance = removed(weights, sites)
    is_empty = np.trace(sites.variance, axis1=1, axis2=2) == 0.0  # a row of zeros moves nothing
    full = np.where(is_empty[:, None, None], np.eye(move.shape[1]), sites.variance)
    inner = np.linalg.solve(full, move[..., None])[..., 0]
    moved = np.sqrt(np.maximum(np.einsum("bi,bi->b", move, inner), 0.0))
    return LeftOut(sites.mean + move + sites.offset, variance, moved)


def removed(weights: FloatArray, sites: RowSites) -> tuple[FloatArray, FloatArray]:
    """Move of the means, and covariances, where one row's share of a site of several predictors is removed."""
    share = (1.0 / np.maximum(weights, 1.0))[:, None, None]
    t, v, unit = share * sites.precision, sites.variance, np.eye(sites.shift.shape[1])
    # Eigenvalues of T V are those of a symmetric matrix, real.
    proper = (np.max(np.linalg.eigvals(t @ v).real, axis=1) < 1.0 - 1e-10)[:, None, None]
    variance = v @ np.linalg.inv(np.where(proper, unit - t @ v, unit))
    variance = np.where(proper, 0.5 * (variance + variance.transpose(0, 2, 1)), np.nan)
    slope = np.einsum("bij,bj->bi", t, sites.mean) - share[:, :, 0] * sites.shift
    return np.einsum("bij,bj->bi", variance, slope), variance
