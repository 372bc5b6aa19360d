"""The state of a fit in a file, from which the same fit continues bit for bit.

A checkpoint is a zip archive, not compressed, whose members have checksums: a note of what it belongs to, and the
arrays of the driver's snapshot for every linear predictor, in NumPy's format. It is written beside its place, synced
and then renamed, so that there is always one whole checkpoint, the last or the one before.
"""

from __future__ import annotations

import json
import os
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._checks import nonnegative_number, shown
from cavity._version import __version__
from cavity.ep.driver import Run
from cavity.estimators._archive import blaming, replaced

_NOTE, _FORMAT = "note.json", 1
_ADVICE = "delete it to start over"
# Bytes that are copied at once.
_CHUNK = 1 << 22


class Checkpoint:
    """Writes snapshots of a fit to a file, and finds where an earlier one ended.

    ``every`` is the least number of seconds between two writes. ``identity`` names what the checkpoint belongs to:
    data, parameters, version; another one is refused.
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
        with (
            replaced(self.path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            archive.writestr(_NOTE, json.dumps(self._note, indent=1))
            self._copy_earlier(archive, predictor)
            for name, value in snapshot.items():
                with archive.open(f"{predictor}/{name}.npy", "w", force_zip64=True) as member:
                    _write_array(member, value)

    def _copy_earlier(self, archive: zipfile.ZipFile, predictor: int) -> None:
        """Copy the states of predictors that are done from the checkpoint before."""
        done = [f"{k}/{name}.npy" for k, names in self._known.items() if k < predictor for name in names]
        if not done:
            return
        with zipfile.ZipFile(self.path) as before:
            for name in done:
                with before.open(name) as source, archive.open(name, "w", force_zip64=True) as member:
                    while chunk := source.read(_CHUNK):
                        member.write(chunk)

    def _members(self) -> dict[int, list[str]]:
        """Check that an existing file is whole and belongs to this fit, and list what it holds."""
        with blaming(f"the checkpoint {self.path} is damaged", _ADVICE), zipfile.ZipFile(self.path) as archive:
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
        with (
            blaming(f"the checkpoint {self._path} is damaged", _ADVICE),
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._name) as member,
        ):
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False), dtype=dtype)

    def chunks(self) -> Iterator[NDArray[Any]]:
        """All rows, some at a time."""
        with (
            blaming(f"the checkpoint {self._path} is damaged", _ADVICE),
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._name) as member,
        ):
            np.lib.format.read_magic(member)
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
            row = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
            length = max(1, _CHUNK // max(row, 1))
            for i in range(0, shape[0], length):
                count = min(length, shape[0] - i)
                data = member.read(count * row)
                yield np.frombuffer(data, dtype=dtype).reshape(count, *shape[1:])


def _write_array(member: Any, value: Any) -> None:
    """Write an array, or a column of a file chunk by chunk, in NumPy's format."""
    if not hasattr(value, "chunks"):
        np.lib.format.write_array(member, np.asarray(value), version=(1, 0), allow_pickle=False)
        return
    header = {"descr": np.lib.format.dtype_to_descr(value.dtype), "fortran_order": False, "shape": value.shape}
    np.lib.format.write_array_header_1_0(member, header)
    for chunk in value.chunks():
        member.write(np.ascontiguousarray(chunk).data.cast("B") if chunk.size else b"")
