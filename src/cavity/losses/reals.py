"""Losses of real targets, and the noise that they stand for: the linear predictor is the location of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, ndtr, ndtri, owens_t

from cavity._types import FloatArray
from cavity.losses.noise import Noise, invert, tilted
from cavity.losses.protocol import Piece


class Squared(NamedTuple):
    r"""Squared loss for real targets :math:`y`: the negative logarithm of a Gaussian, up to a constant.

    .. math:: \ell(y, z) = \frac{(z - y)^2}{2 \sigma^2}

    Parameters
    ----------
    scale
        The standard deviation :math:`\sigma` of the noise.

    Examples
    --------
    >>> float(Squared(scale=0.5).value(2.0, 1.0))
    2.0
    """

    scale: float = 1.0

    @property
    def as_squared(self) -> float:
        return self.scale

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        r = (z - y) / self.scale
        return 0.5 * r * r

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = (z - y) / self.scale
        return 0.5 * r * r, r / self.scale, 0.0 * r + 1.0 / (self.scale * self.scale)

    def noise(self, beta: float) -> Noise:
        return GaussianNoise(self.scale / np.sqrt(beta))


class Absolute(NamedTuple):
    r"""Absolute loss for real targets :math:`y`, for Laplace noise; robust against outliers.

    .. math:: \ell(y, z) = \frac{|y - z|}{s}

    Parameters
    ----------
    scale
        The scale :math:`s` of the noise: its mean absolute value.

    Examples
    --------
    >>> float(Absolute(scale=0.5).value(2.0, 1.0))
    2.0
    """

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.abs(z - y) / self.scale

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return np.abs(r) / self.scale, np.sign(r) / self.scale, 0.0 * r

    def pieces(self, y: Any) -> tuple[Piece, Piece]:
        a = 1.0 / self.scale
        return (1.0 * y, -a, a * y), (np.inf, a, -a * y)

    def noise(self, beta: float) -> Noise:
        return AsymmetricLaplaceNoise(0.5 * self.scale / beta, 0.5)


class Huber(NamedTuple):
    r"""Huber loss for real targets :math:`y`: squared near the target, absolute far from it.

    .. math:: \ell(y, z) = \begin{cases} u^2 / 2 & |u| \le k \\ k |u| - k^2 / 2 & |u| > k \end{cases},
        \qquad u = \frac{y - z}{s}

    Parameters
    ----------
    threshold
        The distance :math:`k`, in units of the scale, beyond which a row counts as an outlier. With the default and
        Gaussian noise, the loss is five percent less efficient than the squared loss.
    scale
        The scale :math:`s` of the noise.

    Examples
    --------
    >>> float(Huber(threshold=1.0).value(0.0, 0.5)), float(Huber(threshold=1.0).value(0.0, 10.0))
    (0.125, 9.5)
    """

    threshold: float = 1.35
    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        u = (z - y) / self.scale
        near = np.minimum(np.maximum(u, -self.threshold), self.threshold)
        return near * (u - 0.5 * near)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        u = (z - y) / self.scale
        near = np.minimum(np.maximum(u, -self.threshold), self.threshold)
        inside = 0.5 + 0.5 * np.sign(self.threshold - np.abs(u))
        return near * (u - 0.5 * near), near / self.scale, inside / (self.scale * self.scale)

    def noise(self, beta: float) -> Noise:
        return GaussianWithTailsNoise(self.scale / np.sqrt(beta), self.threshold * np.sqrt(beta))


class Quantile(NamedTuple):
    r"""Pinball loss for real targets :math:`y`, which is minimised by a quantile.

    .. math:: \ell(y, z) = \frac{q \max(y - z, 0) + (1 - q) \max(z - y, 0)}{s}

    Parameters
    ----------
    quantile
        The share :math:`q` of targets below the prediction, between zero and one.
    scale
        The scale :math:`s`.

    Examples
    --------
    >>> float(Quantile(0.75).value(1.0, 0.0)), float(Quantile(0.75).value(0.0, 1.0))
    (0.75, 0.25)
    """

    quantile: float = 0.5
    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        r = z - y
        return (np.maximum(r, 0.0) - self.quantile * r) / self.scale

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return self.value(y, z), (0.5 + 0.5 * np.sign(r) - self.quantile) / self.scale, 0.0 * r

    def pieces(self, y: Any) -> tuple[Piece, Piece]:
        down, up = -self.quantile / self.scale, (1.0 - self.quantile) / self.scale
        return (1.0 * y, down, -down * y), (np.inf, up, -up * y)

    def noise(self, beta: float) -> Noise:
        return AsymmetricLaplaceNoise(self.scale / beta, self.quantile)


@dataclass(frozen=True, slots=True)
class GaussianNoise(Noise):
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


class AddedNoise(Noise):
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
class AsymmetricLaplaceNoise(AddedNoise):
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
class GaussianWithTailsNoise(AddedNoise):
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
        # Gaussian noise that is within k scales: a rectangle of a bivariate normal density.
        k, whole = self.threshold, np.hypot(std, self.scale)
        rho, rest = self.scale / whole, std / whole
        w = np.where(r == 0.0, 1e-30, r / whole)
        up, down = (k - rho * w) / rest, (k + rho * w) / rest
        near = owens_t(k, (w - rho * k) / (k * rest)) + owens_t(k, (w + rho * k) / (k * rest))
        value = 0.5 * erf(k / np.sqrt(2.0)) + 0.5 * np.sign(w) - near - owens_t(w, up / w) - owens_t(w, down / w)
        density = np.exp(-0.5 * w * w) / np.sqrt(2.0 * np.pi) / whole * (ndtr(up) - ndtr(-down))
        tails = ndtr(beyond) - right + ndtr(before) + left
        return middle * value + tail * tails, middle * density + tail * rate * (right + left)
