"""A table in files, as a value that estimators fit and predict from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cavity._checks import one_of, shown, whole_number
from cavity.estimators._categories import level_text
from cavity.estimators._preprocessing import EncodedRows, Preprocessing, encode_rows
from cavity.estimators._sources import Coding, Prepared, Summary
from cavity.factors.columns import Columns
from cavity.tables._batches import Batch, Reader, Texts, where
from cavity.tables._cells import not_numbers
from cavity.tables._files import open_reader
from cavity.tables._first_pass import MISSING, FirstPass
from cavity.tables._gathering import first_bad
from cavity.tables._prepared import SpooledTable
from cavity.tables._rows import Encoder
from cavity.tables._schema import Roles, resolve
from cavity.tables._spool import Spool
from cavity.tables._wide import WideSums, WideTable, encoded, sparse_part

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    r"""Rows in one or several files, which may be larger than memory.

    Estimators take a table in the place of an array: ``EPClassifier().fit(Table("train.csv", target="income"))``. A
    first pass finds means, units, levels and classes, and writes the rows once to a scratch file in binary form;
    later passes read that. A column of text is a column of categories, with one coefficient per level and a prior
    variance that is found; levels that occur only in new data have the prior.

    Rows are visited in the order of a hash of their content, so that it does not matter how files are sorted, and equal
    rows count as one of the sum of their weights.

    Parameters
    ----------
    paths
        A file or several with the same columns: Parquet (``.parquet``), CSV (``.csv``, ``.tsv``, also with ``.gz``),
        NumPy (``.npy``, ``.npz``), or libsvm (``.svm``, ``.libsvm``), whose features are taken as they are.
    target
        Column of labels or targets. Not needed for predictions. In libsvm files it is always ``"target"``.
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
    hash_columns
        Columns of text whose words are counted in ``2**hash_bits`` columns each, for longer texts and for categories
        with very many levels. With so many columns the covariance is diagonal, and the fit is a single pass if the
        rows do not fit in memory.
    hash_bits
        Logarithm of the number of hashed columns, to the base 2.
    memory
        Number of bytes that encoded rows may use in memory. The default of 64 MB keeps a fit below 1 GB in total. If
        the rows need more, they are read from the scratch file.
    scratch
        Folder of the scratch file, by default the system's folder for temporary files. The file needs 8 bytes per row
        and column, and during a fit 28 more bytes per row.

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
    hash_columns: Collection[str] = ()
    hash_bits: int = 18
    memory: int = 1 << 26
    scratch: str | os.PathLike[str] | None = None
    _found: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        one_of("missing", self.missing, ("error", "mean"))
        whole_number("memory", self.memory, least=0)
        whole_number("hash_bits", self.hash_bits, least=1, most=30)
        for name in ("categories", "drop", "hash_columns"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a list of columns, got {shown(getattr(self, name))}")
        if not self._files:
            raise ValueError("a table needs at least one file, got none")

    @property
    def _files(self) -> list[Path]:
        if isinstance(self.paths, str | os.PathLike):
            return [Path(self.paths)]
        return [Path(path) for path in self.paths]

    @property
    def _folder(self) -> Path | None:
        return None if self.scratch is None else Path(self.scratch)

    @property
    def _roles(self) -> Roles:
        several = (frozenset(names) for names in (self.categories, self.drop, self.hash_columns))
        return Roles(self.target, self.weight, self.offset, *several)

    def _readers(self, text: Collection[str], raw: Collection[str], labels: bool) -> list[Reader]:
        exact = [self.target] if labels and self.target is not None else []
        return [open_reader(path, text=text, raw=raw, exact=exact) for path in self._files]

    # What estimators ask for, `cavity.estimators._sources`.

    def _first_pass(self, targets: str) -> tuple[list[Reader], FirstPass]:
        """Open all files, and say what their columns are."""
        roles = self._roles
        readers = self._readers(roles.categories, roles.hashed, targets == "classes")
        if roles.target is None and list(readers[0].kinds) == ["target"]:  # libsvm
            roles = replace(roles, target="target")
        if roles.target is None:
            raise ValueError("a table needs target=, the name of the column to be predicted")
        return readers, FirstPass(resolve(readers, roles), roles, targets, self.missing == "mean")

    def cavity_summary(self, targets: str) -> Summary:
        """Read all rows once: gather what an estimator wants to know, and write records of them."""
        readers, found = self._first_pass(targets)
        schema, has_offset = found.schema, found.roles.offset is not None
        if schema.hashed or schema.has_rows:
            return self._wide_summary(readers, found)
        width = len(schema.numbers) + len(schema.categories) + 3
        # Text takes about as many bytes as numbers do; Parquet a quarter.
        spool = Spool(self._folder, width, 4 * sum(reader.size for reader in readers))
        try:
            for read in found.read(readers):
                spool.add(read.records())
            preprocessing = found.preprocessing()
            summary = found.summary(preprocessing)
            classes = found.classes.sorted()[1] if targets == "classes" else None
            encoder, records = Encoder(preprocessing, found.places, classes), spool.merged()
        except BaseException:
            spool.close()
            raise
        self._found["rows"] = SpooledTable(spool, records, encoder, has_offset, self.memory)
        return summary

    def _wide_summary(self, readers: Sequence[Reader], found: FirstPass) -> Summary:
        """Do the same for wide sparse rows, which are not written."""
        sums, hashed_columns = WideSums(), found.schema.hashed
        for read in found.read(readers):
            sums.add(sparse_part(read.batch, hashed_columns, self.hash_bits), read.weight)
        preprocessing = found.preprocessing(self.hash_bits, 0 if hashed_columns else sums.width)
        self._found["rows"] = WideTable(readers, found, preprocessing, sums, self.memory, self._folder)
        return found.summary(preprocessing, sums.sums)

    def cavity_prepare(self, coding: Coding, intercept: bool, columns: Columns) -> Prepared:
        """Give the rows of the last summary with targets in this coding, and columns in these units."""
        found: SpooledTable | WideTable = self._found.pop("rows")
        return found.prepare(coding, intercept, columns)

    def cavity_discard(self) -> None:
        """Remove the records of the last summary, which are not needed after all."""
        found = self._found.pop("rows", None)
        if isinstance(found, SpooledTable):
            found.spool.close()

    def cavity_blocks(
        self, preprocessing: Preprocessing, levels: dict[str, list[Any]], labels: bool = False
    ) -> Iterator[Block]:
        """Rows for a model that was fitted to another table, some at a time, encoded as it was.

        ``labels`` says whether targets are labels, whose integers stay integers.
        """
        return _blocks(self, preprocessing, levels, labels)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some consecutive rows of a table, encoded for a model.

    Parameters
    ----------
    batch
        The rows as they were read.
    rows
        Their encoded features.
    target, weight, offset
        Targets, weights and offsets, where the table has them.
    """

    batch: Batch
    rows: EncodedRows
    target: Any = None
    weight: Any = None
    offset: Any = None


def _blocks(table: Table, preprocessing: Preprocessing, levels: dict[str, list[Any]], labels: bool) -> Iterator[Block]:
    known = [{level_text(level): k for k, level in enumerate(one)} for one in levels.values()]
    counts = [len(one) for one in levels.values()]
    single = {name: getattr(table, name) for name in ("target", "weight", "offset")}
    named = [name for name in single.values() if name is not None]
    for reader in table._readers([*levels, *table.categories], preprocessing.hashed, labels):
        needed = [*preprocessing.numbers, *levels, *preprocessing.hashed, *named]
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
            if preprocessing.wide:
                wide = sparse_part(batch, preprocessing.hashed, preprocessing.hash_bits)
                rows = encoded((numbers, codes), wide, counts, preprocessing)
            else:
                rows = encode_rows(numbers, codes, counts, preprocessing, dense=not levels)
            beside: dict[str, Any] = {
                role: None if name is None else _values(batch, name) for role, name in single.items()
            }
            row = None if single["offset"] is None else first_bad(beside["offset"], np.isnan)
            if row is not None:
                raise ValueError(f"{where(batch, row, single['offset'])}: the number is missing; fill it")
            yield Block(batch, EncodedRows(rows), **beside)


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


def _values(batch: Batch, name: str) -> Any:
    column: Any = batch.columns[name]
    return np.asarray(column.levels, dtype=object)[column.codes] if isinstance(column, Texts) else column


__all__ = ["Block", "Table"]
