"""What a minimisation returns, and what it keeps on the path there: the lowest point, and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.ep.fit import untouched
from cavity.ep.result import FactorError, RunError
from cavity.factors import Curvature, Derivatives, Factor, LinearBatches, StarCosts
from cavity.gaussians.factorial import FactorialGaussian


class Ending(Enum):
    """How a minimisation ended; the value says what to do about it."""

    CONVERGED = "converged: the last attempts lowered the cost by less than tol"
    STILL_FALLING = "the cost was still falling after the last loop: raise max_iter, or start from here"
    UNBOUNDED = (
        "the cost falls without end, or to minus infinity: the point is the lowest finite one met; bound the cost "
        "from below or narrow the prior"
    )
    NONFINITE = (
        "some costs met after the lowest point were NaN or infinite, so that it may not be a minimum: look at the "
        "costs around it"
    )

    @property
    def is_success(self) -> bool:
        """Whether a minimum was found."""
        return self is Ending.CONVERGED


@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    r"""The lowest point seen.

    Attributes
    ----------
    point
        The place, of shape ``(dim,)``.
    cost
        All factor costs there and the prior's, :math:`\sum_k u_k(\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`,
        at inverse temperature one whatever the schedule.
    posterior
        The factorial Gaussian of the last loop, at the last inverse temperature.
    costs, betas
        Cost of the point that every loop ended at, and its inverse temperature; the first is that of the prior mean.
    status
        How it ended.
    evaluations
        How often a factor was asked for its cost at a point, all factors and points counted; in compiled EP, a fit to a
        factor counts as one.
    """

    point: FloatArray
    cost: float
    posterior: FactorialGaussian
    costs: tuple[float, ...]
    betas: tuple[float, ...]
    status: Ending
    evaluations: int

    @property
    def spread(self) -> FloatArray:
        """How far every coordinate alone may go before the cost rises by about one half."""
        return np.asarray(np.sqrt(self.betas[-1]) * self.posterior.std)

    def raise_for_status(self) -> Minimum:
        """Raise `RunError` unless a minimum was found; return this otherwise."""
        if not self.status.is_success:
            raise RunError(str(self))
        return self

    def __str__(self) -> str:
        loops = len(self.betas) - 1
        return f"{self.status.value}\ncost {self.cost:.6g} after {loops} loops and {self.evaluations} evaluations"


class CountedFactor:
    """A factor that counts the points at which EP asks for its cost."""

    def __init__(self, factor: Factor, counter: Pricer) -> None:
        self.factor, self.counter = factor, counter

    def cost(self, points: FloatArray) -> FloatArray:
        self.counter.evaluations += len(points)
        return self.factor.cost(points)

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        self.counter.evaluations += 1
        return self.factor.derivatives(point, curvature)

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        self.counter.evaluations += 2 * center.size + 1
        return self.factor.star(center, steps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.factor, name)


class Pricer:
    """Total cost of points, prior included. It keeps the lowest, and whether costs since then were not finite.

    ``state`` is what an error says about the run so far.
    """

    def __init__(self, factors: Sequence[Factor], prior: FactorialGaussian) -> None:
        self.factors, self.prior, self.evaluations = factors, prior, 0
        self.state = untouched(prior)
        self.point, self.cost = prior.mean, np.inf
        self.fell_to_minus_infinity = self.was_nonfinite = False

    def __call__(self, points: FloatArray) -> FloatArray:
        """Cost of every point; NaN counts as infinite, and so does minus infinity, which is noted."""
        if len(points) == 0:
            return np.empty(0)
        away = points - self.prior.mean
        with np.errstate(all="ignore"):
            costs = 0.5 * (away * away) @ self.prior.precision + self._factor_costs(points)
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
        return float(self(point[None])[0])

    def _factor_costs(self, points: FloatArray) -> FloatArray:
        self.evaluations += len(points) * len(self.factors)
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
