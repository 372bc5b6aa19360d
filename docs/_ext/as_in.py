"""Parameters and attributes that a docstring describes by "As in `other`." get the words of the other one on the site.

So do all parameters of a docstring without such a section that says "arguments as in `other`".
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from numpydoc.docscrape import NumpyDocString

# Names, and below them a reference to where they are described; and one reference for all.
_ENTRY = re.compile(r"^( *)([*\w, ]+)\n +As in `([\w.]+)`\.$", re.MULTILINE)
_ALL = re.compile(r"(?:; a|\. A)rguments as in `([\w.]+)`\.")


def expanded(where: str, found: Any) -> str:
    """Return the docstring of an object, named by a dotted path, with all parameters described in its own place."""
    text = inspect.getdoc(found) or ""
    reference = _ALL.search(text)
    if reference:
        text = text.replace(reference[0], ".")
        names = ", ".join(name for name in inspect.signature(found).parameters if name != "self")
        section = f"Parameters\n----------\n{names}\n    As in `{reference[1]}`."
        head, mark, tail = text.partition("\n\nReturns\n")
        text = f"{head.rstrip()}\n\n{section}{mark}{tail}"

    def described(match: re.Match[str]) -> str:
        indent, names, target = match.groups()
        entries = {name: entry for entry in _parameters(where, target) for name in entry.name.split(", ")}
        parts = []
        for name in names.split(", "):
            kind = f"{indent}{name} : {entries[name].type}" if entries[name].type else f"{indent}{name}"
            parts += [kind, *(f"{indent}    {line}" for line in entries[name].desc)]
        return "\n".join(parts)

    return _ENTRY.sub(described, text)


def _parameters(where: str, target: str) -> list[Any]:
    """Read parameters and attributes of what is named from there: a neighbour of the object, or a full path."""
    found = _resolved(where, target)
    document = NumpyDocString(expanded(f"{found.__module__}.{found.__qualname__}", found))
    return [*document["Parameters"], *document["Attributes"]]


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
    if what in ("class", "function", "method"):
        lines[:] = [*expanded(name, obj).split("\n"), ""]


def setup(app: Any) -> dict[str, bool]:
    """Come before numpydoc."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
