"""Fits from files: peak memory, the time of sparse rows, and the posterior beside that of the same rows in memory.

It makes its own files, 5 GB of each kind, or fewer: `python -m benchmarks.tables --gigabytes 0.5`. The process of a fit
first fits the first thousand rows of its file: imports and loading or compiling kernels are not part of the seconds.
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
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet

from benchmarks.bars import Row, markdown
from benchmarks.table_files import table_chunks, write_csv, write_held_out, write_libsvm, write_parquet

# Bars: peak memory in bytes, and time beside that of Vowpal Wabbit.
MEMORY, VOWPAL = 1e9, 1.3
SAME = 0.01
HEADER = ("file", "size, GB", "rows", "work", "seconds", "MB/s", "peak memory, GB", "loops")

# What a process of its own does: fit, and say what it took.
FIT = """
import json, resource, sys, time, warnings
import numpy as np
from sklearn.metrics import log_loss
warnings.simplefilter("ignore")
from cavity import EPClassifier
from cavity.tables import Table
def fit(path, **options):
    return EPClassifier(max_iter=int(sys.argv[3])).fit(Table(path, target=sys.argv[2], scratch=sys.argv[4], **options))
fit(sys.argv[6], memory=0)
start = time.perf_counter()
model = fit(sys.argv[1])
seconds, score = time.perf_counter() - start, None
if sys.argv[5]:  # rows held out
    labels = [float(line.split(b" ", 1)[0]) > 0 for line in open(sys.argv[5], "rb")]
    table = Table(sys.argv[5], target=sys.argv[2], scratch=sys.argv[4])
    chances = np.concatenate([block[:, 1] for block in model.predict_proba(table)])
    score = float(log_loss(labels, chances))
print(json.dumps({"seconds": seconds, "loops": model.n_iter_, "status": model.status_.name, "score": score,
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
            loops = 1 if kind == "svm" else 100
            held_out = str(write_held_out(folder / "held_out.svm")) if kind == "svm" else ""
            one = fitted(path, target, loops, held_out)
            lines.append(line(path, count, "one loop" if loops == 1 else "fit", one))
            memory = f"{one['memory'] / 1e9:.2f} GB, {one['status']}, {one['loops']} loops, {one['seconds']:.0f} s"
            what = f"{kind}, {'one loop' if loops == 1 else 'fit'}: peak memory"
            rows.append(Row(what, memory, f"{MEMORY / 1e9:g} GB", one["memory"] <= MEMORY))
            if kind == "svm":
                rows += against_vowpal(path, one)
            path.unlink()
    rows += [same_as_in_memory(kind) for kind in ("csv", "parquet")]
    return rows, {"tables-fits": markdown(HEADER, lines)}


def fitted(path: Path, target: str, loops: int, held_out: str) -> dict[str, Any]:
    """Fit in a process of its own; score rows held out, if there are any."""
    first = first_rows(path)
    command = [sys.executable, "-c", FIT, str(path), target, str(loops), str(path.parent), held_out, str(first)]
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


def line(path: Path, count: int, work: str, one: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    size = path.stat().st_size
    seconds, memory = float(one["seconds"]), float(one["memory"])
    numbers = (f"{seconds:.1f}", f"{size / 1e6 / seconds:.0f}", f"{memory / 1e9:.2f}", str(one["loops"]))
    return path.suffix[1:], f"{size / 1e9:.2f}", f"{count:,}", work, *numbers


def against_vowpal(path: Path, one: dict[str, Any]) -> list[Row]:
    """One loop over libsvm against Vowpal Wabbit's, on the same rows in its own format, where it is installed."""
    seconds = one["seconds"]
    if find_spec("vowpalwabbit") is None:
        return [Row("libsvm, one loop", f"{seconds:.1f} s; Vowpal Wabbit is not installed", f"{VOWPAL:g} x", False)]
    from vowpalwabbit import Workspace

    other = path.with_suffix(".vw")
    with path.open() as source, other.open("w") as file:
        for text in source:
            label, _, features = text.partition(" ")
            file.write(f"{'1' if float(label) > 0 else '-1'} | {features}")
    start = time.perf_counter()
    workspace = Workspace(f"--loss_function logistic --link logistic -b 18 --quiet -d {other}")
    plain = time.perf_counter() - start
    other.unlink()
    losses = []
    with (path.parent / "held_out.svm").open() as source:
        for text in source:
            label, _, features = text.partition(" ")
            chance = float(workspace.predict(f"| {features}"))
            right = chance if float(label) > 0 else 1.0 - chance
            losses.append(-np.log(max(right, 1e-15)))
    workspace.finish()
    score = float(np.mean(losses))
    measured = f"{seconds:.1f} s against {plain:.1f} s: {seconds / plain:.2f} x"
    scores = f"{one['score']:.4f} against {score:.4f}"
    return [
        Row("libsvm, one loop", measured, f"at most {VOWPAL:g} x Vowpal Wabbit", seconds <= VOWPAL * plain),
        Row("libsvm, one loop: held-out log loss", scores, "no worse than Vowpal Wabbit", one["score"] <= score),
    ]


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


def main() -> None:
    """Measure with files of a chosen size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of each file")
    rows, tables = at_size(parser.parse_args().gigabytes)
    print(markdown(("work", "measured", "bar", ""), [row.cells for row in rows]))
    print("\n".join(["", *tables.values()]))


if __name__ == "__main__":
    main()
