"""The cells of the paper's Table 1, compiled and plain, against the paper's own figures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.timing import markdown
from paper.problems import PAPER_SCHEMES, SCHEMES, Problem
from paper.table1 import PAPER_MS
from paper.timing import update_time


def report(out: Path, quick: bool) -> None:
    """Print and save microseconds a mini-batch, and how many times less that is than the paper's."""
    rows = []
    for (data, loss), printed in PAPER_MS.items():
        if quick and data in ("bank", "census"):
            continue
        for name, paper in zip(PAPER_SCHEMES, printed, strict=True):
            problem = Problem(data, loss)
            plain = update_time(problem, SCHEMES[name], updates=30)["ms"]
            fast = update_time(problem, SCHEMES[name], compiled=True)["ms"]
            cells = (f"{paper:.2f} ms", f"{1e3 * plain:.0f} µs", f"{1e3 * fast:.1f} µs", f"{paper / fast:.0f} x")
            rows.append((data, loss, name.upper(), *cells))
    header = ("data", "loss", "scheme", "the paper", "plain engine", "compiled", "paper / compiled")
    table = markdown(header, rows)
    print(f"{table}\n")
    (out / "table1.md").write_text(table + "\n")
    (out / "table1.json").write_text(json.dumps([header, *rows], indent=1))
