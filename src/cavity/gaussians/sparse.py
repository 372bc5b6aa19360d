r"""Gaussians with a sparse precision matrix :math:`P = \mathrm{diag}(p) + X^\top \mathrm{diag}(t) X`.

Columns with entries in many rows (an intercept, numbers beside one-hot columns) meet all others. They form a border:
with :math:`P = \begin{pmatrix} S & Q \\ Q^\top & D \end{pmatrix}`, S sparse, :math:`G = S^{-1} Q` and the Schur
complement :math:`H = D - Q^\top G`, the variance of a predictor is a sum of two terms that are not negative,

.. math:: x_s^\top S^{-1} x_s + u^\top H^{-1} u, \qquad u = x_d - G^\top x_s.

`analyse` orders the columns and predicts the cost of a factor from the pattern of the rows; `factorise` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, lapack

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.elimination import (
    CORNER_WORK,
    Elimination,
    Ordering,
    SparseCholesky,
    dissect,
    eliminate,
    heavy,
    pairs_of,
    plan,
)

# Of rows that are read from a file: their work may be so many times that of a factorisation, since it does not need
# memory; and pairs of columns that meet, at most, of which each takes 9 bytes.
_MOST_ROW_WORK, _MOST_MEETINGS = 50.0, 20_000_000

# What a factor may need: flops of a dense matrix product for one factorisation with all variances, of which a thread
# does about 2e10 per second, and bytes.
MAX_WORK, MAX_MEMORY = 2e11, 4e9

_PRODUCTS_AT_ONCE = 500_000  # of entries of rows: temporary arrays of 4 MB each stay in the cache
_ENTRIES_AT_ONCE = 10_000_000  # of dense rows: bounds them to 80 MB
_BORDER_ROWS_AT_ONCE = 131_072  # bounds what is computed per row and border column to 1 MB per column


class Pattern(NamedTuple):
    """The order of all columns (border last), and the entries of the inner part: columns and position.

    Entries begin with the diagonal; ``left`` <= ``right`` are counted in the order of elimination.
    """

    order: IndexArray
    elimination: Elimination
    left: IndexArray
    right: IndexArray
    at: IndexArray

    @property
    def numbers(self) -> NDArray[np.int32]:
        """Which entry lies at a position."""
        found = np.empty(self.elimination.layout.size, dtype=np.int32)
        found[self.at] = np.arange(self.at.size)
        return found


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
        return AnalysedRows(rows_of(self.inner, part), self.border[part], rows_of(self.products, part))

    @property
    def parts(self) -> list[slice]:
        """Parts of the rows, so that what is computed per row and border column takes bounded memory."""
        if not self.border.shape[1]:
            return []
        return [slice(i, i + _BORDER_ROWS_AT_ONCE) for i in range(0, self.border.shape[0], _BORDER_ROWS_AT_ONCE)]


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


def analyse(X: Any, max_work: float = MAX_WORK, max_memory: float = MAX_MEMORY, coupled: Any = None) -> Analysis:
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
    coupled
        Further pairs of columns that the matrix couples, as a sparse matrix; None for none.
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
    memory = 12.0 * products + 16.0 * inner.nnz + 8.0 * X.shape[0] * border.size
    if work > max_work or memory > max_memory or _is_full(inner, max_work):
        return Analysis(0, np.inf, np.inf)
    graph = meetings(inner, slice(None)) + sparse.eye_array(inner.shape[1], dtype=bool, format="csr")
    if coupled is not None:
        among = _pattern_only(sparse.csr_array(coupled)[columns][:, columns])
        graph = graph + among + among.T.tocsr()
    found = _ordered(graph, columns, border, max_work - work, max_memory - memory)
    rows = None if found.pattern is None else _analysed(inner, X[:, border].toarray(), found.pattern)
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
    def split(self) -> tuple[IndexArray, IndexArray]:
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
    found: ColumnCounts, met: Callable[[IndexArray], Iterable[sparse.csr_array]], max_work: float = MAX_WORK
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


def meetings(X: sparse.csr_array, columns: IndexArray | slice) -> sparse.csr_array:
    """Which of these columns meet in a row."""
    met = _pattern_only(X[:, columns])
    return met.T.tocsr() @ met


def _pattern_only(rows: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array((np.ones(rows.nnz, dtype=bool), rows.indices, rows.indptr), shape=rows.shape)


def rows_on(pattern: Pattern, X: sparse.csr_array) -> AnalysedRows:
    """Analyse some rows whose columns meet on a known pattern."""
    inner = pattern.elimination.layout.order.size
    columns, border = np.sort(pattern.order[:inner]), pattern.order[inner:]
    return _analysed(sparse.csr_array(X[:, columns]), X[:, border].toarray(), pattern)


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
    if CORNER_WORK * float(size) ** 3 <= max_work:
        return False
    sample = np.random.default_rng(0).choice(size, 100)
    met = _pattern_only(inner)
    mean = (met[:, sample].T.tocsr() @ met).nnz / sample.size
    return bool(mean * size > min(0.6 * float(size) ** 2, 2e7))


def _row_work(products: float, entries: float, rows: int, border: int) -> float:
    """Flops of a dense matrix product, for factorisation and variances together, that take as long as all rows do.

    Rows cost by their products of two inner entries and, per column of the border, by their inner entries and number.
    """
    return 100.0 * (products + entries * border) + rows * border * (150.0 + 4.0 * border)


def _ordered(
    graph: sparse.csr_array, columns: IndexArray, border: IndexArray, max_work: float, max_memory: float
) -> Analysis:
    """Analyse a matrix from which columns meet, without its rows."""
    ordering = dissect(graph, max_work)
    corner = ordering.corner.size
    fill, memory = corner**2, 32.0 * corner**2
    for level in ordering.levels:
        entries = int(np.sum(level.sizes * (level.sizes + level.counts)))
        fill, memory = fill + entries, memory + 40.0 * entries
        kept = ~heavy(level.sizes, level.counts, corner)
        memory += 4.0 * float(np.sum(pairs_of(level.counts[kept]))) + 30.0 * level.meets.size
    entries = fill - corner**2
    fill += border.size * (columns.size + border.size)
    memory += 24.0 * border.size * (columns.size + border.size)
    # A border takes one solve per column, products of the solutions, and a dense factor. A product with entries beside
    # the corner takes 12 times as long as a dense one.
    per_column = 50.0 * entries + 2.0 * float(corner) ** 2 + 4.0 * float(columns.size) * border.size
    work = ordering.work + (border.size * per_column + float(border.size) ** 3)
    if work > max_work or memory > max_memory:
        return Analysis(fill, np.inf, memory)
    return Analysis(fill, work, memory, _pattern(ordering, graph, columns, border))


def _pattern(ordering: Ordering, graph: sparse.csr_array, columns: IndexArray, border: IndexArray) -> Pattern:
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


def _analysed(inner: sparse.csr_array, border: FloatArray, pattern: Pattern) -> AnalysedRows:
    layout, numbers = pattern.elimination.layout, pattern.numbers
    place = np.empty(layout.order.size, dtype=np.int32)
    place[layout.order] = np.arange(layout.order.size)
    turned = sparse.csr_array((inner.data, place[inner.indices], inner.indptr), shape=inner.shape, copy=True)
    turned.sort_indices()
    lengths = np.diff(turned.indptr).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths * (lengths + 1) // 2)])
    data, where = np.empty(ends[-1]), np.empty(ends[-1], dtype=np.int32)
    for length in np.unique(lengths[lengths > 0]):
        alike, (first, second) = np.flatnonzero(lengths == length), np.triu_indices(length)
        twice = np.where(first < second, 2.0, 1.0)
        for some in np.array_split(alike, -(-alike.size * first.size // _PRODUCTS_AT_ONCE)):
            entries = turned.indptr[some, None] + np.arange(length)
            columns, values = turned.indices[entries].astype(np.int64), turned.data[entries]
            left, right = (np.take(columns, each, axis=1).ravel() for each in (first, second))
            products = (ends[some, None] + np.arange(first.size)).ravel()
            data[products] = (np.take(values, first, axis=1) * np.take(values, second, axis=1) * twice).ravel()
            where[products] = numbers[layout.positions(left, right)]
    products = sparse.csr_array((data, where, ends.astype(np.int32)), shape=(inner.shape[0], pattern.at.size))
    return AnalysedRows(turned, border, products)


def rows_of(matrix: sparse.csr_array, part: slice) -> sparse.csr_array:
    """Give some rows, without copying their entries."""
    start, stop, _ = part.indices(matrix.shape[0])
    own = slice(*matrix.indptr[[start, stop]])
    indptr = matrix.indptr[start : stop + 1] - matrix.indptr[start]
    return sparse.csr_array((matrix.data[own], matrix.indices[own], indptr), shape=(stop - start, matrix.shape[1]))


class PatternSums(NamedTuple):
    r"""The matrix :math:`X^\top \mathrm{diag}(t) X` on a pattern: inner entries, coupling with the border, border."""

    entries: FloatArray
    coupling: FloatArray
    border: FloatArray

    @classmethod
    def of(cls, rows: AnalysedRows, weights: FloatArray) -> PatternSums:
        """Sum over rows of these weights."""
        inner = rows.inner.shape[1]
        entries = np.asarray(rows.products.T @ weights)
        entries[inner:] *= 0.5  # products of two columns count twice in a row's variance
        coupling, border = np.zeros((inner, rows.border.shape[1])), np.zeros((rows.border.shape[1],) * 2)
        for part in rows.parts:
            weighted = weights[part, None] * rows.border[part]
            coupling += rows_of(rows.inner, part).T @ weighted
            border += rows.border[part].T @ weighted
        return cls(entries, coupling, border)

    @classmethod
    def nothing(cls, pattern: Pattern) -> PatternSums:
        """Sum over no rows."""
        inner = pattern.elimination.layout.order.size
        border = pattern.order.size - inner
        return cls(np.zeros(pattern.at.size), np.zeros((inner, border)), np.zeros((border, border)))

    @property
    def flat(self) -> FloatArray:
        """All numbers in one row."""
        return np.concatenate([part.ravel() for part in self])

    def like(self, flat: FloatArray) -> PatternSums:
        """Give such numbers the form of these."""
        cuts = np.cumsum([part.size for part in self])[:-1]
        return PatternSums(*(new.reshape(old.shape) for new, old in zip(np.split(flat, cuts), self, strict=True)))

    def plus(self, other: PatternSums) -> PatternSums:
        """Add sums over other rows."""
        return PatternSums(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> PatternSums:
        """Multiply all by a factor."""
        return PatternSums(*(factor * part for part in self))


class Places(NamedTuple):
    """Where pairs of columns lie in sums on a pattern; columns are counted in the order of elimination.

    ``entries`` are places among the entries of the pattern, of the pairs ``inner`` of two inner columns.
    """

    left: IndexArray
    right: IndexArray
    inner: IndexArray
    entries: IndexArray

    @classmethod
    def of(cls, pattern: Pattern, left: IndexArray, right: IndexArray) -> Places:
        """Find pairs of columns, each once."""
        place = np.empty(pattern.order.size, dtype=np.int64)
        place[pattern.order] = np.arange(pattern.order.size)
        a, b = place[left], place[right]
        a, b = np.minimum(a, b), np.maximum(a, b)
        layout = pattern.elimination.layout
        inner = np.flatnonzero(b < layout.order.size)
        return cls(a, b, inner, pattern.numbers[layout.positions(a[inner], b[inner])].astype(np.intp))

    def add(self, sums: PatternSums, values: FloatArray) -> PatternSums:
        """Add to the entries of these pairs."""
        entries, coupling, border = (part.copy() for part in sums)
        size = len(coupling)
        entries[self.entries] += values[self.inner]
        outer = np.flatnonzero(self.right >= size)
        a, b, more = self.left[outer], self.right[outer] - size, values[outer]
        mixed = a < size
        coupling[a[mixed], b[mixed]] += more[mixed]
        a, b, more = a[~mixed] - size, b[~mixed], more[~mixed]
        border[a, b] += more
        border[b, a] += more
        return PatternSums(entries, coupling, border)


@dataclass(frozen=True, eq=False, repr=False)
class SparsePrecision:
    r"""A factorised sparse precision matrix P, and everything of :math:`P^{-1}` that needs no dense matrix.

    Made by `factorise`, or by `of` from the matrix itself.

    Parameters
    ----------
    pattern
        The order of the columns and the places of the entries.
    entries, coupling, border
        The matrix itself: its entries on the pattern, between inner columns and border, and of the border.
    factor, solved, root
        Its factor: of the inner part, what follows from it for the border, and the border's Cholesky factor.
    rows
        The analysed rows, if it was made from such.
    """

    pattern: Pattern
    entries: FloatArray
    coupling: FloatArray
    border: FloatArray
    factor: SparseCholesky
    solved: FloatArray
    root: FloatArray
    rows: AnalysedRows | None = None

    @classmethod
    def of(cls, matrix: sparse.csc_array, border: NDArray[Any], pattern: Pattern | None = None) -> SparsePrecision:
        """Factorise a matrix.

        Parameters
        ----------
        matrix
            Its upper triangle, in CSC form.
        border
            Columns that meet many others, and are eliminated last, as a dense matrix.
        pattern
            Pattern of the entries, if one with these entries was made before.
        """
        pattern = pattern_of(matrix, border) if pattern is None else pattern
        entries = sparse.triu(matrix, 1, format="csc").tocoo()
        entries.sum_duplicates()
        places = Places.of(pattern, *entries.coords)
        return factorise_sums(pattern, places.add(PatternSums.nothing(pattern), entries.data), matrix.diagonal())

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self.pattern.order.size)

    @cached_property
    def log_det(self) -> float:
        """Logarithm of the determinant of P."""
        return self.factor.log_det + 2.0 * float(np.sum(np.log(np.diagonal(self.root))))

    @property
    def matrix(self) -> sparse.csc_array:
        """Upper triangle of P, in the order of the columns of X."""
        inner, order = self.inner, self.pattern.order
        i, j = np.meshgrid(np.arange(inner), np.arange(inner, self.dim), indexing="ij")
        k, m = np.triu_indices(self.dim - inner)
        left = order[np.concatenate([self.pattern.left, i.ravel(), k + inner])]
        right = order[np.concatenate([self.pattern.right, j.ravel(), m + inner])]
        data = np.concatenate([self.entries, self.coupling.ravel(), self.border[k, m]])
        where = (np.minimum(left, right), np.maximum(left, right))
        return sparse.csc_array((data, where), shape=(self.dim, self.dim))

    @property
    def inner(self) -> int:
        """Number of columns that do not belong to the border."""
        return int(self.coupling.shape[0])

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve a system of equations with this matrix.

        Parameters
        ----------
        right
            One right-hand side ``(dim,)``, or several as the columns of a matrix.
        """
        right = np.asarray(right, dtype=np.float64)[self.pattern.order]
        head, tail = right[: self.inner], right[self.inner :]
        end = self._half.T @ (self._half @ (tail - self.solved.T @ head))
        return self._restored(np.concatenate([self.factor.solve(head) - self.solved @ end, end]))

    def variances(self) -> FloatArray:
        """Diagonal of the inverse."""
        inner = self.factor.inverse[self.pattern.at[: self.inner]] + _squares(self.solved @ self._half.T)
        return self._restored(np.concatenate([inner, _squares(self._half.T)]))

    def covariances(self, places: Places) -> FloatArray:
        """Entries of the inverse, of pairs of columns that lie in the pattern.

        Parameters
        ----------
        places
            Where the entries of these pairs are.
        """
        half = np.vstack([-self.solved @ self._half.T, self._half.T])
        found = np.einsum("ij,ij->i", half[places.left], half[places.right])
        found[places.inner] += self.factor.inverse[self.pattern.at[places.entries]]
        return np.asarray(found)

    def row_variances(self, rows: AnalysedRows | None = None) -> FloatArray:
        """Variance of the predictor of every row of the analysed X, from the entries of the inverse on the pattern.

        Parameters
        ----------
        rows
            Other rows, analysed on the same pattern.
        """
        rows = self.rows if rows is None else rows
        if rows is None:
            raise ValueError("row_variances needs a factor made by factorise; use predictor_variance(rows)")
        result = np.asarray(rows.products @ self.factor.inverse[self.pattern.at])
        for part in rows.parts:
            rest = rows.border[part] - rows_of(rows.inner, part) @ self.solved
            result[part] += _squares(rest @ self._half.T)
        return result

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variances of predictors of any rows; arguments as in `FactorialGaussian.predictor_variance`."""
        result, is_sparse = np.empty(rows.shape[0]), sparse.issparse(rows)
        size = max(1, _ENTRIES_AT_ONCE // ((self.factor.elimination.layout.corner if is_sparse else self.dim) + 100))
        for start in range(0, result.size, size):
            part = rows[start : start + size]
            if is_sparse:
                ordered = sparse.csr_array(part, dtype=np.float64)[:, self.pattern.order]
                inner, border = ordered[:, : self.inner], ordered[:, self.inner :].toarray()
                found = self.factor.squares(inner) + _squares((border - inner @ self.solved) @ self._half.T)
            else:
                part = np.asarray(part, dtype=np.float64)
                found = np.einsum("ij,ji->i", part, self.solve(part.T))
            result[start : start + size] = found
        return result

    def draws(self, noise: FloatArray) -> FloatArray:
        """Draw with mean zero and the inverse as covariance; arguments as in `FactorialGaussian.draws`."""
        noise = np.asarray(noise, dtype=np.float64).T
        end = self._half.T @ noise[self.inner :]
        return self._restored(np.concatenate([self.factor.draw(noise[: self.inner]) - self.solved @ end, end])).T

    @cached_property
    def _half(self) -> FloatArray:
        """Inverse of the border's Cholesky factor."""
        return np.asarray(lapack.dtrtri(self.root, lower=1)[0] if self.root.size else self.root)

    def _restored(self, x: FloatArray) -> FloatArray:
        """Put into the order of the columns of X."""
        result = np.empty_like(x)
        result[self.pattern.order] = x
        return result


