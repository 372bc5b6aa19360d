r"""Exact draws by elliptical slice sampling around a Gaussian approximation, and how many they are worth.

A density :math:`p` is written as a Gaussian :math:`g` times the ratio :math:`p / g`. A step draws an ellipse through
the present point from :math:`g` and moves along it to a random point at which the ratio exceeds a random level (Murray,
Adams and MacKay 2010). Any density will do, kinks included; nothing has to be tuned, and the Gaussian sets the
speed only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from cavity._types import FloatArray

LogDensity = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Draws of several chains.

    Attributes
    ----------
    chains
        The draws, of shape ``(chains, draws, dim)``.
    log_density
        Logarithm of the density at every draw, up to a constant, of shape ``(chains, draws)``.
    evaluations
        Number of points at which the density was evaluated.
    """

    chains: FloatArray
    log_density: FloatArray
    evaluations: int

    @property
    def values(self) -> FloatArray:
        """All draws, of shape ``(n, dim)``."""
        return self.chains.reshape(-1, self.chains.shape[2])

    @property
    def mean(self) -> FloatArray:
        """Mean of all draws."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def std(self) -> FloatArray:
        """Standard deviation of all draws."""
        return np.asarray(self.values.std(axis=0))

    @property
    def covariance(self) -> FloatArray:
        """Covariance of all draws."""
        return np.atleast_2d(np.cov(self.values.T))

    @property
    def r_hat(self) -> FloatArray:
        """Potential scale reduction of every coordinate, split and of normalised ranks; chains agree below 1.01."""
        return np.array([r_hat(column) for column in np.moveaxis(self.chains, 2, 0)])

    @property
    def effective(self) -> FloatArray:
        """Number of independent draws that would give the mean of every coordinate as well."""
        return np.array([effective_draws(column) for column in np.moveaxis(self.chains, 2, 0)])

    def quantiles(self, levels: Sequence[float]) -> FloatArray:
        """Quantiles of every coordinate, of shape ``(levels, dim)``.

        Parameters
        ----------
        levels
            Numbers in [0, 1].
        """
        return np.asarray(np.quantile(self.values, levels, axis=0))


def elliptical_slices(
    log_density: LogDensity,
    gaussian: Any,
    draws: int,
    rng: np.random.Generator,
    *,
    chains: int = 20,
    warmup: int = 100,
    widening: float = 1.2,
) -> Draws:
    """Sample a density by many chains at once.

    The warm-up has four parts. After each, where there are enough draws for it, the ellipse takes their mean and
    covariance: chains that a Gaussian too narrow has kept from mixing then move.

    Parameters
    ----------
    log_density
        Logarithm of the density at points ``(n, dim)``, up to a constant. Minus infinity and NaN are outside.
    gaussian
        Approximation with a mean and ``draws(noise)``, where the chains start.
    draws
        Number of draws at least, of all chains together.
    rng
        Random numbers.
    chains
        Number of chains; the density is asked for as many points at once.
    warmup
        Number of steps of every chain that are left out.
    widening
        Standard deviations of the ellipse in those of the Gaussian. Above one, tails that are heavier than
        the Gaussian's are visited as they should; twice as wide costs about one more evaluation per step.
    """
    dim, steps = gaussian.mean.size, -(-draws // chains)
    walk = _Walk(log_density, gaussian.draws, widening)
    # Within the Gaussian itself; outside the support of the density, nearer to its mean.
    x = rng.standard_normal((chains, dim)) / widening
    for _ in range(30):
        here, _ = walk.ratio(x)
        if np.all(np.isfinite(here)):
            break
        x[~np.isfinite(here)] *= 0.5
    else:
        raise ValueError("the density is zero around the mean of the Gaussian: there is nothing to sample")
    for _ in range(4):
        points = walk.place(walk.go(x, warmup // 4, rng)[0].reshape(-1, dim))
        if len(points) > 20 * dim:
            x = walk.follow(points, widening)[-chains:]
    found, values = walk.go(x, steps, rng)
    chained = walk.place(found.reshape(-1, dim)).reshape(steps, chains, dim)
    return Draws(np.ascontiguousarray(np.swapaxes(chained, 0, 1)), values.T, walk.evaluations)


class _Walk:
    """Chains in coordinates in which the ellipse is a circle."""

    def __init__(self, log_density: LogDensity, draws: Callable[[FloatArray], FloatArray], widening: float) -> None:
        self.log_density, self.evaluations = log_density, 0
        self.place: Callable[[FloatArray], FloatArray] = lambda noise: draws(widening * noise)

    def ratio(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the density over the Gaussian, and of the density."""
        self.evaluations += len(x)
        with np.errstate(all="ignore"):
            density = np.asarray(self.log_density(self.place(x)), dtype=np.float64)
        density = np.where(np.isnan(density), -np.inf, density)
        return density + 0.5 * np.sum(x * x, axis=1), density

    def follow(self, points: FloatArray, widening: float) -> FloatArray:
        """Take mean and covariance of some points; give their places in the new coordinates."""
        mean, covariance = points.mean(axis=0), np.atleast_2d(np.cov(points.T))
        covariance[np.diag_indices(mean.size)] *= 1.0 + 1e-9  # of chains that have not moved
        root = np.linalg.cholesky(covariance)
        self.place = lambda noise: mean + widening * noise @ root.T
        return np.linalg.solve(widening * root, (points - mean).T).T

    def go(self, x: FloatArray, steps: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Move all chains, in place; give their places and log densities, step by step."""
        here, density = self.ratio(x)
        found, values = np.empty((steps, *x.shape)), np.empty((steps, len(x)))
        for step in range(steps):
            origin, other = x.copy(), rng.standard_normal(x.shape)
            level, angle = here + np.log(rng.uniform(size=len(x))), rng.uniform(0.0, 2.0 * np.pi, len(x))
            low, high, left = angle - 2.0 * np.pi, angle.copy(), np.arange(len(x))
            while left.size:
                turn = angle[left, None]
                trial = origin[left] * np.cos(turn) + other[left] * np.sin(turn)
                there, at = self.ratio(trial)
                # The bracket shrinks towards the present point, which is inside: rounding ends it at last.
                is_stuck = high[left] - low[left] < 1e-12
                moves = there > level[left]
                done = left[moves]
                x[done], here[done], density[done] = trial[moves], there[moves], at[moves]
                left = left[~moves & ~is_stuck]
                below = angle[left] < 0.0
                low[left[below]], high[left[~below]] = angle[left[below]], angle[left[~below]]
                angle[left] = rng.uniform(low[left], high[left])
            found[step], values[step] = x, density
        return found, values


def r_hat(chains: FloatArray) -> float:
    """Split potential scale reduction by normalised ranks (Vehtari et al. 2021), of chains ``(m, n)``."""
    half = chains.shape[1] // 2
    parts = np.concatenate([chains[:, :half], chains[:, half : 2 * half]])
    folded = np.abs(parts - np.median(parts))
    worst = 1.0
    for values in (parts, folded):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - 0.5 * (counts - 1.0))[place].reshape(values.shape)
        z = ndtri((ranks - 0.375) / (values.size + 0.25))
        within = float(np.mean(np.var(z, axis=1, ddof=1)))
        between = float(np.var(np.mean(z, axis=1), ddof=1))
        if within > 0.0:
            worst = max(worst, float(np.sqrt((half - 1.0) / half + between / within)))
    return worst


def effective_draws(chains: FloatArray) -> float:
    """Effective number of draws of one quantity by Geyer's initial monotone sequence, of chains ``(m, n)``."""
    count, length = chains.shape
    away = chains - chains.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(away, n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length] / length
    within = float(np.mean(covariance[:, 0])) * length / (length - 1.0)
    total = within * (length - 1.0) / length
    if count > 1:
        total += float(np.var(chains.mean(axis=1), ddof=1))
    if not total > 0.0:
        return float(chains.size)
    correlation = 1.0 - (within - np.mean(covariance, axis=0)) / total
    correlation[0] = 1.0
    pairs = correlation[: length - length % 2].reshape(-1, 2).sum(axis=1)
    stop = np.flatnonzero(pairs <= 0.0)
    pairs = np.minimum.accumulate(pairs[: stop[0] if stop.size else pairs.size])
    time = max(2.0 * float(np.sum(pairs)) - 1.0, 1.0 / np.log10(chains.size))
    return float(chains.size / time)
