"""What runs on workers before EP does: blocks of rows are checked, summed up, arranged, and equal ones found.

Every function here is pure, and takes and gives values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import _check_y

from cavity.ep.partition import Message, PartSites, Sums, log_scale, sweep
from cavity.estimators import EPRegressor
from cavity.estimators._categories import Levels, encode, levels_of
from cavity.estimators._design import checked_offset
from cavity.estimators._labels import classes_and_codes, codes_of
from cavity.estimators._parameters import LARGEST_NUMBER
from cavity.estimators._sources import Coding, Moments
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.sparse import ColumnCounts, meetings

FloatArray = NDArray[np.float64]
Swept = tuple[PartSites, Sums]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Checked rows: a matrix, or a table with columns of categories; labels or targets, weights, offsets, names."""

    X: Any
    y: Any
    weights: Any = None
    offset: Any = None
    names: tuple[str, ...] | None = None


class Look(NamedTuple):
    """What the client learns of a block of rows."""

    rows: int
    features: int
    names: tuple[str, ...] | None
    levels: Levels
    weight: float
    sums: ColumnSums
    entries: int
    classes: Any
    counts: Any
    moments: Moments | None


class Spread(NamedTuple):
    """Weight, mean and sum of squared distances from it, of numbers that may be added up."""

    weight: float
    mean: float
    squares: float

    @classmethod
    def of(cls, numbers: FloatArray, weights: FloatArray) -> Spread:
        """Sum up."""
        weight = float(np.sum(weights))
        mean = float(weights @ numbers) / weight if weight > 0.0 else 0.0
        return cls(weight, mean, float(weights @ (numbers - mean) ** 2))

    def plus(self, other: Spread) -> Spread:
        """Add other numbers."""
        weight = self.weight + other.weight
        share, apart = other.weight / weight if weight > 0.0 else 0.0, other.mean - self.mean
        squares = self.squares + other.squares + apart * apart * share * self.weight
        return Spread(weight, self.mean + share * apart, squares)


def read(X: Any, y: Any, weights: Any, offset: Any, numbers: bool) -> Block:
    """Check a block of rows as an estimator does; targets are numbers or labels."""
    rows = _length(X)
    for name, part in (("y", y), ("sample_weight", weights), ("offset", offset)):
        if part is not None and _length(part) != rows:
            raise ValueError(f"X has {rows} rows here, but {name} has {_length(part)}: give them the same partitions")
    names = _names_of(X)
    if rows == 0:
        return Block(X if names else np.zeros((0, X.shape[1])), np.zeros(0), weights, offset, names)
    if levels_of(X):
        y = _check_y(y, multi_output=False, y_numeric=numbers)
    else:
        X, y = EPRegressor()._check_X(X, y=y, y_numeric=numbers)
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (rows,) or not np.all((weights >= 0.0) & (weights <= LARGEST_NUMBER)):
            raise ValueError(f"sample_weight must hold numbers from 0 to {LARGEST_NUMBER:g}, one for each row")
    y = np.asarray(y, dtype=np.float64) if numbers else np.asarray(y)
    return Block(X, y, weights, checked_offset(offset, rows), names)


def look_at(block: Block, numbers: bool) -> Look:
    """Sum a block up."""
    X, rows = block.X, _length(block.X)
    names, levels = block.names, {} if rows == 0 else levels_of(X)
    features = int(X.shape[1])
    if rows == 0:
        return Look(0, features, names, levels, 0.0, ColumnSums.nothing(0), 0, np.empty(0), np.empty(0), None)
    w = np.ones(rows) if block.weights is None else block.weights
    matrix = encode(X, levels, unseen=False) if levels else X
    _check_size(matrix)
    kept, numeric = w > 0.0, features - len(levels)
    sums = ColumnSums.of(matrix[kept][:, :numeric], w[kept]) if np.any(kept) else ColumnSums.nothing(numeric)
    entries = int(matrix.nnz if sparse.issparse(matrix) else np.count_nonzero(matrix))
    classes = counts = moments = None
    if numbers:
        moments = _moments(block.y, block.offset, w)
    else:
        classes, codes = classes_and_codes(block.y)
        counts = np.bincount(codes, minlength=classes.size).astype(np.float64)
    return Look(rows, features, names, levels, float(np.sum(w)), sums, entries, classes, counts, moments)


