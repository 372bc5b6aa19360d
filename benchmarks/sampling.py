r"""Draws of the posterior of a linear model by Hamiltonian Monte Carlo or elliptical slices, all chains at once.

Coordinates are those in which a Gaussian near the posterior is the standard one, :math:`\theta = m + C\psi`: there a
few leapfrog steps give draws that hardly depend on the last. The Gaussian decides how quickly chains mix, not what they
converge to: every proposal is accepted or refused by the true density. Where coefficients are bounded on one side only
(a level of few rows, all of one label), paths run into a wall and need very small steps; elliptical slices take over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from reference.mcmc import effective_sizes, elliptical_slices
from reference.problems import FloatArray

CHAINS = 16
# Leapfrog steps of a quarter of the period of a standard Gaussian, and the acceptance that the warm-up aims at.
_QUARTER, _ACCEPTANCE = 0.5 * np.pi, 0.8
_WARM_UP = 60
# Leapfrog steps below this length, over the number of coefficients, are too small, and slices are taken instead, whose
# moves are the shorter the more coefficients there are: of a Gaussian so much wider, so that its tails are not the
# lighter ones, with so many of them per draw.
_SHORTEST, _WIDER, _THIN = 1.0, 1.1, 5
# Draws of each chain that are made before it is asked whether they are enough, and at most.
_ROUND, _MOST = 50, 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Moments of the draws, and how many independent ones they are worth, per coefficient."""

    mean: FloatArray
    std: FloatArray
    skewness: FloatArray
    effective: FloatArray


class Density(Protocol):
    """Minus a log density up to a constant, and its gradient, at points ``(chains, dim)``."""

    def value(self, theta: FloatArray) -> FloatArray:
        """One number per point."""

    def gradient(self, theta: FloatArray) -> FloatArray:
        """One row per point."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Prior of mean zero times the losses of all rows; the constant column is one of X."""

    loss: str
    X: FloatArray
    y: FloatArray
    prior_variance: FloatArray

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Gradient of minus the log density at points ``(chains, dim)``."""
        margins = self.y[:, None] * (self.X @ theta.T)
        weights = expit(-margins) if self.loss == "logistic" else (margins < 1.0).astype(np.float64)
        return theta / self.prior_variance - (self.y[:, None] * weights).T @ self.X

    def value(self, theta: FloatArray) -> FloatArray:
        """Minus the log density at points."""
        margins = self.y[:, None] * (self.X @ theta.T)
        costs = np.logaddexp(0.0, -margins) if self.loss == "logistic" else np.maximum(1.0 - margins, 0.0)
        return np.sum(costs, axis=0) + 0.5 * np.sum(theta**2 / self.prior_variance, axis=1)


def sample(
    target: Density,
    mean: FloatArray,
    covariance: FloatArray,
    draws: float,
    seed: int = 0,
    most_skewed: float = np.inf,
) -> Summary:
    """Draw until every coefficient that is not more skewed than that, and its square, has so many effective draws."""
    return summary(draw(target, mean, covariance, draws, seed, most_skewed))


def draw(
    target: Density,
    mean: FloatArray,
    covariance: FloatArray,
    count: float,
    seed: int = 0,
    most_skewed: float = np.inf,
) -> FloatArray:
    """Draws ``(draws, chains, dim)``: for every coefficient, and its square, ``count`` effective ones.

    Coefficients that are more skewed than ``most_skewed`` may have fewer: chains move along their tails slowly.
    """
    rng, C = np.random.default_rng(seed), np.linalg.cholesky(covariance)

    def value(psi: FloatArray) -> FloatArray:
        return target.value(mean + psi @ C.T)

    def gradient(psi: FloatArray) -> FloatArray:
        return target.gradient(mean + psi @ C.T) @ C

    chains = _Chains(value, gradient, rng.standard_normal((CHAINS, mean.size)), rng)
    for _ in range(_WARM_UP):
        chains.step(adapt=True)
    make = chains.steps if chains.length >= _SHORTEST / mean.size else _Slices(value, chains.points, rng).steps
    kept = np.empty((0, CHAINS, mean.size))
    while len(kept) < _MOST:
        kept = np.concatenate([kept, make(_ROUND)])
        found = summary(kept @ C.T)
        if np.min(found.effective[np.abs(found.skewness) <= most_skewed], initial=np.inf) >= count:
            break
    return mean + kept @ C.T


def summary(values: FloatArray) -> Summary:
    """Moments of draws ``(draws, chains, dim)``."""
    mean = np.mean(values, axis=(0, 1))
    apart = values - mean
    std = np.sqrt(np.mean(apart**2, axis=(0, 1)))
    return Summary(mean, std, np.mean(apart**3, axis=(0, 1)) / std**3, _effective(values))


class _Slices:
    """Points of all chains, moved by elliptical slices."""

    def __init__(self, value: Callable[[FloatArray], FloatArray], points: FloatArray, rng: np.random.Generator) -> None:
        self.value, self.points, self.rng = value, points / _WIDER, rng
        self.steps(_ROUND)

    def steps(self, count: int) -> FloatArray:
        """Make so many draws."""
        kept = elliptical_slices(self._level, self.points, count, _THIN, 0, self.rng)
        self.points = kept[-1]
        return _WIDER * kept

    def _level(self, psi: FloatArray) -> FloatArray:
        return 0.5 * np.sum(psi**2, axis=1) - self.value(_WIDER * psi)


class _Chains:
    """Points of all chains, moved together, with one step length for all."""

    def __init__(
        self,
        value: Callable[[FloatArray], FloatArray],
        gradient: Callable[[FloatArray], FloatArray],
        points: FloatArray,
        rng: np.random.Generator,
    ) -> None:
        self.value, self.gradient, self.points, self.rng = value, gradient, points, rng
        self.height, self.slope = value(points), gradient(points)
        self.length = 0.4

    def steps(self, count: int) -> FloatArray:
        """Make so many draws."""
        return np.array([self.step() for _ in range(count)])

    def step(self, adapt: bool = False) -> FloatArray:
        """Move every chain along a path of about a quarter of a period; return the points."""
        rng, length = self.rng, self.length * self.rng.uniform(0.7, 1.3)
        momenta = rng.standard_normal(self.points.shape)
        points, slope = self.points, self.slope
        before = self.height + 0.5 * np.sum(momenta**2, axis=1)
        for _ in range(max(1, round(_QUARTER / length))):
            momenta = momenta - 0.5 * length * slope
            points = points + length * momenta
            slope = self.gradient(points)
            momenta = momenta - 0.5 * length * slope
        height = self.value(points)
        with np.errstate(over="ignore", invalid="ignore"):
            chances = np.nan_to_num(np.exp(np.minimum(before - height - 0.5 * np.sum(momenta**2, axis=1), 0.0)))
        is_taken = rng.random(chances.size) < chances
        self.points = np.where(is_taken[:, None], points, self.points)
        self.slope = np.where(is_taken[:, None], slope, self.slope)
        self.height = np.where(is_taken, height, self.height)
        if adapt:
            self.length = min(self.length * float(np.exp(0.2 * (np.mean(chances) - _ACCEPTANCE))), 1.0)
        return self.points


def _effective(values: FloatArray) -> FloatArray:
    """Effective draws of every coefficient: the fewer of those of its values and of its squared deviations."""
    apart = values - np.mean(values, axis=(0, 1))
    sizes = np.minimum(effective_sizes(apart), effective_sizes(apart**2))
    return np.minimum(sizes, values.shape[0] * values.shape[1])  # opposite deviations do not count twice
