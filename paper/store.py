"""Results on disk: one JSON file an experiment, written whole or not at all."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from paper.experiment import Json, Settings

# Raised when the form of a results file changes, so that older ones are not resumed from.
_FORMAT = 1


class OutputError(RuntimeError):
    """The output folder cannot serve; the message says why and what would."""


def prepare(folder: Path) -> None:
    """Make the folder, and make sure that a file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=".cavity-"):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write to the output folder {folder}: {reason}; name another with --out") from error


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file under another name, then rename it: a reader sees the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another folder with --out") from error


def save(folder: Path, name: str, settings: Settings, seconds: float, machine: Json, results: Json) -> Json:
    """Write the results of an experiment and how they came about; returns what was written."""
    record: Json = {
        "experiment": name,
        "format": _FORMAT,
        "settings": settings.as_json(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "machine": machine,
        "results": _finite(results),
    }
    replace_bytes(folder / f"{name}.json", json.dumps(record, indent=1, allow_nan=False).encode())
    return record


def read(folder: Path, name: str) -> Json | None:
    """Read the results of an experiment; None if there are none that can be read."""
    try:
        record = json.loads((folder / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return None
    is_ours = isinstance(record, dict) and record.get("experiment") == name and record.get("format") == _FORMAT
    return record if is_ours else None


def is_made_with(record: Json | None, settings: Settings) -> bool:
    """Whether results exist and were made with these settings."""
    return record is not None and record["settings"] == settings.as_json()


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
