"""A line on standard error when compiling takes long, so that nobody wonders what a first run is doing.

Numba tells when it begins to compile, after it has looked into its cache: what is found there is loaded in silence.
``CAVITY_NOTICES=off`` in the environment turns the line off.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from numba import types
from numba.core import event

# Seconds of compiling after which the line is written.
PATIENCE = 2.0
# Seconds that compiling usually takes: estimated from processor times on a busy machine, where exact projection took
# longest. `python -m benchmarks --only first_use` measures them.
USUAL_SECONDS = 10
# Names of what compiled loops do where their arguments do not say it.
_OF_SINGLE_PASSES = {"single_taylor": "QuickLaplace", "single_star": "VariationalQuadrature"}


class Announcer(event.Listener):
    """Waits while an entry point is compiled, and writes a line if that takes long."""

    def __init__(self) -> None:
        self.entries: WeakSet[Any] = WeakSet()
        self._waiting: dict[int, threading.Timer] = {}

    def on_start(self, happening: Any) -> None:
        """Begin to wait, where what is compiled is one of ours and not a part of it."""
        compiled = happening.data["dispatcher"]
        if compiled in self.entries and os.environ.get("CAVITY_NOTICES", "on") != "off":
            timer = threading.Timer(PATIENCE, announce, [describe(compiled, happening.data["args"])])
            timer.daemon = True
            self._waiting[id(compiled)] = timer
            timer.start()

    def on_end(self, happening: Any) -> None:
        """Stop waiting."""
        timer = self._waiting.pop(id(happening.data["dispatcher"]), None)
        if timer is not None:
            timer.cancel()


def describe(compiled: Any, arguments: Any) -> str:
    """Say what is compiled, in the names of components: schemes, losses, kinds of rows."""
    names = list(_names_in(arguments))
    rows = "sparse" if "SparseData" in names else "dense"
    name = compiled.py_func.__name__
    if name in _OF_SINGLE_PASSES:
        names.insert(1, _OF_SINGLE_PASSES[name])
    what = f"the loops of {names[1]} for the loss {names[0]} over {rows} rows" if len(names) > 1 else "loops"
    kept = (
        "once: later runs find it on disk" if compiled.stats.cache_path else "in every new process, as no cache serves"
    )
    return f"cavity: compiling {what}; this usually takes up to {USUAL_SECONDS} s, {kept}"


def _names_in(arguments: Any) -> Any:
    """Names of the NamedTuples among types of arguments, those within tuples included, from left to right."""
    for kind in arguments:
        if isinstance(kind, types.BaseNamedTuple):
            yield kind.instance_class.__name__  # type: ignore[attr-defined]
        elif isinstance(kind, types.BaseTuple):
            yield from _names_in(kind)


def announce(line: str) -> None:
    """Write a line, unless there is nowhere to write it to."""
    with suppress(Exception):
        if not sys.is_finalizing():
            print(line, file=sys.stderr, flush=True)


ANNOUNCER = Announcer()
event.register("numba:compile", ANNOUNCER)
