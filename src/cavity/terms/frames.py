"""Columns of tables as terms read them: numbers, levels, and errors that name what exists.

A table is anything whose columns are found by name: a DataFrame of pandas or polars, or a mapping of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from math import inf, isfinite
from typing import Any

import numpy as np

from cavity._checks import shown
from cavity._types import FloatArray, IndexArray

# A whole number as files write a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)\.0")


def names_of(frame: Any) -> list[str]:
    """Names of the columns."""
    found = frame.columns if hasattr(frame, "columns") else getattr(frame, "keys", tuple)()
    if not len(found):
        raise ValueError(f"terms need a table with named columns, such as a DataFrame, got {type(frame).__name__}")
    return [str(name) for name in found]


def length(frame: Any) -> int:
    """Count the rows."""
    return len(frame[names_of(frame)[0]]) if not hasattr(frame, "shape") else int(frame.shape[0])


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are like one that is not known, or which exist."""
    known = list(known)
    lower = {one.lower(): one for one in known}
    near = [lower[one] for one in get_close_matches(name.lower(), list(lower), 3)]
    if near:
        return "did you mean " + " or ".join(map(repr, near)) + "?"
    return "there are " + ", ".join(map(repr, known[:20])) + (" and more" if len(known) > 20 else "")


def column(frame: Any, name: str, where: str) -> Any:
    """Find a column; ``where`` is the part of the model that needs it."""
    names = names_of(frame)
    if name not in names:
        needs = "the table has no column" if where == repr(name) else f"{where} needs a column"
        lacks = "" if where == repr(name) else ", which the table lacks"
        raise ValueError(f"{needs} {name!r}{lacks}: {nearest(name, names)}")
    return frame[name]


def is_numeric(values: Any) -> bool:
    """Whether a column holds numbers or truth values, rather than text or categories."""
    dtype = values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype
    if hasattr(dtype, "is_numeric"):  # polars
        return bool(dtype.is_numeric()) or str(dtype) == "Boolean"
    return getattr(dtype, "kind", "O") in "biufc" and not hasattr(dtype, "categories")


def is_date(values: Any) -> bool:
    """Whether a column holds dates."""
    dtype = getattr(values, "dtype", None)
    return getattr(dtype, "kind", "O") == "M" or str(dtype).startswith(("Date", "datetime64"))


def holds_numbers(frame: Any, name: str, where: str) -> bool:
    """Whether a column holds numbers or dates; `ValueError` if there is none."""
    values = column(frame, name, where)
    return is_numeric(values) or is_date(values)


def numbers(frame: Any, name: str, where: str) -> FloatArray:
    """Values of a column of numbers, all finite; dates as days since 1970."""
    values = column(frame, name, where)
    if is_date(values):
        if getattr(values.dtype, "tz", None) is not None:  # of pandas
            values = values.dt.tz_convert(None)
        dates = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values).astype("datetime64[us]")
        found = dates.astype(np.float64) / 86_400e6
        found[np.isnat(dates)] = np.nan
    elif is_numeric(values):
        if hasattr(values, "isna"):
            found = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            found = np.asarray(values.cast(float) if hasattr(values, "cast") else values).astype(np.float64)
    else:
        raise ValueError(f"{where} needs numbers, but column {name!r} holds text or categories")
    bad = np.flatnonzero(~np.isfinite(found))
    if bad.size:
        what = "missing" if np.isnan(found[bad[0]]) else "infinite"
        raise ValueError(
            f"{where}: column {name!r} has {bad.size} missing or infinite values, the first in row {bad[0]} "
            f"({what}); drop these rows or fill them"
        )
    return found


def codes(frame: Any, name: str, where: str) -> tuple[IndexArray, list[str]]:
    """Give the number of every row's level, and all levels as text in their order, also categories without rows."""
    values = column(frame, name, where)
    missing = values.isna() if hasattr(values, "isna") else values.is_null() if hasattr(values, "is_null") else None
    if missing is not None and bool(missing.any()):
        raise ValueError(
            f"{where}: column {name!r} has missing values; give them a level of their own, such as 'missing'"
        )
    ordered = False
    try:
        if hasattr(values, "cat") and hasattr(values, "factorize"):
            found, each, ordered = values.cat.codes, list(values.cat.categories), bool(values.cat.ordered)
        elif hasattr(values, "factorize"):
            found, each = values.factorize()
        elif str(getattr(values, "dtype", "")).startswith("Enum"):
            found, each, ordered = values.to_physical(), list(values.dtype.categories), True
        else:
            places: dict[Any, int] = {}
            found = [places.setdefault(level, len(places)) for level in np.asarray(values).tolist()]
            each = list(places)
    except TypeError:  # a level without a hash, such as a list
        raise ValueError(f"{where}: column {name!r} must hold text, numbers or categories of these") from None
    texts = [_text(level, name, where) for level in each]
    distinct = list(dict.fromkeys(texts))
    if not ordered:
        distinct.sort(key=level_order)
    place = {level: j for j, level in enumerate(distinct)}
    return np.array([place[text] for text in texts], dtype=np.intp)[np.asarray(found, dtype=np.intp)], distinct


def places_of(levels: Iterable[str], known: Iterable[str]) -> IndexArray:
    """Places of levels among the known ones; the number of these for one that is not known."""
    place = {level: j for j, level in enumerate(known)}
    return np.array([place.get(level, len(place)) for level in levels], dtype=np.intp)


def level_text(level: Any) -> str:
    """Write a level as text: 5, 5.0, "5" and "5.0" are one level, whatever type a column has."""
    if isinstance(level, float | np.floating) and level.is_integer():
        return str(int(level))
    text = str(level)
    return text[:-2] if _WHOLE.fullmatch(text) else text


def level_order(level: str) -> tuple[bool, float, str]:
    """Key by which levels are sorted: numbers by their value, then other text."""
    try:
        value = float(level)
    except ValueError:
        value = inf
    return (False, value, level) if isfinite(value) else (True, 0.0, level)


def _text(level: Any, name: str, where: str) -> str:
    if isinstance(level, float) and level != level:
        raise ValueError(
            f"{where}: column {name!r} has missing values; give them a level of their own, such as 'missing'"
        )
    if not isinstance(level, str | int | float | bool | np.number | np.bool_):
        raise ValueError(f"{where}: column {name!r} must hold text, numbers or categories of these, got {shown(level)}")
    return level_text(level)
