"""The prior of a linear model, and the choice of its variance by the evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from cavity.gaussian import FactorialGaussian

# Variances looked at by "evidence", and how close in log10 the best is approached.
_RANGE = (1e-5, 1e5)
_CLOSE = 0.05


def build_prior(
    width: int,
    mean: Any,
    variance: Any,
    intercept_variance: float | None,
) -> FactorialGaussian:
    """Prior over ``width`` coefficients and, unless ``intercept_variance`` is None, an intercept after them."""
    means, variances = _each("prior_mean", mean, width), _each("prior_variance", variance, width)
    if not np.all(np.isfinite(means)):
        raise ValueError("prior_mean must be finite")
    if not (np.all(variances > 0.0) and np.all(np.isfinite(variances))):
        raise ValueError(f"prior_variance must be positive and finite, got {_least(variances)}")
    if intercept_variance is None:
        return FactorialGaussian.from_moments(means, variances)
    if not 0.0 < intercept_variance < np.inf:
        raise ValueError(f"intercept_prior_variance must be positive and finite, got {intercept_variance}")
    return FactorialGaussian.from_moments(np.append(means, 0.0), np.append(variances, intercept_variance))


def choose_variance(log_evidence: Callable[[float], float]) -> float:
    """Variance of the highest log evidence, by a bounded search over its logarithm."""

    def cost(log_variance: float) -> float:
        value = log_evidence(10.0**log_variance)
        return -value if np.isfinite(value) else 1e300

    low, high = np.log10(_RANGE)
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": _CLOSE, "maxiter": 25})
    return float(10.0**found.x)


def _each(name: str, value: Any, width: int) -> Any:
    """One number a feature."""
    if isinstance(value, str):
        raise ValueError(f"{name} must be a number or one number a feature, got {value!r}")
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.size != width):
        raise ValueError(f"{name} must be a number or one number for each of {width} features, got shape {array.shape}")
    return np.broadcast_to(array, (width,)).astype(np.float64)


def _least(variances: Any) -> float:
    return float(np.min(np.where(np.isnan(variances), -np.inf, variances)))
