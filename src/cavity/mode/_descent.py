r"""The minimum of prior plus losses, by SciPy's trust region in coordinates in which the Hessian is near the identity.

The length of the gradient in these coordinates is the Newton decrement :math:`(g^\top H^{-1} g)^{1/2}`: the distance to
the minimum in standard deviations of the posterior, whatever the scales of the columns and of the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads its optimize when it is first used
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from cavity._types import FloatArray
from cavity.factors import LinearBatches
from cavity.factors.rows import dense_blocks, squared
from cavity.gaussians.factorial import FactorialGaussian
from cavity.mode._curves import Curve

# Columns up to which the Hessian is factorised (8 MB); above, its diagonal is, and conjugate gradients do the rest.
_WIDEST_HESSIAN = 1000
_ROWS_AT_ONCE = 512  # summed: a block and its products stay within the caches
# Steps of the trust region in the same coordinates, before they are chosen again.
_STEPS = 10


class Root(NamedTuple):
    r"""Approximate Hessian :math:`D R R^\top D`: its diagonal's root :math:`D`, and lower triangle R or, if None, 1."""

    scale: FloatArray
    triangle: FloatArray | None

    def move(self, u: FloatArray) -> FloatArray:
        r"""Give the change of the coefficients, :math:`D^{-1} R^{-\top} u`."""
        return self._solve(u, transposed=True) / self.scale

    def gradient(self, gradient: FloatArray) -> FloatArray:
        r"""Give the gradient in the new coordinates, :math:`R^{-1} D^{-1} g`."""
        return self._solve(gradient / self.scale)

    def spread(self, X: Any) -> FloatArray:
        r"""Give the standard deviations :math:`(x^\top H^{-1} x)^{1/2}` of the predictors of rows."""
        if self.triangle is None:
            return np.asarray(np.sqrt(squared(X) @ self.scale**-2.0))
        parts = (self._solve((A / self.scale).T) for _, A in dense_blocks(X, _ROWS_AT_ONCE))
        return np.concatenate([np.linalg.norm(part, axis=0) for part in parts])

    def _solve(self, right: FloatArray, transposed: bool = False) -> FloatArray:
        if self.triangle is None:
            return right
        return np.asarray(solve_triangular(self.triangle, right, lower=True, trans=int(transposed), check_finite=False))


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    r"""The function :math:`\sum_k w_k\, \ell_k(x_k^\top \theta) + \tfrac12 \sum_i p_i (\theta_i - m_i)^2`."""

    X: Any
    weights: FloatArray
    mean: FloatArray
    precision: FloatArray

    @classmethod
    def of(cls, factors: LinearBatches, prior: FactorialGaussian, beta: float) -> Problem:
        """Take rows in double precision, and the weights times the inverse temperature."""
        weights = np.ones(factors.targets.size) if factors.weights is None else factors.weights
        return cls(factors.X.astype(np.float64, copy=False), beta * weights, prior.mean, prior.precision)

    def cost(self, point: FloatArray, values: FloatArray) -> float:
        """Sum up; NaN counts as infinite."""
        away = point - self.mean
        total = float(self.weights @ values) + 0.5 * float(self.precision @ (away * away))
        return np.inf if np.isnan(total) else total

    def gradient(self, state: State) -> FloatArray:
        return np.asarray(self.X.T @ (self.weights * state.slope) + self.precision * (state.point - self.mean))

    def diagonal(self, curvature: FloatArray) -> FloatArray:
        """Diagonal of the Hessian, curvatures below zero taken for zero."""
        w = self.weights * np.maximum(curvature, 0.0)
        return np.asarray(self.precision + squared(self.X).T @ w)

    def root(self, curvature: FloatArray) -> Root:
        """Factorise the Hessian, curvatures below zero taken for zero."""
        if self.mean.size > _WIDEST_HESSIAN:
            return Root(np.sqrt(self.diagonal(curvature)), None)
        matrix, w = np.diag(self.precision), self.weights * np.maximum(curvature, 0.0)
        for rows, A in dense_blocks(self.X, _ROWS_AT_ONCE):
            matrix += (A.T * w[rows]) @ A
        scale = np.sqrt(np.diag(matrix))
        scaled = matrix / np.outer(scale, scale)
        try:
            # Added to the unit diagonal: more than rounding takes from it, less than any step notices.
            return Root(scale, cholesky(scaled + 1e-10 * np.eye(scale.size), lower=True))
        except (LinAlgError, ValueError):  # not finite
            return Root(scale, None)


