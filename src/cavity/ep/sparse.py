"""The posterior of a linear model with a sparse precision matrix, while EP works on it.

The same as `cavity.ep.dense` for rows of few columns among many: only entries of the precision matrix where two columns
meet in a row are kept, as sums over rows on the pattern of the matrix, and variances are exact
(`cavity.gaussians.sparse`). Rows may be in memory, or read block by block.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError

from cavity.ep.dense import doubling_parts, equal_parts, share_within
from cavity.ep.knowledge import SparseKnowledge
from cavity.ep.snapshots import State, arrays_of, gaussian_of
from cavity.gaussians import Analysis, SparsePrecision
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.sparse import AnalysedRows, PatternSums, factorise_sums, rows_on

FloatArray = NDArray[np.float64]


class SparseRows(Protocol):
    """Rows that are read as CSR, some at a time."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the constant one."""

    @property
    def csr_at_once(self) -> int:
        """Most rows that are asked for at once."""

    def csr(self, part: slice) -> sparse.csr_array:
        """Rows of a part as CSR."""


class SparseWork:
    """Working state: sums on the pattern, and one sparse factor, renewed after every block.

    Parameters
    ----------
    rows
        The rows.
    analysis
        What is known of their pattern.
    prior
        Where the posterior starts.
    matrix
        All rows as CSR, of which the analysis was made; None where rows are asked for block by block.
    """

    factor: SparsePrecision
    mean: FloatArray

    def __init__(self, rows: SparseRows, analysis: Analysis, prior: FactorialGaussian, matrix: Any = None) -> None:
        if analysis.pattern is None:
            raise ValueError("the factor of these rows would be too large; use another form of covariance")
        self.rows, self.prior, self._pattern = rows, prior, analysis.pattern
        self._matrix, self._analysed = matrix, None if matrix is None else analysis.rows
        self.sums, self.shift = PatternSums.nothing(self._pattern), np.zeros(rows.shape[1])
        self._last: tuple[slice, Any, AnalysedRows | None] = (slice(0, 0), None, None)
        self._variances: tuple[SparsePrecision | None, slice, FloatArray] = (None, slice(0, 0), np.empty(0))
        if not self._factorise(self.sums, self.shift, prior):
            raise ValueError("the prior must be proper")

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first loop, a few large ones afterwards, as memory allows."""
        # A factorisation costs about the same for any block, so there are few of them.
        n = self.rows.shape[0]
        most = n if self._analysed is not None else self.rows.csr_at_once
        return doubling_parts(n, min(max(100, n // 64), most), most) if first else equal_parts(n, min(-(-n // 2), most))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a part of the rows."""
        return np.asarray(self._rows_of(part)[0] @ self.mean), self._variances_of(part)

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a part of the rows and return one; or change nothing and return the share to try."""
        matrix, analysed = self._rows_of(part)
        before, spread = (self.factor, self.mean, self.shift, self.sums), self._spreads(part)
        if not (np.all(np.isfinite(precisions)) and np.all(np.isfinite(shifts))):
            return 0.5
        sums = self.sums.plus(PatternSums.of(analysed, precisions))
        if not self._factorise(sums, self.shift + matrix.T @ shifts, self.prior):
            return 0.5
        share = share_within(farthest, matrix @ (self.mean - before[1]), spread, lambda: self._spreads(part))
        if share < 1.0:
            self.factor, self.mean, self.shift, self.sums = before
        return share

    @property
    def flat(self) -> FloatArray:
        """What the rows say, but for their shift, in one row of numbers."""
        return self.sums.flat

    def replace(self, flat: FloatArray, shift: FloatArray) -> bool:
        """Put other knowledge in the place of the present one; False, and nothing changed, if that is improper."""
        return self._factorise(self.sums.like(flat), shift, self.prior)

    def flat_of_sites(self, part: slice, precisions: FloatArray) -> FloatArray:
        """Sum up precisions of sites of a part of the rows, in one row of numbers."""
        return PatternSums.of(self._rows_of(part)[1], precisions).flat

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of sites of a part of the rows."""
        return np.asarray(self._rows_of(part)[0].T @ shifts)

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return self.factor.solve(right)

    def scale(self, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors; exchange the prior if one is given."""
        return self._factorise(self.sums.times(precisions), shifts * self.shift, prior or self.prior)

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return self.factor.log_det

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        return self.factor.variances()

    def knowledge(self, log_scale: float) -> SparseKnowledge:
        """Give what the rows say, apart from the prior."""
        information = (self.factor.matrix - sparse.diags_array(self.prior.precision)).tocsc()
        border = self.factor.pattern.order[self.factor.inner :]
        return SparseKnowledge(information, self.shift, border, log_scale)

    def snapshot(self) -> dict[str, Any]:
        """Give the prior and what the rows say."""
        sums = {f"sums_{name}": value for name, value in self.sums._asdict().items()}
        return {**arrays_of("prior", self.prior), **sums, "shift": self.shift}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        sums = PatternSums(*(np.array(state[f"sums_{name}"]) for name in PatternSums._fields))
        self._factorise(sums, np.array(state["shift"]), gaussian_of("prior", state))

    def _spreads(self, part: slice) -> FloatArray:
        """Give the standard deviations of the predictors of a part, under the posterior as it stands."""
        return np.sqrt(np.maximum(self._variances_of(part), np.finfo(np.float64).tiny))

    def _variances_of(self, part: slice) -> FloatArray:
        """Give the variances of the predictors of a part; the last ones are kept until the factor changes."""
        if self._variances[:2] != (self.factor, part):
            self._variances = self.factor, part, self.factor.row_variances(self._rows_of(part)[1])
        return self._variances[2]

    def _rows_of(self, part: slice) -> tuple[Any, AnalysedRows]:
        """Give a part of the rows; the last part is kept."""
        if self._last[0] != part or self._last[2] is None:
            matrix = self.rows.csr(part) if self._matrix is None else self._matrix[part]
            own = rows_on(self._pattern, matrix) if self._analysed is None else self._analysed.part(part)
            self._last = part, matrix, own
        _, matrix, analysed = self._last
        assert analysed is not None
        return matrix, analysed

    def _factorise(self, sums: PatternSums, shift: FloatArray, prior: FactorialGaussian) -> bool:
        try:
            factor = factorise_sums(self._pattern, sums, prior.precision)
        except LinAlgError:
            return False
        mean = factor.solve(prior.shift + shift)
        if not np.all(np.isfinite(mean)):
            return False
        self.factor, self.mean, self.sums, self.shift, self.prior = factor, mean, sums, shift, prior
        return True


__all__ = ["SparseRows", "SparseWork"]
