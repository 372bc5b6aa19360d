"""From rows to what they say about the coefficients: one function per form of posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.adaptation import Adaptive, revised_variance
from cavity.ep.blocks import Work, run
from cavity.ep.dense import DenseWork
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge
from cavity.ep.options import Options
from cavity.ep.result import Result
from cavity.ep.row_sites import RowSites
from cavity.ep.sparse import SparseWork
from cavity.estimators._design import squared
from cavity.estimators._parameters import Parameters
from cavity.estimators._progress import LoopReport
from cavity.estimators._threads import threads_for
from cavity.factors import LinearBatches
from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.schedules import Steps
from cavity.schemes import ExactProjection

FloatArray = NDArray[np.float64]

# Inner loops over the rows of one call of a stream, at most, and the change that ends them, in standard deviations.
# Chunks of 100 to 1000 rows take 3 to 6.
_STREAM_LOOPS, _STREAM_TOL = 30, 0.02
# Fits of a product of Gaussians in search of prior variance and noise scale, at most, and the changes of their
# logarithms that end them.
_ROUNDS, _CLOSE, _NEAR = 8, 0.1, 0.01


def run_blocks(
    loss: Loss,
    rows: Rows,
    prior: FactorialGaussian,
    parameters: Parameters,
    adaptation: Adaptive,
    analysis: Analysis | None,
) -> list[Result]:
    """Fit every linear predictor with all correlations: dense, or sparse where there is an analysis of the pattern."""
    options = Options(
        parameters.max_iter, parameters.tol, Steps((parameters.beta,)), single_pass=parameters.max_iter == 1
    )
    matrix = None if analysis is None else rows.matrix()
    outcomes = []
    with threads_for(rows.shape[1]):
        for k in range(rows.targets.shape[0]):
            work: Work = DenseWork(rows, prior) if analysis is None else SparseWork(rows, matrix, analysis, prior)
            with LoopReport(parameters.verbose, options) as report:
                outcome = run(
                    loss, rows, work, options, predictor=k, adaptation=replace(adaptation), report=report.after_loop
                )
            outcomes.append(outcome)
    return outcomes


def add_rows(
    loss: Loss,
    rows: Rows,
    known: Sequence[DenseKnowledge],
    priors: Sequence[FactorialGaussian],
    adaptation: Adaptive,
) -> list[Result]:
    """Take rows of a stream into what is known: EP within the rows, whose sites are then added up and dropped."""
    options, outcomes = Options(_STREAM_LOOPS, _STREAM_TOL, Steps((adaptation.beta,))), []
    with threads_for(rows.shape[1]):
        for k, (before, prior) in enumerate(zip(known, priors, strict=True)):
            work = DenseWork(rows, prior, before)
            outcomes.append(run(loss, rows, work, options, predictor=k, adaptation=replace(adaptation)))
    return outcomes


def run_product(
    loss: Loss,
    X: Any,
    targets: FloatArray,
    weights: FloatArray | None,
    prior: FactorialGaussian,
    parameters: Parameters,
    adaptation: Adaptive,
    seed: int,
) -> list[Result]:
    """Fit every linear predictor as a product of Gaussians, by `cavity.fit`; ``X`` has the constant column."""
    return [
        _one_product(
            LinearBatches.unchecked(loss, X, np.ascontiguousarray(t), parameters.batch_size, weights),
            prior,
            parameters,
            adaptation,
            seed,
        )
        for t in targets
    ]


def _one_product(
    factors: LinearBatches, prior: FactorialGaussian, parameters: Parameters, adaptation: Adaptive, seed: int
) -> Result:
    """Fit, prior variance and noise scale take turns until variance and scale stand."""
    fitting = import_module("cavity.ep.fitting")  # compiled loops are imported when a product of Gaussians is fitted
    p, rounds = parameters, 1 if adaptation.free is None and not adaptation.scale else _ROUNDS
    sites = "none" if p.max_iter == 1 else "own"
    options = fitting.make_options(
        len(factors),
        max_iter=p.max_iter,
        tol=p.tol,
        sites=sites,
        beta=p.beta,
        order="shuffled",
        random_state=seed,
        safeguards=True,
    )
    # From a wide prior all coefficients overshoot together, each as if alone; the paper's schemes begin there anyway.
    start = "mode" if p.max_iter > 1 and isinstance(p.scheme, ExactProjection) else None
    for k in range(rounds):
        result = fitting.run_checked(factors, prior, p.scheme, options, start, fitting.Watch(verbose=bool(p.verbose)))
        if k + 1 == rounds:
            break
        wider = _revised_prior(prior, result.posterior, adaptation, cautious=k < 1)
        loss = adaptation.loss(factors.loss, factors.targets, *_predictors(factors, result.posterior))
        scales = [float(getattr(one, "scale", 1.0)) for one in (loss, factors.loss)]
        if abs(np.log(wider.precision[0] / prior.precision[0])) < _CLOSE and abs(np.log(scales[0] / scales[1])) < _NEAR:
            break
        prior = wider
        factors = LinearBatches.unchecked(loss, factors.X, factors.targets, p.batch_size, factors.weights)
    return replace(result, sites=DiagonalKnowledge(result.posterior / prior), prior=prior, loss=factors.loss)


def _revised_prior(
    prior: FactorialGaussian, posterior: FactorialGaussian, adaptation: Adaptive, cautious: bool
) -> FactorialGaussian:
    """Prior of the variance that a product of Gaussians suggests, where it is to be found."""
    free = adaptation.free
    if free is None:
        return prior
    before, center = 1.0 / float(prior.precision[free][0]), prior.mean
    after = revised_variance(
        before, (posterior.mean - center)[free], posterior.variance[free], adaptation.typical, cautious
    )
    return FactorialGaussian.from_moments(center, np.where(free, after, prior.variance))


def _predictors(factors: LinearBatches, posterior: FactorialGaussian) -> tuple[FloatArray, RowSites]:
    """Weights of the rows, and mean and variance of their linear predictors."""
    X, n = factors.X.astype(np.float64, copy=False), factors.targets.size
    sites = RowSites.start(n)
    sites.mean[:], sites.variance[:] = X @ posterior.mean, squared(X) @ posterior.variance
    return np.ones(n) if factors.weights is None else factors.weights, sites
