"""Large files of tables, written quickly, the same every time.

CSV and Parquet files hold the same rows of a logistic model: 20 numbers, a category of 50 levels, the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from scipy.special import expit

ROWS_PER_CHUNK = 50_000
NUMBERS, LEVELS = 20, 50


def write_csv(path: Path, size: int) -> int:
    """Write at least ``size`` bytes; give the number of rows."""
    chunks = table_chunks()
    with open(path, "wb") as file, pa.csv.CSVWriter(file, _schema()) as writer:
        return _until(size, (writer.write(chunk) or chunk.num_rows for chunk in chunks), path)


def write_parquet(path: Path, size: int) -> int:
    """Write at least ``size`` bytes, a row group per chunk; give the number of rows."""
    chunks = table_chunks()
    with pq.ParquetWriter(path, _schema()) as writer:
        return _until(size, (writer.write_table(chunk) or chunk.num_rows for chunk in chunks), path)


def _until(size: int, counts: Iterator[int], path: Path) -> int:
    rows = 0
    while rows == 0 or path.stat().st_size < size:
        rows += next(counts)
    return rows


def _schema() -> Any:
    numbers = [(f"x{j}", pa.float64()) for j in range(NUMBERS)]
    return pa.schema([*numbers, ("shop", pa.string()), ("bought", pa.int8())])


def table_chunks() -> Iterator[Any]:
    """Rows without end, in chunks. Coefficients, effects and levels come from the seed 0, chunk k from (0, k)."""
    rng = np.random.default_rng(0)
    coefficients, effects = rng.normal(size=NUMBERS) / np.sqrt(NUMBERS), 0.5 * rng.normal(size=LEVELS)
    names = pa.array([f"shop {level}" for level in range(LEVELS)])
    for k in range(2**30):
        rng = np.random.default_rng((0, k))
        X = rng.normal(size=(NUMBERS, ROWS_PER_CHUNK)).round(5)
        shops = rng.integers(0, LEVELS, ROWS_PER_CHUNK)
        y = rng.random(ROWS_PER_CHUNK) < expit(coefficients @ X + effects[shops])
        yield pa.table([*X, names.take(pa.array(shops)), y.astype(np.int8)], schema=_schema())
