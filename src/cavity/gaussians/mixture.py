"""Mixtures of Gaussians of the same coordinates: posteriors averaged over hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from cavity._types import FloatArray
from cavity.gaussians.dense import DenseGaussian

# Most halvings of the interval between the quantiles of the parts, and what is left of it, in standard deviations of
# the narrowest part, where they end.
_HALVINGS, _EXACT = 60, 1e-13
# Steps of this share of one, modulo one, fill the unit interval evenly.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A weighted sum of Gaussians.

    Parameters
    ----------
    weights
        Weights of the parts, which sum to one.
    parts
        Gaussians of any kind.
    log_mass
        Logarithm of the integral.

    Examples
    --------
    >>> from cavity.gaussians.factorial import FactorialGaussian
    >>> parts = [FactorialGaussian.from_moments([m], 1.0) for m in (-1.0, 1.0)]
    >>> GaussianMixture(np.array([0.5, 0.5]), tuple(parts), 0.0).variance
    array([2.])
    """

    weights: FloatArray
    parts: tuple[Any, ...]
    log_mass: float

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.parts[0].dim)

    @cached_property
    def mean(self) -> FloatArray:
        """Mean of the normalised density."""
        return np.asarray(self.weights @ np.array([part.mean for part in self.parts]))

    @cached_property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        total = np.zeros(self.dim)  # coefficients may be many: one part at a time
        for weight, part in zip(self.weights, self.parts, strict=True):
            total += weight * (part.variance + np.square(part.mean - self.mean))
        return total

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density."""
        total = np.zeros((self.dim, self.dim))
        for weight, part in zip(self.weights, self.parts, strict=True):
            apart = part.mean - self.mean
            total += weight * (part.covariance + np.outer(apart, apart))
        return total

    @cached_property
    def root(self) -> FloatArray:
        """A square root of the covariance, which may be singular: that of the correlations, times the deviations."""
        std = np.where(self.std > 0.0, self.std, 1.0)
        values, vectors = np.linalg.eigh(self.covariance / std / std[:, None])
        return np.asarray(std[:, None] * vectors * np.sqrt(np.maximum(values, 0.0)))

    def draws(self, noise: FloatArray) -> FloatArray:
        """Draw from the parts in turn, by their weights; arguments as in `FactorialGaussian.draws`."""
        ends = np.cumsum(self.weights)
        turns = np.minimum(np.searchsorted(ends, (0.5 + _GOLDEN * np.arange(len(noise))) % 1.0), len(self.parts) - 1)
        found = np.empty_like(noise)
        for k, part in enumerate(self.parts):
            found[turns == k] = part.draws(noise[turns == k])
        return found

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row; arguments as in `FactorialGaussian.predictor_variance`."""
        if isinstance(self.parts[0], DenseGaussian):
            return np.asarray(np.sum(np.square(np.asarray(rows @ self.root)), axis=1))
        means, variances = self.predictors(rows)
        center = self.weights @ means
        return np.asarray(self.weights @ (variances + np.square(means - center)))

    def predictors(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means and variances ``(parts, n)`` of the linear predictors of rows; arguments as in `predictor_variance`."""
        means = np.array([np.asarray(rows @ part.mean) for part in self.parts])
        return means, np.array([part.predictor_variance(rows) for part in self.parts])

    def quantile(self, q: float) -> FloatArray:
        """Quantile of every coordinate.

        Parameters
        ----------
        q
            Probability of a value below the quantile.
        """
        means, stds = (np.array([getattr(part, name) for part in self.parts]) for name in ("mean", "variance"))
        return normal_mixture_quantile(self.weights, means, np.sqrt(stds), q)

    def positive(self) -> FloatArray:
        """Probability that a coordinate is positive."""
        with np.errstate(divide="ignore"):
            each = [ndtr(part.mean / np.sqrt(part.variance)) for part in self.parts]
        return np.asarray(self.weights @ np.array(each))


def normal_mixture_quantile(weights: FloatArray, means: FloatArray, stds: FloatArray, q: float) -> FloatArray:
    """Quantile of mixtures of normal variables, with means and standard deviations ``(parts, n)``."""
    each = means + stds * ndtri(q)
    low, high = np.min(each, axis=0), np.max(each, axis=0)
    stds = np.maximum(stds, np.finfo(np.float64).tiny)
    narrowest = np.min(stds, axis=0)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = weights @ ndtr((middle - means) / stds) < q
        low, high = np.where(below, middle, low), np.where(below, high, middle)
        if np.all(high - low <= _EXACT * narrowest):
            break
    return np.asarray(0.5 * (low + high))
