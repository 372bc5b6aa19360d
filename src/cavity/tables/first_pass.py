"""The first pass over all rows of a table: they become numbers, and their means, levels and classes are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._checks import shown
from cavity._types import FloatArray
from cavity.estimators.columns import Preprocessing, level_order, level_text
from cavity.estimators.parameters import LARGEST_NUMBER
from cavity.estimators.runs import Moments, Summary
from cavity.factors.columns import ColumnSums
from cavity.tables.readers import Batch, Reader, Texts, where
from cavity.tables.schema import Cells, Roles, Schema, not_numbers

# Level of missing texts, where they may be missing.
MISSING = "(missing)"
# Labels beyond which a target is taken for a number that varies.
MOST_CLASSES = 10_000


class Codes:
    """Numbers of distinct values in the order in which they were first seen, and in sorted order at the end.

    Parameters
    ----------
    write
        Form in which texts are compared.
    order
        Key by which values are sorted; their own order by default.
    """

    def __init__(self, write: Callable[[str], str] = str, order: Callable[[Any], Any] | None = None) -> None:
        self._places: dict[Any, int] = {}
        self._write, self._order = write, order

    def __len__(self) -> int:
        return len(self._places)

    def of(self, column: Texts | NDArray[Any]) -> FloatArray:
        """Numbers of a column of texts, or of numbers, of which whole ones may be integers; -1 where missing."""
        places = self._places
        if isinstance(column, Texts):
            each = [places.setdefault(self._write(level), len(places)) for level in column.levels]
            return np.array([*each, -1], dtype=np.float64)[column.codes]  # the code -1 takes the last
        values, inverse = np.unique(column, return_inverse=True)
        each = [-1 if np.isnan(v) else places.setdefault(v.item(), len(places)) for v in values]
        return np.asarray(each, dtype=np.float64)[inverse]

    def sorted(self) -> tuple[list[Any], NDArray[np.int64]]:
        """Values in order, and the place there of every number that was given."""
        values = list(self._places)
        order = sorted(range(len(values)), key=lambda k: self._order(values[k]) if self._order else values[k])
        places = np.empty(len(values), dtype=np.int64)
        places[order] = np.arange(len(values))
        return [values[k] for k in order], places


class FirstPass:
    """What is gathered from all rows, batch by batch.

    Parameters
    ----------
    schema, roles
        What the columns are.
    targets
        ``"classes"`` or ``"numbers"``.
    fills
        Whether features may be missing.
    """

    def __init__(self, schema: Schema, roles: Roles, targets: str, fills: bool) -> None:
        self.schema, self.roles, self.targets, self.fills = schema, roles, targets, fills
        self.levels = [Codes(level_text, level_order) for _ in schema.categories]
        self.classes, self.class_counts = Codes(), np.zeros(0)
        self.weight, self.missing = 0.0, np.zeros(len(schema.numbers))
        self.sums = ColumnSums.nothing(len(schema.numbers))
        self.target_sums = ColumnSums.nothing(3)  # of targets, of these without offsets, and of their logarithms
        # Columns of text that were not declared to be categories.
        judged = [*schema.categories, *([roles.target] if targets == "classes" else [])]
        self.cells = {name: Cells() for name in judged if name is not None and name not in roles.categories}

    def records(self, readers: Sequence[Reader]) -> Iterator[FloatArray]:
        """Read all files, and give their rows of positive weight as records, a batch at a time.

        A record is a row of numbers: features that are numbers, codes of levels, target or code of a label, offset,
        weight.
        """
        target = self.roles.target
        for reader in readers:
            if self.targets == "numbers" and target is not None and reader.kinds[target] != "number":
                remedy = "correct it, or take EPClassifier (--task classify) for labels"
                raise not_numbers(reader, target, "targets must be numbers", remedy)
        for reader in readers:
            for batch in reader.batches(self.schema.used):
                for name, cells in self.cells.items():
                    cells.add(batch, name)
                records = self._records(batch)
                records = records[records[:, -1] > 0.0] if np.any(records[:, -1] == 0.0) else records
                if len(records):
                    self._gather(records)
                yield records
        for name in self.cells:
            self._check_cells(readers[0], name)
        if self.weight == 0.0:
            raise ValueError(f"{readers[0].path}: no row has a positive weight")

    def _check_cells(self, place: Any, name: str) -> None:
        is_target = name == self.roles.target
        levels = self.classes if is_target else self.levels[self.schema.categories.index(name)]
        self.cells[name].check(place.path, name, len(levels), is_target)

    def _records(self, batch: Batch) -> FloatArray:
        """Check a batch, and bring it to numbers."""
        schema, roles = self.schema, self.roles
        width = len(schema.numbers)
        records = np.empty((batch.n_rows, width + len(schema.categories) + 3))
        target, offset, weight = records[:, -3:].T
        for k, name in enumerate(schema.numbers):
            records[:, k] = self._number(batch, name, missing=self.fills)
        for k, name in enumerate(schema.categories):
            records[:, width + k] = _coded(batch, name, self.levels[k], MISSING if self.fills else None)
        weight[:] = 1.0 if roles.weight is None else self._number(batch, roles.weight)
        row = first_bad(weight, lambda w: w < 0.0)
        if row is not None:
            raise ValueError(f"{where(batch, row, roles.weight)}: a weight must not be negative, got {weight[row]:g}")
        offset[:] = 0.0 if roles.offset is None else self._number(batch, roles.offset)
        target[:] = self._target(batch)
        return records

    def _number(self, batch: Batch, name: str, missing: bool = False) -> FloatArray:
        column = batch.columns[name]
        if isinstance(column, Texts):
            raise ValueError(f"{batch.path}, column {name!r}: must hold numbers, got text")
        row = first_bad(column, lambda v: ~(np.abs(v) <= LARGEST_NUMBER) & (~np.isnan(v) | (not missing)))
        if row is None:
            return column
        if not np.isnan(column[row]):
            raise ValueError(
                f"{where(batch, row, name)}: numbers must be at most {LARGEST_NUMBER:g}, got {column[row]}"
            )
        advice = "fill it, or use missing='mean' (--missing mean)"
        advice = advice if name in self.schema.numbers else "fill it, or leave the row out"
        raise ValueError(f"{where(batch, row, name)}: the number is missing; {advice}")

    def _target(self, batch: Batch) -> FloatArray:
        name = str(self.roles.target)
        if self.targets == "numbers":
            return self._number(batch, name)
        codes = _coded(batch, name, self.classes, advice="fill it, or leave the row out")
        if len(self.classes) > MOST_CLASSES:
            if name in self.cells:
                self._check_cells(batch, name)
            raise ValueError(
                f"{batch.path}, column {name!r}: more than {MOST_CLASSES} different labels; take EPRegressor "
                "(--task regress) if it is a number to be predicted"
            )
        counts = np.bincount(codes.astype(np.intp), minlength=len(self.classes)).astype(np.float64)
        counts[: self.class_counts.size] += self.class_counts
        self.class_counts = counts  # rows of weight zero count, as in arrays
        return codes

    def _gather(self, records: FloatArray) -> None:
        """Add rows of positive weight to all sums."""
        numbers, (target, offset, weight) = records[:, : len(self.schema.numbers)], records[:, -3:].T
        self.sums = self.sums.plus(ColumnSums.of(numbers, weight))
        self.missing = self.missing + weight @ np.isnan(numbers)
        self.weight += float(np.sum(weight))
        if self.targets == "numbers":
            logs = np.log(np.where(target > 0.0, target, 1.0))
            self.target_sums = self.target_sums.plus(
                ColumnSums.of(np.column_stack([target, target - offset, logs]), weight)
            )

    def preprocessing(self) -> Preprocessing:
        """Means of the numbers, and which may be missing."""
        filled = tuple(name for name, lacks in zip(self.schema.numbers, self.missing > 0.0, strict=True) if lacks)
        roles = self.roles.target, self.roles.weight, self.roles.offset
        return Preprocessing(self.schema.numbers, self.sums.mean, filled, *roles)

    def summary(self) -> Summary:
        """Return what an estimator asks of all rows."""
        preprocessing = self.preprocessing()
        # Sums over the numbers, missing ones filled by their mean, and over the columns that say which were missing.
        filled = self.sums._replace(weight=self.sums.weight + self.missing)
        sums = filled.beside(ColumnSums.of_flags(self.weight, self.missing[self.missing > 0.0]))
        categories = {name: codes.sorted()[0] for name, codes in zip(self.schema.categories, self.levels, strict=True)}
        classes, counts, moments = None, None, None
        if self.targets == "classes":
            labels, places = self.classes.sorted()
            if len(labels) == 1:
                raise ValueError(f"column {self.roles.target!r}: all labels are {shown(labels[0])}; two are needed")
            classes = np.asarray([_whole(label) for label in labels])
            if classes.dtype.kind == "f" and np.any(classes != np.floor(classes)) and len(labels) > 2:
                raise ValueError(
                    f"column {self.roles.target!r}: labels must be whole numbers or text; take EPRegressor"
                )
            counts = np.zeros(len(labels))
            counts[places] = self.class_counts
        else:
            found = self.target_sums
            (_, mean, log_mean), (_, squares, log_squares) = found.mean, found.squares
            moments = Moments(*map(float, (found.least[0], found.largest[0], mean, squares, log_mean, log_squares)))
        return Summary(
            self.weight,
            sums,
            preprocessing.width + len(categories),
            [*preprocessing.features, *categories],
            categories,
            classes,
            counts,
            moments,
            self.roles.offset is not None,
            preprocessing.plain(),
        )


def _whole(label: Any) -> Any:
    """Return a label that is a whole number as an integer, unless double precision may have rounded it."""
    return int(label) if isinstance(label, float) and label.is_integer() and abs(label) < 2**53 else label


def _coded(
    batch: Batch,
    name: str,
    codes: Codes,
    missing: str | None = None,
    advice: str = "fill it, or use missing='mean' (--missing mean), which makes it a level of its own",
) -> FloatArray:
    """Numbers of levels or labels; a missing one is an error, or has the level ``missing``."""
    found = codes.of(batch.columns[name])
    row = first_bad(found, lambda c: c < 0.0)
    if row is None:
        return found
    if missing is None:
        raise ValueError(f"{where(batch, row, name)}: the value is missing; {advice}")
    return np.where(found < 0.0, codes.of(Texts(np.zeros(1, dtype=np.int32), [missing])), found)


def first_bad(values: FloatArray, is_bad: Callable[[FloatArray], NDArray[np.bool_]]) -> int | None:
    """Row of the first value that is bad."""
    bad = np.flatnonzero(is_bad(values))
    return int(bad[0]) if bad.size else None
