"""A progress bar on standard error, with nothing to install."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from cavity.ep.driver import Run


class ProgressBar:
    """Shows how many of ``total`` updates or loops are done, and ends the line when done; silent unless ``visible``."""

    def __init__(self, total: int, visible: bool) -> None:
        self._total, self._visible, self._done, self._shown = total, visible, 0, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown >= 0:
            sys.stderr.write("\n")

    def after_visit(self, loop: int) -> None:
        """Count one update."""
        self.show(loop, self._done + 1)

    def after_loop(self, run: Run) -> None:
        """Show the updates of a run so far."""
        self.show(run.ledger.loops - 1, run.ledger.updates)

    def count_loop(self, run: Run) -> None:
        """Count one loop."""
        self.show(run.ledger.loops - 1, self._done + 1)

    def show(self, loop: int, done: int) -> None:
        """Show that so many are done in all."""
        self._done = done
        share = 40 * done // self._total
        if self._visible and share != self._shown:
            self._shown = share
            sys.stderr.write(f"\rloop {loop + 1} [{'#' * share:<40s}] {done}/{self._total} ")
            sys.stderr.flush()
