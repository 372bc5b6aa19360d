"""Where sites are kept: one a factor, one for all, or none. Working memory of a run, owned by it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.gaussians.factorial import FactorialGaussian

Support = NDArray[np.intp] | None

# A precision this small against the posterior's own is the rounding error of a difference, not a number.
_ROUNDING = 8.0 * float(np.finfo(float).eps)


def is_proper_against(gaussian: FactorialGaussian, posterior: FactorialGaussian) -> bool:
    """Whether a cavity is finite with precisions above the rounding error of their computation."""
    return gaussian.is_finite and bool(np.all(gaussian.precision > _ROUNDING * np.abs(posterior.precision)))


def restrict(gaussian: FactorialGaussian, support: Support) -> FactorialGaussian:
    """Keep the coordinates of a support; None keeps all."""
    return gaussian if support is None else gaussian.take(support)


def extend(gaussian: FactorialGaussian, support: Support, dim: int) -> FactorialGaussian:
    """Undo `restrict`, constant elsewhere."""
    return gaussian if support is None else gaussian.scatter(support, dim)


class Sites(Protocol):
    """What the engine asks of its memory of sites."""

    def site(self, k: int) -> FactorialGaussian:
        """Site of factor ``k`` in its own coordinates."""

    def updated(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Site of factor ``k`` if its posterior changed by ``change``, in its own coordinates."""

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Make that change."""

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Cavity of the factor visited next, in its own coordinates, if ``change`` were made to factor ``k``."""

    def power(self, ratio: float) -> Sites:
        """All sites raised to a power: their rescaling to another inverse temperature."""

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Product of the prior and all sites."""

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return the stored sites."""


class OwnSites:
    """One site a factor: plain EP."""

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        self._supports, self._dim = supports, dim
        self._sites = [FactorialGaussian.uniform(dim if s is None else s.size) for s in supports]

    def site(self, k: int) -> FactorialGaussian:
        """Return the factor's own site."""
        return self._sites[k]

    def updated(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Take the whole change."""
        return self._sites[k] * change

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Take the whole change."""
        self._sites[k] = self.updated(k, change)

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Remove the next factor's own site."""
        site = self.updated(k, change) if following == k else self._sites[following]
        return restrict(posterior, self._supports[following]) / site**power

    def power(self, ratio: float) -> OwnSites:
        """Raise every site."""
        other = OwnSites((), self._dim)
        other._supports = self._supports
        other._sites = [site**ratio for site in self._sites]
        return other

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Multiply up."""
        log_scale, shift, precision = prior.log_scale, prior.shift.copy(), prior.precision.copy()
        for site, support in zip(self._sites, self._supports, strict=True):
            log_scale += site.log_scale
            shift[support if support is not None else slice(None)] += site.shift
            precision[support if support is not None else slice(None)] += site.precision
        return FactorialGaussian(log_scale, shift, precision)

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return one site a factor."""
        return tuple(self._sites)


class TiedSites:
    """One site for all factors: Stochastic EP, memory O(d). A coordinate counts the factors that touch it.

    The index -1 stands for all factors at once, whose changes are full vectors: Averaged EP.
    """

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        self._supports, self._dim, self._count = supports, dim, len(supports)
        touches = np.zeros(dim)
        for support in supports:
            touches[support if support is not None else slice(None)] += 1.0
        self._touches = np.maximum(touches, 1.0)
        self._site = FactorialGaussian.uniform(dim)

    def site(self, k: int) -> FactorialGaussian:
        """Return the common site."""
        return restrict(self._site, self._support(k))

    def updated(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Spread the change over all factors that share the coordinate."""
        return restrict(self._site * self._share(k, change), self._support(k))

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Spread the change over all factors that share the coordinate."""
        self._site = self._site * self._share(k, change)

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Remove the common site as it would be."""
        return restrict(posterior / (self._site * self._share(k, change)) ** power, self._support(following))

    def power(self, ratio: float) -> TiedSites:
        """Raise the site."""
        other = TiedSites((), self._dim)
        other._supports, other._count, other._touches = self._supports, self._count, self._touches
        other._site = self._site**ratio
        return other

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Multiply up, as often as a coordinate is touched."""
        g = self._site
        return prior * FactorialGaussian(
            self._count * g.log_scale, self._touches * g.shift, self._touches * g.precision
        )

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return the one site."""
        return (self._site,)

    def _support(self, k: int) -> Support:
        return None if k < 0 else self._supports[k]

    def _share(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """One factor's part of a change, over all coordinates."""
        full = extend(change, self._support(k), self._dim)
        return FactorialGaussian(
            full.log_scale / self._count, full.shift / self._touches, full.precision / self._touches
        )


class NoSites:
    """No memory: the cavity is the posterior so far. For a single pass."""

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        self._supports, self._dim = supports, dim

    def site(self, k: int) -> FactorialGaussian:
        """Return the uniform site."""
        support = self._supports[k]
        return FactorialGaussian.uniform(self._dim if support is None else support.size)

    def updated(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Return the uniform site."""
        return self.site(k)

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Forget."""

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Return the posterior itself."""
        return restrict(posterior, self._supports[following])

    def power(self, ratio: float) -> NoSites:
        """Nothing to raise."""
        return self

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Return the prior."""
        return prior

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return nothing."""
        return ()
