r"""The mode of a linear model with a Gaussian prior, and sites that put a posterior there.

A smooth loss is minimised as it is. A loss with kinks has no useful curvature. Its mean under noise of width h,
:math:`E\,\ell(z + h\epsilon)` with :math:`\epsilon \sim N(0, 1)`, has; and with h the posterior's own width of z its
slope and curvature are those that a Gaussian posterior sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy  # loads its optimize when it is first used
from scipy import sparse
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.special import ndtr

from cavity._types import FloatArray, IndexArray
from cavity.factors import LinearBatches
from cavity.factors.rows import dense_blocks, row_of_entries, squared
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers
from cavity.quadrature import hermite_polynomials

__all__ = ["BatchSites", "Mode", "find_mode", "gaussians", "sites_at"]

# Value, slope and curvature of every row's loss, as it is or smoothed, at every row's predictor.
Curve: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]]

# Columns up to which the Hessian is factorised (8 MB); above, its diagonal is, and conjugate gradients do the rest.
_WIDEST_HESSIAN = 1000
_ROWS_AT_ONCE = 512  # summed: a block and its products stay within the caches
# Steps of the trust region in the same coordinates, before they are chosen again.
_STEPS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """Where prior times factors is greatest, as well as it was found.

    Attributes
    ----------
    point
        The place, of shape ``(dim,)``.
    cost
        Inverse temperature times all costs, and half the squared distance to the prior mean in standard deviations.
    evaluations
        How often all rows were evaluated.
    converged
        Whether the gradient left is less than the tolerance, in standard deviations of the posterior.
    slopes, curvatures
        Those of every row's loss at the point, without weight or temperature, after smoothing where it was smoothed.
    widths
        Width of the noise by which every row's loss was smoothed; zero where it was taken as it is.
    """

    point: FloatArray
    cost: float
    evaluations: int
    converged: bool
    slopes: FloatArray
    curvatures: FloatArray
    widths: FloatArray


def find_mode(factors: LinearBatches, prior: FactorialGaussian, beta: float = 1.0, *, tol: float = 1e-6) -> Mode:
    r"""Minimise :math:`\beta \sum_k w_k\, \ell(y_k, x_k^\top\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`.

    A smooth loss is minimised as it is. A loss with kinks has no curvature to go by, and is smoothed:
    :math:`E\,\ell(y, z + h \epsilon)` with :math:`\epsilon \sim N(0, 1)` is minimised for widths h of the predictors z,
    those of the prior first, then those of the posterior that was found, until both agree. There the smoothed slopes
    and curvatures are those that a Gaussian posterior sees, and the point is nearer to the posterior mean than the
    minimum itself is. Numerical trouble is never raised: then ``converged`` is false.

    Parameters
    ----------
    factors
        The data as `LinearBatches`; dense or CSR. Up to 1000 columns the Hessian is factorised.
    prior
        A proper `FactorialGaussian`.
    beta
        Inverse temperature.
    tol
        Largest Newton decrement at the end: the distance left, in standard deviations of the posterior.

    Returns
    -------
    Mode
        It does not cost more than the prior mean.

    Examples
    --------
    >>> from cavity.losses import Squared
    >>> factors = LinearBatches(Squared(), [[1.0], [1.0]], [1.0, 2.0])
    >>> mode = find_mode(factors, FactorialGaussian.from_moments(mean=[0.0], variance=1.0))
    >>> mode.point.round(6), mode.converged
    (array([1.]), True)
    """
    if not prior.is_proper or prior.dim != factors.dim:
        raise ValueError(
            f"prior must be proper and have the {factors.dim} coordinates of the factors, got {prior.dim} coordinates; "
            "build it with FactorialGaussian.from_moments(mean, variance)"
        )
    if not 0.0 < beta < np.inf:
        raise ValueError(f"beta must be positive and finite, got {beta}")
    problem, loss, targets = Problem(factors, prior, beta), factors.loss, factors.targets
    with np.errstate(all="ignore"):
        if offers(loss).smooth:
            mode, _ = problem.descend(partial(loss.derivatives, targets), prior.mean, tol)
            if mode.converged and np.any(mode.curvatures > 0.0):
                return mode
        # The distance to the fixed point of the widths halves per stage, in logarithms: 12 stages come from 1e300 to a
        # ratio of 1.2. A stage before the last ends at a Newton decrement of 0.1 standard deviations of the posterior.
        point, evaluations, metric = prior.mean, 2, None
        widths = problem.metric(np.zeros(targets.size)).widths(problem.X)
        for _ in range(12):
            mode, metric = problem.descend(smoothed(loss, targets, widths), point, 0.1, metric)
            point, evaluations = mode.point, evaluations + mode.evaluations
            before, widths = widths, metric.widths(problem.X)
            if np.mean(np.abs(np.log(widths / before))) <= np.log(1.2):
                break
        curve = smoothed(loss, targets, widths)
        mode, _ = problem.descend(curve, point, tol)
        evaluations += mode.evaluations
        cost, ceiling = problem.cost_at(mode.point), problem.cost_at(prior.mean)
        if cost <= ceiling:
            return replace(mode, cost=cost, evaluations=evaluations, widths=widths)
        start = problem.state_at(curve, prior.mean)
        return Mode(start.point, ceiling, evaluations, False, start.slopes, start.curvatures, widths)


def smoothed(loss: Loss, targets: FloatArray, widths: FloatArray) -> Curve:
    """Take the mean of every row's loss under noise: in closed form where it has pieces that meet, else by quadrature.

    Where the pieces do not meet up to rounding, or have ends that are not finite, quadrature takes any loss.
    """
    offered = offers(loss).pieces
    if offered is not None:
        pieces = [[np.broadcast_to(np.asarray(a, np.float64), targets.shape) for a in p] for p in offered(targets)]
        ends, slopes, offsets = (np.array(part) for part in zip(*pieces, strict=True))
        places, jumps = ends[:-1], np.diff(slopes, axis=0)
        gaps = np.diff(offsets, axis=0) + jumps * places
        if np.all(np.abs(gaps) <= 1e-9 * (1.0 + np.max(np.abs(offsets)))):
            return partial(_smoothed_pieces, offsets[0], slopes[0], places, jumps, widths)
    return partial(_smoothed_values, loss, targets, widths)


def _smoothed_pieces(
    offset: FloatArray, slope: FloatArray, places: FloatArray, jumps: FloatArray, widths: FloatArray, z: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Mean under noise of a line and, at every kink t, a change D of slope; kinks have one row each.

    .. math:: E\,\ell(z + h\epsilon) = a + b z + \sum_i D_i \left[(z - t_i)\,\Phi(u_i) + h\,\varphi(u_i)\right],
        \qquad u_i = (z - t_i) / h
    """
    away = z - places
    u = away / widths
    below, density = ndtr(u), np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi)
    value = offset + slope * z + np.sum(jumps * (away * below + widths * density), axis=0)
    return value, slope + np.sum(jumps * below, axis=0), np.sum(jumps * density, axis=0) / widths


