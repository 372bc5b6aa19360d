"""Losses of targets of zero or more whose mean is the exponential of the prediction, and the noise they stand for.

The mean of a new target is log-normal. A probability given the mean is averaged over the predictor where that is
narrow, and else over gamma variables, by the trapezoid rule over their logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc, betaln, digamma, gammainc, gammaincc, gammaln, ndtr, ndtri, polygamma

from cavity._types import FloatArray
from cavity.losses.noise import Noise, invert, tilted
from cavity.quadrature import hermite

# Largest logarithm whose exponential is still far from overflow.
LARGEST_LOG = 700.0
# Rows whose quantiles are found at once: with 161 nodes each, 5 MB of doubles.
_QUANTILES_AT_ONCE = 4096
# Nodes of the trapezoid rule, from zero to one.
_GRID = np.linspace(0.0, 1.0, 161)


class Poisson(NamedTuple):
    r"""Poisson loss for counts :math:`y` with the mean :math:`e^z`.

    .. math:: \ell(y, z) = e(z) - y z, \qquad
        e(z) = \begin{cases} e^z & z \le c \\ e^c (1 + z - c) & z > c \end{cases}

    Above the ceiling, the exponential is continued by its tangent, which prevents overflow and keeps the loss convex.

    Parameters
    ----------
    ceiling
        The ceiling :math:`c`; the default corresponds to a mean of :math:`10^{13}`.

    Examples
    --------
    >>> float(Poisson().value(3.0, 0.0))
    1.0
    """

    ceiling: float = 30.0

    @property
    def targets(self) -> str:
        return "counts"

    def value(self, y: Any, z: Any) -> Any:
        e = np.exp(np.minimum(z, self.ceiling))
        return e * (1.0 + np.maximum(z - self.ceiling, 0.0)) - y * z

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        e = np.exp(np.minimum(z, self.ceiling))
        v = e * (1.0 + np.maximum(z - self.ceiling, 0.0)) - y * z
        return v, e - y, e * (0.5 + 0.5 * np.sign(self.ceiling - z))

    def noise(self, beta: float) -> Noise:
        return CountNoise()


class NegativeBinomial(NamedTuple):
    r"""Negative binomial loss for counts :math:`y` with the mean :math:`e^z` that vary more than Poisson counts.

    .. math:: \ell(y, z) = (y + 1/\alpha) \log(1 + \alpha e^z) - y z, \qquad \alpha = s^2

    The variance of a count with mean :math:`m` is :math:`m + \alpha m^2`. In the limit :math:`s \to 0` this is
    `Poisson` without a ceiling. The loss is convex, and linear for large positive and negative :math:`z`.

    Parameters
    ----------
    scale
        Standard deviation :math:`s` of the random rate divided by its mean; :math:`s^2 = \alpha` is the dispersion.

    Examples
    --------
    >>> NegativeBinomial(scale=0.5).dispersion
    0.25
    """

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "counts"

    @property
    def dispersion(self) -> float:
        """The dispersion: variance minus mean, divided by the squared mean."""
        return self.scale * self.scale

    def value(self, y: Any, z: Any) -> Any:
        shift = 2.0 * np.log(self.scale)
        a = z + shift
        tail = np.log1p(np.exp(-np.abs(a)))
        over, under = np.maximum(a, 0.0) + tail, np.maximum(-a, 0.0) + tail
        return over / (self.scale * self.scale) + y * (under + shift)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        shift, size = 2.0 * np.log(self.scale), 1.0 / (self.scale * self.scale)
        a = z + shift
        e = np.exp(-np.abs(a))
        tail, right = np.log1p(e), 0.5 + 0.5 * np.sign(a)
        over, under = np.maximum(a, 0.0) + tail, np.maximum(-a, 0.0) + tail
        up, down = (right + (1.0 - right) * e) / (1.0 + e), (1.0 - right + right * e) / (1.0 + e)
        return over * size + y * (under + shift), up * size - y * down, (y + size) * up * down

    def noise(self, beta: float) -> Noise:
        return DispersedCountNoise(self.scale)


class Gamma(NamedTuple):
    r"""Gamma loss for positive targets :math:`y` with the mean :math:`e^z`, such as waiting times, costs and rates.

    .. math:: \ell(y, z) = \kappa (z + e(\log y - z)), \quad \kappa = s^{-2}, \qquad
        e(t) = \begin{cases} e^t & t \le c \\ e^c (1 + t - c) & t > c \end{cases}

    The standard deviation of a target is :math:`s` times its mean. Above the ceiling, the exponential is continued by
    its tangent, which prevents overflow and keeps the loss convex.

    Parameters
    ----------
    scale
        Standard deviation :math:`s` divided by the mean; the shape of the gamma density is :math:`\kappa = s^{-2}`.
    ceiling
        The ceiling :math:`c` of the logarithm of target divided by predicted mean.

    Examples
    --------
    >>> Gamma(scale=0.5).shape
    4.0
    """

    scale: float = 1.0
    ceiling: float = 30.0

    @property
    def targets(self) -> str:
        return "positives"

    @property
    def shape(self) -> float:
        """The shape of the gamma density."""
        return 1.0 / (self.scale * self.scale)

    def value(self, y: Any, z: Any) -> Any:
        t = np.log(y) - z
        e = np.exp(np.minimum(t, self.ceiling))
        return (z + e * (1.0 + np.maximum(t - self.ceiling, 0.0))) / (self.scale * self.scale)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        t, size = np.log(y) - z, 1.0 / (self.scale * self.scale)
        e = np.exp(np.minimum(t, self.ceiling))
        v = (z + e * (1.0 + np.maximum(t - self.ceiling, 0.0))) / (self.scale * self.scale)
        return v, (1.0 - e) * size, e * size * (0.5 + 0.5 * np.sign(self.ceiling - t))

    def noise(self, beta: float) -> Noise:
        return GammaNoise(self.scale / np.sqrt(beta))


class RateNoise(Noise):
    """What these kinds share; each has ``quantile_of(mean, std, p)`` for some rows."""

    __slots__ = ()
    quantile_of: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

    @property
    def shape(self) -> float:
        """Shape of the gamma variable."""
        return 1.0 / (self.scale * self.scale)

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        m, s, p = np.ravel(mean), np.sqrt(np.ravel(variance)), np.ravel(q)
        blocks = [slice(i, i + _QUANTILES_AT_ONCE) for i in range(0, m.size, _QUANTILES_AT_ONCE)]
        parts = [self.quantile_of(m[b], s[b], p[b]) for b in blocks]
        return np.reshape(np.concatenate(parts) if parts else m, np.shape(mean))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        """Take in the gamma variable and the predictor; counts vary by more."""
        with np.errstate(over="ignore"):
            share = (1.0 + self.scale**2) * np.expm1(variance) + self.scale**2
            return np.asarray(np.exp(mean + 0.5 * variance) * np.sqrt(share))


@dataclass(frozen=True, slots=True)
class DispersedCountNoise(RateNoise):
    r"""Noise of the negative binomial loss: counts of Poisson whose rate is gamma of shape :math:`r = s^{-2}`."""

    scale: float

    def site_factor(self, scale: float, center: float) -> float:
        r"""Ratio of the expected curvature :math:`\mu / (1 + \alpha\mu)`, at the average target."""
        return (1.0 + center * self.scale**2) / (1.0 + center * scale**2)

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        r = self.shape
        return np.asarray(betaln(targets + 1.0, r) + np.log(targets + r) + targets * np.log(r))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            return np.asarray(np.hypot(np.exp(0.5 * mean + 0.25 * variance), RateNoise.std(self, mean, variance)))

    def cdf(self, mean: FloatArray, variance: FloatArray, y: FloatArray) -> FloatArray:
        return self.below(np.floor(y), mean, np.sqrt(variance))

    def quantile_of(self, mean: FloatArray, std: FloatArray, p: FloatArray) -> FloatArray:
        """Double a bound until it is large enough, and bisect as far as doubles distinguish whole numbers."""
        low, high = np.full_like(mean, -1.0), np.ceil(np.exp(np.minimum(mean + std * ndtri(p), LARGEST_LOG))) + 1.0
        while np.any(short := (self.below(high, mean, std) < p) & (high < np.exp(LARGEST_LOG))):
            low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
        while np.any(high - low > np.maximum(1.0, 1e-15 * high)):
            middle = np.floor(0.5 * (low + high))
            under = self.below(middle, mean, std) < p
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.asarray(high)

    def below(self, n: FloatArray, mean: FloatArray, std: FloatArray) -> FloatArray:
        r"""Probability of at most n.

        Where the predictor is not narrow, over :math:`x = \log(G_{n+1}/G_{r+1})` of gamma variables: the count is at
        most n where :math:`z - E/r < x + \log r` with an exponential variable E, and z - E/r has a closed form.
        """
        a, b, out = np.maximum(n, 0.0) + 1.0, self.shape + 1.0, np.empty_like(mean)
        width = np.sqrt(1.0 / a + 1.0 / b)
        narrow = std < width
        nodes, weights = hermite(32)
        out[narrow] = self._given(a[narrow, None], mean[narrow, None] + std[narrow, None] * nodes) @ weights
        w, m, s, k = (c[~narrow, None] for c in (width, mean, std, a))
        left, right = 9.0 * w + 36.0 / k, 9.0 * w + 36.0 / b
        x = -left + (left + right) * _GRID
        density, below = self._over_gammas(k, x, m, s)
        out[~narrow] = np.sum(density * below, axis=1) / np.sum(density, axis=1)
        return np.where(n < 0.0, 0.0, out)

    def _given(self, a: FloatArray, z: FloatArray) -> FloatArray:
        """Probability of less than a where the predictor is z."""
        return np.asarray(betainc(self.shape, a, np.exp(-np.logaddexp(0.0, z - np.log(self.shape)))))

    def _over_gammas(
        self, k: FloatArray, x: FloatArray, mean: FloatArray, std: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Density of x, from its peak, and probability of less than k given that."""
        r, b = self.shape, self.shape + 1.0
        # Seen from the smaller shape, nothing cancels however large the other is.
        few, ahead = np.minimum(k, b), np.where(k < b, x, -x)
        density = np.exp(few * ahead - (k + b) * np.log1p(few / (k + b) * np.expm1(ahead)))
        return density, _less_exponential(np.log(k / b) + x + np.log(r) - mean, std, r)[0]


