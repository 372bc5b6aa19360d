"""Sites that put the posterior at a mode: the second-order expansion of every batch there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cavity._types import FloatArray, IndexArray
from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.mode._find import Mode


class BatchSites(NamedTuple):
    """One site per batch, in natural form.

    Shifts and precisions are one number for every batch and column, batch by batch from ``starts``: all columns for
    dense rows, zero where a batch does not touch one; the columns that a batch touches, in ascending order, for CSR.
    """

    shifts: FloatArray
    precisions: FloatArray
    log_scales: FloatArray
    starts: IndexArray


class _Cells:
    """The batches and columns for which there are numbers, and sums over rows in that form."""

    def __init__(self, factors: LinearBatches) -> None:
        self._X, self._cuts, (self.batches, self.dim) = factors.X, factors.cuts, (len(factors), factors.dim)
        self._is_sparse = sparse.issparse(self._X)
        if not self._is_sparse:
            self.batch, self.column = (grid.ravel() for grid in np.indices((self.batches, self.dim)))
            return
        batch_of = np.repeat(np.arange(self.batches), np.diff(self._cuts))
        self._row = np.repeat(np.arange(batch_of.size), np.diff(self._X.indptr))
        is_there = self._X.data != 0.0  # what a factor calls its coordinates
        if factors.weights is not None:
            is_there &= factors.weights[self._row] > 0.0
        self._row, self._entries = self._row[is_there], self._X.data[is_there].astype(np.float64)
        keys = batch_of[self._row] * self.dim + self._X.indices[is_there]
        cells, self._cell = np.unique(keys, return_inverse=True)
        self.batch, self.column = np.divmod(cells, self.dim)

    def sums(self, values: FloatArray, power: int) -> FloatArray:
        """Sum the rows of every batch, each times its value, their entries raised to a power."""
        if self._is_sparse:
            return self._counted(self._cell, values[self._row] * self._entries**power, self.batch.size)
        parts = zip(self._cuts[:-1], self._cuts[1:], strict=True)
        return np.concatenate([values[a:b] @ self._X[a:b].astype(np.float64) ** power for a, b in parts])

    def by_column(self, cells: FloatArray) -> FloatArray:
        return self._counted(self.column, cells, self.dim)

    def by_batch(self, cells: FloatArray) -> FloatArray:
        return self._counted(self.batch, cells, self.batches)

    @staticmethod
    def _counted(place: Any, values: FloatArray, size: int) -> FloatArray:
        return np.bincount(place, weights=values, minlength=size).astype(np.float64)


def sites_at(factors: LinearBatches, prior: FactorialGaussian, mode: Mode, beta: float = 1.0) -> BatchSites:
    r"""Expand the costs of every batch to second order at the mode, along every axis.

    .. math:: p = \beta \sum_k w_k c_k x_k^2, \qquad r = p\,\theta^* - \beta \sum_k w_k g_k x_k, \qquad
        s = -\beta u(\theta^*) - r^\top \theta^* + \tfrac12 p^\top \theta^{*2}

    with slopes g and curvatures c of the losses at the mode, smoothed where the mode is; precisions below zero are
    raised to zero. Prior times all sites has its mean at the mode: what is left of the gradient there is divided among
    the batches that touch a column, in proportion to their squared entries. :math:`O(nd)` dense,
    :math:`O(\mathrm{nnz} \log \mathrm{nnz})` sparse.
    """
    weights = beta * (np.ones(factors.targets.size) if factors.weights is None else factors.weights)
    with np.errstate(all="ignore"):
        costs = weights * factors.losses(mode.point)
    is_known = np.isfinite(mode.slopes) & np.isfinite(mode.curvatures) & np.isfinite(costs)
    weights, slopes, curvatures, costs = (
        np.where(is_known, part, 0.0) for part in (weights, mode.slopes, mode.curvatures, costs)
    )
    cells = _Cells(factors)
    precisions = _limited(cells, np.maximum(cells.sums(weights * curvatures, 2), 0.0), prior)
    gradients, squares = cells.sums(weights * slopes, 1), cells.sums(weights, 2)
    left = cells.by_column(gradients) + prior.precision * (mode.point - prior.mean)
    share = left / np.maximum(cells.by_column(squares), np.finfo(float).tiny)
    at = mode.point[cells.column]
    shifts = precisions * at - (gradients - squares * share[cells.column])
    log_scales = -np.add.reduceat(costs, factors.cuts[:-1]) - cells.by_batch((shifts - 0.5 * precisions * at) * at)
    return BatchSites(shifts, precisions, log_scales, np.searchsorted(cells.batch, np.arange(cells.batches + 1)))


def gaussians(factors: LinearBatches, sites: BatchSites) -> list[FactorialGaussian]:
    """Give every site in the coordinates of its factor, as the backend in plain Python keeps it."""
    values = []
    for k, factor in enumerate(factors):
        cells = np.arange(sites.starts[k], sites.starts[k + 1])
        if factor.coordinates is not None and cells.size == factors.dim:
            cells = cells[factor.coordinates]
        values.append(FactorialGaussian(sites.log_scales[k], sites.shifts[cells], sites.precisions[cells]))
    return values


def _limited(cells: _Cells, precisions: FloatArray, prior: FactorialGaussian) -> FloatArray:
    """Cut down precisions that would hide those of all other factors from their cavity."""
    most = np.zeros(cells.dim)
    np.maximum.at(most, cells.column, precisions)
    others = prior.precision + cells.by_column(np.where(precisions < most[cells.column], precisions, 0.0))
    # Above this ratio only rounding of the cavity is left.
    return np.asarray(np.minimum(precisions, (1e12 * others)[cells.column]))
