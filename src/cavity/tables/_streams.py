"""Rows that are taken in once, block by block, each block against what those before it said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.adaptation import revised_variances, variances_of, with_variances
from cavity.ep.blocks import Blocks, sites_in_memory
from cavity.ep.dense import DenseWork, doubling_parts
from cavity.ep.driver import Change, Step, run
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge, Knowledge
from cavity.ep.options import Options
from cavity.ep.result import Ledger, Refusal, Result
from cavity.ep.roles import Fixed
from cavity.ep.row_sites import first_log_scale
from cavity.estimators._design import Data, squared, with_intercept
from cavity.estimators._sources import Task
from cavity.estimators._streams import ProductStreams
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.noise import scale_of_sums, scale_sums, site_factor, with_scale

FloatArray = NDArray[np.float64]

_ONCE = Options(max_iter=1, single_pass=True)


class Pass:
    """What rows say, with all correlations or as products of Gaussians; columns may be added on the way."""

    def __init__(self, task: Task, predictors: int) -> None:
        self._task, self._dense = task, task.plan.covariance == "full"
        kind = DenseKnowledge if self._dense else DiagonalKnowledge
        self._known: Sequence[Any] = [kind.nothing(0)] * predictors
        self._streams: FullStreams | ProductStreams | None = None
        self._prior, self._ledger, self._sums = FactorialGaussian.uniform(0), Ledger(), np.zeros(2)
        self._ledger.begin_loop(1.0)

    def take(self, data: Data, prior_of: Callable[[int], FactorialGaussian]) -> None:
        """Take in rows; their first columns are those of the rows before. The function gives the prior of a width."""
        if data.offset is not None and not self._dense:
            raise ValueError("a product of Gaussians takes no offset: take fewer columns, or covariance='full'")
        if self._streams is None or data.X.shape[1] > self.width:
            wider = sparse.eye_array(data.X.shape[1], self.width, format="csr")
            self._known, self._prior = [k.of_columns(wider) for k in self.knowledge()], prior_of(data.X.shape[1])
            self._streams = self._opened()
        refused, updates = self._streams.take(data.X, data)
        for reason, times in refused.items():
            self._ledger.refuse(-1, reason, times)
        self._ledger.updates += updates
        if self._task.adaptation.scale:
            now, X = self.knowledge()[0].posterior(self._prior), data.X
            self._sums += scale_sums(
                self._task.loss, data.targets[0], X @ now.mean, squared(X) @ now.variance, data.weights
            )

    @property
    def width(self) -> int:
        """Number of columns so far."""
        return self._prior.dim

    def knowledge(self) -> Sequence[Any]:
        """Give what the rows said so far, for every linear predictor."""
        return self._known if self._streams is None else self._streams.knowledge()

    def results(self, task: Task, change: Any = None) -> list[Result]:
        """Let noise scale and prior variances follow what is known.

        ``change`` is the matrix that makes the columns of the task's prior from those of the rows.
        """
        self._ledger.end_loop(np.nan, np.nan)
        every = self.knowledge()
        return [self._finished(task, known if change is None else known.of_columns(change)) for known in every]

    def _opened(self) -> FullStreams | ProductStreams:
        if self._dense:
            return FullStreams(self._task.loss, self._known, self._prior, self._ledger.updates)
        posteriors = [known.posterior(self._prior) for known in self._known]
        return ProductStreams(self._task.loss, posteriors, [self._prior] * len(posteriors))

    def _finished(self, task: Task, known: Knowledge) -> Result:
        loss, prior, groups = task.loss, task.prior, task.adaptation.groups
        if task.adaptation.scale:
            scale = max(scale_of_sums(loss, (float(self._sums[0]), float(self._sums[1]))), 1e-4)
            known, loss = known.times(site_factor(loss, scale, 0.0)), with_scale(loss, scale)
        for _ in range(10 if groups else 0):
            posterior = known.posterior(prior)
            new = revised_variances(prior, posterior.mean, posterior.variance, groups)
            moved = float(np.max(np.abs(np.log(new / variances_of(prior, groups)))))
            prior = with_variances(prior, groups, new)
            if moved < 0.02:
                break
        status = self._ledger.status(single_pass=True, converged=False)
        return Result(known.posterior(prior), known, status, self._ledger.trace(), prior, loss)


def one_pass(task: Task, blocks: Iterable[Data]) -> list[Result]:
    """Take in blocks of rows once, without their constant column."""
    going = None
    for data in blocks:
        going = going or Pass(task, len(data.targets))
        X = with_intercept(data.X) if task.parameters.intercept else data.X
        going.take(data._replace(X=X), lambda width: task.prior)
    if going is None:
        raise ValueError("the table has no rows")
    return going.results(task)


class FullStreams:
    """Posteriors with all correlations, one for every linear predictor, after so many rows."""

    def __init__(self, loss: Loss, known: Sequence[DenseKnowledge], prior: FactorialGaussian, seen: int = 0) -> None:
        self._loss, self._known, self._prior, self._seen = loss, list(known), prior, seen

    def knowledge(self) -> Sequence[DenseKnowledge]:
        """Give what the rows say, apart from the prior."""
        return self._known

    def take(self, X: FloatArray, data: Data) -> tuple[Counter[Refusal], int]:
        """Visit every row once and drop its site; say what was refused, and how many visits there were."""
        refused, updates = Counter[Refusal](), 0
        rows: Any = _Block(X, data.targets, np.ones(len(X)) if data.weights is None else data.weights, data.offset)
        for k, known in enumerate(self._known):
            found = run(_Visits(self._loss, rows, _Work(rows, self._prior, known), k, self._seen), _ONCE)
            self._known[k] = found.sites
            updates += found.trace.updates
            for (_, why), count in found.trace.refusals.items():
                refused[why] += count
        self._seen += len(X)
        return refused, updates


class _Block(NamedTuple):
    """Dense rows with a constant column: what EP by blocks asks of `cavity.factors.arranged.Rows`."""

    X: FloatArray
    targets: FloatArray
    weights: FloatArray
    offset: FloatArray | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.X.shape

    @property
    def at_once(self) -> int:
        return len(self.X)

    @property
    def order(self) -> range:
        return range(len(self.X))

    def block(self, part: slice) -> FloatArray:
        return self.X[part]


class _Work(DenseWork):
    """Products by NumPy, during which another thread can read the next rows: SciPy's keep the interpreter locked."""

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a part of the rows."""
        A = self._rows_of(part)
        half = A @ self._inverse().T
        variance = np.einsum("ij,ij->i", half, half)
        self._spread = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
        return A @ self.mean, variance

    def plus_sites(self, part: slice, precisions: FloatArray, information: FloatArray) -> FloatArray:
        """Add precisions of sites of a part of the rows to a matrix, in place."""
        scaled = self._rows_of(part) * np.sqrt(np.abs(precisions))[:, None]
        negative = scaled[precisions < 0.0]
        information += scaled.T @ scaled
        if len(negative):
            information -= 2.0 * (negative.T @ negative)
        return information


class _Visits(Blocks):
    """Visits of rows that follow so many others, which have no site before and keep none."""

    def __init__(self, loss: Loss, rows: Any, work: DenseWork, predictor: int, seen: int) -> None:
        super().__init__(loss, rows, work, _ONCE, predictor, Fixed(), sites_in_memory(rows, None))
        self.seen, self.scale = seen, 0.0

    def sweep(self, step: Step, ledger: Ledger) -> Change:
        """Visit every row once, in blocks none of which is larger than all before it."""
        n, d = self.rows.shape
        for part in doubling_parts(n, max(50, d, self.seen)):
            masses: Any = self.visit(part, True, ledger).log_mass
            self.scale += first_log_scale(masses, self.sites.part(part))
        return Change(np.nan, np.nan)

    def log_scale(self) -> float:
        """Scale of all sites, each under the posterior that it was fitted to: rows are not looked at again."""
        return self.scale


__all__ = ["Pass", "one_pass"]
