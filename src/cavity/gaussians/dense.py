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
        """Turn standard normal numbers into draws of the normalised density.

        Parameters
        ----------
        noise
            Standard normal numbers ``(n, dim)``, one draw per row.
        """
        return np.asarray(self.mean + noise @ self.root.T)

    def widened(self, directions: FloatArray, variances: FloatArray) -> DenseGaussian:
        r"""Add :math:`\sum_k c_k u_k u_k^\top` to the covariance C, where :math:`u_k = C w_k`.

        Parameters
        ----------
        directions
            Vectors :math:`w_k` as columns, ``(dim, count)``.
        variances
            Numbers :math:`c_k`, not negative.
        """
        # C + U U' = S (I + A A') S' with U = S A, and A A' = Q M Q' has few columns.
        Q, triangle = np.linalg.qr((self.root.T @ directions) * np.sqrt(variances))
        values, vectors = np.linalg.eigh(triangle @ triangle.T)
        grown = np.sqrt(1.0 + np.maximum(values, 0.0)) - 1.0
        along = Q @ vectors
        return DenseGaussian(self.mean, self.root + (self.root @ along * grown) @ along.T, self.log_mass)

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row.

        Parameters
        ----------
        rows
            Rows ``(n, dim)``, dense or sparse.
        """
        return np.asarray(np.sum(np.square(np.asarray(rows @ self.root)), axis=1))
