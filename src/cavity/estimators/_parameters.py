"""Parameters of the estimators, checked in one place before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity import schemes
from cavity._checks import as_float, flag, nonnegative_number, one_of, shown, whole_number
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes._protocol import Scheme

FloatArray = NDArray[np.float64]

# Largest size of an entry, a target and a weight: their squares, times variances of any reasonable prior, are finite.
LARGEST_ENTRY, LARGEST_TARGET, LARGEST_WEIGHT = 1e100, 1e150, 1e100
# Largest variance, power and scale; its inverse is the smallest.
_LARGEST = 1e100
_MODERATE = f"positive and finite, from {1.0 / _LARGEST:g} to {_LARGEST:g}"


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """What both estimators share, checked. ``prior_variance`` is None where it is to be found."""

    prior_mean: FloatArray
    prior_variance: FloatArray | None
    intercept: bool
    intercept_variance: float
    covariance: str
    scheme: Scheme
    batch_size: int
    max_iter: int
    tol: float
    beta: float
    verbose: bool | None

    @classmethod
    def of(cls, model: Any, features: int | None = None) -> Parameters:
        """Check the parameters of an estimator for data of so many columns, or of any number before that is known."""
        variance = model.prior_variance
        if isinstance(variance, str):
            if variance != "auto":
                raise ValueError(
                    f"prior_variance must be 'auto', a positive number or one number per feature, got {variance!r}"
                )
            each = None
        else:
            each = _each("prior_variance", variance, features)
            if not np.all((each >= 1.0 / _LARGEST) & (each <= _LARGEST)):
                raise ValueError(f"prior_variance must be {_MODERATE}, got {shown(variance)}")
        means = _each("prior_mean", model.prior_mean, features)
        if not np.all(np.abs(means) <= LARGEST_ENTRY):
            raise ValueError(f"prior_mean must be finite and at most {LARGEST_ENTRY:g} in size")
        if model.verbose is not None:
            flag("verbose", model.verbose)
        return cls(
            prior_mean=means,
            prior_variance=each,
            intercept=flag("fit_intercept", model.fit_intercept),
            intercept_variance=moderate_number("intercept_prior_variance", model.intercept_prior_variance),
            covariance=one_of("covariance", model.covariance, ("auto", "full", "sparse", "diagonal")),
            scheme=schemes.resolve(model.scheme),
            batch_size=whole_number("batch_size", model.batch_size, least=1),
            max_iter=whole_number("max_iter", model.max_iter, least=1),
            tol=nonnegative_number("tol", model.tol),
            beta=moderate_number("beta", model.beta),
            verbose=model.verbose,
        )

    def prior(self, typical: float, unit: float = 1.0, center: float = 0.0) -> FactorialGaussian:
        """Prior of the coefficients, the intercept last.

        Parameters
        ----------
        typical
            Variance to start from where it is to be found.
        unit
            Unit of the coefficients: given variances are in its squares, given means in its multiples.
        center
            Prior mean of the intercept.
        """
        given = self.prior_variance
        variances = np.full(self.prior_mean.size, typical) if given is None else given * unit**2
        means = self.prior_mean * unit
        if not self.intercept:
            return FactorialGaussian.from_moments(means, variances)
        return FactorialGaussian.from_moments(
            np.append(means, center), np.append(variances, self.intercept_variance * unit**2)
        )

    def same_prior(self, other: Parameters) -> bool:
        """Whether another asks for the same prior of as many features."""
        variances = self.prior_variance, other.prior_variance
        found = [v is None for v in variances]
        return (
            (all(found) or (not any(found) and np.array_equal(*variances)))  # type: ignore[arg-type]
            and np.array_equal(self.prior_mean, other.prior_mean)
            and (not self.intercept or self.intercept_variance == other.intercept_variance)
        )

    @property
    def free(self) -> NDArray[np.bool_] | None:
        """Coefficients whose prior variance is to be found; None if it is given."""
        if self.prior_variance is not None:
            return None
        return np.append(np.ones(self.prior_mean.size, dtype=bool), np.zeros(int(self.intercept), dtype=bool))


def moderate_number(name: str, value: Any) -> float:
    """Check a positive number whose square and its inverse are finite."""
    number = as_float(value)
    if not 1.0 / _LARGEST <= number <= _LARGEST:
        raise ValueError(f"{name} must be {_MODERATE}, got {shown(value)}")
    return number


def _each(name: str, value: Any, width: int | None) -> FloatArray:
    """One number per feature."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    fits = array.ndim == 0 or (array.ndim == 1 and width in (None, array.size))
    if isinstance(value, bool | str | None.__class__) or not fits:
        which = "feature" if width is None else f"of {width} features"
        raise ValueError(f"{name} must be a number or one number for each {which}, got {shown(value)}")
    return np.broadcast_to(array, np.shape(array) or (width or 1,)).astype(np.float64)
