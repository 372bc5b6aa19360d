"""Runs of EP for a model: what a fit asks of rows in memory, in files or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity._types import FloatArray
from cavity.ep.blocks import noise_slope, run
from cavity.ep.driver import Options, Run, State
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.online import log_density, posterior_of, starts_of
from cavity.ep.posteriors import (
    DiagonalNatural,
    ProductPosterior,
    RowPosterior,
    SparsePosterior,
)
from cavity.ep.result import Result
from cavity.ep.wide import LinearKernel, RowsPosterior
from cavity.estimators.checkpoints import Checkpoint
from cavity.estimators.parameters import MOST_ROWS, Parameters, Plan, PlannedRows, threads_for
from cavity.estimators.progress import loop_report
from cavity.estimators.rows import Data, squared, with_intercept
from cavity.factors import LinearBatches
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis, analyse
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.wide import WideRows
from cavity.losses import Loss
from cavity.losses.noise import with_scale
from cavity.moments import tilts
from cavity.schemes import ExactProjection
from cavity.terms.prior import Prior

# Rows that share one site of a product of Gaussians: as in figure 2 of the paper.
BATCH_SIZE = 10


# Opens the checkpoint of a fit to rows that have this digest.
Checkpoints = Callable[[str], Checkpoint]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What EP is to find on prepared rows.

    Parameters
    ----------
    loss, prior
        The model of every linear predictor.
    hyperparameters
        Prior variances and noise scale that are to be found.
    columns
        Coefficients are those of columns with these centres and units.
    plan, analysis
        The form of the posterior, and the pattern of a sparse precision matrix.
    """

    loss: Loss
    prior: Prior
    hyperparameters: Hyperparameters
    columns: Columns
    plan: Plan
    analysis: Analysis | None = None


def run_blocks(
    rows: Any,
    problem: Problem,
    p: Parameters,
    checkpoint: Checkpoint | None = None,
    sites_of: Callable[[Loss], Any] | None = None,
) -> list[Result]:
    """Fit every linear predictor with all correlations: dense, or sparse where there is an analysis of the pattern.

    Where rows are fewer than twice the coefficients and the noise scale is free, the evidence can have two maxima, one
    that takes everything for noise and one for signal: both are tried, and the one of larger evidence is kept.
    ``sites_of`` makes the sites of rows that are not in memory.
    """
    loss, analysis, free = problem.loss, problem.analysis, problem.hyperparameters
    options = Options(p.max_iter, p.tol, single_pass=p.max_iter == 1, keep_state=False)
    # The analysis of rows that are not in memory has no rows of its own.
    matrix = None if analysis is None or analysis.rows is None else rows.matrix()
    starts = [loss] if checkpoint is not None else starts_of(loss, rows, free)
    kernel = None
    if problem.plan.covariance == "rows":
        kernel = kernel_of(rows, [group.columns for group in problem.hyperparameters.groups])
    outcomes = []
    for k in range(len(rows.targets)):
        tried = []
        for start in starts:
            work: RowPosterior | RowsPosterior
            if kernel is not None:
                work = RowsPosterior(kernel, problem.prior)  # type: ignore[arg-type]
            elif analysis is not None:
                work = SparsePosterior(rows, analysis, problem.prior, matrix)
            else:
                work = posterior_of(rows, problem.prior)
            with loop_report(p.verbose, p.max_iter, p.tol, rows.shape[0], (k, len(rows.targets))) as report:
                state, after_loop = course_of(k, report, checkpoint)
                found = run(
                    start,
                    rows,
                    work,
                    options,
                    predictor=k,
                    hyperparameters=replace(free),
                    sites=None if sites_of is None else sites_of(loss),
                    state=state,
                    after_loop=after_loop,
                )
                tried.append(found)
        outcomes.append(max(tried, key=lambda one: log_density(one, rows, k)) if len(tried) > 1 else tried[0])
    return outcomes


def kernel_of(rows: Rows, groups: Sequence[NDArray[np.intp]] = ()) -> LinearKernel:
    """Prior covariance of the linear predictors of rows, for groups of coefficients whose variances may change."""
    columns = rows.columns or Columns.plain(rows.X.shape[1])
    order = np.asarray(rows.order, dtype=np.intp)
    return LinearKernel(WideRows(rows.X, order, *columns, rows.intercept), tuple(groups))


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


def run_products(data: Data, problem: Problem, p: Parameters) -> list[Result]:
    """Fit every linear predictor as a product of Gaussians, by `cavity.fit`."""
    if data.offset is not None:
        raise ValueError("a diagonal covariance takes no offset: use fewer columns, or covariance='full' or 'sparse'")
    X = problem.columns.standardised(data.X)
    X = with_intercept(X) if p.intercept else X
    return [
        _run_product(LinearBatches.unchecked(problem.loss, X, t, BATCH_SIZE, data.weights), problem, p)
        for t in np.ascontiguousarray(data.targets)
    ]


