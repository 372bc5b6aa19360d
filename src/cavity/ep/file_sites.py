"""Sites of rows that are too many for memory: kept in a file, read and written block by block.

Per row and linear predictor the file has the two numbers of the site in double precision, 16 bytes, and three by which
its step is damped in single precision, 12 bytes. Plain reads and writes, not a memory map: a full disk is then an error
that can be reported, and what is resident stays the size of a block.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.ep.driver import State
from cavity.ep.sites import RowSites

FloatArray = NDArray[np.float64]

# Bytes that are copied at once.
_CHUNK = 1 << 22


class Column(NamedTuple):
    """What every row has of one kind, as a region of a file."""

    file: Any
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def read(self, part: slice) -> NDArray[Any]:
        """Read some rows."""
        count = part.stop - part.start
        values = np.empty((count, *self.shape[1:]), dtype=self.dtype)
        self.file.seek(self.start + part.start * self.row_bytes)
        view = values.data.cast("B") if values.size else memoryview(b"")
        done = 0
        while done < len(view):
            got = self.file.readinto(view[done:])
            if not got:
                raise OSError("a scratch file ended too early; it was changed while it was in use")
            done += got
        return values

    def write(self, first: int, values: NDArray[Any]) -> None:
        """Write rows from this one on."""
        view = np.ascontiguousarray(values, dtype=self.dtype).data.cast("B") if values.size else memoryview(b"")
        self.file.seek(self.start + first * self.row_bytes)
        done = 0
        while done < len(view):
            done += self.file.write(view[done:]) or 0

    def chunks(self) -> Iterator[NDArray[Any]]:
        """All rows, some at a time."""
        length = max(1, _CHUNK // max(self.row_bytes, 1))
        for i in range(0, self.shape[0], length):
            yield self.read(slice(i, min(i + length, self.shape[0])))


class FileSites:
    """Sites of all rows in a scratch file, uniform at first; it is gone when it is closed.

    Parameters
    ----------
    folder
        Folder of the file; None for that of the system.
    count
        Number of rows.
    predictors
        Linear predictors of a row with a joint loss; None for one.
    offset
        Known parts of the linear predictors, by slices of rows; None for zeros.
    """

    def __init__(self, folder: Path | None, count: int, predictors: int | None, offset: Any) -> None:
        self.max_step, self._offset, self._predictors, self._steps = 1.0, offset, predictors, np.zeros(2)
        vector = () if predictors is None else (predictors,)
        double, single = np.dtype(np.float64), np.dtype(np.float32)
        kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "precision": (double, vector * 2),
            "shift": (double, vector),
            "step": (single, ()),
            "last_precision": (single, vector * 2),
            "last_slope": (single, vector),
        }
        self._file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (`close` closes it)
        self.columns: dict[str, Column] = {}
        start = 0
        for name, (dtype, shape) in kinds.items():
            self.columns[name] = Column(self._file, start, dtype, (count, *shape))
            start += count * self.columns[name].row_bytes
        try:
            if hasattr(os, "posix_fallocate") and start:
                os.posix_fallocate(self._file.fileno(), 0, start)  # a full disk shows now, not in the middle
            else:
                self._file.truncate(start)
            length = max(1, _CHUNK // 4)
            for i in range(0, count, length):
                self.columns["step"].write(i, np.ones(min(length, count - i), dtype=single))
        except BaseException:
            self.close()
            raise

    @property
    def average_step(self) -> float:
        """Average of the steps that rows took in the last loop."""
        return float(self._steps[0] / self._steps[1]) if self._steps[1] else 1.0

    def part(self, part: slice) -> RowSites:
        """Read the sites of some rows."""
        found = {name: column.read(part).astype(np.float64) for name, column in self.columns.items()}
        mean, variance = np.zeros_like(found["shift"]), np.zeros_like(found["precision"])
        offset = np.zeros_like(mean)
        if self._offset is not None and self._predictors is None:
            offset[:] = self._offset[part]
        elif self._offset is not None:
            offset[:, 0] = self._offset[part]
        return RowSites(**found, mean=mean, variance=variance, offset=offset, max_step=self.max_step)

    def put(self, part: slice, sites: RowSites) -> None:
        """Write them back, and add their steps to the sums of the loop."""
        if part.start == 0:
            self._steps = np.zeros(2)
        for name, column in self.columns.items():
            column.write(part.start, getattr(sites, name))
        self._steps += float(np.sum(sites.step)), sites.step.size

    def scale_by(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts by factors, and forget in which direction they went."""
        factors = {"precision": precisions, "shift": shifts, "last_precision": 0.0, "last_slope": 0.0}
        for name, factor in factors.items():
            column, i = self.columns[name], 0
            for values in column.chunks():
                column.write(i, values * factor)
                i += len(values)

    def arrays(self) -> dict[str, Any]:
        """Give the columns, to be read chunk by chunk before the next loop."""
        return {**{f"site_{name}": column for name, column in self.columns.items()}, "site_steps": self._steps.copy()}

    def set_arrays(self, arrays: State) -> None:
        """Copy such columns, or arrays."""
        self._steps[:] = arrays["site_steps"]
        for name, column in self.columns.items():
            given, i = arrays[f"site_{name}"], 0
            for values in given.chunks() if hasattr(given, "chunks") else (given,):
                column.write(i, values)
                i += len(values)

    def close(self) -> None:
        """Close the file, which removes it."""
        self._file.close()


__all__ = ["Column", "FileSites"]
