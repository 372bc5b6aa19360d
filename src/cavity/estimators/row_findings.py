"""What the rows of a fit say beside the posterior: themselves left out, their scatter, the shapes of marginals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cavity._checks import shown
from cavity._types import FloatArray, IndexArray
from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.leave_one_out import LeftOut, leave_one_out
from cavity.ep.online import posterior_of
from cavity.ep.posteriors import DenseNatural
from cavity.ep.result import Result
from cavity.ep.robust import influences, scatter, scatter_of_clusters
from cavity.ep.skewness import Shapes, marginal_shapes
from cavity.ep.wide import RowsNatural, RowsPosterior
from cavity.estimators.runs import InMemory, kernel_of
from cavity.factors.rows import Rows
from cavity.gaussians.affine import Change
from cavity.gaussians.dense import DenseGaussian
from cavity.losses import offers

# Rows that are refitted at once, each with the iterations of a fit of its own.
_REFIT = Options(max_iter=100, tol=1e-3, keep_state=False)


class Densities(NamedTuple):
    """Log densities of rows without themselves, in the order of the rows given, and their weights.

    ``unreliable`` are rows whose density a refit would change; NaN stands for rows of weight zero.
    """

    each: FloatArray
    weights: FloatArray
    unreliable: IndexArray

    @property
    def total(self) -> float:
        """Sum over the rows."""
        return float(np.nansum(self.weights * self.each))

    @property
    def std(self) -> float:
        """Standard error of the sum, from the scatter of the rows."""
        return error_of_sum(self.each, self.weights)


@dataclass(frozen=True, eq=False)
class RowFindings:
    """What rows say beside the posterior.

    Parameters
    ----------
    densities
        Log densities of the rows without themselves.
    factor
        Factor of the log odds by which predictions without the rows are calibrated.
    scatter
        Sums of outer products of the rows' or clusters' scores, one matrix per posterior; None without robust errors.
    shapes
        Skewness and widening of the coefficients that users see, per posterior; None where these are not known.
    """

    densities: Densities
    factor: float = 1.0
    scatter: tuple[FloatArray, ...] | None = None
    shapes: tuple[Shapes, ...] | None = None


def error_of_sum(values: FloatArray, weights: FloatArray) -> float:
    """Estimate the standard error of a weighted sum over rows that are a sample."""
    fine = np.isfinite(values) & (weights > 0.0)
    v, w = values[fine], weights[fine]
    total = float(np.sum(w))
    mean = float(w @ v) / total
    return float(np.sqrt(total * (w @ np.square(v - mean)) / max(total - 1.0, 1.0)))


def left_out(rows: Rows, outcomes: Sequence[Result], refit: bool) -> list[LeftOut]:
    """Leave every distinct row out of every posterior; with ``refit``, by fits where cavities are not relied on."""
    found = []
    for k, outcome in enumerate(outcomes):
        loss: Any = outcome.loss
        left = leave_one_out(loss, rows.targets[k], rows.weights, outcome.row_sites)
        if offers(loss).squared is not None:  # exact however far a row moves
            left = left._replace(moved=np.zeros_like(left.moved))
        if refit and isinstance(outcome.sites, DenseNatural | RowsNatural):
            for row in np.flatnonzero(~left.is_reliable):
                mean, variance = _without(rows, outcome, k, int(row))
                left.mean[row], left.variance[row], left.moved[row] = mean, variance, 0.0
        found.append(left)
    return found


def _without(rows: Rows, outcome: Result, predictor: int, row: int) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the predictor of a row under a fit without it, with the hyperparameters of the whole fit."""
    weights = rows.weights.copy()
    weights[row] -= 1.0
    kept = np.flatnonzero(weights > 0.0)
    offset = None if rows.offset is None else rows.offset[kept]
    order = np.arange(rows.X.shape[0])[rows.order][kept] if isinstance(rows.order, range) else rows.order[kept]
    others = replace(rows, order=order, targets=rows.targets[:, kept], weights=weights[kept], offset=offset)
    prior: Any = outcome.prior
    in_rows = isinstance(outcome.sites, RowsNatural)
    work: Any = RowsPosterior(kernel_of(others), prior) if in_rows else posterior_of(others, prior)
    found = run(outcome.loss, others, work, _REFIT, predictor=predictor)
    x, q = rows.block(slice(row, row + 1))[0], found.posterior
    known = 0.0 if rows.offset is None else rows.offset[row]
    count = q.dim // x.size
    if in_rows and count > 1:
        mean, variance = (one[0] for one in q.predictors(x[None]))
        return mean + known * np.eye(1, count)[0], variance
    if count == 1:
        return x @ q.mean + known, q.predictor_variance(x[None])[0]
    roots = np.einsum("d,kdj->kj", x, q.root.reshape(count, x.size, -1))
    return q.mean.reshape(count, -1) @ x + known * np.eye(1, count)[0], roots @ roots.T


