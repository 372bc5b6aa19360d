"""Groups of coefficients that share a prior variance, as users name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._checks import shown
from cavity.estimators._categories import columns_of

# What the group of all columns that no other group has is called.
REST = "features"


def named_groups(model: Any, width: int) -> dict[str, NDArray[np.intp]]:
    """Columns of every group with a name: of columns of categories, and as ``prior_groups`` asks."""
    given = model.prior_groups
    levels = vars(model).get("categories_", {})
    groups = columns_of(model.n_features_in_, levels)
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    plain = [name for name in names if name not in levels] if levels else names
    count = width - sum(columns.size for columns in groups.values())
    for name, columns in _as_asked(given, count, plain).items():
        if name in groups:
            raise ValueError(f"prior_groups names {name!r}, which is a column of categories and has a variance already")
        groups[name] = columns
    taken = np.zeros(width, dtype=bool)
    for columns in groups.values():
        taken[columns] = True
    rest = np.flatnonzero(~taken)
    return {REST: rest, **groups} if rest.size else groups


def check_groups(given: Any) -> None:
    """Refuse what cannot name groups, before the data are looked at."""
    fits = given is None or isinstance(given, Mapping) or (isinstance(given, str) and given == "categories")
    if not fits and (isinstance(given, str | bytes) or np.ndim(given) != 1):
        raise ValueError(
            "prior_groups must be None, 'categories', one label per feature, or a dict of names and features, got "
            f"{shown(given)}"
        )


def _as_asked(given: Any, count: int, names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return _from_dict(given, count, names)
    if isinstance(given, str):
        if not names:
            raise ValueError("prior_groups='categories' needs the names of an encoder: pass X as a DataFrame")
        labels: list[Any] = [name.rpartition("_")[0] or REST for name in names]
        labels = [label if labels.count(label) > 1 else REST for label in labels]
    else:
        labels = list(given)
        if len(labels) != count:
            raise ValueError(f"prior_groups must have one label for each of {count} features, got {len(labels)}")
    found: dict[str, NDArray[np.intp]] = {}
    for label in dict.fromkeys(labels):
        if str(label) != REST:
            found[str(label)] = np.array([j for j, other in enumerate(labels) if other == label])
    return found


def _from_dict(given: Mapping[Any, Any], count: int, names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    found: dict[str, NDArray[np.intp]] = {}
    seen: set[int] = set()
    for group, members in given.items():
        columns = [_column(one, count, names) for one in ([members] if isinstance(members, str | int) else members)]
        if not columns:
            raise ValueError(f"prior_groups: group {group!r} has no features; leave it out")
        twice = seen.intersection(columns)
        if twice or len(set(columns)) < len(columns):
            raise ValueError(f"prior_groups names a feature twice, the last time in group {group!r}")
        seen.update(columns)
        found[str(group)] = np.array(columns)
    return found


def _column(member: Any, count: int, names: Sequence[str]) -> int:
    if isinstance(member, str):
        if member not in names:
            known = ", ".join(names[:10]) or "none: X has no names, use numbers of columns"
            raise ValueError(f"prior_groups names the feature {member!r}, which is not among: {known}")
        return list(names).index(member)
    if not isinstance(member, int | np.integer) or not 0 <= member < count:
        raise ValueError(f"prior_groups must name features or columns from 0 to {count - 1}, got {shown(member)}")
    return int(member)
