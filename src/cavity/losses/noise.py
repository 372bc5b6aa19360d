r"""The noise of targets that a loss stands for: its scale, and what it adds to a prediction.

A loss :math:`\rho(u)` of real targets, :math:`u = (y - z)/s`, is minus the logarithm of a density of the target,

.. math:: p(y \mid z) = \frac{1}{C s} e^{-\beta \rho((y - z)/s)}, \qquad z \sim N(m, v),

where z is the linear predictor with its posterior. Squared is Gaussian noise, Absolute that of Laplace, Quantile that
of an asymmetric Laplace density, Huber a Gaussian with the tails of Laplace. Poisson and NegativeBinomial stand for
counts of mean :math:`e^z`, at every :math:`\beta`, Gamma for positive numbers of that mean; the scales of these two are
standard deviations as a share of the mean. Each of these losses has a method ``noise``, whose answer is defined beside
the loss. Without one the noise is not known, and a `ValueError` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr

from cavity._types import FloatArray
from cavity.losses.protocol import Loss, offers

__all__ = ["log_normalizer", "mixture_quantile", "predictive_quantile", "predictive_std", "with_scale"]


class Noise:
    """The noise of targets, given a predictor that is Gaussian; ``scale`` says how wide it is.

    ``log_normalizer`` of targets is the logarithm of the integral of the unnormalised density; ``std``, ``quantile``
    and ``cdf``, the probability of at most a target, are those of new targets, from mean and variance of the predictor.
    """

    __slots__ = ()
    scale: float
    log_normalizer: Callable[[FloatArray], FloatArray]
    std: Callable[[FloatArray, FloatArray], FloatArray]
    quantile: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    cdf: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

    def site_factor(self, scale: float, center: float) -> float:
        """Factor of the precisions of sites if the scale becomes another."""
        return (self.scale / scale) ** 2


def noise_of(loss: Loss, beta: float = 1.0) -> Noise:
    """Noise of a loss at a power of the likelihood; `ValueError` if it is not known."""
    noise = offers(loss).noise
    if noise is None:
        raise ValueError(
            f"the noise that {type(loss).__name__} stands for is not known, and so neither its scale nor the spread of "
            "new targets; give the scale in the loss and predict means only, or take one of Squared, Absolute, Huber, "
            "Quantile, Poisson, NegativeBinomial and Gamma"
        )
    found: Noise = noise(beta)
    return found


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


def _scale_of(loss: Loss) -> float:
    if "scale" not in getattr(loss, "_fields", ()):
        raise ValueError(f"a loss must have a field `scale` to set or estimate it, got {loss!r}; leave the scale alone")
    return float(loss.scale)  # type: ignore[attr-defined]


def site_factor(loss: Loss, scale: float, center: float) -> float:
    """Factor by which precisions of sites follow from one scale to another.

    Exact for all losses of which the scale is a factor, the gamma loss among them; for NegativeBinomial what holds for
    rows of the average target ``center``.
    """
    noise = noise_of(loss)
    return noise.site_factor(scale * noise.scale / _scale_of(loss), center)


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
    return noise_of(loss, beta).std(np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64))


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
    return noise_of(loss, beta).quantile(m, v, p)


def mixture_quantile(
    losses: Sequence[Loss], weights: FloatArray, means: FloatArray, variances: FloatArray, q: float
) -> FloatArray:
    """Give the quantile of new targets under a mixture, to eight digits of the distance between those of its parts.

    Parameters
    ----------
    losses, weights
        Loss that stands for the noise, and weight, of every part.
    means, variances
        Posterior means and variances of the predictor, ``(parts, rows)``.
    q
        Probability of a target below the quantile.
    """
    each = np.array([predictive_quantile(*part, q) for part in zip(losses, means, variances, strict=True)])
    low, high = np.min(each, axis=0), np.max(each, axis=0)
    noises = [noise_of(loss) for loss in losses]
    whole = losses[0].targets == "counts"
    for _ in range(26):
        middle = np.floor(0.5 * (low + high)) if whole else 0.5 * (low + high)
        parts = zip(noises, means, variances, strict=True)
        below = weights @ np.array([noise.cdf(mean, variance, middle) for noise, mean, variance in parts]) < q
        low, high = np.where(below, middle, low), np.where(below, high, middle)
        if whole and np.all(high - low <= 1.0):
            return np.asarray(high)
    return np.asarray(high if whole else 0.5 * (low + high))


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
    return np.zeros(y.shape) if offers(loss).noise is None else noise_of(loss, beta).log_normalizer(y)


def tilted(x: FloatArray, c: FloatArray) -> FloatArray:
    r""":math:`e^{c^2/2 - c x}\,\Phi(x - c)` for c of zero or more, in two forms of which neither overflows."""
    w = c - x
    scaled = 0.5 * np.exp(-0.5 * x * x) * erfcx(np.maximum(w, 0.0) / np.sqrt(2.0))
    plain = np.exp(np.minimum(c * (0.5 * c - x), 0.0)) * ndtr(-w)
    return np.asarray(np.where(w > 0.0, scaled, plain))


def invert(
    below: Callable[[FloatArray], tuple[FloatArray, FloatArray]], center: float, std: FloatArray, p: FloatArray
) -> FloatArray:
    """Find where a distribution function of this mean and standard deviation is p.

    Newton's method within Cantelli's bounds of a quantile, which narrow, and bisection where it would leave them.
    Bisection alone comes from a probability of 1e-6, a thousand standard deviations away, to rounding in 64 steps.
    """
    low, high = center - std * np.sqrt((1.0 - p) / p), center + std * np.sqrt(p / (1.0 - p))
    r = np.full_like(std, center)
    for _ in range(64):
        value, density = below(r)
        low, high = np.where(value < p, r, low), np.where(value < p, high, r)
        with np.errstate(all="ignore"):
            newton = r - (value - p) / density
        before, r = r, np.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        if np.max(np.abs(r - before) / std, initial=0.0) < 1e-10:
            break
    return r
