"""Factors that are known by their values, with all correlations: their density, where EP starts, and other peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cavity._types import FloatArray
from cavity.ep.factorised import Factorised
from cavity.ep.result import FactorError, untouched
from cavity.factors import Curvature, Derivatives, Factor, StarCosts
from cavity.gaussians.full import FullGaussian
from cavity.schemes._full import Peak, find_peak

# Parameters up to which Gaussians have all correlations by default: a rule has 3 (d + 1) (d + 2) nodes, 546 of them.
MOST_PARAMETERS = 12


class Counted:
    """A factor that counts the points at which it is asked, and notes that it was the last: errors are named by it."""

    def __init__(self, factor: Factor, index: int, counter: Any) -> None:
        self.factor, self.index, self.counter = factor, index, counter
        self.dim, self.coordinates, self.has_slope = factor.dim, factor.coordinates, factor.has_slope

    def cost(self, points: FloatArray) -> FloatArray:
        """Count the points."""
        self.counter.evaluations += len(points)
        self.counter.last = self.index
        return self.factor.cost(points)

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        """Count the point."""
        self._note(1)
        return self.factor.derivatives(point, curvature)

    def hessian(self, point: FloatArray, curvature: Curvature = "exact") -> FloatArray:
        """Count the point."""
        self._note(1)
        return self.factor.hessian(point, curvature)

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        """Count the points of the star."""
        self._note(2 * center.size + 1)
        return self.factor.star(center, steps)

    def _note(self, points: int) -> None:
        self.counter.evaluations += points
        self.counter.last = self.index

    def __getattr__(self, name: str) -> Any:
        return getattr(self.factor, name)


class OtherPeak(NamedTuple):
    """Another peak of a density.

    Parameters
    ----------
    point
        The place.
    log_odds
        Logarithm of its mass, by Laplace's method, over that of the posterior.
    """

    point: FloatArray
    log_odds: float


class Problem:
    """A Gaussian prior times factors at an inverse temperature.

    ``evaluations`` counts the costs of single factors at single points.
    """

    def __init__(self, factors: Sequence[Factor], prior: FullGaussian, beta: float) -> None:
        self.evaluations, self.last = 0, -1
        counted: list[Any] = [Counted(factor, k, self) for k, factor in enumerate(factors)]
        self.factors: list[Factor] = counted
        self.prior, self.beta = prior, beta
        self.supports = [factor.coordinates for factor in factors]

    def log_density(self, points: FloatArray) -> FloatArray:
        """Logarithm of the density at points ``(n, dim)``; its integral is the evidence."""
        total = np.zeros(len(points))
        with np.errstate(all="ignore"):
            for factor, support in zip(self.factors, self.supports, strict=True):
                total += factor.cost(points if support is None else points[:, support])
            return np.asarray(self.prior.log_density(points) - self.beta * total)

    def peak(self, near: FullGaussian, tol: float = 0.3) -> Peak | None:
        """Search for the peak from the mean of a Gaussian."""
        with np.errstate(all="ignore"):
            return find_peak(self.factors, self.supports, self.prior, self.beta, near, tol)

    def begin(self, backend: Factorised, near: FullGaussian) -> None:
        """Start EP with the quadratics of the factors about the peak; with uniform sites where none is found."""
        try:
            peak = self.peak(near)
        except Exception as error:
            raise FactorError(self.last, untouched(self.prior), error) from error
        for sites in () if peak is None else (peak.quadratics, [q.raised() for q in peak.quadratics]):
            if backend.may_begin_at(start := [site.gaussian(self.beta) for site in sites]):
                backend.begin_at(start)
                return

    def other_peaks(self, posterior: FullGaussian, starts: int, rng: np.random.Generator) -> list[OtherPeak]:
        """Search for peaks outside the posterior from draws of the prior; the largest first."""
        found: list[OtherPeak] = []
        prior = self.prior
        for point in prior.draws(rng.standard_normal((starts, prior.dim))):
            peak = self.peak(FullGaussian.from_moments(point, 0.1 * prior.covariance))
            if peak is None or not peak.found:
                continue
            gaps = [peak.center - place for place in (posterior.mean, *(other.point for other in found))]
            # Squared distances of a draw of the posterior are d, give or take sqrt(2 d).
            if min(float(gap @ posterior.precision @ gap) for gap in gaps) <= 16.0 + prior.dim:
                continue
            height = float(self.log_density(peak.center[None])[0])
            log_mass = height - peak.gaussian.log_density(peak.center) + peak.gaussian.log_mass
            log_odds = float(log_mass - posterior.log_mass)
            if math.isfinite(log_odds):
                found.append(OtherPeak(peak.center, log_odds))
        return sorted(found, key=lambda other: -other.log_odds)
