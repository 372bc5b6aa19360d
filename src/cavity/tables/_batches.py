"""What readers give: some consecutive rows of a file at a time, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity._checks import shown

FloatArray = NDArray[np.float64]

# Bytes of a batch in memory, about. Of 1 to 64 MB the fastest for CSV; of larger ones all memory is fresh every time.
BATCH_BYTES = 8 << 20


class Texts(NamedTuple):
    """A column of strings.

    Parameters
    ----------
    codes
        Places in ``levels``, one per row; -1 where the string is missing.
    levels
        The strings, each of which is distinct and occurs in the batch.
    """

    codes: NDArray[np.int32]
    levels: list[str]


class RawTexts(NamedTuple):
    """A column of strings as they are: row i is ``data[offsets[i]:offsets[i + 1]]`` in UTF-8, empty where missing.

    Parameters
    ----------
    offsets
        Where every string begins, and where the last one ends.
    data
        Bytes of all strings.
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]


Column = FloatArray | Texts | RawTexts


class Batch(NamedTuple):
    """Some consecutive rows of one file.

    Parameters
    ----------
    path
        The file.
    first
        Number of the first row within the file; the first row of data is 1.
    columns
        Columns by name, in the order of the file; arrays may be read-only.
    rows
        Features of a libsvm file, whose only column is ``target``: a CSR array with as many columns as the largest
        feature of the batch needs.
    """

    path: Path
    first: int
    columns: dict[str, Column]
    rows: Any = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        column = next(iter(self.columns.values()))
        if isinstance(column, Texts):
            return column.codes.size
        return column.offsets.size - 1 if isinstance(column, RawTexts) else column.size


class Reader(Protocol):
    """A file that is read in batches, as often as one likes, in the same batches every time.

    ``kinds`` has every column in the order of the file: ``"number"`` or ``"text"``; anything else is the name of a
    type that cannot be read, and `batches` refuses such a column.
    """

    @property
    def path(self) -> Path: ...
    @property
    def size(self) -> int:
        """Bytes on disk."""
        ...

    @property
    def kinds(self) -> dict[str, str]: ...
    def batches(self, columns: Collection[str] | None = None) -> Iterator[Batch]:
        """Read from the first row on. Memory is bounded by the batch.

        Parameters
        ----------
        columns
            Names of the columns that are read; all by default.
        """
        ...


class ReadOptions(NamedTuple):
    """What a user says about a file."""

    text: frozenset[str] = frozenset()  # columns to be read as strings
    raw: frozenset[str] = frozenset()  # the same, as `RawTexts`
    delimiter: str | None = None  # of CSV; found in the header if None
    zero_based: bool | Literal["auto"] = "auto"  # first index of libsvm
    batch_bytes: int = BATCH_BYTES
    exact: frozenset[str] = frozenset()  # columns of labels, whose integers stay integers


def chosen(path: Path, kinds: dict[str, str], columns: Collection[str] | None) -> list[str]:
    """Check a choice of columns, and put it in the order of the file."""
    wanted = set(kinds if columns is None else columns)
    if not wanted:
        raise ValueError(f"{path}: name at least one column to read, of {listed(kinds)}")
    check_names(path, kinds, wanted)
    for name in kinds:
        if name in wanted and kinds[name] not in ("number", "text"):
            raise unreadable(path, name, kinds[name])
    return [name for name in kinds if name in wanted]


def unreadable(path: Path, name: str, kind: str) -> ValueError:
    """Say that a column is neither numbers nor text, and how dates become numbers."""
    drop = f"drop the column (drop=[{name!r}], --drop {name})"
    if not kind.startswith(("date", "timestamp")):
        return ValueError(
            f"{path}, column {name!r}: {kind} is neither a number nor text; {drop}, or convert it to one of these"
        )
    return ValueError(
        f"{path}, column {name!r}: dates are not numbers; convert them in all files, for example to days since 1970 by "
        f"pandas: frame[{name!r}] = (pandas.to_datetime(frame[{name!r}], utc=True) - pandas.Timestamp(0, tz='UTC')) / "
        f"pandas.Timedelta(days=1); or {drop}; or make every date a category (categories=[{name!r}], --category {name})"
    )


def check_names(path: Path, names: Iterable[str], wanted: Iterable[str]) -> None:
    """Refuse names that are not columns of the file."""
    known = dict.fromkeys(names)
    for name in wanted:
        if name not in known:
            raise ValueError(f"{path} has no column {shown(name)}; it has {listed(known)}")


def check_distinct(path: Path, names: Iterable[str]) -> None:
    """Refuse a file with two columns of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{path}, column {name!r}: two columns have this name; rename one of them")
        seen.add(name)


def where(batch: Batch, row: int, column: Any) -> str:
    """Name the file, row and column of a value."""
    return f"{Path(batch.path)}, row {batch.first + row}, column {column!r}"


def no_rows(path: Path) -> ValueError:
    """Say that a file has a header and nothing else."""
    return ValueError(f"{path} has columns but no rows; it must have at least one")


def listed(names: Iterable[str], most: int = 10) -> str:
    """Write names for a message, the first few of many."""
    every = list(names)
    return ", ".join(map(repr, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def damaged(path: Path, reason: object) -> ValueError:
    """Say that the form of a file is broken."""
    return ValueError(f"{path} cannot be read, it may be truncated or damaged: {one_line(str(reason), 200)}")


def one_line(text: str, most: int) -> str:
    """Join the lines of a text, and cut it where it is long."""
    joined = " ".join(text.split())
    return joined if len(joined) <= most else joined[:most] + "..."


def quoted(text: str) -> str:
    """Write a value of a file for a message."""
    return repr(one_line(text, 40))
