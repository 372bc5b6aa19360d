"""`cavity.fit`: checks factors, prior, start and choices, picks a backend and runs EP."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from cavity import schemes
from cavity._checks import flag, one_of, shown
from cavity.ep import blocks, driver
from cavity.ep.black_boxes import MOST_PARAMETERS, Problem
from cavity.ep.bounds import Bounds
from cavity.ep.driver import Negative, Options, Run, SiteMode, State, make_options, progress_bar
from cavity.ep.factorised import Factorised, Update
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.ep.result import FactorError, Result, untouched, warn_of
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian
from cavity.mode import BatchSites, Mode, find_mode, gaussians, sites_at
from cavity.schedules import Order, Temperature
from cavity.schemes._protocol import Scheme

Start = Sequence[FactorialGaussian] | Sequence[FullGaussian] | FullGaussian | Literal["mode"] | Mode | None
Covariance = Literal["diagonal", "full", "sparse"]


def fit(
    factors: Sequence[Factor],
    prior: FactorialGaussian | FullGaussian,
    scheme: str | Scheme | None = None,
    *,
    covariance: Covariance | None = None,
    bounds: Any = None,
    max_iter: int | None = None,
    tol: float = 1e-3,
    sites: SiteMode = "own",
    beta: float | Sequence[float] | Temperature = 1.0,
    power: float = 1.0,
    damping: float = 1.0,
    order: str | Order | ArrayLike = "cyclic",
    random_state: int = 0,
    negative: Negative = "keep",
    safeguards: bool = True,
    start: Start = None,
    state: State | None = None,
    callback: Callable[[Update], object] | None = None,
    verbose: bool = False,
    compiled: bool | None = None,
) -> Result:
    r"""Approximate :math:`\text{prior}(\theta) \prod_k e^{-\beta u_k(\theta)}` by a Gaussian.

    Parameters
    ----------
    factors
        The terms :math:`u_k`, as `CostFactor`, `LinearFactor` or anything of their protocol.
    prior
        A proper `FactorialGaussian`; with all correlations of other than linear factors also a `FullGaussian`.
    scheme
        How a factor is approximated: ``"la"``, ``"qla"``, ``"gq"``, ``"vq"`` (from the paper), ``"rvq"``, for linear
        factors also ``"exact"``, or a scheme from `cavity.schemes`. None uses ``"exact"`` for linear factors with one
        loss and ``"rvq"`` otherwise, both started at the mode.
    covariance
        ``"diagonal"``: a product of independent Gaussians, as in the paper; its standard deviations are conditional on
        the other coordinates. ``"full"``: all correlations. For linear factors with one loss, of at most 5000 columns,
        EP works by blocks of rows with one site per row; ``"sparse"`` is the same with a sparse precision matrix. For
        other factors, and where another scheme than ``"exact"`` is named, the sites are Gaussians with all
        correlations, by the scheme in its full form; a rule has :math:`O(d^2)` nodes. None is ``"full"`` for those in
        up to 12 coordinates, and ``"diagonal"`` otherwise.
    bounds
        Lower and upper bounds of the coordinates, numbers or one for each, as in `scipy.optimize.curve_fit`, for
        factors with all correlations. The prior is truncated, and not normalised again; EP works on coordinates without
        bounds, whose density is exact.
    max_iter
        Maximum number of loops over the factors: 20 by default, 1 with ``sites="none"``, 50 with all correlations, 100
        by blocks of rows.
    tol
        Tolerance. The run ends when no mean changes by more than this many standard deviations, and no precision by
        more than this share. With 0 all loops are run.
    sites
        ``"own"``: one stored site per factor (standard EP). ``"tied"``: one site for all factors, updated at every
        visit (Stochastic EP). ``"averaged"``: one site for all, updated once per loop with the average (Averaged EP).
        ``"none"``: no stored sites, a single pass.
    beta
        Inverse temperature: a number, one number per loop, or a schedule such as `schedules.Annealing`. When it
        changes, the sites are raised to the ratio.
    power
        Power :math:`\alpha` of Power EP: the share of a factor that is removed and fitted. 1 is standard EP.
    damping
        Step size towards the new site, in (0, 1].
    order
        ``"cyclic"``, ``"shuffled"``, indices, or an order from `cavity.schedules`.
    random_state
        Seed of ``order="shuffled"``.
    negative
        How to treat negative site precisions. ``"keep"``: allow them while posterior and cavities are proper.
        ``"floor"``: raise them to 1e-10, as the program of the paper does. ``"skip"``: reject the update.
    safeguards
        Whether to prevent divergence. If a cavity is improper, only a part of the old site is removed. The step size is
        halved while the change of the posterior does not decrease, and increased again later. A run that ends at a
        higher cost than the prior mean returns to its best loop. False is EP as in the paper.
    start
        Initial sites instead of uniform ones, for ``sites="own"``, as in `Result.sites`: one per factor in its own
        coordinates. Their product with the prior must be proper. ``"mode"`` starts with quadratics of all factors at
        the minimum of prior and costs: expansions of linear factors with one loss, where the minimum can also be given,
        as returned by `cavity.mode.find_mode`; with all correlations interpolants of any factors. A `FullGaussian`
        does the same from its mean, with first nodes of its width in place of the prior's.
    state
        `Result.state` of an earlier run with the same factors and arguments, to continue it exactly.
    callback
        Function that is called with an `Update` after every visit to a factor.
    verbose
        Whether to show a progress bar on standard error.
    compiled
        Whether to use compiled code. It supports linear factors with one loss, all schemes with a rule of precision 3,
        and all ``sites`` except ``"averaged"``. None uses it where possible, if there is no callback; True requires it;
        False runs plain Python. The results are equal up to rounding. Nothing is compiled for
        ``covariance="full"`` and ``"sparse"``.

    Returns
    -------
    Result
        Posterior, sites, evidence, status, and a trace with the rejected updates.

    Raises
    ------
    ValueError
        If an argument is invalid; nothing has been computed then.
    FactorError
        If a factor raises an error; its index and the state before it are attached.

    Warns
    -----
    ConvergenceWarning
        From scikit-learn, if the run did not succeed; the result is returned nevertheless.

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
    is_linear, given_prior = are_linear(factors), cast("FactorialGaussian", prior)
    if covariance is None:
        is_small = not is_linear and prior.dim <= MOST_PARAMETERS
        is_full = is_small or bounds is not None or isinstance(prior, FullGaussian)
        covariance = "full" if is_full else "diagonal"
        if not is_full and not is_linear and scheme is None:
            warnings.warn(
                f"more than {MOST_PARAMETERS} coordinates: the posterior is a product of independent Gaussians; "
                "covariance='full' has all correlations, by a rule of 3 (d + 1) (d + 2) nodes per factor",
                UserWarning,
                stacklevel=2,
            )
    one_of("covariance", covariance, ("diagonal", "full", "sparse"))
    is_by_factors = covariance == "full" and not (is_linear and (scheme is None or scheme == "exact"))
    if max_iter is None:
        max_iter = 1 if sites == "none" else 20 if covariance == "diagonal" else 50 if is_by_factors else 100
    for name, value in (("bounds", bounds), ("a prior with correlations", isinstance(prior, FullGaussian) or None)):
        if value is not None and not is_by_factors:
            raise ValueError(
                f"{name} needs covariance='full', and for linear factors of one loss a scheme such as 'rvq'"
            )
    options = make_options(
        len(factors),
        max_iter=max_iter,
        tol=tol,
        sites=sites,
        beta=beta,
        power=power,
        damping=damping,
        order=order,
        random_state=random_state,
        negative=negative,
        safeguards=safeguards,
    )
    if is_by_factors:
        resolved = schemes.resolve("rvq" if scheme is None else scheme)
        if scheme is None and start is None and state is None and options.sites == "own":
            start = "mode"
        result = _run_full(factors, prior, bounds, resolved, options, start, state, callback, verbose, compiled)
    elif covariance != "diagonal":
        given: dict[str, Any] = {"scheme": scheme, "sites": sites, "damping": damping, "order": order}
        given |= {"negative": negative, "start": start, "callback": callback, "compiled": compiled}
        defaults = {"scheme": "exact", "sites": "own", "damping": 1.0, "order": "cyclic", "negative": "keep"}
        for name, value in given.items():
            is_default = isinstance(value, str | float | int) and value == defaults.get(name)
            if value is not None and not is_default:
                raise ValueError(
                    f"{name} has no meaning with all correlations, whose rows are revised by blocks: leave it out, or "
                    "take covariance='diagonal'"
                )
        options = replace(options, single_pass=max_iter == 1, keep_state=max_iter > 1)
        result = _run_blocks(factors, given_prior, covariance, options, state, verbose)
    else:
        if scheme is None:
            scheme = "exact" if is_linear else "rvq"
            if scheme == "exact" and start is None and state is None and options.sites == "own":
                start = "mode"
        resolved = schemes.resolve(scheme)
        result = run_checked(factors, given_prior, resolved, options, start, state, callback, verbose, compiled)
    if not result.status.is_success:
        warn_of(result.status, "cavity.fit")
    return result


