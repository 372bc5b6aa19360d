"""Open a file by its suffix."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

from cavity._checks import shown
from cavity.tables._batches import BATCH_BYTES, Reader, ReadOptions
from cavity.tables._csv import open_csv
from cavity.tables._libsvm import open_libsvm
from cavity.tables._numpy import open_npy, open_npz
from cavity.tables._parquet import open_parquet

_OPENERS: dict[str, Callable[[Path, ReadOptions], Reader]] = {
    **dict.fromkeys((".parquet", ".pq"), open_parquet),
    **dict.fromkeys((".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), open_csv),
    **dict.fromkeys((".svm", ".libsvm", ".svmlight", ".svm.gz", ".libsvm.gz", ".svmlight.gz"), open_libsvm),
    ".npy": open_npy,
    ".npz": open_npz,
}


def open_reader(
    path: str | os.PathLike[str],
    *,
    text: Collection[str] = (),
    raw: Collection[str] = (),
    delimiter: str | None = None,
    zero_based: bool | Literal["auto"] = "auto",
    batch_bytes: int = BATCH_BYTES,
    exact: Collection[str] = (),
) -> Reader:
    """Open a file of rows for reading in batches; the suffix says how.

    Parameters
    ----------
    path
        ``.parquet`` or ``.pq``; ``.csv``, ``.tsv`` or ``.txt`` with a header; ``.svm``, ``.libsvm`` or ``.svmlight``.
        These two may be compressed, with ``.gz`` added. ``.npy`` with rows and columns, named ``0``, ``1`` and so on,
        or with fields; ``.npz`` with the arrays ``X`` and ``y``, not compressed.
    text
        Columns to be read as strings even if they look like numbers.
    raw
        Columns to be read as strings without looking for equal ones (`RawTexts`).
    delimiter
        Of a CSV file. By default whichever of comma, tab, semicolon and ``|`` is most frequent in the header.
    zero_based
        Whether the first feature of a libsvm file has the number 0. By default it has if 0 occurs in the first block.
    batch_bytes
        Size of a batch in memory, about.
    exact
        Columns whose integers stay integers, such as labels: double precision has no distinct ones above 2**53.

    Raises
    ------
    ValueError
        What cannot be read, with file, row and column. `batches` raises it too, where the trouble is farther down.
    OSError
        ``FileNotFoundError``, ``IsADirectoryError``, ``PermissionError`` and so on.

    Notes
    -----
    A number of a CSV file is missing where it is empty or one of ``NA``, ``N/A``, ``NaN``, ``null`` and the like, as in
    pandas; a text where it is empty. Columns are numbers or text by what is in the first 4 MB.
    """
    place = Path(path)
    suffix = "".join(place.suffixes[-2:] if place.suffix.lower() == ".gz" else place.suffixes[-1:]).lower()
    if suffix not in _OPENERS:
        raise ValueError(f"{place}: the suffix must be one of {', '.join(_OPENERS)}, got {shown(suffix)}")
    with open(place, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(
                f"{place} is not a regular file, and rows are read more than once; copy it to a file first"
            )
        if not file.read(1):
            raise ValueError(f"{place} is empty")
    options = ReadOptions(frozenset(text), frozenset(raw), delimiter, zero_based, batch_bytes, frozenset(exact))
    return _OPENERS[suffix](place, options)
