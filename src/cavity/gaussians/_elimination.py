r"""Symbolic elimination: where every entry of a sparse factor lies, and which entries meet, from the pattern alone.

With the columns of an independent set S first, :math:`P = \begin{pmatrix} A & B \\ B^\top & C \end{pmatrix}` and A is
diagonal. One step stores :math:`W = A^{-1} B` and goes on with :math:`C - B^\top W`; what remains in the end is a dense
corner.

All values lie in one flat array: for every step the diagonal of A, then the entries of B by rows; last the corner, a
square whose upper triangle counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.gaussians._ordering import IntArray, Level, Ordering, heavy

# Pairs of entries, or entries of dense rows, in one step: bounds the temporary arrays of a step to about 100 MB.
_PAIRS_AT_ONCE = 4_000_000


class Layout(NamedTuple):
    """Where the entries of a matrix lie in the flat array; columns are counted in the order of elimination."""

    order: IntArray
    corner: int
    corner_start: int
    diagonal: IntArray
    keys: IntArray
    shifts: IntArray

    @property
    def inner(self) -> int:
        """Number of columns before the corner."""
        return int(self.order.size) - self.corner

    @property
    def size(self) -> int:
        return self.corner_start + self.corner**2

    def positions(self, left: IntArray, right: IntArray) -> IntArray:
        """Positions of the entries of pairs of columns, left <= right, that lie in the pattern."""
        result = self.corner_start + (left - self.inner) * self.corner + (right - self.inner)
        inside = np.flatnonzero(left < self.inner)
        a, b = left[inside], right[inside]
        found = np.searchsorted(self.keys, a * self.order.size + b) + self.shifts[a]
        result[inside] = np.where(a == b, self.diagonal[a], found)
        return result


class Pairs(NamedTuple):
    """Pairs of entries of B in one row: a CSR pattern over the entries, and the positions of their columns' entry.

    Every entry is paired with itself first, then with the later ones of its row. ``targets`` are counted from the end
    of the step.
    """

    indptr: NDArray[Any]
    partners: NDArray[Any]
    targets: IntArray


class Step(NamedTuple):
    """One independent set, or a part of it: columns ``first`` to ``last``, at ``start`` to ``stop`` of the flat array.

    ``rows``, ``indptr`` and ``columns`` are the pattern of B, its columns counted from ``last``. Without pairs, all of
    B lies in the corner, and its rows are treated as dense.
    """

    first: int
    last: int
    start: int
    stop: int
    rows: IntArray
    indptr: NDArray[np.int32]
    columns: NDArray[np.int32]
    pairs: Pairs | None

    @property
    def diagonal(self) -> slice:
        return slice(self.start, self.start + self.last - self.first)

    @property
    def entries(self) -> slice:
        return slice(self.start + self.last - self.first, self.stop)


class Elimination(NamedTuple):
    """All steps, and the layout of the flat array."""

    layout: Layout
    steps: tuple[Step, ...]


def pairs_of_rows(indptr: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Pair every entry of a CSR pattern with itself and the later ones of its row: how many, and which."""
    counts = np.repeat(indptr[1:].astype(np.int64), np.diff(indptr)) - np.arange(int(indptr[-1]))
    begins = np.cumsum(counts) - counts
    partners = np.arange(int(counts.sum())) - np.repeat(begins - np.arange(counts.size), counts)
    return counts, partners


def plan(ordering: Ordering) -> Elimination:
    """Lay out the flat array and find where all products of entries go."""
    blocks = [block for level in ordering.levels for block in _blocks(level, ordering.corner)]
    levels = [level for level, _ in blocks]
    order = np.concatenate([*(level.chosen for level in levels), ordering.corner])
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    rows = [_sorted(level, place) for level in levels]
    layout = _layout(order, ordering.corner.size, levels, rows)
    steps = []
    first = start = 0
    for (level, dense), columns in zip(blocks, rows, strict=True):
        last, stop = first + level.chosen.size, start + level.chosen.size + columns.size
        indptr = np.concatenate([[0], np.cumsum(level.counts)]).astype(np.int32)
        pairs = None if dense else _pairs(layout, indptr, columns, stop)
        owner = np.repeat(np.arange(level.counts.size), level.counts)
        steps.append(Step(first, last, start, stop, owner, indptr, (columns - last).astype(np.int32), pairs))
        first, start = last, stop
    return Elimination(layout, tuple(steps))


def _blocks(level: Level, corner: IntArray) -> Iterator[tuple[Level, bool]]:
    """Cut a level into parts of bounded memory, and say which are cheaper as dense rows."""
    dense = np.zeros(level.counts.size, dtype=bool)
    if np.isin(level.meets, corner).all():
        dense = heavy(level.counts, corner.size)
    ends = np.cumsum(level.counts)
    for kind in (False, True):
        members = np.flatnonzero(dense == kind)
        k = level.counts[members]
        room = np.full(k.size, corner.size) if kind else k * (k + 1) // 2
        for part in np.split(members, np.flatnonzero(np.diff(np.cumsum(room) // _PAIRS_AT_ONCE)) + 1):
            if part.size:
                counts = level.counts[part]
                taken = np.repeat(ends[part] - np.cumsum(counts), counts) + np.arange(int(counts.sum()))
                yield Level(level.chosen[part], counts, level.meets[taken]), kind


def _sorted(level: Level, place: IntArray) -> IntArray:
    """Columns of a level's rows in the order of elimination, sorted in each row."""
    rows = np.repeat(np.arange(level.counts.size), level.counts)
    return np.sort(rows * place.size + place[level.meets]) % max(place.size, 1)


def _layout(order: IntArray, corner: int, levels: Sequence[Level], rows: Sequence[IntArray]) -> Layout:
    inner = order.size - corner
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(level.counts for level in levels)])
    columns = np.concatenate([np.zeros(0, dtype=np.int64), *rows])
    sizes = np.array([level.chosen.size for level in levels], dtype=np.int64)
    entries = np.array([row.size for row in rows], dtype=np.int64)
    # Entries come after the diagonals of all steps up to their own, diagonals after the entries of all steps before.
    shifts = np.repeat(np.cumsum(sizes), sizes)
    diagonal = np.arange(inner) + np.repeat(np.cumsum(entries) - entries, sizes)
    keys = np.repeat(np.arange(inner), counts) * order.size + columns
    return Layout(order, corner, inner + columns.size, diagonal, keys, shifts)


def _pairs(layout: Layout, indptr: NDArray[Any], columns: IntArray, stop: int) -> Pairs:
    counts, partners = pairs_of_rows(indptr)
    targets = layout.positions(np.repeat(columns, counts), columns[partners]) - stop
    kind = np.int32 if partners.size <= np.iinfo(np.int32).max else np.int64
    return Pairs(np.concatenate([[0], np.cumsum(counts)]).astype(kind), partners.astype(kind), targets)
