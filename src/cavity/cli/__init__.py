"""The command ``cavity``: fit, predict, score, inspect and update models on files."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

_NEEDED = ("typer", "rich", "pyarrow")


def main() -> None:
    """Run the command, or say how to install what it needs."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"cavity: the command needs {', '.join(missing)}: pip install 'cavity[cli]'\n")
        sys.exit(2)
    import_module("cavity.cli.commands").app()


__all__ = ["main"]
