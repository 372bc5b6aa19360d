"""Files of libsvm and SVMlight: a label and the features that are not zero, per line."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from scipy import sparse

from cavity._checks import shown
from cavity.tables._batches import Batch, ReadOptions, check_names, chosen, damaged

_TARGET = "target"
# Bytes: a line that is longer is an error, so that a file without line ends does not fill the memory.
_LONGEST_LINE = 1 << 28


@dataclass(frozen=True, slots=True)
class LibsvmReader:
    """A file of labels and features."""

    path: Path
    size: int
    kinds: dict[str, str]
    first_index: int
    block_bytes: int

    def batches(self, columns: Collection[str] | None = None) -> Iterator[Batch]:
        """Read labels and features from the first row on. There is no other column to choose."""
        chosen(self.path, self.kinds, columns)
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        first, line = 1, 1
        for text in _blocks(self.path, self.block_bytes):
            found = _parsed(self.path, text, line, self.first_index)
            line += text.count(b"\n")
            if found.labels.size:
                yield Batch(self.path, first, {_TARGET: found.labels}, _rows(found))
                first += found.labels.size


def open_libsvm(path: Path, options: ReadOptions) -> LibsvmReader:
    """Find from the first block whether features are counted from 0 or from 1."""
    check_names(path, [_TARGET], options.text | options.raw)
    if options.text | options.raw:
        raise ValueError(f"{path}, column {_TARGET!r}: labels of libsvm files are numbers, and cannot be read as text")
    if options.zero_based not in (True, False, "auto"):
        raise ValueError(f"zero_based must be True, False or 'auto', got {shown(options.zero_based)}")
    # An index of one digit and a value of one take four characters, and twelve bytes in memory.
    first_index, has_rows, line, block = 1 - bool(options.zero_based), False, 1, max(options.batch_bytes // 4, 1)
    for text in _blocks(path, block):
        found = _parsed(path, text, line, 0 if options.zero_based == "auto" else first_index)
        line += text.count(b"\n")
        if found.labels.size:
            has_rows = True
            if options.zero_based == "auto":
                first_index = 1 if found.indices.min(initial=1) > 0 else 0
            break
    if not has_rows:
        raise ValueError(f"{path} has no rows; it must have at least one")
    return LibsvmReader(path, path.stat().st_size, {_TARGET: "number"}, first_index, block)


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    """Read whole lines, about so many bytes at a time."""
    carried: list[bytes] = []
    with closing(_opened(path)) as file:
        while part := _read(path, file, size):
            cut = part.rfind(b"\n") + 1
            if cut:
                yield b"".join((*carried, part[:cut]))
                carried = []
            carried.append(part[cut:])
            if len(carried) * size > _LONGEST_LINE + size:
                raise ValueError(f"{path}: a line is longer than {_LONGEST_LINE >> 20} MB")
    if last := b"".join(carried):
        yield last


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


def _read(path: Path, file: Any, size: int) -> bytes:
    try:
        return bytes(file.read(size))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, error) from error


def _parsed(path: Path, text: bytes, line: int, first_index: int) -> Any:
    """Read lines, the first of which has the given number, or say what is wrong with one."""
    kernels = import_module("cavity.kernels._libsvm")  # compiled code is loaded with the first file that needs it
    found = kernels.parse_lines(text, first_index)
    if found.fault:
        number = line + text.count(b"\n", 0, found.place)
        raise ValueError(f"{path}, line {number}: {_MESSAGES[found.fault.name].format(_word(text, found.place))}")
    return found


_MESSAGES = {
    "LABEL": "a line must begin with a label, a number, got {}",
    "FEATURE": "features must be index:value with a whole number as index, got {}",
    "VALUE": "the value of a feature must be a number, got {}",
    "ORDER": "indices must ascend within a line, {} does not",
    "BASE": "index 0 in {}, and features are counted from 1; open the file with zero_based=True if they begin at 0",
    "SIZE": "indices must be below 2147483647, got {}",
    "QUERY": "expected qid: and a whole number, got {}",
    "RANGE": "{} is too large for a number of 64 bits",
}


def _word(text: bytes, place: int) -> str:
    """Write what stands at a place, for a message."""
    found = re.compile(rb"[^\s#]*").match(text, place, place + 40)
    return shown((found[0] if found else b"").decode(errors="replace"))


def _rows(found: Any) -> Any:
    width = int(found.indices.max(initial=-1)) + 1
    rows = sparse.csr_array((found.values, found.indices, found.starts), shape=(found.labels.size, width))
    rows.has_canonical_format = True  # indices ascend: need not be looked at again
    return rows