class State(NamedTuple):
    """A point, its cost, and slopes and curvatures of all rows there."""

    point: FloatArray
    cost: float
    slope: FloatArray
    curvature: FloatArray


class Descent(NamedTuple):
    """The end, the Hessian there, how often all rows were evaluated, and whether the decrement is below the aim."""

    state: State
    root: Root
    evaluations: int
    converged: bool


def state_at(problem: Problem, curve: Curve, point: FloatArray) -> State:
    """Evaluate a curve; curvatures that are not finite count as zero."""
    value, slope, curvature = curve.derivatives(problem.X @ point)
    bend = np.where(np.isfinite(curvature), curvature, 0.0)
    return State(point, problem.cost(point, value), slope, bend)


def descend(problem: Problem, curve: Curve, point: FloatArray, tol: float, root: Root | None = None) -> Descent:
    """Go down until the Newton decrement is below ``tol``; the answer never costs more than the start.

    ``root`` is that of a similar problem, to begin with: a curve that is straight at the start has no Hessian there.
    """
    state, evaluations, radius, is_own = state_at(problem, curve, point), 1, np.inf, root is None
    rounds, rounding = 20, 1e-14  # rounding of a sum over many rows, as a share: smaller gains are not measurable
    for step in range(rounds + 1):
        metric = problem.root(state.curvature) if is_own or root is None else root
        left = float(np.linalg.norm(metric.gradient(problem.gradient(state))))
        enough = max(tol, np.sqrt(rounding * abs(state.cost)))
        converged, radius = is_own and left <= enough, min(max(1.0, left), radius)
        if converged or step == rounds or radius < rounding or not np.isfinite(left + state.cost):
            break
        found, asked = _round(problem, curve, state, metric, radius, 0.3 * enough)
        evaluations, is_own = evaluations + asked, True
        if found.cost < state.cost:
            state, radius = found, np.inf
        else:  # every step that fails makes the region a quarter as wide
            radius *= 0.25**_STEPS
    return Descent(state, metric, evaluations, converged)


def _round(problem: Problem, curve: Curve, start: State, root: Root, radius: float, tol: float) -> tuple[State, int]:
    """Take some steps in the coordinates of a root, with exact products of the Hessian and a vector."""

    @lru_cache(maxsize=2)  # the present point, and the one that is tried
    def at(key: bytes) -> State:
        return state_at(problem, curve, start.point + root.move(np.frombuffer(key)))

    def cost(u: FloatArray) -> tuple[float, FloatArray]:
        state = at(u.tobytes())
        gradient = root.gradient(problem.gradient(state))
        is_usable = bool(np.all(np.isfinite(gradient)))
        return (state.cost, gradient) if is_usable else (np.inf, np.zeros_like(u))

    def product(u: FloatArray, v: FloatArray) -> FloatArray:
        bend, step = problem.weights * at(u.tobytes()).curvature, root.move(v)
        return root.gradient(problem.X.T @ (bend * (problem.X @ step)) + problem.precision * step)

    options = {"gtol": tol, "maxiter": _STEPS, "initial_trust_radius": radius, "max_trust_radius": np.inf}
    origin = np.zeros(start.point.size)
    found = scipy.optimize.minimize(cost, origin, jac=True, hessp=product, method="trust-ncg", options=options)
    return at(found.x.tobytes()), at.cache_info().misses
