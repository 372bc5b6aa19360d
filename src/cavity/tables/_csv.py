"""Files of delimited text, with a header."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cavity._checks import shown
from cavity.tables._arrow import arrow, columns_of, kinds_of, named
from cavity.tables._batches import (
    Batch,
    Column,
    ReadOptions,
    Texts,
    check_distinct,
    check_names,
    chosen,
    no_rows,
    quoted,
)

# The most frequent of these in the header is the delimiter.
_DELIMITERS = (",", "\t", ";", "|")
# Bytes that the parser takes at once, at most.
_LARGEST_BLOCK = 1 << 30


@dataclass(frozen=True, slots=True)
class CsvReader:
    """A file of delimited text."""

    path: Path
    size: int
    kinds: dict[str, str]
    options: ReadOptions
    delimiter: str
    types: dict[str, Any]  # Arrow's
    block_bytes: int

    def batches(self, columns: Collection[str] | None = None) -> Iterator[Batch]:
        """Read the named columns, or all, from the first row on."""
        return self._batches(chosen(self.path, self.kinds, columns))

    def _batches(self, names: list[str]) -> Iterator[Batch]:
        kinds = {name: self.kinds[name] for name in names}
        types = {name: self.types[name] for name in names}
        first, last = 1, {}
        try:
            with _stream(self.path) as stream:
                for batch in _parsed(stream, self.delimiter, self.block_bytes, types):
                    if batch.num_rows:
                        found = columns_of(self.path, first, batch, kinds, self.options)
                        yield Batch(self.path, first, {name: _without_empty(one) for name, one in found.items()})
                        first += batch.num_rows
                        last = {name: batch.column(name)[-1].as_py() for name in names if kinds[name] == "text"}
        except (arrow().ArrowException, OSError) as error:
            # One thread counts rows, several do not: read up to the place again.
            with _explained(self.path, list(self.kinds)), _stream(self.path) as stream:
                for _ in _parsed(stream, self.delimiter, self.block_bytes, types, threads=False):
                    pass
            with named(self.path):
                raise error
        _check_closed(self.path, first - 1, last)


def open_csv(path: Path, options: ReadOptions) -> CsvReader:
    """Read the header, and infer the kinds of columns from the first rows."""
    with named(path):
        header = _header(path)
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {shown(options.delimiter)}")
    delimiter = options.delimiter or _most_frequent_delimiter(header)
    # A number takes eight bytes in memory, and often two in the file; a row may be longer than the header.
    block = min(max(options.batch_bytes // 8, 16 * len(header)), _LARGEST_BLOCK)
    schema = _inferred(path, delimiter, min(4 * block, _LARGEST_BLOCK))
    check_distinct(path, schema.names)
    check_names(path, schema.names, options.text | options.raw)
    kinds = kinds_of(schema, options)
    types = {each.name: _read_as(each, kinds, options) for each in schema}
    return CsvReader(path, path.stat().st_size, kinds, options, delimiter, types, block)


def _inferred(path: Path, delimiter: str, block: int) -> Any:
    """Infer the type of every column from the first block."""
    with _explained(path, []), _stream(path) as stream:
        parsed = _parsed(stream, delimiter, block, None, threads=False)
        names = parsed.schema.names
        if not any(batch.num_rows for batch in parsed):
            raise no_rows(path)
    types = arrow("types")
    spoilt = {each.name: arrow().string() for each in parsed.schema if types.is_binary(each.type)}
    if spoilt:  # what is no UTF-8 is inferred to be bytes; as text it is an error that names the row
        with _explained(path, names), _stream(path) as stream:
            any(_parsed(stream, delimiter, block, spoilt, threads=False))
    return parsed.schema


def _check_closed(path: Path, row: int, texts: dict[str, str | None]) -> None:
    """Refuse a last row that has swallowed others by a quote that is not closed: Arrow takes the file's end for one."""
    for name, text in texts.items():
        if text and "\n" in text and _ends_with(path, text.encode()):
            raise ValueError(f"{path}, row {row}, column {name!r}: the quote before {quoted(text)} is not closed")