def run_checked(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    scheme: Scheme,
    options: Options,
    start: Start = None,
    state: State | None = None,
    callback: Callable[[Update], object] | None = None,
    verbose: bool = False,
    compiled: bool | None = None,
) -> Result:
    """Run EP for a product of Gaussians with options that were checked before, without a warning about its status."""
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of an Update, or None, got {shown(callback)}")
    visible, insists = flag("verbose", verbose), compiled is not None and flag("compiled", compiled)
    reason = "as asked"  # why compiled loops cannot serve this run, empty if they can
    if compiled is None or insists:
        if not are_linear(factors):
            reason = "the factors are not linear factors of one loss"
        elif callback is not None:
            reason = "a callback needs to see every visit"
        else:
            # Numba is loaded when it is first needed: importing cavity stays quick.
            kernels = import_module("cavity.ep.compiled")
            one: Any = factors if isinstance(factors, LinearBatches) else factors[0]
            reason = kernels.why_not(one.loss, scheme, options)
    if insists and reason:
        raise ValueError(f"compiled=True is not possible: {reason}; leave compiled out for plain Python")
    sites: Any = start
    if isinstance(start, str | Mode):
        sites = _sites_at_mode(start, factors, prior, options)
    elif start is not None:
        check_sites(start, len(factors), options)
    with progress_bar(options.max_iter * len(options.order.visits(len(factors), 0)), visible) as show:
        backend: Any
        if not reason:
            batches = stacked(factors)
            check_batches(batches, prior)
            backend = kernels.Compiled(batches, prior, scheme, options)
            if sites is not None:
                backend.begin_at(sites)

            def after_loop(run: Run) -> None:
                if show is not None:
                    show(len(run.diagnostics.changes) - 1, run.diagnostics.updates)

            try:
                return driver.run(backend, options, cost=backend.cost, after_loop=after_loop, state=state)
            except kernels.NotCompilableError as error:
                if insists:
                    raise
                warnings.warn(f"{error}; running plain Python, which is slower", UserWarning, stacklevel=3)
        check_factors(factors, prior, scheme)

        def after_visit(update: Update) -> None:
            if show is not None:
                show(update.loop, None)
            if callback is not None:
                callback(update)

        is_watched = show is not None or callback is not None
        backend = Factorised(factors, prior, scheme, options, after_visit if is_watched else None)
        if sites is not None:
            backend.begin_at(gaussians(stacked(factors), sites) if isinstance(sites, BatchSites) else sites)
        return driver.run(backend, options, cost=backend.cost, state=state)


