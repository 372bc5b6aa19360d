"""Fits from files: peak memory, and the posterior beside that of the same rows in memory.

It makes its own files, 5 GB of each kind, or fewer: `python -m benchmarks.tables --gigabytes 0.5`. The process of a fit
first fits the first thousand rows of its file: imports and loading or compiling kernels are not part of the seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet

from benchmarks.bars import Row, markdown
from benchmarks.table_files import table_chunks, write_csv, write_parquet

# Bars: peak memory in bytes, and differences of posteriors in standard deviations.
MEMORY, SAME = 1e9, 0.01
HEADER = ("file", "size, GB", "rows", "seconds", "MB/s", "peak memory, GB", "loops")

# What a process of its own does: fit, and say what it took.
FIT = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
from cavity import EPClassifier
from cavity.tables import Table
def fit(path, **options):
    return EPClassifier().fit(Table(path, target="bought", scratch=sys.argv[2], **options))
fit(sys.argv[3], memory=0)
start = time.perf_counter()
model = fit(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - start, "loops": model.n_iter_, "status": model.status_.name,
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
            one = fitted(path)
            lines.append(line(path, count, one))
            memory = f"{one['memory'] / 1e9:.2f} GB, {one['status']}, {one['loops']} loops, {one['seconds']:.0f} s"
            rows.append(Row(f"{kind}: peak memory", memory, f"{MEMORY / 1e9:g} GB", one["memory"] <= MEMORY))
            path.unlink()
    rows += [same_as_in_memory(kind) for kind in ("csv", "parquet")]
    return rows, {"tables-fits": markdown(HEADER, lines)}


def fitted(path: Path) -> dict[str, Any]:
    """Fit in a process of its own."""
    first = first_rows(path)
    command = [sys.executable, "-c", FIT, str(path), str(path.parent), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first.unlink()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def first_rows(path: Path, count: int = 1000) -> Path:
    """Write the first rows of a file to one of its own, of the same kind."""
    first = path.with_stem("first")
    if path.suffix == ".parquet":
        batch = next(pyarrow.parquet.ParquetFile(path).iter_batches(count))
        pyarrow.parquet.write_table(pyarrow.Table.from_batches([batch]), first)
    else:
        with path.open("rb") as file:
            first.write_bytes(b"".join(islice(file, count)))
    return first


def line(path: Path, count: int, one: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    size = path.stat().st_size
    seconds, memory = float(one["seconds"]), float(one["memory"])
    numbers = (f"{seconds:.1f}", f"{size / 1e6 / seconds:.0f}", f"{memory / 1e9:.2f}", str(one["loops"]))
    return path.suffix[1:], f"{size / 1e9:.2f}", f"{count:,}", *numbers


def same_as_in_memory(kind: str) -> Row:
    """The posterior of 50,000 rows from the scratch file and from an array."""
    from cavity import EPClassifier
    from cavity.tables import Table

    frame: pd.DataFrame = next(table_chunks()).to_pandas()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        found = EPClassifier().fit(Table(path, target="bought", memory=0)).posterior_[0]
    expected = EPClassifier().fit(frame.drop(columns="bought"), frame["bought"]).posterior_[0]
    std = np.sqrt(expected.variance)
    apart = max(np.max(np.abs(found.mean - expected.mean) / std), np.max(np.abs(np.sqrt(found.variance) / std - 1.0)))
    return Row(f"{kind}: the posterior of the same rows in memory", f"{apart:.2g} sd", f"{SAME:g} sd", apart <= SAME)


WRITERS: dict[str, Callable[[Path, int], int]] = {"csv": write_csv, "parquet": write_parquet}


def main() -> None:
    """Measure with files of a chosen size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of each file")
    rows, tables = at_size(parser.parse_args().gigabytes)
    print(markdown(("work", "measured", "bar", ""), [row.cells for row in rows]))
    print("\n".join(["", *tables.values()]))


if __name__ == "__main__":
    main()
