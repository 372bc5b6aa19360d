r"""The mode of prior times factors: where :math:`\beta \sum_k u_k(\theta) - \log \text{prior}(\theta)` is least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.factors import LinearBatches
from cavity.gaussian import FactorialGaussian
from cavity.losses import Logistic, Loss, Squared
from cavity.mode._curves import Kinks, Plain, Rough, Unknown, Width, kinks_of
from cavity.mode._design import design_of
from cavity.mode._newton import Minimum, Problem, State, metric_at, minimize, state_at
from cavity.mode._sample import STRIDE, Sample, sampled
from cavity.mode._secant import descend

FloatArray = NDArray[np.float64]

# Widths of smoothing: which of the distances to the kinks is the first, how much narrower one is than that before it,
# how near to the posterior's is near enough, how many times the first none may exceed, and how many there are at most.
_FIRST = 0.25
_NARROWER = 0.25
_NEAR = 1.2
_WIDEST = {True: 4.0, False: 1.0}  # convex or not
_NEAREST, _NARROWEST = 1e-3, 1e-9
_STAGES = 12
# How well is solved what only leads on, and what is not convex, in standard deviations a column; and the most steps.
_LOOSE, _LOOSE_STEPS = 0.1, 12
_NOT_CONVEX = 0.03
# With some of the rows widths do not come nearer to the posterior's than this many times theirs.
_LED = 1.0
# Shares of the bounds of all curvatures that go into the first metric, with some of the rows and with all.
_LED_CAUTION, _CAUTION = 0.1, 0.03
# Shares of the way to the minimum of a smooth loss that are tried as a start.
_STRETCHES = tuple(2.0**k for k in range(-8, 5))
# How near to the mode a run starts, in standard deviations a coordinate.
_NEAR_MODE = 0.1
# Where curvature is looked for: around so many targets.
_SOME, _NEARBY = 64, np.linspace(-4.0, 4.0, 33)


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """Where prior times factors is greatest, as well as it was found.

    Attributes
    ----------
    point
        The place, of shape ``(dim,)``.
    cost
        Inverse temperature times all costs, and half the squared distance to the prior mean in standard deviations.
    iterations
        Newton steps taken with all rows.
    converged
        Whether the last of them left less than the tolerance, in standard deviations of the posterior.
    slopes, curvatures
        Those of every row's loss at the point, without weight or temperature, after smoothing where it was smoothed.
    widths
        Width of the noise by which every row's loss was smoothed; zero where it was taken as it is.
    """

    point: FloatArray
    cost: float
    iterations: int
    converged: bool
    slopes: FloatArray
    curvatures: FloatArray
    widths: FloatArray


def find_mode(
    factors: LinearBatches,
    prior: FactorialGaussian,
    beta: float = 1.0,
    *,
    tol: float = 1e-6,
    max_steps: int = 100,
    width: float = 1.0,
) -> Mode:
    r"""Minimise :math:`\beta \sum_k w_k\, \ell(y_k, x_k^\top\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`.

    A smooth loss is minimised as it is, by Newton's method: with Cholesky up to 2000 columns, where every step renews
    only the part of the matrix that has changed; with conjugate gradients beyond. A loss with kinks has no curvature to
    go by, and is smoothed: :math:`E\,\ell(y, z + h \epsilon)` with :math:`\epsilon \sim N(0, 1)` is minimised for
    widths h that shrink to the posterior's own width of every predictor z. There the smoothed slopes and curvatures are
    those that a Gaussian posterior sees, and the point is nearer to the posterior mean than the minimum itself is.
    Numerical trouble is never raised: the answer is the best point met, and ``converged`` is false.

    Parameters
    ----------
    factors
        The data as `LinearBatches`; dense or CSR, in double or single precision.
    prior
        A proper `FactorialGaussian`.
    beta
        Inverse temperature.
    tol
        Largest Newton decrement at the end: the way left, in standard deviations of the posterior. A loss that is not
        convex is left at 0.03 a column.
    max_steps
        Most Newton steps of the last stage.
    width
        Widths at the end, in units of the posterior's. Small ones, such as 0.01, come close to the minimum without
        smoothing, at the price of curvatures that mean little and of more steps. Without effect on smooth losses.

    Returns
    -------
    Mode
        With a smoothed loss, the minimum of the smoothed cost; or the point of lowest cost met on the way, if that lies
        lower by more than half a unit a column, the thickness of a posterior. Neither costs more than the prior mean.

    Examples
    --------
    >>> from cavity.losses import Squared
    >>> factors = LinearBatches(Squared(), [[1.0], [1.0]], [1.0, 2.0])
    >>> mode = find_mode(factors, FactorialGaussian.from_moments(mean=[0.0], variance=1.0))
    >>> mode.point.round(6), mode.converged
    (array([1.]), True)
    """
    if not prior.is_proper or prior.dim != factors.dim:
        raise ValueError(
            f"prior must be proper and have the {factors.dim} coordinates of the factors, got {prior.dim} coordinates; "
            "build it with FactorialGaussian.from_moments(mean, variance)"
        )
    if not 0.0 < beta < np.inf:
        raise ValueError(f"beta must be positive and finite, got {beta}")
    if not width > 0.0:
        raise ValueError(f"width must be positive, got {width}")
    problem = Problem(design_of(factors.X), row_weights(factors, beta), prior.mean, prior.precision)
    with np.errstate(all="ignore"):
        return _descend(problem, Plain(factors.loss, factors.targets), _Effort(tol, max_steps, width))


def near_mode(factors: LinearBatches, prior: FactorialGaussian, beta: float = 1.0) -> Mode:
    """Find the mode as well as a start of EP needs it: to a tenth of a standard deviation a coordinate."""
    return find_mode(factors, prior, beta, tol=_NEAR_MODE * float(np.sqrt(prior.dim)))


def information(factors: LinearBatches, mode: Mode, beta: float = 1.0) -> FloatArray:
    r"""Hessian :math:`\beta \sum_k w_k c_k\, x_k x_k^\top` of the costs at a mode, curvatures below zero left out."""
    return design_of(factors.X).gram(row_weights(factors, beta) * np.maximum(mode.curvatures, 0.0))


def is_convex(loss: Loss, targets: FloatArray) -> bool:
    """Whether a loss that tells its pieces is convex; one that does not is taken for convex."""
    kinks = kinks_of(loss, targets)
    return kinks is None or kinks.is_convex


def row_weights(factors: LinearBatches, beta: float) -> FloatArray:
    """Inverse temperature times the weight of every row."""
    return np.full(factors.targets.size, float(beta)) if factors.weights is None else beta * factors.weights


class _Effort(NamedTuple):
    """How far to go: decrement and steps of the last stage, and its width of smoothing in those of the posterior."""

    tol: float
    max_steps: int
    width: float


def _descend(problem: Problem, plain: Plain, effort: _Effort) -> Mode:
    """Take the loss as it is if that will do, else smooth it."""
    start = _state_at_mean(problem, plain)
    ceiling = start.cost
    if np.any(problem.mean):  # a prior that is sure of the wrong side leaves nothing to go by, while zero does
        zero = state_at(problem, plain, np.zeros_like(problem.mean), np.zeros_like(problem.weights))
        start = min(start, zero, key=_cost)
    sample = sampled(problem)
    kinks = kinks_of(plain.loss, plain.targets)
    convex = kinks is not None and kinks.is_convex
    if np.any(start.curvature <= 0.0) and not (convex and sample):
        start = _guess(problem, plain, start, sample)
    if kinks or hasattr(plain.loss, "pieces") or not _bends(plain, start):
        rough = kinks or Unknown(plain.loss, plain.targets)
        return _narrow(problem, plain, rough, start, ceiling, effort, sample if convex else None)
    minimum = _minimize(problem, plain, start, effort, sample)
    found = _mode(minimum, minimum.state.cost, minimum.steps, 0.0)
    if found.converged:
        return found
    # Smoothing may lead out of where it got stuck; then once more.
    unknown = Unknown(plain.loss, plain.targets)
    other = _narrow(problem, plain, unknown, minimum.state, ceiling, effort, None)
    again = minimize(problem, plain, state_at(problem, plain, other.point), effort.tol, effort.max_steps)
    last = _mode(again, again.state.cost, found.iterations + other.iterations + again.steps, 0.0)
    return min((last, found, other), key=_cost)


def _state_at_mean(problem: Problem, plain: Plain) -> State:
    """Evaluate the prior mean; at zero no product is needed."""
    return state_at(problem, plain, problem.mean, None if np.any(problem.mean) else np.zeros_like(problem.weights))


def _minimize(problem: Problem, plain: Plain, start: State, effort: _Effort, sample: Sample | None) -> Minimum:
    """Go down with all rows, from the minimum of a sample if there is one and it is better."""
    if sample is not None:
        some = Plain(plain.loss, plain.targets[sample.rows])
        begin = state_at(sample.problem, some, start.point, start.predictors[sample.rows])
        near = minimize(sample.problem, some, begin, _LOOSE * np.sqrt(STRIDE * start.point.size), _LOOSE_STEPS)
        there = state_at(problem, plain, near.state.point)
        if there.cost < start.cost:
            return descend(problem, plain, there, near.metric, effort.tol, effort.max_steps)
    return minimize(problem, plain, start, effort.tol, effort.max_steps)


def _narrow(
    problem: Problem,
    plain: Plain,
    rough: Rough,
    start: State,
    ceiling: float,
    effort: _Effort,
    sample: Sample | None,
) -> Mode:
    """Minimise the smoothed cost, with ever less noise, down to the posterior's own width of the predictors."""
    width, widest = _widths(problem, rough, start)
    columns = np.sqrt(problem.mean.size)
    enough = effort.tol if rough.is_convex else max(effort.tol, _NOT_CONVEX * columns)
    state, steps, last = start, 0, False
    if sample is not None and isinstance(rough, Kinks):
        led = _led(sample, rough, start)
        state, last = led.state._replace(predictors=problem.design.predict(led.state.point)), effort.width >= 1.0
        width = max(effort.width, 1.0) * np.clip(led.metric.spread(problem.design), _NARROWEST * widest, widest)
    tried: list[Mode] = []
    for stage in range(_STAGES):
        curve = rough.smoothed(width)
        begin = state_at(problem, curve, state.point, state.predictors)
        tol, most = (enough, effort.max_steps) if last else (max(enough, _LOOSE * columns), _LOOSE_STEPS)
        if sample is None:
            minimum = minimize(problem, curve, begin, tol, most)
        else:
            minimum = descend(problem, curve, begin, metric_at(problem, curve, begin, _CAUTION), tol, most)
        state, steps = minimum.state, steps + minimum.steps
        cost = float(problem.weights @ plain.value(state.predictors)) + problem.prior_cost(state.point)
        tried.append(_mode(minimum, cost, steps, width))
        if last:
            break
        aim = effort.width * np.clip(minimum.metric.spread(), _NARROWEST * widest, widest)
        width = np.maximum(_NARROWER * width, aim)
        last = stage == _STAGES - 2 or bool(np.all(width <= _NEAR * aim))
    return _chosen(problem, rough, start, ceiling, tried)