def _run_full(
    factors: Sequence[Factor],
    prior: FactorialGaussian | FullGaussian,
    bounds: Any,
    scheme: Any,
    options: Options,
    start: Any,
    state: State | None,
    callback: Callable[[Update], object] | None,
    verbose: bool,
    compiled: bool | None,
) -> Result:
    """Run EP factor by factor, with all correlations."""
    visible = flag("verbose", verbose)
    if compiled is not None and flag("compiled", compiled):
        raise ValueError("compiled=True is not possible: the factors are not linear factors of one loss")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of an Update, or None, got {shown(callback)}")
    if not hasattr(scheme, "approximate_full"):
        raise ValueError(f"{scheme!r} has no form with all correlations: take covariance='diagonal', or scheme='rvq'")
    original = prior = prior if isinstance(prior, FullGaussian) else FullGaussian.of(prior)
    limits = None if bounds is None else Bounds(bounds, prior.dim)
    if limits is not None and not limits.coordinates.size:
        limits = None
    if limits is not None:
        if options.temperature.beta(0) != 1.0 or not options.temperature.is_final(0, options.max_iter):
            raise ValueError("bounds need beta=1: what makes the prior right between them has no temperature")
        free = limits.prior(prior)
        factors, prior = limits.factors(factors, prior, free), free
    is_at_mode = isinstance(start, str | FullGaussian)
    if is_at_mode and ((isinstance(start, str) and start != "mode") or options.sites != "own"):
        raise ValueError(f"start must be 'mode', with sites='own', or one site per factor, got {start!r}")
    if start is not None and not is_at_mode:
        check_sites(start, len(factors), options, FullGaussian)
    check_factors(factors, prior, scheme)
    beta = options.temperature.beta(0)
    problem = Problem(factors, prior, beta)
    with progress_bar(options.max_iter * len(options.order.visits(len(factors), 0)), visible) as show:

        def after_visit(update: Update) -> None:
            if show is not None:
                show(update.loop, None)
            if callback is not None:
                callback(update)

        is_watched = show is not None or callback is not None
        backend = Factorised(problem.factors, prior, scheme, options, after_visit if is_watched else None)
        if is_at_mode:
            near = start if isinstance(start, FullGaussian) else original
            problem.begin(backend, near if limits is None else limits.near(near))
        elif start is not None:
            backend.begin_at(start)
        # The mean of a skewed posterior costs more than its peak; a draw of a Gaussian costs d / 2 more.
        result = driver.run(backend, options, cost=backend.cost, slack=float(prior.dim), state=state)
    problem.beta = result.trace.betas[-1] if result.trace.betas else beta
    return replace(result, evaluations=problem.evaluations, problem=problem, bounds=limits)


