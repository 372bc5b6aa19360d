"""A product of Gaussians, one factor at a time: the reference that whatever is faster is compared with.

`visit` is a pure function of one factor, the posterior and the factor's site. `Factorised` calls it in the order of the
schedule. Sites are stored one per factor (`OwnSites`), one for all (`TiedSites`), or not at all (`NoSites`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.ep.driver import Change, Diagnostics, Failure, Negative, Options, State, Step, arrays_of, gaussian_of
from cavity.ep.result import Refusal, Result, Status
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes._protocol import Scheme
from cavity.schemes.constants import NEGLIGIBLE, PRECISION_ROUNDING, SITE_FLOOR, UPDATE_HALVINGS

Support = IndexArray | None


class Update(NamedTuple):
    """What a callback gets after every update of a site.

    Parameters
    ----------
    loop, factor
        Numbers of the iteration and of the factor visited, from zero.
    posterior
        The posterior after the visit.
    refusal
        Why the update was refused; None if it was not.
    """

    loop: int
    factor: int
    posterior: FactorialGaussian
    refusal: Refusal | None


class Proposal(NamedTuple):
    """The quotient of new and old site of a factor, in its own coordinates, or why there is none.

    ``share`` is how much of the change to make at most: that of the old site which could be removed.
    """

    change: FactorialGaussian | None
    refusal: Refusal | None
    share: float = 1.0


def visit(
    factor: Factor,
    scheme: Scheme,
    posterior: FactorialGaussian,
    site: FactorialGaussian,
    beta: float,
    power: float,
    negative: Negative,
    retries: int = 0,
) -> Proposal:
    """Fit one factor: form the cavity, ask the scheme, apply the policy on negative precisions.

    Posterior and site are restricted to the factor's coordinates. An improper cavity is tried again with half as much
    of the site removed, as often as ``retries`` allows. Pure.
    """
    share = 1.0
    cavity = posterior / site**power
    while not is_proper_against(cavity, posterior):
        if retries == 0:
            return Proposal(None, Refusal.IMPROPER_CAVITY)
        retries, power, share = retries - 1, 0.5 * power, 0.5 * share
        cavity = posterior / site**power
    with np.errstate(all="ignore"):
        fitted = scheme.approximate(factor, cavity, power * beta) ** (1.0 / power)
    if not fitted.is_finite:
        return Proposal(None, Refusal.NONFINITE)
    if negative == "floor":
        fitted = floored(fitted, cavity)
    elif negative == "skip" and np.any(fitted.precision < -NEGLIGIBLE * cavity.precision):
        return Proposal(None, Refusal.NEGATIVE)
    return Proposal(fitted / site, None, share)


def floored(site: FactorialGaussian, cavity: FactorialGaussian) -> FactorialGaussian:
    """Raise precisions to `SITE_FLOOR`, keeping the shift and the site's value at the cavity mean."""
    precision = np.maximum(site.precision, SITE_FLOOR)
    log_scale = site.log_scale + 0.5 * (precision - site.precision) @ cavity.mean**2
    return FactorialGaussian(float(log_scale), site.shift, precision)


def is_proper_against(gaussian: FactorialGaussian, posterior: FactorialGaussian) -> bool:
    """Whether a cavity is finite with precisions above the rounding error of their computation."""
    return gaussian.is_finite and bool(np.all(gaussian.precision > PRECISION_ROUNDING * np.abs(posterior.precision)))


def restrict(gaussian: FactorialGaussian, support: Support) -> FactorialGaussian:
    """Keep the coordinates of a support; None keeps all."""
    return gaussian if support is None else gaussian.take(support)


def extend(gaussian: FactorialGaussian, support: Support, dim: int) -> FactorialGaussian:
    """Undo `restrict`, constant elsewhere."""
    return gaussian if support is None else gaussian.scatter(support, dim)