def factorise(analysis: Analysis, weights: FloatArray, precisions: FloatArray) -> SparsePrecision:
    r"""Factorise :math:`\mathrm{diag}(p) + X^\top \mathrm{diag}(t) X` for the analysed X.

    Parameters
    ----------
    analysis
        What `analyse` found.
    weights
        One weight t per row, of any sign.
    precisions
        One number p per column.

    Raises
    ------
    scipy.linalg.LinAlgError
        If the matrix is not positive definite.
    ValueError
        If the analysis was refused, or the shapes do not match it.
    """
    rows, pattern = analysis.rows, analysis.pattern
    if rows is None or pattern is None:
        raise ValueError("the factor of this X would be too large; use another form of covariance")
    shape = (rows.inner.shape[0], pattern.order.size)
    if (np.shape(weights), np.shape(precisions)) != ((shape[0],), (shape[1],)):
        came = f"got arrays of shapes {np.shape(weights)} and {np.shape(precisions)}"
        raise ValueError(
            f"X has {shape[0]} rows and {shape[1]} columns: one weight per row and one precision per column; {came}"
        )
    sums = PatternSums.of(rows, np.asarray(weights, dtype=np.float64))
    return factorise_sums(pattern, sums, np.asarray(precisions, dtype=np.float64), rows)