def _read_as(field: Any, kinds: dict[str, str], options: ReadOptions) -> Any:
    """Choose the type that a column is read as: later rows may have fractions where the first have none."""
    pa = arrow()
    if kinds[field.name] == "text":
        return pa.string() if field.name in options.raw else pa.dictionary(pa.int32(), pa.string())
    types = arrow("types")
    kept = types.is_boolean(field.type) or (field.name in options.exact and types.is_integer(field.type))
    return field.type if kept else pa.float64()


def _without_empty(column: Column) -> Column:
    """Take empty strings for missing ones."""
    if not isinstance(column, Texts) or "" not in column.levels:
        return column
    place = column.levels.index("")
    codes = np.where(column.codes == place, -1, column.codes - (column.codes > place)).astype(np.int32)
    return Texts(codes, [level for level in column.levels if level])


def _parsed(stream: Any, delimiter: str, block: int, types: dict[str, Any] | None, threads: bool = True) -> Any:
    """Start reading. Columns without a type are skipped; with no types at all, all columns are inferred."""
    csv = arrow("csv")
    return csv.open_csv(
        stream,
        read_options=csv.ReadOptions(block_size=block, use_threads=threads),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types, include_columns=types),  # "NA" is a text like others
    )


def _stream(path: Path) -> Any:
    return arrow().input_stream(str(path), compression="gzip" if path.suffix.lower() == ".gz" else None)


def _ends_with(path: Path, text: bytes) -> bool:
    end = b""
    with _stream(path) as stream:
        while part := stream.read(max(len(text), 1 << 20)):
            end = (end + part)[-len(text) :]
    return end == text


def _header(path: Path) -> bytes:
    """Read the first line that is not blank."""
    found, wanted = b"", 1 << 16
    with _stream(path) as stream:
        while len(found) < _LARGEST_BLOCK:
            more = stream.read(wanted)
            found, wanted = (found + more).lstrip(b"\r\n"), 2 * wanted
            line = found.splitlines()[0] if found else b""
            if not more or len(line) < len(found):
                break
    return line


def _most_frequent_delimiter(header: bytes) -> str:
    bare = re.sub(rb'"[^"]*"', b"", header)
    return max(_DELIMITERS, key=lambda delimiter: bare.count(delimiter.encode()))


@contextmanager
def _explained(path: Path, names: list[str]) -> Iterator[None]:
    """Turn what Arrow says about a CSV file, read by one thread, into a message with row and column."""
    try:
        with named(path):
            yield
    except ValueError as error:
        cause = error.__cause__
        if cause is None:
            raise
        raise ValueError(_explanation(path, names, cause) or str(error)) from cause


def _explanation(path: Path, names: list[str], error: BaseException) -> str | None:
    message = str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"{path}: the header must be valid UTF-8; convert the file to it"
    counted = re.search(r"Row #(\d+)", message)
    place = f"{path}, row {int(counted[1]) - 1}" if counted else str(path)  # Arrow counts the header
    if match := re.search(r"Expected (\d+) columns, got (\d+): (.*)", message, re.DOTALL):
        extent = "too long" if int(match[2]) > int(match[1]) else "too short"
        return f"{place}: the row is {extent}: {match[2]} fields for {match[1]} columns, {quoted(match[3])}"
    if match := re.search(r"CSV column #(\d+): .*conversion error to (\w+): (.*)", message, re.DOTALL):
        name = names[int(match[1])]
        if "UTF8" in match[3]:
            return f"{place}, column {name!r}: text must be valid UTF-8; convert the file to it"
        wanted = {"bool": "true or false", "int64": "a whole number"}.get(match[2], "a number")
        found = quoted(match[3].removeprefix("invalid value ").strip("'"))
        return (
            f"{place}, column {name!r}: {found} is not {wanted}, as in the first rows; "
            f"correct it, or read the column as text (text=[{name!r}]; of tables categories=[{name!r}], --category "
            f"{name})"
        )
    if "straddl" in message:
        return f"{path}: a row is very long, perhaps for a quote that is not closed"
    return f"{path} is empty" if "Empty CSV" in message else None
