"""Files for the command, and the command itself: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from cavity.cli.commands import app

ROOT = Path(__file__).parents[2]


def people(rows=300, seed=0):
    """Numbers, a category, a label, a number to be predicted, and a weight."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.normal(40.0, 10.0, rows), "height": rng.normal(170.0, 9.0, rows)})
    frame["town"] = rng.choice(["Bonn", "Köln", "Ulm"], rows)
    z = 0.1 * (frame["age"] - 40.0) + (frame["town"] == "Ulm")
    frame["income"] = np.where(z + rng.logistic(size=rows) > 0.0, "high", "low")
    frame["spent"] = 100.0 + 5.0 * z + rng.normal(size=rows)
    frame["visits"] = rng.poisson(np.exp(0.3 * z))
    frame["share"] = rng.integers(1, 4, rows)
    return frame


def run(*arguments, code=0, width=100):
    """Run the command here; the result has stdout, stderr and the exit code, which is checked."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(width), "NO_COLOR": "1"})
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    return result


def refused(*arguments):
    """Run the command, which must refuse with exit code 2 and one line on standard error; give that line."""
    result = run(*arguments, code=2)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("cavity: fitting an ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("cavity: ")
    assert result.stdout == ""
    return lines[0]


def started(*arguments):
    """Start the command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "cavity.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
