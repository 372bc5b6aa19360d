"""Zip archives of NumPy arrays, written whole or not at all, and the state of a fit in one: a checkpoint.

Archives are not compressed, and whatever they say of sizes is compared with the size of the file before it is read: a
small file cannot ask for much memory. The checksums of the members find accidents.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from cavity._checks import nonnegative_number, shown
from cavity._version import __version__
from cavity.ep.driver import Run

# Kinds of arrays that archives hold: bool, integers, numbers, complex numbers, bytes, text, dates.
PLAIN_KINDS = "biufcSUmM"
_NOTE, _FORMAT = "note.json", 1
_ADVICE = "delete it to start over"
# Bytes that are copied at once.
_CHUNK = 1 << 22


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file beside its place, sync it, and give it its name; if anything is raised, what was there stays.

    A link is followed, and an existing file keeps its permissions.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a directory; name a file in it")
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is not a regular file, and cannot be replaced")
    mode = target.stat().st_mode & 0o7777 if target.exists() else None
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o666 if mode is None else 0o600), "wb") as file:
            if mode is not None:
                temporary.chmod(mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # the new name outlives a power failure where a folder can be synced
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def blaming(what: str, advice: str = "take another copy") -> Iterator[None]:
    """Turn whatever others raise on a file that was damaged or forged into a ValueError."""
    try:
        yield
    except (MemoryError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:
        detail = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{what}: {detail}; {advice}") from error


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[ZipFile]:
    """Open an archive, after its directory was found to promise no more bytes than there are."""
    with ZipFile(path) as archive:
        members, size = archive.infolist(), os.path.getsize(path)
        for info in members:
            if info.compress_type != ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"its member {info.filename} is compressed, which cavity never does")
        promised = sum(info.file_size for info in members)
        if promised > size:
            raise ValueError(f"its members have {promised} bytes together, but the file only {size}")
        yield archive


def write_array(archive: ZipFile, name: str, value: Any) -> None:
    """Write an array, or a column of a file chunk by chunk, in NumPy's format."""
    with archive.open(ZipInfo(name), "w", force_zip64=True) as member:
        if not hasattr(value, "chunks"):
            np.lib.format.write_array(member, np.asarray(value), version=(1, 0), allow_pickle=False)
            return
        header = {"descr": np.lib.format.dtype_to_descr(value.dtype), "fortran_order": False, "shape": value.shape}
        np.lib.format.write_array_header_1_0(member, header)
        for chunk in value.chunks():
            member.write(np.ascontiguousarray(chunk).data.cast("B") if chunk.size else b"")


def read_array(archive: ZipFile, name: str) -> NDArray[Any]:
    """Read an array."""
    with _array_member(archive, name) as (member, shape, order, dtype):
        return np.ndarray(shape, dtype, bytearray(member.read()), order=order)


@contextmanager
def _array_member(archive: ZipFile, name: str) -> Iterator[tuple[Any, tuple[int, ...], Any, np.dtype[Any]]]:
    """Open an array behind its header: file, shape, order and dtype, which agree with the number of bytes."""
    with archive.open(name) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError(f"the array {name} is in another version of NumPy's format")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(member)
        if dtype.kind not in PLAIN_KINDS or not dtype.itemsize:
            raise ValueError(f"the array {name} has the dtype {dtype}, which cavity never writes")
        left = archive.getinfo(name).file_size - member.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"the array {name} of shape {shape} and dtype {dtype} has {left} bytes")
        yield member, shape, "F" if by_columns else "C", dtype


