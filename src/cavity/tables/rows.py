"""Rows of a table after the first pass: in memory where they fit, else in scratch files that are mapped block by block.

Records are sorted into buckets by the leading bits of a hash of their content, and within a bucket by the whole hash.
So neither the order of the files nor their sorting matters, rows that are equal meet in one bucket and become one row
of the sum of their weights, as in memory (`cavity.factors.rows`), and no more than a bucket is held at a time.
Encoded, they are `Rows` and `RowSites` as in memory, over arrays in scratch files.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity._types import FloatArray
from cavity.ep.blocks import RowSites, noise_slope
from cavity.ep.driver import Diagnostics
from cavity.ep.hyperparameters import maximise_evidence
from cavity.ep.posteriors import ProductPosterior
from cavity.ep.result import Result
from cavity.estimators.columns import Preprocessing, encode_rows
from cavity.estimators.parameters import Parameters, threads_for
from cavity.estimators.rows import Data, squared
from cavity.estimators.runs import Checkpoints, Coding, InMemory, Prepared, Problem, run_blocks
from cavity.estimators.streams import ProductStreams
from cavity.factors.columns import Columns
from cavity.factors.rows import Rows, row_keys
from cavity.gaussians import Analysis
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.sparse import analyse_blocks
from cavity.losses import Loss
from cavity.losses.noise import site_factor, with_scale

# Bytes of encoded rows that are visited at once.
_BLOCK = 1 << 24
# Bytes of a bucket that are aimed at, and of one that are merged at once; buckets at most, each an open file.
_BUCKET, _PIECE, _MOST_BUCKETS = 1 << 25, 1 << 25, 256
# Bytes that are copied or encoded at once.
_CHUNK = 1 << 22
# Work that is bearable for rows of a file, in that for rows in memory: to read them once takes minutes, a fit may take
# half an hour. At 70 columns that is 200 million rows.
_PATIENCE = 10.0


class ScratchArray:
    """An array in a scratch file that no name leads to: it is gone when it is closed, or the process ends.

    A slice of it is a memory map that lasts as long as it is used, so what is resident is what is worked on. Nothing is
    mapped before its place on the disk is taken: a full disk is an `OSError` in `append` or `zeros`.

    Parameters
    ----------
    folder
        Folder of the file; None for that of the system.
    shape
        Shape of a row.
    dtype
        Type of the entries.
    """

    def __init__(self, folder: Path | None, shape: tuple[int, ...] = (), dtype: Any = np.float64) -> None:
        self._file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (`close` closes it)
        self.shape, self.dtype = (0, *shape), np.dtype(dtype)
        self._row_bytes = self.dtype.itemsize * math.prod(shape)

    @classmethod
    def zeros(cls, folder: Path | None, shape: tuple[int, ...]) -> ScratchArray:
        """Allocate zeros of double precision on the disk."""
        array = cls(folder, shape[1:])
        size = shape[0] * array._row_bytes
        if hasattr(os, "posix_fallocate") and size:
            os.posix_fallocate(array._file.fileno(), 0, size)
            array.shape = shape
        else:
            length = max(1, _CHUNK // max(array._row_bytes, 1))
            for i in range(0, shape[0], length):
                array.append(np.zeros((min(length, shape[0] - i), *shape[1:])))
        return array

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def append(self, values: NDArray[Any]) -> None:
        """Write rows behind the last one."""
        done, view = 0, np.ascontiguousarray(values, dtype=self.dtype).data.cast("B") if values.size else b""
        while done < len(view):
            done += self._file.write(view[done:]) or 0
        self.shape = (self.shape[0] + len(values), *self.shape[1:])

    def __getitem__(self, part: slice) -> NDArray[Any]:
        start, stop, _ = part.indices(len(self))
        shape = (max(stop - start, 0), *self.shape[1:])
        if not math.prod(shape):
            return np.empty(shape, dtype=self.dtype)
        return np.asarray(np.memmap(self._file, self.dtype, "r+", start * self._row_bytes, shape))

    def __setitem__(self, part: slice, values: Any) -> None:
        """Write a number to some rows, or as many rows, which `chunks` may give some at a time."""
        start, stop, _ = part.indices(len(self))
        if isinstance(values, float):
            for piece in self._pieces(start, stop):
                self[piece][...] = values
            return
        for chunk in values.chunks() if hasattr(values, "chunks") else (values,):
            self[start : start + len(chunk)][...] = chunk
            start += len(chunk)

    def chunks(self) -> Iterator[NDArray[Any]]:
        """All rows, some at a time."""
        return (self[piece] for piece in self._pieces(0, len(self)))

    def _pieces(self, start: int, stop: int) -> Iterator[slice]:
        length = max(1, _CHUNK // max(self._row_bytes, 1))
        return (slice(i, min(i + length, stop)) for i in range(start, stop, length))

    def close(self) -> None:
        """Close the file, which removes it; maps of it stay."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # else there was no room for it
            self.close()


