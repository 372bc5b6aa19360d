"""From rows to what they say about the coefficients: the only place where estimators call EP, streams apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.ep.adaptation import Adaptive, revised_variances, with_variances
from cavity.ep.blocks import Course, run
from cavity.ep.dense import DenseWork
from cavity.ep.driver import Run
from cavity.ep.joint import JointWork
from cavity.ep.knowledge import DiagonalKnowledge, Gaussian, Knowledge
from cavity.ep.options import Options
from cavity.ep.result import Refusal, Result
from cavity.ep.roles import Work
from cavity.ep.row_sites import RowSites
from cavity.ep.sparse import SparseWork
from cavity.estimators._checkpoints import Checkpoint
from cavity.estimators._design import Data, squared, with_intercept
from cavity.estimators._parameters import Parameters
from cavity.estimators._progress import loop_report
from cavity.factors import LinearBatches
from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.schemes import ExactProjection

FloatArray = NDArray[np.float64]

# Rows that share one site of a product of Gaussians: as in figure 2 of the paper.
BATCH_SIZE = 10


class Taken(NamedTuple):
    """What is known after rows of a stream; posteriors where they were found with it."""

    knowledge: tuple[Knowledge, ...]
    priors: tuple[FactorialGaussian, ...]
    loss: Loss
    refused: Counter[Refusal]
    updates: int
    posteriors: tuple[Gaussian, ...] | None = None


def work_for(rows: Rows, prior: FactorialGaussian, start: Any = None) -> DenseWork:
    """Work with all correlations of one linear predictor, or of as many as the prior has room for."""
    kind = DenseWork if prior.dim == rows.shape[1] else JointWork
    return kind(rows, prior, start)


class Keeping(NamedTuple):
    """Where a run keeps things outside memory: sites, made for a loss by ``sites``, and a checkpoint."""

    sites: Callable[[Loss], Any] | None = None
    checkpoint: Checkpoint | None = None


def run_blocks(
    loss: Loss,
    rows: Any,
    prior: FactorialGaussian,
    p: Parameters,
    adaptation: Adaptive,
    analysis: Analysis | None,
    keeping: Keeping | None = None,
) -> list[Result]:
    """Fit every linear predictor with all correlations: dense, or sparse where there is an analysis of the pattern."""
    make_sites, checkpoint = keeping or Keeping()
    options = Options(p.max_iter, p.tol, single_pass=p.max_iter == 1)
    # The analysis of rows that are not in memory has no rows of its own.
    matrix = None if analysis is None or analysis.rows is None else rows.matrix()
    outcomes = []
    for k in range(len(rows.targets)):
        work: Work = work_for(rows, prior) if analysis is None else SparseWork(rows, analysis, prior, matrix)
        sites = None if make_sites is None else make_sites(loss)
        place = (k, len(rows.targets))
        try:
            with loop_report(p.verbose, p.max_iter, p.tol, rows.shape[0], place) as report:
                course = course_of(k, report, checkpoint)
                own = replace(adaptation)
                outcome = run(loss, rows, work, options, predictor=k, adaptation=own, sites=sites, course=course)
                outcomes.append(outcome if sites is None else replace(outcome, state={}))
        finally:
            if sites is not None:
                sites.close()
    return outcomes


def course_of(predictor: int, report: Callable[[Run], None], checkpoint: Checkpoint | None) -> Course:
    """Show progress after every loop, and keep checkpoints; continue from the last one if there is any.

    Where showing progress is interrupted, the loop that was just done is kept first.
    """
    if checkpoint is None:
        return Course(None, report)

    def after_loop(going: Run) -> None:
        try:
            report(going)
        except KeyboardInterrupt:
            checkpoint.save(predictor, going, at_once=True)
            raise
        checkpoint.save(predictor, going, at_once=going.has_converged)

    return Course(checkpoint.state(predictor), after_loop)


def take_rows(
    loss: Loss,
    rows: Rows,
    known: Sequence[Any],
    priors: Sequence[FactorialGaussian],
    adaptation: Adaptive,
) -> Taken:
    """Take rows of a stream into what is known: EP within the rows, whose sites are then added up and dropped."""
    options, outcomes = Options(max_iter=30, tol=0.02), []  # chunks of 100 to 1000 rows take 3 to 6 loops
    for k, (before, prior) in enumerate(zip(known, priors, strict=True)):
        work = work_for(rows, prior, before)
        outcomes.append(run(loss, rows, work, options, predictor=k, adaptation=replace(adaptation)))
    refused: Counter[Refusal] = Counter()
    for outcome in outcomes:
        for (_, why), count in outcome.trace.refusals.items():
            refused[why] += count
    found = (tuple(o.sites for o in outcomes), tuple(o.prior for o in outcomes), outcomes[0].loss)
    return Taken(*found, refused, sum(o.trace.updates for o in outcomes))


def run_products(
    loss: Loss, data: Data, prior: FactorialGaussian, p: Parameters, adaptation: Adaptive, seed: int
) -> list[Result]:
    """Fit every linear predictor as a product of Gaussians, by `cavity.fit`."""
    if data.offset is not None:
        raise ValueError("a diagonal covariance takes no offset: use fewer columns, or covariance='full' or 'sparse'")
    X = with_intercept(data.X) if p.intercept else data.X
    return [
        _run_product(LinearBatches.unchecked(loss, X, t, BATCH_SIZE, data.weights), prior, p, adaptation, seed)
        for t in np.ascontiguousarray(data.targets)
    ]


def _run_product(
    factors: LinearBatches, prior: FactorialGaussian, p: Parameters, adaptation: Adaptive, seed: int
) -> Result:
    """Fit, and revise prior variance and noise scale, until variance and scale no longer change."""
    fitting = import_module("cavity.ep.fitting")  # compiled loops are imported when a product of Gaussians is fitted
    # From a wide prior all coefficients overshoot together, each as if it were alone; from the mode they do not.
    sites, start = ("none", None) if p.max_iter == 1 else ("own", "mode")
    options = fitting.make_options(
        len(factors),
        max_iter=p.max_iter,
        tol=p.tol,
        sites=sites,
        order="shuffled",
        random_state=seed,
        safeguards=True,
    )
    watch = fitting.Watch(verbose=p.verbose is True)
    fits = 1 if not adaptation.groups and not adaptation.scale else 8
    for k in range(fits):
        result = fitting.run_checked(factors, prior, ExactProjection(), options, start, watch)
        if k + 1 == fits:
            break
        q, groups = result.posterior, adaptation.groups
        found = revised_variances(prior, q.mean, q.variance, groups)
        revised = with_variances(prior, groups, found) if groups else prior
        loss = _revised_loss(factors, result.posterior, adaptation)
        scales = [float(getattr(one, "scale", 1.0)) for one in (loss, factors.loss)]
        variance_change = np.max(np.abs(np.log(revised.precision / prior.precision)))
        if variance_change < 0.1 and abs(np.log(scales[0] / scales[1])) < 0.01:
            break
        prior = revised
        factors = LinearBatches.unchecked(loss, factors.X, factors.targets, BATCH_SIZE, factors.weights)
    return replace(result, sites=DiagonalKnowledge(result.posterior / prior), prior=prior, loss=factors.loss)


def _revised_loss(factors: LinearBatches, posterior: FactorialGaussian, adaptation: Adaptive) -> Loss:
    X, n = factors.X.astype(np.float64, copy=False), factors.targets.size
    sites = RowSites.start(n)
    sites.mean[:], sites.variance[:] = X @ posterior.mean, squared(X) @ posterior.variance
    weights = np.ones(n) if factors.weights is None else factors.weights
    return adaptation.loss(factors.loss, factors.targets, weights, sites)
