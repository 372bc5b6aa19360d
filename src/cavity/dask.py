"""Fit estimators with Dask, to rows on the workers of a cluster or in chunks on one machine.

Every partition processes its own rows, and sends one matrix of columns × columns per round. If a worker fails, its rows
are computed again from their source, and their sites from the posterior.
"""

from __future__ import annotations

import asyncio
import operator
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse
from sklearn.utils.validation import _check_y, check_is_fitted

try:
    import dask
    import dask.array as da
    import dask.system
    from dask.base import is_dask_collection
    from dask.sizeof import sizeof
    from distributed import Client, Future, KilledWorker, default_client, wait
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] not in ("dask", "distributed"):
        raise
    raise ImportError("cavity.dask needs dask and distributed: pip install 'dask[array]' distributed") from error

from cavity._checks import shown
from cavity._types import FloatArray
from cavity.ep.driver import Options
from cavity.ep.partitions import Message, PartSites, Sums, log_scale, run, sweep
from cavity.ep.result import Result
from cavity.estimators import EPClassifier, EPRegressor
from cavity.estimators.columns import FirstRows, Levels, encode, level_order, levels_of
from cavity.estimators.labels import classes_and_codes, codes_of
from cavity.estimators.parameters import LARGEST_NUMBER, Parameters
from cavity.estimators.progress import loop_report
from cavity.estimators.rows import checked_offset
from cavity.estimators.runs import Checkpoints, Coding, Moments, Problem, Summary, course_of
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.sparse import ColumnCounts, analyse_meetings, meetings

Model = TypeVar("Model", EPClassifier, EPRegressor)

# Times that a task is tried, and times that a round is begun again after losses before the fit is given up.
_TRIES, _ROUNDS = 3, 100
# Seconds without any worker after which a fit is given up, and in which a message must reach one, or is sent again.
_PATIENCE, _SCATTER_SECONDS = 120.0, 20.0
# Results that one task of the tree adds up.
_BRANCHES = 8
# Operations that a task should take at least: about 0.1 s of one thread.
_LEAST_WORK = 3e8


def fit(
    estimator: Model,
    X: Any,
    y: Any = None,
    *,
    client: Client | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    join: bool = True,
    checkpoint: Any = None,
    every: float = 60.0,
) -> Model:
    """Fit an estimator to rows in partitions, with the same posterior as for the same rows in memory.

    Parameters
    ----------
    estimator
        A `cavity.EPClassifier` or `cavity.EPRegressor`, which is fitted in place.
    X
        Rows, in one of three forms: a Dask array split by rows, with dense or CSR chunks; a Dask DataFrame, in which
        columns of strings or categories are random effects; or a list of blocks, lazy (`dask.delayed`, futures) or not.
        Without ``y``, blocks are pairs of rows and targets.
    y
        Labels or targets, with the same partitions as ``X``.
    client
        Client of the cluster. By default the current client, or if there is none, Dask's threads in this process.
    sample_weight, offset
        As in `fit` of the estimator, with the same partitions as ``X``.
    join
        Whether to join small neighbouring partitions, so that a task takes about 0.1 s or more.
    checkpoint
        File on the client's machine in which the state of the fit is saved, as in `fit` of the estimator. The fit can
        be continued with other partitions of the same rows.
    every
        Minimum number of seconds between two writes of the checkpoint.

    Returns
    -------
    Model
        The fitted estimator, which no longer needs Dask or the cluster. ``n_iter_`` counts rounds over all
        partitions.

    Raises
    ------
    ValueError
        If the rows are invalid. Messages count partitions from zero.
    RuntimeError
        If a partition fails three times, or the cluster is not available. If a single worker fails, its partitions are
        computed again elsewhere.

    Notes
    -----
    Equal rows of one partition are one row with the sum of their weights, as in memory; equal rows of several
    partitions stay apart.

    Examples
    --------
    >>> import dask.array as da, numpy as np, cavity
    >>> X = da.from_array(np.random.default_rng(0).normal(size=(400, 3)), chunks=(100, 3))
    >>> model = fit(cavity.EPClassifier(), X, X[:, 0] > 0.0)
    >>> bool(model.coef_[0, 0] > 1.0)
    True
    """
    if not isinstance(estimator, EPClassifier | EPRegressor):
        raise ValueError(f"estimator must be an EPClassifier or an EPRegressor, got {shown(estimator)}")
    blocks = _blocks_of(X, {"y": y, "sample_weight": sample_weight, "offset": offset})
    tasks = _Tasks(client)
    try:
        estimator.fit(_Source(tasks, blocks, join), checkpoint=checkpoint, every=every)
    finally:
        tasks.close()
    return estimator


