"""What a long fit shows while it runs: the loop, its change, and the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cavity.ep.driver import Run


class Progress(NamedTuple):
    """Progress of a fit, passed to a function given as ``verbose``.

    Parameters
    ----------
    loop
        Number of completed loops over the rows; 0 when the first loop begins.
    rows
        Number of distinct rows.
    change
        Change in the last loop, in standard deviations; NaN before the first loop ends.
    seconds
        Seconds since the first loop began.
    left
        Estimate of the remaining seconds; NaN before the second loop ends.
    predictor, predictors
        Index of the linear predictor that is fitted, and how many are fitted one after another.
    """

    loop: int
    rows: int
    change: float
    seconds: float
    left: float
    predictor: int
    predictors: int


Verbose = bool | Callable[[Progress], object] | None


@contextmanager
def loop_report(
    verbose: Verbose, max_iter: int, tol: float, rows: int, place: tuple[int, int] = (0, 1)
) -> Iterator[Callable[[Run], None]]:
    """Give a function that shows loops as they end: always, never, or for None those of long fits in a terminal.

    A function given as ``verbose`` is called with the progress instead. ``place`` is the predictor, and their number.
    """
    start, before, done = time.monotonic(), math.inf, 0  # loops done here: a fit may continue an earlier one
    told = verbose if callable(verbose) else None
    visible, written = sys.stderr.isatty() if verbose is None else bool(verbose), False
    patience = 3.0 if verbose is None else 0.0  # seconds

    def after_loop(going: Run) -> None:
        nonlocal before, done, written
        done += 1
        loop, change = len(going.diagnostics.changes), going.diagnostics.changes[-1]
        elapsed, last, before = time.monotonic() - start, before, change
        left = float(max_iter - loop) if done > 1 else math.nan  # one loop says nothing of the rate
        if 0.0 < change < last < math.inf and tol > 0.0:  # until the change is below the tolerance at its present rate
            left = min(max(math.log(change / tol) / math.log(last / change), 0.0), left)
        progress = Progress(loop, rows, change, elapsed, left * elapsed / done, *place)
        if told is not None:
            told(progress)
        elif visible and elapsed >= patience:
            time_left = "" if math.isnan(progress.left) else f", about {progress.left:.0f} s left"
            text = f"loop {loop}: changed by {change:.2g} standard deviations{time_left}"
            sys.stderr.write(f"\r{text:<76}")  # covers a longer one before
            sys.stderr.flush()
            written = True

    if told is not None:
        told(Progress(0, rows, math.nan, 0.0, math.nan, *place))
    try:
        yield after_loop
    finally:
        if written:
            sys.stderr.write("\n")
