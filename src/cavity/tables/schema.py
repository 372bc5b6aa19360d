"""What the columns of a table are: their roles, their kinds, and whether cells of text look like a slip."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cavity.tables.readers import Batch, Reader, Texts, listed, quoted, unreadable, where

_NUMBER, _DATE, _COMMA, _WORD, _MISSING = range(5)
# How files write a missing number, as in pandas.
_NOTHING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL")
) | {"NaN", "n/a", "nan", "null"}
_DATES = re.compile(r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3\d{4})([ T]\d\d?:\d\d.*)?")
# Numbers with a decimal comma, and perhaps points between thousands.
_COMMAS = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
# Rows up to which every text may be another one.
_FEW = 20


@dataclass(frozen=True, slots=True)
class Roles:
    """Columns by their roles: single ones None where there are none; ``categories`` whatever is in them."""

    target: str | None
    weight: str | None = None
    offset: str | None = None
    categories: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()

    @property
    def single(self) -> list[str]:
        """Target, weight and offset, where there are such."""
        return [name for name in (self.target, self.weight, self.offset) if name is not None]


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of features by kind, in the order of the first file, and all columns to be read."""

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    used: tuple[str, ...]


def resolve(readers: Sequence[Reader], roles: Roles) -> Schema:
    """Find the kind of every column, and check that all files have the same columns."""
    first, kinds = readers[0], readers[0].kinds
    # A target may be declared a category: its labels are then text.
    named = [*roles.single, *sorted(roles.categories - {roles.target}), *sorted(roles.drop)]
    for name in named:
        if name not in kinds:
            raise ValueError(f"{first.path} has no column {name!r}; it has {listed(kinds)}")
    twice = {name for name in named if named.count(name) > 1}
    if twice:
        raise ValueError(
            f"column {sorted(twice)[0]!r} has two roles; it can be one of target, weight, offset, categories and drop"
        )
    for role, column in (("weight", roles.weight), ("offset", roles.offset)):
        if column is not None and kinds[column] != "number":
            raise not_numbers(first, column, f"{role} must be a number", "correct it, or name another column")
    features = [name for name in kinds if name not in (*roles.single, *roles.drop)]
    if not features:
        raise ValueError(f"{first.path} has no column of features beside {listed(named)}")
    numbers = tuple(name for name in features if kinds[name] == "number" and name not in roles.categories)
    text = tuple(name for name in features if name not in numbers)
    used = (*numbers, *text, *roles.single)
    for other in readers[1:]:
        _check_same(first, other, used)
    return Schema(numbers, text, used)


def _check_same(first: Reader, other: Reader, used: Sequence[str]) -> None:
    """Raise for a file whose columns differ from those of the first in name or kind."""
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


class Cells:
    """Counts what the cells of a column of text are, batch by batch."""

    def __init__(self) -> None:
        self._counts, self._first = np.zeros(5, dtype=np.int64), ""

    def add(self, batch: Batch, name: str) -> None:
        """Count the cells of a batch."""
        column = batch.columns[name]
        if not isinstance(column, Texts):
            return
        kinds = np.array([*map(_kind, column.levels), _MISSING])[column.codes]  # the code -1 takes the last
        self._counts += np.bincount(kinds, minlength=5)
        strange = np.flatnonzero((kinds != _NUMBER) & (kinds != _MISSING))
        if strange.size and not self._first:
            row = int(strange[0])
            self._first = f"{where(batch, row, name)}: {quoted(column.levels[column.codes[row]])}"

    def check(self, path: Path, name: str, levels: int, is_target: bool) -> None:
        """Raise for a column that is numbers but for some cells, dates, or almost another text in every row."""
        rows = int(np.sum(self._counts))
        present = rows - self._counts[_MISSING]
        numbers, dates, commas = (int(self._counts[kind]) for kind in (_NUMBER, _DATE, _COMMA))
        declared = f"categories=[{name!r}], --category {name}"
        if present and 2 * dates >= present:
            raise unreadable(path, name, "date")
        if present and 2 * commas >= present:
            raise ValueError(
                f"{self._first} is not a number, as {commas:,} of {present:,} cells of the column: write decimal "
                f"points instead of commas, or declare the column a category ({declared})"
            )
        if present > numbers >= 0.5 * present:
            raise ValueError(
                f"{self._first} is not a number, but {numbers:,} of {present:,} cells of the column are; correct it, "
                f"leave it empty if it is missing, or declare the column a category ({declared})"
            )
        if rows > _FEW and 2 * levels > rows:
            drop = "name another target" if is_target else f"drop the column (drop=[{name!r}], --drop {name})"
            raise ValueError(
                f"{path}, column {name!r}: {levels:,} different texts in {rows:,} rows, such as those of names or "
                f"identifiers; {drop}, or declare it a category ({declared})"
            )


def not_numbers(reader: Reader, name: str, needed: str, remedy: str = "correct it") -> ValueError:
    """Error of a column that must be numbers, with its first cell that is not one."""
    kind = reader.kinds[name]
    if kind not in ("number", "text"):
        return unreadable(reader.path, name, kind)
    for batch in reader.batches([name]) if kind == "text" else ():
        column = batch.columns[name]
        if isinstance(column, Texts):
            strange = np.array([*(_kind(level) not in (_NUMBER, _MISSING) for level in column.levels), False])
            strange = strange[column.codes]
            if np.any(strange):
                row = int(np.argmax(strange))
                cell = quoted(column.levels[column.codes[row]])
                return ValueError(f"{where(batch, row, name)}: {needed}, got {cell}; {remedy}")
    return ValueError(f"{reader.path}, column {name!r}: {needed}, got {kind}; {remedy}")


def _kind(text: str) -> int:
    text = text.strip()
    if text in _NOTHING:
        return _MISSING
    try:
        float(text)
    except ValueError:
        return _DATE if _DATES.fullmatch(text) else _COMMA if _COMMAS.fullmatch(text) else _WORD
    return _WORD if "_" in text else _NUMBER  # of digits that Python alone takes for a number