def predict(estimator: Any, X: Any) -> Any:
    """Predict labels or targets of rows in partitions, lazily.

    Parameters
    ----------
    estimator
        A fitted estimator.
    X
        Rows as in `fit`.

    Returns
    -------
    dask.array.Array, or list of delayed arrays
        The predictions, with the same partitions as ``X``; a list if ``X`` is a list of blocks.
    """
    check_is_fitted(estimator)
    like = estimator.classes_[:0] if hasattr(estimator, "classes_") else np.empty(0)
    return _per_partition(estimator, "predict", X, like)


def predict_proba(estimator: Any, X: Any) -> Any:
    """Predict probabilities of the classes of rows in partitions, lazily; arguments as in `predict`."""
    check_is_fitted(estimator)
    if not hasattr(estimator, "predict_proba"):
        raise ValueError(f"estimator must be a classifier, got {shown(estimator)}")
    return _per_partition(estimator, "predict_proba", X, np.empty((0, estimator.classes_.size)))


def _per_partition(estimator: Any, method: str, X: Any, like: Any) -> Any:
    model = dask.delayed(estimator, traverse=False)
    if isinstance(X, list | tuple):
        return [dask.delayed(_predicted)(model, method, block, like) for block in X]
    if isinstance(X, da.Array) and X.ndim == 2 and X.numblocks[1] == 1:
        blocks, rows = X.to_delayed().ravel(), X.chunks[0]
    elif is_dask_collection(X) and hasattr(X, "columns"):
        blocks, rows = X.to_delayed(), [np.nan] * X.npartitions
    else:
        raise ValueError(
            f"X must be a Dask array that is split by rows only, a Dask DataFrame or a list of blocks, got {shown(X)}"
        )
    parts = [
        da.from_delayed(dask.delayed(_predicted)(model, method, block, like), (size, *like.shape[1:]), meta=like)
        for block, size in zip(blocks, rows, strict=True)
    ]
    return da.concatenate(parts)


def _predicted(model: Any, method: str, block: Any, like: Any) -> Any:
    """Predict rows of a partition, which may have none."""
    return getattr(model, method)(block) if block.shape[0] else like


def _blocks_of(X: Any, others: dict[str, Any]) -> list[Sequence[Any]]:
    """Split collections into blocks before anything is computed: rows, targets, weights or None, offsets or None."""
    if isinstance(X, list | tuple):
        return _blocks_of_lists(X, others)
    if isinstance(X, da.Array):
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got {X.ndim}")
        if X.dtype == object:
            raise ValueError(
                "X must hold numbers, got dtype object: convert it with X.astype(float), or pass a DataFrame"
            )
        if X.numblocks[1] != 1:
            raise ValueError(
                f"X must be split by rows only, got {X.numblocks[1]} blocks of columns: X.rechunk({{1: -1}})"
            )
        split = _chunks_of
    elif is_dask_collection(X) and hasattr(X, "columns") and hasattr(X, "to_delayed"):
        split = _partitions_of
    else:
        raise ValueError(
            "X must be a Dask array, a Dask DataFrame or a list of blocks, got "
            f"{shown(X)}; rows in memory are fitted by the estimator itself"
        )
    if others["y"] is None:
        raise ValueError("y is missing: pass the targets of the rows")
    rows = split("X", X, X)
    each = [[None] * len(rows) if part is None else split(name, part, X) for name, part in others.items()]
    return list(zip(rows, *each, strict=True))


