r"""The noise that a loss stands for: its scale, and what it adds to a prediction.

A loss :math:`\rho(u)` of real targets, :math:`u = (y - z)/s`, is minus the logarithm of a density of the target,

.. math:: p(y \mid z) = \frac{1}{C s} e^{-\beta \rho((y - z)/s)}, \qquad z \sim N(m, v),

where z is the linear predictor with its posterior. Squared is Gaussian noise, Absolute that of Laplace, Quantile that
of an asymmetric Laplace density, Huber a Gaussian with the tails of Laplace. Poisson stands for counts of mean
:math:`e^z`, at every :math:`\beta`. Of a loss of one's own the noise is not known: a `ValueError` says so.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavity.losses import Absolute, Huber, Loss, Poisson, Quantile, Squared
from cavity.noise._kinds import AsymmetricLaplace, Counts, Gaussian, GaussianWithTails

FloatArray = NDArray[np.float64]


def estimate_scale(
    loss: Loss,
    residuals: ArrayLike,
    variances: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    beta: float = 1.0,
    floor: float = 1e-6,
) -> float:
    r"""Estimate the scale of the noise by maximum likelihood, the predictor being uncertain.

    The scale solves :math:`\mathrm{mean}\; E[\beta u \rho'(u)] = 1`, where :math:`r = s u` is distributed as
    :math:`N(\text{residual}, \text{variance})`: the step of expectation maximisation that follows a fit. Closed form
    but for Huber, where it is the root of a monotone function.

    Parameters
    ----------
    loss
        A loss with a scale, of which only the kind counts and not the scale.
    residuals, variances
        Target less posterior mean of the predictor, and its posterior variance, one a row.
    weights
        Weights of the rows; all the same by default.
    beta
        The power of the likelihood.
    floor
        Smallest scale returned, for data without any noise; the default is meant for targets of variance near one.

    Raises
    ------
    ValueError
        If the loss has no scale, or is not known here.
    """
    noise = _noise_of(loss, beta)
    std = np.sqrt(np.asarray(variances, dtype=np.float64))
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    found = noise.likeliest_scale(np.asarray(residuals, dtype=np.float64), std, w)
    return max(float(floor), _scale_of(loss) * found / noise.scale)


def with_scale(loss: Loss, scale: float) -> Loss:
    """Return the loss with another scale; `ValueError` if it has none."""
    _scale_of(loss)
    changed: Loss = loss._replace(scale=float(scale))  # type: ignore[attr-defined]
    return changed


def predictive_std(loss: Loss, mean: ArrayLike, variance: ArrayLike, *, beta: float = 1.0) -> FloatArray:
    r"""Give the standard deviation of a new target, noise and posterior together.

    That is :math:`\sqrt{v + \sigma^2}` with the variance :math:`\sigma^2` of the noise. For Poisson
    :math:`\sqrt{\lambda + \lambda^2 (e^v - 1)}`, :math:`\lambda = e^{m + v/2}`; infinite where that is too large.

    Parameters
    ----------
    loss
        The loss.
    mean, variance
        Posterior mean and variance of the predictor, one a row.
    beta
        The power of the likelihood.

    Raises
    ------
    ValueError
        If the loss is not known here.
    """
    noise = _noise_of(loss, beta)
    return noise.std(np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64))


def predictive_quantile(
    loss: Loss, mean: ArrayLike, variance: ArrayLike, q: ArrayLike, *, beta: float = 1.0
) -> FloatArray:
    """Give a quantile of a new target: closed form for Squared, else the root of the distribution function.

    The distribution function is a closed form for losses of real targets. For Poisson the quantile is the smallest
    count whose probability to be reached or undercut is at least ``q``.

    Parameters
    ----------
    loss, mean, variance, beta
        As in `predictive_std`.
    q
        Probability between zero and one, the same for all rows or one a row.

    Raises
    ------
    ValueError
        If the loss is not known here.
    """
    noise = _noise_of(loss, beta)
    m, v, p = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (mean, variance, q)))
    return noise.quantile(m, v, p)


def log_normalizer(loss: Loss, targets: ArrayLike, *, beta: float = 1.0) -> FloatArray:
    r"""Logarithm of what a row's factor must be divided by to be a density of its target.

    :math:`\log(C s)` above, and :math:`\log y!` for Poisson. Zero for signs, whose factors are taken as they are: the
    logistic loss is normalised, the others have no density; and for a loss whose noise is not known.

    Parameters
    ----------
    loss, beta
        As in `predictive_std`.
    targets
        Targets of the rows.
    """
    y = np.asarray(targets, dtype=np.float64)
    return _noise_of(loss, beta).log_normalizer(y) if has_noise(loss) else np.zeros(y.shape)


def has_noise(loss: Loss) -> bool:
    """Whether the noise that a loss stands for is known here."""
    return _noise_of.dispatch(type(loss)) is not _noise_of.dispatch(object)


class _Noise(Protocol):
    """What is asked of a noise. Arrays have one shape."""

    @property
    def scale(self) -> float:
        """Scale in the noise's own terms."""

    def likeliest_scale(self, residuals: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        """Give the scale of highest likelihood, where residuals are Gaussian with these standard deviations."""

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        """Give the logarithm of the integral of the unnormalised density, one per target."""

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        """Give the standard deviation of a new target."""

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        """Give a quantile of a new target."""


@singledispatch
def _noise_of(loss: object, beta: float) -> _Noise:
    """Find the noise of a loss at this power of the likelihood."""
    raise ValueError(
        f"the noise that {type(loss).__name__} stands for is not known, and so neither its scale nor the spread of new "
        "targets; give the scale in the loss and predict means only, or take one of Squared, Absolute, Huber, Quantile "
        "and Poisson"
    )


@_noise_of.register
def _(loss: Squared, beta: float) -> _Noise:
    return Gaussian(loss.scale / np.sqrt(beta))


@_noise_of.register
def _(loss: Absolute, beta: float) -> _Noise:
    return AsymmetricLaplace(0.5 * loss.scale / beta, 0.5)


@_noise_of.register
def _(loss: Quantile, beta: float) -> _Noise:
    return AsymmetricLaplace(loss.scale / beta, loss.quantile)


@_noise_of.register
def _(loss: Huber, beta: float) -> _Noise:
    return GaussianWithTails(loss.scale / np.sqrt(beta), loss.threshold * np.sqrt(beta))


@_noise_of.register
def _(loss: Poisson, beta: float) -> _Noise:
    return Counts()


def _scale_of(loss: Loss) -> float:
    if "scale" not in getattr(loss, "_fields", ()):
        raise ValueError(f"a loss must have a field `scale` to set or estimate it, got {loss!r}; leave the scale alone")
    return float(loss.scale)  # type: ignore[attr-defined]
