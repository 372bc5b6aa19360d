"""Arrow's arrays as NumPy's, and its errors as one line that names the file. Arrow is imported when first needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.tables._batches import Column, FloatArray, RawTexts, ReadOptions, Texts, damaged


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


def kind_of(form: Any) -> str:
    """Say what a column of an Arrow type is for us; the type's own name if neither a number nor text."""
    types = arrow("types")
    if any(
        holds(form)
        for holds in (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    ):
        return "number"
    text = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary)
    return "text" if any(holds(form) for holds in text) else str(form)


def kinds_of(schema: Any, options: ReadOptions) -> dict[str, str]:
    """Say what every column is, as the user wants it."""
    asked = options.text | options.raw
    return {each.name: "text" if each.name in asked and _has_text(each.type) else kind_of(each.type) for each in schema}


def _has_text(form: Any) -> bool:
    """Whether values of a type can be written as strings."""
    try:
        arrow().nulls(0, form).cast(arrow().string())
    except arrow().ArrowException:
        return False
    return True


def columns_of(path: Path, first: int, batch: Any, kinds: dict[str, str], options: ReadOptions) -> dict[str, Column]:
    """Convert the columns of a batch that are in ``kinds``, in this order. ``first`` is the number of its first row."""
    columns: dict[str, Column] = {}
    for name, kind in kinds.items():
        array = batch.column(name)
        if kind == "number":
            columns[name] = numbers_of(array, name in options.exact)
            continue
        try:
            columns[name] = raw_texts_of(array) if name in options.raw else texts_of(array)
        except (UnicodeDecodeError, arrow().ArrowInvalid) as error:
            row = first + _row_of_bad_text(array)
            raise ValueError(f"{path}, row {row}, column {name!r}: text must be valid UTF-8") from error
    return columns


def numbers_of(array: Any, exact: bool = False) -> Any:
    """Take numbers, booleans and nothing as float64, NaN where missing; integers as such if ``exact``."""
    if exact and arrow("types").is_integer(array.type):
        return array.to_numpy(zero_copy_only=False)
    values: FloatArray = array.cast(arrow().float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def texts_of(array: Any) -> Texts:
    """Take anything with a text as codes and levels."""
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
    """Give every code a new number; -1, which reads the last, stays."""
    return np.append(numbers, -1).astype(np.int32)[codes]


def raw_texts_of(array: Any) -> RawTexts:
    """Take anything with a text as its bytes."""
    pa = arrow()
    array = array.cast(pa.large_string()).fill_null("")
    array.validate(full=True)
    offsets, data = array.buffers()[1:]
    starts = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    every = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return RawTexts(starts - starts[0], every[starts[0] : starts[-1]])


def _row_of_bad_text(array: Any) -> int:
    """Find the first row of a batch, from 0, whose text is not UTF-8."""
    pa = arrow()
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    for row, value in enumerate(array.cast(pa.large_binary()).to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return row
    return 0
