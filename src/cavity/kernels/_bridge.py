"""The one Numba trick: methods of NamedTuples, written in plain Python, run inside compiled code.

A jitted function as argument, a jitclass and a closure compile again in every process. A method of a NamedTuple
reached through ``overload_method`` does not: the compiled caller is found in the cache on disk. So components are
NamedTuples, and a loss written once in Python runs in both worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.extending import overload_method

# Reassociation and contraction only: NaN and infinity keep their meaning.
FASTMATH = {"reassoc", "contract"}

kernel = njit(cache=True, fastmath=FASTMATH, error_model="numpy")


_OPTIONS = {"fastmath": FASTMATH, "error_model": "numpy"}


def open_method(name: str, arity: int) -> None:
    """Let compiled code call this method, of so many arguments, on any NamedTuple that has it."""

    def find(component: Any) -> Any:
        return getattr(getattr(component, "instance_class", None), name, None)

    overload_method(types.BaseNamedTuple, name, strict=False, jit_options=_OPTIONS)(_WITH_ARITY[arity](find))


# Numba reads the number of arguments off the signature, and takes no star.
_WITH_ARITY: dict[int, Callable[[Any], Any]] = {
    2: lambda find: lambda self, a, b: find(self),
    3: lambda find: lambda self, a, b, c: find(self),
    4: lambda find: lambda self, a, b, c, d: find(self),
    5: lambda find: lambda self, a, b, c, d, e: find(self),
    6: lambda find: lambda self, a, b, c, d, e, f: find(self),
    7: lambda find: lambda self, a, b, c, d, e, f, g: find(self),
    8: lambda find: lambda self, a, b, c, d, e, f, g, h: find(self),
}
