"""The reference EP loop: plain, readable, one factor at a time.

`visit` is a pure function of one factor, the posterior and the factor's site. `run` calls it in the order of the
schedule, and keeps the books. Whatever is faster elsewhere is proved equal to this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.ep.result import Ledger, Refusal, Result, Status
from cavity.ep.stores import NoSites, OwnSites, Sites, TiedSites, extend, is_proper_against, restrict
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schedules import Order, Temperature
from cavity.schemes._protocol import Scheme

FloatArray = NDArray[np.float64]
Negative = Literal["floor", "keep", "skip"]
SiteMode = Literal["own", "tied", "averaged", "none"]

# The paper's program raises site precisions to this.
FLOOR = 1e-10
# A negative precision this small against the cavity's is the rounding error of a second difference.
NEGLIGIBLE = 1e-10
# How often the damping is halved before an update is refused.
_HALVINGS = 4
# With safeguards: a loop whose change, but for the damping, is not this share (less, as it is damped) below the larger
# of the two before halves the damping, down to the least; any other raises it by a factor.
_SHRINKS, _RELAXES = 0.05, 1.2
_LEAST_DAMPING = 1.0 / 16.0
# Rounding allowed a cost that is compared with another.
_LEEWAY = 1e-9

_STORES: dict[str, Callable[..., Sites]] = {
    "own": OwnSites,
    "tied": TiedSites,
    "averaged": TiedSites,
    "none": NoSites,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """All choices of a run but the factors, the prior and the scheme."""

    loops: int
    sites: SiteMode
    temperature: Temperature
    order: Order
    power: float
    damping: float
    negative: Negative
    tol: float
    safeguards: bool = False


class Update(NamedTuple):
    """What a callback is told after every visit."""

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


class FactorError(RuntimeError):
    """A factor raised an error.

    ``factor`` is its index, -1 where all were asked at once, and ``result`` the state before it.
    """

    def __init__(self, factor: int, result: Result, error: Exception) -> None:
        who = f"factor {factor}" if factor >= 0 else "one of the factors"
        super().__init__(f"{who} raised {type(error).__name__}: {error}; the state before it is in .result")
        self.factor, self.result = factor, replace(result, status=Status.INTERRUPTED)


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
    """Fit one factor anew: form the cavity, ask the scheme, apply the policy on negative precisions.

    Posterior and site are restricted to the factor's coordinates. An improper cavity is tried anew with half as much
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
    """Raise precisions to `FLOOR`, keeping the shift and the site's value at the cavity mean."""
    precision = np.maximum(site.precision, FLOOR)
    log_scale = site.log_scale + 0.5 * (precision - site.precision) @ cavity.mean**2
    return FactorialGaussian(float(log_scale), site.shift, precision)


def run(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    scheme: Scheme,
    settings: Settings,
    callback: Callable[[Update], object] | None = None,
    start: Sequence[FactorialGaussian] | None = None,
) -> Result:
    """Run EP from the prior, or from given sites, until it settles or its loops are used up."""
    state = _Run(factors, prior, scheme, settings)
    if start is not None:
        state.begin_at(start)
    for loop in range(settings.loops):
        before = state.posterior
        state.begin_loop(loop)
        for k, following in zip(*visits_with_next(settings, len(factors), loop), strict=True):
            refusal = state.step(int(k), int(following))
            if callback is not None:
                callback(Update(loop, int(k), state.posterior, refusal))
        state.end_loop(before)
        if state.has_settled:
            break
    state.finish()
    return state.result()