def _blocks_of_lists(X: Sequence[Any], others: dict[str, Any]) -> list[Sequence[Any]]:
    if not X:
        raise ValueError("X must hold at least one block, got an empty list")
    if others["y"] is None:
        if any(part is not None for part in others.values()):
            raise ValueError("blocks without y must hold their weights and offsets: (X, y, weights, offsets)")
        if not all(isinstance(block, list | tuple) and 2 <= len(block) <= 4 for block in X):
            raise ValueError("without y, X must be a list of pairs: rows and targets of each block")
        return [(*block, None, None)[:4] for block in X]
    for name, part in others.items():
        if part is not None and not (isinstance(part, list | tuple) and len(part) == len(X)):
            came = f"{len(part)} blocks" if isinstance(part, list | tuple) else shown(part)
            raise ValueError(f"{name} must be a list of {len(X)} blocks, as X, got {came}")
    return list(zip(X, *([None] * len(X) if part is None else part for part in others.values()), strict=True))


def _chunks_of(name: str, part: Any, X: da.Array) -> list[Any]:
    """Blocks of a Dask array with the chunks of X; a vector in memory is cut into them."""
    if not isinstance(part, da.Array):
        if is_dask_collection(part):
            raise ValueError(f"{name} must be a Dask array, as X: use {name}.to_dask_array(lengths=True)")
        values = np.asarray(part)
        if values.shape != X.shape[:1]:
            raise ValueError(f"{name} must hold one value for each of {X.shape[0]} rows, got shape {values.shape}")
        return np.split(values, np.cumsum(X.chunks[0])[:-1])
    if part is not X and part.ndim == 2 and part.shape[1] == 1:
        part = part[:, 0]
    if part is not X and part.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got {part.ndim}")
    if np.isnan(sum(part.chunks[0])):
        raise ValueError(f"the chunks of {name} have unknown sizes: call {name}.compute_chunk_sizes() first")
    if part.chunks[0] != X.chunks[0]:
        raise ValueError(
            f"{name} must have the chunks of X, but theirs are {shown(part.chunks[0])} and {shown(X.chunks[0])}: use "
            f"{name}.rechunk((X.chunks[0],))"
        )
    return list(part.to_delayed().ravel())


def _partitions_of(name: str, part: Any, X: Any) -> list[Any]:
    """Partitions of a Dask DataFrame, or of a column that has those of X."""
    if not (is_dask_collection(part) and hasattr(part, "npartitions") and hasattr(part, "to_delayed")):
        raise ValueError(f"{name} must be a column with the partitions of X, such as X[{name!r}], got {shown(part)}")
    if part.npartitions != X.npartitions:
        raise ValueError(
            f"{name} must have the {X.npartitions} partitions of X, got {part.npartitions}: take it from the same "
            "table, or repartition both"
        )
    one, two = getattr(part, "divisions", None), X.divisions
    if one is not None and None not in (*one, *two) and tuple(one) != tuple(two):
        raise ValueError(f"{name} must be divided as X, got divisions {shown(one)} and {shown(two)}")
    return list(np.ravel(part.to_delayed()))


# What runs on workers: pure functions of values.


class _Block(NamedTuple):
    """Checked rows: a matrix, or a table with columns of categories; labels or targets, weights, offsets, names."""

    X: Any
    y: Any
    weights: FloatArray
    offset: Any
    names: tuple[str, ...] | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.y)


class _BlockSums(NamedTuple):
    """What the client learns of a block; ``targets`` has sums over targets less offsets, and over their logarithms."""

    rows: int
    features: int
    names: tuple[str, ...] | None
    levels: Levels
    weight: float
    sums: ColumnSums
    entries: int
    classes: Any = None
    counts: Any = None
    bounds: tuple[float, float] = (np.inf, -np.inf)
    targets: ColumnSums | None = None


def _read(X: Any, y: Any, weights: Any, offset: Any, numbers: bool) -> _Block:
    """Check a block of rows as an estimator does; targets are numbers or labels."""
    rows = _length(X)
    for name, part in (("y", y), ("sample_weight", weights), ("offset", offset)):
        if part is not None and _length(part) != rows:
            raise ValueError(f"X has {rows} rows here, but {name} has {_length(part)}: use the same partitions")
    names: tuple[str, ...] | None = None
    if hasattr(X, "columns") and all(isinstance(name, str) for name in X.columns):
        names = tuple(X.columns)
    if rows == 0:
        return _Block(X, np.zeros(0), np.zeros(0), None if offset is None else np.zeros(0), names)
    if levels_of(X):
        y = _check_y(y, multi_output=False, y_numeric=numbers)
    else:
        X, y, *_ = FirstRows.of(EPRegressor(), X, y, numbers)
    weights = np.ones(rows) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights.shape != (rows,) or not np.all((weights >= 0.0) & (weights <= LARGEST_NUMBER)):
        raise ValueError(f"sample_weight must hold numbers from 0 to {LARGEST_NUMBER:g}, one for each row")
    y = np.asarray(y, dtype=np.float64) if numbers else np.asarray(y)
    return _Block(X, y, weights, None if offset is None else checked_offset(offset, rows), names)


