"""Fits from files: peak memory, the time of one pass, and the posterior beside that of the same rows in memory.

It makes its own files, 5 GB of each kind, or fewer: `python -m benchmarks.tables --gigabytes 0.5`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv
import pyarrow.parquet

from benchmarks.bars import Row, markdown
from benchmarks.table_files import table_chunks, write_csv, write_libsvm, write_parquet

# Bars: peak memory in bytes, and times beside those of plain reading and of Vowpal Wabbit.
MEMORY, READING, VOWPAL = 1e9, 1.5, 1.3
SAME = 0.01
HEADER = ("file", "size, GB", "rows", "work", "seconds", "MB/s", "peak memory, GB", "loops")

# What a process of its own does: fit, and say what it took.
FIT = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
from cavity import EPClassifier
from cavity.tables import Table
start = time.perf_counter()
table = Table(sys.argv[1], target=sys.argv[2], scratch=sys.argv[4])
model = EPClassifier(max_iter=int(sys.argv[3])).fit(table)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "loops": model.n_iter_, "plan": str(model.plan_), "status": model.status_.name,
                  "memory": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars."""
    return at_size(0.02 if quick else 5.0)


def at_size(gigabytes: float) -> tuple[list[Row], dict[str, str]]:
    """Bars with files of so many gigabytes."""
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="cavity-tables-") as name:
        folder = Path(name)
        for kind, write in WRITERS.items():
            path = folder / f"rows.{kind}"
            count = write(path, int(gigabytes * 1e9))
            target = "target" if kind == "svm" else "bought"
            passes = [1] if kind == "svm" else [100, 1]
            found = {loops: fitted(path, target, loops) for loops in passes}
            for loops, one in found.items():
                lines.append(line(path, count, "one pass" if loops == 1 else "fit", one))
                memory = f"{one['memory'] / 1e9:.2f} GB, {one['status']}, {one['loops']} loops, {one['seconds']:.0f} s"
                what = f"{kind}, {'one pass' if loops == 1 else 'fit'}: peak memory"
                rows.append(Row(what, memory, f"{MEMORY / 1e9:g} GB", one["memory"] <= MEMORY))
            rows += PEERS[kind](path, found[1]["seconds"])
            path.unlink()
    rows += [same_as_in_memory(kind) for kind in ("csv", "parquet")]
    return rows, {"tables": markdown(HEADER, lines)}


def fitted(path: Path, target: str, loops: int) -> dict[str, object]:
    """Fit in a process of its own."""
    command = [sys.executable, "-c", FIT, str(path), target, str(loops), str(path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def line(path: Path, count: int, work: str, one: dict[str, object]) -> tuple[str, ...]:
    """One line of the table."""
    size = path.stat().st_size
    seconds, memory = float(one["seconds"]), float(one["memory"])  # type: ignore[arg-type]
    numbers = (f"{seconds:.1f}", f"{size / 1e6 / seconds:.0f}", f"{memory / 1e9:.2f}", str(one["loops"]))
    return path.suffix[1:], f"{size / 1e9:.2f}", f"{count:,}", work, *numbers


def against_reading(path: Path, seconds: float) -> list[Row]:
    """One pass over CSV against reading it by Arrow."""
    start = time.perf_counter()
    with pyarrow.csv.open_csv(path) as reader:
        for _ in reader:
            pass
    plain = time.perf_counter() - start
    measured = f"{seconds:.1f} s against {plain:.1f} s: {seconds / plain:.2f} x"
    return [Row("csv, one pass", measured, f"at most {READING:g} x pyarrow.csv", seconds <= READING * plain)]


def against_vowpal(path: Path, seconds: float) -> list[Row]:
    """One pass over libsvm against Vowpal Wabbit's, on the same rows in its own format, where it is installed."""
    if find_spec("vowpalwabbit") is None:
        return [Row("libsvm, one pass", f"{seconds:.1f} s; Vowpal Wabbit is not installed", f"{VOWPAL:g} x", False)]
    from vowpalwabbit import Workspace

    other = path.with_suffix(".vw")
    with path.open() as source, other.open("w") as file:
        for text in source:
            label, _, features = text.partition(" ")
            file.write(f"{'1' if float(label) > 0 else '-1'} | {features}")
    start = time.perf_counter()
    workspace = Workspace(f"--loss_function logistic -b 18 --quiet -d {other}")
    workspace.finish()
    plain = time.perf_counter() - start
    other.unlink()
    measured = f"{seconds:.1f} s against {plain:.1f} s: {seconds / plain:.2f} x"
    return [Row("libsvm, one pass", measured, f"at most {VOWPAL:g} x Vowpal Wabbit", seconds <= VOWPAL * plain)]


def same_as_in_memory(kind: str) -> Row:
    """The posterior of 50,000 rows from the scratch file and from an array."""
    from cavity import EPClassifier
    from cavity.tables import Table

    frame: pd.DataFrame = next(table_chunks()).to_pandas()
    numbers = [name for name in frame if name.startswith("x")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        found = EPClassifier().fit(Table(path, target="bought", memory=0)).posterior_[0]
    frame[numbers] = (frame[numbers] - frame[numbers].mean()) / frame[numbers].std(ddof=0)
    expected = EPClassifier().fit(frame.drop(columns="bought"), frame["bought"]).posterior_[0]
    std = np.sqrt(expected.variance)
    apart = max(np.max(np.abs(found.mean - expected.mean) / std), np.max(np.abs(np.sqrt(found.variance) / std - 1.0)))
    return Row(f"{kind}: the posterior of the same rows in memory", f"{apart:.2g} sd", f"{SAME:g} sd", apart <= SAME)


WRITERS: dict[str, Callable[[Path, int], int]] = {"csv": write_csv, "parquet": write_parquet, "svm": write_libsvm}
PEERS: dict[str, Callable[[Path, float], list[Row]]] = {
    "csv": against_reading,
    "parquet": lambda path, seconds: [],
    "svm": against_vowpal,
}


def main() -> None:
    """Measure with files of a chosen size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of each file")
    rows, tables = at_size(parser.parse_args().gigabytes)
    print(markdown(("work", "measured", "bar", ""), [row.cells for row in rows]))
    print("\n".join(["", *tables.values()]))


if __name__ == "__main__":
    main()
