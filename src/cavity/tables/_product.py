"""One pass over rows that are too wide for correlations: a product of Gaussians that takes them in as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from cavity.ep.adaptation import revised_variances, variances_of, with_variances
from cavity.ep.knowledge import DiagonalKnowledge
from cavity.ep.result import Ledger, Refusal, Result
from cavity.estimators._design import Data, squared, with_intercept
from cavity.estimators._sources import Task
from cavity.estimators._streams import ProductStreams
from cavity.noise import scale_of_sums, scale_sums, site_factor, with_scale


def one_pass(task: Task, blocks: Iterable[Data]) -> list[Result]:
    """Take in blocks of rows once; prior variances and noise scale, where they are to be found, follow at the end."""
    streams, refused, updates, sums = None, Counter[Refusal](), 0, np.zeros(2)
    for data in blocks:
        if data.offset is not None:
            raise ValueError("a product of Gaussians takes no offset: take fewer columns, or covariance='full'")
        if streams is None:
            priors = [task.prior] * len(data.targets)
            streams = ProductStreams(task.loss, priors, priors)
        X = with_intercept(data.X) if task.parameters.intercept else data.X
        why, count = streams.take(X, data)
        streams.commit()
        refused, updates = refused + why, updates + count
        if task.adaptation.scale:
            now = streams.knowledge()[0].posterior(task.prior)
            sums += scale_sums(task.loss, data.targets[0], X @ now.mean, squared(X) @ now.variance, data.weights)
    if streams is None:
        raise ValueError("the table has no rows")
    ledger = Ledger()
    ledger.begin_loop(1.0)
    for reason, times in refused.items():
        ledger.refuse(-1, reason, times)
    ledger.end_loop(np.nan, np.nan)
    ledger.updates = updates
    return [_finished(task, known, ledger, (float(sums[0]), float(sums[1]))) for known in streams.knowledge()]


def _finished(task: Task, known: DiagonalKnowledge, ledger: Ledger, sums: tuple[float, float]) -> Result:
    """Let the noise scale and the prior variances follow what is known."""
    loss, prior, groups = task.loss, task.prior, task.adaptation.groups
    if task.adaptation.scale:
        scale = max(scale_of_sums(loss, sums), 1e-4)
        known, loss = known.times(site_factor(loss, scale, 0.0)), with_scale(loss, scale)
    for _ in range(10 if groups else 0):
        posterior = known.posterior(prior)
        new = revised_variances(prior, posterior.mean, posterior.variance, groups)
        moved = float(np.max(np.abs(np.log(new / variances_of(prior, groups)))))
        prior = with_variances(prior, groups, new)
        if moved < 0.02:
            break
    status = ledger.status(single_pass=True, converged=False)
    return Result(known.posterior(prior), known, status, ledger.trace(), prior, loss)


__all__ = ["one_pass"]
