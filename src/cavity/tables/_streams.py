"""Rows that are taken in once, block by block, each block against what those before it said."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cavity.ep.driver import Diagnostics
from cavity.ep.hyperparameters import maximise_evidence
from cavity.ep.natural import DiagonalNatural
from cavity.ep.posteriors import ProductPosterior
from cavity.ep.result import Result
from cavity.ep.sites import noise_slope
from cavity.estimators._design import Data, squared, with_intercept
from cavity.estimators._runs import Task
from cavity.estimators._streams import ProductStreams
from cavity.noise import site_factor, with_scale


def one_pass(task: Task, blocks: Iterable[Data]) -> list[Result]:
    """Take blocks of rows, without their constant column, into products of Gaussians, once.

    Noise scale and prior variances follow from what all rows say.
    """
    streams, diagnostics, noise, free = None, Diagnostics(), np.zeros(2), task.hyperparameters
    diagnostics.betas.append(1.0)
    for data in blocks:
        if data.offset is not None:
            raise ValueError("a product of Gaussians takes no offset: take fewer columns, or covariance='full'")
        X = task.columns.standardised(data.X)
        X = with_intercept(X) if task.parameters.intercept else X
        if streams is None:
            count = len(data.targets)
            streams = ProductStreams(task.loss, [task.prior] * count, [task.prior] * count)
        refused, updates = streams.take(X, data)
        for reason, times in refused.items():
            diagnostics.reject(-1, reason, times)
        diagnostics.updates += updates
        if free.scale:
            now = streams.knowledge()[0].posterior(task.prior)
            weights = np.ones(X.shape[0]) if data.weights is None else data.weights
            noise += noise_slope(task.loss, data.targets[0], X @ now.mean, squared(X) @ now.variance, weights)
    if streams is None:
        raise ValueError("the table has no rows")
    diagnostics.changes.append(np.nan)
    return [_finished(task, known, noise, diagnostics) for known in streams.knowledge()]


def _finished(task: Task, known: DiagonalNatural, noise: np.ndarray, diagnostics: Diagnostics) -> Result:
    """Move noise scale and prior variances to where the evidence has its maximum, with the sites as they are."""
    loss, free = task.loss, task.hyperparameters
    if free.scale:
        step = noise[0] / max(noise[1], 0.5 * abs(noise[0]), 1e-12)
        scale = max(float(loss.scale) * float(np.exp(step)), free.least)  # type: ignore[attr-defined]
        known, loss = known.times(site_factor(loss, scale, 0.0)), with_scale(loss, scale)
    posterior = ProductPosterior(task.prior, known.sites)
    if free.groups:
        maximise_evidence(posterior, free.groups)
    status = diagnostics.status(single_pass=True, converged=False)
    return Result(known.posterior(posterior.prior), known, status, diagnostics.trace(), posterior.prior, loss, noise)


__all__ = ["one_pass"]
