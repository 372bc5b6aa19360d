"""The reproduction as a command: `python -m paper --out report`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

_NEEDED = ("jinja2", "matplotlib", "rich", "typer")


def main() -> None:
    """Run the command, or say how to install what it needs."""
    os.environ.setdefault("CAVITY_NOTICES", "off")  # progress bars tell who waits
    try:
        command = import_module("paper.command")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(f"error: {error.name} is missing; install it with: pip install '.[reproduce]'\n")
        sys.exit(2)
    command.app()


if __name__ == "__main__":
    main()
