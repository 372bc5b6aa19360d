r"""From the mode of a linear model towards its minimum by annealing: ever less noise in the losses.

At inverse temperature :math:`\beta` the posterior is :math:`\beta^{-1/2}` times as wide. So smoothing every loss by the
width of its predictor times :math:`\beta^{-1/2}` is what EP does at that temperature, with a full covariance in place
of a product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.factors import LinearBatches
from cavity.gaussian import FactorialGaussian
from cavity.mode._curves import Curve, Derived, Plain, rough_curve
from cavity.mode._design import design_of
from cavity.mode._find import find_mode, row_weights
from cavity.mode._newton import Problem, minimize, state_at

FloatArray = NDArray[np.float64]

# By how much every stage narrows the widths, slowly first: which minimum is met is decided early.
_SLOWLY, _STAGES, _FASTER = 0.5, 6, 0.25
# Most Newton steps of a stage: the next one takes over what is left.
_STEPS = 8


class Stage(NamedTuple):
    """Where a stage ended: its point, cost without smoothing, precisions there, temperature, and values asked for."""

    point: FloatArray
    cost: float
    precision: FloatArray
    beta: float
    evaluations: int


def anneal(factors: LinearBatches, prior: FactorialGaussian, accuracy: float = 1e-4) -> Iterator[Stage]:
    """Give the mode, and where the loss has kinks ever more stages nearer to the minimum; a smooth loss has one.

    ``accuracy`` is what a stage may leave above its own minimum, as a share of the cost.
    """
    problem = Problem(design_of(factors.X), row_weights(factors, 1.0), prior.mean, prior.precision)
    plain, rough = Plain(factors.loss, factors.targets), rough_curve(factors.loss, factors.targets)
    with np.errstate(all="ignore"):
        mode = find_mode(factors, prior)
        cost = problem.prior_cost(mode.point) + float(problem.weights @ plain.value(problem.design.predict(mode.point)))
        yield Stage(mode.point, cost, _precision(problem, mode.curvatures), 1.0, mode.iterations + 1)
    lowest, point, predictors, beta, widths = cost, mode.point, None, 1.0, mode.widths
    for stage in count() if np.any(widths > 0.0) else ():
        ratio = _SLOWLY if stage < _STAGES else _FASTER
        widths, beta = ratio * widths, beta / ratio**2
        with np.errstate(all="ignore"):
            curve = _Counted(rough.smoothed(widths))
            start = state_at(problem, curve, point, predictors)
            state = minimize(problem, curve, start, float(np.sqrt(2.0 * accuracy * abs(lowest))), _STEPS).state
            point, predictors = state.point, state.predictors
            cost = problem.prior_cost(point) + float(problem.weights @ plain.value(predictors))
            lowest = min(lowest, cost)
            precision = beta * _precision(problem, state.curvature)
        yield Stage(point, cost, precision, beta, curve.calls[0] + 1)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A curve that counts how often it is asked."""

    curve: Curve
    calls: list[int] = field(default_factory=lambda: [0])

    def derivatives(self, z: FloatArray) -> Derived:
        """Ask the curve."""
        self.calls[0] += 1
        return self.curve.derivatives(z)

    def bound(self, z: FloatArray) -> FloatArray:
        """Ask the curve."""
        return self.curve.bound(z)


def _precision(problem: Problem, curvature: FloatArray) -> FloatArray:
    """Second derivatives of the cost along every axis; curvatures below zero or not finite are taken for zero."""
    usable = np.where((curvature > 0.0) & (curvature < np.inf), curvature, 0.0)
    return problem.precision + problem.design.pull_squares(problem.weights * usable)
