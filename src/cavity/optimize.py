r"""Minima instead of posteriors: `minimize`, by EP whose temperature falls, or by losses smoothed less and less.

At inverse temperature :math:`\beta` the posterior is :math:`\beta^{-1/2}` times as wide. So smoothing every loss of a
linear model by the posterior's width of its predictor times :math:`\beta^{-1/2}` is what EP does at that temperature,
with a full covariance in place of a product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cavity import schemes
from cavity._checks import number_between, whole_number
from cavity._types import FloatArray
from cavity.ep.black_boxes import Counted
from cavity.ep.driver import Options, make_options, run
from cavity.ep.factorised import Factorised
from cavity.ep.fit import are_linear, check_batches, check_factors, check_problem, run_checked, stacked
from cavity.ep.result import FactorError, RunError, untouched, warn_of
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.mode import Mode, Problem, find_mode, smoothed
from cavity.schedules import Annealing, Given, Order, Steps, Temperature
from cavity.schemes._protocol import Scheme

__all__ = ["Ending", "Minimum", "minimize"]

_LONGEST_STEP = 8.0  # of the local search, in arms of its star: how far its differences are trusted


class Ending(Enum):
    """How a minimisation ended; the value says what to do about it."""

    CONVERGED = "converged: the last attempts lowered the cost by less than tol"
    STILL_FALLING = "the cost was still falling after the last loop: raise max_iter, or start from here"
    UNBOUNDED = (
        "the cost falls without end, or to minus infinity: the point is the lowest finite one met; bound the cost "
        "from below or narrow the prior"
    )
    NONFINITE = (
        "some costs met after the lowest point were NaN or infinite, so that it may not be a minimum: look at the "
        "costs around it"
    )

    @property
    def is_success(self) -> bool:
        """Whether a minimum was found."""
        return self is Ending.CONVERGED


@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    r"""The lowest point seen.

    Attributes
    ----------
    point
        The place, of shape ``(dim,)``.
    cost
        All factor costs there and the prior's, :math:`\sum_k u_k(\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`,
        at inverse temperature one whatever the schedule.
    posterior
        The factorial Gaussian of the last loop, at the last inverse temperature.
    costs, betas
        Cost of the point that every loop ended at, and its inverse temperature; the first is that of the prior mean.
    status
        How it ended.
    evaluations
        How often a factor was asked for its cost at a point, all factors and points counted; in compiled EP, a fit to a
        factor counts as one.
    """

    point: FloatArray
    cost: float
    posterior: FactorialGaussian
    costs: tuple[float, ...]
    betas: tuple[float, ...]
    status: Ending
    evaluations: int

    @property
    def spread(self) -> FloatArray:
        """How far every coordinate alone may go before the cost rises by about one half."""
        return np.asarray(np.sqrt(self.betas[-1]) * self.posterior.std)

    def raise_for_status(self) -> Minimum:
        """Raise `RunError` unless a minimum was found; return this otherwise."""
        if not self.status.is_success:
            raise RunError(str(self))
        return self

    def __str__(self) -> str:
        loops = len(self.betas) - 1
        return f"{self.status.value}\ncost {self.cost:.6g} after {loops} loops and {self.evaluations} evaluations"


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
    for beta, mode, precision in _stages(factors, prior, accuracy=0.1 * tol):
        before = price.cost
        costs.append(float(price.note(mode.point[None], np.array([mode.cost]))[0]))
        betas.append(beta)
        price.evaluations += mode.evaluations * len(factors)
        posterior = FactorialGaussian(0.0, precision * mode.point, precision)
        converged = len(betas) > 3 and not _gained(before, price.cost, tol)
        if converged or len(betas) > stages:
            break
    else:  # a smooth loss has a single stage
        converged = True
    return _minimum(price, posterior, costs, betas, converged)


def _stages(
    factors: LinearBatches, prior: FactorialGaussian, accuracy: float
) -> Iterator[tuple[float, Mode, FloatArray]]:
    """Give the mode and, where the loss has kinks, ever less smoothed minima, with inverse temperatures and precisions.

    ``accuracy`` is what a stage may leave above its own minimum, as a share of the cost. A loss that raises is
    reported as in `fit`.
    """
    try:
        problem, mode = Problem(factors, prior, 1.0), find_mode(factors, prior)
        yield 1.0, mode, problem.diagonal(mode.curvatures)
        lowest, beta, widths, metric = mode.cost, 1.0, mode.widths, None
        while np.any(widths > 0.0):
            widths, beta = 0.5 * widths, beta / 0.25  # slow enough for the minimum to follow
            with np.errstate(all="ignore"):
                curve, left = smoothed(factors.loss, factors.targets, widths), np.sqrt(2.0 * accuracy * abs(lowest))
                mode, metric = problem.descend(curve, mode.point, float(left), metric)
                mode = replace(mode, cost=problem.cost_at(mode.point), evaluations=mode.evaluations + 1)
            lowest = min(lowest, mode.cost)
            yield beta, mode, beta * problem.diagonal(mode.curvatures)
    except Exception as error:  # of the loss, which is asked for all rows at once
        raise FactorError(-1, untouched(prior), error) from error


def _anneal(factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme, options: Options) -> Minimum:
    """Run loops of EP until several in a row gain nothing, or all are done; then polish the lowest point."""
    price = Pricer(factors, prior)
    are_rows = isinstance(factors, LinearBatches) or all(isinstance(factor, LinearFactor) for factor in factors)
    if not are_rows:
        for factor in factors:
            scheme.check(factor)
        counted: list[Any] = [Counted(factor, k, price) for k, factor in enumerate(factors)]
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
        if are_rows:
            result = run_checked(factors, prior**beta, scheme, once, start)
            price.evaluations += result.trace.updates
        else:  # checked before, and counted by themselves
            backend = Factorised(factors, prior**beta, scheme, once)
            if start is not None:
                backend.begin_at(start)
            result = run(backend, once)
        price.state = result
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
            converged = _polish(price, price.point, price.cost, spread, options.tol, rounds=60)
    return _minimum(price, posterior, costs, betas, converged)


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


class Pricer:
    """Total cost of points, prior included. It keeps the lowest, and whether costs since then were not finite.

    ``state`` is what an error says about the run so far.
    """

    def __init__(self, factors: Sequence[Factor], prior: FactorialGaussian) -> None:
        self.factors, self.prior, self.evaluations, self.last = factors, prior, 0, -1
        self.state = untouched(prior)
        self.point, self.cost = prior.mean, np.inf
        self.fell_to_minus_infinity = self.was_nonfinite = False

    def __call__(self, points: FloatArray) -> FloatArray:
        """Cost of every point; NaN counts as infinite, and so does minus infinity, which is noted."""
        if len(points) == 0:
            return np.empty(0)
        away = points - self.prior.mean
        with np.errstate(all="ignore"):
            costs = 0.5 * (away * away) @ self.prior.precision + self._factor_costs(points)
        return self.note(points, costs)

    def note(self, points: FloatArray, costs: FloatArray) -> FloatArray:
        """Take in points whose costs are known."""
        self.fell_to_minus_infinity |= bool(np.any(costs == -np.inf))
        finite = np.isfinite(costs)
        costs = np.where(finite, costs, np.inf)
        best = int(np.argmin(costs))
        if costs[best] < self.cost:
            self.point, self.cost, self.was_nonfinite = points[best].copy(), float(costs[best]), False
        self.was_nonfinite |= not np.all(finite)
        return costs

    def at(self, point: FloatArray) -> float:
        return float(self(point[None])[0])

    def _factor_costs(self, points: FloatArray) -> FloatArray:
        self.evaluations += len(points) * len(self.factors)
        if isinstance(self.factors, LinearBatches):
            return self.factors.cost(points)
        total = np.zeros(len(points))
        for k, factor in enumerate(self.factors):
            support = factor.coordinates
            try:
                total += factor.cost(points if support is None else points[:, support])
            except Exception as error:
                raise FactorError(k, self.state, error) from error
        return total


def _polish(price: Pricer, point: FloatArray, cost: float, scale: FloatArray, tol: float, rounds: int) -> bool:
    """Lower the cost without derivatives until no star gains a share ``tol`` of it; whether that was reached.

    Costs at the ends of a star and, in few dimensions, at its corners give slopes and curvatures at the scale of the
    star: what is smaller is smoothed over. A Newton step follows. The arms of the next star are the principal
    directions of the curvature, as long as the cost rises by the same amount along all of them: a posterior with its
    correlations, narrowed from round to round.

    A round that gains less than a quarter of the squared radius shrinks the star; one that took the longest step widens
    it. Rounds without gain end the search: 4 once the star is small against the cost, 12 in any case.
    """
    arms, radius, without_gain = np.diag(scale), np.sqrt(point.size), 0
    for _ in range(rounds):
        ends = np.concatenate([radius * arms, -radius * arms])
        star = price(point + ends)
        model = _newton_step(price, point, cost, radius * arms, star)
        moves = ends
        if model is not None:
            step, curvature, vectors = model
            shares = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 2.0])  # of the Newton step, tried together
            moves = np.concatenate([ends, shares[:, None] * (step @ (radius * arms))])
            star = np.concatenate([star, price(point + moves[len(ends) :])])
            size = np.clip(np.abs(curvature) / radius**2, 0.02, 50.0)  # what a round may change along an arm
            arms = (vectors / np.sqrt(size)).T @ arms
        best = int(np.argmin(star))
        gain = cost - float(star[best])
        if gain > 0.0:
            point, cost = point + moves[best], float(star[best])
        without_gain = 0 if gain > tol * abs(cost) else without_gain + 1
        if without_gain or gain < 0.25 * radius**2:
            radius *= 0.5
        elif best >= len(ends) and np.max(np.abs(step)) >= 0.99 * _LONGEST_STEP:
            radius *= 4.0
        small = radius**2 <= tol * abs(cost)
        if without_gain >= (4 if small else 12):
            return True
    return False


def _newton_step(
    price: Pricer, point: FloatArray, cost: float, arms: FloatArray, star: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Newton's step, curvatures and principal directions, in units of the arms; None where an end is not finite.

    The step goes against curvatures below zero too, and is cut to a length that can be trusted.
    """
    d = point.size
    up, down = star[:d], star[d:]
    if not np.all(np.isfinite(star)):
        return None
    matrix = np.diag(up + down - 2.0 * cost)
    if 1 < d <= 64:  # mixed differences cost O(d^2) evaluations
        i, j = np.triu_indices(d, 1)
        corners = arms[i] + arms[j]
        both = price(np.concatenate([point + corners, point - corners])).reshape(2, -1).sum(axis=0)
        mixed = 0.5 * (both - up[i] - down[i] - up[j] - down[j] + 2.0 * cost)
        matrix[i, j] = matrix[j, i] = np.where(np.isfinite(mixed), mixed, 0.0)
    curvature, vectors = np.linalg.eigh(matrix)
    size = np.maximum(np.abs(curvature), 1e-9 * np.max(np.abs(curvature)) + np.finfo(float).tiny)
    step = -vectors @ ((vectors.T @ (0.5 * (up - down))) / size)
    length = float(np.max(np.abs(step)))
    step = step * min(1.0, _LONGEST_STEP / length) if 0.0 < length < np.inf else np.zeros_like(step)
    return step, curvature, vectors
