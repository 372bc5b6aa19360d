r"""Rows of a linear model, dense or CSR: how they are checked, ordered and cut into blocks, and where the two differ.

EP visits rows in an order that follows from their content alone (a hash of their entries, then their targets), so that
it does not depend on how the data were stored, sorted or repeated: dense, CSR and shuffled rows give the same blocks,
and rows that occur twice, or once with weight two, are one row of weight two. Entries count as shares of the largest
one, in single precision, so that the unit of all columns does not matter. Targets count by their order and not by their
bits, which change where they are normalised by sums over other rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity._types import FloatArray, IndexArray
from cavity.factors.columns import Columns

# Entries that are copied, hashed or compared at once: 128 kB, which stay in the cache. A worker of Dask gives larger
# temporary arrays back to the system at once, and they take three times as long.
ENTRIES_AT_ONCE = 1 << 14

_Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Distinct rows with their targets and weights, in visiting order.

    Parameters
    ----------
    X
        Matrix of the caller, dense or CSR; never copied as a whole. Or rows in files, which slices are taken of.
    order
        Row of ``X`` for each distinct row. A range where these are all rows as they are stored.
    targets
        Targets of shape ``(predictors, rows)``.
    weights
        Positive weights of shape ``(rows,)``.
    intercept
        Whether a constant column follows those of ``X``.
    offset
        Known parts of the linear predictors, of shape ``(rows,)``; None for zeros.
    columns
        Centres and units that the columns of ``X`` are brought to when rows are asked for; None leaves them.
    block_bytes
        Bytes of rows that may be asked for at once; None for rows in memory.
    place
        Distinct row of each row of ``X``, negative for rows of weight zero; None where rows are as they are stored.
    """

    X: Any
    order: Any
    targets: FloatArray
    weights: FloatArray
    intercept: bool
    offset: FloatArray | None = None
    columns: Columns | None = None
    block_bytes: int | None = None
    place: IndexArray | None = None

    @classmethod
    def arrange(
        cls,
        X: Any,
        targets: FloatArray,
        weights: FloatArray | None,
        intercept: bool,
        offset: FloatArray | None = None,
        columns: Columns | None = None,
    ) -> Rows:
        """Order checked rows by content and merge equal ones; rows of weight zero are left out."""
        w = np.ones(X.shape[0]) if weights is None else weights
        known = targets if offset is None else np.concatenate([targets, offset[None]])
        keys = row_keys(X, coarse=True, columns=columns)
        order = np.argsort(keys, kind="stable")
        if np.any(keys[order[1:]] == keys[order[:-1]]):
            coarse, keys = keys, row_keys(X)
            order = np.lexsort((*known, keys, coarse))
        order = order[w[order] > 0.0]
        # Where a row differs from the one before it: equal keys are looked at closely.
        is_first = np.ones(order.size, dtype=bool)
        alike = np.flatnonzero(keys[order[1:]] == keys[order[:-1]]) + 1
        length = alike.size if sparse.issparse(X) else max(1, ENTRIES_AT_ONCE // max(X.shape[1], 1))
        for i in range(0, alike.size, max(length, 1)):
            part = alike[i : i + length]
            here, before = order[part], order[part - 1]
            apart = X[here] != X[before]
            equal = np.asarray(apart.sum(axis=1)).ravel() == 0 if sparse.issparse(X) else ~np.any(apart, axis=1)
            is_first[part] = ~(equal & np.all(known[:, here] == known[:, before], axis=0))
        starts = np.flatnonzero(is_first)
        merged = np.add.reduceat(w[order], starts) if order.size else np.empty(0)
        place = np.full(X.shape[0], -1, dtype=np.intp)
        place[order] = np.cumsum(is_first) - 1
        order = order[starts]
        known = np.ascontiguousarray(known[:, order])
        own = None if offset is None else known[-1]
        return cls(X, order, known[: len(targets)], merged, intercept, own, columns, place=place)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of distinct rows, and of columns with the constant one."""
        return len(self.order), int(self.X.shape[1]) + int(self.intercept)

    @property
    def at_once(self) -> int:
        """Most rows that may be asked for at once: all if they are in memory."""
        if self.block_bytes is None:
            return max(len(self.order), 1)
        return max(1, self.block_bytes // (8 * self.shape[1]))

    @property
    def density(self) -> float:
        """Share of the entries of ``X`` that are not zero."""
        stored = self.X.nnz if hasattr(self.X, "nnz") else int(np.count_nonzero(self.X))
        return float(stored / max(self.X.shape[0] * self.X.shape[1], 1))

    def digest(self) -> str:
        """Digest of the content, which another data set does not share."""
        digest, X = hashlib.blake2b(digest_size=16), self.X
        parts = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        for array in (*parts, self.order, self.targets, self.weights, self.offset):
            if array is not None:
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def keys(self) -> _Keys:
        """Hash every row with its targets and its offset to two words of 64 bits, ``(rows, 2)``, by content.

        Equal rows have equal keys, wherever they are and however they are stored; others do not, but for a chance below
        n² / 2^129.
        """
        known = self.targets if self.offset is None else np.concatenate([self.targets, self.offset[None]])
        bits = (np.asarray(known, dtype=np.float64) + 0.0).view(np.uint64)
        keys = []
        for salt in (0, 1 << 40):
            places = _mixed(np.arange(1, len(known) + 1, dtype=np.uint64) + np.uint64(salt + (1 << 20)))
            beside = np.sum(_mixed(bits + places[:, None]), axis=0, dtype=np.uint64)
            keys.append(_mixed(row_keys(self.X, salt=salt)[self.order] + beside))
        return np.stack(keys, axis=1)

    def block(self, part: slice) -> FloatArray:
        """Rows of a part as a C-ordered array of double precision."""
        block = dense_rows(self.X, self.intercept, part if isinstance(self.order, range) else self.order[part])
        if self.columns is not None:
            self.columns.standardise(block)
        return block

    @property
    def csr_at_once(self) -> int:
        """Most rows that may be asked for at once as CSR: all if they are in memory."""
        if self.block_bytes is None:
            return self.at_once
        # 12 bytes per entry, and as much for products of entries.
        return max(1, int(self.block_bytes / (24 * (self.X.nnz / max(self.X.shape[0], 1) + 1))))

    def csr(self, part: slice) -> Any:
        """Rows of a part as CSR."""
        chosen = self.X[part if isinstance(self.order, range) else self.order[part]]
        chosen = sparse.csr_array(chosen).astype(np.float64)
        if self.columns is not None:
            chosen = self.columns.standardised(chosen)
        if not self.intercept:
            return chosen
        return sparse.hstack([chosen, np.ones((chosen.shape[0], 1))], format="csr")

    def matrix(self) -> Any:
        """All rows as CSR."""
        return self.csr(slice(None))


def row_keys(X: Any, *, coarse: bool = False, columns: Columns | None = None, salt: int = 0) -> _Keys:
    """Hash every row by the bits of its entries: equal rows have equal keys of 64 bits.

    A key is a sum over entries, to which zeros add nothing, so that dense and CSR rows agree.

    Parameters
    ----------
    X
        Rows, dense or CSR.
    coarse
        Whether entries count as shares of the largest one, in single precision; or with ``columns`` to a thousandth of
        their units, so that units and shifts of the columns do not matter.
    columns
        Centres and units of the columns.
    salt
        Another number gives other keys.
    """
    entries, (n, d) = X.data if sparse.issparse(X) else X, X.shape
    largest = max(float(np.max(entries, initial=0.0)), -float(np.min(entries, initial=0.0))) or 1.0 if coarse else 1.0
    salts = _mixed(np.arange(1 + salt, d + 1 + salt, dtype=np.uint64))

    def mixed(values: Any, place: Any) -> _Keys:
        if not coarse:
            bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.uint64)  # minus zero is zero
        elif columns is None:
            shares = np.divide(values, largest, dtype=np.float64).astype(np.float32)
            bits = np.asarray((shares + np.float32(0.0)).view(np.uint32), dtype=np.uint64)
        else:  # what rounding of units changes hardly ever matters
            steps = np.clip((values - columns.center[place]) / columns.unit[place], -1e12, 1e12) * 1024.0
            bits = np.rint(steps).astype(np.int64).view(np.uint64)
        return np.where(bits == 0, bits, _mixed(bits + salts[place]))

    if sparse.issparse(X):
        zeros = mixed(np.zeros(d), slice(None))  # what entries that are not stored add
        sums = np.concatenate([[np.uint64(0)], np.cumsum(mixed(X.data, X.indices) - zeros[X.indices])])
        return np.asarray(sums[X.indptr[1:]] - sums[X.indptr[:-1]] + np.sum(zeros))  # modulo 2^64, as the sums
    keys, length = np.zeros(n, dtype=np.uint64), max(1, ENTRIES_AT_ONCE // max(d, 1))
    for i in range(0, n, length):
        keys[i : i + length] = np.sum(mixed(X[i : i + length], slice(None)), axis=1, dtype=np.uint64)
    return keys


def _mixed(keys: Any) -> _Keys:
    """Spread the information of every bit over all bits, by splitmix64 (Steele, Lea and Flood, 2014)."""
    k = np.asarray(keys) * np.uint64(0x9E3779B97F4A7C15)
    k ^= k >> np.uint64(30)
    k *= np.uint64(0xBF58476D1CE4E5B9)
    k ^= k >> np.uint64(27)
    k *= np.uint64(0x94D049BB133111EB)
    k ^= k >> np.uint64(31)
    return k


def squared(X: Any) -> Any:
    """Entries squared."""
    return X.power(2) if sparse.issparse(X) else np.square(X)


def dense_rows(X: Any, intercept: bool, order: Any = slice(None)) -> FloatArray:
    """Chosen rows as a C-ordered array of double precision, with a constant column at the end if wanted."""
    d = X.shape[1]
    if isinstance(order, slice) or sparse.issparse(X):
        X = X[order]
        block = np.empty((X.shape[0], d + int(intercept)))
        if sparse.issparse(X):
            block[:, :d] = 0.0
            block[row_of_entries(X), X.indices] = X.data
        else:
            block[:, :d] = X
    else:
        block, length = np.empty((len(order), d + int(intercept))), max(1, ENTRIES_AT_ONCE // max(d, 1))
        for i in range(0, len(order), length):
            block[i : i + length, :d] = X[order[i : i + length]]
    block[:, d:] = 1.0
    return block


def dense_blocks(X: Any, length: int) -> Iterator[tuple[slice, FloatArray]]:
    """Blocks of so many rows as arrays of double precision, and which rows they are."""
    for start in range(0, X.shape[0], length):
        rows = slice(start, start + length)
        yield rows, dense_rows(X, False, rows)


def row_of_entries(X: Any) -> IndexArray:
    """Row of every stored entry of a CSR matrix."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))


def touched(X: Any) -> tuple[Any, IndexArray | None]:
    """Reduce checked rows to the columns with a non-zero, in double precision, and name these; None for all."""
    if sparse.issparse(X):
        nonzero = X.data != 0.0
        columns, inverse = np.unique(X.indices[nonzero], return_inverse=True)
        counts = np.bincount(row_of_entries(X)[nonzero], minlength=X.shape[0])
        data = X.data[nonzero].astype(np.float64)
        reduced = (data, inverse, np.concatenate([[0], np.cumsum(counts)]))
        matrix = sparse.csr_array(reduced, shape=(X.shape[0], columns.size))
        return matrix, None if columns.size == X.shape[1] else columns.astype(np.intp)
    columns = np.flatnonzero(np.any(X != 0.0, axis=0))
    if columns.size == X.shape[1]:
        return np.asarray(X, dtype=np.float64), None
    return np.asarray(X[:, columns], dtype=np.float64), columns


def widened(X: Any, coordinates: IndexArray | None, dim: int) -> Any:
    """Put the columns back among ``dim``: the inverse of `touched`."""
    if coordinates is None:
        return X
    if sparse.issparse(X):
        return sparse.csr_array((X.data, coordinates[X.indices], X.indptr), shape=(X.shape[0], dim))
    wide = np.zeros((X.shape[0], dim))
    wide[:, coordinates] = X
    return wide


def sum_shifted(X: Any, term: Callable[[Any, Any], FloatArray], *steps: FloatArray) -> list[FloatArray]:
    """Sum ``term(row, entry * step)`` over the entries of every column, for each of the steps."""
    if not sparse.issparse(X):
        every_row = np.arange(X.shape[0])[:, None]
        return [np.sum(term(every_row, X * step), axis=0) for step in steps]
    row_of, d = row_of_entries(X), X.shape[1]
    terms = (term(row_of, X.data * step[X.indices]) for step in steps)
    return [np.bincount(X.indices, weights=values, minlength=d).astype(np.float64) for values in terms]


def checked_rows(X: Any) -> Any:
    """Check rows, and bring them to a float array or canonical CSR; a copy only where needed."""
    if np.iscomplexobj(X):
        raise ValueError(f"X must hold real numbers, got {X.dtype if hasattr(X, 'dtype') else 'complex'}")
    X = canonical(X) if sparse.issparse(X) else np.asarray(X)
    if not (np.issubdtype(X.dtype, np.number) or X.dtype == bool):
        raise ValueError(f"X must hold real numbers, got {X.dtype}")
    X = X if X.dtype in (np.float64, np.float32) else X.astype(np.float64)
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"X must be a matrix with at least one column, got shape {X.shape}")
    entries = X.data if sparse.issparse(X) else X
    length = max(1, 1_000_000 // X.shape[1])
    for start in range(0, len(entries), length):
        block = entries[start : start + length]
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.sum(block)  # needs no memory
        if not np.isfinite(total) and not np.all(np.isfinite(block)):
            first = start + int(np.nonzero(~np.isfinite(block))[0][0])
            row = np.searchsorted(X.indptr, first, side="right") - 1 if sparse.issparse(X) else first
            raise ValueError(f"X must be finite, but row {row} has NaN or infinity; drop or fill these entries")
    return X


def canonical(X: Any) -> Any:
    """CSR with sorted indices, no duplicates and no stored zeros; a copy only where something has to change."""
    check_csr(X)
    if X.format != "csr":
        X = X.tocsr()
        check_csr(X)
    X = sparse.csr_array(X)
    if not X.has_canonical_format or np.count_nonzero(X.data) < X.nnz:
        X = X.copy()
        X.sum_duplicates()
        X.eliminate_zeros()
    return X


def check_csr(X: Any) -> None:
    """Check that every index of a sparse matrix, CSR or of another kind, stays within it; copies nothing.

    SciPy looks at the indices only when it builds a matrix, and its compiled code, as ours, trusts them afterwards.
    So this comes before any operation on a matrix that a user gave. One pass over the indices.
    """
    if len(X.shape) != 2 or min(X.shape) < 0:
        raise ValueError(f"X must be a matrix with at least one column, got shape {X.shape}")
    if X.format in ("csr", "csc", "bsr"):
        rows, columns = X.shape if X.format != "csc" else X.shape[::-1]
        high, wide = X.blocksize if X.format == "bsr" else (1, 1)
        check_compressed(X.data, X.indices, X.indptr, rows // high, columns // wide)
    elif X.format == "coo":
        for places, length in zip(X.coords, X.shape, strict=True):
            if places.shape != (X.data.size,):
                raise ValueError(f"X is malformed: {X.data.size} entries, but {places.size} indices of them")
            _check_range("indices", places, length)


def check_compressed(data: NDArray[Any], indices: NDArray[Any], starts: NDArray[Any], rows: int, columns: int) -> None:
    """Check the three arrays of a CSR matrix of so many rows and columns."""
    if starts.shape != (rows + 1,):
        raise ValueError(f"X is malformed: {rows} rows need {rows + 1} numbers in indptr, got {starts.size}")
    if indices.ndim != 1 or len(data) != indices.size:
        raise ValueError(f"X is malformed: {len(data)} entries in data, but {indices.size} in indices")
    _check_range("indptr", starts, indices.size + 1)
    if starts[0] != 0 or np.any(starts[1:] < starts[:-1]):
        raise ValueError("X is malformed: indptr must begin at 0 and never decrease")
    _check_range("indices", indices[: starts[-1]], columns)


def _check_range(name: str, numbers: NDArray[Any], end: int) -> None:
    """Check that whole numbers lie from 0 to below the end."""
    if numbers.dtype.kind != "i":
        raise ValueError(f"X is malformed: {name} must be signed whole numbers, got {numbers.dtype}")
    # Read without their sign negative numbers are large: one look for both ends.
    if numbers.size and int(np.max(numbers.view(numbers.dtype.str.replace("i", "u")))) >= end:
        raise ValueError(
            f"X is malformed: {name} must lie from 0 to {end - 1}, got {np.min(numbers)} to {np.max(numbers)}; build "
            "the matrix again from its entries"
        )
