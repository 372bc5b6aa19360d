r"""Errors that hold where the model does not: the sandwich of the rows' own scatter between posterior covariances.

Where losses are no true densities, as the pinball loss of a quantile, or rows are not independent, the posterior's
covariance S says little of how far estimates are from what they estimate. What the rows show themselves does:

.. math:: S \Big( \sum_c g_c g_c^\top \Big) S, \qquad g_c = \sum_{i \in c} s_i x_i,

over rows or clusters of rows. EP knows by how much every row moves the posterior mean, :math:`s_i\, S x_i`, from its
cavity: with T, R and v the site and the variance of its predictor under the posterior,

.. math:: s = \frac{R - T m}{1 - T v} = \frac{m - m_c}{v}.

For the squared loss this is the jackknife of least squares (HC3 of MacKinnon and White, Journal of Econometrics 29,
1985). A cluster is left out as a whole, with the sites of all its rows (CR3).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.ep.blocks import RowSites
from cavity.ep.leave_one_out import removed


def influences(weights: FloatArray, sites: RowSites) -> FloatArray:
    """By how much every row, one of its weight, moves the posterior mean along S x; ``(rows,)`` or ``(rows, K)``.

    Parameters
    ----------
    weights, sites
        Of the rows; ``sites.mean`` and ``sites.variance`` hold the predictors under the posterior.
    """
    with np.errstate(all="ignore"):
        if sites.shift.ndim > 1:
            found = -np.linalg.solve(sites.variance, removed(weights, sites)[0][..., None])[..., 0]
        else:
            share = 1.0 / np.maximum(weights, 1.0)
            left = np.maximum(1.0 - share * sites.precision * sites.variance, 1e-10)
            found = share * (sites.shift - sites.precision * sites.mean) / left
    return np.asarray(np.where(np.isfinite(found), found, 0.0))


def scatter(rows: FloatArray, influence: FloatArray, weights: FloatArray) -> FloatArray:
    r"""Sum of the outer products :math:`g_i g_i^\top` over rows, ``(dim, dim)``.

    Parameters
    ----------
    rows
        Rows.
    influence, weights
        Of the rows, from `influences`; a row of weight w counts as w rows.
    """
    s = (influence if influence.ndim > 1 else influence[:, None]) * np.sqrt(weights)[:, None]
    # Coefficients of one predictor after the other, as `JointPosterior` has them.
    each = np.hstack([rows * s[:, [k]] for k in range(s.shape[1])])
    return np.asarray(each.T @ each)


def scatter_of_clusters(
    rows: FloatArray, sites: RowSites, shares: FloatArray, clusters: Any, covariance: FloatArray
) -> FloatArray:
    r"""Sum of the outer products over clusters, each left out as a whole, ``(dim, dim)``.

    Parameters
    ----------
    rows, sites
        Rows, and the sites that they have a share of.
    shares
        Shares of the rows in their sites: equal rows of several clusters have one site.
    clusters
        Whole number of the cluster of every row, from zero.
    covariance
        Posterior covariance S.
    """
    (n, d), single = rows.shape, sites.shift.ndim == 1
    precision = shares[:, None, None] * (sites.precision[:, None, None] if single else sites.precision)
    mean, shift = (part[:, None] if single else part for part in (sites.mean, sites.shift))
    slope = shares[:, None] * shift - np.einsum("nkl,nl->nk", precision, mean)
    order = np.argsort(clusters, kind="stable")
    starts = np.append(np.flatnonzero(np.diff(clusters[order], prepend=-1)), n)
    total, k, unit = np.zeros_like(covariance), mean.shape[1], np.eye(len(covariance))
    for members in (order[a:b] for a, b in pairwise(starts)):
        X, t, r = rows[members], precision[members], slope[members]
        score = (r.T @ X).ravel()
        # The posterior without the cluster has the precision P - X'TX: of rank one or more per row.
        if single and members.size < d:
            beside = t[:, 0] * (X @ covariance @ X.T)
            moved = X.T @ np.linalg.solve(np.eye(members.size) - beside, r[:, 0])
        else:
            own = np.einsum("nkl,na,nb->kalb", t, X, X, optimize=True).reshape(k * d, k * d)
            moved = np.linalg.solve(unit - own @ covariance, score)
        total += np.outer(moved, moved)
    count = starts.size - 1
    return total * (1.0 - 1.0 / count)
