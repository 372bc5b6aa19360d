"""Run every entry of every task and write the table; what was stopped, failed or is not installed is named in it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from benchmarks.bars import markdown
from benchmarks.comparison.child import STOPPED
from benchmarks.comparison.core import LEVEL, Entry, Task
from benchmarks.comparison.plot import draw
from benchmarks.comparison.tasks import TASKS

# Seconds of processor time after which a fit is stopped, and how many times that any process may wait for its turn.
LIMIT, LIMIT_QUICK, PATIENCE = 120.0, 20.0, 10.0
PACKAGES = (
    "cavity", "scikit-learn", "statsmodels", "pymc", "nutpie", "bambi", "river", "vowpalwabbit", "bayesianbandits",
)  # fmt: skip
_FIELDS = ("seconds", "score", "coefficients", "targets", "megabytes")


class Line(NamedTuple):
    """One entry of one task; ``note`` says why there are no numbers."""

    task: str
    library: str
    model: str
    setting: str
    seconds: float | None = None
    score: float | None = None
    coefficients: float | None = None
    targets: float | None = None
    megabytes: float | None = None
    note: str = ""


def compare(quick: bool, say: Callable[[str], object] = print) -> list[Line]:
    """All lines, one process after another; each is announced when it is done."""
    lines = []
    for task in TASKS.values():
        for number, entry in enumerate(task.entries):
            line = Line(task.name, entry.library, entry.model, entry.setting)
            line = line._replace(**_outcome(task, number, entry, quick))
            found = line.note or f"{line.seconds:.3g} s, {task.score_name} {line.score:.4f}"
            say(f"{task.name}: {entry.title}, {entry.setting}: {found}")
            lines.append(line)
    return lines


def _outcome(task: Task, number: int, entry: Entry, quick: bool) -> dict[str, object]:
    if absent := [name for name in entry.needs if importlib.util.find_spec(name.partition(".")[0]) is None]:
        return {"note": f"absent: {', '.join(absent)}"}
    limit = LIMIT_QUICK if quick else LIMIT
    command = [sys.executable, "-m", "benchmarks.comparison.child", task.name, str(number), str(limit)]
    patience = PATIENCE * limit
    try:
        done = subprocess.run(
            [*command, *(["quick"] if quick else [])], capture_output=True, text=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return {"note": f"stopped after {limit:g} s"}
    if done.returncode == STOPPED:
        return {"note": f"stopped after {limit:g} s"}
    if done.returncode != 0:
        return {"note": f"failed: {done.stderr.strip().splitlines()[-1].partition(':')[0]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def write(lines: list[Line], machine: str, out: Path) -> str:
    """Rows as JSON, the table and the picture; returns the table."""
    (out / "comparison.json").write_text(json.dumps([line._asdict() for line in lines], indent=1) + "\n")
    table = f"{machine}; {_versions()}\n\n{tables(lines)}"
    (out / "comparison.md").write_text(f"{table}\n")
    draw(lines, out / "comparison.png")
    return table


def _versions() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def tables(lines: list[Line]) -> str:
    """One table per task; the best number of each column is bold."""
    parts = []
    for name, task in TASKS.items():
        here = [line for line in lines if line.task == name]
        header = ("model", "setting", "seconds", task.score_name, "coefficients covered", "targets covered", "MB")
        best = {field: _best(field, here) for field in _FIELDS}
        rows = [
            (f"{line.library}: {line.model}", line.setting, *(_cell(line, field, best) for field in _FIELDS))
            for line in here
        ]
        parts.append(f"### {task.title}\n\n{markdown(header, [_escaped(row) for row in rows])}")
    return "\n\n".join(parts)


def _best(field: str, lines: list[Line]) -> str | None:
    """The best number as it is printed, so that equal ones are all bold."""
    values = [value for line in lines if (value := getattr(line, field)) is not None]
    if not values:
        return None
    return _form(field, min(values, key=(lambda v: abs(v - LEVEL)) if field in ("coefficients", "targets") else None))


def _cell(line: Line, field: str, best: dict[str, str | None]) -> str:
    value = getattr(line, field)
    if value is None:
        return line.note if field == "seconds" else "" if line.note else "n/a"
    text = _form(field, value)
    return f"**{text}**" if text == best[field] else text


def _form(field: str, value: float) -> str:
    if field == "seconds":
        return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10.0 else f"{value:.0f}"
    if field == "score":
        return f"{value:.4f}"
    return f"{value:.0f}" if field == "megabytes" else f"{100.0 * value:.1f} %"


def _escaped(row: tuple[str, ...]) -> tuple[str, ...]:
    """Formulas hold bars."""
    return tuple(cell.replace("|", "\\|") for cell in row)
