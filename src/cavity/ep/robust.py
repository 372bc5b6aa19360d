r"""Errors that hold where the model does not: the sandwich of the rows' own scatter between posterior covariances.

Where losses are no true densities, as the pinball loss of a quantile, or rows are not independent, the posterior's
covariance S says little of how far estimates are from what they estimate. What the rows show themselves does:

.. math:: S \Big( \sum_c g_c g_c^\top \Big) S, \qquad g_c = \sum_{i \in c} s_i x_i,

over rows or clusters of rows. EP knows by how much every row moves the posterior mean, :math:`s_i\, S x_i`, from its
cavity: with T, R and v the site and the variance of its predictor under the posterior,

.. math:: s = \frac{R - T m}{1 - T v} = \frac{m - m_c}{v}.

For the squared loss this is the jackknife of least squares (HC3 of MacKinnon and White, Journal of Econometrics 29,
1985). Clusters have the factor C / (C - 1) for their number C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

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


def scatter(rows: Any, influence: FloatArray, weights: FloatArray, clusters: Any = None) -> FloatArray:
    r"""Sum of the outer products :math:`g_c g_c^\top` over rows or clusters, ``(dim, dim)``.

    Parameters
    ----------
    rows
        Rows, an array or CSR.
    influence, weights
        Of the rows, from `influences`; a row of weight w counts as w rows.
    clusters
        Whole number of the cluster of every row, from zero; None where every row is one.
    """
    s = influence if influence.ndim > 1 else influence[:, None]
    if clusters is None:
        # Coefficients of one predictor after the other, as `JointPosterior` has them.
        each = _products(rows, s * np.sqrt(weights)[:, None])
        return np.asarray(each.T @ each)
    count = int(np.max(clusters)) + 1
    members = sparse.csr_array((np.ones(len(s)), (clusters, np.arange(len(s)))), shape=(count, len(s)))
    sums = [members @ _products(rows, (s * weights[:, None])[:, [k]]) for k in range(s.shape[1])]
    each = np.hstack([part.toarray() if sparse.issparse(part) else part for part in sums])
    return np.asarray(each.T @ each) * (count / max(count - 1.0, 1.0))


def _products(rows: Any, s: FloatArray) -> FloatArray:
    """Products of rows with numbers, one block of columns per predictor."""
    if sparse.issparse(rows):
        rows = rows.toarray()
    return np.hstack([rows * s[:, [k]] for k in range(s.shape[1])])
