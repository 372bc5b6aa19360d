"""Partitions of the rows in this process: what `cavity.ep.partitions` is tested by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from cavity.ep.partitions import Message, Mix, PartSites, Sums, log_scale, sweep
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis


class InProcess:
    """Partitions in this process, one after the other: the reference."""

    def __init__(self, rows: Sequence[Rows], analysis: Analysis | None = None) -> None:
        self.rows, self.analysis = rows, analysis
        self.sites: list[PartSites | None] = [None] * len(rows)
        self.mixes: list[Mix | None] = [None] * len(rows)

    @property
    def count(self) -> int:
        """Number of partitions."""
        return len(self.rows)

    def sweep(self, message: Message, mixes: Mapping[int, Mix | None]) -> Sums:
        """Visit the rows of these partitions."""
        found = []
        for k, mix in mixes.items():
            self.sites[k], sums = sweep(self.rows[k], self.sites[k] if mix else None, message, mix or (0.0, 1.0))
            found.append(sums)
        return reduce(Sums.plus, found)

    def log_scale(self, message: Message, mixes: Mapping[int, Mix | None]) -> float:
        """Sum up the scales of all sites, and remember which these are."""
        self.mixes = list(mixes.values())
        parts = zip(self.rows, self.sites, self.mixes, strict=True)
        return sum(log_scale(rows, sites, message, mix or (0.0, 1.0)) for rows, sites, mix in parts)