class NoSites:
    """No memory: the cavity is the posterior so far. For a single pass; what is stored otherwise is for subclasses."""

    def __init__(self, supports: Sequence[Support], dim: int) -> None:
        self.supports, self._dim = supports, dim

    def extend(self, k: int, change: FactorialGaussian) -> FactorialGaussian:
        """Extend a change of factor ``k``, constant elsewhere, to all coordinates; -1 stands for all factors."""
        return extend(change, None if k < 0 else self.supports[k], self._dim)

    def site(self, k: int) -> FactorialGaussian:
        """Site of factor ``k`` in its own coordinates."""
        support = self.supports[k]
        return FactorialGaussian.uniform(self._dim if support is None else support.size)

    def update(self, k: int, change: FactorialGaussian) -> None:
        """Multiply the posterior's part of factor ``k`` by a change, in its own coordinates."""

    def following_cavity(
        self, posterior: FactorialGaussian, k: int, change: FactorialGaussian, following: int, power: float
    ) -> FactorialGaussian:
        """Cavity of the factor visited next, in its own coordinates, if ``change`` were made to factor ``k``."""
        return restrict(posterior, self.supports[following])

    def power(self, ratio: float) -> NoSites:
        """All sites raised to a power: their rescaling to another inverse temperature."""
        return self

    def posterior(self, prior: FactorialGaussian) -> FactorialGaussian:
        """Product of the prior and all sites."""
        return prior

    def values(self) -> tuple[FactorialGaussian, ...]:
        """Return the stored sites."""
        return ()

    def arrays(self) -> dict[str, Any]:
        """Log scales, shifts and precisions of all sites, one after the other."""
        sites, empty = self.values(), np.empty(0)
        return {
            "scales": np.array([site.log_scale for site in sites]),
            "shifts": np.concatenate([empty, *(site.shift for site in sites)]),
            "precisions": np.concatenate([empty, *(site.precision for site in sites)]),
        }

    def set_arrays(self, state: State) -> None:
        """Return to such sites."""
        sites, first = [], 0
        for site, scale in zip(self.values(), state["scales"], strict=True):
            part = slice(first, first + site.dim)
            sites.append(FactorialGaussian(float(scale), state["shifts"][part], state["precisions"][part]))
            first = part.stop
        self._set_values(sites)

    def _set_values(self, sites: list[FactorialGaussian]) -> None:
        """Replace the stored sites."""


class OwnSites(NoSites):
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


class TiedSites(NoSites):
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