def arrange(
    blocks: Sequence[Block], coding: Coding, intercept: bool, classes: Any, levels: Levels, columns: Columns
) -> Rows:
    """Join blocks, code their targets, and bring their rows to the order of visits."""
    full = [block for block in blocks if _length(block.X)] or list(blocks[:1])
    matrices = [_matrix(block, levels) for block in full]
    X = matrices[0] if len(matrices) == 1 else _stacked(matrices)
    raw = np.concatenate([_raw(block, classes) for block in full])
    ones = [np.ones(_length(block.X)) if block.weights is None else block.weights for block in full]
    weights = coding.weights(raw, np.concatenate(ones))
    offset = None
    if full[0].offset is not None:
        offset = np.concatenate([np.asarray(block.offset, dtype=np.float64) for block in full]) / coding.unit
    return Rows.arrange(X, coding.targets(raw), weights, intercept, offset, columns)


def keys_in_ranges(rows: Rows, ranges: int) -> list[Any]:
    """Short keys of all rows, sorted, split by ranges."""
    keys = np.sort(rows.keys(1)[:, 0])
    bounds = [np.uint64((k << 64) // ranges) for k in range(1, ranges)]
    return np.split(keys, np.searchsorted(keys, bounds))


def repeated_keys(keys: Sequence[Any]) -> Any:
    """Short keys that occur more than once, usually none."""
    every = np.sort(np.concatenate(keys))
    return np.unique(every[1:][every[1:] == every[:-1]])


def rows_with_keys(rows: Rows, short: Any) -> tuple[Any, Any, Any]:
    """Whole keys, weights and places of the rows with these short keys."""
    keys = rows.keys()
    places = np.flatnonzero(np.isin(keys[:, 0], short))
    return keys[places], rows.weights[places], places


def repeats_among(parts: Sequence[tuple[Any, Any, Any]]) -> list[tuple[Any, Any]]:
    """Find rows that occur in several partitions: for each the places and new weights of its rows among them.

    The first occurrence gets the weight of all, the others none.
    """
    keys = np.concatenate([part[0] for part in parts])
    weights, places = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    owner = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    order = np.lexsort((owner, keys[:, 1], keys[:, 0]))
    new = np.ones(order.size, dtype=bool)
    new[1:] = np.any(keys[order[1:]] != keys[order[:-1]], axis=1)
    starts = np.flatnonzero(new)
    totals = np.add.reduceat(weights[order], starts) if order.size else np.empty(0)
    lengths = np.diff(np.append(starts, order.size))
    given = np.zeros(order.size)
    given[starts] = totals
    repeated = order[np.repeat(lengths > 1, lengths)]
    changed = np.empty(order.size)
    changed[order] = given
    chosen = [repeated[owner[repeated] == k] for k in range(len(parts))]
    return [(places[at], changed[at]) for at in chosen]


def reweight(rows: Rows, places: Any, weights: Any) -> Rows:
    """Give rows the weights that follow from their repeats elsewhere."""
    return rows.weighted(places, weights)


def shape_and_targets(rows: Rows) -> tuple[int, list[Spread]]:
    """Distinct rows, and the spread of the targets of every predictor."""
    return rows.order.size, [Spread.of(targets, rows.weights) for targets in rows.targets]


def sum_of_keys(rows: Rows) -> Any:
    """Sum up hashes of all rows with their weights, in two columns."""
    weights = rows.weights.view(np.uint64)[:, None]
    return np.sum(rows.keys() * (weights | np.uint64(1)), axis=0, dtype=np.uint64)


def sum_of_function(rows: Rows, function: Callable[[FloatArray], FloatArray]) -> float:
    """Weighted sum of a function of the first targets."""
    return float(rows.weights @ function(rows.targets[0])) if rows.order.size else 0.0


def sweep_part(rows: Rows, last: Swept | None, message: Message, mix: Sequence[float], analysis: Any) -> Swept:
    """Visit the rows of a partition; ``last`` is what this gave in the round before."""
    return sweep(rows, last and last[0], message._replace(analysis=analysis), mix)


def log_scale_of_part(rows: Rows, last: Swept | None, message: Message, mix: Sequence[float], analysis: Any) -> float:
    """Logarithm of the scale of the sites of a partition."""
    return log_scale(rows, last and last[0], message._replace(analysis=analysis), mix)


def columns_of(rows: Rows) -> ColumnCounts:
    """Count the entries of the columns."""
    return ColumnCounts.of(rows.csr(slice(None)))


def meetings_of(rows: Rows, columns: Any) -> Any:
    """Which of these columns meet in a row."""
    return meetings(rows.csr(slice(None)), columns)


def item(values: Sequence[Any], place: int) -> Any:
    """One of several results of a task."""
    return values[place]


def told_by(swept: Sequence[Swept]) -> Sums:
    """Add up what partitions on the same worker told of a round."""
    return added([sums for _, sums in swept])


def added(sums: Sequence[Sums]) -> Sums:
    """Add up what partitions told of a round."""
    return reduce(Sums.plus, sums)


def _length(part: Any) -> int:
    return int(part.shape[0] if hasattr(part, "shape") else len(part))


def _names_of(X: Any) -> tuple[str, ...] | None:
    if not hasattr(X, "columns"):
        return None
    names = tuple(X.columns)
    return tuple(str(name) for name in names) if all(isinstance(name, str) for name in names) else None


def _check_size(matrix: Any) -> None:
    entries = matrix.data if sparse.issparse(matrix) else matrix
    if max(float(np.max(entries, initial=0.0)), -float(np.min(entries, initial=0.0))) > LARGEST_NUMBER:
        raise ValueError(f"X must hold numbers of at most {LARGEST_NUMBER:g} in size; scale its columns")


def _moments(y: FloatArray, offset: Any, weights: FloatArray) -> Moments:
    spread = Spread.of(y if offset is None else y - offset, weights)
    least, largest = float(np.min(y)), float(np.max(y))
    logs = Spread.of(np.log(y), weights) if least > 0.0 else Spread(0.0, 0.0, 0.0)
    return Moments(least, largest, spread.mean, spread.squares, logs.mean, logs.squares)


def _matrix(block: Block, levels: Levels) -> Any:
    return encode(block.X, levels, unseen=False) if levels else block.X


def _stacked(matrices: Sequence[Any]) -> Any:
    if all(sparse.issparse(matrix) for matrix in matrices):
        return sparse.csr_array(sparse.vstack(matrices, format="csr"))
    return np.vstack([m.toarray() if sparse.issparse(m) else m for m in matrices])


def _raw(block: Block, classes: Any) -> Any:
    """Places of labels among the classes, or numbers."""
    if classes is None or not _length(block.X):
        return np.asarray(block.y, dtype=np.float64)
    return codes_of(block.y, classes, _length(block.X)).astype(np.float64)


def _size_of_block(block: Block) -> int:
    return sum(int(sizeof(getattr(block, name))) for name in ("X", "y", "weights", "offset"))


def _size_of_rows(rows: Rows) -> int:
    return sum(int(sizeof(getattr(rows, name))) for name in ("X", "order", "targets", "weights", "offset"))


def _size_of_sites(sites: PartSites) -> int:
    kept = (*(sites.start or ()), *chain.from_iterable(sites.proposed), *(sites.damping or ()))
    return sum(int(array.nbytes) for array in {id(array): array for array in kept}.values())


# Workers spill results to disk in time only where they know their size.
sizeof.register(Block, _size_of_block)
sizeof.register(Rows, _size_of_rows)
sizeof.register(PartSites, _size_of_sites)
