"""The total cost of points, and the books on the lowest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.result import FactorError, Ledger, Result
from cavity.factors import Curvature, Derivatives, Factor, LinearBatches, StarCosts
from cavity.gaussians.factorial import FactorialGaussian

FloatArray = NDArray[np.float64]


class Counter:
    """How often factors were asked for a cost."""

    def __init__(self) -> None:
        self.evaluations = 0


@dataclass(frozen=True, slots=True)
class CountedFactor:
    """A factor that counts the points at which EP asks it for its cost."""

    factor: Factor
    counter: Counter

    @property
    def dim(self) -> int:
        """That of the factor."""
        return self.factor.dim

    @property
    def coordinates(self) -> NDArray[np.intp] | None:
        """Those of the factor."""
        return self.factor.coordinates

    @property
    def has_slope(self) -> bool:
        """That of the factor."""
        return self.factor.has_slope

    def cost(self, points: FloatArray) -> FloatArray:
        """Ask the factor."""
        self.counter.evaluations += len(points)
        return self.factor.cost(points)

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        """Ask the factor."""
        self.counter.evaluations += 1
        return self.factor.derivatives(point, curvature)

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        """Ask the factor."""
        self.counter.evaluations += 2 * center.size + 1
        return self.factor.star(center, steps)

    def newton_direction(
        self, point: FloatArray, gradient: FloatArray, precision: FloatArray, beta: float, curvature: Curvature
    ) -> FloatArray:
        """Ask the factor."""
        return self.factor.newton_direction(point, gradient, precision, beta, curvature)

    def __getattr__(self, name: str) -> Any:
        # What else a scheme may ask of a factor, such as the rows of a linear one.
        return getattr(self.factor, name)


class Pricer:
    """Total cost of points, prior included. It remembers the lowest, and what was not finite since it was met.

    ``state`` is what an error says about the run so far.
    """

    def __init__(self, factors: Sequence[Factor], prior: FactorialGaussian, counter: Counter) -> None:
        self.factors, self.prior, self.counter = factors, prior, counter
        self._mean, self._precision = prior.mean, prior.precision
        self.state = Result(prior, (), Ledger().status(False, False), Ledger().trace(), prior)
        self.point, self.cost = prior.mean, np.inf
        self.fell_to_minus_infinity = self.was_nonfinite = False

    def __call__(self, points: FloatArray) -> FloatArray:
        """Cost of every point; NaN counts as infinite, and so does minus infinity, which is noted."""
        if len(points) == 0:
            return np.empty(0)
        away = points - self._mean
        with np.errstate(all="ignore"):
            costs = 0.5 * (away * away) @ self._precision + self._factor_costs(points)
        return self.note(points, costs)

    def note(self, points: FloatArray, costs: FloatArray) -> FloatArray:
        """Take in points whose costs are known."""
        self.fell_to_minus_infinity |= bool(np.any(costs == -np.inf))
        finite = np.isfinite(costs)
        costs = np.where(finite, costs, np.inf)
        best = int(np.argmin(costs))
        if costs[best] < self.cost:
            self.point, self.cost, self.was_nonfinite = points[best].copy(), float(costs[best]), False
        self.was_nonfinite |= not np.all(finite)
        return costs

    def at(self, point: FloatArray) -> float:
        """Cost of one point."""
        return float(self(point[None])[0])

    def _factor_costs(self, points: FloatArray) -> FloatArray:
        self.counter.evaluations += len(points) * len(self.factors)
        if isinstance(self.factors, LinearBatches):
            return self.factors.cost(points)
        total = np.zeros(len(points))
        for k, factor in enumerate(self.factors):
            support = factor.coordinates
            try:
                total += factor.cost(points if support is None else points[:, support])
            except Exception as error:
                raise FactorError(k, self.state, error) from error
        return total