def _sum_up(block: _Block, numbers: bool) -> _BlockSums:
    """Sum a block up."""
    X, y, w, features = block.X, block.y, block.weights, int(block.X.shape[1])
    if block.rows == 0:
        return _BlockSums(0, features, block.names, {}, 0.0, ColumnSums.nothing(0), 0)
    levels = levels_of(X)
    matrix = encode(X, levels, unseen=False) if levels else X
    stored = matrix.data if sparse.issparse(matrix) else matrix
    if max(float(np.max(stored, initial=0.0)), -float(np.min(stored, initial=0.0))) > LARGEST_NUMBER:
        raise ValueError(f"X must hold numbers of at most {LARGEST_NUMBER:g} in size; scale its columns")
    counted = w > 0.0

    def sums_of(A: Any) -> ColumnSums:
        return ColumnSums.of(A[counted], w[counted]) if np.any(counted) else ColumnSums.nothing(A.shape[1])

    entries = int(matrix.nnz if sparse.issparse(matrix) else np.count_nonzero(matrix))
    sums = sums_of(matrix[:, : features - len(levels)])
    found = _BlockSums(block.rows, features, block.names, levels, float(np.sum(w)), sums, entries)
    if not numbers:
        classes, codes = classes_and_codes(y)
        return found._replace(classes=classes, counts=np.bincount(codes, minlength=classes.size).astype(np.float64))
    targets = np.column_stack([y if block.offset is None else y - block.offset, np.log(np.where(y > 0.0, y, np.nan))])
    return found._replace(bounds=(float(np.min(y)), float(np.max(y))), targets=sums_of(targets))


def _arrange(
    blocks: Sequence[_Block], coding: Coding, intercept: bool, classes: Any, levels: Levels, columns: Columns
) -> Rows:
    """Join blocks, code their targets, and bring their rows to the order of visits."""
    full = [block for block in blocks if block.rows]
    if not full:
        width = columns.unit.size
        return Rows.arrange(np.zeros((0, width)), np.zeros((coding.predictors, 0)), None, intercept, None, columns)
    X: Any = [encode(block.X, levels, unseen=False) if levels else block.X for block in full]
    if all(sparse.issparse(matrix) for matrix in X):
        X = sparse.csr_array(sparse.vstack(X, format="csr")) if len(X) > 1 else X[0]
    else:
        X = np.vstack([matrix.toarray() if sparse.issparse(matrix) else matrix for matrix in X])
    raw = np.concatenate([one.y if classes is None else codes_of(one.y, classes, one.rows) for one in full])
    weights = coding.weights(raw, np.concatenate([block.weights for block in full]))
    offset = None
    if full[0].offset is not None:
        offset = np.concatenate([block.offset for block in full]).astype(np.float64) / coding.unit
    return Rows.arrange(X, coding.targets(raw), weights, intercept, offset, columns)


def _length(part: Any) -> int:
    return int(part.shape[0] if hasattr(part, "shape") else len(part))


def _totals(rows: Rows) -> FloatArray:
    """Count distinct rows, and sum up their weights and the weighted targets of every predictor."""
    return np.array([rows.order.size, np.sum(rows.weights), *(rows.targets @ rows.weights)])


def _sum_of_function(rows: Rows, function: Callable[[FloatArray], FloatArray]) -> float:
    """Weighted sum of a function of the first targets."""
    return float(rows.weights @ function(rows.targets[0])) if rows.order.size else 0.0


def _sum_of_hashes(rows: Rows) -> FloatArray:
    """Sum up two hashes of every row, as numbers between -0.5 and 0.5, times its weight."""
    return np.asarray(rows.weights @ (rows.keys() / 2.0**64 - 0.5))


