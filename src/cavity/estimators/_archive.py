"""Files that are written whole or not at all, and zip archives that are checked before anything in them is read.

Archives are not compressed: what is stored as it is cannot grow when it is read. The sizes in an archive's directory
add up to no more than the archive has bytes, and arrays are as long as their headers say. So a model takes memory in
proportion to its file, whatever the file claims.
"""

from __future__ import annotations

import io
import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile

import numpy as np


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file beside its place, sync it, and give it its name; if anything is raised, what was there stays.

    A link is followed, and an existing file keeps its permissions.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
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


def _mode_of(target: Path) -> int | None:
    """Permissions of a file that is to be replaced; None where there is none yet."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a directory; name a file in it")
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is not a regular file, and cannot be replaced")
    return target.stat().st_mode & 0o7777 if target.exists() else None


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


def without_compression(content: bytes) -> bytes:
    """Return the archive with every member stored as it is, those of the sparse matrices in it included."""
    out = io.BytesIO()
    with ZipFile(io.BytesIO(content)) as archive, ZipFile(out, "w", ZIP_STORED) as plain:
        for name in archive.namelist():
            member = archive.read(name)
            plain.writestr(name, without_compression(member) if name.endswith(".npz") else member)
    return out.getvalue()


@contextmanager
def opened(data: bytes) -> Iterator[ZipFile]:
    """Open an archive, after its directory was found to promise no more bytes than there are."""
    with ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        for info in members:
            if info.compress_type != ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"its member {info.filename} is compressed, which cavity.save never does")
        promised = sum(info.file_size for info in members)
        if promised > len(data):
            raise ValueError(f"its members have {promised} bytes together, but the archive only {len(data)}")
        if len({info.filename for info in members}) != len(members):
            raise ValueError("two of its members have the same name")
        yield archive


def check_model_archive(content: bytes) -> None:
    """Check the archive of a model as skops writes it: sizes, arrays, and who refers to which member."""
    with opened(content) as archive:
        _count_nodes(json.loads(archive.read("schema.json")), {}, {})
        for name in archive.namelist():
            if name.endswith(".npz"):
                with opened(archive.read(name)) as matrix:
                    for part in matrix.namelist():
                        _check_array(part, matrix.read(part))
            elif name.endswith(".npy"):
                _check_array(name, archive.read(name))


def _check_array(name: str, data: bytes) -> None:
    """Check that an array has the bytes that its header promises: NumPy allocates them before it reads."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"the array {name} is in a version of NumPy's format that cavity does not read: {version}")
    shape, _, dtype = read(stream)
    left, size = len(data) - stream.tell(), math.prod(shape)
    if size * dtype.itemsize != left or (size and not dtype.itemsize):
        raise ValueError(f"the array {name} of shape {shape} and dtype {dtype} has {left} bytes")


def _count_nodes(state: Any, sizes: dict[Any, int], readers: dict[Any, Any]) -> int:
    """Count the nodes of a schema, and refuse one that means more nodes than it writes down.

    skops reads a node whose ``__id__`` it has seen as the one seen before. In a file of its own both are written out;
    in a forged one a few bytes could refer to a large node, over and over, and many nodes could read one large member.
    """
    if isinstance(state, list):
        return sum(_count_nodes(part, sizes, readers) for part in state)
    if not isinstance(state, dict):
        return 0
    count = sum(_count_nodes(part, sizes, readers) for part in state.values())
    if "__loader__" not in state:
        return count
    own, count = state.get("__id__") or id(state), count + 1
    if sizes.setdefault(own, count) != count:
        raise ValueError(f"two nodes of its schema have the id {own}, but not the same content")
    if "file" in state and readers.setdefault(state["file"], own) != own:
        raise ValueError(f"two nodes of its schema read the member {state['file']}")
    return count
