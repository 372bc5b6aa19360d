"""Descent by a matrix that learns: an inverse Hessian, corrected by the gradients met (the method of BFGS).

A step costs two products with the rows. A Newton step costs the sum of all their squares as well, which is worth it
only where the end must be met to many digits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.mode._curves import Curve
from cavity.mode._newton import Metric, Minimum, Problem, State, gradient_at, minimize, search

FloatArray = NDArray[np.float64]

# How near it comes before Newton's method takes over, in standard deviations a column; and the most steps.
_CLOSE, _STEPS = 0.1, 12


class _Approach(NamedTuple):
    state: State
    steps: int
    close: bool


def descend(problem: Problem, curve: Curve, state: State, metric: Metric, tol: float, max_steps: int) -> Minimum:
    """Go down as `minimize` does, with a metric of a place nearby to begin with."""
    close = _CLOSE * np.sqrt(problem.mean.size)
    near = _approach(problem, curve, state, metric, max(tol, close), min(max_steps, _STEPS))
    if near.close and tol >= close:
        return Minimum(near.state, metric, near.steps, True)
    end = minimize(problem, curve, near.state, tol, max_steps - near.steps)
    return end._replace(steps=end.steps + near.steps)


def _approach(problem: Problem, curve: Curve, state: State, metric: Metric, tol: float, max_steps: int) -> _Approach:
    gradient, inverse = gradient_at(problem, state), metric.inverse()
    for steps in range(max_steps + 1):
        step = -(inverse @ gradient)
        descent = float(gradient @ step)
        if -descent <= tol * tol or steps == max_steps or not descent < 0.0:
            break
        found = search(problem, curve, state, step, descent)
        if found is None:
            break
        before, (state, share) = gradient, found
        gradient = gradient_at(problem, state)
        inverse = _corrected(inverse, share * step, gradient - before)
    return _Approach(state, steps, bool(-descent <= tol * tol))


def _corrected(inverse: FloatArray, step: FloatArray, change: FloatArray) -> FloatArray:
    """Make a step give back its change of the gradient; nothing is learned from one that found no curvature."""
    bend = float(step @ change)
    if not bend > 0.0:
        return inverse
    along = inverse @ change
    pull = (1.0 + float(change @ along) / bend) / bend
    mixed = np.outer(along, step / bend)
    result: FloatArray = inverse + pull * np.outer(step, step) - mixed - mixed.T
    return result
