"""The reference EP loop: plain, readable, one factor at a time.

`visit` is a pure function of one factor, the posterior and the factor's site. `run` calls it in the order of the
schedule, and keeps the books. Whatever is faster elsewhere is proved equal to this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.factors import Factor
from cavity.gaussian import FactorialGaussian
from cavity.result import Ledger, Refusal, Result
from cavity.schedules import Order, Temperature
from cavity.schemes._protocol import Scheme
from cavity.sites import NoSites, OwnSites, Sites, TiedSites, extend, is_proper_against, restrict

Negative = Literal["floor", "keep", "skip"]
SiteMode = Literal["own", "tied", "averaged", "none"]

# The paper's program raises site precisions to this.
FLOOR = 1e-10
# A negative precision this small against the cavity's is the rounding error of a second difference.
NEGLIGIBLE = 1e-10
# How often the damping is halved before an update is refused.
_HALVINGS = 4

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


class Update(NamedTuple):
    """What a callback is told after every visit."""

    loop: int
    factor: int
    posterior: FactorialGaussian
    refusal: Refusal | None


class Proposal(NamedTuple):
    """The quotient of new and old site of a factor, in its own coordinates, or why there is none."""

    change: FactorialGaussian | None
    refusal: Refusal | None


class FactorError(RuntimeError):
    """A factor raised an error. ``factor`` is its index, ``result`` the state before it."""

    def __init__(self, factor: int, result: Result, error: Exception) -> None:
        super().__init__(f"factor {factor} raised {type(error).__name__}: {error}; the state before it is in .result")
        self.factor, self.result = factor, result


def visit(
    factor: Factor,
    scheme: Scheme,
    posterior: FactorialGaussian,
    site: FactorialGaussian,
    beta: float,
    power: float,
    negative: Negative,
) -> Proposal:
    """Fit one factor anew: form the cavity, ask the scheme, apply the policy on negative precisions.

    Posterior and site are restricted to the factor's coordinates. Pure.
    """
    cavity = posterior / site**power
    if not is_proper_against(cavity, posterior):
        return Proposal(None, Refusal.IMPROPER_CAVITY)
    with np.errstate(all="ignore"):
        fitted = scheme.approximate(factor, cavity, power * beta) ** (1.0 / power)
    if not fitted.is_finite:
        return Proposal(None, Refusal.NONFINITE)
    if negative == "floor":
        fitted = floored(fitted, cavity)
    elif negative == "skip" and np.any(fitted.precision < -NEGLIGIBLE * cavity.precision):
        return Proposal(None, Refusal.NEGATIVE)
    return Proposal(fitted / site, None)


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
) -> Result:
    """Run EP from the prior until it settles or its loops are used up."""
    state = _Run(factors, prior, scheme, settings)
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
    return state.result()


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

    @property
    def has_settled(self) -> bool:
        """Whether the last loop changed little, refused nothing and was at the final temperature."""
        return self.ledger.has_settled(self.settings.tol) and temperature_is_final(self.settings, self.ledger.loops)

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
        if self.settings.sites != "none":
            self.posterior = self.sites.posterior(self.prior)
        if self.settings.sites == "averaged":
            self.gathered = FactorialGaussian.uniform(self.prior.dim)

    def step(self, k: int, following: int) -> Refusal | None:
        """Visit factor ``k``; accept what leaves the posterior and the cavity of ``following`` proper."""
        self.ledger.updates += 1
        support, s = self.supports[k], self.settings
        posterior = restrict(self.posterior, support)
        try:
            proposal = visit(
                self.factors[k], self.scheme, posterior, self.sites.site(k), self.beta, s.power, s.negative
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
        return self._accept(k, following, proposal.change, change)

    def end_loop(self, before: FactorialGaussian) -> None:
        """Apply what was gathered, if anything, and measure the change of the loop."""
        if self.gathered is not None:
            self._accept(-1, -1, self.gathered, self.gathered)
            self.gathered = None
        single = self.settings.sites == "none"
        self.ledger.end_loop(math.nan if single else distance(before, self.posterior))

    def result(self) -> Result:
        """Everything so far as a value."""
        status = self.ledger.status(self.settings.sites == "none", self.has_settled)
        return Result(self.posterior, self.sites.values(), status, self.ledger.trace())

    def _accept(self, k: int, following: int, own: FactorialGaussian, full: FactorialGaussian) -> Refusal | None:
        """Make the change, halved as often as posterior and next cavity need; or leave all as it was."""
        for halving in range(_HALVINGS + 1):
            share = self.settings.damping * 0.5**halving
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