def in_given_order(rows: InMemory, values: FloatArray, kept: Any) -> FloatArray:
    """Bring numbers of distinct rows into the order of the rows given; NaN for those of weight zero."""
    each = np.append(values, np.nan)[rows.rows.place]
    if kept is None:
        return np.asarray(each)
    found = np.full(kept.size, np.nan)
    found[kept] = each
    return found


def rows_kept(sample_weight: Any, class_weight: Any, y: Any) -> Any:
    """Which rows have a positive weight; None where all have."""
    kept = np.ones(np.asarray(y).shape[0], dtype=bool)
    if sample_weight is not None:
        kept &= np.broadcast_to(np.asarray(sample_weight, dtype=np.float64) > 0.0, kept.shape)
    if isinstance(class_weight, Mapping):
        kept &= ~np.isin(np.asarray(y), [label for label, weight in class_weight.items() if not weight > 0.0])
    return None if np.all(kept) else kept


def scatters(rows: InMemory, outcomes: Sequence[Result], clusters: Any, kept: Any) -> tuple[FloatArray, ...]:
    """Sum up outer products of scores, over rows or clusters, per posterior."""
    found, distinct = [], rows.rows
    A = distinct.block(slice(0, distinct.shape[0]))
    place: Any = distinct.place
    weights = np.ones(place.size) if rows.data.weights is None else rows.data.weights
    for outcome in outcomes:
        if clusters is None:
            found.append(scatter(A, influences(distinct.weights, outcome.row_sites), distinct.weights))
            continue
        members = np.unique(clusters if kept is None else clusters[kept], return_inverse=True)[1]
        shares = weights / distinct.weights[place]
        sites, covariance = outcome.row_sites.part(place), outcome.posterior.covariance
        found.append(scatter_of_clusters(A[place], sites, shares, members, covariance))
    return tuple(found)


def checked_clusters(clusters: Any, rows: int) -> Any:
    """Check one label per row, of two clusters at least."""
    labels = np.asarray(clusters)
    if labels.shape != (rows,):
        raise ValueError(f"clusters must have one label for each of {rows} rows, got shape {labels.shape}")
    codes = np.unique(labels, return_inverse=True)[1]
    if int(np.max(codes)) < 1:
        raise ValueError(f"clusters must name at least two clusters, got {shown(labels[0])} only")
    return codes


def shapes_of(rows: Rows, outcomes: Sequence[Result], change: Change) -> tuple[Shapes, ...] | None:
    """Shapes of the marginals of the coefficients that users see; None where EP has several predictors or no matrix."""
    if not all(isinstance(o.sites, DenseNatural) and not hasattr(o.loss, "predictors") for o in outcomes):
        return None
    if offers(outcomes[0].loss).squared is not None:
        return None
    combinations = None if change.is_identity else change.coefficients(np.eye(outcomes[0].posterior.dim))
    return tuple(
        marginal_shapes(o.loss, rows, rows.targets[k], o.row_sites, o.posterior, combinations)
        for k, o in enumerate(outcomes)
    )


def sandwich(posterior: Any, scatter: FloatArray) -> DenseGaussian:
    """Posterior with the covariance that the scatter of the rows gives, of the coefficients that are kept."""
    values, vectors = np.linalg.eigh(scatter)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return DenseGaussian(posterior.mean, posterior.root @ (posterior.root.T @ root), posterior.log_mass)
