"""The `cavity` command. What it needs beyond the core is an extra, and is asked for in one line if it is missing."""

from __future__ import annotations

import sys
from importlib import import_module

_EXTRA = ("jinja2", "matplotlib", "rich", "typer")


def main() -> None:
    """Run the command, or say how to install what it needs."""
    try:
        command = import_module("cavity.experiments.command")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(f"error: {error.name} is missing; install it with: pip install 'cavity[reproduce]'\n")
        sys.exit(2)
    command.app()
