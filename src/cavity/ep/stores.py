"""Where sites are kept: one per factor, one for all, or none. Working memory of a run, owned by it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.ep.options import SiteMode
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes.constants import PRECISION_ROUNDING

Support = NDArray[np.intp] | None


def is_proper_against(gaussian: FactorialGaussian, posterior: FactorialGaussian) -> bool:
    """Whether a cavity is finite with precisions above the rounding error of their computation."""
    return gaussian.is_finite and bool(np.all(gaussian.precision > PRECISION_ROUNDING * np.abs(posterior.precision)))


def restrict(gaussian: FactorialGaussian, support: Support) -> FactorialGaussian:
    """Keep the coordinates of a support; None keeps all."""
    return gaussian if support is None else gaussian.take(support)


def extend(gaussian: FactorialGaussian, support: Support, dim: int) -> FactorialGaussian:
    """Undo `restrict`, constant elsewhere."""
    return gaussian if support is None else gaussian.scatter(support, dim)


def make_store(mode: SiteMode, supports: Sequence[Support], dim: int) -> Sites:
    """Make uniform sites for factors of these supports."""
    if mode == "none":
        return NoSites(supports, dim)
    return OwnSites(supports, dim) if mode == "own" else TiedSites(supports, dim)


class Sites(Protocol):
    """What a backend asks of its memory of sites."""

    supports: Sequence[Support]

    def site(self, k: int) -> FactorialGaussian:
        """Site of factor ``k`` in its own coordinates."""

    def extend(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Extend a change of factor ``k``, constant elsewhere, to all coordinates."""

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Let the posterior's part of factor ``k`` change by this, in its own coordinates."""

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

    def arrays(self) -> dict[str, Any]:
        """Give log scales, shifts and precisions of all sites, one after the other."""

    def set_arrays(self, state: Mapping[str, Any]) -> None:
        """Return to sites given so."""


class _Supported:
    """What all stores share: supports of the factors, and sites as arrays."""

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        self.supports, self._dim = supports, dim

    def extend(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        return extend(change, None if k < 0 else self.supports[k], self._dim)

    def values(self) -> tuple[FactorialGaussian, ...]:
        return ()

    def _set_values(self, sites: list[FactorialGaussian]) -> None:
        """Put sites in the place of the stored ones."""

    def arrays(self) -> dict[str, Any]:
        sites, nothing = self.values(), np.empty(0)
        return {
            "scales": np.array([site.log_scale for site in sites]),
            "shifts": np.concatenate([nothing, *(site.shift for site in sites)]),
            "precisions": np.concatenate([nothing, *(site.precision for site in sites)]),
        }

    def set_arrays(self, state: Mapping[str, Any]) -> None:
        sites, first = [], 0
        for site, scale in zip(self.values(), state["scales"], strict=True):
            part = slice(first, first + site.dim)
            sites.append(FactorialGaussian(float(scale), state["shifts"][part], state["precisions"][part]))
            first = part.stop
        self._set_values(sites)


class OwnSites(_Supported):
    """One site per factor: plain EP."""

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        super().__init__(supports, dim)
        self._sites = [FactorialGaussian.uniform(dim if s is None else s.size) for s in supports]

    def site(self, k: int) -> FactorialGaussian:
        """Return the factor's own site."""
        return self._sites[k]

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Take the whole change."""
        self._sites[k] = self._sites[k] * change

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Remove the next factor's own site."""
        site = self._sites[k] * change if following == k else self._sites[following]
        return restrict(posterior, self.supports[following]) / site**power

    def power(self, ratio: float) -> OwnSites:
        """Raise every site."""
        other = OwnSites((), self._dim)
        other.supports, other._sites = self.supports, [site**ratio for site in self._sites]
        return other

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Multiply all sites and the prior."""
        log_scale, shift, precision = prior.log_scale, prior.shift.copy(), prior.precision.copy()
        for site, support in zip(self._sites, self.supports, strict=True):
            log_scale += site.log_scale
            shift[support if support is not None else slice(None)] += site.shift
            precision[support if support is not None else slice(None)] += site.precision
        return FactorialGaussian(log_scale, shift, precision)

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return one site per factor."""
        return tuple(self._sites)

    def _set_values(self, sites: list[FactorialGaussian]) -> None:
        self._sites = sites


class TiedSites(_Supported):
    """One site for all factors: Stochastic EP, memory O(d). A coordinate counts the factors that touch it.

    The index -1 stands for all factors at once, whose changes are full vectors: Averaged EP.
    """

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        super().__init__(supports, dim)
        self._count, touches = len(supports), np.zeros(dim)
        for support in supports:
            touches[support if support is not None else slice(None)] += 1.0
        self._touches, self._site = np.maximum(touches, 1.0), FactorialGaussian.uniform(dim)

    def site(self, k: int) -> FactorialGaussian:
        """Return the common site."""
        return restrict(self._site, self._support(k))

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Share the change among all factors that have the coordinate."""
        self._site = self._changed(k, change)

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Remove the common site as it would be."""
        return restrict(posterior / self._changed(k, change) ** power, self._support(following))

    def power(self, ratio: float) -> TiedSites:
        """Raise the site."""
        other = TiedSites((), self._dim)
        other.supports, other._count, other._touches = self.supports, self._count, self._touches
        other._site = self._site**ratio
        return other

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Multiply the prior by the site, as often as a coordinate is touched."""
        g = self._site
        return prior * FactorialGaussian(
            self._count * g.log_scale, self._touches * g.shift, self._touches * g.precision
        )

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return the one site."""
        return (self._site,)

    def _set_values(self, sites: list[FactorialGaussian]) -> None:
        (self._site,) = sites

    def _support(self, k: int) -> Support:
        return None if k < 0 else self.supports[k]

    def _changed(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Give the common site with one factor's part of a change."""
        full = self.extend(k, change)
        return self._site * FactorialGaussian(
            full.log_scale / self._count, full.shift / self._touches, full.precision / self._touches
        )


class NoSites(_Supported):
    """No memory: the cavity is the posterior so far. For a single pass."""

    def site(self, k: int) -> FactorialGaussian:
        """Return the uniform site."""
        support = self.supports[k]
        return FactorialGaussian.uniform(self._dim if support is None else support.size)

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Forget."""

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Return the posterior itself."""
        return restrict(posterior, self.supports[following])

    def power(self, ratio: float) -> NoSites:
        """Nothing to raise."""
        return self

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Return the prior."""
        return prior