def _smoothed_values(
    loss: Loss, targets: FloatArray, widths: FloatArray, z: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Mean under noise of any loss, from its values alone: Gauss-Hermite quadrature and Stein's identity.

    .. math:: \frac{d}{dz} E\,\ell(z + h\epsilon) = \frac{E\,\ell\,\epsilon}{h}, \qquad
        \frac{d^2}{dz^2} E\,\ell(z + h\epsilon) = \frac{E\,\ell\,(\epsilon^2 - 1)}{h^2}

    The loss at the centre is taken off at every node, which loses fewer digits.
    """
    nodes, weights = hermite_polynomials(32)  # each node costs one loss per row
    center = np.asarray(loss.value(targets, z), dtype=np.float64)
    sums = np.zeros((3, z.size))
    for node, polynomials in zip(nodes, weights.T, strict=True):
        sums += polynomials[:, None] * (loss.value(targets, z + node * widths) - center)
    return center + sums[0], sums[1] / widths, sums[2] / widths**2


class State(NamedTuple):
    """A point, its cost, and slopes and curvatures of all rows there."""

    point: FloatArray
    cost: float
    slopes: FloatArray
    curvatures: FloatArray


class Metric(NamedTuple):
    r"""Approximate Hessian :math:`D R R^\top D`: its diagonal's root :math:`D`, and lower triangle R or, if None, 1.

    In the coordinates :math:`u = R^\top D \theta` the Hessian is near the identity, and the length of the gradient is
    the Newton decrement :math:`(g^\top H^{-1} g)^{1/2}`: the distance to the minimum in standard deviations of the
    posterior, whatever the scales of the columns and of the prior.
    """

    scale: FloatArray
    triangle: FloatArray | None

    def solve(self, right: FloatArray, transposed: bool = False) -> FloatArray:
        """Divide by the triangle."""
        if self.triangle is None:
            return right
        return np.asarray(solve_triangular(self.triangle, right, lower=True, trans=int(transposed), check_finite=False))

    def step(self, u: FloatArray) -> FloatArray:
        r"""Give the change of the coefficients, :math:`D^{-1} R^{-\top} u`."""
        return self.solve(u, transposed=True) / self.scale

    def gradient(self, gradient: FloatArray) -> FloatArray:
        r"""Give the gradient in the new coordinates, :math:`R^{-1} D^{-1} g`."""
        return self.solve(gradient / self.scale)

    def widths(self, X: Any) -> FloatArray:
        r"""Give the standard deviations :math:`(x^\top H^{-1} x)^{1/2}` of predictors, a small one to rows of zeros."""
        if self.triangle is None:
            found = np.sqrt(squared(X) @ self.scale**-2.0)
        else:
            blocks = (self.solve((A / self.scale).T) for _, A in dense_blocks(X, _ROWS_AT_ONCE))
            found = np.concatenate([np.linalg.norm(block, axis=0) for block in blocks])
        largest = float(np.max(found))
        return np.asarray(np.maximum(found, 1e-9 * largest if largest > 0.0 else 1.0))


class Problem:
    r"""The function :math:`\beta \sum_k w_k\, \ell_k(x_k^\top \theta) + \tfrac12 \sum_i p_i (\theta_i - m_i)^2`."""

    def __init__(self, factors: LinearBatches, prior: FactorialGaussian, beta: float) -> None:
        self.X: Any = factors.X.astype(np.float64, copy=False)
        self.loss, self.targets = factors.loss, factors.targets
        self.weights = beta * (np.ones(self.targets.size) if factors.weights is None else factors.weights)
        self.mean, self.precision = prior.mean, prior.precision

    def cost_of(self, point: FloatArray, values: FloatArray) -> float:
        """Sum up; NaN counts as infinite."""
        away = point - self.mean
        total = float(self.weights @ values) + 0.5 * float(self.precision @ (away * away))
        return np.inf if np.isnan(total) else total

    def cost_at(self, point: FloatArray) -> float:
        """Give the cost without smoothing."""
        return self.cost_of(point, self.loss.value(self.targets, self.X @ point))

    def state_at(self, curve: Curve, point: FloatArray) -> State:
        """Evaluate a curve; curvatures that are not finite count as zero."""
        values, slopes, curvatures = curve(self.X @ point)
        bend = np.where(np.isfinite(curvatures), curvatures, 0.0)
        return State(point, self.cost_of(point, values), slopes, bend)

    def gradient(self, state: State) -> FloatArray:
        """Give the gradient at a state."""
        return np.asarray(self.X.T @ (self.weights * state.slopes) + self.precision * (state.point - self.mean))

    def diagonal(self, curvatures: FloatArray) -> FloatArray:
        """Diagonal of the Hessian, curvatures below zero taken for zero."""
        w = self.weights * np.maximum(curvatures, 0.0)
        return np.asarray(self.precision + squared(self.X).T @ w)

    def metric(self, curvatures: FloatArray) -> Metric:
        """Factorise the Hessian, curvatures below zero taken for zero."""
        if self.mean.size > _WIDEST_HESSIAN:
            return Metric(np.sqrt(self.diagonal(curvatures)), None)
        matrix, w = np.diag(self.precision), self.weights * np.maximum(curvatures, 0.0)
        for rows, A in dense_blocks(self.X, _ROWS_AT_ONCE):
            matrix += (A.T * w[rows]) @ A
        scale = np.sqrt(np.diag(matrix))
        scaled = matrix / np.outer(scale, scale)
        try:
            # Added to the unit diagonal: more than rounding takes from it, less than any step notices.
            return Metric(scale, cholesky(scaled + 1e-10 * np.eye(scale.size), lower=True))
        except (LinAlgError, ValueError):  # not finite
            return Metric(scale, None)

    def descend(self, curve: Curve, point: FloatArray, tol: float, metric: Metric | None = None) -> tuple[Mode, Metric]:
        """Go down until the Newton decrement is below ``tol``; the answer never costs more than the start.

        ``metric`` is that of a similar problem, to begin with: a curve that is straight at the start has no Hessian
        there. The metric of the end is returned.
        """
        state, evaluations, radius, is_own = self.state_at(curve, point), 1, np.inf, metric is None
        metric = metric or self.metric(state.curvatures)
        rounds, rounding = 20, 1e-14  # rounding of a sum over many rows, as a share: smaller gains are not measurable
        for round_ in range(rounds + 1):
            if round_ > 0:
                metric, is_own = self.metric(state.curvatures), True
            left = float(np.linalg.norm(metric.gradient(self.gradient(state))))
            enough = max(tol, np.sqrt(rounding * abs(state.cost)))
            converged, radius = is_own and left <= enough, min(max(1.0, left), radius)
            if converged or round_ == rounds or radius < rounding or not np.isfinite(left + state.cost):
                break
            found, asked = self._trust_region(curve, state, metric, radius, 0.3 * enough)
            evaluations += asked
            if found.cost < state.cost:
                state, radius = found, np.inf
            else:  # every step that fails makes the region a quarter as wide
                radius *= 0.25**_STEPS
        none = np.zeros(self.targets.size)
        return Mode(state.point, state.cost, evaluations, converged, state.slopes, state.curvatures, none), metric

    def _trust_region(self, curve: Curve, start: State, metric: Metric, radius: float, tol: float) -> tuple[State, int]:
        """Take some steps by SciPy in the coordinates of a metric, with exact products of the Hessian and a vector."""

        @lru_cache(maxsize=2)  # the present point, and the one that is tried
        def at(key: bytes) -> State:
            return self.state_at(curve, start.point + metric.step(np.frombuffer(key)))

        def cost(u: FloatArray) -> tuple[float, FloatArray]:
            state = at(u.tobytes())
            gradient = metric.gradient(self.gradient(state))
            is_usable = bool(np.all(np.isfinite(gradient)))
            return (state.cost, gradient) if is_usable else (np.inf, np.zeros_like(u))

        def product(u: FloatArray, v: FloatArray) -> FloatArray:
            bend, step = self.weights * at(u.tobytes()).curvatures, metric.step(v)
            return metric.gradient(self.X.T @ (bend * (self.X @ step)) + self.precision * step)

        options = {"gtol": tol, "maxiter": _STEPS, "initial_trust_radius": radius, "max_trust_radius": np.inf}
        origin = np.zeros(start.point.size)
        found = scipy.optimize.minimize(cost, origin, jac=True, hessp=product, method="trust-ncg", options=options)
        return at(found.x.tobytes()), at.cache_info().misses


class BatchSites(NamedTuple):
    """One site per batch, in natural form.

    Shifts and precisions are one number for every batch and column, batch by batch from ``starts``: all columns for
    dense rows, zero where a batch does not touch one; the columns that a batch touches, in ascending order, for CSR.
    """

    shifts: FloatArray
    precisions: FloatArray
    log_scales: FloatArray
    starts: IndexArray


def sites_at(factors: LinearBatches, prior: FactorialGaussian, mode: Mode, beta: float = 1.0) -> BatchSites:
    r"""Expand the costs of every batch to second order at the mode, along every axis.

    .. math:: p = \beta \sum_k w_k c_k x_k^2, \qquad r = p\,\theta^* - \beta \sum_k w_k g_k x_k, \qquad
        s = -\beta u(\theta^*) - r^\top \theta^* + \tfrac12 p^\top \theta^{*2}

    with slopes g and curvatures c of the losses at the mode, smoothed where the mode is; precisions below zero are
    raised to zero. Prior times all sites has its mean at the mode: what is left of the gradient there is divided among
    the batches that touch a column, in proportion to their squared entries. :math:`O(nd)` dense,
    :math:`O(\mathrm{nnz} \log \mathrm{nnz})` sparse.
    """
    X: Any = factors.X
    count, dim, cuts = len(factors), factors.dim, factors.cuts
    weights = beta * (np.ones(factors.targets.size) if factors.weights is None else factors.weights)
    # Numbers are kept for batches and columns that have some, and summed over the rows of a batch.
    if sparse.issparse(X):
        row = row_of_entries(X)
        is_there = (X.data != 0.0) & (weights[row] > 0.0)  # what a factor calls its coordinates
        row, entries = row[is_there], X.data[is_there].astype(np.float64)
        batch_of = np.repeat(np.arange(count), np.diff(cuts))
        keys, place = np.unique(batch_of[row] * dim + X.indices[is_there], return_inverse=True)
        batch, column = np.divmod(keys, dim)
    else:
        batch, column = (grid.ravel() for grid in np.indices((count, dim)))

    def sums(values: FloatArray, power: int) -> FloatArray:
        if sparse.issparse(X):
            return _sums_by(place, values[row] * entries**power, batch.size)
        return np.concatenate([values[a:b] @ X[a:b].astype(np.float64) ** power for a, b in pairwise(cuts)])

    with np.errstate(all="ignore"):
        costs = weights * factors.losses(mode.point)
    is_known = np.isfinite(mode.slopes) & np.isfinite(mode.curvatures) & np.isfinite(costs)
    weights, slopes, curvatures, costs = (
        np.where(is_known, part, 0.0) for part in (weights, mode.slopes, mode.curvatures, costs)
    )
    precisions = np.maximum(sums(weights * curvatures, 2), 0.0)
    # A precision that would hide those of all other factors from their cavity is cut down: above this ratio only
    # rounding of the cavity is left.
    most = np.zeros(dim)
    np.maximum.at(most, column, precisions)
    others = prior.precision + _sums_by(column, np.where(precisions < most[column], precisions, 0.0), dim)
    precisions = np.minimum(precisions, (1e12 * others)[column])
    gradients, squares = sums(weights * slopes, 1), sums(weights, 2)
    left = _sums_by(column, gradients, dim) + prior.precision * (mode.point - prior.mean)
    share = left / np.maximum(_sums_by(column, squares, dim), np.finfo(float).tiny)
    at = mode.point[column]
    shifts = precisions * at - (gradients - squares * share[column])
    log_scales = -np.add.reduceat(costs, cuts[:-1]) - _sums_by(batch, (shifts - 0.5 * precisions * at) * at, count)
    return BatchSites(shifts, precisions, log_scales, np.searchsorted(batch, np.arange(count + 1)))


def _sums_by(place: IndexArray, values: FloatArray, size: int) -> FloatArray:
    return np.bincount(place, weights=values, minlength=size).astype(np.float64)


def gaussians(factors: LinearBatches, sites: BatchSites) -> list[FactorialGaussian]:
    """Give every site in the coordinates of its factor, as the backend in plain Python keeps it."""
    values = []
    for k, factor in enumerate(factors):
        cells = np.arange(sites.starts[k], sites.starts[k + 1])
        if factor.coordinates is not None and cells.size == factors.dim:
            cells = cells[factor.coordinates]
        values.append(FactorialGaussian(sites.log_scales[k], sites.shifts[cells], sites.precisions[cells]))
    return values
