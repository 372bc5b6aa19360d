"""A line on standard error about a long fit: the loop, its change, and the time left."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Self

from cavity.ep.options import Options

# Seconds after which a fit counts as long, where nobody said whether to show its progress.
_LONG = 3.0


class LoopReport:
    """Shows loops as they end: always, never, or where ``visible`` is None for long fits in a terminal."""

    def __init__(self, visible: bool | None, options: Options) -> None:
        self._visible = sys.stderr.isatty() if visible is None else bool(visible)
        self._patience = _LONG if visible is None else 0.0
        self._options, self._start, self._before, self._shown = options, time.monotonic(), math.inf, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\n")

    def after_loop(self, loop: int, change: float) -> None:
        """Tell of a loop that changed the posterior by so much."""
        elapsed = time.monotonic() - self._start
        before, self._before = self._before, change
        if not self._visible or elapsed < self._patience:
            return
        left = self._loops_left(loop, change, before) * elapsed / (loop + 1)
        self._shown = True
        sys.stderr.write(f"\rloop {loop + 1}: changed by {change:.2g} standard deviations, about {left:.0f} s left   ")
        sys.stderr.flush()

    def _loops_left(self, loop: int, change: float, before: float) -> float:
        """Loops until the change falls below the tolerance at its present rate, within those allowed."""
        most = float(self._options.max_iter - loop - 1)
        if not 0.0 < change < before or self._options.tol <= 0.0:
            return most
        return min(max(math.log(change / self._options.tol) / math.log(before / change), 0.0), most)
