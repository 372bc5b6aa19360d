"""A table in files, as a value that estimators fit and predict from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cavity._checks import one_of, shown, whole_number
from cavity.estimators.columns import EncodedRows, Preprocessing, encode_rows, level_text
from cavity.estimators.runs import Coding, Prepared, Summary
from cavity.factors.columns import Columns
from cavity.tables.first_pass import MISSING, FirstPass, first_bad
from cavity.tables.readers import Batch, Reader, Texts, check_names, open_reader, where
from cavity.tables.rows import Buckets, ReadTable
from cavity.tables.schema import Cells, Roles, not_numbers, resolve

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    r"""Rows in one or several files, which may be larger than memory.

    Estimators take a table in the place of an array: ``EPClassifier().fit(Table("train.csv", target="income"))``. A
    first pass finds means, units, levels and classes, and writes the rows once to scratch files in binary form;
    later passes read these. A column of text is a column of categories, with one coefficient per level and a prior
    variance that is found; levels that occur only in new data have the prior.

    Rows are visited in the order of a hash of their content, so that it does not matter how files are sorted, and equal
    rows count as one of the sum of their weights.

    Parameters
    ----------
    paths
        A file or several with the same columns: Parquet (``.parquet``), CSV (``.csv``, ``.tsv``, also with ``.gz``) or
        NumPy (``.npy``, ``.npz``).
    target
        Column of labels or targets. Not needed for predictions.
    weight
        Column of weights: a row of weight w counts as w rows.
    offset
        Column of known terms of the linear predictor, such as logarithms of exposures.
    categories
        Columns that are categories whatever is in them, such as numbers that are identifiers. Other columns of text
        are categories too, but raise an error if most of their cells are numbers, if they are dates, or if there are
        more than half as many levels as rows. Labels are read as text if the target is named here.
    drop
        Columns that are ignored.
    missing
        How to treat missing features: ``"error"`` raises an error, ``"mean"`` uses the mean of numbers and adds a
        column that marks them, and gives missing text a level of its own, ``(missing)``. In CSV files, text is missing
        where it is empty; numbers also where they are written ``NA``, ``NaN``, ``null`` and the like.
    memory
        Number of bytes that encoded rows may use in memory. The default of 64 MB keeps a fit below 1 GB in total. If
        the rows need more, they are read from scratch files.
    scratch
        Folder of scratch files, by default the system's folder for temporary files. They need 8 bytes per row and
        column, 12 where columns of categories have many levels, and during a fit 64 more bytes per row.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from cavity import EPRegressor
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trees.csv"
    >>> lines = [f"{k % 7},{'ab'[k % 2]},{k % 7 + k % 2}" for k in range(40)]
    >>> _ = path.write_text("\n".join(["height,kind,volume", *lines]))
    >>> EPRegressor().fit(Table(path, target="volume")).feature_names_in_.tolist()
    ['height', 'kind']
    """

    paths: Paths
    target: str | None = None
    weight: str | None = None
    offset: str | None = None
    categories: Collection[str] = ()
    drop: Collection[str] = ()
    missing: str = "error"
    memory: int = 1 << 26
    scratch: str | os.PathLike[str] | None = None
    _found: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        one_of("missing", self.missing, ("error", "mean"))
        whole_number("memory", self.memory, least=0)
        for name in ("categories", "drop"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a list of columns, got {shown(getattr(self, name))}")
        if not self._files:
            raise ValueError("a table needs at least one file, got none")

    @property
    def _files(self) -> list[Path]:
        if isinstance(self.paths, str | os.PathLike):
            return [Path(self.paths)]
        return [Path(path) for path in self.paths]

    def _readers(self, text: Collection[str], labels: bool) -> list[Reader]:
        """Open all files; ``labels`` says whether targets are labels, whose integers stay integers."""
        exact = [self.target] if labels and self.target is not None else []
        return [open_reader(path, text=text, exact=exact) for path in self._files]

    # What estimators ask for, `cavity.estimators.runs`.

    def cavity_summary(self, targets: str) -> Summary:
        """Read all rows once: gather what an estimator needs to know, and write records of them."""
        categories, drop = frozenset(self.categories), frozenset(self.drop)
        readers = self._readers(categories, targets == "classes")
        if self.target is None:
            raise ValueError("a table needs target=, the name of the column to be predicted")
        roles = Roles(self.target, self.weight, self.offset, categories, drop)
        found = FirstPass(resolve(readers, roles), roles, targets, self.missing == "mean")
        folder = None if self.scratch is None else Path(self.scratch)
        # Text takes about as many bytes as numbers do; Parquet a quarter.
        width, size = len(found.schema.numbers) + len(found.levels) + 3, sum(reader.size for reader in readers)
        buckets = Buckets(folder, width, 4 * size)
        for records in found.records(readers):
            buckets.add(records)
        summary = found.summary()
        places = tuple(codes.sorted()[1] for codes in found.levels)
        classes = found.classes.sorted()[1] if targets == "classes" else None
        has_offset = self.offset is not None
        self._found["rows"] = ReadTable(
            buckets, found.preprocessing(), places, classes, has_offset, self.memory, folder
        )
        return summary

    def cavity_prepare(self, coding: Coding, intercept: bool, columns: Columns) -> Prepared:
        """Prepare the rows of the last summary with targets in this coding, and columns in these units."""
        read: ReadTable = self._found.pop("rows")
        return read.prepare(coding, intercept, columns)

    def cavity_discard(self) -> None:
        """Drop the records of the last summary, whose files are removed with them."""
        self._found.clear()

    def cavity_frames(self, labels: bool = False) -> Iterator[Block]:
        """Rows as they were read, some at a time, as mappings of all columns of numbers and text.

        ``labels`` says whether targets are labels, whose integers stay integers.
        """
        roles = {"target": self.target, "weight": self.weight, "offset": self.offset}
        left_out = {*self.drop, *roles.values()}
        for reader in self._readers(frozenset(self.categories), labels):
            check_names(reader.path, reader.kinds, {name for name in roles.values() if name is not None})
            kept = [name for name, kind in reader.kinds.items() if kind in ("number", "text")]
            for batch in reader.batches([name for name in kept if name not in self.drop]):
                rows = {name: _cells(batch, name, self.missing) for name in batch.columns if name not in left_out}
                beside: dict[str, Any] = {
                    role: None if name is None else _values(batch, name) for role, name in roles.items()
                }
                yield Block(batch, rows, **beside)

    def cavity_check(self, columns: Collection[str]) -> None:
        """Raise for columns of text that look like slips: numbers but for some cells, dates, another text in every row.

        Parameters
        ----------
        columns
            Names of columns; those of numbers, and those that were declared to be categories, are left alone.
        """
        kinds = self._readers((), False)[0].kinds
        cells = {name: Cells() for name in columns if kinds.get(name) == "text" and name not in self.categories}
        levels: dict[str, set[str]] = {name: set() for name in cells}
        for reader in self._readers((), False) if cells else ():
            for batch in reader.batches(list(cells)):
                for name, one in cells.items():
                    one.add(batch, name)
                    column = batch.columns[name]
                    levels[name].update(column.levels if isinstance(column, Texts) else ())
        for name, one in cells.items():
            one.check(self._files[0], name, len(levels[name]), name == self.target)

    def cavity_blocks(
        self, preprocessing: Preprocessing, levels: dict[str, list[Any]], labels: bool = False
    ) -> Iterator[Block]:
        """Rows for a model that was fitted to another table, some at a time, encoded as it was.

        ``labels`` says whether targets are labels, whose integers stay integers.
        """
        known = [{level_text(level): k for k, level in enumerate(one)} for one in levels.values()]
        counts = [len(one) for one in levels.values()]
        single = {name: getattr(self, name) for name in ("target", "weight", "offset")}
        needed = [*preprocessing.numbers, *levels, *(name for name in single.values() if name is not None)]
        for reader in self._readers([*levels, *self.categories], labels):
            for name in needed:
                if name not in reader.kinds:
                    raise ValueError(f"{reader.path} has no column {name!r}, which the model needs")
                if name in preprocessing.numbers and reader.kinds[name] != "number":
                    raise not_numbers(reader, name, "the model needs numbers")
            for role in ("weight", "offset"):
                if single[role] is not None and reader.kinds[single[role]] != "number":
                    remedy = "correct it, or name another column"
                    raise not_numbers(reader, single[role], f"{role} must be a number", remedy)
            for batch in reader.batches(needed or None):
                numbers = np.empty((batch.n_rows, len(preprocessing.numbers)))
                for k, name in enumerate(preprocessing.numbers):
                    numbers[:, k] = _checked_number(batch, name, name in preprocessing.filled)
                codes = np.empty((batch.n_rows, len(levels)), dtype=np.int64)
                for k, name in enumerate(levels):
                    codes[:, k] = _level_codes(batch, name, known[k])
                rows = encode_rows(numbers, codes, counts, preprocessing, dense=not levels)
                beside: dict[str, Any] = {
                    role: None if name is None else _values(batch, name) for role, name in single.items()
                }
                row = None if single["offset"] is None else first_bad(beside["offset"], np.isnan)
                if row is not None:
                    raise ValueError(f"{where(batch, row, single['offset'])}: the number is missing; fill it")
                yield Block(batch, EncodedRows(rows), **beside)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some consecutive rows of a table, encoded for a model.

    Parameters
    ----------
    batch
        The rows as they were read.
    rows
        Their encoded features, or their columns as a mapping.
    target, weight, offset
        Targets, weights and offsets, where the table has them.
    """

    batch: Batch
    rows: EncodedRows | dict[str, Any]
    target: Any = None
    weight: Any = None
    offset: Any = None


def _checked_number(batch: Batch, name: str, may_lack: bool) -> Any:
    column: Any = batch.columns[name]
    row = None if may_lack else first_bad(column, np.isnan)
    if row is not None:
        raise ValueError(f"{where(batch, row, name)}: the number is missing, and none was where the model was fitted")
    return column


def _level_codes(batch: Batch, name: str, known: dict[str, int]) -> Any:
    column: Any = batch.columns[name]
    each = np.array([known.get(level_text(one), len(known)) for one in column.levels], dtype=np.int64)
    return np.append(each, known.get(MISSING, len(known)))[column.codes]  # the code -1 takes the last


def _cells(batch: Batch, name: str, missing: str) -> Any:
    """Numbers of a column, or its texts, of which missing ones have a level of their own where that was asked for."""
    column: Any = batch.columns[name]
    if not isinstance(column, Texts):
        return column
    lacking = MISSING if missing == "mean" else None
    return np.array([*column.levels, lacking], dtype=object)[column.codes]  # the code -1 takes the last


def _values(batch: Batch, name: str) -> Any:
    column: Any = batch.columns[name]
    if not isinstance(column, Texts):
        return column
    return np.array([*column.levels, None], dtype=object)[column.codes]  # the code -1, of missing ones, takes the last
