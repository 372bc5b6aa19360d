r"""The mode of prior times factors, and stages from there to the minimum of losses with kinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cavity._types import FloatArray
from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import offers
from cavity.mode._curves import Plain, smoothed
from cavity.mode._descent import Descent, Problem, State, descend, state_at


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """Where prior times factors is greatest, as well as it was found.

    Attributes
    ----------
    point
        The place, of shape ``(dim,)``.
    cost
        Inverse temperature times all costs, and half the squared distance to the prior mean in standard deviations.
    evaluations
        How often all rows were evaluated.
    converged
        Whether the gradient left is less than the tolerance, in standard deviations of the posterior.
    slopes, curvatures
        Those of every row's loss at the point, without weight or temperature, after smoothing where it was smoothed.
    widths
        Width of the noise by which every row's loss was smoothed; zero where it was taken as it is.
    """

    point: FloatArray
    cost: float
    evaluations: int
    converged: bool
    slopes: FloatArray
    curvatures: FloatArray
    widths: FloatArray


class Stage(NamedTuple):
    """Where a stage ended: its point, cost without smoothing, precisions there, temperature, and values asked for."""

    point: FloatArray
    cost: float
    precision: FloatArray
    beta: float
    evaluations: int


def find_mode(factors: LinearBatches, prior: FactorialGaussian, beta: float = 1.0, *, tol: float = 1e-6) -> Mode:
    r"""Minimise :math:`\beta \sum_k w_k\, \ell(y_k, x_k^\top\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`.

    A smooth loss is minimised as it is. A loss with kinks has no curvature to go by, and is smoothed:
    :math:`E\,\ell(y, z + h \epsilon)` with :math:`\epsilon \sim N(0, 1)` is minimised for widths h of the predictors z,
    those of the prior first, then those of the posterior that was found, until both agree. There the smoothed slopes
    and curvatures are those that a Gaussian posterior sees, and the point is nearer to the posterior mean than the
    minimum itself is. Numerical trouble is never raised: then ``converged`` is false.

    Parameters
    ----------
    factors
        The data as `LinearBatches`; dense or CSR. Up to 1000 columns the Hessian is factorised.
    prior
        A proper `FactorialGaussian`.
    beta
        Inverse temperature.
    tol
        Largest Newton decrement at the end: the distance left, in standard deviations of the posterior.

    Returns
    -------
    Mode
        It does not cost more than the prior mean.

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
    problem = Problem.of(factors, prior, beta)
    with np.errstate(all="ignore"):
        if offers(factors.loss).smooth:
            found = descend(problem, Plain(factors.loss, factors.targets), prior.mean, tol)
            if found.converged and np.any(found.state.curvature > 0.0):
                return _mode(found.state, found.state.cost, found, np.zeros(factors.targets.size))
        return _smoothed_mode(problem, factors, tol)


def anneal(factors: LinearBatches, prior: FactorialGaussian, accuracy: float = 1e-4) -> Iterator[Stage]:
    r"""Give the mode and, where the loss has kinks, stages that come ever closer to the minimum; a smooth loss has one.

    At inverse temperature :math:`\beta` the posterior is :math:`\beta^{-1/2}` times as wide. So smoothing every loss by
    the posterior's width of its predictor times :math:`\beta^{-1/2}` is what EP does at that temperature, with a full
    covariance in place of a product. ``accuracy`` is what a stage may leave above its own minimum, as a share of the
    cost.
    """
    problem, mode = Problem.of(factors, prior, 1.0), find_mode(factors, prior)
    yield Stage(mode.point, mode.cost, problem.diagonal(mode.curvatures), 1.0, mode.evaluations)
    lowest, point, beta, widths, root = mode.cost, mode.point, 1.0, mode.widths, None
    while np.any(widths > 0.0):
        widths, beta = 0.5 * widths, beta / 0.25  # slow enough for the minimum to follow
        with np.errstate(all="ignore"):
            curve = smoothed(factors.loss, factors.targets, widths)
            found = descend(problem, curve, point, float(np.sqrt(2.0 * accuracy * abs(lowest))), root)
            point, root, cost = found.state.point, found.root, _plain_cost(problem, factors, found.state.point)
        lowest = min(lowest, cost)
        yield Stage(point, cost, beta * problem.diagonal(found.state.curvature), beta, found.evaluations + 1)


def _smoothed_mode(problem: Problem, factors: LinearBatches, tol: float) -> Mode:
    """Smooth by the prior's widths, then by those of the posterior found, until they agree; then to the end.

    The distance to the fixed point halves per stage, in logarithms: 12 stages come from 1e300 to a ratio of 1.2. A
    stage before the last ends at a Newton decrement of 0.1 standard deviations of the posterior.
    """
    loss, targets, point, evaluations = factors.loss, factors.targets, problem.mean, 2
    widths, root = _positive(problem.root(np.zeros(targets.size)).spread(problem.X)), None
    for _ in range(12):
        found = descend(problem, smoothed(loss, targets, widths), point, 0.1, root)
        point, root, evaluations = found.state.point, found.root, evaluations + found.evaluations
        before, widths = widths, _positive(root.spread(problem.X))
        if np.mean(np.abs(np.log(widths / before))) <= np.log(1.2):
            break
    curve = smoothed(loss, targets, widths)
    found = descend(problem, curve, point, tol)
    found = found._replace(evaluations=evaluations + found.evaluations)
    cost, ceiling = (_plain_cost(problem, factors, at) for at in (found.state.point, problem.mean))
    if cost <= ceiling:
        return _mode(found.state, cost, found, widths)
    return _mode(state_at(problem, curve, problem.mean), ceiling, found._replace(converged=False), widths)


def _mode(state: State, cost: float, found: Descent, widths: FloatArray) -> Mode:
    return Mode(state.point, cost, found.evaluations, found.converged, state.slope, state.curvature, widths)


def _plain_cost(problem: Problem, factors: LinearBatches, point: FloatArray) -> float:
    return problem.cost(point, factors.loss.value(factors.targets, problem.X @ point))


def _positive(widths: FloatArray) -> FloatArray:
    """Give rows without a width, those of zeros, a small one."""
    largest = float(np.max(widths))
    return np.maximum(widths, 1e-9 * largest if largest > 0.0 else 1.0)
