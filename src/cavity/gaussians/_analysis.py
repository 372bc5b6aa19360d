"""Symbolic analysis of rows: which columns form a border, the order of the others, and what a factor will cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity._types import FloatArray
from cavity.gaussians._elimination import Elimination, pairs_of_rows, plan
from cavity.gaussians._ordering import CORNER, IntArray, Ordering, dissect, heavy

# Of rows that are read from a file: their work may be so many times that of a factorisation, since it does not need
# memory; and pairs of columns that meet, at most, of which each takes 9 bytes.
_MOST_ROW_WORK, _MOST_MEETINGS = 50.0, 20_000_000

# What a factor may need: flops of a dense matrix product for one factorisation with all variances, of which a thread
# does about 2e10 per second, and bytes.
MAX_WORK, MAX_MEMORY = 2e11, 4e9

_ROWS_AT_ONCE = 131_072  # bounds what is computed per row and border column to 1 MB per column


class Pattern(NamedTuple):
    """The order of all columns (border last), and the entries of the inner part: columns and position.

    Entries begin with the diagonal; ``left`` <= ``right`` are counted in the order of elimination.
    """

    order: IntArray
    elimination: Elimination
    left: IntArray
    right: IntArray
    at: IntArray


class AnalysedRows(NamedTuple):
    """Rows by inner columns (in the order of elimination) and border.

    ``products`` has the product of every two entries of a row, in the column of their entry of the matrix, twice where
    the columns differ.
    """

    inner: sparse.csr_array
    border: FloatArray
    products: sparse.csr_array

    def part(self, part: slice) -> AnalysedRows:
        """Give some of the rows."""
        return AnalysedRows(self.inner[part], self.border[part], self.products[part])

    @property
    def parts(self) -> list[slice]:
        """Parts of the rows, so that what is computed per row and border column takes bounded memory."""
        if not self.border.shape[1]:
            return []
        return [slice(i, i + _ROWS_AT_ONCE) for i in range(0, self.border.shape[0], _ROWS_AT_ONCE)]


@dataclass(frozen=True)
class Analysis:
    """What is known of the factor before anything is factorised.

    Parameters
    ----------
    fill
        Numbers that the factor stores.
    work
        Cost of one factorisation with all variances, in flops of a dense matrix product; infinite if refused.
    memory
        Bytes of the factor, the entries of the inverse, the index arrays and the rows.
    pattern, rows
        What `factorise` needs; absent if refused.
    """

    fill: int
    work: float
    memory: float
    pattern: Pattern | None = field(default=None, repr=False)
    rows: AnalysedRows | None = field(default=None, repr=False)


def analyse(X: Any, max_work: float = MAX_WORK, max_memory: float = MAX_MEMORY) -> Analysis:
    """Order the columns of sparse rows and predict what a factor costs, from the pattern alone.

    Parameters
    ----------
    X
        The rows, sparse; they are kept for `factorise`.
    max_work
        Cost of one factorisation with all variances above which the analysis is given up, in flops of a dense matrix
        product. A thread does about 2e10 of them per second.
    max_memory
        Bytes above which it is given up.
    """
    X = sparse.csr_array(X, dtype=np.float64)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    columns, border = ColumnCounts.of(X).split
    inner = X[:, columns] if border.size else X
    counts = np.diff(inner.indptr).astype(np.float64)
    products = 0.5 * float(np.sum(counts * (counts + 1.0)))
    work = _row_work(products, inner.nnz, X.shape[0], border.size)
    memory = 28.0 * products + 16.0 * inner.nnz + 8.0 * X.shape[0] * border.size
    if work > max_work or memory > max_memory or _is_full(inner, max_work):
        return Analysis(0, np.inf, np.inf)
    graph = _graph(inner) + sparse.eye_array(inner.shape[1], dtype=bool, format="csr")
    found = _ordered(graph, columns, border, max_work - work, max_memory - memory)
    rows = None if found.pattern is None else _rows(inner, X[:, border].toarray(), found.pattern)
    return Analysis(found.fill, work + found.work, memory + found.memory, found.pattern, rows)


class ColumnCounts(NamedTuple):
    """Entries of every column, rows, and most entries of a row."""

    counts: FloatArray
    rows: int
    widest: int

    @classmethod
    def of(cls, X: sparse.csr_array) -> ColumnCounts:
        """Count in CSR rows."""
        counts = np.bincount(X.indices, minlength=X.shape[1]).astype(np.float64)
        return cls(counts, X.shape[0], int(np.max(np.diff(X.indptr), initial=0)))

    def plus(self, other: ColumnCounts) -> ColumnCounts:
        """Add other rows."""
        return ColumnCounts(self.counts + other.counts, self.rows + other.rows, max(self.widest, other.widest))

    @property
    def split(self) -> tuple[IntArray, IntArray]:
        """Inner columns, and the border: columns that meet almost all others, and are kept as dense ones."""
        dense = self.counts > 0.25 * self.rows
        return np.flatnonzero(~dense), np.flatnonzero(dense)


def analyse_blocks(blocks: Callable[[], Iterable[sparse.csr_array]], max_work: float = MAX_WORK) -> Analysis:
    """Do the same for rows that are not in memory, from two looks at them; the analysis then has no rows.

    Parameters
    ----------
    blocks
        Gives all rows, some at a time, as often as it is called.
    max_work
        As of `analyse`.
    """
    found = reduce(ColumnCounts.plus, (ColumnCounts.of(block) for block in blocks()))
    return analyse_meetings(found, lambda columns: (meetings(block, columns) for block in blocks()), max_work)


def analyse_meetings(
    found: ColumnCounts, met: Callable[[IntArray], Iterable[sparse.csr_array]], max_work: float = MAX_WORK
) -> Analysis:
    """Do the same for rows in several places: ``met`` gives which of some columns meet in the rows of each."""
    rows, (columns, border) = found.rows, found.split
    inner = max(found.widest - border.size, 0)  # entries of a row beside the border, at most
    work = _row_work(0.5 * rows * inner * (inner + 1.0), rows * inner, rows, border.size)
    if work > _MOST_ROW_WORK * max_work:
        return Analysis(0, np.inf, np.inf)
    graph = sparse.eye_array(columns.size, dtype=bool, format="csr")
    for more in met(columns):
        graph = graph + more
        if graph.nnz > _MOST_MEETINGS:
            return Analysis(0, np.inf, np.inf)
    ordered = _ordered(graph, columns, border, max_work, MAX_MEMORY)
    return replace(ordered, work=work + ordered.work)


def meetings(X: sparse.csr_array, columns: IntArray) -> sparse.csr_array:
    """Which of these columns meet in a row."""
    return _graph(X[:, columns])


def rows_on(pattern: Pattern, X: sparse.csr_array) -> AnalysedRows:
    """Analyse some rows whose columns meet on a known pattern."""
    inner = pattern.elimination.layout.order.size
    columns, border = np.sort(pattern.order[:inner]), pattern.order[inner:]
    return _rows(sparse.csr_array(X[:, columns]), X[:, border].toarray(), pattern)


def pattern_of(matrix: sparse.csc_array, border: NDArray[Any]) -> Pattern:
    """Order the columns of a matrix given by its upper triangle, with these columns as its border.

    Raises
    ------
    ValueError
        If its factor would need more than `analyse` allows. A fit never makes such a matrix; a file may hold one.
    """
    columns = np.setdiff1d(np.arange(matrix.shape[0]), border)
    met = sparse.csc_array((np.ones(matrix.nnz, dtype=bool), matrix.indices, matrix.indptr), shape=matrix.shape)
    upper = met[columns][:, columns].tocsr()
    graph = upper + upper.T.tocsr() + sparse.eye_array(columns.size, dtype=bool, format="csr")
    found = _ordered(graph, columns, border, MAX_WORK, MAX_MEMORY)
    if found.pattern is None:
        raise ValueError(
            f"the factor of a sparse precision matrix of {matrix.shape[0]} columns and {matrix.nnz} entries would need "
            f"more than {MAX_WORK:.0e} operations or {MAX_MEMORY / 1e9:g} GB, the most that a fit may need"
        )
    return found.pattern


def _is_full(inner: sparse.csr_array, max_work: float) -> bool:
    """Whether a dense matrix would cost too much and, by a sample of its columns, this one is almost dense or huge.

    Almost dense: 0.6 of the entries; where one of two crossed factors can be eliminated it is at most a half. Huge: the
    analysis would take several seconds.
    """
    size = inner.shape[1]
    if CORNER * float(size) ** 3 <= max_work:
        return False
    sample = np.random.default_rng(0).choice(size, 100)
    met = _pattern_only(inner)
    mean = (met[:, sample].T.tocsr() @ met).nnz / sample.size
    return bool(mean * size > min(0.6 * float(size) ** 2, 2e7))


def _pattern_only(rows: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array((np.ones(rows.nnz, dtype=bool), rows.indices, rows.indptr), shape=rows.shape)


def _graph(inner: sparse.csr_array) -> sparse.csr_array:
    """Which columns meet in a row."""
    met = _pattern_only(inner)
    return met.T.tocsr() @ met


def _row_work(products: float, entries: float, rows: int, border: int) -> float:
    """Flops of a dense matrix product, for factorisation and variances together, that take as long as all rows do.

    Rows cost by their products of two inner entries and, per column of the border, by their inner entries and number.
    """
    return 100.0 * (products + entries * border) + rows * border * (150.0 + 4.0 * border)


def _border_work(entries: float, corner: int, columns: int, border: int) -> float:
    """Count the flops of a border: one solve per column, products of the solutions, and a dense factor.

    ``entries`` are those of the factor beside its corner; a product with them takes 12 times as long as a dense one.
    """
    return border * (50.0 * entries + 2.0 * float(corner) ** 2 + 4.0 * float(columns) * border) + float(border) ** 3


def _ordered(
    graph: sparse.csr_array, columns: IntArray, border: IntArray, max_work: float, max_memory: float
) -> Analysis:
    """Analyse a matrix from which columns meet, without its rows."""
    ordering = dissect(graph, max_work)
    corner = ordering.corner.size
    fill, memory, entries = corner**2 + border.size * (columns.size + border.size), 32.0 * corner**2, 0
    for level in ordering.levels:
        k = level.counts[~heavy(level.counts, corner)].astype(np.float64)
        entries += level.counts.size + level.meets.size
        memory += 60.0 * (level.counts.size + level.meets.size) + 6.0 * float(np.sum(k * (k + 1.0)))
    memory += 24.0 * border.size * (columns.size + border.size)
    work = ordering.work + _border_work(entries, corner, columns.size, border.size)
    if work > max_work or memory > max_memory:
        return Analysis(fill + entries, np.inf, memory)
    return Analysis(fill + entries, work, memory, _pattern(ordering, graph, columns, border))


def _pattern(ordering: Ordering, graph: sparse.csr_array, columns: IntArray, border: IntArray) -> Pattern:
    elimination = plan(ordering)
    order = elimination.layout.order
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    a, b = place[np.repeat(np.arange(order.size), np.diff(graph.indptr))], place[graph.indices]
    upper = a < b
    left = np.concatenate([np.arange(order.size), a[upper]])
    right = np.concatenate([np.arange(order.size), b[upper]])
    at = elimination.layout.positions(left, right)
    return Pattern(np.concatenate([columns[order], border]), elimination, left, right, at)


def _rows(inner: sparse.csr_array, border: FloatArray, pattern: Pattern) -> AnalysedRows:
    layout = pattern.elimination.layout
    place = np.empty(layout.order.size, dtype=np.int32)
    place[layout.order] = np.arange(layout.order.size)
    turned = sparse.csr_array((inner.data, place[inner.indices], inner.indptr), shape=inner.shape, copy=True)
    turned.sort_indices()
    counts, partners = pairs_of_rows(turned.indptr)
    left, right = np.repeat(turned.indices.astype(np.int64), counts), turned.indices[partners].astype(np.int64)
    data = np.repeat(turned.data, counts) * turned.data[partners]
    data[left < right] *= 2.0
    entry = np.empty(layout.size, dtype=np.int32)
    entry[pattern.at] = np.arange(pattern.at.size)
    indptr = np.concatenate([[0], np.cumsum(counts)])[turned.indptr]
    where = entry[layout.positions(left, right)]
    products = sparse.csr_array((data, where, indptr), shape=(inner.shape[0], pattern.at.size))
    return AnalysedRows(turned, border, products)
