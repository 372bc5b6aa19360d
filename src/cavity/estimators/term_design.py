"""Coefficients of a model with terms, and their prior, as estimators ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cavity._types import FloatArray, IndexArray
from cavity.ep.hyperparameters import Group
from cavity.factors.columns import Columns, ColumnSums
from cavity.terms import Design
from cavity.terms.prior import Prior


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
    """

    terms: Design
    intercept_variance: float
    weak: float

    needs_sums = True

    @property
    def width(self) -> int:
        """Number of columns, the intercept not counted."""
        return int(self.terms.means.size)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return self.terms.names

    @property
    def groups(self) -> dict[str, IndexArray]:
        """Columns of every group of coefficients whose hyperparameters are estimated."""
        return {part.label: places for part, places, _, _ in self.terms.groups()}

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
        """Prior of the coefficients, the intercept last, for columns in these units, and groups to be estimated.

        Parameters
        ----------
        columns
            Centres and units of the columns.
        sizes
            Mean squares of the columns in these units.
        spread
            Variance that a group gives to the linear predictor at first.
        rate
            Rate of the exponential prior of its standard deviation, for linear predictors in ``unit``.
        unit, center
            Given variances are in squares of ``unit``; ``center`` is the prior mean of the intercept.
        predictors
            Number of linear predictors, which have the same hyperparameters.
        """
        intercept = center, self.intercept_variance
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
        """Whether another has the same terms, levels and times, and the same prior."""
        if not isinstance(other, TermDesign) or (self.intercept_variance, self.weak) != (
            other.intercept_variance,
            other.weak,
        ):
            return False
        return _same(self.terms.plain()["terms"], other.terms.plain()["terms"])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(one, other))