def _run_blocks(
    factors: Sequence[Factor],
    prior: FactorialGaussian,
    covariance: str,
    options: Options,
    state: State | None,
    verbose: bool,
) -> Result:
    """Run EP by blocks of rows, with all correlations."""
    if not are_linear(factors):
        raise ValueError(f"covariance={covariance!r} needs linear factors of one loss; leave covariance at 'diagonal'")
    batches = stacked(factors)
    check_batches(batches, prior)
    if covariance == "full" and batches.dim > WIDEST_COVARIANCE:
        raise ValueError(f"covariance='full' has at most {WIDEST_COVARIANCE} columns, got {batches.dim}; try 'sparse'")
    rows = Rows.arrange(batches.X, np.asarray(batches.targets)[None], batches.weights, intercept=False)
    posterior: DensePosterior | SparsePosterior
    if covariance == "full":
        posterior = DensePosterior(rows, prior)
    else:
        matrix = rows.matrix()
        posterior = SparsePosterior(rows, analyse(matrix), prior, matrix)
    with progress_bar(options.max_iter, flag("verbose", verbose)) as show:

        def after_loop(run: Run) -> None:
            if show is not None:
                show(len(run.diagnostics.changes) - 1, len(run.diagnostics.changes))

        return blocks.run(batches.loss, rows, posterior, options, state=state, after_loop=after_loop)


def _sites_at_mode(
    start: str | Mode, factors: Sequence[Factor], prior: FactorialGaussian, options: Options
) -> BatchSites:
    """Sites that put the posterior at the mode, which is found if it is not given."""
    if isinstance(start, str) and start != "mode":
        raise ValueError(f"start must be 'mode', a Mode, sites, or None, got {start!r}")
    if options.sites != "own":
        raise ValueError(f"start='mode' needs sites='own', one site per factor, got sites={options.sites!r}")
    if not are_linear(factors):
        raise ValueError("start='mode' needs linear factors of one loss; leave start out, or give sites")
    batches, beta = stacked(factors), options.temperature.beta(0)
    check_batches(batches, prior)
    if isinstance(start, Mode) and (start.point.shape, start.slopes.shape) != ((prior.dim,), batches.targets.shape):
        raise ValueError(
            f"start must be the mode of these factors, {prior.dim} coordinates and {batches.targets.size} rows, "
            f"got one of {start.point.size} and {start.slopes.size}"
        )
    try:
        mode = start if isinstance(start, Mode) else find_mode(batches, prior, beta)
        return sites_at(batches, prior, mode, beta)
    except Exception as error:  # of the loss, which is asked for all rows at once
        raise FactorError(-1, untouched(prior), error) from error


