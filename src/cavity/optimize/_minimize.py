"""`minimize`: the minimum of additive costs by annealed EP."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from cavity import schemes
from cavity._checks import number_between, whole_number
from cavity.ep.options import make_options
from cavity.ep.problem import are_linear, check_problem, stacked
from cavity.ep.result import warn_of
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.optimize._annealing import anneal_ep, smooth
from cavity.optimize._minimum import Minimum
from cavity.schedules import Annealing, Order, Temperature
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
    max_iter
        Most loops of EP, 10 by default, or stages of smoothing, 24 by default.
    damping, order
        As for `fit`; for another random order pass `schedules.Shuffled(seed)`.
    tol
        Share of the cost: what gains less is not worth another loop.

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

    Warns
    -----
    ConvergenceWarning
        Scikit-learn's, if the status is not a success; what was found is returned all the same.

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
        found = smooth(stacked(factors), prior, most or 24, tol)
    else:
        found = anneal_ep(factors, prior, chosen, options)
    if not found.status.is_success:
        warn_of(found.status, "cavity.minimize")
    return found
