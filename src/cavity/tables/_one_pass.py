"""Rows of a table that are taken in while they are read for the first time, and for the last.

What belongs to all rows, means and scales and levels, is not known before the last one. So rows are encoded in columns
of their own: the constant first, numbers by means and scales of the first rows, levels and features as they appear. At
the end what was learned is brought to the columns that a fit has. That is exact: with a constant among them the columns
of a fit are linear functions of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.result import Result
from cavity.estimators._design import Data
from cavity.estimators._plan import WIDEST_STREAM
from cavity.estimators._preprocessing import Preprocessing
from cavity.estimators._sources import Coding, Summary, Task
from cavity.estimators._threads import threads_for
from cavity.factors.rows import row_of_entries
from cavity.gaussians.factorial import FactorialGaussian
from cavity.tables._first_pass import FirstPass, Read
from cavity.tables._streams import Pass
from cavity.tables._wide import MOST_SPOOLED, WideSums, of_weight, sparse_part

FloatArray = NDArray[np.float64]
T = TypeVar("T")


class OnePass:
    """A table in its only pass.

    Parameters
    ----------
    found
        What is gathered of the rows.
    reads
        Batches of all rows, of which the first is read at once.
    bits
        Logarithm of the number of columns that words are hashed to.
    intercept
        Whether there is a constant column.
    large
        Whether the rows are too large for memory.
    """

    def __init__(self, found: FirstPass, reads: Iterator[Read], bits: int, intercept: bool, large: bool) -> None:
        self._found, self._reads, self._bits, self._intercept, self._large = found, reads, bits, intercept, large
        self._first, self._sums = next(reads), WideSums()
        if found.schema.has_rows or found.schema.hashed:
            self._sums.add(self._sparse(self._first))
        start = self._preprocessing()
        self._means, self._scales = start.means, start.scales
        # Columns before the sparse ones, where the next level goes, and where a fit to the first rows has new levels.
        self._fixed = int(intercept) + len(start.numbers) * (2 if found.fills else 1)
        self._width = self._fixed + start.wide
        self._unseen = start.width + start.wide + np.cumsum([len(codes) + 1 for codes in found.levels]) - 1
        self._levels = [np.zeros(0, dtype=np.int64) for _ in found.levels]

    def summary(self) -> Summary:
        """Give what an estimator wants to know of the rows read so far."""
        preprocessing = self._preprocessing()
        return self._found.summary(preprocessing, self._found.sizes(preprocessing) + self._sums.squares)

    def take(self, task: Task, coding: Coding) -> bool:
        """Take in all rows; False where it turns out that they must be looked at before."""
        dense, numbers = task.plan.covariance == "full", bool(self._found.schema.numbers)
        wide = self._large and self._width > MOST_SPOOLED  # otherwise a fit keeps correlations
        if (numbers and not self._intercept) or (not dense and (numbers or not wide)):
            return False
        self._pass = Pass(task, coding.predictors)
        with threads_for((1 << 30, self._width)):
            for data in ahead(self._encoded(coding, dense)):
                if data is None:
                    return False
                self._pass.take(data, lambda width: self._prior(task.prior, width))
        return True

    def results(self, task: Task) -> list[Result]:
        """Give what is known in the columns of a fit, with the prior that follows from all rows."""
        return self._pass.results(task, self._change(task.prior.dim))

    def _preprocessing(self) -> Preprocessing:
        return self._found.preprocessing(self._bits, 0 if self._found.schema.hashed else self._sums.width)

    def _sparse(self, read: Read) -> Any:
        """Features of libsvm, or words; None where there are none."""
        schema = self._found.schema
        return sparse_part(read.batch, schema.hashed, self._bits) if schema.has_rows or schema.hashed else None

    def _encoded(self, coding: Coding, dense: bool) -> Iterator[Data | None]:
        """All rows; None once there is a class that the first rows did not have, or too many columns."""
        places, has_offset = self._found.classes.sorted()[1], self._found.roles.offset is not None
        for read in chain([self._first], self._reads):
            wide = self._sparse(read)
            if wide is not None and read is not self._first:
                self._sums.add(wide)
            self._widen(read, wide)
            if read.target.max(initial=0.0) >= coding.classes or (dense and self._width > WIDEST_STREAM):
                yield None
                return
            raw = places[read.target.astype(np.intp)]
            X = self._dense(read, wide) if dense else self._csr(read, wide)
            offset = read.offset if has_offset else None
            yield of_weight(Data(X, coding.targets(raw), coding.weights(raw, read.weight), offset), read)

    def _widen(self, read: Read, wide: Any) -> None:
        """Give columns to levels and features that were not seen before."""
        for k, codes in enumerate(read.codes.T):
            more = int(codes.max(initial=-1.0)) + 1 - self._levels[k].size
            if more > 0:
                self._levels[k] = np.append(self._levels[k], self._width + np.arange(more))
                self._width += more
        if self._found.schema.has_rows:
            self._width = max(self._width, self._fixed + wide.shape[1])

    def _dense(self, read: Read, wide: Any) -> FloatArray:
        rows, first, n = np.zeros((len(read.numbers), self._width)), int(self._intercept), len(self._means)
        rows[:, :first] = 1.0
        numbers = rows[:, first : first + n]
        np.subtract(read.numbers, self._means, out=numbers)
        numbers /= self._scales
        if self._found.fills:
            missing = np.isnan(numbers)
            numbers[missing], rows[:, first + n : self._fixed] = 0.0, missing
        if wide is not None:
            rows[row_of_entries(wide), self._fixed + wide.indices] = wide.data
        every = np.arange(len(rows))
        for columns, codes in zip(self._levels, read.codes.T, strict=True):
            rows[every, columns[codes.astype(np.intp)]] = 1.0
        return rows

    def _csr(self, read: Read, wide: Any) -> Any:
        """Sparse features, then the constant and the levels; more columns than needed, so that few need more."""
        more = np.zeros((wide.shape[0], int(self._intercept) + len(self._levels)), dtype=np.int32)
        for k, (columns, codes) in enumerate(zip(self._levels, read.codes.T, strict=True)):
            more[:, int(self._intercept) + k] = columns[codes.astype(np.intp)]
        starts = wide.indptr + more.shape[1] * np.arange(wide.shape[0] + 1, dtype=wide.indptr.dtype)
        own = np.ones(starts[-1], dtype=bool)
        own[(starts[1:, None] - 1 - np.arange(more.shape[1])).ravel()] = False
        data, indices = np.ones(own.size), np.empty(own.size, dtype=np.int32)
        data[own], indices[own], indices[~own] = wide.data, wide.indices + self._fixed, more.ravel()
        return sparse.csr_array((data, indices, starts), shape=(wide.shape[0], 1 << (self._width - 1).bit_length()))

    def _prior(self, first: FactorialGaussian, width: int) -> FactorialGaussian:
        """Prior of the columns, by that of a fit to the first rows, where all features have the same."""
        like = np.zeros(width, dtype=np.intp)
        like[: int(self._intercept)] = first.dim - 1
        for columns, unseen in zip(self._levels, self._unseen, strict=True):
            like[columns[columns < width]] = unseen
        return FactorialGaussian.from_moments(first.mean[like], first.variance[like])

    def _change(self, dim: int) -> Any:
        """Matrix that makes the columns of a fit to all rows from those that were taken in."""
        p, first, n = self._preprocessing(), int(self._intercept), len(self._means)
        every, moved = np.arange(n), (self._means - p.means) / p.scales
        entries: list[tuple[Any, Any, Any]] = [(every, first + every, self._scales / p.scales)]
        if first:
            entries += [(every, 0 * every, moved), ([dim - 1], [0], [1.0])]
        if self._found.fills:
            flags = [p.numbers.index(name) for name in p.filled]
            entries += [(every, first + n + every, -moved), (n + np.arange(len(flags)), np.add(flags, first + n), 1.0)]
        features, start = np.arange(p.wide), p.width + p.wide
        entries.append((p.width + features, self._fixed + features, 1.0))
        for columns, places in zip(self._levels, self._found.places, strict=True):
            entries.append((start + places[: columns.size], columns, 1.0))
            start += places.size + 1
        rows, columns, values = (
            np.concatenate(parts) for parts in zip(*(np.broadcast_arrays(*one) for one in entries), strict=True)
        )
        return sparse.csr_array((values, (rows, columns)), shape=(dim, self._pass.width))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Give items, each made in a thread of its own while the one before it is in use."""
    with ThreadPoolExecutor(1) as pool:
        end = object()
        following = pool.submit(next, items, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, items, end)
            yield item  # type: ignore[misc]


__all__ = ["OnePass"]
