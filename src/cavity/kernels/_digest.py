"""Digest of all that compiled code of a component depends on, so that a cache on disk notices every edit.

Numba freezes what a method reaches into the compiled code: constants of modules and classes, defaults, closures, helper
functions and what these reach in turn. All of it is taken in by value. Libraries are taken in by name and version.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import sys
from collections.abc import Iterable, Iterator
from enum import Enum, EnumMeta
from functools import cache, singledispatchmethod
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target


class UnknownContentError(TypeError):
    """Something whose content has no known digest."""


@cache
def digest_of(component: type) -> bytes | None:
    """Digest of a component's type and all that its methods reach; None where the content of one is unknown."""
    try:
        return _Reader().read(component)
    except (UnknownContentError, ValueError):  # the latter is of a closure's variable without a value
        return None


class _Reader:
    """Follows what is reached, everything once."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # the object is kept, so that its id stays its own

    def read(self, thing: Any) -> bytes:
        self._take(thing)
        return self._digest.digest()

    def _note(self, *texts: object) -> None:
        for text in texts:
            data = str(text).encode()
            self._digest.update(b"%d:%s" % (len(data), data))

    def _take(self, thing: Any) -> None:
        """Take in something that may have been met before: only then can it hold itself."""
        if _is_of_library(thing):
            self._note("library", _library_of(thing), _name_of(thing))
            return
        if isinstance(thing, FunctionType | type | list | dict | Dispatcher):
            if id(thing) in self._seen:
                self._note("seen", self._seen[id(thing)][0])
                return
            self._seen[id(thing)] = len(self._seen), thing
        self._note(type(thing).__qualname__)
        self._content(thing)

    def _take_all(self, things: Iterable[Any]) -> None:
        listed = list(things)
        self._note(len(listed))
        for thing in listed:
            self._take(thing)

    @singledispatchmethod
    def _content(self, thing: Any) -> None:
        raise UnknownContentError(f"{thing!r} of {type(thing).__qualname__}")

    @_content.register(int | float | complex | str | bytes | None | type(Ellipsis) | np.dtype)
    def _(self, thing: Any) -> None:
        self._note(repr(thing))

    @_content.register(np.ndarray | np.generic)
    def _(self, thing: Any) -> None:
        if thing.dtype.hasobject:
            raise UnknownContentError(f"an array of {thing.dtype}")
        self._note(thing.dtype.str if thing.dtype.names is None else thing.dtype.descr, thing.shape)
        self._digest.update(thing.tobytes())

    @_content.register(tuple | list)
    def _(self, thing: Any) -> None:
        if hasattr(thing, "_fields"):
            self._take(type(thing))
        self._take_all(thing)

    @_content.register(set | frozenset)
    def _(self, thing: Any) -> None:
        self._note(*sorted(_Reader().read(member).hex() for member in thing))

    @_content.register(dict)
    def _(self, thing: Any) -> None:
        self._take_all(part for pair in thing.items() for part in pair)

    @_content.register(Enum)
    def _(self, thing: Any) -> None:
        self._take(type(thing))
        self._note(thing.name)

    @_content.register(CodeType)
    def _(self, code: CodeType) -> None:
        self._note(code.co_name, code.co_argcount, code.co_flags, code.co_names, code.co_varnames, code.co_freevars)
        self._digest.update(code.co_code)
        self._take_all(code.co_consts)

    @_content.register(FunctionType)
    def _(self, function: FunctionType) -> None:
        self._take(function.__code__)
        self._take(function.__defaults__)
        self._take(function.__kwdefaults__)
        self._take_all(cell.cell_contents for cell in function.__closure__ or ())
        names = set(_all_names(function.__code__))
        for name in sorted(set(_global_names(function.__code__))):
            self._note(name)
            if name in function.__globals__:
                self._take_global(function.__globals__[name], names)
            else:
                self._note("builtin" if hasattr(builtins, name) else "absent")
        self._take_all(_overloads(function))

    def _take_global(self, thing: Any, names: set[str]) -> None:
        """Take in a global; of a module only what the code may mean by its names."""
        if not isinstance(thing, ModuleType) or _is_of_library(thing):
            self._take(thing)
            return
        self._note("module", thing.__name__)
        for name in sorted(names & set(vars(thing))):
            self._note(name)
            self._take_global(vars(thing)[name], names - {name})

    @_content.register(type)
    def _(self, kind: type) -> None:
        self._note(_name_of(kind))
        self._take_all(kind.__bases__)
        for name, member in sorted(vars(kind).items()):
            # What NamedTuple writes into a class besides its fields, and the noise of a loss; none of it is compiled.
            plain = name in ("_asdict", "_field_defaults", "_make", "_replace", "noise")
            if plain or (name.startswith("__") and name.endswith("__")):
                continue
            self._note(name)
            if type(member).__name__ != "_tuplegetter":
                self._take(member)

    @_content.register(EnumMeta)
    def _(self, kind: Any) -> None:
        self._note(_name_of(kind))
        self._take_all((name, member.value) for name, member in kind.__members__.items())

    @_content.register(property | staticmethod | classmethod | MethodType)
    def _(self, member: Any) -> None:
        self._take(member.fget if isinstance(member, property) else member.__func__)

    @_content.register(Dispatcher)
    def _(self, jitted: Any) -> None:
        self._take(jitted.py_func)
        self._take_all(sorted(jitted.targetoptions.items()))

    @_content.register(_Intrinsic)
    def _(self, intrinsic: Any) -> None:
        self._take(intrinsic._defn)


def _is_of_library(thing: Any) -> bool:
    """Whether a name and a version say all: modules of libraries, and what these define that has a name of its own."""
    named = isinstance(thing, ModuleType | type | FunctionType | BuiltinFunctionType | np.ufunc | type(np.where))
    return named and bool(_library_of(thing))


def _library_of(thing: Any) -> str:
    """Library that defines a thing, with its version; empty for what users write."""
    module = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
    if isinstance(thing, np.ufunc):
        module = "numpy" if thing is getattr(np, thing.__name__, None) else ""
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return f"{root} of Python {sys.version}"
    return f"{root} {sys.modules[root].__version__}" if root in ("numba", "numpy", "scipy") else ""


def _name_of(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or thing.__name__
    return f"{getattr(thing, '__module__', '')}.{name}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _all_names(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _global_names(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        steps = (step for step in dis.get_instructions(part) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        yield from (step.argval for step in steps)


def _overloads(function: FunctionType) -> list[FunctionType]:
    """List what Numba compiles in the place of a plain function."""
    context = cpu_target.typing_context
    context.refresh()
    try:
        kind = context.resolve_value_type(function)
    except ValueError:  # nothing
        return []
    return [t._overload_func for t in kind.templates if hasattr(t, "_overload_func")]
