"""Tables of wide sparse rows: libsvm files, and columns of text whose words are hashed.

They are not spooled: rows are read again, and encoded as CSR, whenever they are needed. Where they fit in memory they
become an array; else they are taken in by a single pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.result import Result
from cavity.estimators._design import Data
from cavity.estimators._preprocessing import Preprocessing, encode_rows
from cavity.estimators._runs import Task
from cavity.estimators._sources import Coding, InMemory, Prepared
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns, ColumnSums
from cavity.tables._batches import Batch, RawTexts, Reader
from cavity.tables._first_pass import FirstPass, Read
from cavity.tables._hashing import hashed
from cavity.tables._prepared import SpooledTable
from cavity.tables._rows import Encoder
from cavity.tables._spool import Spool
from cavity.tables._streams import one_pass

FloatArray = NDArray[np.float64]

# Columns of sparse rows up to which they are written to a spool as dense records where they do not fit in memory.
MOST_SPOOLED = 1000


class WideSums:
    """Rows, entries and sums over columns of the sparse part of all rows."""

    def __init__(self) -> None:
        self.rows, self.entries, self.sums = 0, 0, ColumnSums.nothing(0)

    @property
    def width(self) -> int:
        """Number of columns so far."""
        return self.sums.mean.size

    def add(self, rows: Any, weights: FloatArray) -> None:
        """Add rows."""
        self.rows, self.entries, kept = self.rows + rows.shape[0], self.entries + rows.nnz, weights > 0.0
        more = ColumnSums.of(rows[kept], weights[kept]) if np.any(kept) else ColumnSums.nothing(rows.shape[1])
        width = max(self.width, rows.shape[1])
        self.sums = self.sums.wider(width - self.width).plus(more.wider(width - rows.shape[1]))


def sparse_part(batch: Batch, hashed_columns: Sequence[str], bits: int) -> Any:
    """Features of a libsvm batch, or counts of hashed words, as CSR."""
    if batch.rows is not None:
        return batch.rows
    parts = []
    for name in hashed_columns:
        texts = batch.columns[name]
        if not isinstance(texts, RawTexts):
            raise ValueError(f"{batch.path}, column {name!r}: only text can be hashed")
        parts.append(hashed(texts, name, bits))
    return sparse.hstack(parts, format="csr")


def encoded(
    read: tuple[FloatArray, NDArray[np.int64]], wide: Any, counts: Sequence[int], preprocessing: Preprocessing
) -> Any:
    """Join numbers, sparse features and levels of categories to CSR rows, in the order of the coefficients."""
    numbers, codes = read
    width = preprocessing.wide
    if wide.shape[1] != width:  # features that the model does not know are left out
        wide = sparse.csr_array(wide[:, :width] if wide.shape[1] > width else wide)
        wide.resize(wide.shape[0], width)
    narrow = encode_rows(numbers, codes, counts, preprocessing, dense=False)
    if narrow.shape[1] == 0:
        return wide
    first = preprocessing.width
    narrow = sparse.csr_array(narrow)
    return sparse.hstack([narrow[:, :first], wide, narrow[:, first:]], format="csr")


@dataclass(frozen=True, slots=True, eq=False)
class WideTable:
    """A table of wide rows after its first pass."""

    readers: Sequence[Reader]
    found: FirstPass
    preprocessing: Preprocessing
    sums: WideSums
    memory: int
    folder: Path | None = None

    def prepare(self, coding: Coding, intercept: bool, units: Columns) -> Prepared:
        """Give the rows with targets in this coding: in memory where they fit."""
        prepared = PreparedWide(self, coding, intercept)
        per_row = 12 * (self.preprocessing.width + len(self.found.levels))
        if 12 * self.sums.entries + per_row * self.sums.rows > self.memory:
            return self._spooled(coding, intercept, units) if prepared.shape[1] <= MOST_SPOOLED else prepared
        blocks = list(prepared.blocks())
        X = sparse.csr_array(sparse.vstack([block.X for block in blocks]))
        targets = np.concatenate([block.targets for block in blocks], axis=1)
        weights = np.concatenate([block.weights for block in blocks])
        offset = None if blocks[0].offset is None else np.concatenate([block.offset for block in blocks])
        data = Data(X, targets, None if np.all(weights == 1.0) else weights, offset)
        return InMemory(data, Rows.arrange(X, targets, data.weights, intercept, offset, units))

    def _spooled(self, coding: Coding, intercept: bool, units: Columns) -> Prepared:
        """Write rows of few columns to a spool, as those of other tables."""
        raw = PreparedWide(self, Coding(coding.classes, tuple(range(coding.classes)) or None), False)
        columns = raw.shape[1]
        spool = Spool(self.folder, columns + 3, 8 * (columns + 3) * self.sums.rows)
        try:
            for data in raw.blocks():
                offset = np.zeros(data.weights.size) if data.offset is None else data.offset
                spool.add(np.column_stack([data.X.toarray(), data.targets[0], offset, data.weights]))
            records = spool.merged()
        except BaseException:
            spool.close()
            raise
        identity = Preprocessing(("",) * columns, np.zeros(columns))
        encoder, has_offset = Encoder(identity, ()), self.found.roles.offset is not None
        return SpooledTable(spool, records, encoder, has_offset, 0).prepare(coding, intercept, units)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedWide:
    """Wide rows that are read again when they are needed."""

    table: WideTable
    coding: Coding
    intercept: bool
    widest: int = 0
    patience: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the constant one."""
        levels = sum(len(codes) + 1 for codes in self.table.found.levels)
        p = self.table.preprocessing
        return self.table.sums.rows, p.width + p.wide + levels + int(self.intercept)

    @property
    def density(self) -> float:
        """Share of the entries that are not zero."""
        rows, columns = self.shape
        beside = self.table.preprocessing.width + len(self.table.found.levels)
        return (self.table.sums.entries + beside * rows) / max(rows * (columns - int(self.intercept)), 1)

    def analysis(self) -> None:
        """Say None: rows are not in memory."""

    def run(self, task: Task) -> list[Result]:
        """Take in all rows once."""
        return one_pass(task, self.blocks())

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""
        return sum(float(data.weights @ function(data.targets[0])) for data in self.blocks())

    def close(self) -> None:
        """Nothing to give back."""

    def blocks(self) -> Iterator[Data]:
        """All rows as CSR, a batch at a time."""
        table, coding = self.table, self.coding
        found, p = table.found, table.preprocessing
        places, counts = found.places, [len(codes) for codes in found.levels]
        classes = found.classes.sorted()[1] if found.targets == "classes" else None
        for read in found.again(table.readers):
            codes = read.codes.astype(np.int64)
            for k, place in enumerate(places):
                codes[:, k] = place[codes[:, k]]
            wide = sparse_part(read.batch, p.hashed, p.hash_bits)
            raw = read.target if classes is None else classes[read.target.astype(np.intp)]
            X = encoded((read.numbers, codes), wide, counts, p)
            offset = None if found.roles.offset is None else read.offset / coding.unit
            yield of_weight(Data(X, coding.targets(raw), coding.weights(raw, read.weight), offset), read)


def of_weight(data: Data, read: Read) -> Data:
    """Leave out rows of weight zero."""
    kept = read.weight > 0.0
    if np.all(kept):
        return data
    offset = None if data.offset is None else data.offset[kept]
    return Data(data.X[kept], data.targets[:, kept], data.weights[kept], offset)


__all__ = ["PreparedWide", "WideSums", "WideTable", "encoded", "of_weight", "sparse_part"]
