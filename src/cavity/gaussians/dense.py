"""Gaussians with a full covariance, kept by a square root of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from cavity.gaussians.factorial import FactorialGaussian, ImproperError

FloatArray = NDArray[np.float64]

_LOG_2PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class CorrelatedGaussian:
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
    >>> g = CorrelatedGaussian.of(FactorialGaussian.from_moments(mean=[1.0, -2.0], variance=4.0))
    >>> (g * g / g).mean.round(6), g.variance
    (array([ 1., -2.]), array([4., 4.]))
    """

    mean: FloatArray
    root: FloatArray
    log_mass: float

    @classmethod
    def of(cls, gaussian: FactorialGaussian, turn: FloatArray | None = None) -> CorrelatedGaussian:
        """Take a factorial Gaussian, of the coordinates before a linear map if there is one."""
        mean, std = gaussian.mean, gaussian.std
        if turn is None:
            return cls(mean, np.diag(std), gaussian.log_mass)
        return cls(turn @ mean, turn * std, gaussian.log_mass)

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
        result: FloatArray = self.root @ self.root.T
        return result

    @property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        result: FloatArray = np.sum(np.square(self.root), axis=1)
        return result

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    @cached_property
    def precision(self) -> FloatArray:
        """Inverse of the covariance, a matrix."""
        inverse = np.linalg.inv(self.root)
        result: FloatArray = inverse.T @ inverse
        return result

    def draws(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers, one draw a row, into draws of the normalised density."""
        result: FloatArray = self.mean + noise @ self.root.T
        return result

    def spread_along(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row, dense or sparse."""
        result: FloatArray = np.sum(np.square(np.asarray(rows @ self.root)), axis=1)
        return result

    def __mul__(self, other: CorrelatedGaussian) -> CorrelatedGaussian:
        return _joined(self, other, 1.0)

    def __truediv__(self, other: CorrelatedGaussian) -> CorrelatedGaussian:
        return _joined(self, other, -1.0)

    def __pow__(self, exponent: float) -> CorrelatedGaussian:
        """Positive powers only."""
        root = self.root / np.sqrt(exponent)
        volume = 0.5 * self.dim * _LOG_2PI + _log_determinant(self.root)
        height = exponent * (self.log_mass - volume)
        return CorrelatedGaussian(self.mean, root, height + volume - 0.5 * self.dim * float(np.log(exponent)))


def _joined(a: CorrelatedGaussian, b: CorrelatedGaussian, sign: float) -> CorrelatedGaussian:
    """Multiply, or divide with the sign -1: precisions and shifts add, where the first is standard."""
    apart = b.mean - a.mean
    precision = sign * (a.root.T @ b.precision @ a.root)
    shift = a.root.T @ (sign * (b.precision @ apart))
    matrix = np.eye(a.dim) + 0.5 * (precision + precision.T)
    try:
        lower = cholesky(matrix, lower=True)
    except (LinAlgError, ValueError) as error:
        raise ImproperError("the quotient of the two Gaussians is not proper") from error
    half = solve_triangular(lower, shift, lower=True)
    inverse = solve_triangular(lower, np.eye(a.dim), lower=True).T
    step = inverse @ half
    # Logarithm of the second at the first one's mean, then of the integral of the product around it.
    height = b.log_mass - 0.5 * (b.dim * _LOG_2PI + float(apart @ b.precision @ apart)) - _log_determinant(b.root)
    log_mass = a.log_mass + sign * height + 0.5 * float(half @ half) - float(np.sum(np.log(np.diag(lower))))
    return CorrelatedGaussian(a.mean + a.root @ step, a.root @ inverse, log_mass)


def _log_determinant(root: FloatArray) -> float:
    return float(np.linalg.slogdet(root)[1])


__all__ = ["CorrelatedGaussian"]
