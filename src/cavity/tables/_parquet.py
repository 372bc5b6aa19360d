"""Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cavity.tables._arrow import arrow, columns_of, kinds_of, named
from cavity.tables._batches import Batch, ReadOptions, check_distinct, check_names, chosen, no_rows

# Bytes read from the file at once, per column: without it Arrow holds the whole columns of a row group.
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """A Parquet file."""

    path: Path
    size: int
    kinds: dict[str, str]
    options: ReadOptions

    def batches(self, columns: Collection[str] | None = None) -> Iterator[Batch]:
        """Read the named columns, or all, from the first row on."""
        return self._batches(chosen(self.path, self.kinds, columns))

    def _batches(self, names: list[str]) -> Iterator[Batch]:
        kinds = {name: self.kinds[name] for name in names}
        encoded = [name for name in names if kinds[name] == "text" and name not in self.options.raw]
        first = 1
        with named(self.path), _open(self.path, encoded) as file:
            rows = max(1, int(self.options.batch_bytes / _row_bytes(file, names)))
            for batch in file.iter_batches(rows, columns=names):
                yield Batch(self.path, first, columns_of(self.path, first, batch, kinds, self.options))
                first += batch.num_rows


def open_parquet(path: Path, options: ReadOptions) -> ParquetReader:
    """Read the schema."""
    with named(path), _open(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    check_distinct(path, schema.names)
    check_names(path, schema.names, options.text | options.raw)
    if not rows:
        raise no_rows(path)
    return ParquetReader(path, path.stat().st_size, kinds_of(schema, options), options)


def _open(path: Path, encoded: list[str] | None = None) -> Any:
    return arrow("parquet").ParquetFile(
        str(path),
        read_dictionary=encoded,
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
        page_checksum_verification=True,  # of files that have checksums
    )


def _row_bytes(file: Any, names: list[str]) -> float:
    """Find how many bytes a row takes in memory, or in the file where that is more."""
    wanted, stored = set(names), 0.0
    for i in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(i)
        parts = (group.column(j) for j in range(group.num_columns))
        stored += sum(part.total_uncompressed_size for part in parts if part.path_in_schema in wanted)
    return max(8.0 * len(names), stored / int(file.metadata.num_rows))
