"""The two Numba tricks: methods of NamedTuples run inside compiled code, and memory is fetched ahead of its use.

A jitted function as argument, a jitclass and a closure compile again in every process. A method of a NamedTuple
reached through ``overload_method`` does not: the compiled caller is found in the cache on disk. So components are
NamedTuples, and a loss written once in Python runs in both worlds.

Only entry points are cached, each under a name that holds a digest of what was compiled into it: Numba itself does not
notice an edited loss in another file, and cannot read a cache that knows a loss which this process does not.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic, overload_method

from cavity.kernels._digest import digest_of
from cavity.moments import constants

# Reassociation and contraction only: NaN and infinity keep their meaning.
FASTMATH = {"reassoc", "contract"}


def _options() -> dict[str, Any]:
    """Options of all kernels. They allocate nothing, so that references need not be counted, where Numba allows."""
    options: dict[str, Any] = {"fastmath": FASTMATH, "error_model": "numpy"}
    try:
        njit(_nrt=False, **options)(_options)
    except KeyError:  # a private option of Numba: without it all is the same, but slower
        return options
    return {**options, "_nrt": False}


OPTIONS = _options()
kernel = njit(**OPTIONS)
# For arithmetic whose order is its point.
AS_WRITTEN = {**OPTIONS, "fastmath": FASTMATH - {"reassoc"}}
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
        compiled = njit(cache=cached, **OPTIONS)(copy)
    except RuntimeError:  # there is no folder that a cache could be written to
        compiled = njit(**OPTIONS)(copy)
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if isinstance(file, IndexDataCacheFile):
        file.__class__ = _CheckedFiles
    return compiled


def kinds(component: Any) -> tuple[type, ...]:
    """Types of a component and of the components in its fields: what `entry` is to be asked for."""
    found = [type(component)]
    for part in component if isinstance(component, tuple) else ():
        found += [kind for kind in kinds(part) if issubclass(kind, tuple) and kind not in found]
    return tuple(found)


@cache
def _digest_of_kernels() -> bytes:
    """Digest of the sources in this folder and of the constants they import."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(constants.__file__)):
        digest.update(path.read_bytes())
    return digest.digest()


class _CheckedFiles(IndexDataCacheFile):
    """Files of the cache, with digests: whatever is damaged, or names types that this process lacks, is not there.

    It is compiled again then, and written anew. A cache that cannot be written is done without.
    """

    def save(self, key: Any, data: Any) -> None:
        with suppress(OSError):
            super().save(key, data)

    def _load_index(self) -> Any:
        try:
            return self._opened(super()._load_index()[""])
        except Exception:
            return {}

    def _save_index(self, overloads: Any) -> None:
        super()._save_index({"": self._sealed(overloads)})

    def _load_data(self, name: str) -> Any:
        try:
            return self._opened(super()._load_data(name))
        except Exception:
            return None

    def _save_data(self, name: str, data: Any) -> None:
        super()._save_data(name, self._sealed(data))

    def _sealed(self, thing: Any) -> tuple[bytes, bytes]:
        content = self._dump(thing)
        return hashlib.sha256(content).digest(), content

    def _opened(self, sealed: tuple[bytes, bytes]) -> Any:
        digest, content = sealed
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("the content does not fit its digest")
        return pickle.loads(content)


def open_method(name: str, arity: int, reassociate: bool = True) -> None:
    """Let compiled code call this method, of so many arguments, on any NamedTuple that has it."""
    options = OPTIONS if reassociate else AS_WRITTEN

    def find(component: Any) -> Any:
        method = getattr(getattr(component, "instance_class", None), name, None)
        return method if method is None else _with_quick_numpy(method)

    overload_method(types.BaseNamedTuple, name, strict=False, jit_options=options)(_WITH_ARITY[arity](find))


@intrinsic
def prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of an entry and go on. Reads nothing, so the entry may lie past the end of the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        entries = context.make_array(kind)(context, builder, arguments[0])
        places = cgutils.unpack_tuple(builder, arguments[1])
        pointer = cgutils.get_item_pointer(context, builder, kind, entries, places, wraparound=False, boundscheck=False)
        number = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        builder.call(function, [builder.bitcast(pointer, cgutils.voidptr_t), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.UniTuple(types.intp, len(place))), generate


@intrinsic
def wide_vectors(typing_context: Any) -> Any:
    """Let the function that calls this use vectors as wide as the processor has, also where it shies from them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@kernel
def _maximum(a: float, b: float) -> float:
    """Give the larger of two numbers in one instruction; NaN in the first argument stays NaN."""
    return b if b > a else a


@kernel
def _minimum(a: float, b: float) -> float:
    """Give the smaller of two numbers in one instruction; NaN in the first argument stays NaN."""
    return b if b < a else a


_QUICK_NUMPY = ModuleType("quick_numpy")
vars(_QUICK_NUMPY).update(vars(np))
vars(_QUICK_NUMPY).update(maximum=_maximum, minimum=_minimum)


def _with_quick_numpy(method: FunctionType) -> FunctionType:
    """Let a method see `_maximum` and `_minimum` in numpy.

    Numba's own look for NaN in both arguments. A cost is NaN where its predictor is, and that comes first.
    """
    globals_ = {name: _QUICK_NUMPY if value is np else value for name, value in method.__globals__.items()}
    return FunctionType(method.__code__, globals_, method.__name__, method.__defaults__, method.__closure__)


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
