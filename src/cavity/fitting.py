"""The front door: `fit` checks what it is given and runs EP on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from cavity import schedules, schemes
from cavity.engine import FactorError, Negative, Settings, SiteMode, Update, run
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.gaussian import FactorialGaussian
from cavity.mode import BatchSites, Mode, gaussians, near_mode, sites_at
from cavity.progress import ProgressBar
from cavity.result import Ledger, Result
from cavity.schedules import Order, Temperature
from cavity.schemes._protocol import Scheme

_DEFAULT_LOOPS = 20
_NAN_AT_START = (
    "factor {} returns NaN at the prior mean; its cost must be a number there, so mend the cost or move the prior"
)


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

    Examples
    --------
    >>> import numpy as np, cavity
    >>> factors = [cavity.CostFactor(lambda t, a=a: 0.5 * float((t - a) @ (t - a)), dim=2) for a in (1.0, 3.0)]
    >>> prior = cavity.FactorialGaussian.from_moments(mean=np.zeros(2), variance=1.0)
    >>> result = cavity.fit(factors, prior)
    >>> result.mean.round(6), result.status.name
    (array([1.333333, 1.333333]), 'CONVERGED')
    """
    chosen = schemes.resolve(scheme)
    settings = make_settings(loops, sites, beta, power, damping, order, seed, negative, tol, len(factors), safeguards)
    if not prior.is_proper:
        raise ValueError(
            "prior must be proper, with a positive finite variance everywhere; "
            "build it with FactorialGaussian.from_moments(mean, variance)"
        )
    reason = "" if compiled is False else _why_plain(factors, chosen, settings, callback)
    if compiled and reason:
        raise ValueError(f"compiled=True is not possible: {reason}; leave compiled out for the plain engine")
    sites_to_start: Any = start
    if isinstance(start, str | Mode):
        sites_to_start = _sites_at_mode(start, factors, prior, settings)
    elif start is not None:
        _check_start(start, len(factors), settings)
    failure: Exception | None = None
    with ProgressBar(settings.loops * len(settings.order.visits(len(factors), 0)), progress) as bar:
        if compiled is not False and not reason:
            linear = import_module("cavity.linear")
            batches = _stacked(factors)
            _check_batches(batches, prior)
            try:
                return linear.run(batches, prior, chosen, settings, bar.after_loop, sites_to_start)  # type: ignore[no-any-return]
            except linear.NotCompilableError as error:
                if compiled:
                    raise
                warnings.warn(f"{error}; running the plain engine, which is slower", UserWarning, stacklevel=2)
            except Exception as error:  # of the loss: the plain engine goes the same way and tells of which factor
                failure = error
        _check_factors(factors, prior, chosen)

        def after_visit(update: Update) -> None:
            bar.after_visit(update.loop)
            if callback is not None:
                callback(update)

        if isinstance(start, str | Mode):
            sites_to_start = gaussians(_stacked(factors), sites_to_start)
        result = run(factors, prior, chosen, settings, after_visit, sites_to_start)
    if failure is not None:
        raise failure
    return result


def _why_plain(
    factors: Sequence[Factor], scheme: Scheme, settings: Settings, callback: Callable[[Update], object] | None
) -> str:
    """Say why compiled loops cannot serve this run; empty if they can."""
    if not _are_linear(factors):
        return "the factors are not linear factors of one loss"
    loss = factors.loss if isinstance(factors, LinearBatches) else factors[0].loss  # type: ignore[attr-defined]
    if callback is not None:
        return "a callback needs to see every visit"
    # Numba is loaded when it is first needed: importing cavity stays quick.
    reason: str = import_module("cavity.linear").why_not(loss, scheme, settings)
    return reason


def _are_linear(factors: Sequence[Factor]) -> bool:
    """Whether all are linear factors of one loss and width."""
    if isinstance(factors, LinearBatches):
        return True
    linear = [factor for factor in factors if isinstance(factor, LinearFactor)]
    # Losses are tuples: two of different kinds are equal if their numbers are.
    kinds = {(type(factor.loss), factor.loss, factor.dim) for factor in linear}
    return len(linear) == len(factors) and len(kinds) == 1


