"""Columns of categories in a table: one coefficient per level, whose variance is found.

A column of strings or of a categorical type becomes one column per level and one more, of zeros, for levels that are
not known yet: its coefficient stays at the prior, so that a new level has the mean and the spread of the known ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from cavity._checks import shown
from cavity.estimators._preprocessing import with_levels

FloatArray = NDArray[np.float64]
Levels = dict[str, list[Any]]


def levels_of(X: Any) -> Levels:
    """Levels of every column of categories, by its name; none where ``X`` is not such a table."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "iloc")):
        return {}
    found: Levels = {}
    for place, name in enumerate(X.columns):
        column = X.iloc[:, place]
        if _is_number(column.dtype):
            continue
        levels = _coded(column, name)[1]
        if not hasattr(column, "cat"):
            levels = sorted(levels, key=lambda level: (str(type(level)), level))
        if not levels:
            raise ValueError(f"column {name!r} has no levels: it needs at least one row or one category")
        found[str(name)] = levels
    return found


def encode(X: Any, levels: Levels, unseen: bool) -> Any:
    """Numbers first, then one column per level and one for levels that are not known; CSR.

    Where ``unseen`` is False a level that is not known is an error.
    """
    numbers = [name for name in X.columns if str(name) not in levels]
    width, columns = len(numbers), np.empty((X.shape[0], len(levels)), dtype=np.int64)
    for k, (name, known) in enumerate(levels.items()):
        columns[:, k] = width + _codes(X[next(c for c in X.columns if str(c) == name)], name, known, unseen)
        width += len(known) + 1
    values = check_array(X[numbers], dtype=np.float64) if numbers else np.empty((X.shape[0], 0))
    return with_levels(values, columns, width)


def _codes(column: Any, name: str, known: list[Any], unseen: bool) -> NDArray[np.intp]:
    """Give the number of every row's level among the known ones, or their count where it is none of them."""
    codes, given = _coded(column, name)
    places = {level: j for j, level in enumerate(known)}
    each = np.array([places.get(level, len(known)) for level in given], dtype=np.intp)
    found: NDArray[np.intp] = each[codes]
    if not unseen and np.any(found == len(known)):
        new = sorted({shown(given[j]) for j in np.unique(codes[found == len(known)])})
        raise ValueError(
            f"column {name!r} has levels that were not among the known ones: {', '.join(new[:10])}; give it a "
            "categorical type that names all levels before the first call"
        )
    return found


def _coded(column: Any, name: Any) -> tuple[NDArray[Any], list[Any]]:
    """Give the number of every row's level, and the levels: Python looks at each level once, not at each row."""
    if bool(column.isna().any()):
        raise ValueError(f"column {name!r} has missing values: give them a level of their own, such as 'missing'")
    try:
        codes, each = (column.cat.codes, column.cat.categories) if hasattr(column, "cat") else column.factorize()
    except TypeError:  # a level without a hash, such as a list
        raise ValueError(f"column {name!r} must hold strings, numbers or categories of these") from None
    return np.asarray(codes), [_plain(level, name) for level in each]


def names_of(features: list[str], levels: Levels) -> list[str]:
    """Names of the columns that `encode` makes."""
    names = [name for name in features if name not in levels]
    for name, known in levels.items():
        names += [*(f"{name}={level}" for level in known), f"{name}=(unseen)"]
    return names


def columns_of(features: int, levels: Levels) -> dict[str, NDArray[np.intp]]:
    """Which of the columns that `encode` makes belong to which column of categories."""
    start, found = features - len(levels), {}
    for name, known in levels.items():
        found[name] = np.arange(start, start + len(known) + 1)
        start += len(known) + 1
    return found


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biufc" and not hasattr(dtype, "categories")


def _plain(level: Any, name: Any) -> Any:
    """Give a level as a string, number or truth value of Python, which a file can hold."""
    plain = level.item() if isinstance(level, np.generic) else level
    if not isinstance(plain, str | int | float | bool):
        raise ValueError(f"column {name!r} must hold strings, numbers or categories of these, got {shown(level)}")
    return plain
