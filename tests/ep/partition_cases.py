"""Partitions of the rows in this process: what `cavity.ep.partitions` is tested by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cavity.ep.partition import Message, PartSites, Sums, costs, log_scale, sweep
from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis
from cavity.losses import Loss

FloatArray = NDArray[np.float64]


class InProcess:
    """Partitions in this process, one after the other: the reference."""

    def __init__(self, rows: Sequence[Rows], analysis: Analysis | None = None) -> None:
        self.rows, self.analysis = rows, analysis
        self.sites: list[PartSites | None] = [None] * len(rows)
        self.mixes: list[Sequence[float]] = [(0.0, 1.0)] * len(rows)

    @property
    def count(self) -> int:
        """Number of partitions."""
        return len(self.rows)

    def sweep(self, message: Message, chosen: Sequence[int]) -> Sums:
        """Visit the rows of these partitions."""
        total: Sums | None = None
        for k in chosen:
            self.sites[k], sums = sweep(self.rows[k], self.sites[k], message, self.mixes[k])
            total = sums if total is None else total.plus(sums)
        assert total is not None
        return total

    def accept(self, chosen: Sequence[int], mix: Sequence[float]) -> None:
        """Remember the combination for the next sweep."""
        for k in chosen:
            self.mixes[k] = mix

    def forget(self) -> None:
        """Drop all sites."""
        self.sites = [None] * self.count

    def costs(self, loss: Loss, predictor: int, points: FloatArray, last: int) -> FloatArray:
        """Sum up the losses."""
        return np.asarray(np.sum([costs(rows, loss, predictor, points) for rows in self.rows[: last + 1]], axis=0))

    def log_scale(self, message: Message) -> float:
        """Sum up the scales of all sites."""
        parts = zip(self.rows, self.sites, self.mixes, strict=True)
        return sum(log_scale(rows, sites, message, mix) for rows, sites, mix in parts)
