"""Rows of Dask collections as a source of an estimator: their summary, and partitions that EP runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.dask._collections import Parts
from cavity.dask._executors import Executor
from cavity.dask._partitions import OnExecutor
from cavity.dask._tasks import (
    Look,
    Spread,
    arrange,
    columns_of,
    item,
    keys_in_ranges,
    look_at,
    meetings_of,
    read,
    repeated_keys,
    repeats_among,
    reweight,
    rows_with_keys,
    shape_and_targets,
    sum_of_function,
    sum_of_keys,
)
from cavity.ep.driver import Options
from cavity.ep.partitions import run
from cavity.ep.result import Result
from cavity.estimators._categories import Levels, level_order
from cavity.estimators._progress import loop_report
from cavity.estimators._runs import Task, course_of
from cavity.estimators._sources import Coding, Moments, Summary
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians import Analysis
from cavity.gaussians._analysis import ColumnCounts, analyse_meetings
from cavity.gaussians.dense import WIDEST_COVARIANCE

FloatArray = NDArray[np.float64]

# Operations that a task should take at least: about 0.1 s of one thread.
_LEAST_WORK = 3e8
# Keys of rows from which on another task compares some of them: about 0.05 s of one thread.
_KEYS_AT_ONCE = 500_000


class DaskSource:
    """Blocks of rows, checked and looked at where they are."""

    def __init__(self, executor: Executor, blocks: Sequence[Parts], join: bool) -> None:
        self._executor, self._blocks, self._join = executor, blocks, join
        self._checked: list[Any] = []
        self._looks: list[Look] = []
        self._summary: Summary | None = None

    def cavity_summary(self, targets: str) -> Summary:
        """Check all blocks, and sum them up."""
        numbers, executor = targets == "numbers", self._executor
        self._checked = executor.load(read, [(*block, numbers) for block in self._blocks])
        names = range(len(self._checked))
        self._looks = executor.fetch(executor.map(look_at, [(block, numbers) for block in self._checked], names))
        self._summary = summed_up(self._looks, numbers, any(block[3] is not None for block in self._blocks))
        return self._summary

    def cavity_prepare(self, coding: Coding, intercept: bool, columns: Columns) -> OnDask:
        """Join small blocks, code their targets, merge equal rows, and bring all to the order of visits."""
        summary, executor = self._summary, self._executor
        assert summary is not None
        levels: Levels = dict(summary.categories)
        width = summary.features + sum(len(known) for known in levels.values()) + int(intercept)
        parts = joined([look.rows for look in self._looks], width, executor.threads) if self._join else _single(self)
        names = [part.start if len(part) == 1 else f"{part.start} to {part.stop - 1}" for part in parts]
        blocks = [[self._checked[i] for i in part] for part in parts]
        places = executor.places(blocks, [sum(self._looks[i].rows for i in part) for part in parts])
        told = coding, intercept, summary.classes, levels, columns
        rows = executor.map(arrange, [(some, *told) for some in blocks], names, places)
        self._checked = []
        rows = merged(executor, rows, sum(look.rows for look in self._looks))
        shapes = executor.fetch(executor.map(shape_and_targets, [(part,) for part in rows]))
        spreads = [reduce(Spread.plus, each) for each in zip(*(shape[1] for shape in shapes), strict=True)]
        distinct, entries = sum(shape[0] for shape in shapes), sum(look.entries for look in self._looks)
        cells = max(sum(look.rows for look in self._looks) * (width - int(intercept)), 1)
        return OnDask(executor, rows, names, (distinct, width), entries / cells, spreads)


@dataclass(frozen=True, slots=True, eq=False)
class OnDask:
    """Partitions of coded rows, in the order of visits; handles of an executor."""

    executor: Executor
    rows: Sequence[Any]
    names: Sequence[object]
    shape: tuple[int, int]
    density: float
    spreads: Sequence[Spread]
    widest: int = WIDEST_COVARIANCE
    # Times what is bearable in one process: whoever has a cluster can wait.
    patience: float = np.inf

    def analysis(self) -> Analysis:
        """Analyse the pattern of a sparse precision matrix: columns meet where they meet in any partition."""
        executor, parts = self.executor, [(part,) for part in self.rows]
        counts = reduce(ColumnCounts.plus, executor.fetch(executor.map(columns_of, parts)))

        def met(columns: Any) -> Iterator[Any]:
            for one in executor.map(meetings_of, [(*part, columns) for part in parts]):
                yield executor.fetch([one])[0]

        return analyse_meetings(counts, met)

    def close(self) -> None:
        """Nothing to give back: handles are released with this."""

    def run(self, task: Task) -> list[Result]:
        """Run EP for every linear predictor."""
        p, outcomes = task.parameters, []
        if task.plan.covariance == "diagonal":
            advice = "use fewer columns" if task.plan.chosen else "leave covariance at 'auto'"
            raise ValueError(
                f"on Dask a posterior has all correlations, but the plan for these rows is a {task.plan}; {advice}"
            )
        options = Options(p.max_iter, p.tol, single_pass=p.max_iter == 1)
        checkpoint = None if task.checkpoint is None else task.checkpoint(self._digest())
        for k, spread in enumerate(self.spreads):
            partitions = OnExecutor(self.executor, self.rows, self.names, task.analysis)
            place = (k, len(self.spreads))
            with loop_report(p.verbose, p.max_iter, p.tol, self.shape[0], place) as report:
                state, after_loop = course_of(k, report, checkpoint)
                outcomes.append(
                    run(
                        task.loss,
                        task.prior,
                        partitions,
                        options,
                        predictor=k,
                        hyperparameters=replace(task.hyperparameters),
                        center=spread.mean,
                        state=state,
                        after_loop=after_loop,
                    )
                )
        return outcomes

    def _digest(self) -> str:
        """Digest of the rows, whatever partitions they are in."""
        sums = self.executor.fetch(self.executor.map(sum_of_keys, [(part,) for part in self.rows]))
        return " ".join(f"{sum(int(part[i]) for part in sums) % 2**64:016x}" for i in (0, 1))

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""
        sums = self.executor.map(sum_of_function, [(part, function) for part in self.rows])
        return float(sum(self.executor.fetch(sums)))


def summed_up(looks: Sequence[Look], numbers: bool, has_offset: bool) -> Summary:
    """Add up what the blocks told, and refuse blocks that do not fit together."""
    first = looks[0]
    for k, look in enumerate(looks):
        if look.features != first.features or look.names != first.names:
            raise ValueError(
                f"partition {k} has {look.features} columns {look.names or ''}, but partition 0 has {first.features} "
                f"{first.names or ''}: give all the same"
            )
    full = [look for look in looks if look.rows]
    weight = sum(look.weight for look in full)
    if not full:
        raise ValueError("X has no rows in any partition")
    if not weight > 0.0:
        raise ValueError("sample_weight must be positive for at least one row, got zeros only")
    classes = counts = None
    if not numbers:
        classes = np.unique(np.concatenate([look.classes for look in full]))
        counts = np.zeros(classes.size)
        for look in full:
            counts[np.searchsorted(classes, look.classes)] += look.counts
    return Summary(
        weight,
        reduce(ColumnSums.plus, (look.sums for look in full)),
        first.features,
        None if first.names is None else list(first.names),
        _all_levels(looks),
        classes,
        counts,
        _all_moments(full) if numbers else None,
        has_offset,
    )


def joined(rows: Sequence[int], columns: int, threads: int) -> list[range]:
    """Which blocks make a partition: neighbours, until a sweep of them takes long enough to pay for a task.

    And until there are as many rows as columns: what a partition tells is a matrix of columns × columns. There are at
    least twice as many partitions as threads, where that many blocks have rows.
    """
    per_row = 4.0 * columns * columns + 2000.0  # products and solves, and the integrals of a row
    least = min(max(_LEAST_WORK / per_row, columns), max(sum(rows) / (2.0 * threads), 1.0))
    ends, count = [0], 0.0
    for k, more in enumerate(rows):
        count += more
        if count >= least:
            ends.append(k + 1)
            count = 0.0
    if ends[-1] != len(rows):
        ends[-1 if len(ends) > 1 and count < 0.5 * least else len(ends) :] = [len(rows)]
    return [range(a, b) for a, b in pairwise(ends)]


def merged(executor: Executor, rows: Sequence[Any], count: int) -> list[Any]:
    """Let rows that occur in several partitions count once, with the weight of all, in the first of these.

    8 bytes of hash travel per row, and more only for rows that are repeated.
    """
    if len(rows) == 1:
        return list(rows)
    ranges = max(1, min(executor.threads, -(-count // _KEYS_AT_ONCE)))
    keys = executor.map(keys_in_ranges, [(part, ranges) for part in rows])
    found = [executor.map(item, [(part, r) for part in keys]) for r in range(ranges)]
    short = np.concatenate(executor.fetch(executor.map(repeated_keys, [(each,) for each in found])))
    if not short.size:
        return list(rows)
    repeated = executor.map(rows_with_keys, [(part, short) for part in rows])
    changes = executor.fetch(executor.map(repeats_among, [(repeated,)]))[0]
    changed = [k for k, (places, _) in enumerate(changes) if places.size]
    result = list(rows)
    for k, part in zip(changed, executor.map(reweight, [(rows[k], *changes[k]) for k in changed]), strict=True):
        result[k] = part
    return result


def _single(source: DaskSource) -> list[range]:
    return [range(k, k + 1) for k in range(len(source._blocks))]


def _all_levels(looks: Sequence[Look]) -> Levels:
    """Levels of every column of categories: as an ordered categorical type has them, else sorted."""
    full = [look.levels for look in looks if look.rows]
    found: Levels = {}
    for name in full[0]:
        if any(name not in levels for levels in full):
            raise ValueError(
                f"column {name!r} holds categories in some partitions and numbers in others: give it one type"
            )
        lists = [levels[name] for levels in full]
        if all(known == lists[0] for known in lists):
            found[name] = lists[0]
        else:
            found[name] = sorted({level for known in lists for level in known}, key=level_order)
    return found


def _all_moments(looks: Sequence[Look]) -> Moments:
    each = [(look.weight, look.moments) for look in looks if look.moments is not None]
    plain = reduce(Spread.plus, (Spread(weight, m.mean, m.squares) for weight, m in each))
    logs = reduce(Spread.plus, (Spread(weight, m.log_mean, m.log_squares) for weight, m in each))
    least, largest = min(m.least for _, m in each), max(m.largest for _, m in each)
    return Moments(least, largest, plain.mean, plain.squares, logs.mean, logs.squares)
