r"""The noise that a loss stands for: its scale, and what it adds to a prediction.

A loss :math:`\rho(u)` of real targets, :math:`u = (y - z)/s`, is minus the logarithm of a density of the target,

.. math:: p(y \mid z) = \frac{1}{C s} e^{-\beta \rho((y - z)/s)}, \qquad z \sim N(m, v),

where z is the linear predictor with its posterior. Squared is Gaussian noise, Absolute that of Laplace, Quantile that
of an asymmetric Laplace density, Huber a Gaussian with the tails of Laplace. Poisson and NegativeBinomial stand for
counts of mean :math:`e^z`, at every :math:`\beta`, Gamma for positive numbers of that mean; the scales of these two are
standard deviations as a share of the mean. Of a loss of one's own the noise is not known: a `ValueError` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cavity._types import FloatArray
from cavity.losses import Absolute, Gamma, Huber, Loss, NegativeBinomial, Poisson, Quantile, Squared
from cavity.noise._base import Noise, Observed
from cavity.noise._rates import Counts, DispersedCounts, GammaAround
from cavity.noise._reals import AsymmetricLaplace, Gaussian, GaussianWithTails
from cavity.noise._spread import spread_log_density as spread_log_density
from cavity.noise._spread import spread_quantile as spread_quantile
from cavity.noise._spread import spread_std as spread_std

__all__ = ["estimate_scale", "log_normalizer", "predictive_quantile", "predictive_std", "with_scale"]

# The noise of a loss at a power beta of the likelihood.
_NOISES: dict[type, Callable[[Any, float], Noise]] = {
    Squared: lambda loss, beta: Gaussian(loss.scale / np.sqrt(beta)),
    Absolute: lambda loss, beta: AsymmetricLaplace(0.5 * loss.scale / beta, 0.5),
    Quantile: lambda loss, beta: AsymmetricLaplace(loss.scale / beta, loss.quantile),
    Huber: lambda loss, beta: GaussianWithTails(loss.scale / np.sqrt(beta), loss.threshold * np.sqrt(beta)),
    Poisson: lambda loss, beta: Counts(),
    NegativeBinomial: lambda loss, beta: DispersedCounts(loss.scale),
    Gamma: lambda loss, beta: GammaAround(loss.scale / np.sqrt(beta)),
}


def estimate_scale(
    loss: Loss,
    targets: ArrayLike,
    means: ArrayLike,
    variances: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    beta: float = 1.0,
    floor: float = 1e-6,
) -> float:
    r"""Estimate the scale of the noise by maximum likelihood, the predictor being uncertain.

    The scale solves :math:`\mathrm{mean}\; E[\beta u \rho'(u)] = 1`, where :math:`y - s u` is the predictor,
    distributed as :math:`N(\text{mean}, \text{variance})`: the step of expectation maximisation that follows a fit.
    Closed form for losses of real targets but for Huber; there, and for Gamma and NegativeBinomial, the root of the
    slope of the expected log likelihood. `ValueError` if the loss has no scale, or is not known.

    Parameters
    ----------
    loss
        A loss with a scale, of which only the kind counts and not the scale.
    targets, means, variances
        Target, and posterior mean and variance of the predictor, one per row.
    weights
        Weights of the rows; all the same by default.
    beta
        The power of the likelihood.
    floor
        Smallest scale returned, for data without any noise; the default is meant for targets of variance near one.
    """
    noise = _noise_of(loss, beta)
    found = noise.likeliest_scale(_rows(targets, means, variances, weights))
    return max(float(floor), _scale_of(loss) * found / noise.scale)


def scale_terms(
    loss: Loss,
    targets: ArrayLike,
    means: ArrayLike,
    variances: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    beta: float = 1.0,
) -> FloatArray:
    """Give what rows add to the sums from which `scale_of_terms` finds the scale that `estimate_scale` finds at once.

    For rows that are in several places. Where the equation for the scale has no closed form, it is summed up at scales
    near that of the loss: there the root is exact, and farther away it is found in a few rounds.
    """
    return _noise_of(loss, beta).terms(_rows(targets, means, variances, weights))


def scale_of_terms(loss: Loss, terms: FloatArray, *, beta: float = 1.0) -> float:
    """Find the likeliest scale from the sums over all rows."""
    noise = _noise_of(loss, beta)
    return _scale_of(loss) * noise.scale_of_terms(terms) / noise.scale


def scale_sums(
    loss: Loss, targets: ArrayLike, means: ArrayLike, variances: ArrayLike, weights: ArrayLike | None = None
) -> tuple[float, float]:
    """Give what rows add to the two sums from which `scale_of_sums` finds a scale, arguments as of `estimate_scale`.

    For rows that come in small numbers, each of which says little of the scale.
    """
    return _noise_of(loss, 1.0).sums(_rows(targets, means, variances, weights))


def sums_of_scale(loss: Loss, rows: float, center: float) -> tuple[float, float]:
    """Give the sums of so many rows, of this average target, from which the scale of the loss was found."""
    return _noise_of(loss, 1.0).sums_of_scale(rows, center)


def scale_of_sums(loss: Loss, sums: tuple[float, float]) -> float:
    """Find the scale from the two sums over all rows."""
    noise, tiny = _noise_of(loss, 1.0), float(np.finfo(np.float64).tiny)
    return noise.scale_of(sums[0] / max(sums[1], tiny)) * _scale_of(loss) / noise.scale


def site_factor(loss: Loss, scale: float, center: float) -> float:
    """Factor by which precisions of sites follow from one scale to another.

    Exact for all losses of which the scale is a factor, the gamma loss among them; for NegativeBinomial what holds for
    rows of the average target ``center``.
    """
    noise = _noise_of(loss, 1.0)
    return noise.site_factor(scale * noise.scale / _scale_of(loss), center)


def with_scale(loss: Loss, scale: float) -> Loss:
    """Return the loss with another scale; `ValueError` if it has none.

    Parameters
    ----------
    loss
        The loss, which stays as it is.
    scale
        The scale.
    """
    _scale_of(loss)
    changed: Loss = loss._replace(scale=float(scale))  # type: ignore[attr-defined]
    return changed


def predictive_std(loss: Loss, mean: ArrayLike, variance: ArrayLike, *, beta: float = 1.0) -> FloatArray:
    r"""Give the standard deviation of a new target, noise and posterior of the predictor together.

    That is :math:`\sqrt{v + \sigma^2}` with the variance :math:`\sigma^2` of the noise. For Poisson
    :math:`\sqrt{\lambda + \lambda^2 (e^v - 1)}`, :math:`\lambda = e^{m + v/2}`; for NegativeBinomial the second term
    has the factor :math:`(1 + s^2) e^v - 1`, and it is alone for Gamma; infinite where that is too large.
    `ValueError` if the loss is not known here.

    Parameters
    ----------
    loss
        The loss that stands for the noise.
    mean, variance
        Posterior mean and variance of the predictor, one per row.
    beta
        The power of the likelihood.
    """
    return _noise_of(loss, beta).std(np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64))


def predictive_quantile(
    loss: Loss, mean: ArrayLike, variance: ArrayLike, q: ArrayLike, *, beta: float = 1.0
) -> FloatArray:
    """Give the quantile of a new target at probability ``q``, one for all rows or one per row.

    Closed form for Squared, else the root of the distribution function, which is a closed form for losses of real
    targets. For counts it is the smallest one whose probability to be reached or undercut is at least ``q``.
    `ValueError` if the loss is not known here.

    Parameters
    ----------
    loss, mean, variance, beta
        As in `predictive_std`.
    q
        Probability of a target below the quantile.
    """
    m, v, p = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (mean, variance, q)))
    return _noise_of(loss, beta).quantile(m, v, p)


def log_normalizer(loss: Loss, targets: ArrayLike, *, beta: float = 1.0) -> FloatArray:
    r"""Logarithm of what a row's factor must be divided by to be a density of its target.

    :math:`\log(C s)` above, :math:`\log y!` for Poisson, and a function of target and scale for NegativeBinomial and
    for Gamma, where it is linear in :math:`\log y`. Zero for signs, whose factors are taken as they are: the logistic
    loss is normalised, the others have no density; and for a loss whose noise is not known.

    Parameters
    ----------
    loss
        The loss that stands for the noise.
    targets
        Targets, one per row.
    beta
        The power of the likelihood.
    """
    y = np.asarray(targets, dtype=np.float64)
    return _noise_of(loss, beta).log_normalizer(y) if isinstance(loss, tuple(_NOISES)) else np.zeros(y.shape)


def _noise_of(loss: Loss, beta: float) -> Noise:
    for kind, make in _NOISES.items():
        if isinstance(loss, kind):
            return make(loss, beta)
    raise ValueError(
        f"the noise that {type(loss).__name__} stands for is not known, and so neither its scale nor the spread of new "
        "targets; give the scale in the loss and predict means only, or take one of Squared, Absolute, Huber, "
        "Quantile, Poisson, NegativeBinomial and Gamma"
    )


def _rows(targets: ArrayLike, means: ArrayLike, variances: ArrayLike, weights: ArrayLike | None) -> Observed:
    y, m, v = np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in (targets, means, variances)))
    w = np.ones(y.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    return Observed(y, m, np.sqrt(v), w)


def _scale_of(loss: Loss) -> float:
    if "scale" not in getattr(loss, "_fields", ()):
        raise ValueError(f"a loss must have a field `scale` to set or estimate it, got {loss!r}; leave the scale alone")
    return float(loss.scale)  # type: ignore[attr-defined]
