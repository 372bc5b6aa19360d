"""Sites that put the posterior at a mode: the second-order expansion of every batch there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.factors import LinearBatches
from cavity.gaussian import FactorialGaussian
from cavity.mode._design import design_of
from cavity.mode._find import Mode, row_weights
from cavity.mode._tables import Table, table_of

FloatArray = NDArray[np.float64]

# Share of the prior's precision that every cavity keeps where sites of negative precision are allowed.
_KEPT = 0.5
# A site this many times as precise as all the rest of a cavity would leave nothing of it but rounding.
_MOST = 1e12
# A mean so near to the mode, in standard deviations, is at the mode.
_THERE = 1e-9


class BatchSites(NamedTuple):
    """One site a batch, in natural form.

    Shifts and precisions are arrays ``(batches, dim)`` for dense rows, zero where a batch does not touch a column. For
    CSR rows they are CSR arrays of that shape and one pattern: the columns that a batch touches, in ascending order.
    """

    shifts: Any
    precisions: Any
    log_scales: FloatArray


def sites_at(factors: LinearBatches, prior: FactorialGaussian, mode: Mode, beta: float = 1.0) -> BatchSites:
    r"""Expand the costs of every batch to second order at the mode, along every axis.

    .. math:: p = \beta \sum_k w_k c_k x_k^2, \qquad r = p\,\theta^* - \beta \sum_k w_k g_k x_k, \qquad
        s = -\beta u(\theta^*) - r^\top \theta^* + \tfrac12 p^\top \theta^{*2}

    with slopes g and curvatures c of the losses at the mode, smoothed where the mode is. Prior times all sites has its
    mean at the mode: what is left of the gradient there is shared out among the batches that touch a column, in
    proportion to their squared entries. Where negative precisions would leave a cavity less than half of the prior's
    precision, those of that column are raised to zero. :math:`O(nd)` dense, :math:`O(\mathrm{nnz})` sparse.
    """
    with np.errstate(all="ignore"):
        z = design_of(factors.X).predict(mode.point)
        costs = row_weights(factors, beta) * factors.loss.value(factors.targets, z)
    known = np.isfinite(mode.slopes) & np.isfinite(mode.curvatures) & np.isfinite(costs)
    weights = np.where(known, row_weights(factors, beta), 0.0)
    slopes, curvatures = np.where(known, mode.slopes, 0.0), np.where(known, mode.curvatures, 0.0)
    table = table_of(factors)
    gradients, precisions = table.sums(weights * slopes), table.sums(weights * curvatures, squared=True)
    if np.any(curvatures < 0.0):
        precisions = _kept(table, precisions, prior)
    precisions = _limited(table, precisions, prior)
    left = table.total(gradients) + prior.precision * (mode.point - prior.mean)
    total = prior.precision + table.total(precisions)
    if np.any(np.abs(left) > _THERE * np.sqrt(total)):
        squares = table.sums(weights, squared=True)
        gradients = gradients - squares * table.along(left / np.maximum(table.total(squares), np.finfo(float).tiny))
    at = table.along(mode.point)
    shifts = precisions * at - gradients
    heights = np.add.reduceat(np.where(known, costs, 0.0), factors.cuts[:-1])
    log_scales = -heights - table.by_batch((shifts - 0.5 * precisions * at) * at)
    return BatchSites(table.filled(shifts), table.filled(precisions), log_scales)


def gaussians(factors: LinearBatches, sites: BatchSites) -> list[FactorialGaussian]:
    """Give every site in the coordinates of its factor, as the plain engine keeps it."""
    values = []
    for k, factor in enumerate(factors):
        own = slice(None) if factor.coordinates is None else factor.coordinates
        if sparse.issparse(sites.shifts):
            own = slice(sites.shifts.indptr[k], sites.shifts.indptr[k + 1])
            shift, precision = sites.shifts.data[own], sites.precisions.data[own]
        else:
            shift, precision = sites.shifts[k, own], sites.precisions[k, own]
        values.append(FactorialGaussian(sites.log_scales[k], shift, precision))
    return values


def _kept(table: Table, precisions: FloatArray, prior: FactorialGaussian) -> FloatArray:
    """Raise negative precisions to zero in the columns where some cavity would lose too much by them."""
    least = prior.precision + table.total(precisions) - table.largest(precisions)
    spent = table.along(least < _KEPT * prior.precision)
    return np.where(spent & (precisions < 0.0), 0.0, precisions)


def _limited(table: Table, precisions: FloatArray, prior: FactorialGaussian) -> FloatArray:
    """Cut down precisions that would hide those of all other factors from their cavity."""
    most = table.largest(precisions)
    if not np.any(most > _MOST * prior.precision):
        return precisions
    others = prior.precision + table.total(np.where(precisions < table.along(most), precisions, 0.0))
    result: FloatArray = np.minimum(precisions, table.along(_MOST * others))
    return result
