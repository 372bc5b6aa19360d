"""A line on standard error about a long fit: the loop, its change, and the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cavity.ep.driver import Run


@contextmanager
def loop_report(visible: bool | None, max_iter: int, tol: float) -> Iterator[Callable[[Run], None]]:
    """Give a function that shows loops as they end: always, never, or for None those of long fits in a terminal."""
    shows, patience = (sys.stderr.isatty(), 3.0) if visible is None else (visible, 0.0)  # seconds
    start, before, shown = time.monotonic(), math.inf, False

    def after_loop(going: Run) -> None:
        nonlocal before, shown
        loop, change = going.ledger.loops - 1, going.ledger.changes[-1]
        elapsed, last, before = time.monotonic() - start, before, change
        if not shows or elapsed < patience:
            return
        left = float(max_iter - loop - 1)
        if 0.0 < change < last and tol > 0.0:  # until the change falls below the tolerance at its present rate
            left = min(max(math.log(change / tol) / math.log(last / change), 0.0), left)
        seconds, shown = left * elapsed / (loop + 1), True
        sys.stderr.write(
            f"\rloop {loop + 1}: changed by {change:.2g} standard deviations, about {seconds:.0f} s left   "
        )
        sys.stderr.flush()

    try:
        yield after_loop
    finally:
        if shown:
            sys.stderr.write("\n")
