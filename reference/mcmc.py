"""Elliptical slice sampling of the exact posterior of small problems.

All chains move together, one per row of an array. There is neither a step size to tune nor a gradient, so that losses
with kinks are sampled as smooth ones are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from reference.problems import FloatArray

# Variance of the whitening Gaussian against that of full EP: above 1, so that its tails are not the lighter ones.
_INFLATION = 1.1
# Share of a run that is discarded at the start.
_WARM_UP = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Draws of a posterior.

    Parameters
    ----------
    values
        Array ``(draws, chains, dim)``.
    """

    values: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Mean of every coordinate."""
        result: FloatArray = np.mean(self.values, axis=(0, 1))
        return result

    @property
    def std(self) -> FloatArray:
        """Standard deviation of every coordinate."""
        result: FloatArray = np.std(self.values, axis=(0, 1))
        return result

    @property
    def effective_size(self) -> float:
        """Independent draws of the same accuracy, of the coordinate that has fewest, of means and of variances."""
        return float(min(np.min(effective_sizes(v)) for v in self._checked()))

    @property
    def disagreement(self) -> float:
        """Largest R-hat of a coordinate, of means and of variances: 1 where chains agree."""
        return float(max(np.max(disagreements(v)) for v in self._checked()))

    def _checked(self) -> tuple[FloatArray, FloatArray]:
        return self.values, (self.values - self.mean) ** 2


def sample(
    factors: LinearBatches,
    prior: FactorialGaussian,
    mean: FloatArray,
    covariance: FloatArray,
    *,
    chains: int,
    draws: int,
    thin: int = 5,
) -> Draws:
    r"""Sample :math:`\text{prior}(\theta) \prod_i e^{-\ell(y_i, x_i^\top \theta)}`.

    Coordinates are those in which a Gaussian near the posterior is the standard one, :math:`\theta = m + C\psi`. The
    target is that Gaussian times a ratio which is nearly flat, and that is what elliptical slices are good at. The seed
    is fixed: same input, same draws.

    Parameters
    ----------
    factors, prior
        The problem.
    mean, covariance
        Those of the Gaussian. They decide how quickly chains mix, not what they converge to.
    chains, draws, thin
        Chains, draws kept of each, and steps between draws. A fifth as many more steps come first and are not kept.
    """
    rng = np.random.default_rng(0)
    C = np.linalg.cholesky(_INFLATION * covariance)
    centre, precision = prior.mean, prior.precision

    def level(psi: FloatArray) -> FloatArray:
        theta = mean + psi @ C.T
        far = 0.5 * (psi**2).sum(axis=1) - 0.5 * (theta - centre) ** 2 @ precision
        result: FloatArray = far - factors.cost(theta)
        return result

    start = rng.standard_normal((chains, factors.dim))
    values = elliptical_slices(level, start, draws, thin, int(_WARM_UP * draws), rng)
    return Draws(mean + values @ C.T)


def elliptical_slices(
    level: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    draws: int,
    thin: int,
    warm_up: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Sample standard normal times ``exp(level)``, which takes points ``(n, dim)``; all chains at once.

    Returns
    -------
    FloatArray
        Draws ``(draws, chains, dim)``, after ``warm_up`` discarded ones.
    """
    points, heights = start, level(start)
    kept = np.empty((draws, *start.shape))
    for draw in range(-warm_up, draws):
        for _ in range(thin):
            points, heights = _step(level, points, heights, rng)
        if draw >= 0:
            kept[draw] = points
    return kept


def _step(
    level: Callable[[FloatArray], FloatArray], points: FloatArray, heights: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Move every chain along an ellipse through its point, to where the level is above a random bar."""
    chains = len(points)
    others = rng.standard_normal(points.shape)
    bars = heights - rng.exponential(size=chains)
    angles = rng.uniform(0.0, 2.0 * np.pi, chains)
    low, high = angles - 2.0 * np.pi, angles.copy()
    moved, risen = points.copy(), heights.copy()
    waiting = np.arange(chains)
    while waiting.size:
        a = angles[waiting, None]
        trial = points[waiting] * np.cos(a) + others[waiting] * np.sin(a)
        reached = level(trial)
        is_above = reached >= bars[waiting]
        done = waiting[is_above]
        moved[done], risen[done] = trial[is_above], reached[is_above]
        waiting = waiting[~is_above]
        # The bracket shrinks towards angle zero, where the chain stands and the level is above the bar.
        tried = angles[waiting]
        low[waiting] = np.where(tried < 0.0, tried, low[waiting])
        high[waiting] = np.where(tried < 0.0, high[waiting], tried)
        angles[waiting] = rng.uniform(low[waiting], high[waiting])
    return moved, risen


def disagreements(values: FloatArray) -> FloatArray:
    r"""R-hat of every coordinate of draws ``(draws, chains, dim)``, each chain cut in halves.

    .. math:: \hat R^2 = \frac{n-1}{n} + \frac{B}{n W}

    with variances W within and B / n between n draws of half chains.
    """
    half = len(values) // 2
    halves = np.concatenate([values[:half], values[half : 2 * half]], axis=1)
    within = np.mean(np.var(halves, axis=0, ddof=1), axis=0)
    between = np.var(np.mean(halves, axis=0), axis=0, ddof=1)
    result: FloatArray = np.sqrt((half - 1.0) / half + between / within)
    return result


def effective_sizes(values: FloatArray) -> FloatArray:
    r"""Effective number of draws of every coordinate of ``(draws, chains, dim)``.

    All draws divided by :math:`1 + 2 \sum_t \rho_t`. Correlations :math:`\rho_t` of a chain with itself t draws later
    are taken in pairs, as long as the sum of a pair is positive, and no pair as larger than the one before.
    """
    n, chains, _ = values.shape
    means = np.mean(values, axis=0)
    spectrum = np.fft.rfft(values - means, n=2 * n, axis=0)
    covariances = np.mean(np.fft.irfft(np.abs(spectrum) ** 2, n=2 * n, axis=0)[:n] / n, axis=1)
    total = covariances[0] + (np.var(means, axis=0, ddof=1) if chains > 1 else 0.0)
    correlations = 1.0 - (covariances[0] - covariances) / total
    pairs = correlations[: n - n % 2].reshape(n // 2, 2, -1).sum(axis=1)
    is_first_run = np.cumprod(pairs > 0.0, axis=0).astype(bool)
    pairs = np.minimum.accumulate(np.where(is_first_run, pairs, 0.0), axis=0)
    result: FloatArray = n * chains / np.maximum(2.0 * np.sum(pairs, axis=0) - 1.0, 1.0 / np.log10(n * chains + 10.0))
    return result
