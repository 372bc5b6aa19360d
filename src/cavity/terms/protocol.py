"""What a term is: a value that learns from a table how to make columns of any later one, and the prior of these."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from cavity._types import FloatArray
from cavity.terms.structures import Structure


class Part(NamedTuple):
    """Coefficients of a term that follow each other and share hyperparameters, or whose variance is given.

    Parameters
    ----------
    label
        Name in reports, such as ``"1 | subject"``.
    width
        Number of coefficients.
    structure
        Precision matrix of the coefficients; None where they are independent.
    size
        Of independent coefficients: average over the rows of the sum of squares of these columns, which is the variance
        of the linear predictor per unit of theirs. None where columns are brought to units of their own before.
    variances
        Given variances of independent coefficients; None where one variance is to be found.
    weak
        Whether these are variances of a weak prior, in units in which its standard deviation is one.
    floats
        Whether the mean of the effects over the rows belongs to the intercept: they are reported relative to it.
    """

    label: str
    width: int
    structure: Structure | None = None
    size: float | None = 1.0
    variances: FloatArray | None = None
    weak: bool = False
    floats: bool = False


class LearnedTerm(Protocol):
    """A term that has seen a table: it makes columns of any other one."""

    @property
    def label(self) -> str:
        """Name of the term, by which it is excluded and shown."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Priors of the coefficients."""

    @property
    def shown(self) -> str:
        """How it is shown: ``"coefficients"``, ``"levels"``, ``"curve"`` or ``"regions"``."""

    def columns(self, frame: Any) -> Any:
        """Make its columns of the design, dense or CSR.

        Parameters
        ----------
        frame
            The table.
        """


class Term(Protocol):
    """What a user writes: which columns of the table, and how their effects hang together."""

    def linear(self, frame: Any) -> tuple[str, ...]:
        """Columns that belong to the ordinary coefficients, where it leaves a straight line to them.

        Parameters
        ----------
        frame
            The table.
        """

    def learn(self, frame: Any, weights: FloatArray) -> LearnedTerm:
        """Learn levels, knots and times from a table.

        Parameters
        ----------
        frame
            The table.
        weights
            One weight per row.
        """


def scattered(values: Any, columns: Any, width: int) -> sparse.csr_array:
    """Rows with the same number of entries each, from ``(rows, entries)`` values and columns."""
    values, columns = np.broadcast_arrays(np.asarray(values, dtype=np.float64), columns)
    n, each = columns.shape
    starts = np.arange(n + 1) * each
    found = sparse.csr_array((values.ravel().copy(), columns.ravel().copy(), starts), shape=(n, width))
    found.sum_duplicates()
    return found
