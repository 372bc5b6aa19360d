"""Designs of models with terms: their rows, and the prior of their coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_sample_weight, _check_y

from cavity._types import FloatArray
from cavity.ep.hyperparameters import Group
from cavity.estimators.columns import within_limits
from cavity.estimators.parameters import Parameters
from cavity.factors.columns import Columns, ColumnSums
from cavity.terms import Design, Formula
from cavity.terms.frames import length
from cavity.terms.linear import WEAK, WEAK_FOR_REALS
from cavity.terms.prior import Prior

# What learned terms have from the rows that decides on the scale of their prior, not on their coefficients.
_OF_ROWS = {"spread", "moments", "size"}


@dataclass(frozen=True, eq=False)
class TermDesign:
    """Coefficients of all terms of a model, which have seen a table, and their prior.

    Parameters
    ----------
    terms
        The terms.
    intercept_variance
        Prior variance of the intercept.
    weak
        Standard deviation of ordinary coefficients by default, times that of their columns.
    preprocessing
        Roles of the columns of a table, in plain form; None for other rows.
    target, offsets, text
        Expressions that a formula has for the target and for known parts of the linear predictor, and the formula.
    """

    terms: Design
    intercept_variance: float
    weak: float
    target: str | None = None
    offsets: tuple[str, ...] = ()
    text: str = ""
    preprocessing: Any = None

    needs_sums = True
    # What plain columns have.
    levels = None
    effects = ()

    @classmethod
    def learn(cls, p: Parameters, X: Any, sample_weight: Any, is_real: bool) -> tuple[TermDesign, Any]:
        """Learn the terms of an estimator from a table; its rows come with the design.

        Parameters
        ----------
        p
            Parameters of the estimator.
        X
            The table.
        sample_weight
            Weights of its rows; None if all are one.
        is_real
            Whether the targets are real numbers, which bound coefficients by themselves.
        """
        formula: Any = p.formula
        weights = np.ones(length(X))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, weights[:, None], dtype=np.float64)
        terms, rows = Design.learn(formula.terms, X, weights)
        weak = WEAK_FOR_REALS if is_real else WEAK
        return cls(terms, p.intercept_variance, weak, formula.target, formula.offsets, formula.text), within_limits(
            rows
        )

    def with_parameters(self, p: Parameters) -> TermDesign:
        """Return the same terms, with the prior that other parameters ask for."""
        return replace(self, intercept_variance=p.intercept_variance)

    @property
    def features(self) -> int:
        """Number of columns of a table that are read."""
        return max(len(self.terms.variables), 1)

    @property
    def feature_names(self) -> Any:
        """Names of these."""
        return np.array(self.terms.variables or ["(none)"], dtype=object)

    @property
    def intercept(self) -> bool:
        """Whether there is an intercept."""
        return self.terms.intercept

    @cached_property
    def width(self) -> int:
        """Number of columns, the intercept not counted."""
        return int(self.terms.means.size)

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns."""
        return self.terms.names

    # Reading.

    def is_plain(self, X: Any) -> bool:
        """Tables always need another look."""
        return False

    def matrix(self, estimator: Any, X: Any, exclude: Sequence[str] = ()) -> Any:
        """Make the rows of a table; those of terms that are left out have the mean effect of these."""
        rows = within_limits(self.terms.matrix(X, exclude))
        places, level = self.terms.places, self.terms.level
        moved = np.concatenate([np.arange(self.width)[places[label]] for label in exclude] or [np.empty(0, np.intp)])
        moved = moved[level[moved] != 0.0]
        if not moved.size:
            return rows
        mean = sparse.csr_array((level[moved], (np.zeros(moved.size, np.intp), moved)), shape=(1, self.width))
        if not sparse.issparse(rows):
            return rows + mean.toarray()
        return sparse.csr_array(rows + sparse.csr_array(np.ones((rows.shape[0], 1))) @ mean)

    def rows(self, estimator: Any, X: Any, y: Any, numeric: bool) -> tuple[Any, Any]:
        """Make the rows of a table with their targets."""
        rows = self.matrix(estimator, X)
        return rows, self.checked_targets(estimator, rows, y, numeric)

    def checked_targets(self, estimator: Any, rows: Any, y: Any, numeric: bool) -> Any:
        """Check the targets of a table."""
        y = _check_y(np.asarray(y), multi_output=False, y_numeric=numeric, estimator=estimator)
        check_consistent_length(rows, y)
        return y

    def offset(self, X: Any, offset: Any) -> Any:
        """Known part of the linear predictor: what is given, and what the formula says."""
        own = Formula(self.text, None, (), self.offsets).offset(X)
        if own is None or offset is None:
            return own if offset is None else offset
        return own + np.asarray(offset, dtype=np.float64)

    # Prior.

    def columns(self, sums: ColumnSums | None) -> Columns:
        """Centres and units of all columns: those of ordinary coefficients, by sums over the rows."""
        found = Columns.plain(self.width)
        if sums is not None:
            own, measured = self.terms.ordinary, sums.columns(self.terms.intercept)
            found.center[own], found.unit[own] = measured.center[own], measured.unit[own]
        return found

    def prior(
        self,
        columns: Columns,
        sizes: FloatArray,
        spread: float,
        rate: float,
        unit: float = 1.0,
        center: float = 0.0,
        predictors: int = 1,
    ) -> tuple[Prior, tuple[Group, ...]]:
        """Prior of the coefficients, the intercept last, for columns in these units, and groups to be found.

        Parameters
        ----------
        columns
            Centres and units of the columns.
        sizes
            Mean squares of the columns in these units.
        spread
            Variance that a group gives to the linear predictor at first.
        rate
            Rate of the half-normal prior of its standard deviation, for linear predictors in ``unit``.
        unit, center
            Given variances are in squares of ``unit``; ``center`` is the prior mean of the intercept.
        predictors
            Number of linear predictors, which have the same hyperparameters.
        """
        # Of several terms each has a smaller part than all columns together: of at most one at first.
        intercept, spread = (center, self.intercept_variance), min(spread, 1.0)
        prior = self.terms.prior(spread, columns.unit, intercept, unit, self.weak, predictors)
        groups = []
        for _, places, size, block in self.terms.groups(sizes, predictors):
            if block is None:
                groups.append(Group(places, (size if 0.0 < size < np.inf else 1.0) / unit**2, rate))
            else:  # the structure knows the size of its columns
                groups.append(Group(places, 1.0, rate / unit, block))
        return prior, tuple(groups)

    def coupled(self, predictors: int = 1) -> Any:
        """Pairs of coefficients that the prior couples, the intercept last, as a sparse matrix; None for none."""
        prior = self.terms.prior(1.0, predictors=predictors)
        if not hasattr(prior, "couplings"):
            return None
        left, right, _ = prior.couplings
        return sparse.csr_array((np.ones(left.size), (left, right)), shape=(prior.dim, prior.dim))

    def same_prior(self, other: Any) -> bool:
        """Whether another has the same terms, levels and times; scales of their prior may differ."""
        if not isinstance(other, TermDesign) or (self.intercept_variance, self.weak) != (
            other.intercept_variance,
            other.weak,
        ):
            return False
        return _same(self.terms.plain()["terms"], other.terms.plain()["terms"])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        names = one.keys() - _OF_ROWS
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in names)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(one, other))
