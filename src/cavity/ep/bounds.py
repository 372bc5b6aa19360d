r"""Parameters between bounds: a change of variables that keeps the density right.

.. math:: \theta = a + e^{\varphi}, \qquad \theta = b - e^{-\varphi}, \qquad
    \theta = a + (b - a) / (1 + e^{-\varphi})

for a lower bound, an upper one, and both. EP works on :math:`\varphi`, whose density is that of :math:`\theta` times
:math:`d\theta / d\varphi`. The prior there is a Gaussian with the quartiles of the truncated prior; a factor makes up
for the difference, so that the product is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit, ndtr, ndtri

from cavity._checks import shown
from cavity._types import FloatArray
from cavity.factors import CostFactor, Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian
from cavity.quadrature import Spherical, hermite


class Bounds:
    """Lower and upper bounds of all parameters, infinite where there is none.

    Parameters
    ----------
    bounds
        Lower and upper bounds, each a number or one number per parameter, as in `scipy.optimize.curve_fit`.
    dim
        Number of parameters.
    """

    def __init__(self, bounds: ArrayLike | tuple[ArrayLike, ArrayLike], dim: int) -> None:
        try:
            low, high = (np.broadcast_to(np.asarray(end, dtype=float), (dim,)) for end in bounds)  # type: ignore[union-attr]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"bounds must be a pair of lower and upper bounds, numbers or one for each of {dim} parameters, "
                f"got {shown(bounds)}"
            ) from error
        if np.any(np.isnan(low) | np.isnan(high)) or not np.all(low < high):
            raise ValueError(f"bounds must be lower bounds below upper ones, got {shown(bounds)}")
        self.low, self.high = low, high
        self.lower, self.upper = np.isfinite(low), np.isfinite(high)
        self.width = np.where(self.lower & self.upper, high - low, 1.0)

    @property
    def coordinates(self) -> Any:
        """Parameters with a bound."""
        return np.flatnonzero(self.lower | self.upper)

    def inside(self, places: FloatArray, coordinates: Any = ...) -> FloatArray:
        """Give parameters for places without bounds, ``(..., dim)``."""
        low, high, lower, upper, width = self._of(coordinates)
        with np.errstate(all="ignore"):
            both = low + width * expit(places)
            one = np.where(lower, low + np.exp(places), np.where(upper, high - np.exp(-places), places))
        return np.where(lower & upper, both, one)

    def outside(self, parameters: FloatArray, coordinates: Any = ...) -> FloatArray:
        """Undo `inside`."""
        low, high, lower, upper, width = self._of(coordinates)
        with np.errstate(all="ignore"):
            share = (parameters - low) / width
            both = np.log(share) - np.log1p(-share)
            one = np.where(lower, np.log(parameters - low), np.where(upper, -np.log(high - parameters), parameters))
        return np.where(lower & upper, both, one)

    def log_slopes(self, places: FloatArray, coordinates: Any = ...) -> FloatArray:
        """Logarithms of the derivatives of `inside`."""
        _, _, lower, upper, width = self._of(coordinates)
        both = np.log(width) + log_expit(places) + log_expit(-places)
        return np.where(lower & upper, both, np.where(lower, places, np.where(upper, -places, 0.0)))

    def prior(self, prior: FullGaussian) -> FullGaussian:
        """Gaussian prior without bounds that has the quartiles of the truncated one, and as much mass."""
        mean, std = prior.mean, prior.std
        below, above = ndtr((self.low - mean) / std), ndtr((self.high - mean) / std)
        levels = np.array([0.25, 0.5, 0.75])[:, None]
        quartiles = mean + std * ndtri(below + levels * (above - below))
        if not np.all(np.isfinite(quartiles)) or np.any((quartiles <= self.low) | (quartiles >= self.high)):
            raise ValueError("the prior has no mass between the bounds: move its mean there, or widen it")
        first, middle, last = self.outside(quartiles)
        spread = (last - first) / (ndtri(0.75) - ndtri(0.25))
        is_bound = self.lower | self.upper
        middle, spread = np.where(is_bound, middle, mean), np.where(is_bound, spread, std)
        ratio = spread / std
        return FullGaussian.from_moments(middle, prior.covariance * np.outer(ratio, ratio), prior.log_mass)

    def near(self, near: FullGaussian) -> FullGaussian:
        """Gaussian without bounds where one with bounds has its mean, as wide there."""
        if not np.all((near.mean > self.low) & (near.mean < self.high)):
            return self.prior(near)
        mean = self.outside(near.mean)
        slopes = np.exp(-self.log_slopes(mean))
        return FullGaussian.from_moments(mean, near.covariance * np.outer(slopes, slopes))

    def factors(self, factors: Sequence[Factor], prior: FullGaussian, wanted: FullGaussian) -> list[Factor]:
        """Give the factors without bounds, and what is left of ``prior`` beside the Gaussian ``wanted`` there.

        The rest is part of the first factor that depends on all parameters, whose moments are then exact at a bound
        too; where there is none it is the last factor.
        """

        def rest(places: FloatArray) -> FloatArray:
            slopes = np.sum(self.log_slopes(places), axis=1)
            return np.asarray(wanted.log_density(places) - prior.log_density(self.inside(places)) - slopes)

        whole = [k for k, factor in enumerate(factors) if factor.coordinates is None]
        freed = [self._free(factor) for factor in factors]
        if whole:
            first = freed[whole[0]]
            freed[whole[0]] = CostFactor(lambda t: first.cost(t) + rest(t), prior.dim, vectorized=True)
            return freed
        left = CostFactor(rest, prior.dim, vectorized=True)
        if np.array_equal(prior.precision, np.diag(np.diag(prior.precision))):  # parameters without bounds cancel
            own = self.coordinates
            old, new = (
                FactorialGaussian(g.log_scale, g.shift, np.diag(g.precision)).take(own) for g in (prior, wanted)
            )

            def rest_of_some(places: FloatArray) -> FloatArray:
                slopes = np.sum(self.log_slopes(places, own), axis=1)
                return np.asarray(new.log_density(places) - old.log_density(self.inside(places, own)) - slopes)

            left = CostFactor(rest_of_some, prior.dim, coordinates=own, vectorized=True)
        return [*freed, left]

    def moments(self, posterior: FullGaussian) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance of the parameters, by quadrature of the Gaussian without bounds."""
        nodes, weights = hermite(32)
        mean, std = posterior.mean, posterior.std
        values = self.inside(mean + std * nodes[:, None])
        means = weights @ values
        variances = weights @ (values - means) ** 2
        rule = Spherical().node_set(posterior.dim)
        seen = self.inside(mean + rule.nodes @ posterior.root.T)
        away = seen - rule.weights @ seen
        covariance = (away.T * rule.weights) @ away
        ratio = np.sqrt(variances / np.diag(covariance))  # one coordinate is integrated more exactly than two
        return np.asarray(means), covariance * np.outer(ratio, ratio)

    def _free(self, factor: Factor) -> Factor:
        """Give a factor as a function of places without bounds."""
        own = ... if factor.coordinates is None else factor.coordinates
        return CostFactor(
            lambda places: factor.cost(self.inside(places, own)),
            factor.dim,
            coordinates=factor.coordinates,
            vectorized=True,
        )

    def _of(self, coordinates: Any) -> tuple[Any, ...]:
        return tuple(part[coordinates] for part in (self.low, self.high, self.lower, self.upper, self.width))
