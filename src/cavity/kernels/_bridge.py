"""How Python reaches compiled code: methods of NamedTuples run inside kernels, and entry points are cached on disk.

A jitted function as argument, a jitclass and a closure compile again in every process. A method of a NamedTuple
reached through ``overload_method`` does not: the compiled caller is found in the cache on disk. So components are
NamedTuples, and a loss written once in Python runs in both worlds.

Only entry points are cached, each under a name that holds a digest of what was compiled into it: Numba itself does not
notice an edited loss in another file, and cannot read a cache that knows a loss which this process does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from numba import njit, types
from numba.core.caching import IndexDataCacheFile
from numba.extending import overload_method

from cavity.kernels._digest import digest_of
from cavity.kernels._notice import ANNOUNCER
from cavity.kernels._tricks import ARE_ON, INNER, OUTER, with_quick_numpy
from cavity.moments import constants as moments_constants
from cavity.schemes import constants as schemes_constants

kernel = njit(**INNER)
# For arithmetic that depends on the order of its operations.
AS_WRITTEN = {**INNER, "fastmath": INNER["fastmath"] - {"reassoc"}}
careful = njit(**AS_WRITTEN)


@cache
def entry(function: Callable[..., Any], *components: type) -> Any:
    """Compile an entry point for components of these types, cached on disk under a name of its own.

    What a script or a function defines has no name that another process could find it by, and what reaches something of
    unknown content could be edited without notice: neither is cached on disk.
    """
    digest, cached = hashlib.sha256(_digest_of_kernels()), True
    for component in components:
        content = digest_of(component)
        digest.update(content or b"")
        local = component.__module__ == "__main__" or "<locals>" in component.__qualname__
        cached = cached and content is not None and not local
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__module__, copy.__qualname__ = function.__module__, f"{function.__name__}_{digest.hexdigest()[:16]}"
    try:
        compiled = njit(cache=cached, **OUTER)(copy)
    except RuntimeError:  # there is no folder that a cache could be written to
        compiled = njit(**OUTER)(copy)
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if isinstance(file, IndexDataCacheFile):
        file.__class__ = _TolerantFiles
    ANNOUNCER.entries.add(compiled)
    return compiled


def kinds(component: Any) -> tuple[type, ...]:
    """Types of a component and of the components in its fields: what `entry` is to be asked for."""
    found = [type(component)]
    for part in component if isinstance(component, tuple) else ():
        found += [kind for kind in kinds(part) if issubclass(kind, tuple) and kind not in found]
    return tuple(found)


@cache
def _digest_of_kernels() -> bytes:
    """Digest of the sources in this folder and of the constants they import, and whether tricks are on."""
    digest = hashlib.sha256(b"on" if ARE_ON else b"off")
    shared = [Path(module.__file__) for module in (moments_constants, schemes_constants)]
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *shared):
        digest.update(path.read_bytes())
    return digest.digest()


class _TolerantFiles(IndexDataCacheFile):
    """Files of the cache: what cannot be read is compiled again, what cannot be written is done without."""

    def load(self, key: Any) -> Any:
        try:
            return super().load(key)
        except Exception:
            return None

    def save(self, key: Any, data: Any) -> None:
        with suppress(OSError):
            try:
                super().save(key, data)
            except Exception:  # of an index that cannot be read
                self.flush()
                super().save(key, data)


def open_method(name: str, arity: int, reassociate: bool = True) -> None:
    """Let compiled code call this method, of so many arguments, on any NamedTuple that has it."""
    options = INNER if reassociate else AS_WRITTEN

    def find(component: Any) -> Any:
        method = getattr(getattr(component, "instance_class", None), name, None)
        return method if method is None else with_quick_numpy(method)

    overload_method(types.BaseNamedTuple, name, strict=False, jit_options=options)(_WITH_ARITY[arity](find))


# Numba reads the number of arguments off the signature, and takes no star.
_WITH_ARITY: dict[int, Callable[[Any], Any]] = {
    1: lambda find: lambda self, a: find(self),
    2: lambda find: lambda self, a, b: find(self),
    3: lambda find: lambda self, a, b, c: find(self),
    4: lambda find: lambda self, a, b, c, d: find(self),
    5: lambda find: lambda self, a, b, c, d, e: find(self),
    6: lambda find: lambda self, a, b, c, d, e, f: find(self),
    7: lambda find: lambda self, a, b, c, d, e, f, g: find(self),
    8: lambda find: lambda self, a, b, c, d, e, f, g, h: find(self),
}
