"""What the command writes: results on standard output; progress, warnings and errors on standard error."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

TROUBLE, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes; the last is that of programs ended by Ctrl-C


def say(text: str) -> None:
    """Write one line to standard error."""
    typer.echo(f"cavity: {' '.join(text.split())}", err=True)


def out() -> Console:
    """Give the console of results, made when asked for: standard output may have been replaced."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


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


__all__ = ["BAD_INPUT", "INTERRUPTED", "TROUBLE", "out", "progress_console", "reported", "say"]
