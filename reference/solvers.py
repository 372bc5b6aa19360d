r"""Offline minimisers of :math:`\sum_k \ell(a_k^\top \theta) + \lVert\theta\rVert^2/(2v)`, :math:`a_k = y_k x_k`.

Each returns a point; what it proves about that point is returned beside it. ``A`` holds the rows :math:`a_k`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from cavity.losses import Logistic, Loss
from reference.problems import LOSSES, FloatArray

_NEWTON_STEPS = 100
_INTERIOR_STEPS = 200
# Share of the largest feasible step that is taken, and least distance of the start from the box, as a share of it.
_STEP_SHARE, _START_MARGIN = 0.99, 0.1
# The gap grows by rounding in the end: stop at this multiple of the least one, once that is this share of the cost.
_DIVERGED, _CLOSE = 1e3, 1e-3


class Certified(NamedTuple):
    """A point and an upper bound on how far its cost lies above the minimum."""

    point: FloatArray
    gap: float


def cost(loss: Loss, A: FloatArray, point: FloatArray, variance: float) -> float:
    """Price one point."""
    return float(np.sum(loss.value(1.0, A @ point)) + point @ point / (2.0 * variance))


def newton_logistic(A: FloatArray, variance: float) -> Certified:
    r"""Newton's method. The cost is :math:`1/v`-strongly convex, so the gap is at most :math:`v\lVert g\rVert^2/2`."""
    d = A.shape[1]
    point = np.zeros(d)
    gap = np.inf
    for _ in range(_NEWTON_STEPS):
        _, slope, curvature = Logistic().derivatives(1.0, A @ point)
        gradient = A.T @ slope + point / variance
        hessian = (A * curvature[:, None]).T @ A + np.eye(d) / variance
        previous, gap = gap, 0.5 * variance * float(gradient @ gradient)
        if gap >= 0.5 * previous:  # down to rounding
            break
        point = point - cho_solve(cho_factor(hessian), gradient)
    return Certified(point, gap)


def powell(loss: Loss, A: FloatArray, variance: float, start: FloatArray) -> FloatArray:
    """Minimise as the paper did: SciPy's Powell with its own tolerances."""
    result = minimize(lambda point: cost(loss, A, point, variance), start, method="Powell")
    return np.asarray(result.x, dtype=np.float64)


def offline_minimum(loss: str, A: FloatArray, variance: float, start: FloatArray | None = None) -> FloatArray:
    """Minimise a loss of the paper, by name: Newton, quadratic program, or Powell from the logistic minimum."""
    if loss == "hinge":
        return hinge_program(A, variance).point
    if loss == "logistic" or start is None:
        start = newton_logistic(A, variance).point
    return start if loss == "logistic" else powell(LOSSES[loss], A, variance, start)


class _Interior(NamedTuple):
    """A point inside the dual's box, its distance from the upper wall, and a multiplier for either wall."""

    alpha: FloatArray
    room: FloatArray
    lower: FloatArray
    upper: FloatArray

    @property
    def complementarity(self) -> float:
        """Mean product of distances and multipliers: zero at the solution."""
        return float(self.alpha @ self.lower + self.room @ self.upper) / (2 * len(self.alpha))

    def reach(self, step: _Interior) -> float:
        """Largest share of a step, at most one, that stays inside."""
        ratios = (-change / value for change, value in zip(step, self, strict=True))
        return 1.0 / max(1.0, *(float(np.max(ratio)) for ratio in ratios))

    def moved(self, step: _Interior, share: float) -> _Interior:
        """Go a share of a step."""
        return _Interior(*(value + share * change for value, change in zip(self, step, strict=True)))


def hinge_program(
    A: FloatArray,
    variance: float,
    slope: float = 1.0,
    margin: float = 1.0,
    given_up: FloatArray | None = None,
    tol: float = 1e-9,
) -> Certified:
    r"""Solve a hinge problem as a quadratic program, by a primal-dual interior point method (Mehrotra).

    .. math:: \min_\theta \sum_k b \max(0, m - a_k^\top\theta) + c_k a_k^\top\theta + \tfrac{1}{2v}\lVert\theta\rVert^2

    Its dual has a box only, :math:`\max_{0 \le \alpha \le b} m \sum_k \alpha_k - \tfrac1{2v}\lVert\theta(\alpha)
    \rVert^2` with :math:`\theta(\alpha) = v A^\top(\alpha - c)`; every iterate lies in the box, so the difference
    of the two objectives bounds the error. :math:`O(n d^2)` per step, 10 to 30 steps; up to 100 with rare columns.
    """
    n, d = A.shape
    linear = np.zeros(n) if given_up is None else given_up
    at = _start(A, variance, slope, margin, linear)
    best = Certified(np.zeros(d), np.inf)
    for _ in range(_INTERIOR_STEPS):
        feasible = np.clip(at.alpha, 0.0, slope)
        point = variance * (A.T @ (feasible - linear))
        z = A @ point
        square = float(point @ point) / (2.0 * variance)
        primal = slope * float(np.sum(np.maximum(margin - z, 0.0))) + float(linear @ z) + square
        gap = primal - (margin * float(np.sum(feasible)) - square)
        if gap < best.gap:
            best = Certified(point, gap)
        size = max(1.0, abs(primal))
        if gap <= tol * size or (gap > _DIVERGED * best.gap and best.gap < _CLOSE * size):
            break
        at = _mehrotra(A, variance, at, z - margin - at.lower + at.upper)
    return best


def _start(A: FloatArray, variance: float, slope: float, margin: float, linear: FloatArray) -> _Interior:
    """Start where the point is small, well inside the box, with multipliers of one size or more and no residual."""
    ridge = A.T @ A + np.eye(A.shape[1]) / variance
    flat = 0.5 * slope - A @ cho_solve(cho_factor(ridge), A.T @ (0.5 * slope - linear))
    alpha = np.clip(flat, _START_MARGIN * slope, (1.0 - _START_MARGIN) * slope)
    excess = variance * (A @ (A.T @ (alpha - linear))) - margin
    size = float(np.mean(np.abs(excess)))
    return _Interior(alpha, slope - alpha, np.maximum(excess, 0.0) + size, np.maximum(-excess, 0.0) + size)


def _mehrotra(A: FloatArray, variance: float, at: _Interior, residual: FloatArray) -> _Interior:
    """Predict, then correct: two solves with one factorisation of a matrix of the size of the columns."""
    weights = at.lower / at.alpha + at.upper / at.room
    matrix = (A / weights[:, None]).T @ A
    matrix[np.diag_indices(A.shape[1])] += 1.0 / variance
    factor = cho_factor(matrix)

    def towards(low: FloatArray, up: FloatArray) -> _Interior:
        t = (low / at.alpha - up / at.room - residual) / weights
        step = t - (A @ cho_solve(factor, A.T @ t)) / weights
        return _Interior(step, -step, (low - at.lower * step) / at.alpha, (up + at.upper * step) / at.room)

    predicted = towards(-at.alpha * at.lower, -at.room * at.upper)
    ahead = at.moved(predicted, at.reach(predicted)).complementarity
    aim = at.complementarity * (ahead / at.complementarity) ** 3
    corrected = towards(
        aim - at.alpha * at.lower - predicted.alpha * predicted.lower,
        aim - at.room * at.upper - predicted.room * predicted.upper,
    )
    return at.moved(corrected, _STEP_SHARE * at.reach(corrected))
