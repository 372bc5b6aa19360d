r"""Whether a Gaussian can be trusted: draws from it, weighted by how likely they are under the density itself.

The weights of the largest draws are smoothed by a generalised Pareto distribution (Vehtari et al. 2024). Its shape k
says how heavy their tail is: below 0.5 the weighted means have a variance, above 0.7 draws from the Gaussian cannot
say what the density is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from cavity._types import FloatArray
from cavity.ep.draws import LogDensity

# Shape of the tail of weights up to which they can be used.
LARGEST_SHAPE = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """A density seen by weighted draws from a Gaussian.

    Attributes
    ----------
    points
        The draws, of shape ``(n, dim)``.
    log_weights
        Logarithms of their smoothed weights, which sum to one.
    shape
        Shape k of the tail of the weights.
    log_mass
        Estimate of the logarithm of the integral of the density.
    """

    points: FloatArray
    log_weights: FloatArray
    shape: float
    log_mass: float

    @property
    def is_reliable(self) -> bool:
        """Whether the weights can be used."""
        return self.shape <= LARGEST_SHAPE

    @property
    def effective(self) -> float:
        """Number of draws from the density itself that are worth as much."""
        return float(np.exp(-logsumexp(2.0 * self.log_weights)))

    @property
    def mean(self) -> FloatArray:
        """Weighted mean of the draws."""
        return np.asarray(np.exp(self.log_weights) @ self.points)

    @property
    def std(self) -> FloatArray:
        """Weighted standard deviation of the draws."""
        return np.asarray(np.sqrt(np.exp(self.log_weights) @ np.square(self.points - self.mean)))


def weighted_draws(
    log_density: LogDensity, gaussian: Any, draws: int, rng: np.random.Generator, widening: float = 1.0
) -> Weighted:
    """Draw from a Gaussian and weight the draws by a density.

    Parameters
    ----------
    log_density
        Logarithm of the density at points ``(n, dim)``; NaN counts as a density of zero.
    gaussian
        Approximation with a mean, ``draws(noise)`` and a ``root`` of the covariance or independent coordinates.
    draws
        Number of draws.
    rng
        Random numbers.
    widening
        Standard deviations of the draws in those of the Gaussian.
    """
    dim = gaussian.mean.size
    noise = rng.standard_normal((draws, dim))
    points = gaussian.draws(widening * noise)
    root = getattr(gaussian, "root", None)
    scale = float(np.sum(np.log(gaussian.std))) if root is None else float(np.linalg.slogdet(root)[1])
    normaliser = 0.5 * dim * np.log(2.0 * np.pi) + scale + dim * np.log(widening)
    with np.errstate(all="ignore"):
        ratios = np.asarray(log_density(points)) + 0.5 * np.sum(noise * noise, axis=1) + normaliser
    ratios = np.where(np.isnan(ratios), -np.inf, ratios)
    log_weights, shape = pareto_smoothed(ratios)
    return Weighted(points, log_weights, shape, float(logsumexp(ratios) - np.log(draws)))


def pareto_smoothed(log_ratios: FloatArray) -> tuple[FloatArray, float]:
    """Smooth the tail of weights, and normalise them; give their logarithms and the shape of the tail.

    The shape is infinite where the tail has fewer than five distinct weights, or a weight is not finite.
    """
    x = np.asarray(log_ratios, dtype=np.float64)
    top = float(np.max(x))
    if not np.isfinite(top):
        return np.full(x.size, -np.log(x.size)), np.inf
    x, shape = x - top, np.inf
    tail = int(np.ceil(min(0.2 * x.size, 3.0 * np.sqrt(x.size))))
    order = np.argsort(x, kind="stable")
    cut = max(float(x[order[-tail - 1]]), float(np.log(np.finfo(float).tiny)))
    last = order[-tail:][x[order[-tail:]] > cut]
    if last.size > 4:
        excess = np.exp(x[last]) - np.exp(cut)
        if excess[0] < excess[-1]:
            shape, scale = _pareto(excess)
            levels = (np.arange(last.size) + 0.5) / last.size
            quantiles = -np.log1p(-levels) if abs(shape) < 1e-12 else np.expm1(-shape * np.log1p(-levels)) / shape
            x = x.copy()
            x[last] = np.minimum(np.log(scale * quantiles + np.exp(cut)), 0.0)
        else:
            shape = -np.inf if np.ptp(x) < 1e-12 else np.inf
    elif np.ptp(x) < 1e-12:
        shape = -np.inf  # all weights are equal: the Gaussian is the density
    return x - logsumexp(x), float(shape)


def _pareto(sorted_excess: FloatArray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution (Zhang and Stephens 2009), with their prior of the shape."""
    x, n = sorted_excess, sorted_excess.size
    grid = 30 + int(np.sqrt(n))
    quarter = x[int(n / 4.0 + 0.5) - 1]
    b = 1.0 / x[-1] + (1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3.0 * quarter)
    k = np.mean(np.log1p(-b[:, None] * x), axis=1)
    likelihood = n * (np.log(-b / k) - k - 1.0)
    with np.errstate(over="ignore"):
        weights = 1.0 / np.sum(np.exp(likelihood - likelihood[:, None]), axis=1)
    keep = weights >= 10.0 * np.finfo(float).eps
    best = float(b[keep] @ (weights[keep] / np.sum(weights[keep])))
    shape = float(np.mean(np.log1p(-best * x)))
    scale = -shape / best
    return (n * shape + 5.0) / (n + 10.0), scale
