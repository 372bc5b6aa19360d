"""Laplace schemes: Taylor expansions of the cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cavity._checks import one_of, positive_number, whole_number
from cavity._types import FloatArray
from cavity.factors import Curvature, Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian
from cavity.schemes._full import Quadratic
from cavity.schemes._protocol import expansion
from cavity.schemes.constants import ARMIJO, HALVINGS, ROUNDING


def check_slope(curvature: Curvature, factor: Factor) -> None:
    """Refuse slopes of a factor that is not linear."""
    if curvature == "slope" and not factor.has_slope:
        raise ValueError(
            "curvature='slope' needs a LinearFactor, whose loss has a slope; for any other factor use "
            "curvature='exact', or scheme='vq', which needs no derivatives"
        )


def _taylor(factor: Factor, point: FloatArray, curvature: Curvature) -> Quadratic:
    """Expand to second order at a point."""
    value, slope, _ = factor.derivatives(point, curvature)
    return Quadratic(point, np.eye(point.size), value, slope, factor.hessian(point, curvature))


@dataclass(frozen=True, slots=True)
class QuickLaplace:
    r"""Expand the cost to second order at the cavity mean (QLA, section 2.1 of the paper).

    Exact for products of independent Gaussians. It needs one evaluation of the derivatives, and ignores kinks away from
    the cavity mean. The site does not depend on the cavity variance.

    Parameters
    ----------
    curvature
        ``"exact"`` uses the second derivative. ``"slope"`` uses the size of the slope of the loss instead, as in the
        program of the paper, for losses without curvature.

    Examples
    --------
    >>> from cavity import FactorialGaussian, LinearFactor, losses
    >>> factor = LinearFactor(losses.Squared(scale=0.5), [[1.0]], [2.0])
    >>> site = QuickLaplace().approximate(factor, FactorialGaussian(0.0, [0.3], [1.7]))
    >>> site.mean, site.variance
    (array([2.]), array([0.25]))
    """

    name: ClassVar[str] = "qla"
    curvature: Curvature = "exact"

    def __post_init__(self) -> None:
        one_of("curvature", self.curvature, ("exact", "slope"))

    def check(self, factor: Factor) -> None:
        """Refuse slopes of a factor that has none."""
        check_slope(self.curvature, factor)

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Expand at the cavity mean."""
        m = cavity.mean
        return expansion(m, *factor.derivatives(m, self.curvature), beta)

    def approximate_full(self, factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian) -> FullGaussian:
        """Expand at the cavity mean, with the whole Hessian."""
        return _taylor(factor, cavity.mean, self.curvature).gaussian(beta)


@dataclass(frozen=True, slots=True)
class Laplace:
    r"""Expand the cost at the peak of cavity times factor (LA, eq. 6 of the paper).

    .. math:: \theta_\star = \arg\min_\theta\ \beta u(\theta) + \tfrac12 \sum_i (\theta_i - \mu_i)^2/\sigma_i^2

    The minimum is found by Newton's method with a line search, starting at the cavity mean. Exact for products of
    independent Gaussians. At a kink, the search stops when no step along Newton's direction decreases the
    objective.

    Parameters
    ----------
    curvature
        As in `QuickLaplace`; used for the search and for the site.
    tol
        Tolerance: the search ends when a step is smaller than this, relative to the point.
    max_steps
        Maximum number of steps of the search.

    Examples
    --------
    >>> from cavity import FactorialGaussian, LinearFactor, losses
    >>> factor = LinearFactor(losses.Logistic(), [[1.0]], [1.0])
    >>> Laplace().approximate(factor, FactorialGaussian(0.0, [0.0], [1.0])).precision.round(3)
    array([0.24])
    """

    name: ClassVar[str] = "la"
    curvature: Curvature = "exact"
    tol: float = 1e-5
    max_steps: int = 50

    def __post_init__(self) -> None:
        one_of("curvature", self.curvature, ("exact", "slope"))
        object.__setattr__(self, "tol", positive_number("tol", self.tol))
        object.__setattr__(self, "max_steps", whole_number("max_steps", self.max_steps, least=1))

    def check(self, factor: Factor) -> None:
        """Refuse slopes of a factor that has none."""
        check_slope(self.curvature, factor)

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Find the peak, then expand there."""
        peak = self.peak(factor, cavity, beta)
        return expansion(peak, *factor.derivatives(peak, self.curvature), beta)

    def peak(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FloatArray:
        """Maximise cavity times factor from the cavity mean.

        Parameters
        ----------
        factor, cavity, beta
            As in `Scheme.approximate`.
        """
        m, p = cavity.mean, cavity.precision

        def objective(point: FloatArray) -> float:
            return float(beta * factor.cost(point[None])[0] + 0.5 * p @ (point - m) ** 2)

        point, here = m, objective(m)
        start = here
        for _ in range(self.max_steps):
            gradient = beta * factor.derivatives(point, self.curvature).gradient + p * (point - m)
            direction = factor.newton_direction(point, gradient, p, beta, self.curvature)
            descent = float(gradient @ direction)
            if not descent < 0.0:
                break
            for halving in range(HALVINGS):
                length = 0.5**halving
                there = objective(point + length * direction)
                if there <= here + ARMIJO * length * descent + ROUNDING * abs(here):
                    break
            else:
                break
            step = length * direction
            point, here = point + step, there
            if np.linalg.norm(step) <= self.tol * np.linalg.norm(point):
                break
        return point if here <= start else m

    def approximate_full(self, factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian) -> FullGaussian:
        """Find the peak by Newton's method with the whole Hessian, then expand there; it starts at the cavity mean."""
        m, P, frame = cavity.mean, cavity.precision, cavity.root

        def objective(point: FloatArray) -> float:
            return float(beta * factor.cost(point[None])[0] + 0.5 * (point - m) @ P @ (point - m))

        point, here = m, objective(m)
        start = here
        for _ in range(self.max_steps):
            found = _taylor(factor, point, self.curvature)
            gradient = beta * found.slope + P @ (point - m)
            if not (found.is_finite and np.all(np.isfinite(gradient))):
                break
            # In coordinates in which the cavity is round; negative curvatures of the factor count as zero.
            values, vectors = np.linalg.eigh(beta * frame.T @ found.hessian @ frame)
            half = frame @ vectors / np.sqrt(1.0 + np.maximum(values, 0.0))
            direction = -half @ (half.T @ gradient)
            descent = float(gradient @ direction)
            if not descent < 0.0:
                break
            for halving in range(HALVINGS):
                length = 0.5**halving
                there = objective(point + length * direction)
                if there <= here + ARMIJO * length * descent + ROUNDING * abs(here):
                    break
            else:
                break
            step = length * direction
            point, here = point + step, there
            if np.linalg.norm(step) <= self.tol * np.linalg.norm(point):
                break
        return _taylor(factor, point if here <= start else m, self.curvature).gaussian(beta)
