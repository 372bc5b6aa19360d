"""How Python and compiled code reach each other: options of Numba, methods of losses inside kernels, the cache on disk.

A component (a loss, a scheme, rows) is a NamedTuple. Its plain Python methods are compiled into the kernels that call
them, by ``overload_method``, so that a loss is written once. Jitted functions as arguments, closures and jitclasses
would have to be compiled again in every process.

Only entry points, which Python calls, are cached on disk, by Numba's own means and for the losses of the library. A
user's loss is compiled in every process, so that no edit of anything it reaches can be missed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from types import FunctionType
from typing import Any

from numba import njit, types
from numba.core import event
from numba.extending import overload_method

# Reassociation and contraction only: NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy", "no_cfunc_wrapper": True}
with suppress(KeyError):  # a private option of Numba, which a version may lack
    # Kernels allocate nothing, so that references to arrays need not be counted. Counting them would take several times
    # as long as the arithmetic on sparse rows.
    njit(_nrt=False)(lambda: None)
    OPTIONS["_nrt"] = False
# For functions that only kernels call: a form that Python could call would take time to compile.
INNER = {**OPTIONS, "no_cpython_wrapper": True}
# For arithmetic that depends on the order of its operations.
AS_WRITTEN = {**INNER, "fastmath": {"contract"}}

kernel = njit(**INNER)
careful = njit(**AS_WRITTEN)

# Seconds of compiling after which a line on standard error says so.
PATIENCE = 2.0


def open_method(name: str, arity: int, options: dict[str, Any] = INNER) -> None:
    """Let compiled code call the method of this name and number of arguments on any NamedTuple that has it."""

    def find(component: Any, *arguments: Any) -> Any:
        return getattr(getattr(component, "instance_class", None), name, None)

    names = ["self", *(f"argument{k}" for k in range(arity))]
    find.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in names])  # type: ignore[attr-defined]
    overload_method(types.BaseNamedTuple, name, strict=False, jit_options=options)(find)


def entry(function: Callable[..., Any], loss: Any = None) -> Any:
    """Compile a function that Python calls; with the loss of a user in every process, else cached on disk."""
    return _compiled(function, loss is None or type(loss).__module__.startswith("cavity.losses."))


@cache
def _compiled(function: Callable[..., Any], cached: bool) -> Any:
    """Wrap a function that Python calls.

    Numba notices edits of the file that holds the function only. So the name under which it is cached has a digest of
    all files that are compiled into it.
    """
    named = FunctionType(function.__code__, function.__globals__, function.__name__)
    named.__qualname__ = f"{function.__name__}_{_digest_of_sources()}"
    try:
        compiled = njit(cache=cached, **OPTIONS)(named)
    except RuntimeError:  # no folder can be written to
        compiled = njit(**OPTIONS)(named)
    _NOTICE.entries.append(compiled)
    return compiled


@cache
def _digest_of_sources() -> str:
    """Digest of the packages whose code or constants are compiled into kernels."""
    digest = hashlib.sha256()
    for package in ("kernels", "schemes", "moments", "losses", "gaussians"):
        folder = Path(str(import_module(f"cavity.{package}").__file__)).parent
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class _Notice(event.Listener):
    """Writes a line when compiling an entry point takes long; ``CAVITY_NOTICES=off`` in the environment turns it off.

    Numba tells when it begins to compile, after it has looked into its cache: what is found there is loaded in silence.
    """

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._timers: dict[Any, threading.Timer] = {}

    def on_start(self, happening: Any) -> None:
        compiled = happening.data["dispatcher"]
        if compiled in self.entries and os.environ.get("CAVITY_NOTICES", "on") != "off":
            timer = threading.Timer(PATIENCE, announce, [_line_about(compiled, happening.data["args"])])
            timer.daemon = True
            self._timers[compiled] = timer
            timer.start()

    def on_end(self, happening: Any) -> None:
        timer = self._timers.pop(happening.data["dispatcher"], None)
        if timer is not None:
            timer.cancel()


def _line_about(compiled: Any, arguments: Any) -> str:
    """Name the components that something is compiled for, of which the loss and the scheme come first."""
    names = [kind.instance_class.__name__ for kind in arguments if hasattr(kind, "instance_class")]
    how_often = "once, later runs load it from disk" if compiled.stats.cache_path else "in every new process"
    return f"cavity: compiling loops for {', '.join(names[:2])}; this usually takes up to 10 s, {how_often}"


def announce(line: str) -> None:
    """Write a line to standard error, if there is one."""
    with suppress(Exception):
        if not sys.is_finalizing():
            print(line, file=sys.stderr, flush=True)


_NOTICE = _Notice()
event.register("numba:compile", _NOTICE)
