"""Columns written to a file block by block, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cavity._checks import shown
from cavity.estimators.checkpoints import replaced
from cavity.tables.readers import arrow

Columns = Mapping[str, NDArray[Any]]


@contextmanager
def open_writer(path: str | os.PathLike[str]) -> Iterator[Callable[[Columns], None]]:
    r"""Give a function that writes columns, some rows at a time; the file is there when all of them are written.

    Parameters
    ----------
    path
        ``.parquet``, ``.csv``, ``.tsv``, or ``.npy``, which has one field per column. An existing file is replaced.

    Raises
    ------
    ValueError
        If the suffix is none of these.
    OSError
        If the file cannot be written. Nothing is left of it then.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "predictions.csv"
    >>> with open_writer(path) as write:
    ...     write({"label": np.array(["a", "b"]), "p": np.array([0.75, 0.5])})
    >>> path.read_text()
    '"label","p"\n"a",0.75\n"b",0.5\n'
    """
    check_writable(path)
    with replaced(path) as file:
        writer = _WRITERS[Path(path).suffix.lower()](file)
        try:
            yield writer.write
        except BaseException:
            with suppress(Exception):  # what is written is dropped
                writer.close()
            raise
        writer.close()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `open_writer` could not write to, before any work is done."""
    target = Path(path)
    if target.suffix.lower() not in _WRITERS:
        raise ValueError(f"{target}: the suffix must be one of {', '.join(_WRITERS)}, got {shown(target.suffix)}")


class _Parquet:
    """Columns in Arrow's types, the first block says which."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer: Any = None

    def write(self, columns: Columns) -> None:
        table = arrow().table({name: _arrow_array(values) for name, values in columns.items()})
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, schema: Any) -> Any:
        return arrow("parquet").ParquetWriter(self._file, schema)


class _Csv(_Parquet):
    """The same as text."""

    delimiter = ","

    def _open(self, schema: Any) -> Any:
        csv = arrow("csv")
        return csv.CSVWriter(self._file, schema, write_options=csv.WriteOptions(delimiter=self.delimiter))


class _Tsv(_Csv):
    delimiter = "\t"


class _Npy:
    """An array with one field per column; its length is filled in at the end, for which NumPy's header has room."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._rows = file, 0
        self._dtype: Any = None

    def write(self, columns: Columns) -> None:
        if self._dtype is None:
            self._dtype = np.dtype([(name, values.dtype) for name, values in columns.items()])
            self._header()
        rows = np.empty(len(next(iter(columns.values()))), dtype=self._dtype)
        for name, values in columns.items():
            rows[name] = values
        self._file.write(rows.tobytes())
        self._rows += rows.size

    def close(self) -> None:
        if self._dtype is not None:
            self._file.seek(0)
            self._header()

    def _header(self) -> None:
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self._rows,)}
        np.lib.format.write_array_header_2_0(self._file, header)


def _arrow_array(values: NDArray[Any]) -> Any:
    return arrow().array(values.tolist() if values.dtype.kind in "UO" else np.ascontiguousarray(values))


_WRITERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".parquet": _Parquet,
    ".pq": _Parquet,
    ".csv": _Csv,
    ".tsv": _Tsv,
    ".npy": _Npy,
}

__all__ = ["check_writable", "open_writer"]
