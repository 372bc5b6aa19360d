"""The command on a data set that comes with the library, as README and the guide show it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile

COMMANDS = (
    "cavity example",
    "cavity fit train.csv --target deposit --model bank.cavity",
    "cavity predict bank.cavity test.csv --out predictions.csv",
    "cavity score bank.cavity test.csv",
)


def output(progress: bool) -> list[str]:
    """Run the commands in a folder of their own, and give them with what they print, their progress or not."""
    lines = ["```text"]
    environment = os.environ | {"COLUMNS": "110", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            program, *arguments = shlex.split(command)
            done = subprocess.run(
                [sys.executable, "-m", f"{program}.cli", *arguments],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if progress else subprocess.DEVNULL,
                text=True,
                check=True,
            )
            lines += [f"$ {command}", *done.stdout.splitlines()]
    return [*lines, "```"]
