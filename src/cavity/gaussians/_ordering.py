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

# A set leaves out columns whose degree is above this multiple of the median, since they would fill the rest.
_SPREAD = 8
_SMALL_DEGREE = 16
_ROUNDS = 64


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
    """Choose the sets from the pattern of a symmetric matrix (of booleans, no diagonal).

    Candidates are: all of the remaining columns as the corner, after any number of sets, the last of them with or
    without columns of high degree. The cheapest is taken. The search ends when it can only get dearer.
    """
    names = np.arange(graph.shape[0])
    levels: list[Level] = []
    spent = 0.0
    best = Ordering((), names, CORNER * names.size**3)
    while names.size and spent + STEP < best.work:
        degrees = np.diff(graph.indptr).astype(np.int64)
        chosen = _independent(graph, degrees)
        last = _cost(degrees[chosen], names.size - int(np.count_nonzero(chosen)))
        if spent + last < best.work:
            rest = names[~chosen]
            best = Ordering((*levels, _level(graph, chosen, names)), rest, spent + last)
        chosen &= degrees <= max(_SMALL_DEGREE, _SPREAD * np.median(degrees))
        work = STEP + PAIR * _pairs(degrees[chosen])
        if not chosen.any() or spent + work > min(best.work, max_work):
            break
        levels.append(_level(graph, chosen, names))
        graph, names, spent = _eliminated(graph, chosen), names[~chosen], spent + work
        if spent + CORNER * names.size**3 < best.work:
            best = Ordering(tuple(levels), names, spent + CORNER * names.size**3)
    return best


def heavy(counts: IntArray, corner: int) -> NDArray[np.bool_]:
    """Whether rows of so many entries, all in the corner, are cheaper as dense rows than by pairs."""
    result: NDArray[np.bool_] = PAIR * 0.5 * np.square(counts.astype(np.float64)) > DENSE * float(corner) ** 2
    return result


def _pairs(counts: IntArray) -> float:
    k = counts.astype(np.float64)
    return float(0.5 * np.sum(k * (k + 1.0)))


def _cost(counts: IntArray, corner: int) -> float:
    """Cost of a last set and the corner that it leaves."""
    dense = heavy(counts, corner)
    rows = DENSE * float(np.count_nonzero(dense)) * float(corner) ** 2
    return STEP + PAIR * _pairs(counts[~dense]) + rows + CORNER * float(corner) ** 3


def _independent(graph: sparse.csr_array, degrees: IntArray) -> NDArray[np.bool_]:
    """Greedy maximal independent set by low degree: in every round, all columns that come before their neighbours."""
    n = degrees.size
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((np.random.default_rng(0).random(n), degrees))] = np.arange(n)
    chosen = np.zeros(n, dtype=bool)
    open_ = np.ones(n, dtype=bool)
    left, right = np.repeat(np.arange(n), degrees), graph.indices.astype(np.int64)
    for _ in range(_ROUNDS):
        first = open_.copy()
        first[left[rank[right] < rank[left]]] = False
        chosen |= first
        open_ &= ~first
        open_[right[first[left]]] = False
        if not open_.any():
            break
        kept = open_[left] & open_[right]
        left, right = left[kept], right[kept]
    return chosen


def _level(graph: sparse.csr_array, chosen: NDArray[np.bool_], names: IntArray) -> Level:
    rows = graph[np.flatnonzero(chosen)]
    return Level(names[chosen], np.diff(rows.indptr).astype(np.int64), names[rows.indices])


def _eliminated(graph: sparse.csr_array, chosen: NDArray[np.bool_]) -> sparse.csr_array:
    """Graph of the Schur complement: the neighbours of an eliminated column all meet."""
    rest = np.flatnonzero(~chosen)
    rows = graph[np.flatnonzero(chosen)][:, rest]
    return without_diagonal(graph[rest][:, rest] + rows.T.tocsr() @ rows)


def without_diagonal(matrix: sparse.csr_array) -> sparse.csr_array:
    """Pattern of a matrix off its diagonal."""
    entries = matrix.tocoo()
    off = entries.row != entries.col
    where = (entries.row[off], entries.col[off])
    return sparse.csr_array((np.ones(where[0].size, dtype=bool), where), shape=matrix.shape)


__all__ = ["CORNER", "DENSE", "PAIR", "STEP", "Level", "Ordering", "dissect", "heavy", "without_diagonal"]
