"""Kinds of noise: their likeliest scale, and the spread of what is Gaussian with the noise on top.

Each has ``scale``; ``likeliest_scale`` of targets y and predictors of mean m with standard deviations; what a running
estimate of it needs, `OfReals`; ``log_normalizer``, the logarithm of the integral of the unnormalised density; and
``std`` and ``quantile`` of a new target. Arrays have one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, erfcx, ndtr, ndtri, owens_t

from cavity._types import FloatArray

# Where rows come in parts, an equation for the scale is summed up at the present scale times the exponentials of these:
# close together near zero, where the root is once the scale has converged, and up to a factor of ten.
_NEAR = np.array([0.003, 0.03, 0.3, 1.2, 2.303])
NEAR_SCALES = np.concatenate([-_NEAR[::-1], [0.0], _NEAR])
# A latent variable is never narrower than this share of the noise; what that adds is rounding.
_NARROWEST = 1e-8


class OfReals:
    """What all noise of real targets shares. A running estimate of the scale is the average of those of the rows."""

    __slots__ = ()
    scale: float

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        raise NotImplementedError

    def sums(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> tuple[float, float]:
        """Numerator and denominator of these rows, whose sums over all rows make a ratio that says the scale."""
        rows = float(y.size if weights is None else np.sum(weights))
        return rows * self.likeliest_scale(y, m, std, weights), rows

    def terms(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> FloatArray:
        """Sum up over these rows what, added up over all, gives the likeliest scale by `scale_of_terms`."""
        return np.array(self.sums(y, m, std, weights))

    def scale_of_terms(self, terms: FloatArray) -> float:
        """Likeliest scale of all rows."""
        return self.scale_of(float(terms[0]) / float(terms[1]))

    def sums_of_scale(self, rows: float, center: float) -> tuple[float, float]:
        """Give the sums of rows with this scale, of which the average target is known."""
        return rows * self.scale, rows

    def scale_of(self, ratio: float) -> float:
        """Scale for a ratio."""
        return ratio

    def site_factor(self, scale: float, center: float) -> float:
        """Factor of the precisions of sites if the scale becomes another."""
        return (self.scale / scale) ** 2


@dataclass(frozen=True, slots=True)
class Gaussian(OfReals):
    """Noise of the squared loss."""

    scale: float

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        return float(np.sqrt(np.average((y - m) ** 2 + std**2, weights=weights)))

    def sums(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> tuple[float, float]:
        """Sum of expected squares, and rows."""
        w = np.ones(y.shape) if weights is None else weights
        return float(w @ ((y - m) ** 2 + std**2)), float(np.sum(w))

    def sums_of_scale(self, rows: float, center: float) -> tuple[float, float]:
        return rows * self.scale**2, rows

    def scale_of(self, ratio: float) -> float:
        return float(np.sqrt(ratio))

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        return np.full(targets.shape, np.log(self.scale * np.sqrt(2.0 * np.pi)))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        return np.hypot(np.sqrt(variance), self.scale)

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        return np.asarray(mean + self.std(mean, variance) * ndtri(q))


@dataclass(frozen=True, slots=True)
class AsymmetricLaplace(OfReals):
    r"""Noise of the pinball loss: with probability q less than zero, exponential on both sides.

    Mean :math:`s \frac{1-2q}{q(1-q)}`, variance :math:`s^2 \frac{1 - 2q + 2q^2}{q^2 (1-q)^2}`.
    """

    scale: float
    share: float

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        pinball = self.share * _mean_above(y - m, std) + (1.0 - self.share) * _mean_above(m - y, std)
        return float(np.average(pinball, weights=weights))

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        return np.full(targets.shape, np.log(self.scale / (self.share * (1.0 - self.share))))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        q = self.share
        reach = self.scale / (q * (1.0 - q))
        return np.asarray(np.hypot(np.sqrt(variance), reach * np.sqrt(1.0 - 2.0 * q + 2.0 * q * q)))

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        center = self.scale * (1.0 - 2.0 * self.share) / (self.share * (1.0 - self.share))
        std = np.maximum(np.sqrt(variance), _NARROWEST * self.scale)
        return mean + invert(lambda r: self._below(r, std), center, self.std(mean, variance), q)

    def _below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Probability that noise and latent variable of mean zero are below r together, and its density."""
        x, c, q = r / std, std / self.scale, self.share
        left, right = tilted(-x, (1.0 - q) * c), tilted(x, q * c)
        return ndtr(x) + q * left - (1.0 - q) * right, q * (1.0 - q) / self.scale * (left + right)


