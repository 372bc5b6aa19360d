"""Two methods of annealing: EP whose temperature falls, and losses that are smoothed less at every stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cavity.ep.driver import run
from cavity.ep.factorised import Factorised
from cavity.ep.fitting import run_checked
from cavity.ep.options import Options
from cavity.ep.problem import check_batches, untouched
from cavity.ep.result import FactorError
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.mode import Stage, anneal
from cavity.optimize._minimum import Ending, Minimum
from cavity.optimize._polish import polish
from cavity.optimize._pricing import CountedFactor, Pricer
from cavity.schedules import Given, Steps
from cavity.schemes._protocol import Scheme


def smooth(factors: LinearBatches, prior: FactorialGaussian, stages: int, tol: float) -> Minimum:
    """Anneal linear factors of one loss with the full covariance until a stage gains too little."""
    check_batches(factors, prior)
    price = Pricer(factors, prior)
    costs, betas, posterior, converged = [price.at(prior.mean)], [1.0], prior, True
    for stage in _stages(factors, prior, tol):
        before = price.cost
        costs.append(float(price.note(stage.point[None], np.array([stage.cost]))[0]))
        betas.append(stage.beta)
        price.evaluations += stage.evaluations * len(factors)
        posterior = FactorialGaussian(0.0, stage.precision * stage.point, stage.precision)
        converged = len(betas) > 3 and not gained(before, price.cost, tol)
        if converged or len(betas) > stages:
            break
    else:  # a smooth loss has a single stage
        converged = True
    status = ending(price, converged)
    return Minimum(price.point, price.cost, posterior, tuple(costs), tuple(betas), status, price.evaluations)


def _stages(factors: LinearBatches, prior: FactorialGaussian, tol: float) -> Iterator[Stage]:
    """Go through the stages; a loss that raises is reported as in `fit`."""
    try:
        yield from anneal(factors, prior, accuracy=0.1 * tol)  # what a stage may leave above its own minimum
    except Exception as error:  # of the loss, which is asked for all rows at once
        raise FactorError(-1, untouched(prior), error) from error


class Annealed:
    """State of EP whose temperature falls."""

    def __init__(self, factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme) -> None:
        self.price = Pricer(factors, prior)
        self.is_linear = isinstance(factors, LinearBatches) or all(isinstance(f, LinearFactor) for f in factors)
        if not self.is_linear:
            for factor in factors:
                scheme.check(factor)
            counted: list[Any] = [CountedFactor(factor, self.price) for factor in factors]
            factors = counted
        self.factors, self.prior, self.scheme = factors, prior, scheme
        self.sites: Sequence[FactorialGaussian] | None = None
        self.posterior, self.converged, self.spread = prior, False, prior.std
        self.costs: list[float] = []
        self.betas: list[float] = []

    def run(self, options: Options) -> None:
        """Run loops until several in a row gain nothing, or all are done."""
        damping, without_gain = options.damping, 0
        for loop in range(options.max_iter):
            beta = options.temperature.beta(loop)
            order = Given(tuple(options.order.visits(len(self.factors), loop).tolist()))
            once = replace(options, max_iter=1, temperature=Steps((beta,)), order=order, damping=damping, tol=0.0)
            self._loop(beta, once)
            if not self.costs:
                self.costs, self.betas = [self.price.at(self.prior.mean)], [1.0]
            before = self.price.cost
            self.betas.append(beta)
            self.costs.append(self.price.at(self.posterior.mean))
            if self.price.cost < before:
                self.spread = np.sqrt(self.betas[-1]) * self.posterior.std
            without_gain = 0 if gained(before, self.price.cost, options.tol) else without_gain + 1
            if not self.costs[-1] <= self.costs[0]:  # worse than the prior mean: more slowly from there
                self.sites, damping = None, 0.5 * damping
            if without_gain == 3:  # loops
                self.converged = True
                return

    def polish(self, tol: float) -> None:
        """Go down from the lowest point by stars of the posterior's size at inverse temperature one."""
        if np.isfinite(self.price.cost):
            with np.errstate(all="ignore"):
                self.converged = polish(self.price, self.price.point, self.price.cost, self.spread, tol, rounds=60)

    def minimum(self) -> Minimum:
        p = self.price
        status, costs, betas = ending(p, self.converged), tuple(self.costs), tuple(self.betas)
        return Minimum(p.point, p.cost, self.posterior, costs, betas, status, p.evaluations)

    def _loop(self, beta: float, options: Options) -> None:
        """Run one loop on the whole to the power of beta, from the sites so far to the ratio of powers."""
        start = None
        if self.sites is not None:
            ratio = beta / self.betas[-1]
            start = [site**ratio for site in self.sites]
        prior = self.prior**beta
        if self.is_linear or not self.costs:
            result = run_checked(self.factors, prior, self.scheme, options, start)
        else:  # the factors have been asked at the prior mean
            backend = Factorised(self.factors, prior, self.scheme, options)
            if start is not None:
                backend.begin_at(start)
            result = run(backend, options)
        self.sites, self.posterior = result.sites, result.posterior
        self.price.state = result
        if self.is_linear:
            self.price.evaluations += result.trace.updates


def gained(before: float, after: float, tol: float) -> bool:
    return after < before and (not np.isfinite(before) or before - after > tol * abs(before))


def ending(price: Pricer, converged: bool) -> Ending:
    # So many standard deviations of the prior away a cost below zero, prior included, has no lower bound.
    away = np.max(np.abs(price.point - price.prior.mean) / price.prior.std)
    if price.fell_to_minus_infinity or (away > 1e6 and price.cost < 0.0):
        return Ending.UNBOUNDED
    if price.was_nonfinite or not np.isfinite(price.cost):
        return Ending.NONFINITE
    return Ending.CONVERGED if converged else Ending.STILL_FALLING
