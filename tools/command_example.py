"""The command on a data set that comes with the library, as README and the guide show it."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cavity import datasets

COMMANDS = (
    "cavity fit train.csv --target deposit --model bank.cavity",
    "cavity predict bank.cavity test.csv --out predictions.csv",
    "cavity score bank.cavity test.csv",
)


def output(progress: bool) -> list[str]:
    """Run the commands in a folder of their own, and give them with what they print, their progress or not."""
    lines = ["```text"]
    environment = os.environ | {"COLUMNS": "110", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
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


def write_files(folder: Path) -> None:
    """Write every second row of the Bank data set to train.csv, the others to test.csv."""
    data = datasets.load("bank")
    columns = [*data.features.values(), ["yes" if label > 0 else "no" for label in data.labels]]
    rows = list(zip(*columns, strict=True))
    for name, part in (("train.csv", rows[::2]), ("test.csv", rows[1::2])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([[*data.features, "deposit"], *part])
