r"""Sparse Cholesky factors by independent sets of supernodes: order, elimination, selected inverse.

Columns that meet the same others form a supernode, with a dense block of pivots. Supernodes that never meet form a set,
and a whole set is eliminated by a few operations on stacks of small dense matrices. With the k columns S of a supernode
first and the m columns that they meet next, :math:`P = \begin{pmatrix} A & B \\ B^\top & C \end{pmatrix}`. One step
stores :math:`R = \mathrm{chol}(A)^{-1}` (upper, :math:`R R^\top = A^{-1}`) and :math:`W = A^{-1} B`, and goes on with
:math:`C - B^\top W`. Sets are taken by low degree, as in the multiple minimum degree ordering, until a dense Cholesky
factor of what remains, the corner, is cheaper.

All values lie in one flat array: of every supernode the k rows of A and B, side by side; last the corner. Of symmetric
blocks the upper triangle counts. Supernodes of one step have the same k and, by empty columns that fill up, the same m.

Backwards over the steps, :math:`\Sigma_{SC} = -W \Sigma_{CC}` and
:math:`\Sigma_{SS} = R R^\top + W \Sigma_{CC} W^\top` need no entry of :math:`\Sigma_{CC}` outside the pattern of the
Schur complement (Takahashi's recursion, one set at a time).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, lapack

from cavity._types import FloatArray, IndexArray

# Costs in flops of a dense matrix product, of factorisation and selected inverse together, measured on one thread of
# x86-64 at about 20 flops per nanosecond.
FRONT_WORK = 1e4  # overhead of one supernode
PAIR_WORK = 160.0  # one entry of a supernode's Schur complement: where it is added, and read again
FLOP_WORK = 8.0  # one multiplication in a small matrix
SET_WORK = 5e6  # overhead of one step
CORNER_WORK = 1.1  # times the cube of the corner's columns: Cholesky 1/3, inverse 2/3, both slower than a product
DENSE_ROW_WORK = 3.5  # times the square of the corner's columns: one column of a supernode that is treated as dense

# Entries and pairs that the search looks at, in all: 5 s, half of what the dearest factorisation that is allowed takes.
_MOST_LOOKED_AT = 2e8

# Entries of the Schur complements, or of dense rows, in one step: bounds its temporary arrays to 4 MB each.
_PAIRS_AT_ONCE = 500_000


class Level(NamedTuple):
    """One independent set of supernodes, by the names of columns: their own, and those that they meet.

    ``sizes`` and ``counts`` are the numbers of both, per supernode.
    """

    sizes: IndexArray
    chosen: IndexArray
    counts: IndexArray
    meets: IndexArray


class Ordering(NamedTuple):
    """Sets to eliminate one after the other, the columns of the dense corner, and the predicted cost."""

    levels: tuple[Level, ...]
    corner: IndexArray
    work: float


class _Rest(NamedTuple):
    """What remains to be eliminated: which supernodes meet, their sizes, and their columns one after the other."""

    graph: sparse.csr_array
    sizes: IndexArray
    names: IndexArray

    def merged(self) -> _Rest:
        """Merge supernodes that meet the same others: they can be eliminated together."""
        marks = np.random.default_rng(0).integers(2**63, size=self.sizes.size, dtype=np.uint64)
        sums = np.add.reduceat(marks[self.graph.indices], self.graph.indptr[:-1])  # equal for equal neighbours
        _, kept, owner = np.unique(sums, return_index=True, return_inverse=True)
        if kept.size == owner.size:
            return self
        names = self.names[np.argsort(np.repeat(owner, self.sizes), kind="stable")]
        return _Rest(self.graph[kept][:, kept], _totals(owner, self.sizes), names)

    def split(self, chosen: NDArray[np.bool_]) -> tuple[sparse.csr_array, Level, _Rest]:
        """Where a set meets the others, the set, and the others before they are filled."""
        own, other = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        starts = np.cumsum(self.sizes) - self.sizes
        rows = self.graph[own][:, other]
        met = other[rows.indices]
        counts = _totals(np.repeat(np.arange(own.size), np.diff(rows.indptr)), self.sizes[met], own.size)
        mine, meets = (self.names[_segments(starts[at], self.sizes[at])] for at in (own, met))
        names = self.names[_segments(starts[other], self.sizes[other])]
        rest = _Rest(self.graph[other][:, other], self.sizes[other], names)
        return rows, Level(self.sizes[own], mine, counts, meets), rest


def dissect(graph: sparse.csr_array, max_work: float) -> Ordering:
    """Choose the sets from the pattern of a symmetric matrix, of booleans, diagonal included.

    Candidates are all remaining columns as the corner, after any number of sets, the last of them with or without
    supernodes of high degree. The cheapest is taken. The search ends where another set gains little or fills the rest,
    or where it has taken as long as a factorisation may.
    """
    rest = _Rest(graph, np.ones(graph.shape[0], dtype=np.int64), np.arange(graph.shape[0]))
    levels: tuple[Level, ...] = ()
    spent = looked_at = 0.0
    best = Ordering((), rest.names, corner_work(rest.names.size))
    while rest.names.size and spent + SET_WORK < best.work:
        rest = rest.merged()
        size = rest.names.size
        degrees = np.asarray(rest.graph @ rest.sizes) - rest.sizes
        chosen = _independent(rest.graph, degrees)
        last = _last(rest.sizes[chosen], degrees[chosen], size - int(np.sum(rest.sizes[chosen])))
        if spent + last < best.work:
            _, level, others = rest.split(chosen)
            best = Ordering((*levels, level), others.names, spent + last)
        chosen &= degrees <= max(16, 8 * np.median(degrees))  # columns of a high degree would fill the rest
        pairs = float(np.sum(pairs_of(degrees[chosen])))
        work = _shared(rest.sizes[chosen], degrees[chosen])[1]
        corner = corner_work(size - int(np.sum(rest.sizes[chosen])))
        looked_at += rest.graph.nnz + pairs
        # The search would take longer than it is worth; so many pairs take 1 s.
        if (
            corner_work(size) - corner - work < 0.01 * best.work
            or pairs > 3e7
            or looked_at > _MOST_LOOKED_AT
            or spent + work > max_work
        ):
            break
        before = rest
        rows, level, rest = before.split(chosen)
        levels, spent = (*levels, level), spent + work
        best = min(best, Ordering(levels, rest.names, spent + corner), key=lambda ordering: ordering.work)
        # The rest counts as dense, or its graph would take more than 300 MB.
        enough = min(0.7 * float(rest.sizes.size) ** 2, 1e7)
        if _expected_fill(rows) > enough:
            break
        # All columns meet that met the same eliminated one.
        rest = rest._replace(graph=rest.graph + rows.T.tocsr() @ rows)
        if rest.graph.nnz > enough or _is_hopeless(before.graph, rest.graph, max_work):
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


def front_work(sizes: Any, counts: Any) -> Any:
    """Cost of eliminating each of some supernodes."""
    k, m = np.asarray(sizes, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    return FRONT_WORK + PAIR_WORK * pairs_of(counts) + FLOP_WORK * k * (m * m + m * k + k * k / 3.0)


def pairs_of(counts: Any) -> Any:
    """Count the pairs of so many columns, those of a column with itself included."""
    k = np.asarray(counts, dtype=np.float64)
    return 0.5 * k * (k + 1.0)


def heavy(sizes: IndexArray, counts: IndexArray, corner: int) -> NDArray[np.bool_]:
    """Whether supernodes that meet so many columns, all in the corner, are cheaper as dense rows."""
    result: NDArray[np.bool_] = front_work(sizes, counts) > DENSE_ROW_WORK * sizes * float(corner) ** 2
    return result


def _last(sizes: IndexArray, counts: IndexArray, corner: int) -> float:
    """Cost of a last set and the corner that it leaves."""
    rows = DENSE_ROW_WORK * sizes * float(corner) ** 2
    return SET_WORK + float(np.sum(np.minimum(front_work(sizes, counts), rows))) + corner_work(corner)


def _independent(graph: sparse.csr_array, degrees: IndexArray) -> NDArray[np.bool_]:
    """Greedy maximal independent set by low degree: in every round, all columns that come before their neighbours."""
    n = degrees.size
    rank = np.empty(n, dtype=np.int32)
    rank[np.lexsort((np.random.default_rng(0).random(n), degrees))] = np.arange(n)
    chosen = np.zeros(n, dtype=bool)
    open_ = np.ones(n, dtype=bool)
    left, right = np.repeat(np.arange(n, dtype=graph.indices.dtype), np.diff(graph.indptr)), graph.indices
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


def _expected_fill(rows: sparse.csr_array) -> float:
    """Entries that an elimination fills, by a sample of columns."""
    size = rows.shape[1]
    sampled = 100
    if size <= sampled:
        return 0.0
    sample = np.random.default_rng(0).choice(size, sampled)
    return float((rows[:, sample].T.tocsr() @ rows).nnz * (size / sampled))


def _totals(owner: IndexArray, values: IndexArray, size: int = 0) -> IndexArray:
    return np.bincount(owner, weights=values, minlength=size).astype(np.int64)


def _segments(starts: IndexArray, lengths: IndexArray) -> IndexArray:
    """Numbers from every start on, one segment after the other."""
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(np.sum(lengths)))


class Layout(NamedTuple):
    """Where the entries of a matrix lie in the flat array; columns are counted in the order of elimination.

    A row of the upper triangle begins with the columns of its supernode, up to its ``end``, at ``own`` plus the column.
    Then come those that the supernode meets: they are found among ``keys`` as ``key`` plus the column, and lie at
    ``met`` plus the place there. ``size`` is the length of the flat array but for its last element, which belongs to no
    entry.
    """

    order: IndexArray
    end: IndexArray
    own: IndexArray
    key: IndexArray
    met: IndexArray
    keys: IndexArray
    corner: int
    corner_start: int
    size: int

    @property
    def inner(self) -> int:
        """Number of columns before the corner."""
        return self.order.size - self.corner

    def positions(self, left: IndexArray, right: IndexArray) -> IndexArray:
        """Positions of the entries of pairs of columns, left <= right, that lie in the pattern."""
        result = self.own[left] + right
        outer = right >= self.end[left]
        left, right = left[outer], right[outer]
        result[outer] = self.met[left] + np.searchsorted(self.keys, self.key[left] + right)
        return result


class EliminationStep(NamedTuple):
    """An independent set of supernodes of the same form, or a part of it.

    Parameters
    ----------
    first, last
        Columns from the first to before the last.
    start
        Where it begins in the flat array.
    columns
        What each supernode meets, one row each, counted from ``last``.
    targets
        Positions of the pairs of these, upper triangle. Absent where all lie in the corner and rows count as dense.
    upper, whole
        Places of the upper triangle in a flat square, and of the elements of a square in a flat triangle; empty without
        targets.
    """

    first: int
    last: int
    start: int
    columns: NDArray[np.int32]
    targets: NDArray[np.int32] | None
    upper: IndexArray
    whole: IndexArray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of supernodes, columns of each, and columns that each meets."""
        count, width = self.columns.shape
        return count, (self.last - self.first) // count, width

    def of(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """View pivots and entries in a flat array, one matrix per supernode."""
        count, k, m = self.shape
        both = flat[self.start : self.start + count * k * (k + m)].reshape(count, k, k + m)
        return both[..., :k], both[..., k:]


class Elimination(NamedTuple):
    """All steps, and the layout of the flat array."""

    layout: Layout
    steps: tuple[EliminationStep, ...]


def plan(ordering: Ordering) -> Elimination:
    """Lay out the flat array and find where all products of entries go."""
    nothing = np.zeros(0, dtype=np.int64)
    sizes, chosen, counts, meets = (
        np.concatenate([nothing, *(level[i] for level in ordering.levels)]) for i in range(4)
    )
    number = np.repeat(np.arange(len(ordering.levels)), [level.sizes.size for level in ordering.levels])
    total, corner = chosen.size + ordering.corner.size, ordering.corner.size
    widths = np.concatenate([nothing, *(_shared(level.sizes, level.counts)[0] for level in ordering.levels)])
    # Supernodes of one form one after the other, in parts of bounded memory.
    inside = [np.isin(level.meets, ordering.corner).all() for level in ordering.levels]
    dense = np.array([*inside, False])[number] & heavy(sizes, counts, corner)
    by = np.lexsort((widths, sizes, dense, number))
    chosen = chosen[_segments((np.cumsum(sizes) - sizes)[by], sizes[by])]
    meets = meets[_segments((np.cumsum(counts) - counts)[by], counts[by])]
    sizes, counts, widths, number = (each[by] for each in (sizes, counts, widths, number))
    dense = dense[by]
    room = np.cumsum(np.where(dense, sizes * corner, pairs_of(widths)))
    forms = np.stack([number, dense, sizes, widths, room // _PAIRS_AT_ONCE])
    cuts = np.concatenate([[0], np.flatnonzero(np.any(np.diff(forms) != 0, axis=0)) + 1, [sizes.size]])
    cuts = np.unique(cuts)  # without supernodes both ends are the same

    order = np.concatenate([chosen, ordering.corner])
    place = np.empty(total, dtype=np.int64)
    place[order] = np.arange(total)
    keys = np.sort(np.repeat(np.arange(sizes.size), counts) * total + place[meets])
    fronts = np.append(sizes, corner)
    strides = fronts + np.append(widths, 0)
    first, starts, begins = (np.cumsum(each) - each for each in (fronts, fronts * strides, np.append(counts, 0)))
    owner = np.repeat(np.arange(fronts.size), fronts)
    rows = starts[owner] + (np.arange(total) - first[owner]) * strides[owner]
    layout = Layout(
        order=order,
        end=(first + fronts)[owner],
        own=rows - first[owner],
        key=owner * total,
        met=rows + (fronts - begins)[owner],
        keys=keys,
        corner=corner,
        corner_start=int(starts[-1]),
        size=int(np.sum(fronts * strides)),
    )
    nowhere = np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    steps, triangles = [], {int(m): _triangle(m) for m in np.unique(widths[~dense])}
    for i, j in pairwise(cuts):
        columns = np.full((j - i, widths[i]), total)
        met = np.arange(widths[i]) < counts[i:j, None]
        columns[met] = keys[begins[i] : begins[j]] % total
        last, targets, (upper, whole) = int(first[j]), None, nowhere
        if not dense[i]:
            upper, whole = triangles[int(widths[i])]
            left, right = (columns[:, each] for each in np.divmod(upper, widths[i]))
            met, targets = right < total, np.full(left.shape, layout.size, dtype=np.int32)
            targets[met] = layout.positions(left[met], right[met])
        columns = (columns - last).astype(np.int32)
        steps.append(EliminationStep(int(first[i]), last, int(starts[i]), columns, targets, upper, whole))
    return Elimination(layout, tuple(steps))


def _triangle(m: int) -> tuple[IndexArray, IndexArray]:
    """Places of the upper triangle in a flat square, and of the elements of a square in a flat triangle."""
    upper = np.flatnonzero(np.triu(np.ones((m, m), dtype=bool)))
    whole = np.zeros((m, m), dtype=np.intp)
    whole.ravel()[upper] = np.arange(upper.size)
    return upper, np.maximum(whole, whole.T).ravel()


def _shared(sizes: IndexArray, counts: IndexArray) -> tuple[IndexArray, float]:
    """Let supernodes of a set share steps: how many columns each is treated as meeting, and the cost of the set.

    From the widest down, those of one size join the step of those before as long as what all that joined waste takes
    less time than another step.
    """
    forms, owner, number = np.unique(
        np.stack([sizes, -counts], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    widths, total, wasted, size = -forms[:, 1], 0.0, 0.0, 0
    own = front_work(forms[:, 0], widths) * number
    for i, k in enumerate(forms[:, 0]):
        if k == size:
            wasted += float(front_work(k, widths[i - 1]) * number[i] - own[i])
        if k != size or wasted > SET_WORK:
            total, wasted, size = total + SET_WORK, 0.0, k
        else:
            widths[i] = widths[i - 1]
        total += float(front_work(k, widths[i])) * float(number[i])
    return widths[owner], total


@dataclass(frozen=True, eq=False, repr=False)
class SparseCholesky:
    """A factorised matrix; all vectors are in the order of elimination, with columns along the first axis.

    ``parts`` has R and W of every step, R as stacked matrices, W as one sparse matrix whose last column is empty.
    ``root`` is the lower Cholesky factor of the corner.
    """

    elimination: Elimination
    parts: tuple[tuple[FloatArray, sparse.csr_array], ...]
    root: FloatArray
    log_det: float

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve for one right-hand side, or several as columns."""
        x = self._with_last(right)
        for step, (roots, w) in zip(self.elimination.steps, self.parts, strict=True):
            head = x[step.first : step.last]
            x[step.last :] -= w.T @ head
            stacked = head.reshape(*step.shape[:2], -1)
            head[...] = (roots @ (roots.transpose(0, 2, 1) @ stacked)).reshape(head.shape)
        corner = x[self.elimination.layout.inner : -1]
        if corner.size:
            corner[...] = lapack.dpotrs(self.root, corner, lower=1)[0]
        return self._back(x)

    def draw(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers into vectors whose covariance is the inverse."""
        x = self._with_last(noise)
        for step, (roots, _) in zip(self.elimination.steps, self.parts, strict=True):
            head = x[step.first : step.last]
            head[...] = (roots @ head.reshape(*step.shape[:2], -1)).reshape(head.shape)
        corner = x[self.elimination.layout.inner : -1]
        if corner.size:
            corner[...] = lapack.dtrtrs(self.root, corner, lower=1, trans=1)[0]
        return self._back(x)

    def squares(self, rows: sparse.csr_array) -> FloatArray:
        """Variances of linear combinations, one per row of a sparse matrix.

        Rows are eliminated as the matrix was, and stay sparse: no solve, whatever columns meet in them.
        """
        result = np.zeros(rows.shape[0])
        for step, (roots, w) in zip(self.elimination.steps, self.parts, strict=True):
            size = step.last - step.first
            head, rest = rows[:, :size], rows[:, size:]
            rows = rest - (head @ w)[:, :-1]
            count = np.arange(step.shape[0] + 1)
            half = sparse.bsr_array((roots, count[:-1], count), shape=(size, size)).tocsr()
            result += (head @ half).power(2).sum(axis=1)
        if self.elimination.layout.corner:
            result += _quadratic(rows, self.corner_inverse)
        return result

    @cached_property
    def inverse(self) -> FloatArray:
        """Entries of the inverse on the pattern, in a flat array of the same layout."""
        layout = self.elimination.layout
        result = np.empty(layout.size + 1)
        result[layout.corner_start : -1], result[-1] = self.corner_inverse.ravel(), 0.0
        for step, (roots, sparse_w) in zip(reversed(self.elimination.steps), reversed(self.parts), strict=True):
            w, (pivots, entries) = sparse_w.data.reshape(step.shape), step.of(result)
            np.negative(self._times_inverse(step, w, result), out=entries)
            np.matmul(roots, roots.transpose(0, 2, 1), out=pivots)
            pivots -= entries @ w.transpose(0, 2, 1)
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
        """Multiply W by the inverse of the rest."""
        count, k, m = step.shape
        if step.targets is None:
            corner = self.elimination.layout.corner
            product = np.zeros((count, k, corner + 1))
            product[..., :-1] = _dense(self.elimination, step, w) @ self.corner_inverse
            return np.asarray(product[_where(self.elimination, step)])
        return w @ np.take(inverse[step.targets], step.whole, axis=1).reshape(count, m, m)

    def _back(self, x: FloatArray) -> FloatArray:
        for step, (_, w) in zip(reversed(self.elimination.steps), reversed(self.parts), strict=True):
            x[step.first : step.last] -= w @ x[step.last :]
        return x[:-1]

    def _with_last(self, x: FloatArray) -> FloatArray:
        """Copy, with a last element that W has no entries for."""
        return np.concatenate([x, np.zeros((1, *np.shape(x)[1:]))])


def eliminate(elimination: Elimination, values: FloatArray) -> SparseCholesky:
    """Factorise the matrix whose entries are given in the flat array, which is overwritten."""
    layout, log_det, parts = elimination.layout, 0.0, []
    corner = layout.corner
    square = values[layout.corner_start : -1].reshape(corner, corner)
    for step in elimination.steps:
        count, k, m = step.shape
        pivots, entries = step.of(values)
        try:
            roots: NDArray[Any] = np.linalg.cholesky(pivots, upper=True)
        except LinAlgError as error:
            raise LinAlgError("the precision matrix is not positive definite") from error
        log_det += 2.0 * float(np.sum(np.log(np.diagonal(roots, axis1=1, axis2=2))))
        _invert(roots)
        half = roots.transpose(0, 2, 1) @ entries
        if step.targets is None:
            rows = _dense(elimination, step, half).reshape(count * k, corner)
            square -= rows.T @ rows
        elif step.targets.size:
            products = (half.transpose(0, 2, 1) @ half).reshape(count, m * m)
            np.subtract.at(values, step.targets.ravel(), np.take(products, step.upper, axis=1).ravel())
        w = (roots @ half).ravel(), np.repeat(step.columns, k, axis=0).ravel(), m * np.arange(count * k + 1)
        parts.append((roots, sparse.csr_array(w, shape=(count * k, layout.order.size - step.last + 1))))
    # The upper triangle in C order is the lower one in the order of LAPACK.
    root, failed = lapack.dpotrf(square.T, lower=1, overwrite_a=1) if corner else (square, 0)
    log_det += 2.0 * float(np.sum(np.log(np.diagonal(root)))) if not failed else np.nan
    if not np.isfinite(log_det):
        raise LinAlgError("the precision matrix is not positive definite")
    return SparseCholesky(elimination, tuple(parts), root, log_det)


def _invert(roots: NDArray[Any]) -> None:
    """Invert upper triangular matrices in place, column by column."""
    k = roots.shape[1]
    for i in range(k):
        roots[:, i, i] = 1.0 / roots[:, i, i]
        if i:
            column = roots[:, :i, :i] @ roots[:, :i, i : i + 1]
            roots[:, :i, i] = -column[..., 0] * roots[:, i, i, None]


def _where(elimination: Elimination, step: EliminationStep) -> tuple[NDArray[Any], ...]:
    """Places of the entries of a step in dense rows of the corner, one more column included."""
    count, k, _ = step.shape
    columns = step.columns - (elimination.layout.inner - step.last)
    return np.arange(count)[:, None, None], np.arange(k)[:, None], columns[:, None, :]


def _dense(elimination: Elimination, step: EliminationStep, entries: FloatArray) -> FloatArray:
    """Rows of a step whose columns all lie in the corner, as dense matrices."""
    result = np.zeros((*step.shape[:2], elimination.layout.corner + 1))
    result[_where(elimination, step)] = entries
    return result[..., :-1]


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
