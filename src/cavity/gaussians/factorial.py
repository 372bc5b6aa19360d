"""Factorial Gaussians in natural form: the family in which everything is approximated."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from cavity._types import FloatArray, IndexArray

# Twice the negative logarithm of the standard normal density at zero.
LOG_2PI = float(np.log(2.0 * np.pi))
# A precision as small as this share of another's is the rounding error of their difference: eight units in the last
# place. A negative one as small as the second, beside the cavity's, is that of a second difference; the paper's program
# raises site precisions to it.
PRECISION_ROUNDING, SITE_FLOOR = 2.0**-49, 1e-10


class ImproperError(ValueError):
    """A moment was asked of a Gaussian that has none, because a precision is not positive."""


@dataclass(frozen=True, slots=True, eq=False)
class FactorialGaussian:
    r"""A product of one-dimensional Gaussians, unnormalised and possibly improper.

    .. math:: \log g(\theta) = s + r^\top \theta - \tfrac12\, p^\top \theta^2

    with :math:`s` ``log_scale``, :math:`r` ``shift``, :math:`p` ``precision``. Product, quotient and
    power are sum, difference and multiple of :math:`(s, r, p)`, and always exist. Moments exist only where
    every precision is positive and finite; asking for them elsewhere raises `ImproperError`.

    Parameters
    ----------
    log_scale
        Logarithm of the value at the origin.
    shift, precision
        Arrays of one shape ``(dim,)``; they are copied and cannot be written afterwards.

    Examples
    --------
    >>> g = FactorialGaussian.from_moments(mean=[1.0, -2.0], variance=4.0)
    >>> (g * g).variance
    array([2., 2.])
    >>> (g * g / g).mean
    array([ 1., -2.])
    """

    log_scale: float
    shift: FloatArray
    precision: FloatArray

    def __post_init__(self) -> None:
        shift, precision = (np.asarray(values, dtype=np.float64) for values in (self.shift, self.precision))
        if shift.ndim != 1 or shift.shape != precision.shape:
            raise ValueError(
                f"shift and precision must be vectors of one length, got shapes {shift.shape} and {precision.shape}"
            )
        object.__setattr__(self, "log_scale", float(self.log_scale))
        for name, array in (("shift", shift), ("precision", precision)):
            if array.flags.writeable or array.base is not None:  # what cannot be written, and is no view, is taken
                array = array.copy()
                array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def from_moments(cls, mean: ArrayLike, variance: ArrayLike, log_mass: float = 0.0) -> Self:
        """Build the Gaussian with this mean, variance and logarithm of its integral.

        Parameters
        ----------
        mean, variance
            Vectors of one length. A number given for one of them stands for a vector of equal entries; at least one of
            the two must be a vector.
        log_mass
            Logarithm of the integral; zero for a density.
        """
        m, v = np.asarray(mean, dtype=float), np.asarray(variance, dtype=float)
        if m.ndim > 1 or v.ndim > 1 or m.ndim + v.ndim == 0 or (m.ndim and v.ndim and m.shape != v.shape):
            raise ValueError(
                "mean and variance must be vectors of one length, or one of them a number, "
                f"got shapes {m.shape} and {v.shape}"
            )
        if not np.all(np.isfinite(m)):
            raise ValueError(f"mean must be finite, got {m}")
        if not np.all((v > 0.0) & np.isfinite(v)):
            worst = v[~((v > 0.0) & np.isfinite(v))].flat[0]
            raise ValueError(f"variance must be positive and finite, got {worst}")
        m, v = np.broadcast_arrays(m, v)
        p = 1.0 / v
        log_scale = log_mass - 0.5 * float(np.sum(m * m * p + np.log(v) + LOG_2PI))
        return cls(log_scale, m * p, p)

    @classmethod
    def uniform(cls, dim: int) -> Self:
        """Build the function equal to one everywhere: the unit of the product, every site's start.

        Parameters
        ----------
        dim
            Number of coordinates.
        """
        return cls(0.0, np.zeros(dim), np.zeros(dim))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.shift.size)

    @property
    def is_finite(self) -> bool:
        """Whether every natural parameter is a finite number."""
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(self.log_scale + self.shift.sum() + self.precision.sum()):
                return True  # a finite sum says so at once; one that overflows asks for a closer look
        return math.isfinite(self.log_scale) and bool(np.all(np.isfinite(self.shift) & np.isfinite(self.precision)))

    @property
    def is_proper(self) -> bool:
        """Whether the integral exists: all finite, every precision positive."""
        return self.is_finite and bool(self.precision.min(initial=np.inf) > 0.0)

    def is_proper_beside(self, other: FactorialGaussian) -> bool:
        """Whether the precisions are positive by more than the rounding of a difference from another.

        Parameters
        ----------
        other
            The Gaussian that this one was computed from.
        """
        return self.is_finite and bool(np.all(self.precision > PRECISION_ROUNDING * np.abs(other.precision)))

    def is_negative_beside(self, cavity: FactorialGaussian) -> bool:
        """Whether a precision is negative by more than a rounding error beside those of the cavity.

        Parameters
        ----------
        cavity
            A proper Gaussian.
        """
        return bool(np.any(self.precision < -SITE_FLOOR * cavity.precision))

    def floored(self, cavity: FactorialGaussian) -> FactorialGaussian:
        """Raise precisions to 1e-10, keeping the shift and the value at the mean of the cavity.

        Parameters
        ----------
        cavity
            A proper Gaussian.
        """
        precision = np.maximum(self.precision, SITE_FLOOR)
        log_scale = self.log_scale + 0.5 * (precision - self.precision) @ cavity.mean**2
        return FactorialGaussian(float(log_scale), self.shift, precision)

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return float(np.sum(np.log(_proper_precision(self))))

    def times(self, x: FloatArray) -> FloatArray:
        """Multiply by the precision matrix.

        Parameters
        ----------
        x
            A vector ``(dim,)``.
        """
        return np.asarray(self.precision * x)

    @property
    def mean(self) -> FloatArray:
        """Mean of the normalised density, ``shift / precision``."""
        return self.shift / _proper_precision(self)

    @property
    def variance(self) -> FloatArray:
        """Variance of the normalised density, ``1 / precision``."""
        return np.asarray(1.0 / _proper_precision(self))

    @property
    def std(self) -> FloatArray:
        """Standard deviation of the normalised density."""
        return np.sqrt(self.variance)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density: a diagonal matrix."""
        return np.diag(self.variance)

    @property
    def log_mass(self) -> float:
        r"""Logarithm of the integral, :math:`s + \tfrac12 \sum_i [r_i^2/p_i + \log(2\pi/p_i)]`."""
        p = _proper_precision(self)
        with np.errstate(over="ignore"):
            return self.log_scale + 0.5 * float(np.sum(self.shift * (self.shift / p) - np.log(p) + LOG_2PI))

    def log_density(self, points: ArrayLike) -> FloatArray:
        r"""Evaluate :math:`\log g`; normalise first for a density.

        Parameters
        ----------
        points
            Places of shape ``(..., dim)``.
        """
        t = np.asarray(points, dtype=float)
        if t.shape[-1:] != (self.dim,):
            raise ValueError(f"points must have {self.dim} coordinates in their last axis, got shape {t.shape}")
        return np.asarray(self.log_scale + t @ self.shift - 0.5 * (t * t) @ self.precision)

    def draws(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers into draws of the normalised density.

        Parameters
        ----------
        noise
            Standard normal numbers ``(n, dim)``, one draw per row.
        """
        return np.asarray(self.mean + noise * self.std)

    def covariance_with(self, weights: FloatArray) -> FloatArray:
        """Covariances of all coordinates with a linear combination of them.

        Parameters
        ----------
        weights
            The linear combination, of shape ``(dim,)``.
        """
        return np.asarray(self.variance * weights)

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row.

        Parameters
        ----------
        rows
            Rows ``(n, dim)``, dense or sparse.
        """
        squares = rows.power(2) if hasattr(rows, "power") else np.square(rows)
        return np.asarray(squares @ self.variance, dtype=np.float64)

    def take(self, coordinates: IndexArray | None) -> FactorialGaussian:
        """Restrict to some coordinates, keeping ``log_scale``.

        Parameters
        ----------
        coordinates
            Indices of the coordinates that are kept; None keeps all.
        """
        if coordinates is None:
            return self
        return FactorialGaussian(self.log_scale, self.shift[coordinates], self.precision[coordinates])

    # Coordinates are independent, and no mass is asked of a marginal.
    marginal = take

    def scatter(self, coordinates: IndexArray | None, dim: int) -> FactorialGaussian:
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
        shift, precision = np.zeros(dim), np.zeros(dim)
        shift[coordinates], precision[coordinates] = self.shift, self.precision
        return FactorialGaussian(self.log_scale, shift, precision)

    def __mul__(self, other: FactorialGaussian) -> FactorialGaussian:
        return self.combined(other, operator.add)

    def __truediv__(self, other: FactorialGaussian) -> FactorialGaussian:
        return self.combined(other, operator.sub)

    def __pow__(self, exponent: float) -> FactorialGaussian:
        return FactorialGaussian(exponent * self.log_scale, exponent * self.shift, exponent * self.precision)

    def combined(self, other: FactorialGaussian, by: Callable[[Any, Any], Any]) -> FactorialGaussian:
        """Combine natural parameters one by one.

        Parameters
        ----------
        other
            Gaussian of as many coordinates.
        by
            Function of two numbers or arrays.
        """
        if self.shift.size != other.shift.size:
            raise ValueError(f"both Gaussians must have the same number of coordinates, got {self.dim} and {other.dim}")
        return FactorialGaussian(
            by(self.log_scale, other.log_scale), by(self.shift, other.shift), by(self.precision, other.precision)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FactorialGaussian):
            return NotImplemented
        return (
            self.log_scale == other.log_scale
            and np.array_equal(self.shift, other.shift)
            and np.array_equal(self.precision, other.precision)
        )

    __hash__ = None  # type: ignore[assignment]


def _proper_precision(gaussian: FactorialGaussian) -> FloatArray:
    if gaussian.is_proper:
        return gaussian.precision
    shift, precision = gaussian.shift, gaussian.precision
    bad = np.flatnonzero(~(np.isfinite(precision) & np.isfinite(shift) & (precision > 0.0)))
    found = f"log_scale is {gaussian.log_scale}"
    if bad.size:
        found = f"coordinate {bad[0]} has precision {precision[bad[0]]} and shift {shift[bad[0]]}"
    raise ImproperError(
        "moments need finite parameters and positive precisions, but "
        f"{found}; multiply by a proper Gaussian first, such as the prior or a cavity"
    )
