"""Which column of a table is what: numbers, categories, hashed text, target, weight, offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cavity.tables._batches import Reader, listed
from cavity.tables._cells import not_numbers
from cavity.tables._libsvm import LibsvmReader


@dataclass(frozen=True, slots=True)
class Roles:
    """What a user says about columns, by name.

    Parameters
    ----------
    target, weight, offset
        Columns of targets, weights and known parts of the predictor; None where there are none.
    categories
        Columns that are categories though they may look like numbers, or like identifiers; the target, if it is text.
    drop
        Columns that are left out.
    hashed
        Columns of text whose words are hashed.
    """

    target: str | None
    weight: str | None = None
    offset: str | None = None
    categories: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()

    @property
    def named(self) -> list[str]:
        """All columns that are named."""
        single = [name for name in (self.target, self.weight, self.offset) if name is not None]
        return [*single, *sorted(self.categories - {self.target}), *sorted(self.drop), *sorted(self.hashed)]


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of features by kind, in the order of the first file."""

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    hashed: tuple[str, ...]
    has_rows: bool = False

    def columns(self, roles: Roles) -> list[str]:
        """All columns to be read, for these roles."""
        single = [name for name in (roles.target, roles.weight, roles.offset) if name is not None]
        return [*self.numbers, *self.categories, *self.hashed, *single]


def resolve(readers: Sequence[Reader], roles: Roles) -> Schema:
    """Say what every column is, and check that all files have the same columns."""
    first, kinds = readers[0], readers[0].kinds
    for name in roles.named:
        if name not in kinds:
            raise ValueError(f"{first.path} has no column {name!r}; it has {listed(kinds)}")
    twice = {name for name in roles.named if roles.named.count(name) > 1}
    if twice:
        raise ValueError(
            f"column {sorted(twice)[0]!r} has two roles; it can be one of target, weight, offset, categories, drop and "
            "hash_columns"
        )
    for role, column in (("weight", roles.weight), ("offset", roles.offset)):
        if column is not None and kinds[column] != "number":
            raise not_numbers(first, column, f"{role} must be a number", "correct it, or name another column")
    features = [name for name in kinds if name not in (roles.target, roles.weight, roles.offset, *roles.drop)]
    numbers = tuple(n for n in features if kinds[n] == "number" and n not in roles.categories | roles.hashed)
    text = tuple(n for n in features if n not in numbers and n not in roles.hashed)
    for other in readers[1:]:
        _check_same(first, other, [*features, *(n for n in (roles.target, roles.weight, roles.offset) if n)])
    # The features of libsvm files are not columns.
    has_rows = isinstance(first, LibsvmReader)
    if has_rows != all(isinstance(reader, LibsvmReader) for reader in readers):
        raise ValueError(f"{first.path}: libsvm files cannot be mixed with others")
    if not features and not has_rows:
        raise ValueError(f"{first.path} has no column of features beside {listed(roles.named)}")
    return Schema(numbers, text, tuple(n for n in features if n in roles.hashed), has_rows)


def _check_same(first: Reader, other: Reader, used: Sequence[str]) -> None:
    """Refuse files whose columns differ from those of the first in name or kind."""
    mine, theirs = first.kinds, other.kinds
    lacking = [name for name in used if name not in theirs]
    added = [name for name in theirs if name not in mine]
    if lacking or added:
        what = f"has no column {lacking[0]!r}" if lacking else f"has a column {added[0]!r}"
        other_has = f"which {first.path} has" if lacking else f"which {first.path} does not have"
        raise ValueError(f"{other.path} {what}, {other_has}: all files of a table need the same columns")
    for name in used:
        if mine[name] != theirs[name]:
            text, numbers = (other, first) if mine[name] == "number" else (first, other)
            raise not_numbers(
                text,
                name,
                f"must be a number as in {numbers.path}",
                f"correct it, or declare the column a category of all files (categories=[{name!r}], --category {name})",
            )


__all__ = ["Roles", "Schema", "resolve"]
