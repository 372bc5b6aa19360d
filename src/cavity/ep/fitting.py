"""The front door: `fit` checks what it is given and runs EP on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from cavity import schedules, schemes
from cavity._checks import flag, nonnegative_number, number_between, one_of, positive_number, shown, whole_number
from cavity.ep.factorised import FactorError, Negative, Settings, SiteMode, Update, run
from cavity.ep.problem import are_linear, check_batches, check_factors, check_problem, check_start, stacked, untouched
from cavity.ep.progress import ProgressBar
from cavity.ep.result import Result, warn_of
from cavity.factors import Factor, LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.mode import BatchSites, Mode, find_mode, gaussians, sites_at
from cavity.schedules import Order, Temperature
from cavity.schemes._protocol import Scheme

_DEFAULT_LOOPS = 20


def fit(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    scheme: str | Scheme = "vq",
    *,
    loops: int | None = None,
    sites: SiteMode = "own",
    beta: float | Sequence[float] | Temperature = 1.0,
    power: float = 1.0,
    damping: float = 1.0,
    order: str | Order | ArrayLike = "cyclic",
    seed: int = 0,
    negative: Negative = "keep",
    tol: float = 1e-3,
    safeguards: bool = False,
    start: Sequence[FactorialGaussian] | Literal["mode"] | Mode | None = None,
    callback: Callable[[Update], object] | None = None,
    progress: bool = False,
    compiled: bool | None = None,
) -> Result:
    r"""Approximate :math:`\text{prior}(\theta) \prod_k e^{-\beta u_k(\theta)}` by a factorial Gaussian.

    Parameters
    ----------
    factors
        The terms :math:`u_k`, as `CostFactor`, `LinearFactor` or anything of their protocol.
    prior
        A proper `FactorialGaussian`.
    scheme
        ``"la"``, ``"qla"``, ``"gq"``, ``"vq"``, ``"rvq"``, for linear factors also ``"exact"``, or a scheme from
        `cavity.schemes`.
    loops
        Most loops over the factors: 20 by default, 1 with ``sites="none"``.
    sites
        ``"own"``: one stored site a factor, plain EP. ``"tied"``: one for all, revised at every visit (Stochastic
        EP). ``"averaged"``: one for all, revised once a loop by the average of all fits (Averaged EP).
        ``"none"``: nothing stored, a single pass.
    beta
        Inverse temperature: a number, one number a loop, or a schedule such as `schedules.Annealing`. When it
        changes, the sites are raised to the ratio.
    power
        Power :math:`\alpha` of Power EP: that much of a factor is removed and fitted. 1 is plain EP.
    damping
        Step towards the new site, in (0, 1].
    order
        ``"cyclic"``, ``"shuffled"``, indices, or an order from `cavity.schedules`.
    seed
        Seed of ``order="shuffled"``.
    negative
        What becomes of negative site precisions. ``"keep"``: allowed while posterior and cavities stay proper.
        ``"floor"``: raised to 1e-10, as the paper's program does. ``"skip"``: the update is refused.
    tol
        A loop that changes no mean by more than this many standard deviations, and no precision by more than
        this share, ends the run. 0 never does.
    safeguards
        Whether to keep the run from blowing up: where a cavity is improper only as much of the old site is removed as
        can be; the damping halves while the posterior's change does not shrink, and doubles again after; a run that
        ends at a higher cost than the prior mean goes back to its best loop. Same input, same output. Off, EP is as
        the paper has it.
    start
        Sites to start from instead of uniform ones, for ``sites="own"``. As in `Result.sites`, one a factor in its own
        coordinates; their product with the prior must be proper. Or ``"mode"``, for linear factors of one loss: the
        second-order expansion of every factor at the minimum of prior and costs, which is found first; or that
        minimum, as `cavity.mode.find_mode` gives it.
    callback
        Called with an `Update` after every visit.
    progress
        Whether to show a progress bar on standard error.
    compiled
        Whether to run compiled loops, which serve linear factors of one loss, all schemes with a rule of
        precision 3, and every choice of sites but ``"averaged"``. None takes them wherever they can serve, without a
        callback; True insists; False runs the plain engine. The answer is the same to rounding.

    Returns
    -------
    Result
        Posterior, sites, evidence, a status that says what to do, and a trace of what was refused.

    Raises
    ------
    ValueError
        If an argument does not fit; nothing has been computed then.
    FactorError
        If a factor raises; its index and the state before it are in the error.

    Warns
    -----
    ConvergenceWarning
        Scikit-learn's, if the status is not a success; the result is returned all the same.

    Examples
    --------
    >>> import numpy as np, cavity
    >>> factors = [cavity.CostFactor(lambda t, a=a: 0.5 * float((t - a) @ (t - a)), dim=2) for a in (1.0, 3.0)]
    >>> prior = cavity.FactorialGaussian.from_moments(mean=np.zeros(2), variance=1.0)
    >>> result = cavity.fit(factors, prior)
    >>> result.mean.round(6), result.status.name
    (array([1.333333, 1.333333]), 'CONVERGED')
    """
    check_problem(factors, prior)
    settings = make_settings(loops, sites, beta, power, damping, order, seed, negative, tol, len(factors), safeguards)
    options: Any = {"start": start, "callback": callback, "progress": progress, "compiled": compiled}
    result = run_checked(factors, prior, schemes.resolve(scheme), settings, **options)
    if not result.status.is_success:
        warn_of(result.status, "cavity.fit")
    return result


def run_checked(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    scheme: Scheme,
    settings: Settings,
    *,
    start: Sequence[FactorialGaussian] | Literal["mode"] | Mode | None = None,
    callback: Callable[[Update], object] | None = None,
    progress: bool = False,
    compiled: bool | None = None,
) -> Result:
    """Run EP as `fit` does, with settings that were checked before, and without a warning about its status."""
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of an Update, or None, got {shown(callback)}")
    visible, insists = flag("progress", progress), compiled is not None and flag("compiled", compiled)
    reason = _why_plain(factors, scheme, settings, callback) if compiled is None or insists else "as asked"
    if insists and reason:
        raise ValueError(f"compiled=True is not possible: {reason}; leave compiled out for the plain engine")
    sites_to_start: Any = start
    if isinstance(start, str | Mode):
        sites_to_start = _sites_at_mode(start, factors, prior, settings)
    elif start is not None:
        check_start(start, len(factors), settings)
    with ProgressBar(settings.loops * len(settings.order.visits(len(factors), 0)), visible) as bar:
        if not reason:
            linear = import_module("cavity.ep.compiled")
            batches = stacked(factors)
            check_batches(batches, prior)
            try:
                return linear.run(batches, prior, scheme, settings, bar.after_loop, sites_to_start)  # type: ignore[no-any-return]
            except linear.NotCompilableError as error:
                if insists:
                    raise
                warnings.warn(f"{error}; running the plain engine, which is slower", UserWarning, stacklevel=3)
        check_factors(factors, prior, scheme)

        def after_visit(update: Update) -> None:
            bar.after_visit(update.loop)
            if callback is not None:
                callback(update)

        if isinstance(start, str | Mode):
            sites_to_start = gaussians(stacked(factors), sites_to_start)
        return run(factors, prior, scheme, settings, after_visit, sites_to_start)


def _why_plain(
    factors: Sequence[Factor], scheme: Scheme, settings: Settings, callback: Callable[[Update], object] | None
) -> str:
    """Say why compiled loops cannot serve this run; empty if they can."""
    if not are_linear(factors):
        return "the factors are not linear factors of one loss"
    loss = factors.loss if isinstance(factors, LinearBatches) else factors[0].loss  # type: ignore[attr-defined]
    if callback is not None:
        return "a callback needs to see every visit"
    # Numba is loaded when it is first needed: importing cavity stays quick.
    reason: str = import_module("cavity.ep.compiled").why_not(loss, scheme, settings)
    return reason


def make_settings(
    loops: int | None,
    sites: SiteMode,
    beta: float | Sequence[float] | Temperature,
    power: float,
    damping: float,
    order: str | Order | ArrayLike,
    seed: int,
    negative: Negative,
    tol: float,
    count: int,
    safeguards: bool = False,
) -> Settings:
    """Check the choices of a run over so many factors."""
    sites = one_of("sites", sites, ("own", "tied", "averaged", "none"))
    if loops is None:
        loops = 1 if sites == "none" else _DEFAULT_LOOPS
    loops = whole_number("loops", loops, least=1)
    if sites == "none" and loops > 1:
        raise ValueError(
            f"sites='none' keeps no site to revise, so it allows one loop only, got loops={loops}; "
            "use sites='tied' for several loops at the same memory"
        )
    visiting = schedules.resolve_order(order, whole_number("seed", seed, least=0))
    visits = visiting.visits(count, 0)
    if sites == "none" and np.max(np.bincount(visits)) > 1:
        raise ValueError("sites='none' counts a factor as often as it is visited: order must name each once at most")
    return Settings(
        loops,
        sites,
        schedules.resolve_beta(beta),
        visiting,
        positive_number("power", power),
        number_between("damping", damping, 0.0, 1.0, "(]"),
        one_of("negative", negative, ("floor", "keep", "skip")),
        nonnegative_number("tol", tol),
        flag("safeguards", safeguards),
    )


def mode_of(factors: LinearBatches, prior: FactorialGaussian, beta: float) -> Mode:
    """Find where a run may start; a loss that raises is told as in `fit`."""
    check_batches(factors, prior)
    try:
        return find_mode(factors, prior, beta)
    except Exception as error:  # of the loss, which is asked for all rows at once
        raise FactorError(-1, untouched(prior), error) from error


def _sites_at_mode(
    start: str | Mode, factors: Sequence[Factor], prior: FactorialGaussian, settings: Settings
) -> BatchSites:
    """Sites that put the posterior at the mode, which is found if it is not given."""
    if isinstance(start, str) and start != "mode":
        raise ValueError(f"start must be 'mode', a Mode, sites, or None, got {start!r}")
    if settings.sites != "own":
        raise ValueError(f"start='mode' needs sites='own', one site a factor, got sites={settings.sites!r}")
    if not are_linear(factors):
        raise ValueError("start='mode' needs linear factors of one loss; leave start out, or give sites")
    batches, beta = stacked(factors), settings.temperature.beta(0)
    mode = mode_of(batches, prior, beta) if isinstance(start, str) else start
    if mode.point.shape != (prior.dim,) or mode.slopes.shape != batches.targets.shape:
        raise ValueError(
            f"start must be the mode of these factors, {prior.dim} coordinates and {batches.targets.size} rows, "
            f"got one of {mode.point.size} and {mode.slopes.size}"
        )
    try:
        return sites_at(batches, prior, mode, beta)
    except Exception as error:
        raise FactorError(-1, untouched(prior), error) from error


__all__ = ["FactorError", "fit"]
