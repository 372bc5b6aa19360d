"""From rows to what they say about the coefficients: the only place where estimators call EP, streams apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from cavity.ep.blocks import run
from cavity.ep.driver import Options, Run, State
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.natural import DiagonalNatural, Gaussian, NaturalParameters
from cavity.ep.posteriors import DensePosterior, JointPosterior, ProductPosterior, RowPosterior, SparsePosterior
from cavity.ep.result import Refusal, Result, Status
from cavity.ep.sites import noise_slope
from cavity.estimators._checkpoints import Checkpoint
from cavity.estimators._design import Data, squared, with_intercept
from cavity.estimators._parameters import Parameters
from cavity.estimators._plan import Plan
from cavity.estimators._progress import loop_report
from cavity.factors import LinearBatches
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns
from cavity.gaussians import Analysis
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers
from cavity.losses.noise import log_normalizer, with_scale
from cavity.moments import tilts
from cavity.schemes import ExactProjection

FloatArray = NDArray[np.float64]

# Rows that share one site of a product of Gaussians: as in figure 2 of the paper.
BATCH_SIZE = 10


# How fitting rows of a stream may end; those that are kept are fitted again.
_FINE = (Status.CONVERGED, Status.SINGLE_PASS, Status.MAX_ITER)


class Taken(NamedTuple):
    """What is known after rows of a stream; posteriors where they were found with it."""

    knowledge: tuple[NaturalParameters, ...]
    priors: tuple[FactorialGaussian, ...]
    loss: Loss
    refused: Counter[Refusal]
    updates: int
    posteriors: tuple[Gaussian, ...] | None = None
    status: Status | None = None  # None: by what was refused
    noise: Any = None  # what the rows say of the noise scale, `cavity.ep.sites.noise_slope`


def work_for(rows: Rows, prior: FactorialGaussian, start: Any = None) -> DensePosterior:
    """Work with all correlations of one linear predictor, or of as many as the prior has room for."""
    kind = DensePosterior if prior.dim == rows.shape[1] else JointPosterior
    return kind(rows, prior, start)


class Keeping(NamedTuple):
    """Where a run keeps things outside memory: sites, made for a loss by ``sites``, and a checkpoint."""

    sites: Callable[[Loss], Any] | None = None
    checkpoint: Checkpoint | None = None


class Task(NamedTuple):
    """What is to be run on prepared rows; ``checkpoint`` is made from a digest of the data."""

    loss: Loss
    prior: FactorialGaussian
    plan: Plan
    parameters: Parameters
    hyperparameters: Hyperparameters
    columns: Columns
    analysis: Analysis | None = None
    random_state: Any = None
    checkpoint: Callable[[str], Checkpoint] | None = None

    @property
    def seed(self) -> int:
        """Seed of the visiting order of a product of Gaussians."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def run_blocks(rows: Any, task: Task, keeping: Keeping | None = None) -> list[Result]:
    """Fit every linear predictor with all correlations: dense, or sparse where there is an analysis of the pattern.

    Where rows are fewer than twice the coefficients and the noise scale is free, the evidence can have two maxima, one
    that takes everything for noise and one for signal: both are tried, and the one of larger evidence is kept.
    """
    make_sites, checkpoint = keeping or Keeping()
    loss, p, analysis, free = task.loss, task.parameters, task.analysis, task.hyperparameters
    options = Options(p.max_iter, p.tol, single_pass=p.max_iter == 1)
    # The analysis of rows that are not in memory has no rows of its own.
    matrix = None if analysis is None or analysis.rows is None else rows.matrix()
    starts = [loss] if checkpoint is not None else _starts(loss, rows, free)
    outcomes = []
    for k in range(len(rows.targets)):
        place = (k, len(rows.targets))
        tried = []
        for start in starts:
            work: RowPosterior = (
                work_for(rows, task.prior) if analysis is None else SparsePosterior(rows, analysis, task.prior, matrix)
            )
            sites = None if make_sites is None else make_sites(loss)
            with loop_report(p.verbose, p.max_iter, p.tol, rows.shape[0], place) as report:
                (state, after_loop), own = course_of(k, report, checkpoint), replace(free)
                found = run(
                    start,
                    rows,
                    work,
                    options,
                    predictor=k,
                    hyperparameters=own,
                    sites=sites,
                    state=state,
                    after_loop=after_loop,
                )
                tried.append(found if sites is None else replace(found, state={}))
        outcomes.append(max(tried, key=lambda one: _density(one, rows, k)) if len(tried) > 1 else tried[0])
    return outcomes


def _starts(loss: Any, rows: Any, free: Hyperparameters) -> list[Any]:
    """Losses whose noise scales a search may have to start from."""
    few = free.groups and free.scale and rows.shape[0] < 2 * rows.shape[1]
    return [loss, with_scale(loss, 0.1 * loss.scale)] if few and offers(loss).squared is None else [loss]


def _density(found: Result, rows: Any, predictor: int) -> float:
    """Log evidence with the normalisers of the loss, by which losses of different scales compare."""
    weights, targets = rows.weights[slice(None)], rows.targets[predictor][slice(None)]
    return found.log_evidence - float(weights @ log_normalizer(found.loss, targets))


