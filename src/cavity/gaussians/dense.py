"""Gaussians with a full covariance, kept by a square root of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavity._types import FloatArray

# Columns up to which a whole covariance is kept: 200 MB per copy of the matrix.
WIDEST_COVARIANCE = 5000


@dataclass(frozen=True, slots=True, eq=False)
class DenseGaussian:
    r"""A Gaussian with mean m, covariance :math:`S S^\top` and a mass, always proper.

    Parameters
    ----------
    mean
        The mean, of shape ``(dim,)``.
    root
        Any square root :math:`S` of the covariance, of shape ``(dim, dim)``; rounding cannot make the covariance
        indefinite then. Both arrays are taken as they are, and must not be written afterwards.
    log_mass
        Logarithm of the integral.

    Examples
    --------
    >>> DenseGaussian(np.array([1.0, -2.0]), np.array([[2.0, 0.0], [1.0, 1.0]]), 0.0).variance
    array([4., 2.])
    """

    mean: FloatArray
    root: FloatArray
    log_mass: float

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.mean.size)

    @property
    def is_proper(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.isfinite(np.sum(self.mean) + np.sum(np.abs(self.root)) + self.log_mass))

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density."""
        return np.asarray(self.root @ self.root.T)

    @property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        return np.asarray(np.sum(np.square(self.root), axis=1))

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    def draws(self, noise: FloatArray) -> FloatArray:
        """Draw from the normalised density; arguments as in `FactorialGaussian.draws`."""
        return np.asarray(self.mean + noise @ self.root.T)

    def covariance_with(self, weights: FloatArray) -> FloatArray:
        """Covariances of all coordinates with a combination; arguments as in `FactorialGaussian.covariance_with`."""
        return np.asarray(self.root @ (self.root.T @ weights))

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row; arguments as in `FactorialGaussian.predictor_variance`."""
        return np.asarray(np.sum(np.square(np.asarray(rows @ self.root)), axis=1))
