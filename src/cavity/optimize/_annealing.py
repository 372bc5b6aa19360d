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
from cavity.ep.problem import check_batches, check_factors, untouched
from cavity.ep.result import FactorError, Result
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
        converged = len(betas) > 3 and not _gained(before, price.cost, tol)
        if converged or len(betas) > stages:
            break
    else:  # a smooth loss has a single stage
        converged = True
    return _minimum(price, posterior, costs, betas, converged)


def _stages(factors: LinearBatches, prior: FactorialGaussian, tol: float) -> Iterator[Stage]:
    """Go through the stages; a loss that raises is reported as in `fit`."""
    try:
        yield from anneal(factors, prior, accuracy=0.1 * tol)  # what a stage may leave above its own minimum
    except Exception as error:  # of the loss, which is asked for all rows at once
        raise FactorError(-1, untouched(prior), error) from error


def anneal_ep(factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme, options: Options) -> Minimum:
    """Run loops of EP until several in a row gain nothing, or all are done; then polish the lowest point."""
    price = Pricer(factors, prior)
    if not _are_rows(factors):
        for factor in factors:
            scheme.check(factor)
        counted: list[Any] = [CountedFactor(factor, price) for factor in factors]
        factors = counted
        check_factors(factors, prior, scheme)
    sites: Sequence[FactorialGaussian] | None = None
    posterior, spread, damping, without_gain = prior, prior.std, options.damping, 0
    costs: list[float] = []
    betas: list[float] = []
    for loop in range(options.max_iter):
        beta = options.temperature.beta(loop)
        order = Given(tuple(options.order.visits(len(factors), loop).tolist()))
        once = replace(options, max_iter=1, temperature=Steps((beta,)), order=order, damping=damping, tol=0.0)
        start = None if sites is None else [site ** (beta / betas[-1]) for site in sites]
        price.state = result = _loop(factors, prior**beta, scheme, once, start, price)
        sites, posterior = result.sites, result.posterior
        if loop == 0:
            costs, betas = [price.at(prior.mean)], [1.0]
        before = price.cost
        betas.append(beta)
        costs.append(price.at(posterior.mean))
        if price.cost < before:
            spread = np.sqrt(beta) * posterior.std
        without_gain = 0 if _gained(before, price.cost, options.tol) else without_gain + 1
        if not costs[-1] <= costs[0]:  # worse than the prior mean: more slowly from there
            sites, damping = None, 0.5 * damping
        if without_gain == 3:  # loops
            break
    converged = without_gain == 3
    if np.isfinite(price.cost):  # stars of the posterior's size at inverse temperature one
        with np.errstate(all="ignore"):
            converged = polish(price, price.point, price.cost, spread, options.tol, rounds=60)
    return _minimum(price, posterior, costs, betas, converged)


def _are_rows(factors: Sequence[Factor]) -> bool:
    return isinstance(factors, LinearBatches) or all(isinstance(factor, LinearFactor) for factor in factors)


def _loop(
    factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme, options: Options, start: Any, price: Pricer
) -> Result:
    """Run one loop. Factors other than rows were checked before, and count their evaluations themselves."""
    if _are_rows(factors):
        result = run_checked(factors, prior, scheme, options, start)
        price.evaluations += result.trace.updates
        return result
    backend = Factorised(factors, prior, scheme, options)
    if start is not None:
        backend.begin_at(start)
    return run(backend, options)


def _gained(before: float, after: float, tol: float) -> bool:
    return after < before and (not np.isfinite(before) or before - after > tol * abs(before))


def _minimum(
    price: Pricer, posterior: FactorialGaussian, costs: list[float], betas: list[float], converged: bool
) -> Minimum:
    """Say what was found, and how it ended."""
    # So many standard deviations of the prior away a cost below zero, prior included, has no lower bound.
    away = np.max(np.abs(price.point - price.prior.mean) / price.prior.std)
    status = Ending.CONVERGED if converged else Ending.STILL_FALLING
    if price.fell_to_minus_infinity or (away > 1e6 and price.cost < 0.0):
        status = Ending.UNBOUNDED
    elif price.was_nonfinite or not np.isfinite(price.cost):
        status = Ending.NONFINITE
    return Minimum(price.point, price.cost, posterior, tuple(costs), tuple(betas), status, price.evaluations)
