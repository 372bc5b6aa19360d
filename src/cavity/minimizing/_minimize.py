"""The front door: the minimum of additive costs by annealed EP."""

from __future__ import annotations

from collections.abc import Sequence

from cavity import schemes
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.gaussian import FactorialGaussian
from cavity.minimizing._annealing import Annealed, Effort, smooth
from cavity.minimizing._minimum import Minimum
from cavity.schedules import Annealing, Temperature, resolve_beta
from cavity.schemes._protocol import Scheme

_LOOPS, _HOTTEST, _COLDEST = 10, 1.0, 100.0
_STAGES = 24


def minimize(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    scheme: str | Scheme | None = None,
    *,
    beta: Sequence[float] | Temperature | None = None,
    loops: int | None = None,
    damping: float = 1.0,
    order: str = "cyclic",
    seed: int = 0,
    tol: float = 1e-3,
    polishing: bool = True,
) -> Minimum:
    r"""Look for the minimum of :math:`\sum_k u_k(\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`.

    EP runs on :math:`[\text{prior}(\theta) \prod_k e^{-u_k(\theta)}]^\beta`, the prior included, with an inverse
    temperature that rises from loop to loop: the posterior narrows towards the minimum, and passes over what is smaller
    than it. The lowest point seen is returned. It is a local minimum at best, as of every method that does not search
    everywhere, but seldom the first that comes.

    Without a scheme, linear factors of one loss are annealed with the full covariance of their predictors, which goes
    lower than any product of Gaussians: a smooth loss is minimised by Newton's method; one with kinks is smoothed by
    the posterior's width of every predictor, narrowed from stage to stage. Other factors are annealed by EP, and at the
    end stars that shrink, which need no derivatives, polish what was found.

    Parameters
    ----------
    factors
        The terms :math:`u_k`, as for `fit`.
    prior
        A proper `FactorialGaussian`; a wide one hardly counts.
    scheme
        As for `fit`; None is the smoothing above for linear factors of one loss, and ``"rvq"`` elsewhere.
    beta
        Inverse temperatures of the loops, one number each or a schedule such as `schedules.Annealing`; None rises from
        1 to 100. Without effect on the smoothing, which begins at 1 and goes on as long as it gains.
    loops
        Most loops of EP, 10 by default, or stages of smoothing, 24 by default.
    damping, order, seed
        As for `fit`.
    tol
        Share of the cost: what gains less is not worth another loop.
    polishing
        Whether to polish; without effect on the smoothing, which ends where polishing would.

    Returns
    -------
    Minimum
        Point, cost, the posterior and costs of the loops, a status that says what to do, and how often factors were
        asked.

    Raises
    ------
    ValueError
        If an argument does not fit; nothing has been computed then.
    FactorError
        If a factor raises; its index and the state before it are in the error.

    Examples
    --------
    >>> import numpy as np, cavity
    >>> factors = [cavity.CostFactor(lambda t, a=a: float(np.abs(t - a).sum()), dim=2) for a in (1.0, 2.0, 9.0)]
    >>> prior = cavity.FactorialGaussian.from_moments(mean=np.zeros(2), variance=1e6)
    >>> minimum = cavity.minimize(factors, prior)
    >>> minimum.point.round(2), round(minimum.cost, 2)
    (array([2., 2.]), 16.0)
    """
    if loops is not None and (int(loops) != loops or loops < 1):
        raise ValueError(f"loops must be a whole number of at least 1, got {loops}")
    if not 0.0 <= tol < 1.0:
        raise ValueError(f"tol must lie in [0, 1), got {tol}")
    if len(factors) == 0:
        raise ValueError("factors must hold at least one factor, got none")
    if not prior.is_proper:
        raise ValueError(
            "prior must be proper, with a positive finite variance everywhere; "
            "build it with FactorialGaussian.from_moments(mean, variance)"
        )
    batches = _one_loss(factors) if scheme is None else None
    if batches is not None:
        return smooth(batches, prior, loops or _STAGES, tol)
    annealing = Annealed(factors, prior, schemes.resolve("rvq" if scheme is None else scheme))
    loops = loops or _LOOPS
    schedule = Annealing(_HOTTEST, _COLDEST, max(loops, 2)) if beta is None else resolve_beta(beta)
    annealing.run(schedule, Effort(loops, tol, damping, order, seed))
    if polishing:
        annealing.polish(tol)
    return annealing.minimum()


def _one_loss(factors: Sequence[Factor]) -> LinearBatches | None:
    """Linear factors of one loss as one data set; None if they are something else."""
    if isinstance(factors, LinearBatches):
        return factors
    linear = [factor for factor in factors if isinstance(factor, LinearFactor)]
    kinds = {(type(factor.loss), factor.loss, factor.dim) for factor in linear}
    return LinearBatches.stack(linear) if len(linear) == len(factors) and len(kinds) == 1 else None