def _led(sample: Sample, rough: Kinks, start: State) -> Minimum:
    """Where the same leads with some of the rows, until the widths come near to the posterior's."""
    problem, some = sample.problem, rough.take(sample.rows)
    point, predictors = start.point, start.predictors[sample.rows]
    width = float(_widths(problem, some, start._replace(predictors=predictors))[0][0])
    goal = _LOOSE * np.sqrt(STRIDE * point.size), _LOOSE_STEPS
    for _ in range(_STAGES):
        curve = some.smoothed(width)
        begin = state_at(problem, curve, point, predictors)
        minimum = descend(problem, curve, begin, metric_at(problem, curve, begin, _LED_CAUTION), *goal)
        point, predictors = minimum.state.point, minimum.state.predictors
        aim = _LED * float(np.median(minimum.metric.spread(problem.design.every(STRIDE))))
        if width <= _NEAR * aim:
            break
        width = max(_NARROWER * width, aim)
    return minimum


def _widths(problem: Problem, rough: Rough, start: State) -> tuple[FloatArray, FloatArray]:
    """Width of the first stage, and the widest of any.

    The one is a common distance to a kink. The other is some times that or, if wider, the way along which the change of
    slope makes a difference of one: a row alone leaves its predictor no wider than that.
    """
    own = 1.0 / (problem.weights * rough.bends())
    known = np.isfinite(own)
    own = np.where(known, own, np.median(own[known]) if np.any(known) else 1.0)
    away = rough.distances(start.predictors)
    first = float(np.quantile(away[known] if np.any(known) else away, _FIRST))
    first = max(first, _NEAREST * float(np.median(own)))
    return np.full(own.size, first), np.maximum(_WIDEST[rough.is_convex] * first, own)