def _sweep_part(
    rows: Rows, last: tuple[PartSites, Sums] | None, message: Message, analysis: Analysis | None
) -> tuple[PartSites, Sums]:
    """Visit the rows of a partition; ``last`` is what this returned in the round before."""
    return sweep(rows, last and last[0], message._replace(analysis=analysis))


def _log_scale_part(
    rows: Rows, last: tuple[PartSites, Sums] | None, message: Message, analysis: Analysis | None
) -> float:
    return log_scale(rows, last and last[0], message._replace(analysis=analysis))


def _sums_of(swept: tuple[PartSites, Sums]) -> Sums:
    """Leave the sites where they are."""
    return swept[1]


def _columns_of(rows: Rows) -> ColumnCounts:
    return ColumnCounts.of(rows.matrix())


def _meetings_of(rows: Rows, columns: Any) -> Any:
    return meetings(rows.matrix(), columns)


def _folded(plus: Callable[[Any, Any], Any], *values: Any) -> Any:
    return reduce(plus, values)


def _same(value: Any) -> Any:
    return value


def _size_of_rows(rows: Rows) -> int:
    return sum(int(sizeof(getattr(rows, name))) for name in ("X", "order", "targets", "weights", "offset"))


# Workers spill results to disk in time only where they know their size.
sizeof.register(Rows, _size_of_rows)


class _Source:
    """Blocks of rows, checked and summed up where they are: a source of an estimator."""

    def __init__(self, tasks: _Tasks, blocks: Sequence[Sequence[Any]], join: bool) -> None:
        self._tasks, self._blocks, self._join = tasks, blocks, join
        self._checked: list[Any] = []
        self._sums: list[_BlockSums] = []
        self._summary: Summary | None = None

    def cavity_summary(self, targets: str) -> Summary:
        """Check all blocks, and sum them up."""
        numbers, tasks, names = targets == "numbers", self._tasks, range(len(self._blocks))
        self._checked = tasks.start(_read, [(*block, numbers) for block in self._blocks], names)
        self._sums = tasks.fetch(tasks.start(_sum_up, [(block, numbers) for block in self._checked], names))
        self._summary = _summary_of(self._sums, any(block[3] is not None for block in self._blocks))
        return self._summary

    def cavity_prepare(self, coding: Coding, intercept: bool, columns: Columns) -> _PreparedRows:
        """Join small blocks, code their targets, and bring all rows to the order of visits."""
        summary, tasks, rows = self._summary, self._tasks, [block.rows for block in self._sums]
        assert summary is not None
        levels: Levels = dict(summary.categories)
        width = summary.features + sum(len(known) for known in levels.values()) + int(intercept)
        parts = joined(rows, width, tasks.threads) if self._join else [range(k, k + 1) for k in range(len(rows))]
        names = [part.start if len(part) == 1 else f"{part.start} to {part.stop - 1}" for part in parts]
        same = coding, intercept, summary.classes, levels, columns
        arranged = tasks.start(_arrange, [([self._checked[i] for i in part], *same) for part in parts], names)
        self._checked = []
        distinct, weight, *sums = tasks.total(arranged, operator.add, _totals)
        density = sum(block.entries for block in self._sums) / max(sum(rows) * (width - int(intercept)), 1)
        return _PreparedRows(tasks, arranged, names, (int(distinct), width), density, [one / weight for one in sums])


def _summary_of(blocks: Sequence[_BlockSums], has_offset: bool) -> Summary:
    """Add up the sums of all blocks, which must have the same columns."""
    first = blocks[0]
    for k, block in enumerate(blocks):
        if (block.features, block.names) != (first.features, first.names):
            raise ValueError(
                f"partition {k} has {block.features} columns {block.names or ''}, but partition 0 has "
                f"{first.features} {first.names or ''}: use the same columns in all"
            )
    full = [block for block in blocks if block.rows]
    if not full:
        raise ValueError("X has no rows in any partition")
    if not any(block.weight > 0.0 for block in full):
        raise ValueError("sample_weight must be positive for at least one row, got zeros only")
    classes = counts = moments = None
    targets = [block.targets for block in full if block.targets is not None]
    if targets:
        sums = reduce(ColumnSums.plus, targets)
        least, largest = zip(*(block.bounds for block in full), strict=True)
        each = zip(sums.mean, sums.squares, strict=True)
        moments = Moments(min(least), max(largest), *(float(number) for pair in each for number in pair))
    else:
        classes = np.unique(np.concatenate([block.classes for block in full]))
        counts = np.zeros(classes.size)
        for block in full:
            counts[np.searchsorted(classes, block.classes)] += block.counts
    return Summary(
        sum(block.weight for block in full),
        reduce(ColumnSums.plus, (block.sums for block in full)),
        first.features,
        None if first.names is None else list(first.names),
        _all_levels([block.levels for block in full]),
        classes,
        counts,
        moments,
        has_offset,
    )


