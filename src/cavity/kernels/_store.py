"""Where a sweep keeps sites: one per batch, one for all, or none.

One type for the three, so that a sweep compiles once for all of them. ``load`` copies the site of a batch to ``work``;
``add`` adds a share of a change to it; ``restore`` undoes that; ``next_is_proper`` looks at the cavity of the batch
visited next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import kernel, open_method
from cavity.schemes.constants import PRECISION_ROUNDING

# Whose sites are kept: none, one per batch, one for all.
NONE, OWN, TIED = 0, 1, 2


class Store(NamedTuple):
    """Sites in flat arrays.

    ``starts[k]`` is where the coordinates of batch ``k`` begin in ``support``; an empty support means that every batch
    has all coordinates. Own sites lie along ``support``; the tied one along the coordinates, and ``touches`` counts the
    batches that touch each.
    """

    mode: int
    starts: Any
    support: Any
    shifts: Any
    precisions: Any
    scales: Any
    touches: Any

    def load(self, k: int, size: int, work: Any) -> float:
        """Copy the site of batch ``k``; return its log scale."""
        if self.mode == OWN:
            first = self.starts[k]
            for j in range(size):
                work.site_shift[j] = self.shifts[first + j]
                work.site_precision[j] = self.precisions[first + j]
            return self.scales[k]
        if self.mode == TIED:
            for j in range(size):
                work.site_shift[j] = self.shifts[work.coordinate[j]]
                work.site_precision[j] = self.precisions[work.coordinate[j]]
            return self.scales[0]
        return 0.0  # the scratch memory of a site is zero from the start, and nothing else writes to it

    def add(self, k: int, size: int, share: float, log_scale: float, work: Any) -> None:
        """Add a share of the change in ``work``: all of it to an own site, one batch's part of it to a tied one."""
        if self.mode == OWN:
            first = self.starts[k]
            for j in range(size):
                self.shifts[first + j] = work.site_shift[j] + share * work.fit_shift[j]
                self.precisions[first + j] = work.site_precision[j] + share * work.fit_precision[j]
            self.scales[k] += share * log_scale
        elif self.mode == TIED:
            for j in range(size):
                if work.touched[j]:
                    c = work.coordinate[j]
                    self.shifts[c] = work.site_shift[j] + share * work.fit_shift[j] / self.touches[c]
                    self.precisions[c] = work.site_precision[j] + share * work.fit_precision[j] / self.touches[c]
            self.scales[0] += share * log_scale / (self.starts.size - 1)

    def restore(self, k: int, size: int, log_scale: float, work: Any) -> None:
        """Copy back what was loaded."""
        if self.mode == OWN:
            first = self.starts[k]
            for j in range(size):
                self.shifts[first + j] = work.site_shift[j]
                self.precisions[first + j] = work.site_precision[j]
            self.scales[k] = log_scale
        elif self.mode == TIED:
            for j in range(size):
                if work.touched[j]:
                    self.shifts[work.coordinate[j]] = work.site_shift[j]
                    self.precisions[work.coordinate[j]] = work.site_precision[j]
            self.scales[0] = log_scale

    def next_is_proper(self, following: int, power: float, records: Any) -> bool:
        """Whether the posterior in ``records``, without the site of the batch visited next, is proper."""
        if self.mode == NONE:
            return True
        first = self.starts[following]
        for e in range(first, self.starts[following + 1]):
            j = self.support[e] if self.support.size else e - first
            place = e if self.mode == OWN else j
            if not cavity_is_proper(records[j], self.shifts[place], self.precisions[place], power):
                return False
        return True


@kernel
def cavity_is_proper(record: Any, shift: float, precision: float, power: float) -> bool:
    """Whether what is left of a coordinate's posterior exceeds its own rounding error."""
    left = record[1] - power * precision
    return np.isfinite(record[0] - power * shift) and left > PRECISION_ROUNDING * abs(record[1])


open_method("load", 3)
open_method("add", 5)
open_method("restore", 4)
open_method("next_is_proper", 3)
