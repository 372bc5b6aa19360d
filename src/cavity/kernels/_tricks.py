"""What makes Numba's code faster than Numba means to, each with a plain form that gives the same numbers.

With the environment variable ``CAVITY_TRICKS=off`` all are plain. Measured by leaving out one at a time, over the rows
of ``python -m benchmarks --only speed``: uncounted references 3.4 to 5.4 x on sparse rows, fetching ahead 1.6 to 2.1 x
on dense rows and 1.15 to 1.5 x on sparse ones, maximum and minimum in one instruction 1.25 x on the quasi 0-1 loss.
"""

from __future__ import annotations

import os
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Read once, when the kernels are imported.
ARE_ON = os.environ.get("CAVITY_TRICKS", "on") != "off"


def _options() -> dict[str, Any]:
    """Options of all kernels. They allocate nothing, so that references need not be counted, where Numba allows."""
    # Reassociation and contraction only: NaN and infinity keep their meaning.
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy"}
    try:
        njit(_nrt=False, **options)(_options)
    except KeyError:  # a private option of Numba, which a version may lack
        return options
    return {**options, "_nrt": False} if ARE_ON else options


# Of kernels that Python calls, and of those that only kernels call: forms that nobody calls would take time to compile.
OUTER = {**_options(), "no_cfunc_wrapper": True}
INNER = {**OUTER, "no_cpython_wrapper": True}


@intrinsic
def _fetch(typing_context: Any, array: Any, place: Any) -> Any:
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


@njit(**INNER)
def prefetch(array: Any, place: Any) -> None:
    """Ask for the cache line of an entry and go on. Reads nothing, so the entry may lie past the end of the array."""
    if ARE_ON:
        _fetch(array, place)


@njit(**INNER)
def _maximum(a: float, b: float) -> float:
    """Give the larger of two numbers in one instruction; NaN in the first argument stays NaN."""
    return b if b > a else a


@njit(**INNER)
def _minimum(a: float, b: float) -> float:
    """Give the smaller of two numbers in one instruction; NaN in the first argument stays NaN."""
    return b if b < a else a


# What methods of losses see as numpy when they are compiled.
_QUICK_NUMPY = ModuleType("quick_numpy")
vars(_QUICK_NUMPY).update(vars(np))
vars(_QUICK_NUMPY).update(maximum=_maximum, minimum=_minimum)


def with_quick_numpy(method: FunctionType) -> FunctionType:
    """Let a method see `_maximum` and `_minimum` in numpy.

    Numba's own look for NaN in both arguments. A cost is NaN where its predictor is, and that comes first.
    """
    if not ARE_ON:
        return method
    globals_ = {name: _QUICK_NUMPY if value is np else value for name, value in method.__globals__.items()}
    return FunctionType(method.__code__, globals_, method.__name__, method.__defaults__, method.__closure__)
