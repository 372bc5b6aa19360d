"""Variational quadrature about the peak of cavity times fitted factor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from cavity._checks import positive_number, whole_number
from cavity._types import FloatArray
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes._protocol import expansion
from cavity.schemes.constants import ARMIJO, HALVINGS, RESERVED_STARS, RETREAT, ROUNDING, SAME_ARM, SHORTEST_ARM


class _Fit(NamedTuple):
    """A parabola along every axis, about the centre of the star that it goes through."""

    center: FloatArray
    value: float
    slope: FloatArray
    curvature: FloatArray


@dataclass(frozen=True, slots=True)
class RecentredQuadrature:
    r"""Interpolate the cost around the peak of cavity times fitted factor, without derivatives (RVQ).

    A star is a centre :math:`t` with one node up and down along each axis, at distances :math:`h`. The first star has
    its centre at the cavity mean, and :math:`h = \gamma\sigma`. Each star gives a slope :math:`g` and a curvature
    :math:`c` as in `VariationalQuadrature`. The next star is

    .. math:: t \leftarrow t - a\,\frac{\beta g + (t - \mu)/\sigma^2}{w}, \qquad h = \frac{\gamma}{\sqrt w}, \qquad
        w = \beta \max(c, 0) + 1/\sigma^2,

    with a step size :math:`a \le 1` that increases cavity times factor, until :math:`t` and :math:`h` converge. The
    site is that of the last star, :math:`p = \beta c` and :math:`r = \beta (c t - g)`.

    If no step size increases cavity times factor although all curvatures are positive, :math:`t` is at a kink, where a
    convex cost has many slopes; :math:`g` is then the slope that balances the cavity. Exact for products of independent
    Gaussians. Usually two to four stars per factor are needed. If the cost at a node is not finite, the node is moved
    closer. If the cost at the centre is not finite, there is no site, and its entries are NaN or infinite.

    Parameters
    ----------
    spread
        Distance :math:`\gamma` of the nodes, in standard deviations of cavity times site.
    tol
        Tolerance: the centre has converged when a step is shorter than this, in the same unit.
    max_stars
        Maximum number of stars; the last ten are reserved for nodes that must be moved closer.

    Examples
    --------
    >>> from cavity import CostFactor, FactorialGaussian
    >>> factor = CostFactor(lambda t: 5.0 * abs(float(t[0]) - 1.0), dim=1)
    >>> cavity = FactorialGaussian.from_moments([0.0], variance=1.0)
    >>> (cavity * RecentredQuadrature().approximate(factor, cavity)).mean.round(2)
    array([0.93])
    """

    name: ClassVar[str] = "rvq"
    spread: float = math.sqrt(3.0)
    tol: float = 0.01
    max_stars: int = 40

    def __post_init__(self) -> None:
        object.__setattr__(self, "spread", positive_number("spread", self.spread))
        object.__setattr__(self, "tol", positive_number("tol", self.tol))
        object.__setattr__(self, "max_stars", whole_number("max_stars", self.max_stars, least=RESERVED_STARS + 1))

    def check(self, factor: Factor) -> None:
        """Take every factor."""

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Move the star to where cavity times factor peaks, then interpolate."""
        return expansion(*self._converged(factor, cavity, beta), beta)

    def _converged(self, factor: Factor, cavity: FactorialGaussian, beta: float) -> _Fit:
        """Fit the star again and again until it stands where it wants to, or the stars are used up."""
        m, p = cavity.mean, cavity.precision
        center, steps, longest = m, self.spread * cavity.std, self.spread * cavity.std
        shortest = SHORTEST_ARM * longest
        for left in reversed(range(self.max_stars)):
            fit = _interpolated(factor, center, steps)
            wild = ~(np.isfinite(fit.slope) & np.isfinite(fit.curvature))
            if not math.isfinite(fit.value) or np.any(wild & (steps <= shortest)):
                break
            if np.any(wild):
                longest = np.where(wild, np.maximum(RETREAT * steps, shortest), longest)
                steps = np.minimum(steps, longest)
                continue
            if left < RESERVED_STARS:
                break
            pull = beta * fit.slope + p * (center - m)
            width = beta * np.maximum(fit.curvature, 0.0) + p
            direction = -pull / width
            size = float(np.max(np.abs(direction) * np.sqrt(width), initial=0.0))
            wanted = np.minimum(np.maximum(self.spread / np.sqrt(width), shortest), longest)
            same = bool(np.all(np.abs(wanted - steps) <= SAME_ARM * steps))
            if same and size <= self.tol:
                break
            length = self._length(factor, cavity, beta, fit, direction, float(pull @ direction), size)
            if same and length == 0.0:
                if np.all(fit.curvature >= 0.0):
                    return fit._replace(slope=-p * (center - m) / beta)
                break
            center, steps = center + length * direction, wanted
        return fit

    def _length(
        self,
        factor: Factor,
        cavity: FactorialGaussian,
        beta: float,
        fit: _Fit,
        direction: FloatArray,
        descent: float,
        size: float,
    ) -> float:
        """Share of a step by which cavity times factor rises; zero where none of more than the tolerance does."""
        offset, p = fit.center - cavity.mean, cavity.precision
        here = beta * fit.value + 0.5 * float(p @ offset**2)
        length = 1.0
        for _ in range(HALVINGS):
            if not length * size > self.tol:
                break
            cost = beta * float(factor.cost((fit.center + length * direction)[None])[0])
            there = cost + 0.5 * float(p @ (offset + length * direction) ** 2)
            if -math.inf < there <= here + ARMIJO * length * descent:
                return length
            length *= 0.5
        return 0.0


def _interpolated(factor: Factor, center: FloatArray, steps: FloatArray) -> _Fit:
    """Go through the costs of a star."""
    costs = factor.star(center, steps)
    with np.errstate(all="ignore"):
        slope = (costs.up - costs.down) / (2.0 * steps)
        second = costs.up + costs.down - 2.0 * costs.center
        scale = np.maximum(np.maximum(np.abs(costs.up), np.abs(costs.down)), abs(costs.center))
        curvature = np.where(np.abs(second) <= ROUNDING * scale, 0.0, second / steps**2)
    return _Fit(center, costs.center, slope, curvature)
