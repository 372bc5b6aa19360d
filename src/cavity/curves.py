"""`curve_fit`: curves of any form with a posterior, called as `scipy.optimize.curve_fit`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from cavity._checks import flag, one_of, positive_number, shown
from cavity._types import FloatArray
from cavity.ep.bounds import Bounds
from cavity.ep.fit import fit
from cavity.ep.result import Result
from cavity.factors import CostFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian

__all__ = ["CurveFit", "curve_fit"]

# Width of the prior in standard deviations of a first fit: flat wherever the posterior is.
_FLAT = 1e3
# Bend of Huber's loss in deviations of the noise: an efficiency of 95 % under normal noise.
_BEND = 1.345


class CurveFit(NamedTuple):
    """What `curve_fit` returns; the first two are those of SciPy.

    Parameters
    ----------
    popt
        Posterior mean of the parameters.
    pcov
        Their posterior covariance.
    scale
        Posterior mean of the noise scale, in units of ``sigma``; 1 where it is known.
    result
        The posterior, with `Result.sample`, `Result.check`, `Result.predict` and `Result.summary`. Where the scale is
        found its logarithm is the last coordinate.
    """

    popt: FloatArray
    pcov: FloatArray
    scale: float
    result: Result


def _squared(residuals: FloatArray) -> FloatArray:
    return 0.5 * residuals * residuals


def _absolute(residuals: FloatArray) -> FloatArray:
    return np.abs(residuals)


def _huber(residuals: FloatArray) -> FloatArray:
    size = np.abs(residuals)
    return np.where(size < _BEND, 0.5 * size * size, _BEND * (size - 0.5 * _BEND))


LOSSES = {"squared": _squared, "absolute": _absolute, "huber": _huber}


def curve_fit(
    f: Callable[..., ArrayLike],
    xdata: Any,
    ydata: ArrayLike,
    p0: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    absolute_sigma: bool = False,
    *,
    loss: str | Callable[[FloatArray], ArrayLike] = "squared",
    bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    prior: FactorialGaussian | None = None,
    tol: float = 1e-3,
) -> CurveFit:
    r"""Fit a curve ``f(x, *parameters)`` to data, with error bars of the posterior.

    .. math:: p(\theta, s) \propto \text{prior}(\theta) \prod_i \frac{1}{s\,\sigma_i}
        \exp\left[-\rho\!\left(\frac{y_i - f(x_i, \theta)}{s\,\sigma_i}\right)\right]

    Means and covariances are moments of this posterior, by a quadrature that moves to where it is: right also
    for curves that are not linear within the error bars, and for losses with kinks.

    Parameters
    ----------
    f
        The curve, called as ``f(xdata, *parameters)``.
    xdata, ydata
        The data, as in SciPy.
    p0
        Where to start; ones by default, or the middle of the bounds.
    sigma
        Noise scale of every point, one number or one per point; 1 by default.
    absolute_sigma
        Whether ``sigma`` is the noise scale itself. By default the scale :math:`s` it is to be multiplied by is found.
    loss
        :math:`\rho`: ``"squared"``, ``"huber"``, ``"absolute"``, or a function of an array of residuals.
    bounds
        Lower and upper bounds, as in SciPy.
    prior
        A `FactorialGaussian` of the parameters. By default it is flat: a thousand standard deviations wide.
    tol
        As in `cavity.fit`.

    Returns
    -------
    CurveFit
        ``popt, pcov, scale, result``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0.0, 4.0, 50)
    >>> y = 2.0 * np.exp(-1.3 * x) + 0.05 * np.random.default_rng(0).standard_normal(50)
    >>> popt, pcov, scale, result = curve_fit(lambda x, a, b: a * np.exp(-b * x), x, y)
    >>> popt.round(1), round(scale, 2), result.status.name
    (array([2. , 1.3]), 0.05, 'CONVERGED')
    """
    if not callable(f):
        raise ValueError(f"f must be a function of x and the parameters, got {shown(f)}")
    y = np.asarray(ydata, dtype=np.float64)
    if y.size == 0 or not np.all(np.isfinite(y)):
        raise ValueError("ydata must be finite numbers, at least one; drop the others")
    deviations = np.ones(y.shape) if sigma is None else np.asarray(sigma, dtype=np.float64)
    if deviations.shape not in ((), y.shape) or not np.all((deviations > 0.0) & np.isfinite(deviations)):
        raise ValueError(f"sigma must be positive, one number or one per point, got shape {deviations.shape}")
    is_known = flag("absolute_sigma", absolute_sigma)
    rho = loss if callable(loss) else LOSSES[one_of("loss", loss, tuple(LOSSES))]
    count = (
        len(np.atleast_1d(p0))
        if p0 is not None
        else prior.dim
        if prior is not None
        else len(signature(f).parameters) - 1
    )
    limits = Bounds(bounds, count)
    start = np.array(np.broadcast_to(_start(p0, prior, limits), (count,)), dtype=np.float64)

    def residuals(parameters: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            found = np.asarray(f(xdata, *parameters), dtype=np.float64)
        if found.shape != y.shape:
            raise ValueError(f"f must return one number per point, shape {y.shape}, got {found.shape}")
        return (y - found) / deviations

    # The normaliser of the loss: without it no scale could be found for a loss of the user's own.
    constant = float(np.sum(np.log(deviations * np.ones(y.shape)))) + y.size * _log_normaliser(rho)

    def cost(place: FloatArray) -> float:
        log_scale = 0.0 if is_known else float(place[count])
        away = residuals(place[:count]) * np.exp(-log_scale)
        return float(np.sum(rho(away))) + y.size * log_scale + constant

    center, width, scale = _first_fit(residuals, start, limits)
    if prior is not None:
        if not isinstance(prior, FactorialGaussian) or prior.dim != count:
            raise ValueError(f"prior must be a FactorialGaussian of {count} parameters, got {shown(prior)}")
        mean, variance = prior.mean, prior.variance
    else:
        mean, variance = center, (_FLAT * width) ** 2
    if not is_known:  # within a factor of e^10 of the residuals' size
        mean, variance = np.append(mean, np.log(scale)), np.append(variance, 25.0)
    ends: Any = None
    if limits.coordinates.size:
        more = () if is_known else (np.inf,)
        ends = (np.append(limits.low, [-m for m in more]), np.append(limits.high, more))
    whole = FactorialGaussian.from_moments(mean, variance)
    place = center if is_known else np.append(center, np.log(scale))
    near = FullGaussian.from_moments(place, np.diag((width if is_known else np.append(width, 0.5)) ** 2))
    result = fit([CostFactor(cost, whole.dim)], whole, bounds=ends, start=near, tol=positive_number("tol", tol))
    found = 1.0 if is_known else float(np.exp(result.mean[count] + 0.5 * result.variance[count]))
    return CurveFit(result.mean[:count], result.covariance[:count, :count], found, result)


def _start(p0: ArrayLike | None, prior: FactorialGaussian | None, limits: Bounds) -> FloatArray:
    """Where the first fit begins."""
    if p0 is not None:
        start = np.atleast_1d(np.asarray(p0, dtype=np.float64))
        if not np.all((start > limits.low) & (start < limits.high)):
            raise ValueError(f"p0 must lie between the bounds, got {shown(p0)}")
        return start
    start = np.ones(limits.low.size) if prior is None else prior.mean
    low, high, both = limits.low, limits.high, limits.lower & limits.upper
    one = np.where(
        limits.lower, np.maximum(start, low + 1.0), np.where(limits.upper, np.minimum(start, high - 1.0), start)
    )
    return np.asarray(np.where(both, 0.5 * (np.where(both, low, 0.0) + np.where(both, high, 0.0)), one))


def _first_fit(
    residuals: Callable[[FloatArray], FloatArray], start: FloatArray, limits: Bounds
) -> tuple[FloatArray, FloatArray, float]:
    """Least squares, robust against outliers: parameters, their standard errors, and the size of the residuals."""

    def finite(parameters: FloatArray) -> FloatArray:
        found = residuals(parameters).ravel()
        return np.asarray(np.where(np.isfinite(found), found, 1e10))

    size = max(float(np.median(np.abs(finite(start)))), np.finfo(float).tiny)
    found = scipy.optimize.least_squares(
        finite, start, bounds=(limits.low, limits.high), loss="soft_l1", f_scale=size, x_scale="jac"
    )
    size = max(float(np.median(np.abs(found.fun))), 1e-12 * size)
    found = scipy.optimize.least_squares(
        finite, found.x, bounds=(limits.low, limits.high), loss="soft_l1", f_scale=size, x_scale="jac"
    )
    scale = max(1.4826 * float(np.median(np.abs(found.fun))), np.finfo(float).tiny)
    _, singular, right = np.linalg.svd(found.jac, full_matrices=False)
    known = singular > 1e-10 * max(float(singular[0]), np.finfo(float).tiny)
    variance = np.sum((right[known] / singular[known, None]) ** 2, axis=0) * scale**2
    # What the data do not show has no standard error: the size of the parameter stands for it.
    error = np.sqrt(variance) + np.where(np.any(~known), np.maximum(np.abs(found.x), 1.0) / _FLAT, 0.0)
    return found.x, np.maximum(error, 1e-12 * np.maximum(np.abs(found.x), 1e-300)), scale


def _log_normaliser(rho: Callable[[FloatArray], ArrayLike]) -> float:
    """Logarithm of the integral of the density of one residual, exp(-rho)."""
    r = np.linspace(-60.0, 60.0, 24_001)
    with np.errstate(all="ignore"):
        heights = np.exp(-np.asarray(rho(r), dtype=np.float64))
    if heights.shape != r.shape or not np.all(np.isfinite(heights)):
        raise ValueError("loss must return one finite number per residual, bounded from below")
    return float(np.log(np.trapezoid(heights, r)))