def _all_levels(blocks: Sequence[Levels]) -> Levels:
    """Levels of every column of categories: as an ordered categorical type has them, else sorted."""
    found: Levels = {}
    for name in dict.fromkeys(name for levels in blocks for name in levels):
        if any(name not in levels for levels in blocks):
            raise ValueError(
                f"column {name!r} holds categories in some partitions and numbers in others: give it one type"
            )
        lists = [levels[name] for levels in blocks]
        found[name] = lists[0]
        if any(known != lists[0] for known in lists):
            found[name] = sorted({level for known in lists for level in known}, key=level_order)
    return found


def joined(rows: Sequence[int], columns: int, threads: int) -> list[range]:
    """Which blocks make a partition: neighbours, until a round over them takes long enough to pay for a task.

    And until there are as many rows as columns: a partition returns a matrix of columns × columns. There are at least
    twice as many partitions as threads, where that many blocks have rows.
    """
    per_row = 4.0 * columns * columns + 2000.0  # products and solves, and the integrals of a row
    least = min(max(_LEAST_WORK / per_row, columns), max(sum(rows) / (2.0 * threads), 1.0))
    ends, count = [0], 0.0
    for k, more in enumerate(rows):
        count += more
        if count >= least:
            ends.append(k + 1)
            count = 0.0
    if ends[-1] != len(rows):  # the rest is a partition, or joins the last one
        ends[-1 if len(ends) > 1 and count < 0.5 * least else len(ends) :] = [len(rows)]
    return [range(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True, slots=True, eq=False)
class _PreparedRows:
    """Partitions of coded rows, in the order of visits; handles of tasks."""

    tasks: _Tasks
    rows: Sequence[Any]
    names: Sequence[object]
    shape: tuple[int, int]
    density: float
    centers: Sequence[float]
    widest: int = WIDEST_COVARIANCE
    most_rows: int = 0
    # A cluster takes any number of operations.
    patience: float = np.inf

    def analysis(self) -> Analysis:
        """Analyse the pattern of a sparse precision matrix: columns meet where they meet in any partition."""
        tasks = self.tasks

        def met(columns: Any) -> Iterator[Any]:
            for one in tasks.start(_meetings_of, [(part, columns) for part in self.rows]):
                yield tasks.fetch([one])[0]

        return analyse_meetings(tasks.total(self.rows, ColumnCounts.plus, _columns_of), met)

    def close(self) -> None:
        """Nothing to do: handles are released with this."""

    def run(self, problem: Problem, p: Parameters, checkpoint: Checkpoints | None) -> list[Result]:
        """Run EP for every linear predictor."""
        outcomes = []
        if problem.plan.covariance == "diagonal":
            advice = "use fewer columns" if problem.plan.chosen else "leave covariance at 'auto'"
            raise ValueError(
                f"on Dask a posterior has all correlations, but the plan for these rows is a {problem.plan}; {advice}"
            )
        options = Options(p.max_iter, p.tol, single_pass=p.max_iter == 1)
        opened = None
        if checkpoint is not None:
            # To the digits that do not depend on the partitions, in which sums are rounded.
            hashes = self.tasks.total(self.rows, operator.add, _sum_of_hashes)
            opened = checkpoint(" ".join(f"{sum_of_one:.7g}" for sum_of_one in hashes))
        for k, center in enumerate(self.centers):
            partitions = ClusterPartitions(self.tasks, self.rows, self.names, self.shape[0], problem.analysis)
            place = (k, len(self.centers))
            with loop_report(p.verbose, p.max_iter, p.tol, self.shape[0], place) as report:
                state, after_loop = course_of(k, report, opened)
                outcomes.append(
                    run(
                        problem.loss,
                        problem.prior,
                        partitions,
                        options,
                        predictor=k,
                        hyperparameters=replace(problem.hyperparameters),
                        center=center,
                        state=state,
                        after_loop=after_loop,
                    )
                )
        return outcomes

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""
        sums = self.tasks.start(_sum_of_function, [(part, function) for part in self.rows])
        return float(self.tasks.total(sums, operator.add))


class ClusterPartitions:
    """Partitions whose rows and sites are results of tasks: what `cavity.ep.partitions` works on.

    Tasks of a round depend on a message that is scattered, and released when the round is over. Dask then knows that it
    cannot compute them again: where a worker is lost, so are the sites on it, at once, and not all past rounds are
    repeated. New ones are derived from the posterior in the next round. Rows depend on nothing but their source, and
    Dask computes them again.
    """

    def __init__(
        self, tasks: _Tasks, parts: Sequence[Any], names: Sequence[object], rows: int, analysis: Analysis | None
    ) -> None:
        self._tasks, self._parts, self._names, self.rows, self.analysis = tasks, parts, names, rows, analysis
        self._pattern: Any = None
        self.forget()

    def forget(self) -> None:
        """Drop all sites."""
        self._swept: list[Any] = [None] * len(self._parts)

    def sweep(self, message: Message) -> Sums:
        """Let all partitions update their sites, and add up their sums."""
        sums: Sums
        self._swept, sums = self._repeated(_sweep_part, message, Sums.plus, _sums_of)
        return sums

    def log_scale(self, message: Message) -> float:
        """Sum up the logarithms of the scales of all sites."""
        return float(self._repeated(_log_scale_part, message, operator.add, _same)[1])

    def _repeated(
        self, function: Callable[..., Any], message: Message, plus: Callable[..., Any], of: Callable[..., Any]
    ) -> tuple[list[Any], Any]:
        """Results of all partitions and their total, tried until nothing that is needed was lost meanwhile."""
        tasks = self._tasks
        for _ in range(_ROUNDS):
            self._swept = [None if tasks.is_lost(one) else one for one in self._swept]
            if self.analysis is not None and (self._pattern is None or tasks.is_lost(self._pattern)):
                self._pattern = tasks.share(self.analysis)  # once, and not with every message
            try:
                shared = tasks.share(message._replace(analysis=None))
                arguments = [(*pair, shared, self._pattern) for pair in zip(self._parts, self._swept, strict=True)]
                found = tasks.start(function, arguments, self._names)
                return found, tasks.total(found, plus, of)
            except CancelledError:
                if any(tasks.is_lost(rows) for rows in self._parts):
                    raise RuntimeError(
                        "rows were lost with a worker and cannot be computed again, since they were scattered: pass X "
                        "as a collection that is read or computed by tasks"
                    ) from None
        raise RuntimeError(f"workers were lost {_ROUNDS} times within a round of the fit")


class _Tasks:
    """Tasks on the workers of a cluster, or by one of Dask's local schedulers in this process.

    A *handle* stands for a result: a future on a cluster, and the value itself in this process. Tasks take handles as
    arguments.
    """

    def __init__(self, client: Client | None) -> None:
        if client is None:
            with suppress(ValueError):
                client = default_client()
        elif not isinstance(client, Client):
            raise ValueError(f"client must be a distributed.Client or None, got {type(client).__name__}")
        if client is not None and client.status != "running":
            raise ValueError(f"client must be connected to a cluster, but it is {client.status}: open a new one")
        if client is not None and client.asynchronous:
            raise ValueError("client must not be asynchronous: make it with Client(..., asynchronous=False)")
        self.client = client
        one_by_one = dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded")
        self._local = partial(dask.compute, scheduler="sync" if one_by_one else "threads")
        self.threads = 1 if one_by_one else int(dask.system.CPU_COUNT)
        if client is not None:
            self.threads = max(1, int(sum(client.nthreads().values())))
        self._futures: weakref.WeakSet[Future] = weakref.WeakSet()

    def start(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        names: Sequence[object] | None = None,
    ) -> list[Any]:
        """Run a function once for each tuple of arguments; a task that has a name is named in its errors.

        Arguments are values, handles, and parts of Dask collections.
        """
        return self._computed(self._graph(function, arguments, names))

    def total(self, handles: Sequence[Any], plus: Callable[[Any, Any], Any], of: Callable[[Any], Any] = _same) -> Any:
        """Add up a function of results in groups, and groups of these, in one graph, and wait for the sum."""
        parts = self._graph(of, [(handle,) for handle in handles])
        while len(parts) > 1:
            groups = [(plus, *parts[i : i + _BRANCHES]) for i in range(0, len(parts), _BRANCHES)]
            parts = self._graph(_folded, groups)
        return self.fetch(self._computed(parts))[0]

    def _graph(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], names: Sequence[object] | None = None
    ) -> list[Any]:
        tries, call = 1 if self.client is None else _TRIES, dask.delayed(_named, pure=False)
        each = [None] * len(arguments) if names is None else names
        return [
            call(function, name, tries, *map(_argument, args), dask_key_name=_key(function))
            for name, args in zip(each, arguments, strict=True)
        ]

    def _computed(self, tasks: list[Any]) -> list[Any]:
        if self.client is None:
            return list(self._local(*tasks))
        return self._kept(list(self.client.compute(tasks, retries=_TRIES - 1)))

    def share(self, value: Any) -> Any:
        """Send a value to one worker, from which others take it; it cannot be computed again."""
        client = self.client
        if client is None:
            return value

        async def scattered() -> list[Future]:
            # A list of one: a tuple would be taken for several values. It does not go to all workers at once: the
            # scheduler waits without end for a worker that dies meanwhile.
            return await asyncio.wait_for(client.scatter([value], hash=False, asynchronous=True), _SCATTER_SECONDS)

        start = time.monotonic()
        while True:
            try:
                return self._kept(client.sync(scattered))[0]
            except (TimeoutError, OSError):  # a worker went away meanwhile, or there is none
                self._check_connected()
                if time.monotonic() - start > _PATIENCE:
                    raise

    def fetch(self, handles: Sequence[Any]) -> list[Any]:
        """Wait for tasks and return their values; `CancelledError` if one cannot be computed any more."""
        if self.client is None:
            return list(handles)
        with_workers = time.monotonic()
        while True:
            try:
                with self.client.as_current():
                    wait(handles, timeout=5.0)
                return list(self.client.gather(handles))
            except TimeoutError:
                self._check_connected()
                if self.client.scheduler_info(n_workers=-1)["workers"]:
                    with_workers = time.monotonic()
                elif time.monotonic() - with_workers > _PATIENCE:
                    raise RuntimeError(f"the cluster has had no worker for {_PATIENCE:.0f} s") from None
            except KilledWorker as error:
                raise RuntimeError(
                    f"workers died again and again with the same task, probably for want of memory ({error}): use "
                    "smaller partitions, or workers with more memory"
                ) from error

    def is_lost(self, handle: Any) -> bool:
        """Whether a result is gone with its worker, and cannot be computed again: the scheduler cancels it."""
        return isinstance(handle, Future) and handle.status == "cancelled"

    def close(self) -> None:
        """Cancel what still runs, and release all futures."""
        alive = list(self._futures)
        running = [future for future in alive if not future.done()]
        if running and self.client is not None and self.client.status == "running":
            with suppress(Exception):  # a cluster that is gone holds nothing
                self.client.cancel(running)
        for future in alive:
            future.release()

    def _kept(self, futures: list[Future]) -> list[Future]:
        self._futures.update(futures)
        return futures

    def _check_connected(self) -> None:
        if self.client is not None and self.client.status != "running":
            raise RuntimeError("the connection to the cluster was closed during the fit")


def _argument(value: Any) -> Any:
    """Make a value of this package one node of a graph, which Dask does not look into."""
    whole = isinstance(value, Rows | Message | Analysis)
    return dask.delayed(value, traverse=False, pure=False, name=_key(type(value))) if whole else value


def _key(function: Callable[..., Any]) -> str:
    return f"cavity-{function.__name__.strip('_')}-{uuid.uuid4().hex}"


def _named(function: Callable[..., Any], name: object, tries: int, *arguments: Any) -> Any:
    """Call a function, and name the partition in an error of its own."""
    try:
        return function(*arguments)
    except Exception as error:
        if name is None:
            raise
        often = "" if tries == 1 else f" {tries} times"
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        raise kind(f"partition {name} failed{often}: {error or type(error).__name__}") from error


__all__ = ["fit", "predict", "predict_proba"]