class Guard:
    """Keeps a run from blowing up: damps more while the posterior's change does not shrink, and knows the best loop.

    The same for every engine. Off, it gives the damping of the settings and nothing else.
    """

    def __init__(self, settings: Settings, cost: Callable[[FloatArray], float]) -> None:
        self.is_on = settings.safeguards and settings.sites != "none"
        self.retries = _HALVINGS if settings.safeguards else 0
        self.damping = self._most = settings.damping
        self._cost, self._beta = cost, math.nan
        self._changes = (math.inf, math.inf)
        self._bound = self._best = self._last = math.inf

    @property
    def relative_damping(self) -> float:
        """Damping now against that of the settings: a damped loop changes less, and has settled later."""
        return self.damping / self._most

    @property
    def is_lost(self) -> bool:
        """Whether the last loop ended at a higher cost than the prior mean."""
        return self.is_on and not self._last <= self._bound + _LEEWAY * (1.0 + abs(self._bound))

    def begin_loop(self, beta: float, prior_mean: FloatArray, mean: FloatArray) -> bool:
        """Note the cost of the prior mean at the loop's temperature; whether to keep the state to go back to it."""
        if beta == self._beta:
            return False
        self._beta, self._changes = beta, (math.inf, math.inf)
        self._bound, self._best = self._cost(prior_mean), self._cost(mean)
        return True

    def end_loop(self, change: float, mean: FloatArray) -> bool:
        """Choose the damping of the next loop; whether this one ended better than any before."""
        undamped = change / self.relative_damping
        if undamped <= (1.0 - _SHRINKS * self.relative_damping) * max(self._changes):
            self.damping = min(_RELAXES * self.damping, self._most)
        else:
            self.damping = max(0.5 * self.damping, _LEAST_DAMPING * self._most)
        self._changes = (self._changes[1], undamped)
        self._last = self._cost(mean)
        if not self._last < self._best:
            return False
        self._best = self._last
        return True


def prior_cost(prior: FactorialGaussian, point: FloatArray) -> float:
    """Half the squared distance from the prior mean, in standard deviations."""
    return float(0.5 * np.sum(prior.precision * (point - prior.mean) ** 2))


class _Run:
    """The working state of a run; every method leaves it whole."""

    def __init__(self, factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme, settings: Settings) -> None:
        self.factors, self.prior, self.scheme, self.settings = factors, prior, scheme, settings
        self.posterior = prior
        self.supports = [factor.coordinates for factor in factors]
        self.sites = _STORES[settings.sites](self.supports, prior.dim)
        self.gathered: FactorialGaussian | None = None
        self.beta = settings.temperature.beta(0)
        self.ledger = Ledger()
        self.guard = Guard(settings, self.cost)
        self.kept = (self.sites, self.posterior)

    def cost(self, point: FloatArray) -> float:
        """Beta times all costs at a point, and the prior's term."""
        costs = []
        with np.errstate(all="ignore"):
            for k, (factor, support) in enumerate(zip(self.factors, self.supports, strict=True)):
                try:
                    costs.append(factor.cost((point if support is None else point[support])[None])[0])
                except Exception as error:
                    raise FactorError(k, self.result(), error) from error
            return float(self.beta * np.sum(costs) + prior_cost(self.prior, point))

    def begin_at(self, start: Sequence[FactorialGaussian]) -> None:
        """Put given sites in the place of the uniform ones."""
        for k, site in enumerate(start):
            support = self.supports[k]
            check_site(k, site, self.prior.dim if support is None else support.size)
            self.sites.update(k, site)
        check_started(self.sites.posterior(self.prior), self.prior)
        self.posterior = self.sites.posterior(self.prior)

    @property
    def has_settled(self) -> bool:
        """Whether the last loop changed little, refused nothing and was at the final temperature."""
        tol = self.settings.tol * self.guard.relative_damping
        return self.ledger.has_settled(tol) and temperature_is_final(self.settings, self.ledger.loops)

    def begin_loop(self, loop: int) -> None:
        """Move to the loop's temperature, and multiply the posterior up anew against drift of rounding."""
        beta = self.settings.temperature.beta(loop)
        self.ledger.begin_loop(beta)
        if beta != self.beta:
            rescaled = self.sites.power(beta / self.beta)
            if is_proper_against(rescaled.posterior(self.prior), self.prior):
                self.sites = rescaled
            else:
                self.ledger.refuse(-1, Refusal.RESCALING)
            self.beta = beta
        self._renew()
        if self.settings.sites == "averaged":
            self.gathered = FactorialGaussian.uniform(self.prior.dim)
        if self.guard.is_on and self.guard.begin_loop(self.beta, self.prior.mean, self.posterior.mean):
            self.kept = (self.sites.power(1.0), self.posterior)

    def step(self, k: int, following: int) -> Refusal | None:
        """Visit factor ``k``; accept what leaves the posterior and the cavity of ``following`` proper."""
        self.ledger.updates += 1
        support, s = self.supports[k], self.settings
        posterior = restrict(self.posterior, support)
        try:
            proposal = visit(
                self.factors[k],
                self.scheme,
                posterior,
                self.sites.site(k),
                self.beta,
                s.power,
                s.negative,
                self.guard.retries,
            )
        except Exception as error:
            raise FactorError(k, self.result(), error) from error
        if proposal.change is None:
            assert proposal.refusal is not None
            self.ledger.refuse(k, proposal.refusal)
            return proposal.refusal
        change = extend(proposal.change, support, self.prior.dim)
        if self.gathered is not None:
            self.gathered = self.gathered * change
            return None
        return self._accept(k, following, proposal.change, change, proposal.share)

    def end_loop(self, before: FactorialGaussian) -> None:
        """Apply what was gathered, if anything, measure the change of the loop, and keep it if it is the best."""
        if self.gathered is not None:
            self._accept(-1, -1, self.gathered, self.gathered, 1.0)
            self.gathered = None
        single = self.settings.sites == "none"
        change = math.nan if single else distance(before, self.posterior)
        if self.guard.is_on and self.guard.end_loop(change, self.posterior.mean):
            self.kept = (self.sites.power(1.0), self.posterior)
        self.ledger.end_loop(change)

    def finish(self) -> None:
        """Go back to the best loop if the last one is worse than the prior mean; multiply the posterior up anew."""
        if self.guard.is_lost:
            self.sites, self.posterior = self.kept
            self.ledger.refuse(-1, Refusal.DIVERGED)
        self._renew()

    def _renew(self) -> None:
        """Multiply the posterior up from prior and sites; where rounding leaves that improper, say so and keep it."""
        if self.settings.sites == "none":
            return
        product = self.sites.posterior(self.prior)
        if is_proper_against(product, self.prior):
            self.posterior = product
        else:
            self.ledger.refuse(-1, Refusal.IMPROPER_POSTERIOR)

    def result(self) -> Result:
        """Everything so far as a value."""
        status = self.ledger.status(self.settings.sites == "none", self.has_settled)
        return Result(self.posterior, self.sites.values(), status, self.ledger.trace())

    def _accept(
        self, k: int, following: int, own: FactorialGaussian, full: FactorialGaussian, most: float
    ) -> Refusal | None:
        """Make the change, halved as often as posterior and next cavity need; or leave all as it was."""
        for halving in range(_HALVINGS + 1):
            share = self.guard.damping * most * 0.5**halving
            trial, change = self.posterior * full**share, own**share
            if not is_proper_against(trial, self.prior):
                continue
            cavity = self.sites.following_cavity(trial, k, change, following, self.settings.power)
            support = None if following < 0 else self.supports[following]
            if is_proper_against(cavity, restrict(trial, support)):
                self.sites.update(k, change)
                self.posterior = trial
                if halving:
                    self.ledger.damp(k)
                return None
        self.ledger.refuse(k, Refusal.IMPROPER_POSTERIOR)
        return Refusal.IMPROPER_POSTERIOR


