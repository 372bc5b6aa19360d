"""Noise of losses that predict the logarithm of a mean: counts of Poisson, negative binomial counts, gamma.

The mean of a new target is log-normal. As `cavity.noise._kinds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaln, digamma, gammainc, gammaincc, gammaln, ndtr, ndtri, polygamma

from cavity._types import FloatArray
from cavity.noise._kinds import NEAR_SCALES, invert, near_root, tilted
from cavity.quadrature import hermite

# Largest logarithm whose exponential is still far from overflow.
_LARGEST_LOG = 700.0
# Bounds of the dispersion that is looked for, as a standard deviation: below the first a count of a million is one of
# Poisson; beyond the second nothing is known of the mean.
_LEAST_SCALE, _LARGEST_SCALE = 1e-6, 1e3
# Rows whose quantiles are found at once: with 161 nodes each, 5 MB of doubles.
_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Counts:
    """Noise of the Poisson loss: counts whose mean is log-normal."""

    scale: float = 1.0

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        raise ValueError("the noise of counts has no scale: their mean decides on their variance; take it as it is")

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        return np.asarray(gammaln(targets + 1.0))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            rate = np.exp(mean + 0.5 * variance)
            return np.asarray(np.hypot(np.sqrt(rate), rate * np.sqrt(np.expm1(variance))))

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        return _in_parts(_quantile_of_counts, mean, variance, q)


@dataclass(frozen=True, slots=True)
class DispersedCounts:
    r"""Noise of the negative binomial loss: counts of Poisson whose rate is gamma of shape :math:`r = s^{-2}`."""

    scale: float

    @property
    def _shape(self) -> float:
        return 1.0 / (self.scale * self.scale)

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        r"""Root of the slope of the expected log likelihood in :math:`r`.

        .. math:: E[\log(1 + t) - t] + \psi(y + r) - \psi(r) - \log(1 + y/r), \qquad t = \frac{y - e^z}{r + e^z}

        Nothing of that cancels at large r. Without a root there is no dispersion, or no end of it.
        """
        means, nodes = _means(m, std)

        def slope(log_scale: float) -> float:
            return float(np.average(_slopes(y, means, nodes, log_scale), weights=weights))

        low, high = np.log(_LEAST_SCALE), np.log(_LARGEST_SCALE)
        if not slope(low) < 0.0:
            return _LEAST_SCALE
        if not slope(high) > 0.0:
            return _LARGEST_SCALE
        return float(np.exp(brentq(slope, low, high, xtol=1e-8)))

    def terms(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> FloatArray:
        """Sum up that slope, at scales near this one."""
        w, (means, nodes) = np.ones(y.shape) if weights is None else weights, _means(m, std)
        return np.array([w @ _slopes(y, means, nodes, np.log(self.scale) + near) for near in NEAR_SCALES])

    def scale_of_terms(self, terms: FloatArray) -> float:
        return float(np.clip(self.scale * near_root(terms), _LEAST_SCALE, _LARGEST_SCALE))

    def sums(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> tuple[float, float]:
        r"""Sum up :math:`((y - \mu)^2 - \mu) / (1 + \alpha\mu)^2` and :math:`\mu^2 / (1 + \alpha\mu)^2`.

        Their ratio is the dispersion, of which the likelihood of a single row would say nothing.
        """
        means, nodes = _means(m, std)
        w, damped = np.ones(y.shape) if weights is None else weights, (1.0 + means * self.scale**2) ** -2
        excess = ((y[:, None] - means) ** 2 - means) * damped
        return float(w @ (excess @ nodes)), float(w @ ((means * means * damped) @ nodes))

    def sums_of_scale(self, rows: float, center: float) -> tuple[float, float]:
        weight = rows * (center / (1.0 + center * self.scale**2)) ** 2
        return weight * self.scale**2, weight

    def scale_of(self, ratio: float) -> float:
        return float(np.sqrt(max(ratio, 0.0)))

    def site_factor(self, scale: float, center: float) -> float:
        r"""Give the ratio of the expected curvature :math:`\mu / (1 + \alpha\mu)`, at the average target."""
        return (1.0 + center * self.scale**2) / (1.0 + center * scale**2)

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        r = self._shape
        return np.asarray(betaln(targets + 1.0, r) + np.log(targets + r) + targets * np.log(r))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            rate, share = np.exp(mean + 0.5 * variance), self.scale**2 * np.exp(variance) + np.expm1(variance)
            return np.asarray(np.hypot(np.sqrt(rate), rate * np.sqrt(share)))

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        return _in_parts(self._quantile, mean, variance, q)

    def _quantile(self, mean: FloatArray, std: FloatArray, p: FloatArray) -> FloatArray:
        """Double a bound until it is large enough, and bisect."""
        center = np.minimum(mean + std * ndtri(p), _LARGEST_LOG)
        high = np.ceil(np.exp(center)) + 1.0
        short = self._below(high, mean, std) < p
        while np.any(short):
            high = np.where(short, 2.0 * high, high)
            short = (self._below(high, mean, std) < p) & (high < np.exp(_LARGEST_LOG))
        return _bisected(lambda n: self._below(n, mean, std), high, p)

    def _below(self, n: FloatArray, mean: FloatArray, std: FloatArray) -> FloatArray:
        r"""Probability of at most n, over the latent variable where that is narrow.

        Otherwise over :math:`x = \log(G_{n+1}/G_{r+1})` of gamma variables: the count is at most n where
        :math:`z - E/r < x + \log r` with an exponential variable E, and z - E/r has a closed form.
        """
        r, a = self._shape, np.maximum(n, 0.0) + 1.0
        b, out = r + 1.0, np.empty_like(mean)
        width = np.sqrt(1.0 / a + 1.0 / b)
        narrow = std < width
        nodes, weights = hermite(32)
        odds = mean[narrow, None] + std[narrow, None] * nodes - np.log(r)
        share = np.exp(-np.logaddexp(0.0, odds))
        out[narrow] = betainc(r, a[narrow, None], share) @ weights
        w, m, s, k = (c[~narrow, None] for c in (width, mean, std, a))
        left, right = 9.0 * w + 36.0 / k, 9.0 * w + 36.0 / b
        x = -left + (left + right) * np.linspace(0.0, 1.0, 161)
        # Seen from the smaller shape, nothing cancels however large the other is.
        few, ahead = np.minimum(k, b), np.where(k < b, x, -x)
        density = np.exp(few * ahead - (k + b) * np.log1p(few / (k + b) * np.expm1(ahead)))
        below = _less_exponential(np.log(k / b) + x + np.log(r) - m, s, r)[0]
        out[~narrow] = np.sum(density * below, axis=1) / np.sum(density, axis=1)
        return np.where(n < 0.0, 0.0, out)


@dataclass(frozen=True, slots=True)
class GammaAround:
    r"""Noise of the gamma loss: a factor of mean one and shape :math:`\kappa = s^{-2}`."""

    scale: float

    @property
    def _shape(self) -> float:
        return 1.0 / (self.scale * self.scale)

    def likeliest_scale(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> float:
        return self.scale_of(float(np.average(_gamma_excess(y, m, std), weights=weights)))

    def sums(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> tuple[float, float]:
        """Sum of `_gamma_excess`, and rows."""
        w = np.ones(y.shape) if weights is None else weights
        return float(w @ _gamma_excess(y, m, std)), float(np.sum(w))

    def terms(self, y: FloatArray, m: FloatArray, std: FloatArray, weights: FloatArray | None) -> FloatArray:
        return np.array(self.sums(y, m, std, weights))

    def scale_of_terms(self, terms: FloatArray) -> float:
        return self.scale_of(float(terms[0] / terms[1]))

    def sums_of_scale(self, rows: float, center: float) -> tuple[float, float]:
        return rows * _log_less_digamma(self._shape), rows

    def scale_of(self, ratio: float) -> float:
        r"""Solve :math:`\log\kappa - \psi(\kappa) = d` for the ratio d, between :math:`1/2\kappa` and twice that."""
        if not ratio > 0.5 * _LEAST_SCALE**2:
            return _LEAST_SCALE
        if not ratio < 1e100:
            return float(np.sqrt(ratio))
        low, high = 0.5 * np.log(ratio) - 1e-6, 0.5 * np.log(2.0 * ratio) + 1e-6  # beyond rounding
        found = brentq(lambda a: _log_less_digamma(float(np.exp(-2.0 * a))) / ratio - 1.0, low, high, xtol=1e-12)
        return float(np.exp(found))

    def site_factor(self, scale: float, center: float) -> float:
        return (self.scale / scale) ** 2

    def log_normalizer(self, targets: FloatArray) -> FloatArray:
        k = self._shape
        return np.asarray(gammaln(k) - k * np.log(k) - (k - 1.0) * np.log(targets))

    def std(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            share = self.scale**2 * np.exp(variance) + np.expm1(variance)
            return np.asarray(np.exp(mean + 0.5 * variance) * np.sqrt(share))

    def quantile(self, mean: FloatArray, variance: FloatArray, q: FloatArray) -> FloatArray:
        return _in_parts(self._quantile, mean, variance, q)

    def _quantile(self, mean: FloatArray, std: FloatArray, p: FloatArray) -> FloatArray:
        """Invert the distribution of the logarithm, of which mean and variance are known."""
        k = self._shape
        spread = np.sqrt(std**2 + float(polygamma(1, k)))
        found = invert(lambda r: self._below(r, std), -_log_less_digamma(k), spread, p)
        return np.exp(np.minimum(mean + found, _LARGEST_LOG))

    def _below(self, r: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
        r"""Probability that noise and latent variable of mean zero are below r, in logarithms, and its density.

        Over the latent variable where that is narrow. Otherwise over :math:`g = \log G_{\kappa+1}`: the logarithm of a
        gamma variable of shape :math:`\kappa` is :math:`g - E/\kappa` with an exponential variable E.
        """
        k, b = self._shape, self._shape + 1.0
        w = 1.0 / np.sqrt(b)
        value, density, narrow = np.empty_like(r), np.empty_like(r), std < w
        nodes, weights = hermite(32)
        x = r[narrow, None] - std[narrow, None] * nodes
        size = k * np.exp(np.minimum(x, _LARGEST_LOG))
        value[narrow] = gammainc(k, size) @ weights
        log_density = k * np.log(k) - gammaln(k) + k * np.minimum(x, _LARGEST_LOG) - size
        density[narrow] = np.exp(log_density) @ weights
        g = -w * (9.0 + 36.0 * w) + w * (18.0 + 36.0 * w) * np.linspace(0.0, 1.0, 161)
        mass = np.exp(b * (g - np.expm1(g)))
        below, slope = _less_exponential(r[~narrow, None] + np.log(k / b) - g, std[~narrow, None], k)
        value[~narrow], density[~narrow] = (part @ mass / np.sum(mass) for part in (below, slope))
        return value, density


def _gamma_excess(y: FloatArray, m: FloatArray, std: FloatArray) -> FloatArray:
    r"""Mean of :math:`e^t - 1 - t` of the logarithm t of target over mean, :math:`e^{-z}` being a gamma variable.

    Such is the posterior of a mean under this loss, where the prior is wide. A Gaussian of the same mean and variance
    reaches much further down, and if it is wide, its mean of :math:`e^{-z}` would call for ever larger scales.
    """
    more = _mean_less_log(std**2)
    with np.errstate(over="ignore"):
        t = np.log(y) - m + more
        return np.asarray(np.maximum(np.expm1(t) - t + more, 0.0))


def _mean_less_log(variance: FloatArray) -> FloatArray:
    """Logarithm of the mean of a gamma variable less the mean of its logarithm, given the variance of the logarithm."""
    small = 1e-6  # below, half the variance to seven digits
    each, found = _log_moments()
    inside = np.exp(np.interp(np.log(np.maximum(variance, small)), each, found))
    return np.where(variance < small, 0.5 * variance, inside)


@cache
def _log_moments() -> tuple[FloatArray, FloatArray]:
    """Logarithms of variance and of what `_mean_less_log` gives, over shapes: six digits in between."""
    shapes = np.geomspace(2e6, 1e-8, 16_384)
    return np.log(polygamma(1, shapes)), np.log([_log_less_digamma(float(k)) for k in shapes])


def _log_less_digamma(k: float) -> float:
    r""":math:`\log k - \psi(k)`, by its series where both are nearly the same."""
    return float(0.5 / k + (1.0 - 0.1 / k**2) / (12.0 * k**2)) if k > 1e3 else float(np.log(k) - digamma(k))


def _slopes(y: FloatArray, means: FloatArray, nodes: FloatArray, log_scale: float) -> FloatArray:
    """Slope of every row's expected log likelihood of dispersed counts, times r²."""
    r = float(np.exp(-2.0 * log_scale))
    t = (y[:, None] - means) / (r + means)
    log = np.where(t > -0.5, np.log1p(np.maximum(t, -0.5)), np.log((y[:, None] + r) / (r + means)))
    return np.asarray(r * r * ((log - t) @ nodes + _digamma_excess(y, r)))


