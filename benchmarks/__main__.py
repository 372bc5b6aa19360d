"""Run the benchmarks: `python -m benchmarks [--out DIR] [--only speed,peers] [--quick]`."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
from pathlib import Path

# One thread: set before any library reads it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

from benchmarks import (  # noqa: E402
    blocks,
    calibration,
    coverage,
    first_use,
    minimize,
    models,
    peers,
    posterior,
    posterior_census,
    prior,
    recentred,
    sparse,
    speed,
    streams,
)
from benchmarks.bars import Row, markdown  # noqa: E402
from reference.machine import processor  # noqa: E402

# Parts that give bars and the tables behind them.
_ALL = (posterior, posterior_census, coverage, calibration, prior, blocks, streams, sparse, minimize, recentred, models)
MEASURED = {part.__name__.rpartition(".")[2]: part.measure for part in _ALL}
PARTS = ("speed", "first_use", "peers", *MEASURED)


def main() -> int:
    """Run the parts asked for, print and save their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for tables and the plot")
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
        missed += report_bars("first_use", [*first_use.first_use(), *first_use.memory()], options.out)
    for name, measure in MEASURED.items():
        if name in chosen:
            missed += report_measures(name, *measure(options.quick), options.out)
    if "peers" in chosen:
        report_peers(
            [o for name in ("bank", "census") for o in peers.compare(name, 1 if options.quick else 5)], options.out
        )
    print(f"\ntables in {options.out}; {missed} bars missed")
    return 0


def speed_rows(quick: bool) -> list[Row]:
    """All bars on speed."""
    repeats = 3 if quick else 30
    rows = speed.census(repeats)
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


def report_peers(outcomes: list[peers.Outcome], out: Path) -> None:
    """Print, save and plot quality beside time."""

    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = [
        (
            o.data,
            o.peer,
            cell(o.seconds and 1e3 * o.seconds, ".1f"),
            cell(o.cost, ".1f"),
            cell(o.log_loss, ".4f"),
            o.note,
        )
        for o in outcomes
    ]
    header = ("data", "peer", "ms", "total cost", "held-out log loss", "")
    table = markdown(header, rows)
    print(f"{table}\n")
    (out / "peers.md").write_text(f"{machine()}\n\n{table}\n")
    with (out / "peers.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    plot_peers(outcomes, out / "peers.png")


def plot_peers(outcomes: list[peers.Outcome], path: Path) -> None:
    """Cost above the lowest found against time, one panel per data set; numbers stand for the peers in the legend."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shown = [o for o in outcomes if o.cost is not None and o.seconds is not None]
    names, titles = list(dict.fromkeys(o.data for o in shown)), list(dict.fromkeys(o.peer for o in shown))
    figure, axes = plt.subplots(1, len(names), figsize=(5.5 * len(names) + 3.0, 4.5), squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        here = [o for o in shown if o.data == name]
        lowest = min(o.cost for o in here)
        for o in here:
            number, ours = 1 + titles.index(o.peer), o.peer.startswith("cavity")
            x, y = 1e3 * o.seconds, max(o.cost / lowest - 1.0, 1e-6)
            style = {"marker": "o", "color": "C0"} if ours else {"marker": "s", "color": "0.45"}
            label = f"{number}  {o.peer}" if ax is axes[0][-1] else None
            ax.plot(x, y, linestyle="none", label=label, **style)
            ax.annotate(str(number), (x, y), (5, 4), textcoords="offset points", fontsize=8)
        ax.set(xscale="log", yscale="log", title=name, xlabel="time (ms)", ylabel="cost above the lowest, as a share")
        ax.margins(x=0.1, y=0.1)
    figure.legend(loc="center right", fontsize=8, frameon=False)
    figure.tight_layout(rect=(0.0, 0.0, 1.0 - 3.0 / (5.5 * len(names) + 3.0), 1.0))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def machine() -> str:
    """Name the processor and the version of Python."""
    return f"{processor()}, Python {platform.python_version()}"


if __name__ == "__main__":
    raise SystemExit(main())