def _run_product(factors: LinearBatches, problem: Problem, p: Parameters) -> Result:
    """Fit, and move prior variances and noise scale, until these no longer change."""
    fitting = import_module("cavity.ep.fit")  # compiled loops are imported when a product of Gaussians is fitted
    prior, free = problem.prior, replace(problem.hyperparameters)
    # From a wide prior all coefficients overshoot together, each as if it were alone; from the mode they do not.
    sites, start = ("none", None) if p.max_iter == 1 else ("own", "mode")
    options = fitting.make_options(
        len(factors),
        max_iter=p.max_iter,
        tol=p.tol,
        sites=sites,
        order="shuffled",
        random_state=p.seed,
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


class Moments(NamedTuple):
    """Weighted moments of real targets, offsets subtracted; ``log_`` those of their logarithms where all are positive.

    ``squares`` and ``log_squares`` are sums of squared distances from the mean.
    """

    least: float
    largest: float
    mean: float
    squares: float
    log_mean: float = 0.0
    log_squares: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a first look at all rows of a source found."""

    weight: float  # sum of the weights
    sums: ColumnSums  # of the encoded columns that are not levels of categories
    features: int  # columns of the source, a column of categories counted once
    names: list[str] | None = None  # of numbers first, then of columns of categories; None where they have none
    categories: Mapping[str, list[Any]] = field(default_factory=dict)  # levels in the order of the coefficients
    classes: NDArray[Any] | None = None  # labels in order; None where targets are numbers
    class_counts: FloatArray | None = None  # rows of each class
    moments: Moments | None = None  # of targets that are numbers
    has_offset: bool = False  # whether rows have a known part of the linear predictor
    preprocessing: Mapping[str, Any] | None = None  # of columns before they are encoded, in plain form


class Coding(NamedTuple):
    """How the targets and offsets of a source become those of the loss."""

    classes: int = 0  # zero where targets are numbers; labels are given by their place among the classes
    ranks: tuple[int, ...] | None = None  # place of every class among the predictors of a softmax; None for signs
    class_weights: FloatArray | None = None  # factors of the weights of rows, by class
    center: float = 0.0  # subtracted from targets that are numbers
    unit: float = 1.0  # by which these, and offsets, are divided

    @property
    def predictors(self) -> int:
        """Number of linear predictors that are fitted one by one."""
        return 1 if self.classes <= 2 or self.ranks is not None else self.classes

    def targets(self, raw: NDArray[Any]) -> FloatArray:
        """Targets of the loss, ``(predictors, rows)``, from labels' places or numbers."""
        if not self.classes:
            return ((raw - self.center) / self.unit)[None]
        codes = raw.astype(np.intp)
        if self.ranks is not None:
            return np.asarray(self.ranks, dtype=np.float64)[codes][None]
        return signs_of(codes, self.classes)

    def weights(self, raw: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Weights of rows, by class where classes have weights."""
        if self.class_weights is None:
            return weights
        return np.asarray(weights * self.class_weights[raw.astype(np.intp)])


def signs_of(codes: Any, count: int) -> FloatArray:
    """Signs of class numbers: one row for two classes, one per class for more."""
    if count == 2:
        return (2.0 * codes - 1.0)[None]
    return np.where(codes == np.arange(count)[:, None], 1.0, -1.0)


class Prepared(PlannedRows, Protocol):
    """Rows with targets of a loss, ready to be run on."""

    def run(self, problem: Problem, p: Parameters, checkpoint: Checkpoints | None) -> list[Result]:
        """Run EP for every linear predictor; a checkpoint is opened for a digest of the rows."""

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""

    def close(self) -> None:
        """Give back what was taken for the rows, once a fit is done."""


class Source(Protocol):
    """Rows from elsewhere than arrays; the method `cavity_summary` tells them from arrays.

    One that keeps anything between the two calls has a method `cavity_discard`, called if the second does not follow.
    """

    def cavity_summary(self, targets: str) -> Summary:
        """Look at all rows once; ``targets`` is ``"classes"`` or ``"numbers"``."""

    def cavity_prepare(self, coding: Coding, intercept: bool, columns: Columns) -> Prepared:
        """Prepare rows whose targets have this coding, with columns in these units."""


def is_source(X: Any) -> bool:
    """Whether rows come from a source and not from an array."""
    return hasattr(X, "cavity_summary")


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Rows of an array, as they came and as they are visited: equal ones are one row.

    ``coupled`` has the pairs of coefficients that the prior couples.
    """

    data: Data
    rows: Rows
    widest: int = WIDEST_COVARIANCE
    patience: float = 1.0
    most_rows: int = MOST_ROWS
    coupled: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the constant one."""
        return self.rows.shape

    @property
    def density(self) -> float:
        """Share of the entries that are not zero."""
        return self.rows.density

    def analysis(self) -> Analysis:
        """Analyse the pattern of a sparse precision matrix."""
        return analyse(self.rows.matrix(), coupled=self.coupled)

    def run(self, problem: Problem, p: Parameters, checkpoint: Checkpoints | None) -> list[Result]:
        """Run EP for every linear predictor."""
        with threads_for(self.shape, problem.analysis):
            if problem.plan.covariance == "diagonal":
                return run_products(self.data, problem, p)
            return run_blocks(self.rows, problem, p, None if checkpoint is None else checkpoint(self.rows.digest()))

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""
        return self.data.sum_over_targets(function)

    def close(self) -> None:
        """Nothing to give back."""
