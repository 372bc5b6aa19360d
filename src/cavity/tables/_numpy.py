"""NumPy's files, read block by block: what is mapped into memory would count as used."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.tables._batches import (
    Batch,
    Column,
    RawTexts,
    ReadOptions,
    Texts,
    check_names,
    chosen,
    damaged,
    listed,
    no_rows,
)


class Stored(NamedTuple):
    """An array of rows inside a file: where its entries begin, how they are arranged, what its columns are called."""

    start: int  # bytes
    rows: int
    names: tuple[str, ...]
    dtype: np.dtype[Any]  # of an entry; of a row with fields
    by_columns: bool

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * (1 if self.dtype.names else len(self.names))

    def form(self, name: str) -> np.dtype[Any]:
        """Type of the entries of a column."""
        return self.dtype[name] if self.dtype.names else self.dtype

    def read(self, path: Path, file: IO[bytes], span: tuple[int, int], names: list[str]) -> dict[str, NDArray[Any]]:
        """Read a span of rows of the named columns."""
        first, stop = span
        places = {name: place for place, name in enumerate(self.names)}
        if self.by_columns:
            starts = {name: self.start + (places[name] * self.rows + first) * self.dtype.itemsize for name in names}
            return {name: _entries(path, file, start, stop - first, self.dtype) for name, start in starts.items()}
        start, count = self.start + first * self.row_bytes, (stop - first) * self.row_bytes // self.dtype.itemsize
        entries = _entries(path, file, start, count, self.dtype)
        if self.dtype.names:
            return {name: entries[name] for name in names}
        table = entries.reshape(-1, len(self.names))
        return {name: table[:, places[name]] for name in names}


@dataclass(frozen=True, slots=True)
class NumpyReader:
    """One or two arrays, side by side."""

    path: Path
    size: int
    kinds: dict[str, str]
    options: ReadOptions
    arrays: tuple[Stored, ...]

    def batches(self, columns: Collection[str] | None = None) -> Iterator[Batch]:
        """Read the named columns, or all, from the first row on."""
        return self._batches(chosen(self.path, self.kinds, columns))

    def _batches(self, names: list[str]) -> Iterator[Batch]:
        rows = self.arrays[0].rows
        stored = sum(array.row_bytes for array in self.arrays)
        step = max(1, self.options.batch_bytes // max(8 * len(names), stored))
        with open(self.path, "rb") as file:
            for first in range(0, rows, step):
                span, columns = (first, min(first + step, rows)), dict[str, Column]()
                for array in self.arrays:
                    wanted = [name for name in names if name in array.names]
                    for name, entries in array.read(self.path, file, span, wanted).items():
                        columns[name] = self._column(name, entries, first)
                yield Batch(self.path, first + 1, columns)

    def _column(self, name: str, entries: NDArray[Any], first: int) -> Column:
        if self.kinds[name] == "number":
            whole = name in self.options.exact and entries.dtype.kind in "iu"
            return entries if whole else entries.astype(np.float64)
        try:
            return _raw_texts(entries) if name in self.options.raw else _texts(entries)
        except UnicodeDecodeError as error:
            row = 1 + first + [_is_text(entry) for entry in entries.tolist()].index(False)
            raise ValueError(f"{self.path}, row {row}, column {name!r}: text must be valid UTF-8") from error


def open_npy(path: Path, options: ReadOptions) -> NumpyReader:
    """Read the header of an array of numbers with two axes, or of rows with fields."""
    with open(path, "rb") as file:
        return _reader(path, options, (_stored(path, file, path.stat().st_size),))


def open_npz(path: Path, options: ReadOptions) -> NumpyReader:
    """Find the arrays X and y in an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise damaged(path, error) from error
    if not {"X.npy"} <= members.keys() <= {"X.npy", "y.npy"}:
        found = listed(name.removesuffix(".npy") for name in members)
        raise ValueError(f"{path} must hold the arrays 'X', rows and columns, and 'y', or 'X' alone; got {found}")
    arrays = []
    with open(path, "rb") as file:
        for name in sorted(members):
            member = members[name]
            if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                raise ValueError(f"{path}: {name} is compressed and cannot be read in parts; write it by numpy.savez")
            _go_to_member(path, file, member)
            arrays.append(_stored(path, file, file.tell() + member.file_size, "" if name == "X.npy" else "y"))
    return _reader(path, options, tuple(arrays))