class ScratchCsr:
    """Sparse rows in scratch files; a slice of them is a CSR array."""

    def __init__(self, folder: Path | None, columns: int) -> None:
        self._data, self._indices = ScratchArray(folder), ScratchArray(folder, dtype=np.int32)
        self._starts = ScratchArray(folder, dtype=np.int64)
        self._starts.append(np.zeros(1))
        self._columns = columns

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self._starts) - 1, self._columns

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self._data)

    def append(self, rows: sparse.csr_array) -> None:
        """Write rows behind the last one."""
        self._starts.append(rows.indptr[1:] + np.int64(self.nnz))
        self._data.append(rows.data)
        self._indices.append(rows.indices)

    def __getitem__(self, part: slice) -> sparse.csr_array:
        start, stop, _ = part.indices(self.shape[0])
        stop = max(start, stop)
        starts = self._starts[start : stop + 1]
        entries = slice(int(starts[0]), int(starts[-1]))
        parts = self._data[entries], self._indices[entries], starts - starts[0]
        return sparse.csr_array(parts, shape=(stop - start, self._columns))


class Buckets:
    """Records of a table, added once and then taken out once, equal ones merged, in an order of their content.

    Parameters
    ----------
    folder
        Folder of the scratch files; None for that of the system.
    width
        Numbers per record, the weight last.
    expected
        Bytes of all records, about.
    """

    def __init__(self, folder: Path | None, width: int, expected: int) -> None:
        count = 1
        while count < _MOST_BUCKETS and count * _BUCKET < expected:
            count *= 2
        self._buckets = [ScratchArray(folder, (width,)) for _ in range(count)]
        self._shift = np.uint64(64 - count.bit_length() + 1)
        self.rows, self.digest = 0, 0

    def add(self, records: FloatArray) -> None:
        """Append records to their buckets."""
        records = records + 0.0  # minus zero is zero
        self.rows += len(records)
        if len(self._buckets) == 1:
            self._buckets[0].append(records)
            return
        bucket = (row_keys(records[:, :-1]) >> self._shift).astype(np.uint16)
        order = np.argsort(bucket, kind="stable")
        cuts = np.searchsorted(bucket[order], np.arange(len(self._buckets) + 1))
        ordered = records[order]
        for k, file in enumerate(self._buckets):
            if cuts[k + 1] > cuts[k]:
                file.append(ordered[cuts[k] : cuts[k + 1]])

    def merged(self) -> Iterator[FloatArray]:
        """Distinct records in the order of their hashes, some at a time; each bucket is removed once it was read.

        When all are read, ``digest`` is a number that follows from their content.
        """
        while self._buckets:
            file = self._buckets.pop(0)
            length = max(1, _PIECE // (8 * file.shape[1]))
            found, keys = np.empty((0, file.shape[1])), np.empty(0, dtype=np.uint64)
            for i in range(0, len(file), length):
                found, keys = _distinct(np.concatenate([found, file[i : i + length]]))
            file.close()
            weights = np.ascontiguousarray(found[:, -1]).view(np.uint64)
            self.digest = (self.digest + int(np.sum(keys * (weights | np.uint64(1)), dtype=np.uint64))) % 2**64
            length = max(1, _CHUNK // (8 * found.shape[1]))
            for i in range(0, len(found), length):
                yield found[i : i + length]


def _distinct(records: FloatArray) -> tuple[FloatArray, NDArray[np.uint64]]:
    """Sort records by hash, and merge equal ones; their hashes come with them."""
    keys = row_keys(records[:, :-1])
    order = np.argsort(keys, kind="stable")
    ordered, keys = records[order], keys[order]
    bits = ordered.view(np.uint64)[:, :-1]
    starts = np.flatnonzero(np.append(True, np.any(bits[1:] != bits[:-1], axis=1)))
    if len(starts) == len(ordered):
        return ordered, keys
    found = ordered[starts]
    found[:, -1] = np.add.reduceat(ordered[:, -1], starts)
    return found, keys[starts]


@dataclass(frozen=True, slots=True, eq=False)
class ReadTable:
    """Records of a table, and how they become rows.

    Parameters
    ----------
    buckets
        The records: numbers, then numbers of levels, then target, offset and weight.
    preprocessing
        What is done to the numbers.
    places
        Where the levels of every column of categories stand in the order of the coefficients.
    classes
        The same of labels, where targets are such.
    has_offset
        Whether rows have a known part of the linear predictor.
    memory
        Bytes that encoded rows may take in memory.
    folder
        Folder of scratch files.
    """

    buckets: Buckets
    preprocessing: Preprocessing
    places: tuple[NDArray[np.int64], ...]
    classes: NDArray[np.int64] | None
    has_offset: bool
    memory: int
    folder: Path | None

    def prepare(self, coding: Coding, intercept: bool, columns: Columns) -> Prepared:
        """Encode the rows with targets in this coding, and columns in these units."""
        width = self.preprocessing.width + sum(len(one) + 1 for one in self.places)
        filled = self.preprocessing.width + len(self.places)
        is_sparse = bool(self.places) and filled < 0.3 * width
        encoded = (self._encoded(records, coding, not is_sparse) for records in self.buckets.merged())
        if self.buckets.rows * (12 * filled if is_sparse else 8 * width) <= self.memory:
            matrices, *known = zip(*encoded, strict=True)
            X = sparse.csr_array(sparse.vstack(matrices)) if is_sparse else np.concatenate(matrices)
            targets, weights, offset = (np.concatenate(one, axis=-1) for one in known)
            data = Data(X, targets, None if np.all(weights == 1.0) else weights, offset if self.has_offset else None)
            return InMemory(data, Rows.arrange(X, targets, data.weights, intercept, data.offset, columns))
        stored: Any = ScratchCsr(self.folder, width) if is_sparse else ScratchArray(self.folder, (width,))
        all_targets: Any = [ScratchArray(self.folder) for _ in range(coding.predictors)]
        all_weights: Any = ScratchArray(self.folder)
        all_offsets: Any = ScratchArray(self.folder) if self.has_offset else None
        for X, targets, weights, offset in encoded:
            stored.append(X)
            for one, values in zip(all_targets, targets, strict=True):
                one.append(values)
            all_weights.append(weights)
            if self.has_offset:
                all_offsets.append(offset)
        order = range(len(all_weights))
        rows = Rows(stored, order, all_targets, all_weights, intercept, all_offsets, columns, _BLOCK)
        return PreparedFile(rows, f"{self.buckets.digest:016x} {coding}", self.folder)

    def _encoded(
        self, records: FloatArray, coding: Coding, dense: bool
    ) -> tuple[Any, FloatArray, FloatArray, FloatArray]:
        """Matrix, targets, weights and offsets of some records."""
        numbers = len(self.preprocessing.numbers)
        codes = records[:, numbers:-3].astype(np.int64)
        for k, places in enumerate(self.places):
            codes[:, k] = places[codes[:, k]]
        counts = [len(places) for places in self.places]
        X = encode_rows(records[:, :numbers], codes, counts, self.preprocessing, dense)
        raw = records[:, -3] if self.classes is None else self.classes[records[:, -3].astype(np.intp)]
        return X, coding.targets(raw), coding.weights(raw, records[:, -1]), records[:, -2] / coding.unit


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFile:
    """Rows that are read from scratch files when they are visited, and a digest of them."""

    rows: Rows
    digest: str = ""
    folder: Path | None = None
    widest: int = WIDEST_COVARIANCE
    most_rows: int = 0
    patience: float = _PATIENCE

    @property
    def shape(self) -> tuple[int, int]:
        """Number of distinct rows, and of columns with the constant one."""
        return self.rows.shape

    @property
    def density(self) -> float:
        """Share of the entries that are not zero."""
        return self.rows.density

    def analysis(self) -> Analysis:
        """Analyse the pattern of a sparse precision matrix, from all rows."""
        return analyse_blocks(lambda: (self.rows.csr(part) for part in self._parts()))

    def run(self, problem: Problem, p: Parameters, checkpoint: Checkpoints | None) -> list[Result]:
        """Run EP for every linear predictor."""
        with threads_for((self.rows.at_once, self.shape[1]), problem.analysis):
            if problem.plan.covariance == "diagonal":
                return self._one_pass(problem)
            opened = None if checkpoint is None else checkpoint(self.digest)
            return run_blocks(self.rows, problem, p, opened, self._sites)

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""
        targets, weights = self.rows.targets[0], self.rows.weights
        return sum(float(weights[part] @ function(targets[part])) for part in self._parts())

    def close(self) -> None:
        """Files are removed with the last reference to their arrays."""

    def _parts(self) -> Iterator[slice]:
        length = self.rows.csr_at_once
        return (slice(i, min(i + length, self.shape[0])) for i in range(0, self.shape[0], length))

    def _sites(self, loss: Loss) -> RowSites:
        """Uniform sites of all rows, in scratch files."""
        predictors = getattr(loss, "predictors", None)
        sites = RowSites.uniform(self.shape[0], predictors, zeros=lambda shape: ScratchArray.zeros(self.folder, shape))
        if self.rows.offset is not None:
            for part in self._parts():
                offset = sites.offset[part]
                (offset if predictors is None else offset[:, 0])[:] = self.rows.offset[part]
        return sites

    def _one_pass(self, problem: Problem) -> list[Result]:
        """Take all rows into products of Gaussians, once; noise scale and prior variances follow from all of them."""
        rows, diagnostics, noise, free = self.rows, Diagnostics(), np.zeros(2), problem.hyperparameters
        if rows.offset is not None:
            raise ValueError("a product of Gaussians takes no offset: take fewer columns, or covariance='full'")
        priors = [problem.prior] * len(rows.targets)
        streams = ProductStreams(problem.loss, priors, priors)
        diagnostics.betas.append(1.0)
        for part in self._parts():
            X, weights = rows.csr(part), rows.weights[part]
            targets = np.stack([one[part] for one in rows.targets])
            refused, updates = streams.take(X, Data(X, targets, weights))
            for reason, times in refused.items():
                diagnostics.reject(-1, reason, times)
            diagnostics.updates += updates
            if free.scale:
                now = streams.natural()[0].posterior(problem.prior)
                noise += noise_slope(problem.loss, targets[0], X @ now.mean, squared(X) @ now.variance, weights)
        diagnostics.changes.append(np.nan)
        results = []
        for known in streams.natural():
            loss: Any = problem.loss
            if free.scale:
                step = noise[0] / max(noise[1], 0.5 * abs(noise[0]), 1e-12)
                scale = max(float(loss.scale) * float(np.exp(step)), free.least)
                known, loss = known.times(site_factor(loss, scale, 0.0)), with_scale(loss, scale)
            posterior = ProductPosterior(problem.prior, known.sites)
            if free.groups:
                maximise_evidence(posterior, free.groups)
            status = diagnostics.status(single_pass=True, converged=False)
            found = known.posterior(posterior.prior)
            results.append(Result(found, known, status, diagnostics.trace(), posterior.prior, loss, noise))
        return results
