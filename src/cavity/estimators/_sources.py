"""Rows from elsewhere than arrays, and what a fit asks of rows of any kind.

A *source* (a table in files, partitions of a cluster) first gives a `Summary` of all its rows, from which the estimator
learns its features, its classes or the unit of its targets. It then prepares rows whose targets have the estimator's
coding, and runs EP on them. Arrays in memory are prepared in the same form, `InMemory`, so that a fit has one course.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.ep.result import Result
from cavity.estimators._design import Data
from cavity.estimators._plan import PlannedRows
from cavity.estimators._runs import Keeping, Task, run_blocks, run_products
from cavity.estimators._threads import threads_for
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians import Analysis, analyse
from cavity.gaussians.dense import WIDEST_COVARIANCE

FloatArray = NDArray[np.float64]


class Moments(NamedTuple):
    """Weighted moments of real targets, offsets subtracted; ``log_`` those of their logarithms where all are positive.

    ``squares`` and ``log_squares`` are sums of squared distances from the mean.
    """

    least: float
    largest: float
    mean: float
    squares: float
    log_mean: float = 0.0
    log_squares: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a first look at all rows of a source found."""

    weight: float  # sum of the weights
    sums: ColumnSums  # of the encoded columns that are not levels of categories
    features: int  # columns of the source, a column of categories counted once
    names: list[str] | None = None  # of numbers first, then of columns of categories; None where they have none
    categories: Mapping[str, list[Any]] = field(default_factory=dict)  # levels in the order of the coefficients
    classes: NDArray[Any] | None = None  # labels in order; None where targets are numbers
    class_counts: FloatArray | None = None  # rows of each class
    moments: Moments | None = None  # of targets that are numbers
    has_offset: bool = False  # whether rows have a known part of the linear predictor
    preprocessing: Mapping[str, Any] | None = None  # of columns before they are encoded, in plain form


class Coding(NamedTuple):
    """How the targets and offsets of a source become those of the loss."""

    classes: int = 0  # zero where targets are numbers; labels are given by their place among the classes
    ranks: tuple[int, ...] | None = None  # place of every class among the predictors of a softmax; None for signs
    class_weights: FloatArray | None = None  # factors of the weights of rows, by class
    center: float = 0.0  # subtracted from targets that are numbers
    unit: float = 1.0  # by which these, and offsets, are divided

    @property
    def predictors(self) -> int:
        """Number of linear predictors that are fitted one by one."""
        return 1 if self.classes <= 2 or self.ranks is not None else self.classes

    def targets(self, raw: NDArray[Any]) -> FloatArray:
        """Targets of the loss, ``(predictors, rows)``, from labels' places or numbers."""
        if not self.classes:
            return ((raw - self.center) / self.unit)[None]
        codes = raw.astype(np.intp)
        if self.ranks is not None:
            return np.asarray(self.ranks, dtype=np.float64)[codes][None]
        return signs_of(codes, self.classes)

    def weights(self, raw: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Weights of rows, by class where classes have weights."""
        if self.class_weights is None:
            return weights
        return np.asarray(weights * self.class_weights[raw.astype(np.intp)])


def signs_of(codes: Any, count: int) -> FloatArray:
    """Signs of class numbers: one row for two classes, one per class for more."""
    if count == 2:
        return (2.0 * codes - 1.0)[None]
    return np.where(codes == np.arange(count)[:, None], 1.0, -1.0)


class Prepared(PlannedRows, Protocol):
    """Rows with targets of a loss, ready to be run on."""

    def run(self, task: Task) -> list[Result]:
        """Run EP for every linear predictor."""

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        """Weighted sum of a function of the first targets."""

    def close(self) -> None:
        """Give back what was taken for the rows, once a fit is done."""


class Source(Protocol):
    """Rows from elsewhere than arrays; the method `cavity_summary` tells them from arrays.

    One that keeps anything between the two calls has a method `cavity_discard`, called if the second does not follow.
    """

    def cavity_summary(self, targets: str) -> Summary:
        """Look at all rows once; ``targets`` is ``"classes"`` or ``"numbers"``."""

    def cavity_prepare(self, coding: Coding, intercept: bool, columns: Columns) -> Prepared:
        """Prepare rows whose targets have this coding, with columns in these units."""


def is_source(X: Any) -> bool:
    """Whether rows come from a source and not from an array."""
    return hasattr(X, "cavity_summary")


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Rows of an array, as they came and as they are visited: equal ones are one row."""

    data: Data
    rows: Rows
    widest: int = WIDEST_COVARIANCE
    patience: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    @property
    def density(self) -> float:
        return self.rows.density

    def analysis(self) -> Analysis:
        return analyse(self.rows.matrix())

    def run(self, task: Task) -> list[Result]:
        with threads_for(self.shape, task.analysis):
            if task.plan.covariance == "diagonal":
                return run_products(self.data, task)
            keeping = Keeping(None, None if task.checkpoint is None else task.checkpoint(self.rows.digest()))
            return run_blocks(self.rows, task, keeping)

    def sum_over_targets(self, function: Callable[[FloatArray], FloatArray]) -> float:
        return self.data.sum_over_targets(function)

    def close(self) -> None:
        """Nothing to give back."""
