"""Files that keep a model, in a form that cannot run code when it is opened.

A file is a zip archive of two members: a note of the library's version and of the model's size and digest, looked at
before the model is read, and the model as skops writes it, not compressed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from cavity import losses
from cavity._version import __version__
from cavity.estimators._archive import blaming, check_model_archive, opened, replaced, without_compression
from cavity.losses import joint

_FORMAT = 1  # of the file; another one is not read
# Members of the archive.
_NOTE, _MODEL = "cavity.json", "model.skops"


def save(model: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Save a model to a file. The file is written completely or not at all.

    Parameters
    ----------
    model
        An `EPClassifier`, an `EPRegressor`, or a scikit-learn pipeline that contains one.
    path
        Path of the file. An existing file is replaced and keeps its permissions; a link is followed.

    Raises
    ------
    TypeError
        If it is not an estimator.
    ImportError
        If skops is not installed (``pip install cavity[save]``).
    """
    if not isinstance(model, BaseEstimator):
        raise TypeError(f"model must be an estimator, got {type(model).__name__}")
    content = without_compression(_skops().dumps(model))
    check_model_archive(content)
    note = {
        "format": _FORMAT,
        "cavity": __version__,
        "model": type(model).__name__,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    with replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_NOTE, json.dumps(note, indent=2))
        archive.writestr(_MODEL, content)


def load(path: str | os.PathLike[str], trusted: Sequence[str] = ()) -> Any:
    """Load a model from a file written by `save`. Loading runs no code from the file.

    Parameters
    ----------
    path
        Path of the file. The memory needed is proportional to its size, or, for a model with a sparse precision
        matrix, at most what a fit may need.
    trusted
        Names of types that the file may contain in addition to those of numpy, scipy, scikit-learn and cavity, such as
        your own loss, ``"my_package.MyLoss"``.

    Returns
    -------
    BaseEstimator
        The model as it was saved.

    Raises
    ------
    ValueError
        If the file was not written by `save`, is damaged, has a newer format, contains types that are not trusted, or
        contains an inconsistent model, or one that would need more memory or time than any fit. No code from the file
        has been run.
    """
    note, content = _checked_content(Path(path))
    skops = _skops()
    with blaming(f"{path} is damaged, or not a model"):
        check_model_archive(content)
        held = set(skops.get_untrusted_types(data=content))
    strange = sorted(held - _known_types() - set(trusted))
    if strange:
        raise ValueError(
            f"{path} holds types that are not trusted: {', '.join(strange)}; if you know them to be harmless, pass "
            f"trusted={strange}"
        )
    with blaming(f"{path} holds a model that is not consistent"):
        model = skops.loads(content, trusted=sorted(_known_types() | set(trusted)))
        if not isinstance(model, BaseEstimator) or type(model).__name__ != note.get("model"):
            raise ValueError(f"its note speaks of {note.get('model')!r}, but it holds a {type(model).__name__}")
        _check_parts(model)
    return model


def _check_parts(model: BaseEstimator) -> None:
    """Let every estimator that a model holds check its state, and look at the indices of every sparse matrix."""
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, BaseEstimator):
            part.get_params(deep=False)  # fails where a parameter is missing
            getattr(part, "_check_state", lambda: None)()
            waiting.extend(vars(part).values())
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list | tuple | set):
            waiting.extend(part)
        elif isinstance(part, np.ndarray) and part.dtype == object:
            waiting.extend(part.flat)
        elif sparse.issparse(part) and part.format in ("csr", "csc", "bsr"):
            part.check_format(full_check=True)


def _checked_content(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the note, and the model's bytes after the note was found to fit them."""
    data = path.read_bytes()
    if not data.startswith(b"PK"):
        kind = " but a pickle, which can run code when it is opened" if data.startswith(b"\x80") else ""
        raise ValueError(f"{path} is not a model written by cavity.save{kind}; it was not read")
    with blaming(f"{path} is damaged or truncated"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
    if names != [_NOTE, _MODEL]:
        raise ValueError(f"{path} is a zip archive, but not one written by cavity.save: it has the members {names[:5]}")
    with blaming(f"{path} is damaged or truncated"), opened(data) as archive:
        if archive.getinfo(_NOTE).file_size > 4096:  # it has about 200
            raise ValueError("its note has more than 4096 bytes")
        note, content = json.loads(archive.read(_NOTE)), archive.read(_MODEL)
    if not isinstance(note, dict) or note.get("format") != _FORMAT:
        version = note.get("cavity", "unknown") if isinstance(note, dict) else "unknown"
        raise ValueError(
            f"{path} was written by cavity {version} in a format that cavity {__version__} does not know; update cavity"
        )
    if (note.get("size"), note.get("sha256")) != (len(content), hashlib.sha256(content).hexdigest()):
        raise ValueError(f"{path} is damaged: its content does not fit its size and digest; take another copy")
    return note, content


def _known_types() -> set[str]:
    """Names of our own types that a model may hold."""
    estimators = import_module("cavity.estimators")
    known = [estimators.EPClassifier, estimators.EPRegressor]
    known += [getattr(place, name) for place in (losses, joint) for name in place.__all__]
    return {f"{c.__module__}.{c.__qualname__}" for c in known if isinstance(c, type)}


def _skops() -> Any:
    try:
        return import_module("skops.io")
    except ModuleNotFoundError as error:
        raise ImportError("saving and loading models needs skops: pip install cavity[save]") from error
