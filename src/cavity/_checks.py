"""Checks of single arguments: each returns the value in the form that is needed, or says what was needed and what came.

Booleans, strings and None are no numbers here; numbers of NumPy and arrays without axes are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from reprlib import Repr
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=str)


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Check a whole number, 3.0 included, within its limits."""
    plain, whole = _plain(value), None
    if as_float(plain).is_integer() or (isinstance(plain, int) and not isinstance(plain, bool)):
        whole = int(plain)  # which may be larger than any float
    if whole is None or (least is not None and whole < least) or (most is not None and whole > most):
        limits = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        raise ValueError(f"{name} must be a whole number{limits}, got {shown(value)}")
    return whole


def positive_number(name: str, value: Any) -> float:
    """Check a number above zero that is finite."""
    number = as_float(value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {shown(value)}")
    return number


def nonnegative_number(name: str, value: Any) -> float:
    """Check a number of zero or more that is finite."""
    number = as_float(value)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {shown(value)}")
    return number


def number_between(name: str, value: Any, low: float, high: float, ends: str = "[]") -> float:
    """Check a number in an interval whose ends belong to it, ``[`` and ``]``, or do not, ``(`` and ``)``."""
    number = as_float(value)
    above = low <= number if ends[0] == "[" else low < number
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below):
        raise ValueError(f"{name} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}, got {shown(value)}")
    return number


def one_of(name: str, value: Any, choices: Sequence[Choice]) -> Choice:
    """Check a name out of several."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    *others, last = map(repr, choices)
    listed = f"{', '.join(others)} or {last}" if others else last
    raise ValueError(f"{name} must be {listed}, got {shown(value)}")


def flag(name: str, value: Any) -> bool:
    """Check a yes or no; zero and one will do."""
    plain = _plain(value)
    if not isinstance(plain, bool | int) or plain not in (0, 1):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")
    return bool(plain)


def as_float(value: Any) -> float:
    """Make a float of a number; NaN, which no limit allows, of anything else."""
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, Real):
        return math.nan
    try:
        return float(plain)
    except OverflowError:
        return math.inf


def shown(value: Any) -> str:
    """Write a value for a message: short, and a number without its type."""
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = 100  # characters
    return short.repr(_plain(value))


def _plain(value: Any) -> Any:
    """Take a number out of a scalar or an array without axes; booleans stay what they are."""
    return value.item() if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)) else value