def factorise_sums(
    pattern: Pattern, sums: PatternSums, precisions: FloatArray, rows: AnalysedRows | None = None
) -> SparsePrecision:
    """Factorise sums over rows plus one number per column on the diagonal; `LinAlgError` if not positive definite."""
    inner, diagonal = sums.coupling.shape[0], precisions[pattern.order]
    entries, border = sums.entries.copy(), sums.border + np.diag(diagonal[inner:])
    entries[:inner] += diagonal[:inner]
    return _factorised(pattern, entries, sums.coupling, border, rows)


def _factorised(
    pattern: Pattern, entries: FloatArray, coupling: FloatArray, border: FloatArray, rows: AnalysedRows | None
) -> SparsePrecision:
    flat = np.zeros(pattern.elimination.layout.size + 1)
    flat[pattern.at] = entries
    factor = eliminate(pattern.elimination, flat)
    solved = factor.solve(coupling)
    rest = border - coupling.T @ solved
    root, failed = lapack.dpotrf(rest, lower=1) if rest.size else (rest, 0)
    if failed or not np.all(np.isfinite(np.diagonal(root))):
        raise LinAlgError("the precision matrix is not positive definite")
    return SparsePrecision(pattern, entries, coupling, border, factor, solved, root, rows)


def _squares(x: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("ij,ij->i", x, x))