def _chosen(problem: Problem, rough: Rough, start: State, ceiling: float, tried: list[Mode]) -> Mode:
    """Take the last, unless something met before lies clearly lower; a posterior is half a unit a column thick."""
    best = min(tried, key=_cost)
    lowest = min(_cost(best), _cost(start))
    if tried[-1].cost <= min(ceiling, lowest + 0.5 * problem.mean.size):
        return tried[-1]
    if best.cost <= lowest:
        return replace(best, iterations=tried[-1].iterations)
    back = state_at(problem, rough.smoothed(tried[-1].widths), start.point, start.predictors)
    return replace(
        tried[-1], point=back.point, cost=start.cost, converged=False, slopes=back.slope, curvatures=back.curvature
    )


def _cost(at: Mode | State) -> float:
    """Cost for comparisons, in which NaN counts as infinite."""
    return at.cost if np.isfinite(at.cost) else np.inf


def _mode(minimum: Minimum, cost: float, steps: int, width: Width) -> Mode:
    s = minimum.state
    widths = np.broadcast_to(np.asarray(width), s.slope.shape)
    return Mode(s.point, cost, steps, minimum.converged, s.slope, s.curvature, widths)


def _guess(problem: Problem, plain: Plain, origin: State, sample: Sample | None) -> State:
    """Minimise a smooth loss of the same targets, and go as far that way as the loss itself likes."""
    kind, y = plain.loss.targets, plain.targets
    if kind == "counts":
        return origin
    away = float(np.sqrt(problem.weights @ (y - origin.predictors) ** 2 / np.sum(problem.weights)))
    smooth: Loss = Logistic() if kind == "signs" else Squared(away if away > 0.0 else 1.0)
    curve = Plain(smooth, y)
    start = state_at(problem, curve, origin.point, origin.predictors)
    effort = _Effort(_LOOSE * float(np.sqrt(problem.mean.size)), _LOOSE_STEPS, 1.0)
    end = _minimize(problem, curve, start, effort, sample).state
    way, move = end.point - origin.point, end.predictors - origin.predictors

    def cost(share: float) -> float:
        value = float(problem.weights @ plain.value(origin.predictors + share * move))
        return value + problem.prior_cost(origin.point + share * way)

    share = min(_STRETCHES, key=cost)
    guess = state_at(problem, plain, origin.point + share * way, origin.predictors + share * move)
    return guess if guess.cost < origin.cost else origin


def _bends(plain: Plain, start: State) -> bool:
    """Whether the loss has curvature, at the start or near some of the targets."""
    some = plain.targets[:: max(1, plain.targets.size // _SOME), None]
    z = np.concatenate([some + _NEARBY, np.zeros_like(some)], axis=1)
    return bool(np.any(start.curvature > 0.0) or np.any(plain.loss.derivatives(some + 0.0 * z, z)[2] > 0.0))
