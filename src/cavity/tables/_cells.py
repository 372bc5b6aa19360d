"""Cells of columns of text: numbers, dates or words, so that a slip in a column of numbers makes no categories."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from cavity.tables._batches import Batch, Reader, Texts, quoted, unreadable, where

_NUMBER, _DATE, _WORD, _MISSING = range(4)
# How files write a missing number, as in pandas.
_NOTHING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL")
) | {"NaN", "n/a", "nan", "null"}
_DATES = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?")
# Rows up to which every text may be another one.
_FEW = 20


class Cells:
    """Counts what the cells of a column of text are, batch by batch."""

    def __init__(self) -> None:
        self._counts, self._first = np.zeros(4, dtype=np.int64), ""

    def add(self, batch: Batch, name: str) -> None:
        """Count the cells of a batch."""
        column = batch.columns[name]
        if not isinstance(column, Texts):
            return
        kinds = np.array([*map(_kind, column.levels), _MISSING])[column.codes]  # the code -1 takes the last
        self._counts += np.bincount(kinds, minlength=4)
        strange = np.flatnonzero((kinds == _WORD) | (kinds == _DATE))
        if strange.size and not self._first:
            row = int(strange[0])
            self._first = f"{where(batch, row, name)}: {quoted(column.levels[column.codes[row]])}"

    def check(self, path: Path, name: str, levels: int, is_target: bool) -> None:
        """Refuse a column that is numbers but for some cells, dates, or almost another text in every row."""
        rows = int(np.sum(self._counts))
        present = rows - self._counts[_MISSING]
        numbers, dates = int(self._counts[_NUMBER]), int(self._counts[_DATE])
        declared = f"categories=[{name!r}], --category {name}"
        if present and 2 * dates >= present:
            raise unreadable(path, name, "date")
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
    """Say that a column must be numbers, name the first cell that is not one, and what to do."""
    kind = reader.kinds[name]
    if kind not in ("number", "text"):
        return unreadable(reader.path, name, kind)
    for batch in reader.batches([name]) if kind == "text" else ():
        column = batch.columns[name]
        if isinstance(column, Texts):
            strange = np.array([*(_kind(level) in (_WORD, _DATE) for level in column.levels), False])[column.codes]
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
        return _DATE if _DATES.fullmatch(text) else _WORD
    return _WORD if "_" in text else _NUMBER  # of digits that Python alone takes for a number


__all__ = ["Cells", "not_numbers"]
