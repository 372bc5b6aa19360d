"""Files of rows, read in batches of NumPy arrays: Parquet and CSV by Arrow, NumPy's own by memory maps.

Arrow is imported when a file of its formats is opened.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity._checks import shown
from cavity._types import FloatArray

# Bytes of a batch in memory, about. Of 1 to 64 MB the fastest for CSV; of larger ones all memory is fresh every time.
BATCH_BYTES = 8 << 20
# Bytes of a Parquet file that are read at once, per column: without it Arrow holds the whole columns of a row group.
_BUFFER_BYTES = 1 << 18
# The most frequent of these in the header of a CSV file is the delimiter.
_DELIMITERS = (",", "\t", ";", "|")
# Bytes that the CSV parser takes at once, at most.
_LARGEST_BLOCK = 1 << 30


class Texts(NamedTuple):
    """A column of strings.

    Parameters
    ----------
    codes
        Places in ``levels``, one per row; -1 where the string is missing.
    levels
        The strings, each of which is distinct and occurs in the batch.
    """

    codes: NDArray[np.int32]
    levels: list[str]


Column = FloatArray | Texts


class Batch(NamedTuple):
    """Some consecutive rows of one file.

    Parameters
    ----------
    path
        The file.
    first
        Number of the first row within the file; the first row of data is 1.
    columns
        Columns by name, in the order of the file; arrays may be read-only.
    """

    path: Path
    first: int
    columns: dict[str, Column]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        column = next(iter(self.columns.values()))
        return column.codes.size if isinstance(column, Texts) else column.size


@dataclass(frozen=True, slots=True)
class Reader:
    """A file that is read in batches, as often as one likes, in the same batches every time.

    Parameters
    ----------
    path
        The file.
    kinds
        Every column in the order of the file: ``"number"`` or ``"text"``; anything else is the name of a type that
        cannot be read, and `batches` raises for such a column.
    _read
        Function that reads columns of some kinds.
    """

    path: Path
    kinds: dict[str, str]
    _read: Callable[[dict[str, str]], Iterator[Batch]] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def batches(self, columns: Collection[str] | None = None) -> Iterator[Batch]:
        """Read from the first row on. Memory is bounded by the batch.

        Parameters
        ----------
        columns
            Names of the columns that are read; all by default.
        """
        wanted = set(self.kinds if columns is None else columns)
        if not wanted:
            raise ValueError(f"{self.path}: name at least one column to read, of {listed(self.kinds)}")
        check_names(self.path, self.kinds, wanted)
        kinds = {name: kind for name, kind in self.kinds.items() if name in wanted}
        for name, kind in kinds.items():
            if kind not in ("number", "text"):
                raise unreadable(self.path, name, kind)
        return self._read(kinds)


class ReadOptions(NamedTuple):
    """Options of `open_reader`."""

    text: frozenset[str] = frozenset()
    delimiter: str | None = None
    batch_bytes: int = BATCH_BYTES
    exact: frozenset[str] = frozenset()


def open_reader(
    path: str | os.PathLike[str],
    *,
    text: Collection[str] = (),
    delimiter: str | None = None,
    batch_bytes: int = BATCH_BYTES,
    exact: Collection[str] = (),
) -> Reader:
    """Open a file of rows for reading in batches; the suffix says how.

    Parameters
    ----------
    path
        ``.parquet`` or ``.pq``; ``.csv``, ``.tsv`` or ``.txt`` with a header, also compressed, with ``.gz`` added;
        ``.npy`` with rows and columns, named ``0``, ``1`` and so on, or with fields; ``.npz`` with the arrays ``X``
        and ``y``, not compressed.
    text
        Columns to be read as strings even if they look like numbers.
    delimiter
        Of a CSV file. By default whichever of comma, tab, semicolon and ``|`` is most frequent in the header.
    batch_bytes
        Size of a batch in memory, about.
    exact
        Columns whose integers stay integers, such as labels: double precision has no distinct ones above 2**53.

    Raises
    ------
    ValueError
        What cannot be read, with file, row and column. `batches` raises it too, where the trouble is farther down.
    OSError
        ``FileNotFoundError``, ``IsADirectoryError``, ``PermissionError`` and so on.

    Notes
    -----
    A number of a CSV file is missing where it is empty or one of ``NA``, ``N/A``, ``NaN``, ``null`` and the like, as in
    pandas; a text where it is empty. Columns are numbers or text by what is in the first 4 MB.
    """
    openers: dict[str, Callable[[Path, ReadOptions], Reader]] = {
        **dict.fromkeys((".parquet", ".pq"), _open_parquet),
        **dict.fromkeys((".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), _open_csv),
        **dict.fromkeys((".npy", ".npz"), _open_numpy),
    }
    place = Path(path)
    suffix = "".join(place.suffixes[-2:] if place.suffix.lower() == ".gz" else place.suffixes[-1:]).lower()
    if suffix not in openers:
        raise ValueError(f"{place}: the suffix must be one of {', '.join(openers)}, got {shown(suffix)}")
    with open(place, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(
                f"{place} is not a regular file, and rows are read more than once; copy it to a file first"
            )
        if not file.read(1):
            raise ValueError(f"{place} is empty")
    return openers[suffix](place, ReadOptions(frozenset(text), delimiter, batch_bytes, frozenset(exact)))


def _open_parquet(path: Path, options: ReadOptions) -> Reader:
    with named(path), _parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    check_names(path, schema.names, options.text)
    if not rows:
        raise no_rows(path)

    def read(kinds: dict[str, str]) -> Iterator[Batch]:
        first = 1
        with named(path), _parquet(path, [name for name, kind in kinds.items() if kind == "text"]) as file:
            rows = max(1, int(options.batch_bytes / _row_bytes(file, set(kinds))))
            for batch in file.iter_batches(rows, columns=list(kinds)):
                yield Batch(path, first, _columns(path, first, batch, kinds, options))
                first += batch.num_rows

    return Reader(path, _kinds(schema, options), read)


def _parquet(path: Path, encoded: list[str] | None = None) -> Any:
    return arrow("parquet").ParquetFile(
        str(path),
        read_dictionary=encoded,
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
        page_checksum_verification=True,  # of files that have checksums
    )


def _row_bytes(file: Any, names: set[str]) -> float:
    """Bytes of a row in memory, or in the file where that is more."""
    stored = 0.0
    for i in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(i)
        parts = (group.column(j) for j in range(group.num_columns))
        stored += sum(part.total_uncompressed_size for part in parts if part.path_in_schema in names)
    return max(8.0 * len(names), stored / int(file.metadata.num_rows))


def _open_csv(path: Path, options: ReadOptions) -> Reader:
    """Read the header, and infer the kinds of columns from the first rows."""
    with named(path):
        header = _csv_header(path)
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {shown(options.delimiter)}")
    delimiter = options.delimiter or _most_frequent_delimiter(header)
    # A number takes eight bytes in memory, and often two in the file; a row may be longer than the header.
    block = min(max(options.batch_bytes // 8, 16 * len(header)), _LARGEST_BLOCK)
    schema = _inferred(path, delimiter, min(4 * block, _LARGEST_BLOCK))
    check_names(path, schema.names, options.text)
    all_kinds = _kinds(schema, options)

    def read_as(name: str, inferred: Any) -> Any:
        """Type that a column is read as: later rows may have fractions where the first have none."""
        pa, types = arrow(), arrow("types")
        if all_kinds[name] == "text":
            return pa.dictionary(pa.int32(), pa.string())
        kept = types.is_boolean(inferred) or (name in options.exact and types.is_integer(inferred))
        return inferred if kept else pa.float64()

    def read(kinds: dict[str, str]) -> Iterator[Batch]:
        types = {name: read_as(name, schema.field(name).type) for name in kinds}
        first, last = 1, {}
        try:
            with _stream(path) as stream:
                for batch in _parsed(stream, delimiter, block, types):
                    if batch.num_rows:
                        found = _columns(path, first, batch, kinds, options)
                        yield Batch(path, first, {name: _without_empty(one) for name, one in found.items()})
                        first += batch.num_rows
                        last = {name: batch.column(name)[-1].as_py() for name in kinds if kinds[name] == "text"}
        except (arrow().ArrowException, OSError) as error:
            # One thread counts rows, several do not: read up to the place again.
            with _explained(path, list(all_kinds)), _stream(path) as stream:
                for _ in _parsed(stream, delimiter, block, types, threads=False):
                    pass
            with named(path):
                raise error
        for name, text in last.items():  # Arrow takes the end of the file for the end of an open quote
            if text and "\n" in text and _ends_with(path, text.encode()):
                raise ValueError(
                    f"{path}, row {first - 1}, column {name!r}: the quote before {quoted(text)} is not closed"
                )

    return Reader(path, all_kinds, read)


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


def _csv_header(path: Path) -> bytes:
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


def _open_numpy(path: Path, options: ReadOptions) -> Reader:
    """Find the columns of an array in ``.npy``, or of the arrays X and y in ``.npz``."""
    arrays = _arrays(path)
    counts = {array.shape[0] for array in arrays}
    if len(counts) > 1:
        raise ValueError(f"{path}: X and y must have the same number of rows, got {listed(map(str, counts))}")
    fields = arrays[0].dtype
    forms = {
        name: fields[name] if fields.names else entries.dtype for name, entries in _named_columns(path, arrays).items()
    }
    check_names(path, forms, options.text)
    if 0 in counts or not forms:
        raise no_rows(path)

    def kind(name: str, form: np.dtype[Any]) -> str:
        if form.kind in "biuf":
            return "text" if name in options.text else "number"
        return "text" if form.kind in "US" else str(form)

    def read(kinds: dict[str, str]) -> Iterator[Batch]:
        is_map, arrays = path.suffix.lower() == ".npy", _arrays(path)
        step = max(1, options.batch_bytes // max(8 * len(kinds), sum(form.itemsize for form in forms.values())))
        for first in range(0, min(counts), step):
            found = _named_columns(path, arrays, slice(first, first + step))
            yield Batch(path, first + 1, {name: column(name, kinds[name], found[name], first) for name in kinds})
            arrays = _arrays(path) if is_map else arrays  # what an earlier map has read need not stay in memory

    def column(name: str, kind: str, entries: NDArray[Any], first: int) -> Column:
        if kind == "number":
            whole = name in options.exact and entries.dtype.kind in "iu"
            return np.array(entries) if whole else entries.astype(np.float64)
        values, codes = np.unique(entries, return_inverse=True)
        if values.dtype.kind == "S":
            try:
                words = [value.decode() for value in values.tolist()]
            except UnicodeDecodeError as error:
                row = 1 + first + _row_of_bad_text(entries.tolist())
                raise ValueError(f"{path}, row {row}, column {name!r}: text must be valid UTF-8") from error
        else:
            words = ["" if value != value else str(value) for value in values.tolist()]
        return _without_empty(Texts(codes.astype(np.int32), words))

    return Reader(path, {name: kind(name, form) for name, form in forms.items()}, read)


def _arrays(path: Path) -> list[NDArray[Any]]:
    """Map the array of ``.npy``, or read the arrays X and y of ``.npz``, if there is a y."""
    try:
        if path.suffix.lower() == ".npy":
            return [np.lib.format.open_memmap(path, mode="r")]
        with zipfile.ZipFile(path) as archive:
            members = {one.filename: one.compress_type == zipfile.ZIP_STORED for one in archive.infolist()}
            if {"X.npy"} <= members.keys() <= {"X.npy", "y.npy"} and all(members.values()):
                return [np.lib.format.read_array(archive.open(name), allow_pickle=False) for name in sorted(members)]
    except OSError:
        raise
    except Exception as error:  # the header is Python's text: whatever its parser raises
        if "objects in dtype" in str(error) or "Object arrays" in str(error):
            raise ValueError(f"{path} holds objects of Python, which are not opened; convert it to numbers") from error
        raise damaged(path, error) from error
    if not {"X.npy"} <= members.keys() <= {"X.npy", "y.npy"}:
        found = listed(name.removesuffix(".npy") for name in members)
        raise ValueError(f"{path} must hold the arrays 'X', rows and columns, and 'y', or 'X' alone; got {found}")
    # A small file could hold any number of rows.
    raise ValueError(f"{path} is compressed; write it by numpy.savez")


def _named_columns(path: Path, arrays: list[NDArray[Any]], part: slice = slice(0)) -> dict[str, NDArray[Any]]:
    """Columns of some rows: of an array with fields by these, else by number; of a second array as y."""
    rows, *targets = arrays
    found: dict[str, NDArray[Any]] = {}
    if rows.dtype.names and rows.ndim == 1 and not targets:
        found = {name: rows[part][name] for name in rows.dtype.names}
    elif rows.ndim == 2 and not rows.dtype.names:
        found = dict(zip(map(str, range(rows.shape[1])), rows[part].T, strict=True))
    else:
        raise ValueError(
            f"{path}: rows must be an array of two axes, or of one axis and fields, got shape {rows.shape} of "
            f"{rows.dtype}"
        )
    for y in targets:
        if y.shape[1:] not in ((), (1,)) or y.dtype.names or not y.ndim:
            raise ValueError(f"{path}: the array y must have one axis, got shape {y.shape} of {y.dtype}")
        found["y"] = y[part].reshape(-1)
    return found


# Arrow's arrays as NumPy's.


def arrow(module: str = "") -> Any:
    """Import pyarrow, or a module of it."""
    try:
        return import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ModuleNotFoundError as error:
        raise ImportError("files of tables need pyarrow: pip install pyarrow") from error


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn whatever Arrow raises about the content of a file into a ValueError that names it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # the system's, not Arrow's
            raise
        raise damaged(path, error) from error
    except (arrow().ArrowException, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


def _kinds(schema: Any, options: ReadOptions) -> dict[str, str]:
    """Kind of every column of an Arrow schema; the name of the type if it is neither a number nor text."""
    types = arrow("types")
    numbers = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary)

    def kind(name: str, form: Any) -> str:
        if name in options.text and _has_text(form):
            return "text"
        if any(holds(form) for holds in numbers):
            return "number"
        return "text" if any(holds(form) for holds in texts) else str(form)

    return {each.name: kind(each.name, each.type) for each in schema}


def _has_text(form: Any) -> bool:
    """Whether values of a type can be written as strings."""
    try:
        arrow().nulls(0, form).cast(arrow().string())
    except arrow().ArrowException:
        return False
    return True


def _columns(path: Path, first: int, batch: Any, kinds: dict[str, str], options: ReadOptions) -> dict[str, Column]:
    """Convert the columns of a batch that are in ``kinds``, in this order. ``first`` is the number of its first row."""
    columns: dict[str, Column] = {}
    for name, kind in kinds.items():
        array = batch.column(name)
        if kind == "number":
            columns[name] = _numbers(array, name in options.exact)
            continue
        try:
            columns[name] = texts_of(array)
        except (UnicodeDecodeError, arrow().ArrowInvalid) as error:
            plain = array.dictionary_decode() if isinstance(array, arrow().DictionaryArray) else array
            row = first + _row_of_bad_text(plain.cast(arrow().large_binary()).to_pylist())
            raise ValueError(f"{path}, row {row}, column {name!r}: text must be valid UTF-8") from error
    return columns


def _numbers(array: Any, exact: bool) -> Any:
    """Numbers, booleans and nulls as float64, NaN where missing; integers as such if ``exact``."""
    if exact and arrow("types").is_integer(array.type):
        return array.to_numpy(zero_copy_only=False)
    return array.cast(arrow().float64(), safe=False).to_numpy(zero_copy_only=False)


def texts_of(array: Any) -> Texts:
    """Codes and levels of an array of anything with a text."""
    pa = arrow()
    if arrow("types").is_boolean(array.type):  # written as Python does
        array = pa.DictionaryArray.from_arrays(array.cast(pa.int32()), ["False", "True"])
    if not isinstance(array, pa.DictionaryArray):
        array = array.cast(pa.string()).dictionary_encode()
    codes: NDArray[np.int32] = array.indices.cast(pa.int32()).fill_null(-1).to_numpy()
    words = array.dictionary
    present = np.zeros(len(words) + 1, dtype=bool)  # the last is for -1
    present[codes] = True
    if not present[:-1].all():  # a Parquet file has one dictionary for many batches
        codes = _renumbered(codes, np.cumsum(present[:-1]) - 1)
        words = words.take(pa.array(np.flatnonzero(present[:-1])))
    levels = words.cast(pa.string()).to_pylist()
    distinct = {level: code for code, level in enumerate(dict.fromkeys(levels))}
    if len(distinct) < len(levels):
        codes = _renumbered(codes, [distinct[level] for level in levels])
    return Texts(codes, list(distinct))


def _renumbered(codes: NDArray[np.int32], numbers: Any) -> NDArray[np.int32]:
    """Replace every code by its new number; -1, which reads the last, stays."""
    return np.append(numbers, -1).astype(np.int32)[codes]


def _row_of_bad_text(texts: Iterable[bytes | None]) -> int:
    """Find the first of some texts, from 0, that is not UTF-8."""
    for row, text in enumerate(texts):
        try:
            (text or b"").decode()
        except UnicodeDecodeError:
            return row
    return 0


# Checks of names, and messages.


def check_names(path: Path, names: Iterable[str], wanted: Iterable[str]) -> None:
    """Raise unless the names of a file's columns are distinct, and those wanted are among them."""
    known: set[str] = set()
    every = list(names)
    for name in every:
        if name in known:
            raise ValueError(f"{path}, column {name!r}: two columns have this name; rename one of them")
        known.add(name)
    for name in wanted:
        if name not in known:
            raise ValueError(f"{path} has no column {shown(name)}; it has {listed(every)}")


