"""EP factor by factor, for any factors, in plain Python: the reference that whatever is faster is compared with.

The Gaussians are products of independent ones (`FactorialGaussian`) or have all correlations (`FullGaussian`), by the
prior; nothing else here knows which.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.ep.driver import Change, Diagnostics, Failure, Options, State, Step, arrays_of, gaussian_of
from cavity.ep.result import Refusal, Result, Status
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian
from cavity.schemes._protocol import Scheme
from cavity.schemes.constants import UPDATE_HALVINGS

# One of both families, the same throughout a run.
Gaussian: TypeAlias = Any


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
    posterior: FactorialGaussian | FullGaussian
    refusal: Refusal | None


class Factorised:
    """Sites and posterior, updated one factor after the other.

    ``stored`` holds one site per factor in its own coordinates (plain EP), one site for all factors (Stochastic and
    Averaged EP), or nothing: the cavity of a single pass is the posterior so far. Of a site for all, ``shares`` counts
    the factors that have a coordinate, in the form of a Gaussian.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        prior: Gaussian,
        scheme: Scheme,
        options: Options,
        after_visit: Callable[[Update], object] | None = None,
    ) -> None:
        self.factors, self.prior, self.scheme, self.options = factors, prior, scheme, options
        self.posterior, self.beta, self.after_visit = prior, options.temperature.beta(0), after_visit
        self.supports = [factor.coordinates for factor in factors]
        self.stored: list[Gaussian] = []
        if options.sites == "own":
            self.stored = [prior.uniform(prior.dim if s is None else s.size) for s in self.supports]
        elif options.sites != "none":
            self.stored = [prior.uniform(prior.dim)]
            ones = type(prior)(1.0, np.ones_like(prior.shift), np.ones_like(prior.precision))
            counts = _product(prior.uniform(prior.dim), [ones.take(s) for s in self.supports], self.supports)
            self.shares = counts.combined(ones, np.maximum)

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return np.asarray(self.posterior.mean)

    def begin_at(self, start: Sequence[Gaussian]) -> None:
        """Start from given sites instead of uniform ones."""
        for k, site in enumerate(start):
            check_site(k, site, self.stored[k].dim)
        self.stored, self.posterior = list(start), self._product(start)
        check_start(self.posterior, self.prior)

    def may_begin_at(self, start: Sequence[Gaussian]) -> bool:
        """Whether prior times sites, and all cavities, are proper."""
        if not self._product(start).is_proper_beside(self.prior):
            return False
        whole = [self._product(start).marginal(support) for support in self.supports]
        return all((part / site).is_proper_beside(part) for part, site in zip(whole, start, strict=True))

    def refresh(self, beta: float, diagnostics: Diagnostics) -> None:
        """Raise the sites to the ratio of temperatures, and multiply the posterior up from them.

        Where rounding makes that improper, the posterior stays, and this is noted.
        """
        if beta != self.beta:
            rescaled = [site ** (beta / self.beta) for site in self.stored]
            if self._product(rescaled).is_proper_beside(self.prior):
                self.stored = rescaled
            else:
                diagnostics.reject(-1, Refusal.RESCALING)
            self.beta = beta
        if self.options.single_pass:
            return
        product = self._product(self.stored)
        if product.is_proper_beside(self.prior):
            self.posterior = product
        else:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Visit the factors in their order; averaged sites are changed once, at the end."""
        o, before, is_averaged = self.options, self.posterior, self.options.sites == "averaged"
        gathered = self.prior.uniform(self.prior.dim)
        visits, following = visits_with_next(o, len(self.factors), step.loop)
        for k, then in zip(visits.tolist(), following.tolist(), strict=True):
            diagnostics.updates += 1
            change, share, refusal = self.visit(k, step.retries)
            if refusal is not None:
                diagnostics.reject(k, refusal)
            elif is_averaged:
                gathered = gathered * change.scatter(self.supports[k], self.prior.dim)
            else:
                refusal = self._accept(k, then, change, step.damping * share, diagnostics)
            if self.after_visit is not None:
                self.after_visit(Update(step.loop, k, self.posterior, refusal))
        if is_averaged:
            self._accept(-1, -1, gathered, step.damping, diagnostics)
        return change_between(before, self.posterior, o)

    def visit(self, k: int, retries: int = 0) -> tuple[Gaussian, float, Refusal | None]:
        """Fit a factor: form its cavity, ask the scheme, apply the policy on negative precisions.

        Returns the quotient of the new and the old site, the largest share of it to take, and why there is none. An
        improper cavity is tried again with half as much of the site removed, as often as ``retries`` allows; no more
        than that share of the change may be taken.
        """
        o, posterior, site = self.options, self.posterior.marginal(self.supports[k]), self._site(k, self.stored)
        scheme: Any = self.scheme
        power, share, cavity = o.power, 1.0, posterior / site**o.power
        while not cavity.is_proper_beside(posterior):
            if retries == 0:
                return site, 0.0, Refusal.IMPROPER_CAVITY
            retries, power, share = retries - 1, 0.5 * power, 0.5 * share
            cavity = posterior / site**power
        try:
            with np.errstate(all="ignore"):
                if isinstance(cavity, FullGaussian):  # its neighbour has mass one
                    near = FullGaussian(posterior.log_scale - posterior.log_mass, posterior.shift, posterior.precision)
                    fitted = scheme.approximate_full(self.factors[k], cavity, power * self.beta, near)
                else:
                    fitted = scheme.approximate(self.factors[k], cavity, power * self.beta)
                fitted = fitted ** (1.0 / power)
        except Exception as error:
            raise Failure(k, error) from error
        if not fitted.is_finite:
            return site, 0.0, Refusal.NONFINITE
        if o.negative == "floor":
            fitted = fitted.floored(cavity)
        elif o.negative == "skip" and fitted.is_negative_beside(cavity):
            return site, 0.0, Refusal.NEGATIVE
        return fitted / site, share, None

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
        sites, empty = self.stored, np.empty(0)
        return {
            "scales": np.array([site.log_scale for site in sites]),
            "shifts": np.concatenate([empty, *(site.shift for site in sites)]),
            "precisions": np.concatenate([empty, *(site.precision.ravel() for site in sites)]),
            **arrays_of("posterior", self.posterior),
            "beta": self.beta,
        }

    def restore(self, state: State) -> None:
        """Return to such a state."""
        family = type(self.prior)
        shifts = np.split(state["shifts"], np.cumsum([site.shift.size for site in self.stored]))
        precisions = np.split(state["precisions"], np.cumsum([site.precision.size for site in self.stored]))
        self.stored = [
            family(float(scale), shift, precision.reshape(site.precision.shape))
            for site, scale, shift, precision in zip(self.stored, state["scales"], shifts, precisions, strict=False)
        ]
        self.posterior, self.beta = gaussian_of("posterior", state, family), float(state["beta"])

    def result(self, status: Status, diagnostics: Diagnostics) -> Result:
        """Posterior and sites as values."""
        return Result(self.posterior, tuple(self.stored), status, diagnostics.trace(), self.prior)

    def _accept(
        self, k: int, following: int, change: Gaussian, most: float, diagnostics: Diagnostics
    ) -> Refusal | None:
        """Make the change, halved as often as posterior and next cavity need; or leave all as it is.

        The index -1 stands for all factors at once.
        """
        support, then = (None if j < 0 else self.supports[j] for j in (k, following))
        for halving in range(UPDATE_HALVINGS + 1):
            part = change ** (most * 0.5**halving)
            full = part.scatter(support, self.prior.dim)
            trial, stored = self.posterior * full, self.stored
            if not trial.is_proper_beside(self.prior):
                continue
            if self.options.sites == "own":
                stored = [*stored]
                stored[k] = stored[k] * part
            elif stored:
                stored = [stored[0] * full.combined(self.shares, operator.truediv)]
            seen = trial.marginal(then)
            if (seen / self._site(following, stored) ** self.options.power).is_proper_beside(seen):
                self.stored, self.posterior = stored, trial
                if halving:
                    diagnostics.damp(k)
                return None
        diagnostics.reject(k, Refusal.IMPROPER_POSTERIOR)
        return Refusal.IMPROPER_POSTERIOR

    def _site(self, k: int, stored: list[Gaussian]) -> Gaussian:
        """Site of factor ``k`` in its own coordinates; -1 stands for all factors at once."""
        if self.options.sites == "own":
            return stored[k]
        support = None if k < 0 else self.supports[k]
        if not stored:
            return self.prior.uniform(self.prior.dim if support is None else support.size)
        return stored[0].take(support)

    def _product(self, stored: Sequence[Gaussian]) -> Gaussian:
        """Prior times all sites."""
        if self.options.sites == "own":
            return _product(self.prior, stored, self.supports)
        for site in stored:
            return self.prior * site.combined(self.shares, operator.mul)
        return self.prior


def _product(first: Gaussian, others: Sequence[Gaussian], supports: Sequence[IndexArray | None]) -> Gaussian:
    """Multiply a Gaussian by others in some of its coordinates, without a copy for each."""
    log_scale, shift, precision = first.log_scale, first.shift.copy(), first.precision.copy()
    for other, support in zip(others, supports, strict=True):
        place: Any = ... if support is None else np.ix_(*[support] * precision.ndim)
        log_scale += other.log_scale
        shift[... if support is None else support] += other.shift
        precision[place] += other.precision
    return type(first)(float(log_scale), shift, precision)


def check_site(k: int, site: Gaussian, dim: int) -> None:
    """Raise unless this can be a site of a factor to start from."""
    if site.dim != dim or not site.is_finite:
        raise ValueError(f"start[{k}] must be a finite site in the {dim} coordinates of factor {k}, got {site.dim}")


def check_start(posterior: Gaussian, prior: Gaussian) -> None:
    """Raise unless the product of prior and sites is proper."""
    if not posterior.is_proper_beside(prior):
        raise ValueError("the prior times the sites of start is not proper: raise their precisions, or leave start out")


def prior_cost(prior: Gaussian, point: FloatArray) -> float:
    """Half the squared distance from the prior mean, in standard deviations."""
    away = point - prior.mean
    return float(0.5 * away @ prior.times(away))


def change_between(before: Gaussian, after: Gaussian, options: Options) -> Change:
    """Largest change of a mean in standard deviations, or of the logarithm of a precision."""
    if options.single_pass:
        return Change(math.nan, math.nan)
    mean = np.max(np.abs(after.mean - before.mean) / after.std)
    width = np.max(np.abs(np.log(after.variance / before.variance)))
    return Change(float(max(mean, width)), float(max(mean, width)))


def visits_with_next(options: Options, count: int, loop: int) -> tuple[IndexArray, IndexArray]:
    """Factors visited in an iteration, and for each the one visited after it."""
    visits = options.order.visits(count, loop)
    last = visits[-1:] if options.single_pass else options.order.visits(count, loop + 1)[:1]
    return visits, np.concatenate([visits[1:], last])
