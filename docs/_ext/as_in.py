"""Parameters that a docstring describes by "As in `other`." get the words of the other one on the site."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from numpydoc.docscrape import NumpyDocString

# Names, and below them a reference to where they are described.
_ENTRY = re.compile(r"^( *)([*\w, ]+)\n +As in `([\w.]+)`\.$", re.MULTILINE)


def expanded(where: str, text: str) -> str:
    """Return a docstring, that of the object of this dotted path, with all parameters described in its own place."""

    def described(match: re.Match[str]) -> str:
        indent, names, target = match.groups()
        found = {name: entry for entry in _parameters(where, target) for name in entry.name.split(", ")}
        parts = []
        for name in names.split(", "):
            kind = f"{indent}{name} : {found[name].type}" if found[name].type else f"{indent}{name}"
            parts += [kind, *(f"{indent}    {line}" for line in found[name].desc)]
        return "\n".join(parts)

    return _ENTRY.sub(described, text)


def _parameters(where: str, target: str) -> list[Any]:
    """Read the parameters of what is named from there: a neighbour of the object, or a full path."""
    found = _resolved(where, target)
    path = f"{found.__module__}.{found.__qualname__}"
    return list(NumpyDocString(expanded(path, inspect.getdoc(found) or ""))["Parameters"])


def _resolved(where: str, target: str) -> Any:
    parts = where.split(".")
    for k in range(len(parts) - 1, 0, -1):
        found: Any = import_module(parts[0])
        for part in [*parts[1:k], *target.removeprefix("cavity.").split(".")]:
            found = getattr(found, part, None)
        if found is not None:
            return found
    raise ValueError(f"{where} refers to `{target}`, which does not exist")


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = expanded(name, "\n".join(lines)).split("\n")


def setup(app: Any) -> dict[str, bool]:
    """Come before numpydoc."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
