"""Noise of losses of real targets: the linear predictor is the location of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, ndtr, ndtri, owens_t

from cavity._types import FloatArray
from cavity.noise._base import Noise, invert, tilted


@dataclass(frozen=True, slots=True)
class Gaussian(Noise):
    """Noise of the squared loss."""

    scale: float

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        return np.full(targets.shape, np.log(self.scale * np.sqrt(2.0 * np.pi)))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        return np.hypot(np.sqrt(variance), self.scale)

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        return np.asarray(mean + self.std(mean, variance) * ndtri(q))

    def cdf(self, mean: FloatArray, variance: FloatArray, y: FloatArray) -> FloatArray:
        return np.asarray(ndtr((y - mean) / self.std(mean, variance)))


class _Added(Noise):
    """Noise without a closed form of quantiles.

    ``alone`` gives the integral of its unnormalised density, its mean and its standard deviation; ``below(r, std)`` the
    probability that noise and a centred Gaussian variable together are below r, and its density.
    """

    __slots__ = ()
    alone: Callable[[], tuple[float, float, float]]
    below: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        return np.full(targets.shape, np.log(self.alone()[0]))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        return np.asarray(np.hypot(np.sqrt(variance), self.alone()[2]))

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        # The variable is never narrower than this share of the noise; what that adds is rounding.
        std = np.maximum(np.sqrt(variance), 1e-8 * self.scale)
        return mean + invert(lambda r: self.below(r, std), self.alone()[1], self.std(mean, variance), q)

    def cdf(self, mean: FloatArray, variance: FloatArray, y: FloatArray) -> FloatArray:
        return self.below(y - mean, np.maximum(np.sqrt(variance), 1e-8 * self.scale))[0]


@dataclass(frozen=True, slots=True)
class AsymmetricLaplace(_Added):
    r"""Noise of the pinball loss: with probability q less than zero, exponential on both sides.

    Mean :math:`s \frac{1-2q}{q(1-q)}`, variance :math:`s^2 \frac{1 - 2q + 2q^2}{q^2 (1-q)^2}`.
    """

    scale: float
    share: float

    def alone(self) -> tuple[float, float, float]:
        q, reach = self.share, self.scale / (self.share * (1.0 - self.share))
        return reach, reach * (1.0 - 2.0 * q), reach * float(np.sqrt(1.0 - 2.0 * q + 2.0 * q * q))

    def below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        x, c, q = r / std, std / self.scale, self.share
        left, right = tilted(-x, (1.0 - q) * c), tilted(x, q * c)
        return ndtr(x) + q * left - (1.0 - q) * right, q * (1.0 - q) / self.scale * (left + right)


@dataclass(frozen=True, slots=True)
class GaussianWithTails(_Added):
    r"""Noise of the Huber loss: Gaussian up to k scales, exponential beyond.

    .. math:: C = \sqrt{2\pi}\,\mathrm{erf}\tfrac{k}{\sqrt 2} + \tfrac{2}{k} e^{-k^2/2}, \qquad
        \sigma^2 = s^2 \left(1 + \tfrac{2}{C}(\tfrac{1}{k} + \tfrac{2}{k^3}) e^{-k^2/2}\right)
    """

    scale: float
    threshold: float

    def alone(self) -> tuple[float, float, float]:
        k, (middle, tail) = self.threshold, self._shares
        width = self.scale * float(np.sqrt(1.0 + 2.0 * tail * (1.0 + 2.0 / (k * k))))
        return self.scale * float(np.sqrt(2.0 * np.pi)) / middle, 0.0, width

    @property
    def _shares(self) -> tuple[float, float]:
        """Share of the middle, and of each tail, before the middle is cut off from a whole Gaussian."""
        k = self.threshold
        tail = np.exp(-0.5 * k * k) / (k * np.sqrt(2.0 * np.pi))
        total = float(erf(k / np.sqrt(2.0))) + 2.0 * tail
        return 1.0 / total, float(tail / total)

    def below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        rate, edge, (middle, tail) = self.threshold / self.scale, self.threshold * self.scale, self._shares
        beyond, before = (r - edge) / std, (r + edge) / std
        right, left = tilted(beyond, rate * std), tilted(-before, rate * std)
        value, density = self._middle_below(r, std)
        tails = ndtr(beyond) - right + ndtr(before) + left
        return middle * value + tail * tails, middle * density + tail * rate * (right + left)

    def _middle_below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Do the same for Gaussian noise that is within k scales: a rectangle of a bivariate normal density."""
        k, whole = self.threshold, np.hypot(std, self.scale)
        rho, rest = self.scale / whole, std / whole
        w = np.where(r == 0.0, 1e-30, r / whole)
        up, down = (k - rho * w) / rest, (k + rho * w) / rest
        near = owens_t(k, (w - rho * k) / (k * rest)) + owens_t(k, (w + rho * k) / (k * rest))
        value = 0.5 * erf(k / np.sqrt(2.0)) + 0.5 * np.sign(w) - near - owens_t(w, up / w) - owens_t(w, down / w)
        return value, _density(w) / whole * (ndtr(up) - ndtr(-down))


def _density(t: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * t * t) / np.sqrt(2.0 * np.pi))
