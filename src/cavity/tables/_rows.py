"""Rows of a linear model that are read from a file when they are visited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.file_sites import Column
from cavity.estimators._design import with_intercept
from cavity.estimators._preprocessing import Preprocessing, encode_rows
from cavity.estimators._sources import Coding
from cavity.factors.columns import Columns

FloatArray = NDArray[np.float64]

# Bytes of encoded rows that are visited at once.
_BLOCK = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """How a record becomes a row: numbers, then numbers of levels, then target, offset and weight.

    ``places`` says where the levels of every column of categories stand in the order of the coefficients, ``classes``
    the same of labels, where targets are such.
    """

    preprocessing: Preprocessing
    places: tuple[NDArray[np.int64], ...]
    classes: NDArray[np.int64] | None = None

    @property
    def width(self) -> int:
        """Columns of encoded rows."""
        return self.preprocessing.width + sum(len(one) + 1 for one in self.places)

    def target(self, records: FloatArray) -> NDArray[Any]:
        """Targets, or places of labels among the classes."""
        raw = records[:, -3]
        return raw if self.classes is None else self.classes[raw.astype(np.intp)]

    def rows(self, records: FloatArray, dense: bool, constant: bool = False) -> Any:
        """Encode records as rows, dense or CSR; dense ones with a column of ones if ``constant``."""
        numbers = len(self.preprocessing.numbers)
        codes = records[:, numbers : numbers + len(self.places)].astype(np.int64)
        for k, places in enumerate(self.places):
            codes[:, k] = places[codes[:, k]]
        counts = [len(places) for places in self.places]
        return encode_rows(records[:, :numbers], codes, counts, self.preprocessing, dense, constant)


class FileRows:
    """Records of a table as rows with targets: what EP by blocks asks of `cavity.factors.arranged.Rows`."""

    def __init__(
        self,
        records: Column,
        encoder: Encoder,
        coding: Coding,
        intercept: bool,
        has_offset: bool,
        columns: Columns,
    ) -> None:
        self.records, self.encoder, self.coding, self.intercept = records, encoder, coding, intercept
        self.columns = columns
        self._last: tuple[slice, FloatArray] = (slice(0, 0), np.empty((0, records.shape[1])))
        self.targets = [_Slices(self, partial(self._target, k)) for k in range(coding.predictors)]
        self.weights = _Slices(self, lambda r: coding.weights(encoder.target(r), r[:, -1]))
        self.offset = _Slices(self, lambda r: r[:, -2] / coding.unit) if has_offset else None
        self.order = range(records.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of distinct rows, and of columns with the constant one."""
        return self.records.shape[0], self.encoder.width + int(self.intercept)

    @property
    def at_once(self) -> int:
        """Most rows that are asked for at once."""
        return max(1, _BLOCK // (8 * self.shape[1]))

    @property
    def csr_at_once(self) -> int:
        """Most rows that are asked for at once as CSR: 12 bytes per entry, and as much for products of entries."""
        return max(1, _BLOCK // (24 * (self.encoder.preprocessing.width + len(self.encoder.places) + 1)))

    @property
    def density(self) -> float:
        """Share of the entries that are not zero."""
        filled = self.encoder.preprocessing.width + len(self.encoder.places)
        return filled / max(self.encoder.width, 1)

    def read(self, part: slice) -> FloatArray:
        """Give the records of a part of the rows; the last part is kept."""
        if self._last[0] != part:
            self._last = part, self.records.read(part)
        return self._last[1]

    def csr(self, part: slice) -> sparse.csr_array:
        """Rows of a part as CSR."""
        rows = self.columns.standardised(sparse.csr_array(self.encoder.rows(self.read(part), dense=False)))
        return with_intercept(rows) if self.intercept else rows

    def csr_blocks(self) -> Iterator[sparse.csr_array]:
        """All rows as CSR, some at a time."""
        for start in range(0, self.shape[0], self.csr_at_once):
            yield self.csr(slice(start, min(start + self.csr_at_once, self.shape[0])))

    def _target(self, predictor: int, records: FloatArray) -> FloatArray:
        targets: FloatArray = self.coding.targets(self.encoder.target(records))[predictor]
        return targets

    def block(self, part: slice) -> FloatArray:
        """Rows of a part as a C-ordered array of double precision."""
        rows: FloatArray = self.encoder.rows(self.read(part), dense=True, constant=self.intercept)
        self.columns.standardise(rows)
        return rows


class _Slices:
    """One number per row, by slices of rows."""

    def __init__(self, rows: FileRows, of: Callable[[FloatArray], FloatArray]) -> None:
        self._rows, self._of = rows, of

    @property
    def size(self) -> int:
        """Number of rows."""
        return self._rows.records.shape[0]

    def __getitem__(self, part: slice) -> FloatArray:
        return self._of(self._rows.read(part))


__all__ = ["Encoder", "FileRows"]