@dataclass(frozen=True, slots=True)
class CountNoise(DispersedCountNoise):
    """Noise of the Poisson loss: the limit of no dispersion."""

    scale: float = 0.0

    @property
    def shape(self) -> float:
        return np.inf

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        return np.asarray(gammaln(targets + 1.0))

    def _given(self, a: FloatArray, z: FloatArray) -> FloatArray:
        return np.asarray(gammaincc(a, np.exp(np.minimum(z, LARGEST_LOG))))

    def _over_gammas(
        self, k: FloatArray, x: FloatArray, mean: FloatArray, std: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        return np.exp(k * (x - np.expm1(x))), ndtr((np.log(k) + x - mean) / std)


@dataclass(frozen=True, slots=True)
class GammaNoise(RateNoise):
    r"""Noise of the gamma loss: a factor of mean one and shape :math:`\kappa = s^{-2}`."""

    scale: float

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        k = self.shape
        return np.asarray(gammaln(k) - k * np.log(k) - (k - 1.0) * np.log(targets))

    def cdf(self, mean: FloatArray, variance: FloatArray, y: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return self.below(np.maximum(np.log(y), -LARGEST_LOG) - mean, np.sqrt(variance))[0]

    def quantile_of(self, mean: FloatArray, std: FloatArray, p: FloatArray) -> FloatArray:
        """Invert the distribution of the logarithm, of which mean and variance are known."""
        k = self.shape
        # log k less digamma(k), by its series where both are nearly the same
        below = 0.5 / k + (1.0 - 0.1 / k**2) / (12.0 * k**2) if k > 1e3 else float(np.log(k) - digamma(k))
        found = invert(lambda r: self.below(r, std), -below, np.sqrt(std**2 + float(polygamma(1, k))), p)
        return np.exp(np.minimum(mean + found, LARGEST_LOG))

    def below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        r"""Probability that noise and predictor of mean zero are below r, in logarithms, and its density.

        Where the predictor is not narrow, over :math:`g = \log G_{\kappa+1}`: the logarithm of a gamma variable of
        shape :math:`\kappa` is :math:`g - E/\kappa` with an exponential variable E.
        """
        k, b = self.shape, self.shape + 1.0
        w = 1.0 / np.sqrt(b)
        value, density, narrow = np.empty_like(r), np.empty_like(r), std < w
        nodes, weights = hermite(32)
        x = np.minimum(r[narrow, None] - std[narrow, None] * nodes, LARGEST_LOG)
        size = k * np.exp(x)
        value[narrow] = gammainc(k, size) @ weights
        density[narrow] = np.exp(k * np.log(k) - gammaln(k) + k * x - size) @ weights
        g = -w * (9.0 + 36.0 * w) + w * (18.0 + 36.0 * w) * _GRID
        mass = np.exp(b * (g - np.expm1(g)))
        below, slope = _less_exponential(r[~narrow, None] + np.log(k / b) - g, std[~narrow, None], k)
        value[~narrow], density[~narrow] = (part @ mass / np.sum(mass) for part in (below, slope))
        return value, density


def _less_exponential(x: FloatArray, std: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """Probability that a centred Gaussian less an exponential variable of this rate is below x, and its density."""
    beyond = tilted(-x / std, rate * std)
    return ndtr(x / std) + beyond, rate * beyond
