"""What the example scripts share: one argument, and pictures without a screen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")


def run(main: Callable[[Path], dict[str, Any]], description: str | None) -> None:
    """Run an example from the command line and print its numbers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder for the picture")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, value in main(out).items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
