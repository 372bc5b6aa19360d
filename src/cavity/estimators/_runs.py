"""From rows to what they say about the coefficients: one function per form of posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.adaptation import Adaptive, revised_variance
from cavity.ep.blocks import Options, Outcome, Work, run
from cavity.ep.dense import DenseWork
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge
from cavity.ep.rows import Rows
from cavity.ep.sparse import SparseWork
from cavity.estimators._parameters import Parameters
from cavity.estimators._progress import LoopReport
from cavity.estimators._threads import threads_for
from cavity.factors import LinearBatches
from cavity.gaussian import FactorialGaussian
from cavity.gaussians import Analysis
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# Inner loops over the rows of one call of a stream, at most, and the change that ends them, in standard deviations.
# Chunks of 100 to 1000 rows take 3 to 6.
_STREAM_LOOPS, _STREAM_TOL = 30, 0.02
# Fits of a product of Gaussians in search of the prior variance, at most, and the change of its logarithm that ends
# them.
_ROUNDS, _CLOSE = 6, 0.1


def run_blocks(
    loss: Loss,
    rows: Rows,
    prior: FactorialGaussian,
    parameters: Parameters,
    adaptation: Adaptive,
    analysis: Analysis | None,
) -> list[Outcome]:
    """Fit every linear predictor with all correlations: dense, or sparse where there is an analysis of the pattern."""
    options = Options(parameters.max_iter, parameters.tol, parameters.beta)
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
    loss: Loss, rows: Rows, known: Sequence[DenseKnowledge], priors: Sequence[FactorialGaussian], beta: float
) -> list[Outcome]:
    """Take rows of a stream into what is known: EP within the rows, whose sites are then added up and dropped."""
    options, outcomes = Options(_STREAM_LOOPS, _STREAM_TOL, beta), []
    with threads_for(rows.shape[1]):
        for k, (before, prior) in enumerate(zip(known, priors, strict=True)):
            outcomes.append(run(loss, rows, DenseWork(rows, prior, before), options, predictor=k))
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
) -> list[Outcome]:
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
) -> Outcome:
    """Fit and prior variance take turns until the variance stands."""
    fitting = import_module("cavity.fitting")  # compiled loops are imported when a product of Gaussians is fitted
    rounds, p = 1 if adaptation.free is None else _ROUNDS, parameters
    sites = "none" if p.max_iter == 1 else "own"
    settings = fitting.make_settings(
        p.max_iter, sites, p.beta, 1.0, 1.0, "shuffled", seed, "keep", p.tol, len(factors), safeguards=True
    )
    for k in range(rounds):
        result = fitting.run_checked(factors, prior, parameters.scheme, settings, progress=bool(parameters.verbose))
        if k + 1 == rounds or adaptation.free is None:
            break
        free, posterior = adaptation.free, result.posterior
        before = 1.0 / float(prior.precision[free][0])
        center = prior.mean
        after = revised_variance(
            before, (posterior.mean - center)[free], posterior.variance[free], adaptation.typical, cautious=k < 1
        )
        if abs(np.log(after / before)) < _CLOSE:
            break
        prior = FactorialGaussian.from_moments(center, np.where(free, after, prior.variance))
    return Outcome(DiagonalKnowledge(result.posterior / prior), prior, factors.loss, result.status, result.trace)
