"""Where a sweep keeps sites: one per batch, one for all, or none.

One type for the three, so that a sweep compiles once for all of them. ``load`` copies the site of a batch to ``work``;
``write`` puts it back with a share of a change added; ``next_is_proper`` looks at the cavity of the batch visited next.
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
        if self.mode == NONE:
            return 0.0  # the scratch memory of a site is zero from the start, and nothing else writes to it
        is_own, first = self.mode == OWN, self.starts[k]
        for j in range(size):
            place = first + j if is_own else np.int64(work.coordinate[j])
            work.site_shift[j] = self.shifts[place]
            work.site_precision[j] = self.precisions[place]
        return self.scales[k if is_own else 0]

    def write(self, k: int, size: int, share: float, scales: Any, work: Any) -> None:
        """Write the site that was loaded and a share of the change, or one batch's part of that to a tied one.

        ``scales`` are the log scale that was loaded, and its change.
        """
        if self.mode == NONE:
            return
        is_own, first = self.mode == OWN, self.starts[k]
        for j in range(size):
            if is_own or work.touched[j]:
                place = first + j if is_own else np.int64(work.coordinate[j])
                part = share if is_own else share / self.touches[place]
                self.shifts[place] = work.site_shift[j] + part * work.fit_shift[j]
                self.precisions[place] = work.site_precision[j] + part * work.fit_precision[j]
        part = share if is_own else share / (self.starts.size - 1)
        self.scales[k if is_own else 0] = scales[0] + part * scales[1]

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
open_method("write", 5)
open_method("next_is_proper", 3)