def course_of(
    predictor: int, report: Callable[[Run], None], checkpoint: Checkpoint | None
) -> tuple[State | None, Callable[[Run], object]]:
    """Show progress after every loop, and keep checkpoints; continue from the last one if there is any.

    Where showing progress is interrupted, the loop that was just done is kept first.
    """
    if checkpoint is None:
        return None, report

    def after_loop(going: Run) -> None:
        try:
            report(going)
        except KeyboardInterrupt:
            checkpoint.save(predictor, going, at_once=True)
            raise
        checkpoint.save(predictor, going, at_once=going.has_converged)

    return checkpoint.state(predictor), after_loop


def take_rows(
    loss: Loss,
    rows: Rows,
    known: Sequence[Any],
    priors: Sequence[FactorialGaussian],
    free: Hyperparameters,
) -> Taken:
    """Take rows of a stream into what is known: EP within the rows, whose sites are then added up and dropped."""
    options, outcomes = Options(max_iter=100, tol=0.01), []
    for k, (before, prior) in enumerate(zip(known, priors, strict=True)):
        tried = []
        for start in _starts(loss, rows, free):
            work = work_for(rows, prior, before)
            tried.append(run(start, rows, work, options, predictor=k, hyperparameters=replace(free)))
        outcomes.append(max(tried, key=lambda one: _density(one, rows, k)) if len(tried) > 1 else tried[0])
    refused: Counter[Refusal] = Counter()
    for outcome in outcomes:
        for (_, why), count in outcome.trace.refusals.items():
            refused[why] += count
    found = (tuple(o.sites for o in outcomes), tuple(o.prior for o in outcomes), outcomes[0].loss)
    status = next((o.status for o in outcomes if o.status not in _FINE), Status.SINGLE_PASS)
    return Taken(*found, refused, sum(o.trace.updates for o in outcomes), status=status, noise=outcomes[0].noise)


def run_products(data: Data, task: Task) -> list[Result]:
    """Fit every linear predictor as a product of Gaussians, by `cavity.fit`."""
    if data.offset is not None:
        raise ValueError("a diagonal covariance takes no offset: use fewer columns, or covariance='full' or 'sparse'")
    X = task.columns.standardised(data.X)
    X = with_intercept(X) if task.parameters.intercept else X
    return [
        _run_product(LinearBatches.unchecked(task.loss, X, t, BATCH_SIZE, data.weights), task)
        for t in np.ascontiguousarray(data.targets)
    ]


def _run_product(factors: LinearBatches, task: Task) -> Result:
    """Fit, and move prior variances and noise scale, until these no longer change."""
    fitting = import_module("cavity.ep.fit")  # compiled loops are imported when a product of Gaussians is fitted
    p, prior, free = task.parameters, task.prior, replace(task.hyperparameters)
    # From a wide prior all coefficients overshoot together, each as if it were alone; from the mode they do not.
    sites, start = ("none", None) if p.max_iter == 1 else ("own", "mode")
    options = fitting.make_options(
        len(factors),
        max_iter=p.max_iter,
        tol=p.tol,
        sites=sites,
        order="shuffled",
        random_state=task.seed,
        safeguards=True,
    )
    fits, noise = 30 if free else 1, np.zeros(2)
    for k in range(fits):
        result = fitting.run_checked(factors, prior, ExactProjection(), options, start, verbose=p.verbose is True)
        known = DiagonalNatural(result.posterior / prior)
        if k + 1 == fits or free.is_found:
            break
        loss: Any = factors.loss
        noise = _noise_of(factors, result.posterior) if free.scale else noise
        posterior = ProductPosterior(prior, known.sites)
        scale, _ = free.update(posterior, noise, float(getattr(loss, "scale", 1.0)), 0.0)
        prior = posterior.prior
        if free.scale:
            loss = with_scale(loss, scale)
            factors = LinearBatches.unchecked(loss, factors.X, factors.targets, BATCH_SIZE, factors.weights)
    return replace(result, posterior=known.posterior(prior), sites=known, prior=prior, loss=factors.loss, noise=noise)


def _noise_of(factors: LinearBatches, posterior: FactorialGaussian) -> FloatArray:
    """Ask rows about the noise scale, each under the posterior without the site that the row would have there."""
    X = factors.X.astype(np.float64, copy=False)
    weights = np.ones(factors.targets.size) if factors.weights is None else factors.weights
    mean, variance, targets = X @ posterior.mean, squared(X) @ posterior.variance, factors.targets
    with np.errstate(all="ignore"):
        tilt = tilts(factors.loss, targets, mean, variance, weights)
        precision = np.where(np.isfinite(tilt.ratio), (1.0 / tilt.ratio - 1.0) / variance, 0.0)
        shift = mean * precision + tilt.shift / (tilt.ratio * np.sqrt(variance))
        left = 1.0 - precision * variance
        proper = (left > 0.1) & np.isfinite(shift)
        wider = np.where(proper, variance / left, variance)
        moved = np.where(proper, mean + wider * (precision * mean - shift), mean)
    return noise_slope(factors.loss, targets, moved, wider, weights)
