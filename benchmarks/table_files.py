"""Large files of tables, written quickly, the same every time.

CSV and Parquet files hold the same rows of a logistic model: 20 numbers, a category of 50 levels, the target. Libsvm
files hold sparse rows of one, whose features have frequencies as words have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from scipy.special import expit

ROWS_PER_CHUNK = 50_000
NUMBERS, LEVELS = 20, 50
FEATURES, DRAWS_PER_ROW = 2**18, 60


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


def write_libsvm(path: Path, size: int) -> int:
    """Write at least ``size`` bytes; give the number of rows."""
    with open(path, "wb") as file:
        return _until(size, (file.write(text) and ROWS_PER_CHUNK for text in libsvm_chunks()), path)


def write_held_out(path: Path) -> Path:
    """Write a chunk of libsvm rows that no file has."""
    path.write_bytes(next(libsvm_chunks(first=2**30)))
    return path


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


def libsvm_chunks(first: int = 0) -> Iterator[bytes]:
    """Lines without end, in chunks from the first on.

    Feature j has a frequency in proportion to 1 / j; features count from 1.
    """
    coefficients = np.random.default_rng(0).normal(size=FEATURES)
    features = pa.array([str(j + 1) for j in range(FEATURES)])
    values = pa.array([f"{v / 1000:g}" for v in range(1, 1000)])
    for k in range(first, first + 2**30):
        rng = np.random.default_rng((0, k))
        drawn = np.exp(rng.random((ROWS_PER_CHUNK, DRAWS_PER_ROW)) * np.log(FEATURES)).astype(np.int64) - 1
        drawn.sort(axis=1)
        is_new = np.diff(drawn, axis=1, prepend=-1) > 0
        columns, sizes = drawn[is_new], rng.integers(0, len(values), is_new.sum())
        starts = np.concatenate([[0], np.cumsum(is_new.sum(axis=1))])
        predictor = np.add.reduceat(coefficients[columns] * (sizes + 1) / 1000, starts[:-1])
        signs = np.where(rng.random(ROWS_PER_CHUNK) < expit(predictor), "1", "-1")
        entries = pc.binary_join_element_wise(features.take(pa.array(columns)), values.take(pa.array(sizes)), ":")
        lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), entries)
        lines = pc.binary_join_element_wise(pa.array(signs), pc.binary_join(lists, " "), " ")
        yield "\n".join([*lines.to_pylist(), ""]).encode()
