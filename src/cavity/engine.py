"""The reference EP loop: plain, readable, one factor at a time.

`visit` is a pure function of one factor, the posterior and the factor's site. `run` calls it in the order of the
schedule, and keeps the books. Whatever is faster elsewhere is proved equal to this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cavity.factors import Factor
from cavity.gaussian import FactorialGaussian
from cavity.result import Refusal, Result, Status, Trace
from cavity.schedules import Order, Temperature
from cavity.schemes._protocol import Scheme
from cavity.sites import NoSites, OwnSites, Sites, TiedSites, extend, is_proper_against, restrict

Negative = Literal["floor", "keep", "skip"]
SiteMode = Literal["own", "tied", "averaged", "none"]

# The paper's program raises site precisions to this.
FLOOR = 1e-10
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
    elif negative == "skip" and np.any(fitted.precision < 0.0):
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
        for k, following in _pairs(settings.order, len(factors), loop, settings.loops):
            refusal = state.step(k, following)
            if callback is not None:
                callback(Update(loop, k, state.posterior, refusal))
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
        self.pending: FactorialGaussian | None = None
        self.beta = settings.temperature.beta(0)
        self.updates = 0
        self.changes: list[float] = []
        self.betas: list[float] = []
        self.refusals: Counter[tuple[int, Refusal]] = Counter()
        self.dampings: Counter[int] = Counter()
        self.loop_refusals: Counter[Refusal] = Counter()

    @property
    def has_settled(self) -> bool:
        """Whether the last loop changed little, refused nothing and was at the final temperature."""
        final = self.settings.temperature.beta(self.settings.loops - 1) == self.beta
        return final and not self.loop_refusals and self.changes[-1] < self.settings.tol

    def begin_loop(self, loop: int) -> None:
        """Move to the loop's temperature, and multiply the posterior up anew against drift of rounding."""
        self.loop_refusals = Counter()
        beta = self.settings.temperature.beta(loop)
        if beta != self.beta:
            rescaled = self.sites.power(beta / self.beta)
            if is_proper_against(rescaled.posterior(self.prior), self.prior):
                self.sites = rescaled
            else:
                self._refuse(-1, Refusal.RESCALING)
            self.beta = beta
        self.betas.append(beta)
        if self.settings.sites != "none":
            self.posterior = self.sites.posterior(self.prior)
        if self.settings.sites == "averaged":
            self.pending = FactorialGaussian.uniform(self.prior.dim)

    def step(self, k: int, following: int) -> Refusal | None:
        """Visit factor ``k``; accept what leaves the posterior and the cavity of ``following`` proper."""
        self.updates += 1
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
            return self._refuse(k, proposal.refusal)
        if self.pending is not None:
            self.pending = self.pending * extend(proposal.change, support, self.prior.dim)
            return None
        for halving in range(_HALVINGS + 1):
            change = proposal.change ** (s.damping * 0.5**halving)
            trial = self.posterior * extend(change, support, self.prior.dim)
            if not is_proper_against(trial, self.prior):
                continue
            cavity = self.sites.following_cavity(trial, k, change, following, s.power)
            if is_proper_against(cavity, restrict(trial, self.supports[following])):
                self.sites.update(k, change)
                self.posterior = trial
                if halving:
                    self.dampings[k] += 1
                return None
        return self._refuse(k, Refusal.IMPROPER_POSTERIOR)

    def end_loop(self, before: FactorialGaussian) -> None:
        """Apply what was gathered, if anything, and measure the change of the loop."""
        if self.pending is not None:
            self._apply_pending(self.pending)
            self.pending = None
        self.changes.append(distance(before, self.posterior))

    def result(self) -> Result:
        """Everything so far as a value."""
        trace = Trace(
            self.updates,
            tuple(self.changes),
            tuple(self.betas),
            Counter(self.refusals),
            Counter(self.dampings),
        )
        return Result(self.posterior, self.sites.values(), self._status(), trace)

    def _apply_pending(self, pending: FactorialGaussian) -> None:
        for halving in range(_HALVINGS + 1):
            change = pending ** (self.settings.damping * 0.5**halving)
            trial = self.posterior * change
            if not is_proper_against(trial, self.prior):
                continue
            cavities = (self.sites.following_cavity(trial, 0, change, 0, self.settings.power),)
            if all(is_proper_against(cavity, trial) for cavity in cavities):
                self.sites.update(0, change)
                self.posterior = trial
                if halving:
                    self.dampings[-1] += 1
                return
        self._refuse(-1, Refusal.IMPROPER_POSTERIOR)

    def _refuse(self, k: int, why: Refusal) -> Refusal:
        self.refusals[k, why] += 1
        self.loop_refusals[why] += 1
        return why

    def _status(self) -> Status:
        if self.loop_refusals:
            worst = self.loop_refusals.most_common(1)[0][0]
            return {
                Refusal.NONFINITE: Status.NONFINITE,
                Refusal.NEGATIVE: Status.NEGATIVE,
            }.get(worst, Status.IMPROPER_CAVITY)
        if self.settings.sites == "none":
            return Status.SINGLE_PASS
        return Status.CONVERGED if self.changes and self.has_settled else Status.MAX_LOOPS


def distance(before: FactorialGaussian, after: FactorialGaussian) -> float:
    """Largest change of a mean in standard deviations, or of the logarithm of a precision."""
    mean = np.max(np.abs(after.mean - before.mean) / after.std)
    width = np.max(np.abs(np.log(after.precision / before.precision)))
    return float(max(mean, width))


def _pairs(order: Order, count: int, loop: int, loops: int) -> Iterator[tuple[int, int]]:
    """Each factor visited in a loop with the one visited after it; the very last with itself."""
    visits = order.visits(count, loop)
    last = order.visits(count, loop + 1)[0] if loop + 1 < loops else visits[-1]
    return zip(map(int, visits), map(int, (*visits[1:], last)), strict=True)