@dataclass(frozen=True, eq=False)
class SparseGaussian:
    """A Gaussian with a mean, a sparse precision matrix and a mass, always proper.

    Parameters
    ----------
    mean
        The mean, of shape ``(dim,)``.
    factor
        The factorised precision matrix.
    log_mass
        Logarithm of the integral.

    Examples
    --------
    >>> from cavity.gaussians import analyse
    >>> factor = factorise(analyse(sparse.eye_array(2, format="csr")), np.ones(2), np.ones(2))
    >>> SparseGaussian(np.array([1.0, -2.0]), factor, 0.0).variance
    array([0.5, 0.5])
    """

    mean: FloatArray
    factor: SparsePrecision
    log_mass: float

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.mean.size)

    @property
    def is_proper(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.isfinite(np.sum(self.mean) + self.factor.log_det + self.log_mass))

    @cached_property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        return self.factor.variances()

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density, for up to 5000 coordinates."""
        if self.dim > WIDEST_COVARIANCE:
            need = f"a covariance matrix is given for up to {WIDEST_COVARIANCE} columns, got {self.dim}"
            raise ValueError(f"{need}; use std, predictor_variance(rows) or draws(noise)")
        return self.factor.solve(np.eye(self.dim))

    def covariance_with(self, weights: FloatArray) -> FloatArray:
        """Covariances of all coordinates with a combination; arguments as in `FactorialGaussian.covariance_with`."""
        return self.factor.solve(weights)

    def draws(self, noise: FloatArray) -> FloatArray:
        """Draw from the normalised density; arguments as in `SparsePrecision.draws`."""
        return self.mean + self.factor.draws(noise)

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row; arguments as in `SparsePrecision.predictor_variance`."""
        return self.factor.predictor_variance(rows)
