"""The first look at all rows of a table: what they hold is gathered, and records of them are written to a spool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.estimators._categories import level_order, level_text
from cavity.estimators._parameters import LARGEST_NUMBER
from cavity.estimators._preprocessing import Preprocessing
from cavity.estimators._sources import Moments, Summary
from cavity.factors.columns import ColumnSums
from cavity.tables._batches import Batch, Reader, Texts, where
from cavity.tables._cells import Cells, not_numbers
from cavity.tables._gathering import MOST_CLASSES, Codes, RunningMoments, first_bad
from cavity.tables._schema import Roles, Schema

FloatArray = NDArray[np.float64]

# Level of missing texts, where they may be missing.
MISSING = "(missing)"


class Read(NamedTuple):
    """A batch in numbers, ``whole``, and its parts: features that are numbers, codes of levels, and what rows have."""

    batch: Batch
    whole: FloatArray
    numbers: FloatArray
    codes: FloatArray
    target: FloatArray
    offset: FloatArray
    weight: FloatArray

    def records(self) -> FloatArray:
        """Give records for the spool, rows of weight zero left out."""
        return self.whole if np.all(self.weight > 0.0) else self.whole[self.weight > 0.0]


@dataclass(slots=True, eq=False)
class FirstPass:
    """Gathers what is to be known of all rows, batch by batch.

    Parameters
    ----------
    schema, roles
        What the columns are.
    targets
        ``"classes"`` or ``"numbers"``.
    fills
        Whether features may be missing.
    """

    schema: Schema
    roles: Roles
    targets: str
    fills: bool
    levels: list[Codes] = field(default_factory=list)
    cells: dict[str, Cells] = field(default_factory=dict)  # of columns of text that were not declared to be categories
    classes: Codes = field(default_factory=Codes)
    counts: FloatArray = field(default_factory=lambda: np.zeros(0))
    weight: float = 0.0
    bounds: FloatArray = field(default_factory=lambda: np.array([np.inf, -np.inf]))
    sums: ColumnSums = field(default_factory=lambda: ColumnSums.nothing(0))
    target_moments: RunningMoments = field(default_factory=lambda: RunningMoments(2))
    missing: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        numbers = len(self.schema.numbers)
        self.levels = [Codes(level_text, level_order) for _ in self.schema.categories]
        self.sums, self.missing = ColumnSums.nothing(numbers), np.zeros(numbers)
        judged = [*self.schema.categories, *([self.roles.target] if self.targets == "classes" else [])]
        self.cells = {name: Cells() for name in judged if name is not None and name not in self.roles.categories}

    def read(self, readers: Sequence[Reader]) -> Iterator[Read]:
        """Read all batches, gather, and give them in numbers."""
        target = self.roles.target
        for reader in readers:
            if self.targets == "numbers" and target is not None and reader.kinds[target] != "number":
                remedy = "correct it, or take EPClassifier (--task classify) for labels"
                raise not_numbers(reader, target, "targets must be numbers", remedy)
        for reader in readers:
            for batch in reader.batches(self.schema.columns(self.roles)):
                yield self._take(batch)
        for name in self.cells:
            self._check_cells(readers[0].path, name)
        if self.weight == 0.0:
            raise ValueError(f"{readers[0].path}: no row has a positive weight")

    def _check_cells(self, path: Path, name: str) -> None:
        is_target = name == self.roles.target
        levels = self.classes if is_target else self.levels[self.schema.categories.index(name)]
        self.cells[name].check(path, name, len(levels), is_target)

    def _take(self, batch: Batch) -> Read:
        for name, cells in self.cells.items():
            cells.add(batch, name)
        read = self._numbers(batch)
        self._gather(read.numbers, read.target, read.offset, read.weight)
        return read

    def _numbers(self, batch: Batch) -> Read:
        """Check a batch, and bring it to numbers."""
        width = len(self.schema.numbers)
        whole = np.empty((batch.n_rows, width + len(self.schema.categories) + 3))
        numbers, codes, (target, offset, weight) = whole[:, :width], whole[:, width:-3], whole[:, -3:].T
        for k, name in enumerate(self.schema.numbers):
            numbers[:, k] = self._number(batch, name, missing=self.fills)
        for k, name in enumerate(self.schema.categories):
            codes[:, k] = _coded(batch, name, self.levels[k], MISSING if self.fills else None)
        weight[:] = 1.0 if self.roles.weight is None else self._number(batch, self.roles.weight)
        row = first_bad(weight, lambda w: w < 0.0)
        if row is not None:
            raise ValueError(
                f"{where(batch, row, self.roles.weight)}: a weight must not be negative, got {weight[row]:g}"
            )
        offset[:] = 0.0 if self.roles.offset is None else self._number(batch, self.roles.offset)
        target[:] = self._target(batch)
        return Read(batch, whole, numbers, codes, target, offset, weight)

    def _gather(self, numbers: FloatArray, target: FloatArray, offset: FloatArray, weight: FloatArray) -> None:
        kept = weight > 0.0
        if np.any(kept):
            rows, weights = (numbers, weight) if np.all(kept) else (numbers[kept], weight[kept])
            self.sums = self.sums.plus(ColumnSums.of(rows, weights))
            self.missing = self.missing + weights @ np.isnan(rows)
        self.weight += float(np.sum(weight))
        if self.targets == "classes":
            counts = np.bincount(target.astype(np.intp), minlength=len(self.classes)).astype(np.float64)
            counts[: self.counts.size] += self.counts
            self.counts = counts
        elif target.size:
            apart = target - offset
            self.bounds = np.array([min(self.bounds[0], target.min()), max(self.bounds[1], target.max())])
            with np.errstate(invalid="ignore", divide="ignore"):
                logs = np.where(target > 0.0, np.log(np.maximum(target, np.finfo(np.float64).tiny)), 0.0)
            self.target_moments.add(np.column_stack([apart, logs]), weight)

    def _number(self, batch: Batch, name: str, missing: bool = False) -> FloatArray:
        column = batch.columns[name]
        if isinstance(column, Texts) or not isinstance(column, np.ndarray):
            raise ValueError(f"{batch.path}, column {name!r}: must hold numbers, got text")
        row = first_bad(column, lambda v: ~(np.abs(v) <= LARGEST_NUMBER) & (~np.isnan(v) | (not missing)))
        if row is None:
            return column
        if not np.isnan(column[row]):
            raise ValueError(
                f"{where(batch, row, name)}: numbers must be at most {LARGEST_NUMBER:g}, got {column[row]}"
            )
        advice = "fill it, or say missing='mean' (--missing mean)"
        advice = advice if name in self.schema.numbers else "fill it, or leave the row out"
        raise ValueError(f"{where(batch, row, name)}: the number is missing; {advice}")

    def _target(self, batch: Batch) -> FloatArray:
        name = self.roles.target
        if name is None:
            raise ValueError("a table needs target=, the name of the column to be predicted")
        if self.targets == "numbers":
            return self._number(batch, name)
        codes = _coded(batch, name, self.classes, advice="fill it, or leave the row out")
        if len(self.classes) > MOST_CLASSES:
            if name in self.cells:
                self._check_cells(batch.path, name)
            raise ValueError(
                f"{batch.path}, column {name!r}: more than {MOST_CLASSES} different labels; take EPRegressor "
                "(--task regress) if it is a number to be predicted"
            )
        return codes

    def again(self, readers: Sequence[Reader]) -> Iterator[Read]:
        """Read all batches once more, in numbers; nothing is gathered twice."""
        for reader in readers:
            for batch in reader.batches(self.schema.columns(self.roles)):
                yield self._numbers(batch)

    def preprocessing(self, hash_bits: int = 0, unnamed: int = 0) -> Preprocessing:
        """Means of the numbers, and which may be missing; columns of words, or features without names."""
        filled = tuple(name for name, lacks in zip(self.schema.numbers, self.missing > 0.0, strict=True) if lacks)
        bits = hash_bits if self.schema.hashed else 0
        roles = self.roles.target, self.roles.weight, self.roles.offset
        return Preprocessing(self.schema.numbers, self.sums.mean, filled, self.schema.hashed, bits, unnamed, *roles)

    def column_sums(self) -> ColumnSums:
        """Sum over the numbers, missing ones filled, and over the columns that say which were missing."""
        filled = self.sums._replace(weight=self.sums.weight + self.missing)
        return filled.beside(ColumnSums.of_flags(self.weight, self.missing[self.missing > 0.0]))

    def summary(self, preprocessing: Preprocessing, wide: ColumnSums | None = None) -> Summary:
        """Give what an estimator wants to know; ``wide`` are sums over sparse columns."""
        sums = self.column_sums() if wide is None else self.column_sums().beside(wide)
        categories = {name: codes.sorted()[0] for name, codes in zip(self.schema.categories, self.levels, strict=True)}
        features = preprocessing.features
        classes, counts, moments = None, None, None
        if self.targets == "classes":
            labels, places = self.classes.sorted()
            classes = np.asarray([_whole(label) for label in labels])
            if classes.dtype.kind == "f" and np.any(classes != np.floor(classes)) and len(labels) > 2:
                raise ValueError(
                    f"column {self.roles.target!r}: labels must be whole numbers or text; take EPRegressor"
                )
            counts = np.zeros(len(labels))
            counts[places] = self.counts
        else:
            (mean, log_mean), (squares, log_squares) = self.target_moments.mean, self.target_moments.squares
            moments = Moments(*map(float, (*self.bounds, mean, squares, log_mean, log_squares)))
        return Summary(
            self.weight,
            sums,
            preprocessing.width + preprocessing.wide + len(categories),
            None if features is None else [*features, *categories],
            categories,
            classes,
            counts,
            moments,
            self.roles.offset is not None,
            preprocessing.plain(),
        )

    @property
    def places(self) -> tuple[NDArray[np.int64], ...]:
        """Where the levels of every column of categories stand in order."""
        return tuple(codes.sorted()[1] for codes in self.levels)


def _whole(label: Any) -> Any:
    """Give a label that is a whole number as an integer, unless numbers of double precision may have rounded it."""
    return int(label) if isinstance(label, float) and label.is_integer() and abs(label) < 2**53 else label


def _coded(
    batch: Batch,
    name: str,
    codes: Codes,
    missing: str | None = None,
    advice: str = "fill it, or say missing='mean' (--missing mean), which makes it a level of its own",
) -> FloatArray:
    """Give the numbers of levels or labels; a missing one is an error, or has the level ``missing``."""
    column: Any = batch.columns[name]
    found = codes.texts(column) if isinstance(column, Texts) else codes.numbers(column)
    row = first_bad(found, lambda c: c < 0.0)
    if row is None:
        return found
    if missing is None:
        raise ValueError(f"{where(batch, row, name)}: the value is missing; {advice}")
    return np.where(found < 0.0, codes.texts(Texts(np.zeros(1, dtype=np.int32), [missing])), found)


__all__ = ["MISSING", "FirstPass", "Read"]
