"""Partitions of the rows in this process: what `cavity.ep.partitions` is tested by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from cavity.ep.partitions import Message, PartSites, Sums, log_scale, sweep
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis


class InProcess:
    """Partitions in this process, one after the other: the reference."""

    def __init__(self, parts: Sequence[Rows], analysis: Analysis | None = None) -> None:
        self.parts, self.analysis = parts, analysis
        self.sites: list[PartSites | None] = [None] * len(parts)
        self.message: Message | None = None

    @property
    def rows(self) -> int:
        """Number of rows of all."""
        return sum(part.order.size for part in self.parts)

    def sweep(self, message: Message) -> Sums:
        """Update the sites of all rows."""
        swept = [sweep(part, sites, message) for part, sites in zip(self.parts, self.sites, strict=True)]
        self.sites = [sites for sites, _ in swept]
        return reduce(Sums.plus, (sums for _, sums in swept))

    def log_scale(self, message: Message) -> float:
        """Sum up the scales of all sites, and remember the message."""
        self.message = message
        return sum(log_scale(part, sites, message) for part, sites in zip(self.parts, self.sites, strict=True))

    def forget(self) -> None:
        """Drop all sites."""
        self.sites = [None] * len(self.parts)
