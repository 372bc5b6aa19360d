r"""Newton's method for prior plus losses, safeguarded by a line search that costs one loss a row.

The Newton decrement :math:`\lambda^2 = g^\top H^{-1} g` measures the way left in standard deviations of the posterior,
whatever the scales of the columns and of the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from cavity.mode._curves import Curve
from cavity.mode._design import Design

FloatArray = NDArray[np.float64]

# Widest matrix that is factored. Beyond, systems are solved by conjugate gradients.
FACTORED = 2000
_PRODUCTS = 250
# Shares of the diagonal added one after the other to a matrix that rounding has made indefinite.
_RIDGES = (0.0, 1e-14, 1e-12, 1e-10, 1e-7, 1e-4)
# Columns of the root by which spreads are measured; wider roots are sketched, to about 6 % in the spread.
_SKETCH = 128
# Changes of a weight that enter the matrix: small ones too if few rows have them, and no row of next to no weight.
_CHANGES, _FEW = (0.01, 0.05, 0.2), 0.125
_NEGLIGIBLE = 1e-12
# A step cut down to less than this share has met curvatures that hold for a small way only.
_SHORT = 0.25
_FIRST_CAUTION, _LEAST_CAUTION = 0.1, 1e-4
_SUFFICIENT = 1e-4
_TRIALS = 40
_SHORTEST, _LONGEST = 0.02, 0.5
_ROUNDING = 1e-13
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Problem:
    r"""The function :math:`\sum_k u_k\, \ell_k(x_k^\top \theta) + \tfrac12 \sum_i p_i (\theta_i - m_i)^2`."""

    design: Design
    weights: FloatArray
    mean: FloatArray
    precision: FloatArray

    def prior_cost(self, point: FloatArray) -> float:
        """Price a point without the losses."""
        away = point - self.mean
        return 0.5 * float(self.precision @ (away * away))


class State(NamedTuple):
    """A point, its predictors, and all that the curve says there."""

    point: FloatArray
    predictors: FloatArray
    cost: float
    slope: FloatArray
    curvature: FloatArray


class Metric(Protocol):
    r"""An approximate Hessian :math:`H`, curvatures below zero taken for zero."""

    def solve(self, gradient: FloatArray) -> FloatArray:
        r"""Solve :math:`H s = g`."""

    def inverse(self) -> FloatArray:
        r"""Return :math:`H^{-1}`, or what is known of it."""

    def spread(self, design: Design | None = None) -> FloatArray:
        r"""Return the standard deviations :math:`(x_k^\top H^{-1} x_k)^{1/2}` of predictors, these rows' or others'."""

    def moved(self, weights: FloatArray) -> Metric:
        """Take other weights of the rows."""


class Minimum(NamedTuple):
    """Where the method stopped, by what metric, after how many steps, and whether it got there."""

    state: State
    metric: Metric
    steps: int
    converged: bool


def state_at(problem: Problem, curve: Curve, point: FloatArray, predictors: FloatArray | None = None) -> State:
    """Evaluate a curve at a point."""
    z = problem.design.predict(point) if predictors is None else predictors
    value, slope, curvature = curve.derivatives(z)
    return State(point, z, float(problem.weights @ value) + problem.prior_cost(point), slope, curvature)


def gradient_at(problem: Problem, state: State) -> FloatArray:
    """Slope of the whole at a point."""
    return problem.design.pull(problem.weights * state.slope) + problem.precision * (state.point - problem.mean)


def minimize(problem: Problem, curve: Curve, state: State, tol: float, max_steps: int) -> Minimum:
    """Go down until the Newton decrement is below ``tol``; what cannot be improved is returned as it is."""
    metric = metric_at(problem, curve, state)
    steps, caution, settled = 0, 0.0, False
    while True:
        gradient = gradient_at(problem, state)
        step = -metric.solve(gradient)
        descent = float(gradient @ step)
        converged = bool(-descent <= tol * tol)
        if converged and caution > 0.0:  # the decrement of a cautious metric is too small
            caution, settled = _less(caution), True
        elif converged or steps == max_steps or not np.isfinite(descent):
            return Minimum(state, metric, steps, converged)
        else:
            found = search(problem, curve, state, step, descent)
            if found is None:  # nothing to be gained but rounding, or the curve is rough
                return Minimum(state, metric, steps, bool(-descent <= _ROUNDING * abs(state.cost)))
            if found[1] < _SHORT and caution < 1.0 and not settled:  # a poor direction: ask for a better one
                caution = min(max(4.0 * caution, _FIRST_CAUTION), 1.0)
            else:
                (state, share), steps, settled = found, steps + 1, False
                caution = _less(caution) if share == 1.0 else caution
        metric = metric.moved(_weights(problem, curve, state, caution))


def _less(caution: float) -> float:
    return 0.25 * caution if caution > _LEAST_CAUTION else 0.0


def _weights(problem: Problem, curve: Curve, state: State, caution: float) -> FloatArray:
    """Weights of the rows in the Hessian, never negative; with caution, some share of a bound at least."""
    least = caution * curve.bound(state.predictors) if caution > 0.0 else 0.0
    return problem.weights * np.maximum(state.curvature, least)


def metric_at(problem: Problem, curve: Curve, state: State, caution: float = 0.0) -> Metric:
    """Sum up the curvatures at a point; with caution, some share of their bounds at least."""
    weights = _weights(problem, curve, state, caution)
    return (Factored if problem.mean.size <= FACTORED else Implicit).of(problem.design, weights, problem.precision)


@dataclass(frozen=True, slots=True)
class Factored:
    """The matrix itself and, scaled to a unit diagonal, its Cholesky factor."""

    design: Design
    weights: FloatArray
    precision: FloatArray
    matrix: FloatArray
    scale: FloatArray
    root: FloatArray

    @classmethod
    def of(cls, design: Design, weights: FloatArray, precision: FloatArray) -> Metric:
        """Sum over all rows."""
        matrix = design.gram(weights)
        matrix.flat[:: len(matrix) + 1] += precision
        return cls._of_matrix(design, weights, precision, matrix)

    @classmethod
    def _of_matrix(cls, design: Design, weights: FloatArray, precision: FloatArray, matrix: FloatArray) -> Metric:
        """Factor; where rounding forbids it, with a little more on the diagonal."""
        scale = 1.0 / np.sqrt(np.diagonal(matrix))
        scaled = matrix * (scale[:, None] * scale)
        for ridge in _RIDGES:
            scaled.flat[:: len(scaled) + 1] = 1.0 + ridge
            try:
                return cls(design, weights, precision, matrix, scale, cho_factor(scaled, lower=True)[0])
            except (LinAlgError, ValueError):  # indefinite by rounding, or not finite
                continue
        return Implicit.of(design, weights, precision)

    def solve(self, gradient: FloatArray) -> FloatArray:
        """Solve two triangular systems."""
        result: FloatArray = self.scale * cho_solve((self.root, True), self.scale * gradient, check_finite=False)
        return result

    def inverse(self) -> FloatArray:
        """Solve for all axes."""
        scaled = cho_solve((self.root, True), np.diag(self.scale), check_finite=False)
        result: FloatArray = self.scale[:, None] * scaled
        return result

    def spread(self, design: Design | None = None) -> FloatArray:
        """Solve a triangular system, and multiply the rows by it or by a sketch of it."""
        d = self.scale.size
        right = np.eye(d)
        if d > _SKETCH:
            right = np.random.default_rng(0).standard_normal((d, _SKETCH)) / np.sqrt(_SKETCH)
        root = solve_triangular(self.root, right, lower=True, trans=1, check_finite=False)
        return np.sqrt((design or self.design).squared_lengths(self.scale[:, None] * root))

    def moved(self, weights: FloatArray) -> Metric:
        """Sum over the rows whose weight has changed, which are few near the end."""
        larger = np.maximum(weights, self.weights)
        change = weights - self.weights
        size = np.abs(change) / np.maximum(larger, _NEGLIGIBLE * np.max(larger) + _TINY)
        for least in _CHANGES:
            changed = size > least
            if (count := np.count_nonzero(changed)) <= _FEW * changed.size:
                break
        if count == 0:
            return self
        if 2 * count > changed.size:
            return Factored.of(self.design, weights, self.precision)
        change *= changed
        matrix = self.matrix + self.design.gram(np.maximum(change, 0.0)) - self.design.gram(np.maximum(-change, 0.0))
        return self._of_matrix(self.design, np.where(changed, weights, self.weights), self.precision, matrix)


@dataclass(frozen=True, slots=True)
class Implicit:
    """Products with the matrix, by which conjugate gradients solve systems; its diagonal goes before."""

    design: Design
    weights: FloatArray
    precision: FloatArray
    diagonal: FloatArray

    @classmethod
    def of(cls, design: Design, weights: FloatArray, precision: FloatArray) -> Implicit:
        """Take the diagonal."""
        return cls(design, weights, precision, precision + design.pull_squares(weights))

    def solve(self, gradient: FloatArray) -> FloatArray:
        """Stop at a share of the gradient that falls with it, so that the end is reached in few steps."""
        solution, rest = np.zeros_like(gradient), gradient.copy()
        scaled = rest / self.diagonal
        direction, size = scaled.copy(), float(rest @ scaled)
        wanted = size * min(1e-2, size)
        for _ in range(_PRODUCTS):
            if not size > wanted:
                break
            product = self.design.pull(self.weights * self.design.predict(direction)) + self.precision * direction
            share = size / float(direction @ product)
            solution += share * direction
            rest -= share * product
            scaled = rest / self.diagonal
            size, previous = float(rest @ scaled), size
            direction = scaled + (size / previous) * direction
        return solution

    def inverse(self) -> FloatArray:
        """Take the diagonal for the whole."""
        return np.diag(1.0 / self.diagonal)

    def spread(self, design: Design | None = None) -> FloatArray:
        """Take the diagonal for the whole."""
        return np.sqrt((design or self.design).squared_lengths(1.0 / np.sqrt(self.diagonal)))

    def moved(self, weights: FloatArray) -> Metric:
        """Take the diagonal anew."""
        return Implicit.of(self.design, weights, self.precision)


def search(
    problem: Problem, curve: Curve, state: State, step: FloatArray, descent: float
) -> tuple[State, float] | None:
    """Try the whole step, and shorter ones by interpolation, until the cost falls enough; None if it never does."""
    move = problem.design.predict(step)
    flat = _ROUNDING * (abs(state.cost) + float(problem.weights @ np.abs(state.slope * state.predictors)))
    share = 1.0
    for _ in range(_TRIALS):
        trial = state_at(problem, curve, state.point + share * step, state.predictors + share * move)
        change = trial.cost - state.cost
        if change <= _SUFFICIENT * share * descent or (abs(change) <= flat and -descent * share <= flat):
            return trial, share
        bend = 2.0 * (change - share * descent)
        wanted = -descent * share / bend if np.isfinite(bend) and bend > 0.0 else 0.0
        share *= min(max(wanted, _SHORTEST), _LONGEST)
    return None
