"""Rows of a table as records of equal length in a scratch file, equal rows merged, in an order that is not the table's.

A record is a row of numbers in double precision, of which the last is its weight. Records are sorted into buckets by
the leading bits of a hash of their content, and within a bucket by the whole hash. So neither the order of the files
nor their sorting matters, rows that are equal meet in one bucket and become one row of the sum of their weights, as in
memory (`cavity.factors.arranged`), and no more than a bucket is held at a time.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.file_sites import Column

FloatArray = NDArray[np.float64]

# Bytes of a bucket that are aimed at, files that are open at most, and bytes of a bucket that are merged at once.
_BUCKET, _MOST_BUCKETS, _PIECE = 1 << 25, 256, 1 << 25


class Spool:
    """Records of one table, written once and then read in any order; `close` removes them.

    Parameters
    ----------
    folder
        Where a scratch folder is made; None for that of the system.
    width
        Numbers per record, the weight last.
    expected
        Bytes of all records, about.
    """

    def __init__(self, folder: Path | None, width: int, expected: int) -> None:
        self.folder, self.width, self.digest = folder, width, 0
        self._buckets: list[Any] = []
        count = 1
        while count < _MOST_BUCKETS and count * _BUCKET < expected:
            count *= 2
        self._shift = np.uint64(64 - count.bit_length() + 1)
        generator = np.random.Generator(np.random.PCG64(0))  # odd multipliers, the same in every process
        self._factors = generator.integers(1, 2**63, width - 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        try:
            for _ in range(count):
                self._buckets.append(self._file())
        except BaseException:
            self.close()
            raise

    def add(self, records: FloatArray) -> None:
        """Append records to their buckets."""
        records = records + 0.0  # minus zero is zero
        keys = self._keys(records)
        if len(self._buckets) == 1:
            _write(self._buckets[0], records)
            return
        bucket = (keys >> self._shift).astype(np.uint16)
        order = np.argsort(bucket, kind="stable")
        cuts = np.searchsorted(bucket[order], np.arange(len(self._buckets) + 1))
        ordered = records[order]
        for k, file in enumerate(self._buckets):
            if cuts[k + 1] > cuts[k]:
                _write(file, ordered[cuts[k] : cuts[k + 1]])

    def merged(self) -> Column:
        """Merge equal rows, and give all records in the order of their hashes; once, after the last was added."""
        target, total, digest = self._file(), 0, 0
        for file in self._buckets:
            records = self._merged_bucket(file)
            _write(target, records)
            keys, weights = self._keys(records), np.ascontiguousarray(records[:, -1]).view(np.uint64)
            digest = (digest + int(np.sum(keys * (weights | np.uint64(1)), dtype=np.uint64))) % 2**64
            total += len(records)
            file.close()
        self.digest, self._buckets = digest, [target]
        return Column(target, 0, np.dtype(np.float64), (total, self.width))

    def close(self) -> None:
        """Close all files, which removes them."""
        for file in self._buckets:
            file.close()

    def __del__(self) -> None:
        """Close files of a fit that was refused after the first pass."""
        self.close()

    def _file(self) -> Any:
        """Open a scratch file that no name leads to: it is gone when it is closed, or the process ends."""
        return tempfile.TemporaryFile(dir=self.folder, buffering=0)

    def _merged_bucket(self, file: Any) -> FloatArray:
        """Read a bucket piece by piece, each merged with what was read before."""
        rows = file.seek(0, io.SEEK_END) // (8 * self.width)
        column = Column(file, 0, np.dtype(np.float64), (rows, self.width))
        length, found = max(1, _PIECE // (8 * self.width)), np.empty((0, self.width))
        for i in range(0, rows, length):
            piece = column.read(slice(i, min(i + length, rows)))
            found = self._distinct(np.concatenate([found, piece]) if len(found) else piece)
        return found

    def _distinct(self, records: FloatArray) -> FloatArray:
        """Sort records by hash, and merge equal ones."""
        order = np.argsort(self._keys(records), kind="stable")
        ordered = records[order]
        bits = ordered.view(np.uint64)[:, :-1]
        new = np.ones(len(ordered), dtype=bool)
        new[1:] = np.any(bits[1:] != bits[:-1], axis=1)
        if np.all(new):
            return ordered
        starts = np.flatnonzero(new)
        weights = np.add.reduceat(ordered[:, -1], starts)
        found = ordered[starts]
        found[:, -1] = weights
        return np.ascontiguousarray(found)

    def _keys(self, records: FloatArray) -> NDArray[np.uint64]:
        """Hash the content of records, their weights left out."""
        bits = records.view(np.uint64)[:, :-1]
        # The information of round numbers is in the leading bits, and products keep what is in the trailing ones.
        folded = bits ^ (bits >> np.uint64(29))
        keys = np.einsum("ij,j->i", folded, self._factors)
        keys ^= keys >> np.uint64(32)
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
        return np.asarray(keys)


def _write(file: Any, records: FloatArray) -> None:
    view, done = np.ascontiguousarray(records).data.cast("B") if records.size else memoryview(b""), 0
    while done < len(view):
        done += file.write(view[done:]) or 0


__all__ = ["Spool"]
