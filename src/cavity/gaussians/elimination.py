r"""Sparse Cholesky factors by independent sets of columns: order, symbolic and numeric elimination, selected inverse.

Columns that never meet form a set with a diagonal block, so a whole set is eliminated by a few array operations. With
the columns of such a set S first, :math:`P = \begin{pmatrix} A & B \\ B^\top & C \end{pmatrix}` and A is diagonal. One
step stores :math:`W = A^{-1} B` and goes on with :math:`C - B^\top W`. Sets are taken by low degree, as in the multiple
minimum degree ordering, until a dense Cholesky factor of what remains, the corner, is cheaper.

All values lie in one flat array: for every step the diagonal of A, then the entries of B by rows; last the corner, a
square whose upper triangle counts.

Backwards over the steps, :math:`\Sigma_{SC} = -W \Sigma_{CC}` and
:math:`\Sigma_{jj} = 1 / A_{jj} + w_j \Sigma_{CC} w_j^\top` need no entry of :math:`\Sigma_{CC}` outside the pattern of
the Schur complement (Takahashi's recursion, one set at a time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, lapack

from cavity._types import FloatArray, IndexArray

# Costs in flops of a dense matrix product, measured on one thread of x86-64 at about 20 flops per nanosecond.
PAIR_WORK = 300.0  # one pair of entries of a sparse row, in the factorisation and in the selected inverse together
SET_WORK = 5e6  # overhead of one set
CORNER_WORK = 1.1  # times the cube of the corner's columns: Cholesky 1/3, inverse 2/3, both slower than a product
DENSE_ROW_WORK = 3.5  # times the square of the corner's columns: one row of a set that is treated as dense

# Entries and pairs that the search looks at, in all: 5 s, half of what the dearest factorisation that is allowed takes.
_MOST_LOOKED_AT = 2e8

# Pairs of entries, or entries of dense rows, in one step: bounds the temporary arrays of a step to about 100 MB.
_PAIRS_AT_ONCE = 4_000_000


class Level(NamedTuple):
    """One independent set, and where its columns meet the columns that remain (by their names)."""

    chosen: IndexArray
    counts: IndexArray
    meets: IndexArray


class Ordering(NamedTuple):
    """Sets to eliminate one after the other, the columns of the dense corner, and the predicted cost."""

    levels: tuple[Level, ...]
    corner: IndexArray
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
    best = Ordering((), names, corner_work(names.size))
    while names.size and spent + SET_WORK < best.work:
        degrees = np.diff(graph.indptr).astype(np.int64) - 1
        chosen = _independent(graph, degrees)
        last = _last(degrees[chosen], names.size - int(np.count_nonzero(chosen)))
        if spent + last < best.work:
            best = Ordering((*levels, _level(_meeting(graph, chosen), chosen, names)), names[~chosen], spent + last)
        chosen &= degrees <= max(16, 8 * np.median(degrees))  # columns of a high degree would fill the rest
        rest = names[~chosen]
        pairs = pairs_of(degrees[chosen])
        work = SET_WORK + PAIR_WORK * pairs
        gain = corner_work(names.size) - corner_work(rest.size) - work
        looked_at += graph.nnz + pairs
        # The search would take longer than it is worth; so many pairs take 1 s.
        if gain < 0.01 * best.work or pairs > 3e7 or looked_at > _MOST_LOOKED_AT or spent + work > max_work:
            break
        rows = _meeting(graph, chosen)
        levels, spent = (*levels, _level(rows, chosen, names)), spent + work
        best = min(best, Ordering(levels, rest, spent + corner_work(rest.size)), key=lambda ordering: ordering.work)
        # The rest counts as dense, or its graph would take more than 300 MB.
        enough = min(0.7 * float(rest.size) ** 2, 1e7)
        if _expected_fill(rows) > enough:
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
    return corner_work(after.shape[0] * (after.shape[0] / before.shape[0]) ** steps) > 10.0 * max_work


def corner_work(size: float) -> float:
    """Cost of factorising and inverting a dense corner."""
    return CORNER_WORK * float(size) ** 3


def pairs_of(counts: IndexArray) -> float:
    """Count the pairs of entries of all rows, those of an entry with itself included."""
    k = counts.astype(np.float64)
    return float(0.5 * np.sum(k * (k + 1.0)))


def heavy(counts: IndexArray, corner: int) -> NDArray[np.bool_]:
    """Whether rows of so many entries, all in the corner, are cheaper as dense rows than by pairs."""
    result: NDArray[np.bool_] = (
        PAIR_WORK * 0.5 * np.square(counts.astype(np.float64)) > DENSE_ROW_WORK * float(corner) ** 2
    )
    return result


def _last(counts: IndexArray, corner: int) -> float:
    """Cost of a last set and the corner that it leaves."""
    dense = heavy(counts, corner)
    rows = DENSE_ROW_WORK * float(np.count_nonzero(dense)) * float(corner) ** 2
    return SET_WORK + PAIR_WORK * pairs_of(counts[~dense]) + rows + corner_work(corner)


def _independent(graph: sparse.csr_array, degrees: IndexArray) -> NDArray[np.bool_]:
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


def _meeting(graph: sparse.csr_array, chosen: NDArray[np.bool_]) -> sparse.csr_array:
    """Where the columns of a set meet the others."""
    return graph[np.flatnonzero(chosen)][:, np.flatnonzero(~chosen)]


def _level(rows: sparse.csr_array, chosen: NDArray[np.bool_], names: IndexArray) -> Level:
    return Level(names[chosen], np.diff(rows.indptr).astype(np.int64), names[~chosen][rows.indices])


def _expected_fill(rows: sparse.csr_array) -> float:
    """Entries that an elimination fills, by a sample of columns."""
    size = rows.shape[1]
    sampled = 100
    if size <= sampled:
        return 0.0
    sample = np.random.default_rng(0).choice(size, sampled)
    return float((rows[:, sample].T.tocsr() @ rows).nnz * (size / sampled))


class Layout(NamedTuple):
    """Where the entries of a matrix lie in the flat array; columns are counted in the order of elimination."""

    order: IndexArray
    corner: int
    corner_start: int
    diagonal: IndexArray
    keys: IndexArray
    shifts: IndexArray

    @property
    def inner(self) -> int:
        """Number of columns before the corner."""
        return int(self.order.size) - self.corner

    @property
    def size(self) -> int:
        """Length of the flat array."""
        return self.corner_start + self.corner**2

    def positions(self, left: IndexArray, right: IndexArray) -> IndexArray:
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
    targets: IndexArray


class EliminationStep(NamedTuple):
    """One independent set, or a part of it: columns ``first`` to ``last``, at ``start`` to ``stop`` of the flat array.

    ``rows``, ``indptr`` and ``columns`` are the pattern of B, its columns counted from ``last``. Without pairs, all of
    B lies in the corner, and its rows are treated as dense.
    """

    first: int
    last: int
    start: int
    stop: int
    rows: IndexArray
    indptr: NDArray[np.int32]
    columns: NDArray[np.int32]
    pairs: Pairs | None

    @property
    def diagonal(self) -> slice:
        """Where the pivots A lie."""
        return slice(self.start, self.start + self.last - self.first)

    @property
    def entries(self) -> slice:
        """Where the entries of B, and then of W, lie."""
        return slice(self.start + self.last - self.first, self.stop)


class Elimination(NamedTuple):
    """All steps, and the layout of the flat array."""

    layout: Layout
    steps: tuple[EliminationStep, ...]


def pairs_of_rows(indptr: NDArray[Any]) -> tuple[IndexArray, IndexArray]:
    """Pair every entry of a CSR pattern with itself and the later ones of its row: how many, and which."""
    counts = np.repeat(indptr[1:].astype(np.int64), np.diff(indptr)) - np.arange(int(indptr[-1]))
    begins = np.cumsum(counts) - counts
    partners = np.arange(int(counts.sum())) - np.repeat(begins - np.arange(counts.size), counts)
    return counts, partners


def plan(ordering: Ordering) -> Elimination:
    """Lay out the flat array and find where all products of entries go."""
    blocks = [block for level in ordering.levels for block in _parts(level, ordering.corner)]
    order = np.concatenate([*(level.chosen for level, _ in blocks), ordering.corner])
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    owners = [np.repeat(np.arange(level.counts.size), level.counts) for level, _ in blocks]
    # Columns of every row in the order of elimination, sorted.
    columns = [
        np.sort(owner * order.size + place[level.meets]) % max(order.size, 1)
        for (level, _), owner in zip(blocks, owners, strict=True)
    ]
    sizes = np.array([level.chosen.size for level, _ in blocks], dtype=np.int64)
    entries = np.array([part.size for part in columns], dtype=np.int64)
    # Entries come after the diagonals of all steps up to their own, diagonals after the entries of all steps before.
    lasts, stops = np.cumsum(sizes), np.cumsum(sizes + entries)
    inner = order.size - ordering.corner.size
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(level.counts for level, _ in blocks)])
    layout = Layout(
        order=order,
        corner=ordering.corner.size,
        corner_start=inner + int(np.sum(entries)),
        diagonal=np.arange(inner) + np.repeat(np.cumsum(entries) - entries, sizes),
        keys=np.repeat(np.arange(inner), counts) * order.size + np.concatenate([np.zeros(0, dtype=np.int64), *columns]),
        shifts=np.repeat(lasts, sizes),
    )
    steps = []
    for k, (level, dense) in enumerate(blocks):
        last, stop = int(lasts[k]), int(stops[k])
        indptr, pairs = np.concatenate([[0], np.cumsum(level.counts)]).astype(np.int32), None
        if not dense:
            met, partners = pairs_of_rows(indptr)
            targets = layout.positions(np.repeat(columns[k], met), columns[k][partners]) - stop
            kind = np.int32 if partners.size <= np.iinfo(np.int32).max else np.int64
            pairs = Pairs(np.concatenate([[0], np.cumsum(met)]).astype(kind), partners.astype(kind), targets)
        first, start = last - level.chosen.size, stop - level.chosen.size - columns[k].size
        steps.append(
            EliminationStep(first, last, start, stop, owners[k], indptr, (columns[k] - last).astype(np.int32), pairs)
        )
    return Elimination(layout, tuple(steps))


def _parts(level: Level, corner: IndexArray) -> Iterator[tuple[Level, bool]]:
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


@dataclass(frozen=True, eq=False, repr=False)
class SparseCholesky:
    """A factorised matrix; all vectors are in the order of elimination, with columns along the first axis.

    ``values`` is the flat array: pivots A and the entries of W. ``root`` is the lower Cholesky factor of the corner,
    which takes its place.
    """

    elimination: Elimination
    values: FloatArray
    root: FloatArray

    @cached_property
    def log_det(self) -> float:
        """Logarithm of the determinant."""
        pivots = sum(float(np.sum(np.log(self.values[step.diagonal]))) for step in self.elimination.steps)
        return pivots + 2.0 * float(np.sum(np.log(np.diagonal(self.root))))

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve for one right-hand side, or several as columns."""
        x = np.array(right, dtype=np.float64)
        for step, pivots, w in self._eliminated():
            x[step.last :] -= w.T @ x[step.first : step.last]
            x[step.first : step.last] /= _along(pivots, x)
        corner = x[self.elimination.layout.inner :]
        if corner.size:
            corner[...] = lapack.dpotrs(self.root, corner, lower=1)[0]
        return self._back(x)

    def draw(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers into vectors whose covariance is the inverse."""
        x = np.array(noise, dtype=np.float64)
        for step, pivots, _ in self._eliminated():
            x[step.first : step.last] /= np.sqrt(_along(pivots, x))
        corner = x[self.elimination.layout.inner :]
        if corner.size:
            corner[...] = lapack.dtrtrs(self.root, corner, lower=1, trans=1)[0]
        return self._back(x)

    def squares(self, rows: sparse.csr_array) -> FloatArray:
        """Variances of linear combinations, one per row of a sparse matrix.

        Rows are eliminated as the matrix was, and stay sparse: no solve, whatever columns meet in them.
        """
        result = np.zeros(rows.shape[0])
        for step, pivots, w in self._eliminated():
            size = step.last - step.first
            head, rows = rows[:, :size], rows[:, size:] - rows[:, :size] @ w
            result += head.power(2) @ (1.0 / pivots)
        if self.elimination.layout.corner:
            result += _quadratic(rows, self.corner_inverse)
        return result

    @cached_property
    def inverse(self) -> FloatArray:
        """Entries of the inverse on the pattern, in a flat array of the same layout."""
        layout = self.elimination.layout
        result = np.empty(layout.size)
        result[layout.corner_start :] = self.corner_inverse.ravel()
        for step in reversed(self.elimination.steps):
            pivots, w = self.values[step.diagonal], self.values[step.entries]
            z = self._times_inverse(step, w, result[step.stop :])
            result[step.entries] = -z
            result[step.diagonal] = 1.0 / pivots + np.bincount(step.rows, weights=w * z, minlength=pivots.size)
        return result

    @cached_property
    def corner_inverse(self) -> FloatArray:
        """Inverse of the corner, both triangles."""
        if not self.root.size:
            return np.zeros((0, 0))
        result: FloatArray = lapack.dpotri(self.root, lower=1)[0].T
        at_once = 256  # columns: a square of them fits into the cache
        for start in range(0, result.shape[0], at_once):
            part = slice(start, start + at_once)
            result[part, :start] = result[:start, part].T
            result[part, part] = np.triu(result[part, part]) + np.triu(result[part, part], 1).T
        return result

    def _times_inverse(self, step: EliminationStep, w: FloatArray, inverse: FloatArray) -> FloatArray:
        """Entries of W times the inverse of the rest, on the pattern of W."""
        if step.pairs is None:
            rows = _dense(self.elimination, step, w) @ self.corner_inverse
            return np.asarray(rows[step.rows, step.columns - (self.elimination.layout.inner - step.last)])
        met = inverse[step.pairs.targets]
        upper = sparse.csr_array((met, step.pairs.partners, step.pairs.indptr), shape=(w.size, w.size))
        # Pairs are kept once; those of an entry with itself are the first of their rows.
        return np.asarray(upper @ w + upper.T @ w - met[step.pairs.indptr[:-1]] * w)

    def _back(self, x: FloatArray) -> FloatArray:
        for step, _, w in reversed(list(self._eliminated())):
            x[step.first : step.last] -= w @ x[step.last :]
        return x

    def _eliminated(self) -> Iterator[tuple[EliminationStep, FloatArray, sparse.csr_array]]:
        """Go through the steps with their pivots and W."""
        total = self.elimination.layout.order.size
        for step in self.elimination.steps:
            shape = (step.last - step.first, total - step.last)
            w = sparse.csr_array((self.values[step.entries], step.columns, step.indptr), shape=shape)
            yield step, self.values[step.diagonal], w


def eliminate(elimination: Elimination, values: FloatArray) -> SparseCholesky:
    """Factorise the matrix whose entries are given in the flat array, which is overwritten."""
    for step in elimination.steps:
        pivots, entries = values[step.diagonal], values[step.entries]
        if not np.all(pivots > 0.0):
            raise LinAlgError("the precision matrix is not positive definite")
        w = entries / pivots[step.rows]
        rest = values[step.stop :]
        if step.pairs is None:
            rows = _dense(elimination, step, entries / np.sqrt(pivots)[step.rows])
            values[elimination.layout.corner_start :] -= (rows.T @ rows).ravel()
        elif step.pairs.targets.size:
            products = np.repeat(w, np.diff(step.pairs.indptr)) * entries[step.pairs.partners]
            rest -= np.bincount(step.pairs.targets, weights=products, minlength=rest.size)
        entries[...] = w
    corner = elimination.layout.corner
    if not corner:
        return SparseCholesky(elimination, values, np.zeros((0, 0)))
    # The upper triangle in C order is the lower one in the order of LAPACK.
    square = values[elimination.layout.corner_start :].reshape(corner, corner).T
    root, failed = lapack.dpotrf(square, lower=1, overwrite_a=1)
    if failed or not np.all(np.isfinite(np.diagonal(root))):
        raise LinAlgError("the precision matrix is not positive definite")
    return SparseCholesky(elimination, values, root)


def _dense(elimination: Elimination, step: EliminationStep, entries: FloatArray) -> FloatArray:
    """Rows of a step whose columns all lie in the corner, as a dense matrix."""
    columns = step.columns - (elimination.layout.inner - step.last)
    result = np.zeros((step.last - step.first, elimination.layout.corner))
    result[step.rows, columns] = entries
    return result


def _along(pivots: FloatArray, x: FloatArray) -> FloatArray:
    return pivots if x.ndim == 1 else pivots[:, None]


def _quadratic(rows: sparse.csr_array, matrix: FloatArray) -> FloatArray:
    """Quadratic form of every row, a bounded number of rows at once."""
    result = np.empty(rows.shape[0])
    size = max(1, 4_000_000 // matrix.shape[0])  # 32 MB of dense rows
    for start in range(0, result.size, size):
        part = rows[start : start + size]
        if part.nnz > 0.1 * part.shape[0] * part.shape[1]:  # a dense product is faster
            dense = part.toarray()
            result[start : start + size] = np.einsum("ij,ij->i", dense @ matrix, dense)
        else:
            result[start : start + size] = part.multiply(part @ matrix).sum(axis=1)
    return result