def _stacked(factors: Sequence[Factor]) -> LinearBatches:
    """Linear factors as one data set."""
    return factors if isinstance(factors, LinearBatches) else LinearBatches.stack(factors)  # type: ignore[arg-type]


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
    if sites not in ("own", "tied", "averaged", "none"):
        raise ValueError(f"sites must be 'own', 'tied', 'averaged' or 'none', got {sites!r}")
    if negative not in ("floor", "keep", "skip"):
        raise ValueError(f"negative must be 'floor', 'keep' or 'skip', got {negative!r}")
    if loops is None:
        loops = 1 if sites == "none" else _DEFAULT_LOOPS
    if int(loops) != loops or loops < 1:
        raise ValueError(f"loops must be a whole number of at least 1, got {loops}")
    if sites == "none" and loops > 1:
        raise ValueError(
            f"sites='none' keeps no site to revise, so it allows one loop only, got loops={loops}; "
            "use sites='tied' for several loops at the same memory"
        )
    if not 0.0 < damping <= 1.0:
        raise ValueError(f"damping must lie in (0, 1], got {damping}")
    if not 0.0 < power < np.inf:
        raise ValueError(f"power must be positive, got {power}")
    if not tol >= 0.0:
        raise ValueError(f"tol must not be negative, got {tol}")
    if count == 0:
        raise ValueError("factors must hold at least one factor, got none")
    visiting = schedules.resolve_order(order, seed)
    visits = visiting.visits(count, 0)
    if sites == "none" and np.max(np.bincount(visits)) > 1:
        raise ValueError("sites='none' counts a factor as often as it is visited: order must name each once at most")
    temperature = schedules.resolve_beta(beta)
    return Settings(
        int(loops), sites, temperature, visiting, float(power), float(damping), negative, float(tol), bool(safeguards)
    )


def mode_of(factors: LinearBatches, prior: FactorialGaussian, beta: float) -> Mode:
    """Find where a run may start; a loss that raises is told as in `fit`."""
    _check_batches(factors, prior)
    try:
        return near_mode(factors, prior, beta)
    except Exception as error:  # of the loss, which is asked for all rows at once
        raise FactorError(-1, _untouched(prior), error) from error


def _sites_at_mode(
    start: str | Mode, factors: Sequence[Factor], prior: FactorialGaussian, settings: Settings
) -> BatchSites:
    """Sites that put the posterior at the mode, which is found if it is not given."""
    if isinstance(start, str) and start != "mode":
        raise ValueError(f"start must be 'mode', a Mode, sites, or None, got {start!r}")
    if settings.sites != "own":
        raise ValueError(f"start='mode' needs sites='own', one site a factor, got sites={settings.sites!r}")
    if not _are_linear(factors):
        raise ValueError("start='mode' needs linear factors of one loss; leave start out, or give sites")
    batches, beta = _stacked(factors), settings.temperature.beta(0)
    mode = mode_of(batches, prior, beta) if isinstance(start, str) else start
    if mode.point.shape != (prior.dim,) or mode.slopes.shape != batches.targets.shape:
        raise ValueError(
            f"start must be the mode of these factors, {prior.dim} coordinates and {batches.targets.size} rows, "
            f"got one of {mode.point.size} and {mode.slopes.size}"
        )
    try:
        return sites_at(batches, prior, mode, beta)
    except Exception as error:
        raise FactorError(-1, _untouched(prior), error) from error


def _check_start(start: Sequence[FactorialGaussian], count: int, settings: Settings) -> None:
    if settings.sites != "own":
        raise ValueError(f"start needs sites='own', one site a factor, got sites={settings.sites!r}")
    if len(start) != count:
        raise ValueError(f"start must hold one site for each of {count} factors, got {len(start)}")


def _check_factors(factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme) -> None:
    """Refuse what cannot work, before anything is computed."""
    for k, factor in enumerate(factors):
        if factor.dim != prior.dim:
            raise ValueError(f"factor {k} has {factor.dim} coordinates, but the prior has {prior.dim}")
        scheme.check(factor)
        if np.isnan(_cost_at_start(k, factor, prior)):
            raise ValueError(_NAN_AT_START.format(k))


def _cost_at_start(k: int, factor: Factor, prior: FactorialGaussian) -> float:
    """Cost of factor ``k`` at the prior mean."""
    point = prior.mean if factor.coordinates is None else prior.mean[factor.coordinates]
    try:
        with np.errstate(all="ignore"):
            return float(factor.cost(point[None])[0])
    except Exception as error:
        raise FactorError(k, _untouched(prior), error) from error


def _untouched(prior: FactorialGaussian) -> Result:
    """State before anything was computed."""
    nothing = Ledger()
    return Result(prior, (), nothing.status(False, False), nothing.trace())


def _check_batches(factors: LinearBatches, prior: FactorialGaussian) -> None:
    """Do the same for a whole data set at once; the schemes that are compiled serve every linear factor."""
    if factors.dim != prior.dim:
        raise ValueError(f"X has {factors.dim} columns, but the prior has {prior.dim} coordinates")
    try:
        with np.errstate(all="ignore"):
            at_zero = factors.loss.value(np.array([1.0, -1.0]), np.zeros(2))
            if factors.loss.targets == "signs" and not np.any(prior.shift) and not np.any(np.isnan(at_zero)):
                return  # every prediction is zero, and two labels tell as much as all of them
            losses = factors.losses(prior.mean)
    except Exception:
        for k, factor in enumerate(factors):
            _cost_at_start(k, factor, prior)
        raise
    if np.any(np.isnan(losses)):
        row = np.flatnonzero(np.isnan(losses))[0]
        raise ValueError(_NAN_AT_START.format(np.searchsorted(factors.cuts, row, side="right") - 1))


__all__ = ["FactorError", "fit"]