class Checkpoint:
    """Writes snapshots of a fit to a file, and finds where an earlier one ended.

    A note says what the checkpoint belongs to: ``identity`` names data, parameters and version, and another one is
    refused. Beside it are the arrays of the driver's snapshot for every linear predictor. ``every`` is the least number
    of seconds between two writes.
    """

    def __init__(self, path: str | os.PathLike[str], every: float, identity: Mapping[str, str]) -> None:
        self.path, self.every = Path(path), nonnegative_number("every", every)
        self._note = {"format": _FORMAT, "cavity": __version__, **identity}
        self._written, self._warned = time.monotonic(), False
        self._known = self._members() if self.path.exists() else {}

    def state(self, predictor: int) -> Mapping[str, Any] | None:
        """Give the state that was kept of a linear predictor; None where there is none.

        Sites, one per row, are read when they are asked for.
        """
        if predictor not in self._known:
            return None
        members = {name: _Member(self.path, f"{predictor}/{name}.npy") for name in self._known[predictor]}
        return {name: one if name.startswith("site_") else np.asarray(one) for name, one in members.items()}

    def save(self, predictor: int, going: Run, at_once: bool = False) -> None:
        """Write the state of a run, at once or if the last write is old enough; those of earlier predictors stay."""
        if not at_once and time.monotonic() - self._written < self.every:
            return
        snapshot = going.snapshot()
        try:
            self._write(predictor, snapshot)
        except OSError as error:
            if not self._warned:
                warnings.warn(
                    f"the checkpoint {self.path} could not be written ({error.strerror or error}): the fit goes on, "
                    "and the last checkpoint that was written stays",
                    UserWarning,
                    stacklevel=2,
                )
            self._warned = True
        else:
            self._known = {k: names for k, names in self._known.items() if k < predictor}
            self._known[predictor] = list(snapshot)
        self._written = time.monotonic()

    def _write(self, predictor: int, snapshot: Mapping[str, Any]) -> None:
        done = [f"{k}/{name}.npy" for k, names in self._known.items() if k < predictor for name in names]
        with replaced(self.path) as file, ZipFile(file, "w") as archive:
            archive.writestr(_NOTE, json.dumps(self._note, indent=1))
            if done:
                with ZipFile(self.path) as before:
                    for name in done:
                        with before.open(name) as source, archive.open(name, "w", force_zip64=True) as member:
                            while chunk := source.read(_CHUNK):
                                member.write(chunk)
            for name, value in snapshot.items():
                write_array(archive, f"{predictor}/{name}.npy", value)

    def _members(self) -> dict[int, list[str]]:
        """Check that an existing file is whole and belongs to this fit, and list what it holds."""
        with blaming(f"the checkpoint {self.path} is damaged", _ADVICE), opened(self.path) as archive:
            note = json.loads(archive.read(_NOTE))
            names = [name for name in archive.namelist() if name != _NOTE]
            broken = archive.testzip()
            if broken is not None or not isinstance(note, dict):
                raise ValueError(f"its part {broken} does not fit its checksum")
        for what, mine in self._note.items():
            if note.get(what) != mine:
                raise ValueError(
                    f"the checkpoint {self.path} belongs to another fit: {what} is {shown(note.get(what))} there and "
                    f"{shown(mine)} here; delete it to start over, or name another file"
                )
        found: dict[int, list[str]] = {}
        for name in names:
            place, _, rest = name.partition("/")
            found.setdefault(int(place), []).append(rest.removesuffix(".npy"))
        return found


class _Member:
    """One array of a checkpoint: as a whole, or some rows at a time."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        with blaming(f"the checkpoint {self._path} is damaged", _ADVICE), opened(self._path) as archive:
            return np.asarray(read_array(archive, self._name), dtype=dtype)

    def chunks(self) -> Iterator[NDArray[Any]]:
        """All rows, some at a time."""
        with (
            blaming(f"the checkpoint {self._path} is damaged", _ADVICE),
            opened(self._path) as archive,
            _array_member(archive, self._name) as (member, shape, _, dtype),
        ):
            row = dtype.itemsize * math.prod(shape[1:])
            length = max(1, _CHUNK // max(row, 1))
            for i in range(0, shape[0], length):
                count = min(length, shape[0] - i)
                yield np.frombuffer(member.read(count * row), dtype=dtype).reshape(count, *shape[1:])


def described(value: Any) -> str:
    """Write a parameter by its content: other content differs, and equal content does not, in whatever process."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"array {value.dtype} {value.shape} {_digest(value.tobytes())}"
    content: Any
    if isinstance(value, np.ndarray):
        content = value.shape, *value.ravel().tolist()
    elif hasattr(value, "to_numpy"):  # DataFrames, Series and indices
        content = *getattr(value, "columns", [getattr(value, "name", None)]), value.to_numpy()
    elif isinstance(value, Mapping):
        content = sorted((described(key), described(one)) for key, one in value.items())
    elif isinstance(value, Set):
        content = sorted(map(described, value))
    elif isinstance(value, list | tuple):
        content = value
    elif isinstance(value, np.random.Generator):
        content = value.bit_generator.state
    elif isinstance(value, type) or hasattr(value, "__code__"):  # classes and functions, by their names
        return f"{value.__module__}.{value.__qualname__}"
    else:  # dataclasses, RandomState, and other objects; what has no state has its type, unless it writes more
        content = value.__getstate__() or ([] if repr(value) == object.__repr__(value) else [repr(value)])
    parts = content if isinstance(content, list | tuple) else [content]
    text = f"{type(value).__qualname__}({', '.join(map(described, parts))})"
    return text if len(text) <= 200 else f"{type(value).__qualname__} {_digest(text.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
