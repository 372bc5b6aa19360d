"""A product of Gaussians, one factor at a time: the reference that whatever is faster is compared with.

`visit` is a pure function of one factor, the posterior and the factor's site. `Factorised` calls it in the order of the
schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.ep.driver import Change, Failure, Step
from cavity.ep.options import Negative, Options
from cavity.ep.result import Ledger, Refusal, Result, Status
from cavity.ep.snapshots import State, arrays_of, gaussian_of
from cavity.ep.stores import Sites, is_proper_against, make_store, restrict
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes._protocol import Scheme
from cavity.schemes.constants import NEGLIGIBLE, SITE_FLOOR, UPDATE_HALVINGS


class Update(NamedTuple):
    """What a callback gets after every visit.

    Parameters
    ----------
    loop, factor
        Numbers of the loop and of the factor visited, from zero.
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
        self.sites: Sites = make_store(options.sites, [factor.coordinates for factor in factors], prior.dim)
        self.supports = self.sites.supports

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return self.posterior.mean

    def begin_at(self, start: Sequence[FactorialGaussian]) -> None:
        """Put given sites in the place of the uniform ones."""
        for k, site in enumerate(start):
            support = self.supports[k]
            check_site(k, site, self.prior.dim if support is None else support.size)
            self.sites.update(k, site)
        check_start(self.sites.posterior(self.prior), self.prior)
        self.posterior = self.sites.posterior(self.prior)

    def begin_loop(self, loop: int, beta: float, ledger: Ledger) -> None:
        """Raise the sites to the ratio of temperatures, and multiply the posterior up from them."""
        if beta != self.beta:
            rescaled = self.sites.power(beta / self.beta)
            if is_proper_against(rescaled.posterior(self.prior), self.prior):
                self.sites = rescaled
            else:
                ledger.refuse(-1, Refusal.RESCALING)
            self.beta = beta
        self.finish(ledger)

    def sweep(self, step: Step, ledger: Ledger) -> Change:
        """Visit the factors in their order; averaged sites are changed once, at the end."""
        before, averaged = self.posterior, self.options.sites == "averaged"
        gathered = FactorialGaussian.uniform(self.prior.dim)
        for k, following in zip(*visits_with_next(self.options, len(self.factors), step.loop), strict=True):
            ledger.updates += 1
            proposal = self._visit(int(k), step)
            refusal = proposal.refusal
            if proposal.change is not None:
                change = self.sites.extend(int(k), proposal.change)
                if averaged:
                    gathered = gathered * change
                else:
                    share = step.damping * proposal.share
                    refusal = self._accept(int(k), int(following), proposal.change, change, share, ledger)
            else:
                assert refusal is not None
                ledger.refuse(int(k), refusal)
            if self.after_visit is not None:
                self.after_visit(Update(step.loop, int(k), self.posterior, refusal))
        if averaged:
            self._accept(-1, -1, gathered, gathered, step.damping, ledger)
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
        """Give sites, posterior and temperature."""
        return {**self.sites.arrays(), **arrays_of("posterior", self.posterior), "beta": self.beta}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        self.sites.set_arrays(state)
        self.posterior, self.beta = gaussian_of("posterior", state), float(state["beta"])

    def finish(self, ledger: Ledger) -> None:
        """Multiply the posterior up from prior and sites; where rounding makes that improper, keep it and say so."""
        if self.options.single_pass:
            return
        product = self.sites.posterior(self.prior)
        if is_proper_against(product, self.prior):
            self.posterior = product
        else:
            ledger.refuse(-1, Refusal.IMPROPER_POSTERIOR)

    def result(self, status: Status, ledger: Ledger) -> Result:
        """Give posterior and sites as values."""
        return Result(self.posterior, self.sites.values(), status, ledger.trace(), self.prior)

    def _visit(self, k: int, step: Step) -> Proposal:
        o, posterior, site = self.options, restrict(self.posterior, self.supports[k]), self.sites.site(k)
        try:
            return visit(self.factors[k], self.scheme, posterior, site, self.beta, o.power, o.negative, step.retries)
        except Exception as error:
            raise Failure(k, error) from error

    def _accept(
        self, k: int, following: int, own: FactorialGaussian, full: FactorialGaussian, most: float, ledger: Ledger
    ) -> Refusal | None:
        """Make the change, halved as often as posterior and next cavity need; or leave all as it was."""
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
                    ledger.damp(k)
                return None
        ledger.refuse(k, Refusal.IMPROPER_POSTERIOR)
        return Refusal.IMPROPER_POSTERIOR


def check_site(k: int, site: FactorialGaussian, dim: int) -> None:
    """Refuse a site to start from that cannot be one."""
    if site.dim != dim or not site.is_finite:
        raise ValueError(f"start[{k}] must be a finite site in the {dim} coordinates of factor {k}, got {site.dim}")


def check_start(posterior: FactorialGaussian, prior: FactorialGaussian) -> None:
    """Refuse sites whose product with the prior is not proper."""
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
    """List the factors visited in a loop, and for each the one visited after it."""
    visits = options.order.visits(count, loop)
    last = visits[-1:] if options.single_pass else options.order.visits(count, loop + 1)[:1]
    return visits, np.concatenate([visits[1:], last])