class Factorised:
    """Sites and posterior of a product of Gaussians: the backend for any factors, in plain Python."""

    def __init__(
        self,
        factors: Sequence[Factor],
        prior: FactorialGaussian,
        scheme: Scheme,
        options: Options,
        after_visit: Callable[[Update], object] | None = None,
    ) -> None:
        self.factors, self.prior, self.scheme, self.options = factors, prior, scheme, options
        self.posterior, self.beta, self.after_visit = prior, options.temperature.beta(0), after_visit
        self.supports = [factor.coordinates for factor in factors]
        kind = {"own": OwnSites, "none": NoSites}.get(options.sites, TiedSites)
        self.sites: NoSites = kind(self.supports, prior.dim)

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return self.posterior.mean

    def begin_at(self, start: Sequence[FactorialGaussian]) -> None:
        """Start from given sites instead of uniform ones."""
        for k, site in enumerate(start):
            support = self.supports[k]
            check_site(k, site, self.prior.dim if support is None else support.size)
            self.sites.update(k, site)
        check_start(self.sites.posterior(self.prior), self.prior)
        self.posterior = self.sites.posterior(self.prior)

    def refresh(self, beta: float, diagnostics: Diagnostics) -> None:
        """Raise the sites to the ratio of temperatures, and multiply the posterior up from them.

        Where rounding makes that improper, the posterior stays, and this is noted.
        """
        if beta != self.beta:
            rescaled = self.sites.power(beta / self.beta)
            if is_proper_against(rescaled.posterior(self.prior), self.prior):
                self.sites = rescaled
            else:
                diagnostics.reject(-1, Refusal.RESCALING)
            self.beta = beta
        if self.options.single_pass:
            return
        product = self.sites.posterior(self.prior)
        if is_proper_against(product, self.prior):
            self.posterior = product
        else:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Visit the factors in their order; averaged sites are changed once, at the end."""
        o, before, averaged = self.options, self.posterior, self.options.sites == "averaged"
        gathered = FactorialGaussian.uniform(self.prior.dim)
        visits, following = visits_with_next(o, len(self.factors), step.loop)
        for k, then in zip(visits.tolist(), following.tolist(), strict=True):
            diagnostics.updates += 1
            factor, posterior = self.factors[k], restrict(self.posterior, self.supports[k])
            site = self.sites.site(k)
            try:
                proposal = visit(factor, self.scheme, posterior, site, self.beta, o.power, o.negative, step.retries)
            except Exception as error:
                raise Failure(k, error) from error
            refusal = proposal.refusal
            if refusal is not None:
                diagnostics.reject(k, refusal)
            elif proposal.change is not None:
                change = self.sites.extend(k, proposal.change)
                if averaged:
                    gathered = gathered * change
                else:
                    share = step.damping * proposal.share
                    refusal = self._accept(k, then, proposal.change, change, share, diagnostics)
            if self.after_visit is not None:
                self.after_visit(Update(step.loop, k, self.posterior, refusal))
        if averaged:
            self._accept(-1, -1, gathered, gathered, step.damping, diagnostics)
        return change_between(before, self.posterior, self.options)

    def cost(self, point: FloatArray) -> float:
        """Beta times all costs at a point, and the prior's term."""
        costs = []
        with np.errstate(all="ignore"):
            for k, (factor, support) in enumerate(zip(self.factors, self.supports, strict=True)):
                try:
                    costs.append(factor.cost((point if support is None else point[support])[None])[0])
                except Exception as error:
                    raise Failure(k, error) from error
            return float(self.beta * np.sum(costs) + prior_cost(self.prior, point))

    def snapshot(self) -> dict[str, Any]:
        """State between two iterations."""
        return {**self.sites.arrays(), **arrays_of("posterior", self.posterior), "beta": self.beta}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        self.sites.set_arrays(state)
        self.posterior, self.beta = gaussian_of("posterior", state), float(state["beta"])

    def result(self, status: Status, diagnostics: Diagnostics) -> Result:
        """Posterior and sites as values."""
        return Result(self.posterior, self.sites.values(), status, diagnostics.trace(), self.prior)

    def _accept(
        self,
        k: int,
        following: int,
        own: FactorialGaussian,
        full: FactorialGaussian,
        most: float,
        diagnostics: Diagnostics,
    ) -> Refusal | None:
        """Make the change, halved as often as posterior and next cavity need; or leave all as it is."""
        for halving in range(UPDATE_HALVINGS + 1):
            share = most * 0.5**halving
            trial, change = self.posterior * full**share, own**share
            if not is_proper_against(trial, self.prior):
                continue
            cavity = self.sites.following_cavity(trial, k, change, following, self.options.power)
            support = None if following < 0 else self.supports[following]
            if is_proper_against(cavity, restrict(trial, support)):
                self.sites.update(k, change)
                self.posterior = trial
                if halving:
                    diagnostics.damp(k)
                return None
        diagnostics.reject(k, Refusal.IMPROPER_POSTERIOR)
        return Refusal.IMPROPER_POSTERIOR


def check_site(k: int, site: FactorialGaussian, dim: int) -> None:
    """Raise unless this can be a site of a factor to start from."""
    if site.dim != dim or not site.is_finite:
        raise ValueError(f"start[{k}] must be a finite site in the {dim} coordinates of factor {k}, got {site.dim}")


def check_start(posterior: FactorialGaussian, prior: FactorialGaussian) -> None:
    """Raise unless the product of prior and sites is proper."""
    if not is_proper_against(posterior, prior):
        raise ValueError("the prior times the sites of start is not proper: raise their precisions, or leave start out")


def prior_cost(prior: FactorialGaussian, point: FloatArray) -> float:
    """Half the squared distance from the prior mean, in standard deviations."""
    return float(0.5 * np.sum(prior.precision * (point - prior.mean) ** 2))


def change_between(before: FactorialGaussian, after: FactorialGaussian, options: Options) -> Change:
    """Largest change of a mean in standard deviations, or of the logarithm of a precision."""
    if options.single_pass:
        return Change(math.nan, math.nan)
    mean = np.max(np.abs(after.mean - before.mean) / after.std)
    width = np.max(np.abs(np.log(after.precision / before.precision)))
    return Change(float(max(mean, width)), float(max(mean, width)))


def visits_with_next(options: Options, count: int, loop: int) -> tuple[IndexArray, IndexArray]:
    """Factors visited in an iteration, and for each the one visited after it."""
    visits = options.order.visits(count, loop)
    last = visits[-1:] if options.single_pass else options.order.visits(count, loop + 1)[:1]
    return visits, np.concatenate([visits[1:], last])
