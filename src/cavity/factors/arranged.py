r"""Rows of a linear model in the order in which EP visits them, dense blocks cut from any storage.

The order follows from the content of the rows alone (a hash of their entries, then their targets), so that it does not
depend on how the data were stored, sorted or repeated: dense, CSR and shuffled rows give the same blocks, and rows that
occur twice, or once with weight two, are one row of weight two. Entries count as shares of the largest one, in single
precision, so that the unit of all columns does not matter. Targets count by their order and not by their bits, which
change where they are normalised by sums over other rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity._types import FloatArray, IndexArray
from cavity.factors.columns import Columns
from cavity.factors.rows import ENTRIES_AT_ONCE, dense_rows

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
    """

    X: Any
    order: Any
    targets: FloatArray
    weights: FloatArray
    intercept: bool
    offset: FloatArray | None = None
    columns: Columns | None = None
    block_bytes: int | None = None

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
        if offset is not None:  # rows that differ in it are different rows, as with targets
            rows = cls.arrange(X, np.concatenate([targets, offset[None]]), weights, intercept, columns=columns)
            return replace(rows, targets=rows.targets[:-1], offset=rows.targets[-1])
        keys = _keys_of(X, _shares, columns=columns)
        order = np.argsort(keys, kind="stable")
        if np.any(keys[order[1:]] == keys[order[:-1]]):
            shares, keys = keys, _keys_of(X, _bits)
            order = np.lexsort((*targets, keys, shares))
        order = order[w[order] > 0.0]
        starts = _starts_of_groups(X, targets, keys, order)
        merged = np.add.reduceat(w[order], starts) if order.size else np.empty(0)
        order = order[starts]
        return cls(X, order, np.ascontiguousarray(targets[:, order]), merged, intercept, None, columns)

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
        keys = np.empty((self.order.size, 2), dtype=np.uint64)
        for k, salt in enumerate((0, 1 << 40)):
            rows = _keys_of(self.X, _bits, salt)[self.order]
            places = _mixed(np.arange(1, len(known) + 1, dtype=np.uint64) + np.uint64(salt + (1 << 20)))
            rows += np.sum(_mixed(_bits(known, 1.0) + places[:, None]), axis=0, dtype=np.uint64)
            keys[:, k] = _mixed(rows)
        return keys

    def block(self, part: slice) -> FloatArray:
        """Rows of a part as a C-ordered array of double precision."""
        X, places = self._stored(part)
        block = dense_rows(X, self.intercept, places)
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
        X, places = self._stored(part)
        chosen = sparse.csr_array(X[places]).astype(np.float64)
        if self.columns is not None:
            chosen = self.columns.standardised(chosen)
        if not self.intercept:
            return chosen
        return sparse.hstack([chosen, np.ones((chosen.shape[0], 1))], format="csr")

    def matrix(self) -> Any:
        """All rows as CSR."""
        return self.csr(slice(None))

    def _stored(self, part: slice) -> tuple[Any, Any]:
        """Give a matrix that has the rows of a part, and their places in it."""
        return (self.X[part], slice(None)) if isinstance(self.order, range) else (self.X, self.order[part])


def row_keys(X: FloatArray) -> _Keys:
    """Hash rows by the bits of their entries: equal rows have equal keys of 64 bits."""
    return _keys_of(X, _bits)


def _bits(values: Any, largest: float) -> _Keys:
    """Bit patterns of numbers as doubles, where minus zero is zero."""
    return (np.asarray(values, dtype=np.float64) + 0.0).view(np.uint64)


def _shares(values: Any, largest: float) -> _Keys:
    """Bit patterns of shares of the largest number, in single precision."""
    shares = np.divide(values, largest, dtype=np.float64).astype(np.float32)
    return np.asarray((shares + np.float32(0.0)).view(np.uint32), dtype=np.uint64)


def _mixed(keys: Any) -> _Keys:
    """Spread the information of every bit over all bits, by splitmix64 (Steele, Lea and Flood, 2014)."""
    k = np.asarray(keys) * np.uint64(0x9E3779B97F4A7C15)
    k ^= k >> np.uint64(30)
    k *= np.uint64(0xBF58476D1CE4E5B9)
    k ^= k >> np.uint64(27)
    k *= np.uint64(0x94D049BB133111EB)
    k ^= k >> np.uint64(31)
    return k


def _keys_of(X: Any, bits_of: Callable[[Any, float], _Keys], salt: int = 0, columns: Columns | None = None) -> _Keys:
    """Hash every row: a sum over its entries, to which zeros add nothing, so that dense and CSR rows agree.

    With ``columns`` entries count in their units, so that units and shifts of the columns do not matter.
    """
    entries, (n, d) = X.data if sparse.issparse(X) else X, X.shape
    largest = max(float(np.max(entries, initial=0.0)), -float(np.min(entries, initial=0.0))) or 1.0
    center, unit = (np.zeros(d), np.full(d, largest)) if columns is None else columns
    salts = _mixed(np.arange(1 + salt, d + 1 + salt, dtype=np.uint64))

    def mixed(values: Any, place: Any) -> _Keys:
        if columns is None:
            bits = bits_of(values, largest)
        else:  # to a thousandth of a unit: what rounding of units changes hardly ever matters
            steps = np.rint(np.clip((values - center[place]) / unit[place], -1e12, 1e12) * 1024.0)
            bits = steps.astype(np.int64).view(np.uint64)
        return np.where(bits == 0, bits, _mixed(bits + salts[place]))

    if sparse.issparse(X):
        zeros = mixed(np.zeros(d), slice(None))  # what entries that are not stored add
        sums = np.concatenate([[np.uint64(0)], np.cumsum(mixed(X.data, X.indices) - zeros[X.indices])])
        return np.asarray(sums[X.indptr[1:]] - sums[X.indptr[:-1]] + np.sum(zeros))  # modulo 2^64, as the sums
    keys, length = np.zeros(n, dtype=np.uint64), max(1, ENTRIES_AT_ONCE // max(d, 1))
    for i in range(0, n, length):
        keys[i : i + length] = np.sum(mixed(X[i : i + length], slice(None)), axis=1, dtype=np.uint64)
    return keys


def _starts_of_groups(X: Any, targets: FloatArray, keys: _Keys, order: IndexArray) -> IndexArray:
    """Where a row differs from the one before it: equal keys are looked at closely."""
    new = np.ones(order.size, dtype=bool)
    candidates = np.flatnonzero(keys[order[1:]] == keys[order[:-1]]) + 1
    if candidates.size:
        here, before = order[candidates], order[candidates - 1]
        same = np.all(targets[:, here] == targets[:, before], axis=0)
        if sparse.issparse(X):
            apart = sparse.csr_array(X[here] - X[before])
            apart.eliminate_zeros()
            same &= np.diff(apart.indptr) == 0
        else:
            length = max(1, ENTRIES_AT_ONCE // max(X.shape[1], 1))
            for i in range(0, here.size, length):
                part = slice(i, i + length)
                same[part] &= np.all(X[here[part]] == X[before[part]], axis=1)
        new[candidates] = ~same
    return np.flatnonzero(new)