def _go_to_member(path: Path, file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Go to the first byte of a member of an archive, behind its header and that header's two fields."""
    file.seek(member.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise damaged(path, f"{member.filename} has no header")
    file.seek(sum(struct.unpack("<HH", header[26:])), 1)


def _stored(path: Path, file: IO[bytes], end: int, name: str = "") -> Stored:
    """Read the header of an array whose entries must end within the file. A name is that of its only column."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_columns, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # the header is Python's text: whatever its parser raises
        raise damaged(path, error) from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{path} holds objects of Python ({dtype}), which are not opened; convert it to numbers")
    names: tuple[str, ...]
    if name and shape[1:] in ((), (1,)) and not dtype.names:
        names, by_columns = (name,), True
    elif dtype.names and len(shape) == 1 and not name:
        names, by_columns = dtype.names, False
    elif len(shape) == 2 and not dtype.names and not name:
        names = tuple(map(str, range(shape[1])))
    else:
        needed = "one axis" if name else "two axes, or one axis and fields"
        raise ValueError(f"{path}: the array {name or 'of rows'} must have {needed}, got shape {shape} of {dtype}")
    stored = Stored(file.tell(), shape[0], names, dtype, by_columns)
    if min(shape) < 0 or stored.start + stored.rows * stored.row_bytes > end:
        raise damaged(path, f"{dtype} of shape {shape} needs more bytes than there are")
    return stored


def _reader(path: Path, options: ReadOptions, arrays: tuple[Stored, ...]) -> NumpyReader:
    counts = {array.rows for array in arrays}
    if len(counts) > 1:
        raise ValueError(f"{path}: X and y must have the same number of rows, got {listed(map(str, counts))}")
    forms = {name: array.form(name) for array in arrays for name in array.names}
    check_names(path, forms, options.text | options.raw)
    if 0 in counts or not forms:
        raise no_rows(path)
    asked = options.text | options.raw
    kinds = {name: _kind(form, name in asked) for name, form in forms.items()}
    return NumpyReader(path, path.stat().st_size, kinds, options, arrays)


def _kind(form: np.dtype[Any], as_text: bool) -> str:
    if form.kind in "biuf":
        return "text" if as_text else "number"
    return "text" if form.kind in "US" else str(form)


def _entries(path: Path, file: IO[bytes], start: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    file.seek(start)
    content = file.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise damaged(path, "the file has become shorter")
    return np.frombuffer(content, dtype)


def _texts(entries: NDArray[Any]) -> Texts:
    """Find the levels; what is empty, or no number, is missing."""
    values, codes = np.unique(entries, return_inverse=True)
    words = _words(values)
    kept = [word for word in words if word]
    numbers = np.cumsum([bool(word) for word in words]) - 1
    return Texts(np.where([bool(word) for word in words], numbers, -1)[codes].astype(np.int32), kept)


def _raw_texts(entries: NDArray[Any]) -> RawTexts:
    words = [word.encode() for word in _words(entries)]
    offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
    return RawTexts(offsets, np.frombuffer(b"".join(words), dtype=np.uint8))


def _words(entries: NDArray[Any]) -> list[str]:
    """Write every entry as text."""
    if entries.dtype.kind == "S":
        return [entry.decode() for entry in entries.tolist()]
    return ["" if entry != entry else str(entry) for entry in entries.tolist()]


def _is_text(entry: bytes) -> bool:
    try:
        entry.decode()
    except UnicodeDecodeError:
        return False
    return True
