"""Files that keep a model, in a form that cannot run code when it is opened.

A file is a zip archive of two members: the model as skops writes it, and a note of the library's version and of the
model's digest, looked at before the model is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from cavity import losses, quadrature, schedules, schemes
from cavity._version import __version__

_FORMAT = 1
_MODEL, _NOTE = "model.skops", "cavity.json"


def save(model: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write a model to a file, whole or not at all.

    Parameters
    ----------
    model
        An `EPClassifier`, an `EPRegressor`, or a scikit-learn pipeline that holds one.
    path
        Where to; an existing file is replaced.

    Raises
    ------
    TypeError
        If it is not an estimator.
    ImportError
        If skops is not installed (``pip install cavity[save]``).
    """
    if not isinstance(model, BaseEstimator):
        raise TypeError(f"model must be an estimator, got {type(model).__name__}")
    content = _skops().dumps(model)
    note = {
        "format": _FORMAT,
        "cavity": __version__,
        "model": type(model).__name__,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with zipfile.ZipFile(temporary, "x") as archive:
            archive.writestr(_NOTE, json.dumps(note, indent=2))
            archive.writestr(_MODEL, content)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], trusted: Sequence[str] = ()) -> Any:
    """Read a model from a file that `save` wrote.

    Parameters
    ----------
    path
        The file.
    trusted
        Names of types beyond those of numpy, scipy, scikit-learn and cavity that the file may hold, such as a loss of
        your own, ``"my_package.MyLoss"``.

    Returns
    -------
    BaseEstimator
        The model as it was saved.

    Raises
    ------
    ValueError
        If the file is not one of ours, is damaged or truncated, comes from a newer format, or holds types that were
        not trusted; nothing of it has been run then.
    """
    content, skops = _checked_content(Path(path)), _skops()
    try:
        held = set(skops.get_untrusted_types(data=content))
    except Exception as error:
        raise ValueError(f"{path} is damaged, or not a model: {error}") from error
    strange = sorted(held - _known_types() - set(trusted))
    if strange:
        raise ValueError(
            f"{path} holds types that are not trusted: {', '.join(strange)}; if you know them to be harmless, pass "
            f"trusted={strange}"
        )
    return skops.loads(content, trusted=sorted(_known_types() | set(trusted)))


def _checked_content(path: Path) -> bytes:
    """Return the model's bytes after their note was found to fit them."""
    data = path.read_bytes()
    if not data.startswith(b"PK"):
        kind = "a pickle, which can run code when it is opened" if data.startswith(b"\x80") else "something else"
        raise ValueError(f"{path} is not a model written by cavity.save but {kind}; it was not read")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            note, content = json.loads(archive.read(_NOTE)), archive.read(_MODEL)
    except KeyError as error:
        raise ValueError(f"{path} is a zip archive, but not one written by cavity.save: {error.args[0]}") from error
    except Exception as error:  # what zipfile and its decompressors raise on damage is not limited to their own errors
        raise ValueError(f"{path} is damaged or truncated: {error}; take another copy") from error
    if not isinstance(note, dict) or note.get("format") != _FORMAT:
        version = note.get("cavity", "unknown") if isinstance(note, dict) else "unknown"
        raise ValueError(
            f"{path} was written by cavity {version} in a format that cavity {__version__} does not know; update cavity"
        )
    if hashlib.sha256(content).hexdigest() != note.get("sha256"):
        raise ValueError(f"{path} is damaged: its content does not fit its digest; take another copy")
    return content


def _known_types() -> set[str]:
    """Names of our own types that a model may hold."""
    from_modules = [
        getattr(module, name) for module in (losses, quadrature, schedules, schemes) for name in module.__all__
    ]
    estimators = import_module("cavity.estimators")
    classes = [*from_modules, estimators.EPClassifier, estimators.EPRegressor]
    return {f"{c.__module__}.{c.__qualname__}" for c in classes if isinstance(c, type)}


def _skops() -> Any:
    try:
        return import_module("skops.io")
    except ModuleNotFoundError as error:
        raise ImportError("saving and loading models needs skops: pip install cavity[save]") from error
