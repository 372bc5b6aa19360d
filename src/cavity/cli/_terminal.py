"""What the command writes: results on standard output; progress, warnings and errors on standard error; and Ctrl-C."""

from __future__ import annotations

import functools
import inspect
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import typer
from rich.console import Console

from cavity.estimators import Progress

TROUBLE, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes; the last is that of programs ended by Ctrl-C


def visible(text: str) -> str:
    """Write control characters, which a terminal would obey, as escapes: files may have them in names and labels."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """Write one line to standard error."""
    typer.echo(f"cavity: {visible(' '.join(text.split()))}", err=True)


def tell(text: str) -> None:
    """Write one line of results."""
    out().print(visible(text), markup=False)


def out() -> Console:
    """Give the console of results, made when asked for: standard output may have been replaced."""
    return Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def progress_console() -> Console:
    """Give the console of progress."""
    return Console(stderr=True, highlight=False)


def reported(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors that users can do something about into one line and an exit code."""

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        try:
            with _warnings_as_lines():
                return command(**given)
        except OSError as error:
            say(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
            raise typer.Exit(BAD_INPUT) from error
        except (ValueError, ImportError, MemoryError) as error:
            say(str(error) or "not enough memory")
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as error:
            say(str(error) or "interrupted; nothing was written")
            raise typer.Exit(INTERRUPTED) from error

    run.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    return run


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show warnings that are meant for users as lines, each once, and no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        yield


class FitProgress:
    """Shows a fit on standard error, and stops it after a loop when Ctrl-C asks for that.

    With a checkpoint the first Ctrl-C lets the present loop end and be kept; a second one, any without a checkpoint and
    any before the first loop, stops at once.
    """

    def __init__(self, visible: bool, checkpoint: Path | None) -> None:
        self._visible, self._checkpoint = visible, checkpoint
        self._console = progress_console()
        self._start, self._seconds = time.monotonic(), 0.0
        self._loops_began, self._stop_asked = False, False
        self._status: Any = None
        self._handler: Any = None

    def __enter__(self) -> Self:
        if self._visible and self._console.is_terminal:
            self._status = self._console.status("reading")
            self._status.start()
        if self._checkpoint is not None and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        """Show where a fit is; `KeyboardInterrupt` where it is to stop."""
        self._loops_began = True
        if progress.loop == 0:
            self._seconds = 0.0
            if progress.predictor == 0:
                self._line(f"read {progress.rows:,} distinct rows in {_time(time.monotonic() - self._start)}")
        else:
            self._line(self._of_loop(progress))
            self._seconds = progress.seconds
        if self._status is not None:
            self._status.update(f"loop {progress.loop + 1}")
        if self._stop_asked:
            raise KeyboardInterrupt

    def _of_loop(self, progress: Progress) -> str:
        pace = progress.rows / max(progress.seconds - self._seconds, 1e-9)
        which = f"class {progress.predictor + 1} of {progress.predictors}, " if progress.predictors > 1 else ""
        left = "" if math.isnan(progress.left) else f", about {_time(progress.left)} left"
        return f"{which}loop {progress.loop}: {pace:,.0f} rows/s, changed by {progress.change:.2g} sd{left}"

    def _line(self, text: str) -> None:
        if self._visible:
            self._console.print(text, markup=False, soft_wrap=True)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stop_asked or not self._loops_began:
            raise KeyboardInterrupt
        self._stop_asked = True
        before = "\n" if self._status is not None else ""  # below the line that is shown
        text = f"{before}cavity: stopping after this loop; Ctrl-C again stops at once\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


def _time(seconds: float) -> str:
    """Write a duration: seconds to the nearest tenth below ten, minutes and hours where it is long."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
