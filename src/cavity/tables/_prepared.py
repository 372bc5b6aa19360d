"""Rows of a table, ready for a fit: in memory where they fit, else read from the spool block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.file_sites import Column, FileSites
from cavity.ep.result import Result
from cavity.estimators._design import Data
from cavity.estimators._runs import Keeping, Task, run_blocks
from cavity.estimators._sources import Coding, InMemory, Prepared
from cavity.estimators._threads import threads_for
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns
from cavity.gaussians import Analysis
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.sparse import analyse_blocks
from cavity.losses import Loss
from cavity.tables._rows import Encoder, FileRows
from cavity.tables._spool import Spool
from cavity.tables._streams import one_pass

FloatArray = NDArray[np.float64]

# Work that is bearable for rows of a file, in that for rows in memory: to read them once takes minutes, a fit may take
# half an hour. At 70 columns that is 200 million rows.
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class SpooledTable:
    """Records of a table in a spool, and how they are encoded.

    Parameters
    ----------
    spool, records
        The spool, whose rows are merged, and its records.
    encoder
        How a record becomes a row.
    has_offset
        Whether rows have a known part of the linear predictor.
    memory
        Bytes that encoded rows may take in memory.
    """

    spool: Spool
    records: Column
    encoder: Encoder
    has_offset: bool
    memory: int

    def prepare(self, coding: Coding, intercept: bool, columns: Columns) -> Prepared:
        """Give the rows with targets in this coding, and columns in these units."""
        count, width = self.records.shape[0], self.encoder.width
        filled = self.encoder.preprocessing.width + len(self.encoder.places)
        is_sparse = bool(self.encoder.places) and filled < 0.3 * width
        bytes_needed = count * (12 * filled if is_sparse else 8 * width)
        if bytes_needed <= self.memory:
            return self._in_memory(coding, intercept, is_sparse, columns)
        return PreparedFile(self, FileRows(self.records, self.encoder, coding, intercept, self.has_offset, columns))

    def _in_memory(self, coding: Coding, intercept: bool, is_sparse: bool, columns: Columns) -> Prepared:
        """Read all rows, and treat them as an array."""
        blocks, records = [], []
        for chunk in self.records.chunks():
            blocks.append(self.encoder.rows(chunk, dense=not is_sparse))
            records.append(np.column_stack([self.encoder.target(chunk), chunk[:, -2:]]))
        X: Any = sparse.csr_array(sparse.vstack(blocks)) if is_sparse else np.concatenate(blocks)
        raw = np.concatenate(records)
        weights = coding.weights(raw[:, 0], raw[:, 2])
        offset = raw[:, 1] / coding.unit if self.has_offset else None
        data = Data(X, coding.targets(raw[:, 0]), None if np.all(weights == 1.0) else weights, offset)
        self.spool.close()
        return InMemory(data, Rows.arrange(X, data.targets, data.weights, intercept, offset, columns))


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFile:
    """Rows that are read from the spool when they are visited."""

    table: SpooledTable
    rows: FileRows
    widest: int = WIDEST_COVARIANCE
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
        return analyse_blocks(self.rows.csr_blocks)

    def run(self, task: Task) -> list[Result]:
        """Run EP for every linear predictor."""
        rows, spool = self.rows, self.table.spool
        with threads_for((rows.at_once, rows.shape[1]), task.analysis):
            if task.plan.covariance == "diagonal":
                return one_pass(task, self._blocks())
            digest = f"{spool.digest:016x} {rows.coding}"
            keeping = Keeping(self._sites, None if task.checkpoint is None else task.checkpoint(digest))
            return run_blocks(rows, task, keeping)

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""
        total = 0.0
        for data in self._blocks(rows=False):
            total += float(data.weights @ function(data.targets[0]))
        return total

    def close(self) -> None:
        """Remove the spool."""
        self.table.spool.close()

    def _sites(self, loss: Loss) -> FileSites:
        """Sites of all rows, in a file of the spool's folder."""
        folder: Path | None = self.table.spool.folder
        return FileSites(folder, self.shape[0], getattr(loss, "predictors", None), self.rows.offset)

    def _blocks(self, rows: bool = True) -> Iterator[Data]:
        """Rows as CSR, some at a time; or without their entries."""
        coding, encoder = self.rows.coding, self.table.encoder
        for records in self.table.records.chunks():
            X = sparse.csr_array(encoder.rows(records, dense=False)) if rows else None
            raw = encoder.target(records)
            offset = records[:, -2] if self.table.has_offset else None
            yield Data(X, coding.targets(raw), coding.weights(raw, records[:, -1]), offset)


__all__ = ["PreparedFile", "SpooledTable"]