def _digamma_excess(y: FloatArray, r: float) -> FloatArray:
    r""":math:`\psi(y + r) - \psi(r) - \log(1 + y/r)`, by its series where r is large."""
    if r > 1e3:
        a, b = 1.0 / r, 1.0 / (y + r)
        return np.asarray(0.5 * y * a * b + (a * a - b * b) / 12.0)
    return np.asarray(digamma(y + r) - digamma(r) - np.log1p(y / r))


def _means(m: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of rows at nodes of the predictor, one column per node, and weights of the nodes."""
    nodes, weights = hermite(9)
    return np.exp(np.clip(m[:, None] + std[:, None] * nodes, -_LARGEST_LOG, _LARGEST_LOG / 4.0)), weights


def _less_exponential(x: FloatArray, std: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """Probability that a centred Gaussian less an exponential variable of this rate is below x, and its density."""
    beyond = tilted(-x / std, rate * std)
    return ndtr(x / std) + beyond, rate * beyond


def _in_parts(
    quantile: Callable[[FloatArray, FloatArray, FloatArray], FloatArray],
    mean: FloatArray,
    variance: FloatArray,
    q: FloatArray,
) -> FloatArray:
    """Ask for quantiles of some rows at a time, given means, standard deviations and probabilities."""
    m, s, p = np.ravel(mean), np.sqrt(np.ravel(variance)), np.ravel(q)
    blocks = [slice(i, i + _AT_ONCE) for i in range(0, m.size, _AT_ONCE)]
    parts = [quantile(m[b], s[b], p[b]) for b in blocks]
    return np.reshape(np.concatenate(parts) if parts else m, np.shape(mean))


def _bisected(below: Callable[[FloatArray], FloatArray], high: FloatArray, p: FloatArray) -> FloatArray:
    """Bisect whole numbers, as far as doubles distinguish them."""
    low = np.full_like(high, -1.0)
    while np.any(high - low > np.maximum(1.0, 1e-15 * high)):
        middle = np.floor(0.5 * (low + high))
        under = below(middle) < p
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return np.asarray(high)


def _quantile_of_counts(mean: FloatArray, std: FloatArray, p: FloatArray) -> FloatArray:
    # Half of what is left goes to the rate, half to Bernstein's bound of a count with this rate.
    rate = np.exp(np.minimum(mean + std * ndtri(0.5 + 0.5 * p), _LARGEST_LOG))
    bits = -np.log(0.5 - 0.5 * p)
    high = np.ceil(rate + np.sqrt(2.0 * rate * bits) + bits)
    return _bisected(lambda n: _counts_below(n, mean, std), high, p)


def _counts_below(n: FloatArray, mean: FloatArray, std: FloatArray) -> FloatArray:
    r"""Probability of at most n: over the latent variable where that is narrow, else over the gamma variable.

    A count is at most n where a gamma variable G of shape n + 1 exceeds its rate, so that the probability is also
    :math:`E\,\Phi((\log G - m)/s)`, by the trapezoid rule over the logarithm.
    """
    shape = np.maximum(n, 0.0) + 1.0
    out, width = np.empty_like(mean), 1.0 / np.sqrt(shape)
    narrow = std < width
    nodes, weights = hermite(32)
    rates = np.exp(np.minimum(mean[narrow, None] + std[narrow, None] * nodes, _LARGEST_LOG))
    out[narrow] = gammaincc(shape[narrow, None], rates) @ weights
    w, m, s, k = (a[~narrow, None] for a in (width, mean, std, shape))
    g = -w * (9.0 + 36.0 * w) + w * (18.0 + 36.0 * w) * np.linspace(0.0, 1.0, 161)
    density = np.exp(k * (g - np.expm1(g)))
    out[~narrow] = np.sum(density * ndtr((np.log(k) + g - m) / s), axis=1) / np.sum(density, axis=1)
    return np.where(n < 0.0, 0.0, out)