def check_problem(factors: Any, prior: Any) -> None:
    """Raise unless these are factors and a proper prior."""
    if not isinstance(prior, FactorialGaussian | FullGaussian) or not prior.is_proper:
        got = "" if isinstance(prior, FactorialGaussian | FullGaussian) else f", got {shown(prior)}"
        raise ValueError(
            "prior must be proper, with a positive finite variance everywhere; "
            f"build it with FactorialGaussian.from_moments(mean, variance){got}"
        )
    if isinstance(factors, str) or not all(hasattr(factors, name) for name in ("__len__", "__getitem__")):
        raise ValueError(f"factors must be a list of factors, got {shown(factors)}")
    if len(factors) == 0:
        raise ValueError("factors must hold at least one factor, got none")
    if isinstance(factors, LinearBatches):
        return
    for k, factor in enumerate(factors):
        if not all(hasattr(factor, name) for name in ("dim", "coordinates", "cost", "derivatives", "star")):
            raise ValueError(f"factors[{k}] must be a factor, such as CostFactor(cost, dim), got {shown(factor)}")


def are_linear(factors: Sequence[Factor]) -> bool:
    """Whether all are linear factors of one loss and width."""
    if isinstance(factors, LinearBatches):
        return True
    linear = [factor for factor in factors if isinstance(factor, LinearFactor)]
    # Losses are tuples: two of different kinds are equal if their numbers are.
    kinds = {(type(factor.loss), factor.loss, factor.dim) for factor in linear}
    return len(linear) == len(factors) and len(kinds) == 1


def stacked(factors: Sequence[Factor]) -> LinearBatches:
    """Linear factors as one data set."""
    return factors if isinstance(factors, LinearBatches) else LinearBatches.stack(factors)  # type: ignore[arg-type]


def check_sites(start: Any, count: int, options: Options, family: type = FactorialGaussian) -> None:
    """Raise unless ``start`` has one site per factor."""
    if options.sites != "own":
        raise ValueError(f"start needs sites='own', one site per factor, got sites={options.sites!r}")
    if not all(hasattr(start, name) for name in ("__len__", "__getitem__")):
        raise ValueError(f"start must be 'mode', a Mode, sites, or None, got {shown(start)}")
    if len(start) != count:
        raise ValueError(f"start must hold one site for each of {count} factors, got {len(start)}")
    if isinstance(start, list | tuple):  # sites that a run returned need no look
        for k, site in enumerate(start):
            if not isinstance(site, family):
                raise ValueError(f"start[{k}] must be a {family.__name__}, got {shown(site)}")


def check_factors(factors: Sequence[Factor], prior: Any, scheme: Scheme) -> None:
    """Raise if factors do not fit prior or scheme, or have no cost at the prior mean; before anything is computed."""
    for k, factor in enumerate(factors):
        if factor.dim != prior.dim:
            raise ValueError(f"factor {k} has {factor.dim} coordinates, but the prior has {prior.dim}")
        scheme.check(factor)
        if np.isnan(_cost_at_start(k, factor, prior)):
            raise _nan_at_start(k)


def _cost_at_start(k: int, factor: Factor, prior: Any) -> float:
    """Cost of factor ``k`` at the prior mean."""
    point = prior.mean if factor.coordinates is None else prior.mean[factor.coordinates]
    try:
        with np.errstate(all="ignore"):
            return float(factor.cost(point[None])[0])
    except Exception as error:
        raise FactorError(k, untouched(prior), error) from error


def check_batches(factors: LinearBatches, prior: FactorialGaussian) -> None:
    """As `check_factors` for a whole data set; the schemes that are compiled serve every linear factor."""
    if factors.dim != prior.dim:
        raise ValueError(f"X has {factors.dim} columns, but the prior has {prior.dim} coordinates")
    try:
        with np.errstate(all="ignore"):
            at_zero = factors.loss.value(np.array([1.0, -1.0]), np.zeros(2))
            if factors.loss.targets == "signs" and not np.any(prior.shift) and not np.any(np.isnan(at_zero)):
                return  # every prediction is zero, and two labels stand for all of them
            losses = factors.losses(prior.mean)
    except Exception:
        for k, factor in enumerate(factors):
            _cost_at_start(k, factor, prior)
        raise
    if np.any(np.isnan(losses)):
        row = np.flatnonzero(np.isnan(losses))[0]
        raise _nan_at_start(int(np.searchsorted(factors.cuts, row, side="right")) - 1)


def _nan_at_start(k: int) -> ValueError:
    need = "its cost must be a number there, so fix the cost or move the prior"
    return ValueError(f"factor {k} returns NaN at the prior mean; {need}")
