"""A posterior that takes in rows as they come, keeping no site: one compiled call, which allocates nothing.

The same arithmetic as a single pass of `cavity.fit`, for data that keep coming.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.compiled import POLICIES, data_of, lower, readonly
from cavity.gaussians.factorial import FactorialGaussian
from cavity.kernels.bridge import entry
from cavity.kernels.sweep import NONE, Options, State, Store, check_rows, sweep, work_for
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# Weights of rows that have none; made once, since rows may come one by one.
_NO_WEIGHTS = readonly(np.empty(0))


class Snapshot(NamedTuple):
    """What a stream was before: records of some columns, or of all, and its two numbers."""

    columns: NDArray[Any] | None
    records: FloatArray
    scale: float
    cursor: int


class Stream:
    """Working memory of a posterior in a stream. `take` trusts that its input is finite and of the right kind.

    A call of `take` or `forget` changes it whole or not at all. Where several calls belong together, those of several
    streams among them, take a `snapshot` of each stream before, and `restore` all of them if anything is raised.

    Parameters
    ----------
    loss, scheme
        Such as `cavity.ep.compiled.why_not` finds nothing against.
    posterior
        What is known before.
    prior_precision
        Precisions against which a posterior precision counts as positive.
    beta, power, damping, negative
        As in `cavity.fit`.
    """

    def __init__(
        self,
        loss: Loss,
        scheme: object,
        posterior: FactorialGaussian,
        prior_precision: FloatArray,
        *,
        beta: float = 1.0,
        power: float = 1.0,
        damping: float = 1.0,
        negative: str = "keep",
    ) -> None:
        self._loss, self._scheme = loss, lower(scheme)
        self._options = Options(float(beta), float(power), float(damping), POLICIES[negative], 0)
        records = np.zeros((posterior.dim, 4))
        records[:, 0], records[:, 1], records[:, 2] = posterior.shift, posterior.precision, prior_precision
        # Places begin at one: zero, which the records hold, stands for never seen.
        scale, cursor = np.array([posterior.log_scale]), np.ones(1, dtype=np.uint64)
        self._state: Any = State(records, records.view(np.uint64), scale, cursor)
        starts, support = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
        nothing = np.empty(0)
        self._store: Any = Store(NONE, starts, support, nothing, nothing, nothing, nothing)
        self._sweep = entry(sweep, loss)
        self.before = self.snapshot()  # what the last call of `take` found
        self._works: dict[bool, Any] = {}
        self._rooms: dict[bool, tuple[int, int, int]] = {}
        self._plans: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    @property
    def posterior(self) -> FactorialGaussian:
        """What is known now."""
        records = self._state.records
        return FactorialGaussian(self._state.scale[0], records[:, 0], records[:, 1])

    @property
    def prior_precision(self) -> FloatArray:
        """Precisions of the prior."""
        return np.array(self._state.records[:, 2])

    def total(self) -> float:
        """Sum of all numbers: finite if every one of them is."""
        return float(self._state.records[:, :2].sum() + self._state.scale[0])

    def fork(self) -> Stream:
        """Return an independent copy. Scratch memory, in which nothing stays, is shared."""
        other = copy(self)
        records = self._state.records.copy()
        other._state = State(records, records.view(np.uint64), self._state.scale.copy(), self._state.cursor.copy())
        return other

    def snapshot(self, rows: Any = None) -> Snapshot:
        """Copy what taking in these rows may change; all there is without rows, as `forget` needs it."""
        state = self._state
        # A column that comes twice is copied twice, which is quicker than to look for it.
        is_small = sparse.issparse(rows) and rows.nnz < len(state.records)
        columns = rows.indices.copy() if is_small else None
        records = state.records.copy() if columns is None else state.records.take(columns, axis=0)
        return Snapshot(columns, records, float(state.scale[0]), int(state.cursor[0]))

    def restore(self, saved: Snapshot) -> None:
        """Put back what was saved; as often as wanted."""
        self._state.records[slice(None) if saved.columns is None else saved.columns] = saved.records
        self._state.scale[0], self._state.cursor[0] = saved.scale, saved.cursor

    def forget(self, keep: float, prior: FactorialGaussian) -> None:
        """Keep a share of what was learned beyond the prior: a power of the posterior times one of the prior."""
        records, scale = self._state.records.copy(), self._state.scale.copy()
        records[:, 0] += (1.0 - keep) * (prior.shift - records[:, 0])
        records[:, 1] += (1.0 - keep) * (prior.precision - records[:, 1])
        scale[0] += (1.0 - keep) * (prior.log_scale - scale[0])
        self._state = State(records, records.view(np.uint64), scale, self._state.cursor)

    def take(self, X: Any, targets: FloatArray, weights: FloatArray | None, batch_size: int) -> NDArray[np.int8]:
        """Take in rows, a mini-batch of consecutive ones at a time; say for each batch what came of it."""
        n, d = X.shape
        cuts, visits, outcomes = self._plan(n, batch_size)
        is_sparse = sparse.issparse(X)
        y = readonly(np.ascontiguousarray(targets))
        w = _NO_WEIGHTS if weights is None else readonly(np.ascontiguousarray(weights))
        check_rows(X, y, w, self._state.records.shape[0])
        if is_sparse:
            entries = int(np.max(np.diff(X.indptr[cuts]), initial=0))
            work = self._work(is_sparse, min(d, entries), min(n, batch_size), entries)
        else:
            work = self._work(is_sparse, d, min(n, batch_size), 0)
        # What is visited after each batch does not matter where no site is kept.
        batches, route = (data_of(X), y, w, cuts), (visits, visits, outcomes)
        self.before = before = self.snapshot(X)
        try:
            self._sweep(self._loss, self._scheme, batches, self._state, self._store, route, self._options, work)
        except BaseException:  # a signal that came while compiled code ran is raised when it returns
            self.restore(before)
            raise
        done: NDArray[np.int8] = outcomes
        return done

    def _plan(self, rows: int, batch_size: int) -> tuple[Any, Any, Any]:
        """Cuts, visits and outcomes; kept, since most calls of a stream bring equally many rows."""
        plan = self._plans.get((rows, batch_size))
        if plan is None:
            cuts = np.append(np.arange(0, rows, batch_size, dtype=np.int64), rows)
            visits = np.arange(cuts.size - 1, dtype=np.intp)
            plan = (cuts, visits, np.zeros(visits.size, dtype=np.int8))
            self._plans = {(rows, batch_size): plan}
        return plan

    def _work(self, is_sparse: bool, width: int, rows: int, entries: int) -> Any:
        """Scratch memory with enough room; dense and sparse rows leave different things in it, and have their own."""
        room = self._rooms.get(is_sparse, (0, 0, 0))
        if is_sparse not in self._works or width > room[0] or rows > room[1] or entries > room[2]:
            room = (max(width, room[0]), max(rows, room[1]), max(entries, room[2]))
            self._rooms[is_sparse], self._works[is_sparse] = room, work_for(*room)
        return self._works[is_sparse]
