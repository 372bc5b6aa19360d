"""Run the benchmarks: `python -m benchmarks [--out DIR] [--only speed,comparison] [--quick]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import import_module
from pathlib import Path

# One thread: set before any library reads it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

from benchmarks.bars import Row, markdown  # noqa: E402
from reference.machine import processor  # noqa: E402

# Parts that give bars and the tables behind them, and their modules: imported when they are asked for, since some need
# libraries that others do not.
MEASURED = {
    name: f"benchmarks.{name}"
    for name in (
        "posterior",
        "posterior_census",
        "coverage",
        "calibration",
        "prior",
        "evidence",
        "blocks",
        "streams",
        "sparse",
        "minimize",
        "recentred",
        "blackbox",
        "models",
        "terms",
        "tables",
        "wide",
        "trust",
    )
} | {"dask": "benchmarks.dask_cluster"}
PARTS = ("speed", "first_use", "comparison", *MEASURED)


def main() -> int:
    """Run the parts asked for, print and save their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for tables and pictures")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller data: a smoke test")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}, one thread, best of several\n")
    missed = 0
    if "speed" in chosen:
        missed += report_bars("speed", speed_rows(options.quick), options.out)
    if "first_use" in chosen:
        first_use = import_module("benchmarks.first_use")
        missed += report_bars("first_use", [*first_use.first_use(), *first_use.memory()], options.out)
    for name, module in MEASURED.items():
        if name in chosen:
            missed += report_measures(name, *import_module(module).measure(options.quick), options.out)
    if "comparison" in chosen:
        report = import_module("benchmarks.comparison.report")
        lines = report.compare(options.quick)
        print(f"\n{report.write(lines, machine(), options.out)}\n")
    print(f"\ntables in {options.out}; {missed} bars missed")
    return 0


def speed_rows(quick: bool) -> list[Row]:
    """All bars on speed."""
    speed, repeats = import_module("benchmarks.speed"), 3 if quick else 30
    rows: list[Row] = speed.census(repeats)
    rows += speed.long_matrix(max(3, repeats // 3), 100_000 if quick else 1_000_000)
    rows += speed.sparse_pass(max(2, repeats // 5), 20_000 if quick else 200_000)
    return rows + speed.growth(max(3, repeats // 3))


def report_bars(name: str, rows: list[Row], out: Path) -> int:
    """Print and save a table of bars; return how many were missed."""
    table = markdown(("work", "measured", "bar", ""), [row.cells for row in rows])
    print(f"{table}\n")
    (out / f"{name}.md").write_text(f"{machine()}\n\n{table}\n")
    (out / f"{name}.json").write_text(json.dumps([row.cells for row in rows], indent=1))
    return sum(not row.met for row in rows)


def report_measures(name: str, rows: list[Row], tables: dict[str, str], out: Path) -> int:
    """Print and save bars and the tables behind them; return how many were missed."""
    missed = report_bars(name, rows, out)
    for title, table in tables.items():
        print(f"{table}\n")
        (out / f"{title}.md").write_text(f"{machine()}\n\n{table}\n")
    return missed


def machine() -> str:
    """Name the processor and the version of Python."""
    return f"{processor()}, Python {platform.python_version()}"


if __name__ == "__main__":
    raise SystemExit(main())