def check_site(k: int, site: FactorialGaussian, dim: int) -> None:
    """Refuse a site to start from that cannot be one."""
    if site.dim != dim or not site.is_finite:
        raise ValueError(f"start[{k}] must be a finite site in the {dim} coordinates of factor {k}, got {site.dim}")


def check_started(posterior: FactorialGaussian, prior: FactorialGaussian) -> None:
    """Refuse sites whose product with the prior is not proper."""
    if not is_proper_against(posterior, prior):
        raise ValueError("the prior times the sites of start is not proper: raise their precisions, or leave start out")


def temperature_is_final(settings: Settings, loops: int) -> bool:
    """Whether the inverse temperature will not change any more after so many loops."""
    now = settings.temperature.beta(loops - 1)
    return all(settings.temperature.beta(loop) == now for loop in range(loops, settings.loops))


def distance(before: FactorialGaussian, after: FactorialGaussian) -> float:
    """Largest change of a mean in standard deviations, or of the logarithm of a precision."""
    mean = np.max(np.abs(after.mean - before.mean) / after.std)
    width = np.max(np.abs(np.log(after.precision / before.precision)))
    return float(max(mean, width))


def visits_with_next(settings: Settings, count: int, loop: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """List the factors visited in a loop, and for each the one visited after it; the very last has itself."""
    visits = settings.order.visits(count, loop)
    last = settings.order.visits(count, loop + 1)[:1] if loop + 1 < settings.loops else visits[-1:]
    return visits, np.concatenate([visits[1:], last])
