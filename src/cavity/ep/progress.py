"""A progress bar on standard error, with nothing to install."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

_WIDTH = 40


class ProgressBar:
    """Shows how many of ``total`` updates are done, and leaves the line when done; silent unless ``visible``."""

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
        self.after_loop(loop, self._done + 1)

    def after_loop(self, loop: int, done: int) -> None:
        """Show that so many updates are done in all."""
        self._done = done
        share = _WIDTH * done // self._total
        if self._visible and share != self._shown:
            self._shown = share
            sys.stderr.write(f"\rloop {loop + 1} [{'#' * share:<{_WIDTH}s}] {done}/{self._total} updates ")
            sys.stderr.flush()