def unreadable(path: Path, name: str, kind: str) -> ValueError:
    """Error of a column that is neither numbers nor text; of dates, with how they become numbers."""
    drop = f"drop the column (drop=[{name!r}], --drop {name})"
    if not kind.startswith(("date", "timestamp")):
        return ValueError(
            f"{path}, column {name!r}: {kind} is neither a number nor text; {drop}, or convert it to one of these"
        )
    return ValueError(
        f"{path}, column {name!r}: dates are not numbers; convert them in all files, for example to days since 1970 by "
        f"pandas: frame[{name!r}] = (pandas.to_datetime(frame[{name!r}], utc=True) - pandas.Timestamp(0, tz='UTC')) / "
        f"pandas.Timedelta(days=1); or {drop}; or make every date a category (categories=[{name!r}], --category {name})"
    )


def where(batch: Batch, row: int, column: Any) -> str:
    """File, row and column of a value, for a message."""
    return f"{Path(batch.path)}, row {batch.first + row}, column {column!r}"


def no_rows(path: Path) -> ValueError:
    """Error of a file that has a header and nothing else."""
    return ValueError(f"{path} has columns but no rows; it must have at least one")


def damaged(path: Path, reason: object) -> ValueError:
    """Error of a file whose form is broken."""
    return ValueError(f"{path} cannot be read, it may be truncated or damaged: {_one_line(str(reason), 200)}")


def listed(names: Iterable[str], most: int = 10) -> str:
    """Names for a message, the first few of many."""
    every = list(names)
    return ", ".join(map(repr, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def quoted(text: str) -> str:
    """Write a value of a file for a message."""
    return repr(_one_line(text, 40))


def _one_line(text: str, most: int) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= most else joined[:most] + "..."
