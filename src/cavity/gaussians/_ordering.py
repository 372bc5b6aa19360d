"""In which order to eliminate the columns of a sparse symmetric matrix: independent sets, then a dense corner.

Columns that never meet form a set with a diagonal block, so a whole set is eliminated by a few array operations. Sets
are taken by low degree, as in the multiple minimum degree ordering, until a dense Cholesky of what remains is cheaper.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

IntArray = NDArray[np.int64]

# Costs in flops of a dense matrix product, measured on one thread of x86-64 at about 20 flops per nanosecond.
PAIR = 300.0  # one pair of entries of a sparse row, in the factorisation and in the selected inverse together
STEP = 5e6  # overhead of one set
CORNER = 1.1  # times the cube of the corner's columns: Cholesky 1/3, inverse 2/3, both below the speed of a product
DENSE = 3.5  # times the square of the corner's columns: one row of a set that is treated as dense

# Entries and pairs that the search looks at, in all: 5 s, half of what the dearest factorisation that is allowed takes.
_MOST_LOOKED_AT = 2e8


class Level(NamedTuple):
    """One independent set, and where its columns meet the columns that remain (by their names)."""

    chosen: IntArray
    counts: IntArray
    meets: IntArray


class Ordering(NamedTuple):
    """Sets to eliminate one after the other, the columns of the dense corner, and the predicted cost."""

    levels: tuple[Level, ...]
    corner: IntArray
    work: float


def dissect(graph: sparse.csr_array, max_work: float) -> Ordering:
    """Choose the sets from the pattern of a symmetric matrix, of booleans, diagonal included.

    Candidates are all remaining columns as the corner, after any number of sets, the last of them with or without
    columns of high degree. The cheapest is taken. The search ends where another set gains little or fills the rest, or
    where it has taken as long as a factorisation may.
    """
    names = np.arange(graph.shape[0])
    levels: tuple[Level, ...] = ()
    spent = looked_at = 0.0
    best = Ordering((), names, _corner(names.size))
    while names.size and spent + STEP < best.work:
        degrees = np.diff(graph.indptr).astype(np.int64) - 1
        chosen = _independent(graph, degrees)
        last = _last(degrees[chosen], names.size - int(np.count_nonzero(chosen)))
        if spent + last < best.work:
            best = Ordering((*levels, _level(_rows(graph, chosen), chosen, names)), names[~chosen], spent + last)
        chosen &= degrees <= max(16, 8 * np.median(degrees))  # columns of a high degree would fill the rest
        rest = names[~chosen]
        pairs = _pairs(degrees[chosen])
        work = STEP + PAIR * pairs
        gain = _corner(names.size) - _corner(rest.size) - work
        looked_at += graph.nnz + pairs
        # The search would take longer than it is worth; so many pairs take 1 s.
        if gain < 0.01 * best.work or pairs > 3e7 or looked_at > _MOST_LOOKED_AT or spent + work > max_work:
            break
        rows = _rows(graph, chosen)
        levels, spent = (*levels, _level(rows, chosen, names)), spent + work
        best = min(best, Ordering(levels, rest, spent + _corner(rest.size)), key=lambda ordering: ordering.work)
        # The rest counts as dense, or its graph would take more than 300 MB.
        enough = min(0.7 * float(rest.size) ** 2, 1e7)
        if _expected(rows) > enough:
            break
        before, names, kept = graph, rest, np.flatnonzero(~chosen)
        graph = graph[kept][:, kept] + rows.T.tocsr() @ rows  # all columns meet that met the same eliminated one
        if graph.nnz > enough or _is_hopeless(before, graph, max_work):
            break
    return best


def _is_hopeless(before: sparse.csr_array, after: sparse.csr_array, max_work: float) -> bool:
    """Whether the rest is far too large for a corner by the time it is dense, if both go on changing as they did."""
    old, new = (graph.nnz / max(float(graph.shape[0]) ** 2, 1.0) for graph in (before, after))
    if not old < new < 1.0:
        return False
    steps = np.log(1.0 / new) / np.log(new / old)
    return _corner(after.shape[0] * (after.shape[0] / before.shape[0]) ** steps) > 10.0 * max_work


def heavy(counts: IntArray, corner: int) -> NDArray[np.bool_]:
    """Whether rows of so many entries, all in the corner, are cheaper as dense rows than by pairs."""
    result: NDArray[np.bool_] = PAIR * 0.5 * np.square(counts.astype(np.float64)) > DENSE * float(corner) ** 2
    return result


def _pairs(counts: IntArray) -> float:
    k = counts.astype(np.float64)
    return float(0.5 * np.sum(k * (k + 1.0)))


def _corner(size: float) -> float:
    return CORNER * float(size) ** 3


def _last(counts: IntArray, corner: int) -> float:
    """Cost of a last set and the corner that it leaves."""
    dense = heavy(counts, corner)
    rows = DENSE * float(np.count_nonzero(dense)) * float(corner) ** 2
    return STEP + PAIR * _pairs(counts[~dense]) + rows + _corner(corner)


def _independent(graph: sparse.csr_array, degrees: IntArray) -> NDArray[np.bool_]:
    """Greedy maximal independent set by low degree: in every round, all columns that come before their neighbours."""
    n = degrees.size
    rank = np.empty(n, dtype=np.int32)
    rank[np.lexsort((np.random.default_rng(0).random(n), degrees))] = np.arange(n)
    chosen = np.zeros(n, dtype=bool)
    open_ = np.ones(n, dtype=bool)
    left, right = np.repeat(np.arange(n, dtype=graph.indices.dtype), degrees + 1), graph.indices
    for _ in range(64):  # a set that is not maximal serves as well
        first = open_.copy()
        first[left[rank[right] < rank[left]]] = False
        chosen |= first
        open_ &= ~first
        open_[right[first[left]]] = False
        if not open_.any():
            break
        kept = open_[left] & open_[right] & (left != right)
        left, right = left[kept], right[kept]
    return chosen


def _rows(graph: sparse.csr_array, chosen: NDArray[np.bool_]) -> sparse.csr_array:
    """Where the columns of a set meet the others."""
    return graph[np.flatnonzero(chosen)][:, np.flatnonzero(~chosen)]


def _level(rows: sparse.csr_array, chosen: NDArray[np.bool_], names: IntArray) -> Level:
    return Level(names[chosen], np.diff(rows.indptr).astype(np.int64), names[~chosen][rows.indices])


def _expected(rows: sparse.csr_array) -> float:
    """Entries that an elimination fills, by a sample of columns."""
    size = rows.shape[1]
    sampled = 100
    if size <= sampled:
        return 0.0
    sample = np.random.default_rng(0).choice(size, sampled)
    return float((rows[:, sample].T.tocsr() @ rows).nnz * (size / sampled))
