"""`minimize`: the minimum of additive costs, by EP whose temperature falls, or by losses smoothed less and less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cavity import schemes
from cavity._checks import number_between, whole_number
from cavity.ep.driver import Options, make_options, run
from cavity.ep.factorised import Factorised
from cavity.ep.fit import are_linear, check_batches, check_factors, check_problem, run_checked, stacked, untouched
from cavity.ep.result import FactorError, Result, warn_of
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.mode import Stage, anneal
from cavity.optimize._minimum import CountedFactor, Ending, Minimum, Pricer
from cavity.optimize._polish import polish
from cavity.schedules import Annealing, Given, Order, Steps, Temperature
from cavity.schemes._protocol import Scheme


def minimize(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    scheme: str | Scheme | None = None,
    *,
    beta: Sequence[float] | Temperature | None = None,
    max_iter: int | None = None,
    damping: float = 1.0,
    order: str | Order | ArrayLike = "cyclic",
    tol: float = 1e-3,
) -> Minimum:
    r"""Search for the minimum of :math:`\sum_k u_k(\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`.

    EP runs on :math:`[\text{prior}(\theta) \prod_k e^{-u_k(\theta)}]^\beta` with an inverse temperature
    :math:`\beta` that increases from loop to loop. The posterior becomes narrower and approaches a minimum, and passes
    over local minima that are smaller than its width. The lowest point seen is returned. There is no guarantee that it
    is the global minimum.

    Without a scheme, linear factors with one loss are minimised with the full covariance of their predictors. A smooth
    loss is minimised by Newton's method. A loss with kinks is smoothed by the width of the posterior of every
    predictor, and less so from stage to stage. Other factors are annealed by EP, followed by a local search
    without derivatives.

    Parameters
    ----------
    factors
        The terms :math:`u_k`, as for `fit`.
    prior
        A proper `FactorialGaussian`. A wide prior has little influence.
    scheme
        As for `fit`. None uses the smoothing above for linear factors with one loss, and ``"rvq"`` otherwise.
    beta
        Inverse temperatures, one number per loop or a schedule such as `schedules.Annealing`. None increases them from
        1 to 100. Without effect on the smoothing, which starts at 1 and continues as long as the cost decreases.
    max_iter
        Maximum number of loops of EP (10 by default) or of stages of smoothing (24 by default).
    damping, order
        As for `fit`. For another random order, pass `schedules.Shuffled(seed)`.
    tol
        Tolerance: the search ends when the cost decreases by less than this share.

    Returns
    -------
    Minimum
        Point, cost, posterior, the costs of the loops, status, and the number of evaluations of factors.

    Raises
    ------
    ValueError
        If an argument is invalid; nothing has been computed then.
    FactorError
        If a factor raises an error; its index and the state before it are attached.

    Warns
    -----
    ConvergenceWarning
        From scikit-learn, if the search did not succeed; the result is returned nevertheless.

    Examples
    --------
    >>> import numpy as np, cavity
    >>> factors = [cavity.CostFactor(lambda t, a=a: float(np.abs(t - a).sum()), dim=2) for a in (1.0, 2.0, 9.0)]
    >>> prior = cavity.FactorialGaussian.from_moments(mean=np.zeros(2), variance=1e6)
    >>> minimum = cavity.minimize(factors, prior)
    >>> minimum.point.round(2), round(minimum.cost, 2)
    (array([2., 2.]), 16.0)
    """
    check_problem(factors, prior)
    most = None if max_iter is None else whole_number("max_iter", max_iter, least=1)
    tol = number_between("tol", tol, 0.0, 1.0, "[)")
    loops = most or 10  # of EP; of smoothing 24 stages
    schedule = Annealing(1.0, 100.0, max(loops, 2)) if beta is None else beta
    options = make_options(len(factors), max_iter=loops, tol=tol, beta=schedule, damping=damping, order=order)
    chosen = schemes.resolve("rvq" if scheme is None else scheme)
    if scheme is None and are_linear(factors):
        found = _smooth(stacked(factors), prior, most or 24, tol)
    else:
        found = _anneal(factors, prior, chosen, options)
    if not found.status.is_success:
        warn_of(found.status, "cavity.minimize")
    return found


def _smooth(factors: LinearBatches, prior: FactorialGaussian, stages: int, tol: float) -> Minimum:
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


def _anneal(factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme, options: Options) -> Minimum:
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
