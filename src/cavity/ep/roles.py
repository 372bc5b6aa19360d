"""What EP by blocks asks of its parts: the posterior, and the sites of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.ep.knowledge import Knowledge
from cavity.ep.row_sites import RowSites
from cavity.ep.snapshots import State
from cavity.gaussians.factorial import FactorialGaussian

FloatArray = NDArray[np.float64]


class Posterior(Protocol):
    """The posterior that prior and sites make."""

    prior: FactorialGaussian
    mean: FloatArray
    shift: FloatArray

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""

    def knowledge(self, log_scale: float) -> Knowledge:
        """Give what the rows say, apart from the prior, with this scale of the sites."""

    def scale(self, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors, and exchange the prior if one is given.

        False, and nothing changed, if the posterior would be improper.
        """

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""

    def snapshot(self) -> dict[str, Any]:
        """Give the state between two blocks."""

    def restore(self, state: State) -> None:
        """Return to such a state."""


class Work(Posterior, Protocol):
    """The posterior while EP visits blocks of rows: what a backend for full or sparse precision offers."""

    def parts(self, first: bool) -> Sequence[slice]:
        """Blocks of rows of the first loop, or of a later one."""

    @property
    def flat(self) -> FloatArray:
        """Sums of the precisions of all sites, in one row of numbers."""

    def flat_of_sites(self, part: slice, precisions: FloatArray) -> FloatArray:
        """Sum up precisions of sites of a part of the rows, in one row of numbers."""

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of sites of a part of the rows."""

    def replace(self, flat: FloatArray, shift: FloatArray) -> bool:
        """Put other sums in the place of the present ones; False, and nothing changed, if that is improper."""

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block."""

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a block and return one; or change nothing and return the share that may be added.

        The posterior must be proper, and no predictor of the block may move by more than ``farthest`` of its standard
        deviations, before or after, whichever is larger.
        """


class Sites(Protocol):
    """Sites of all rows, in memory or elsewhere."""

    ceiling: float

    @property
    def average_step(self) -> float:
        """Average of the steps that rows took in the last loop."""

    def part(self, part: slice) -> RowSites:
        """Give the sites of some rows, to be changed and put back."""

    def put(self, part: slice, sites: RowSites) -> None:
        """Put them back."""

    def scale_by(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors, and forget in which direction they went."""

    def arrays(self) -> dict[str, Any]:
        """Give what all rows have as part of a snapshot."""

    def set_arrays(self, arrays: State) -> None:
        """Return to such a snapshot."""
