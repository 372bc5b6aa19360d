"""Speed of the readers of table files beside what else reads them.

Run: python -m benchmarks.read_speed [--size MB] [--folder DIR]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.bars import markdown
from benchmarks.table_files import write_csv, write_parquet
from cavity.tables import open_reader
from reference.timing import best_times

REPEATS = 3
HEADER = ("file", "read by", "MB/s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=float, default=200.0, help="of a file, in MB")
    options.add_argument("--folder", type=Path, default=None, help="where to put the files; else they are removed")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = given.folder or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        print(markdown(HEADER, [line for row in (_csv, _parquet) for line in row(place, given.size)]))


def _csv(folder: Path, size: float) -> list[tuple[str, ...]]:
    path = folder / "table.csv"
    write_csv(path, int(size * 1e6))
    return _compared(path, "pyarrow.csv.open_csv", lambda: _drain(pa.csv.open_csv(path)))


def _parquet(folder: Path, size: float) -> list[tuple[str, ...]]:
    path = folder / "table.parquet"
    write_parquet(path, int(size * 1e6))
    return _compared(path, "ParquetFile.iter_batches", lambda: _drain(pq.ParquetFile(path).iter_batches()))


def _compared(path: Path, other: str, work: Callable[[], Any]) -> list[tuple[str, ...]]:
    works = {"open_reader": lambda: _drain(open_reader(path).batches()), other: work}
    size = path.stat().st_size
    return [(path.name, by, f"{size / seconds / 1e6:.0f}") for by, seconds in best_times(works, REPEATS).items()]


def _drain(batches: Any) -> None:
    for _ in batches:
        pass


if __name__ == "__main__":
    main()
