"""Gaussians with a full precision matrix in natural form: the family of few parameters with all correlations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg.lapack import dpotrf, dtrtri

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.factorial import LOG_2PI, PRECISION_ROUNDING, SITE_FLOOR, FactorialGaussian, ImproperError


@dataclass(frozen=True, slots=True, eq=False)
class FullGaussian:
    r"""A Gaussian with all correlations, unnormalised and possibly improper.

    .. math:: \log g(\theta) = s + r^\top \theta - \tfrac12\, \theta^\top P\, \theta

    with :math:`s` ``log_scale``, :math:`r` ``shift``, :math:`P` ``precision``. As for `FactorialGaussian`, product,
    quotient and power always exist; moments exist only where :math:`P` is positive definite. They cost
    :math:`O(d^3)`.

    Parameters
    ----------
    log_scale
        Logarithm of the value at the origin.
    shift
        Array of shape ``(dim,)``.
    precision
        Symmetric matrix of shape ``(dim, dim)``.

    Examples
    --------
    >>> g = FullGaussian.from_moments(mean=[1.0, -2.0], covariance=[[2.0, 1.0], [1.0, 2.0]])
    >>> (g * g).covariance.round(6)
    array([[1. , 0.5],
           [0.5, 1. ]])
    """

    log_scale: float
    shift: FloatArray
    precision: FloatArray

    @classmethod
    def from_moments(cls, mean: ArrayLike, covariance: ArrayLike, log_mass: float = 0.0) -> Self:
        """Build the Gaussian with this mean, covariance and logarithm of its integral.

        Parameters
        ----------
        mean
            Vector of shape ``(dim,)``.
        covariance
            Positive definite matrix of shape ``(dim, dim)``; the lower triangle counts.
        log_mass
            Logarithm of the integral; zero for a density.
        """
        m, S = np.array(mean, dtype=float), np.array(covariance, dtype=float)
        if m.ndim != 1 or S.shape != (m.size, m.size) or not np.all(np.isfinite(m)):
            raise ValueError(
                f"mean must be a finite vector and covariance a matrix of its size, got shapes {m.shape} and {S.shape}"
            )
        inverse = _inverse_root(S)
        if inverse is None:
            raise ValueError("covariance must be positive definite and finite")
        P = inverse.T @ inverse
        log_scale = log_mass - 0.5 * (m.size * LOG_2PI - 2.0 * float(np.sum(np.log(np.diag(inverse)))) + m @ P @ m)
        return cls(float(log_scale), P @ m, P)

    @classmethod
    def of(cls, other: FactorialGaussian) -> Self:
        """Give a product of independent Gaussians in this form.

        Parameters
        ----------
        other
            The product.
        """
        return cls(other.log_scale, other.shift.copy(), np.diag(other.precision))

    @classmethod
    def uniform(cls, dim: int) -> Self:
        """Build the function equal to one everywhere: the unit of the product.

        Parameters
        ----------
        dim
            Number of coordinates.
        """
        return cls(0.0, np.zeros(dim), np.zeros((dim, dim)))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.shift.size)

    @property
    def is_finite(self) -> bool:
        """Whether every natural parameter is a finite number."""
        with np.errstate(all="ignore"):
            return bool(np.isfinite(self.log_scale + np.sum(np.abs(self.shift)) + np.sum(np.abs(self.precision))))

    @property
    def is_proper(self) -> bool:
        """Whether the integral exists: all finite, the precision positive definite."""
        return self.is_finite and _inverse_root(self.precision) is not None

    def is_proper_beside(self, other: FullGaussian) -> bool:
        """Whether the precision is positive definite by more than the rounding of a difference from another.

        Parameters
        ----------
        other
            The Gaussian that this one was computed from.
        """
        if not self.is_finite:
            return False
        scale = np.sqrt(np.abs(np.diag(other.precision)))
        scaled = self.precision / np.outer(scale, scale) - self.dim * PRECISION_ROUNDING * np.eye(self.dim)
        return _inverse_root(scaled) is not None

    def is_negative_beside(self, cavity: FullGaussian) -> bool:
        """Whether a direction has a negative precision that is no rounding error beside those of the cavity.

        Parameters
        ----------
        cavity
            A proper Gaussian.
        """
        root = cavity.root
        return self.dim > 0 and bool(np.linalg.eigvalsh(root.T @ self.precision @ root)[0] < -SITE_FLOOR)

    def floored(self, cavity: FullGaussian) -> FullGaussian:
        """Raise negative precisions to zero in units of the cavity, keeping value and slope at its mean.

        Parameters
        ----------
        cavity
            A proper Gaussian.
        """
        inverse = np.linalg.inv(cavity.root)
        values, vectors = np.linalg.eigh(cavity.root.T @ self.precision @ cavity.root)
        frame = vectors.T @ inverse
        change = (frame.T * (np.maximum(values, 0.0) - values)) @ frame
        m = cavity.mean
        return FullGaussian(
            float(self.log_scale - 0.5 * m @ change @ m), self.shift + change @ m, self.precision + change
        )

    def times(self, x: FloatArray) -> FloatArray:
        """Multiply by the precision matrix.

        Parameters
        ----------
        x
            A vector ``(dim,)``.
        """
        return np.asarray(self.precision @ x)

    @property
    def root(self) -> FloatArray:
        r"""Square root :math:`S` of the covariance, :math:`S S^\top`."""
        return np.ascontiguousarray(self._proper_inverse_root().T)

    @property
    def mean(self) -> FloatArray:
        """Mean of the normalised density."""
        inverse = self._proper_inverse_root()
        return np.asarray(inverse.T @ (inverse @ self.shift))

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density."""
        inverse = self._proper_inverse_root()
        return np.asarray(inverse.T @ inverse)

    @property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        return np.asarray(np.sum(np.square(self._proper_inverse_root()), axis=0))

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    @property
    def log_mass(self) -> float:
        r"""Logarithm of the integral, :math:`s + \tfrac12 [r^\top P^{-1} r - \log\det P + d \log 2\pi]`."""
        inverse = self._proper_inverse_root()
        log_det = -2.0 * float(np.sum(np.log(np.diag(inverse))))
        return float(self.log_scale + 0.5 * (np.sum((inverse @ self.shift) ** 2) - log_det + self.dim * LOG_2PI))

    def log_density(self, points: ArrayLike) -> FloatArray:
        r"""Evaluate :math:`\log g`; normalise first for a density.

        Parameters
        ----------
        points
            Places of shape ``(..., dim)``.
        """
        t = np.asarray(points, dtype=float)
        return np.asarray(self.log_scale + t @ self.shift - 0.5 * np.sum((t @ self.precision) * t, axis=-1))

    def draws(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers into draws of the normalised density.

        Parameters
        ----------
        noise
            Standard normal numbers ``(n, dim)``, one draw per row.
        """
        return np.asarray(self.mean + noise @ self.root.T)

    def covariance_with(self, weights: FloatArray) -> FloatArray:
        """Covariances of all coordinates with a linear combination of them.

        Parameters
        ----------
        weights
            The linear combination, of shape ``(dim,)``.
        """
        return np.asarray(self.covariance @ weights)

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row.

        Parameters
        ----------
        rows
            Rows ``(n, dim)``, dense or sparse.
        """
        return np.asarray(np.sum(np.square(np.asarray(rows @ self.root)), axis=1))

    def marginal(self, coordinates: IndexArray | None) -> FullGaussian:
        """Integrate out the other coordinates.

        Parameters
        ----------
        coordinates
            Indices of the coordinates that are kept; None keeps all.
        """
        if coordinates is None:
            return self
        if coordinates.size == 0:
            return FullGaussian(self.log_mass, np.empty(0), np.empty((0, 0)))
        S = self.covariance[np.ix_(coordinates, coordinates)]
        return FullGaussian.from_moments(self.mean[coordinates], S, self.log_mass)

    def take(self, coordinates: IndexArray | None) -> FullGaussian:
        """Restrict the natural parameters to some coordinates, all others at zero.

        Parameters
        ----------
        coordinates
            Indices of the coordinates that are kept; None keeps all.
        """
        if coordinates is None:
            return self
        return FullGaussian(self.log_scale, self.shift[coordinates], self.precision[np.ix_(coordinates, coordinates)])

    def scatter(self, coordinates: IndexArray | None, dim: int) -> FullGaussian:
        """Extend to more coordinates, constant along those not named: the inverse of `take`.

        Parameters
        ----------
        coordinates
            Where the coordinates of this Gaussian go; None for all.
        dim
            Number of coordinates of the result.
        """
        if coordinates is None:
            return self
        shift, precision = np.zeros(dim), np.zeros((dim, dim))
        shift[coordinates], precision[np.ix_(coordinates, coordinates)] = self.shift, self.precision
        return FullGaussian(self.log_scale, shift, precision)

    def __mul__(self, other: FullGaussian) -> FullGaussian:
        return FullGaussian(
            self.log_scale + other.log_scale, self.shift + other.shift, self.precision + other.precision
        )

    def __truediv__(self, other: FullGaussian) -> FullGaussian:
        return FullGaussian(
            self.log_scale - other.log_scale, self.shift - other.shift, self.precision - other.precision
        )

    def __pow__(self, exponent: float) -> FullGaussian:
        return FullGaussian(exponent * self.log_scale, exponent * self.shift, exponent * self.precision)

    def combined(self, other: FullGaussian, by: Any) -> FullGaussian:
        """Combine natural parameters one by one.

        Parameters
        ----------
        other
            Gaussian of as many coordinates.
        by
            Function of two numbers or arrays.
        """
        return FullGaussian(
            float(by(self.log_scale, other.log_scale)), by(self.shift, other.shift), by(self.precision, other.precision)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FullGaussian):
            return NotImplemented
        pairs = ((self.shift, other.shift), (self.precision, other.precision))
        return self.log_scale == other.log_scale and all(np.array_equal(a, b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def _proper_inverse_root(self) -> FloatArray:
        inverse = _inverse_root(self.precision) if self.is_finite else None
        if inverse is None:
            raise ImproperError(
                "moments need finite parameters and a positive definite precision; "
                "multiply by a proper Gaussian first, such as the prior or a cavity"
            )
        return inverse


def _inverse_root(matrix: FloatArray) -> FloatArray | None:
    r"""Give :math:`C^{-1}` of the Cholesky factor :math:`C C^\top` of a matrix; None if it is not positive definite."""
    if matrix.size == 0:
        return np.empty((0, 0))
    root, failed = dpotrf(matrix, lower=1, clean=1)
    if failed or not np.all(np.isfinite(np.diag(root))):
        return None
    return np.asarray(dtrtri(root, lower=1)[0])