@dataclass(frozen=True, slots=True)
class GaussianWithTails(OfReals):
    r"""Noise of the Huber loss: Gaussian up to k scales, exponential beyond.

    .. math:: C = \sqrt{2\pi}\,\mathrm{erf}\tfrac{k}{\sqrt 2} + \tfrac{2}{k} e^{-k^2/2}, \qquad
        \sigma^2 = s^2 \left(1 + \tfrac{2}{C}(\tfrac{1}{k} + \tfrac{2}{k^3}) e^{-k^2/2}\right)
    """

    scale: float
    threshold: float

    @property
    def _masses(self) -> tuple[float, float]:
        """Share of the middle, and of each tail, before the middle is cut off from a whole Gaussian."""
        k = self.threshold
        tail = np.exp(-0.5 * k * k) / (k * np.sqrt(2.0 * np.pi))
        total = float(erf(k / np.sqrt(2.0))) + 2.0 * tail
        return 1.0 / total, float(tail / total)

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        k, spread = self.threshold, float(np.sqrt(np.average((y - m) ** 2 + std**2, weights=weights)))
        if spread == 0.0 or not np.isfinite(spread):
            return spread
        r, t = (y - m) / spread, std / spread
        size = float(np.average(_mean_above(r, t) + _mean_above(-r, t), weights=weights))

        def surplus(s: float) -> float:
            return float(np.average(_mean_curbed(r, t, k * s), weights=weights)) / (s * s) - 1.0

        # |r| min(|r|, c) lies between c |r| - c^2 / 4 and r^2, which bounds the root from below and above.
        return spread * float(brentq(surplus, 0.999 * k * size / (1.0 + 0.25 * k * k), 1.001, xtol=1e-14))

    def terms(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> FloatArray:
        """Sum up the equation for the scale, at scales near this one."""
        w = np.ones(y.shape) if weights is None else weights
        r, t = (y - m) / self.scale, std / self.scale
        curbed = [float(w @ _mean_curbed(r, t, self.threshold * s)) / (s * s) for s in np.exp(NEAR_SCALES)]
        return np.sum(w) - np.array(curbed)

    def scale_of_terms(self, terms: FloatArray) -> float:
        return self.scale * near_root(terms)

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        k = self.threshold
        constant = np.sqrt(2.0 * np.pi) * float(erf(k / np.sqrt(2.0))) + 2.0 * np.exp(-0.5 * k * k) / k
        return np.full(targets.shape, np.log(self.scale * constant))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        k, (_, tail) = self.threshold, self._masses
        return np.sqrt(variance + self.scale**2 * (1.0 + 2.0 * tail * (1.0 + 2.0 / (k * k))))

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        std = np.maximum(np.sqrt(variance), _NARROWEST * self.scale)
        return mean + invert(lambda r: self._below(r, std), 0.0, self.std(mean, variance), q)

    def _below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Probability that noise and latent variable of mean zero are below r together, and its density."""
        rate, edge, (middle, tail) = self.threshold / self.scale, self.threshold * self.scale, self._masses
        beyond, before = (r - edge) / std, (r + edge) / std
        right, left = tilted(beyond, rate * std), tilted(-before, rate * std)
        value, density = self._middle_below(r, std)
        tails = ndtr(beyond) - right + ndtr(before) + left
        return middle * value + tail * tails, middle * density + tail * rate * (right + left)

    def _middle_below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Probability that a Gaussian noise is within k scales and its sum with the latent variable below r.

        A rectangle of a bivariate normal density, by Owen's function.
        """
        k, whole = self.threshold, np.hypot(std, self.scale)
        rho, rest = self.scale / whole, std / whole
        w = np.where(r == 0.0, 1e-30, r / whole)
        up, down = (k - rho * w) / rest, (k + rho * w) / rest
        near = owens_t(k, (w - rho * k) / (k * rest)) + owens_t(k, (w + rho * k) / (k * rest))
        value = 0.5 * erf(k / np.sqrt(2.0)) + 0.5 * np.sign(w) - near - owens_t(w, up / w) - owens_t(w, down / w)
        return value, _density(w) / whole * (ndtr(up) - ndtr(-down))


def near_root(values: FloatArray) -> float:
    """Factor of the scale at which values at `NEAR_SCALES`, negative below a root and positive above, are zero."""
    above = int(np.argmax(values > 0.0)) if np.any(values > 0.0) else values.size
    if above in (0, values.size):
        return float(np.exp(NEAR_SCALES[min(above, values.size - 1)]))
    low, high = values[above - 1], values[above]
    return float(np.exp(np.interp(0.0, [low, high], NEAR_SCALES[above - 1 : above + 1])))


def _mean_above(mean: FloatArray, std: FloatArray) -> FloatArray:
    """Mean of max(r, 0) under N(mean, std^2)."""
    t = _standardised(mean, std)
    return np.asarray(mean * ndtr(t) + std * _density(t))


def _mean_curbed(mean: FloatArray, std: FloatArray, c: float) -> FloatArray:
    """Mean of |r| min(|r|, c) under N(mean, std^2)."""
    low, high = _standardised(-c - mean, std), _standardised(c - mean, std)
    d_low, d_high = _density(low), _density(high)
    inside = ndtr(high) - ndtr(low)
    squares = (mean**2 + std**2) * inside + std * (2.0 * mean * (d_low - d_high) + std * (low * d_low - high * d_high))
    beyond = _mean_above(mean - c, std) + _mean_above(-mean - c, std) + c * (1.0 - inside)
    return np.asarray(squares + c * beyond)


def _standardised(distance: FloatArray, std: FloatArray) -> FloatArray:
    """Distance in standard deviations, which may be zero, as far as it matters: a density is zero at 40."""
    with np.errstate(over="ignore"):
        return np.clip(distance / np.maximum(std, np.finfo(np.float64).tiny), -40.0, 40.0)


def _density(t: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * t * t) / np.sqrt(2.0 * np.pi))


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
