"""The posterior of a linear model with a sparse precision matrix, while EP works on it.

The same as `cavity.ep.dense` for rows of few columns among many: only entries of the precision matrix where two columns
meet in a row are kept, and variances are exact (`cavity.gaussians.sparse`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError

from cavity.ep.dense import doubling_parts, equal_parts, share_within
from cavity.ep.knowledge import SparseKnowledge
from cavity.ep.snapshots import State, arrays_of, gaussian_of
from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis, SparsePrecision, factorise
from cavity.gaussians.factorial import FactorialGaussian

FloatArray = NDArray[np.float64]


class SparseWork:
    """Working state over all rows at once: one sparse factor, renewed after every block."""

    factor: SparsePrecision
    mean: FloatArray
    shift: FloatArray

    def __init__(self, rows: Rows, matrix: Any, analysis: Analysis, prior: FactorialGaussian) -> None:
        self.rows, self.analysis, self.prior, self._matrix = rows, analysis, prior, matrix
        self._precisions = np.zeros(rows.shape[0])
        self._row_variances: FloatArray | None = None
        self.shift = np.zeros(rows.shape[1])
        if not self._factorise(self._precisions, self.shift, prior):
            raise ValueError("the prior must be proper")

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first loop, a few large ones afterwards."""
        n = self.rows.shape[0]
        # A factorisation costs about the same for any block, so there are few of them.
        return doubling_parts(n, max(100, n // 64)) if first else equal_parts(n, -(-n // 2))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a part of the rows."""
        return np.asarray(self._matrix[part] @ self.mean), self._variances_of(part)

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a part of the rows and return one; or change nothing and return the share to try."""
        before = self.factor, self.mean, self.shift, self._precisions, self._row_variances
        rows, spread = self._matrix[part], self._spreads(part)
        new = self._precisions.copy()
        new[part] += precisions
        if not self._factorise(new, self.shift + rows.T @ shifts, self.prior):
            return 0.5
        share = share_within(farthest, rows @ (self.mean - before[1]), spread, lambda: self._spreads(part))
        if share < 1.0:
            self.factor, self.mean, self.shift, self._precisions, self._row_variances = before
        return share

    def scale(self, factor: float) -> bool:
        """Multiply all sites by a factor."""
        return self._factorise(factor * self._precisions, factor * self.shift, self.prior)

    def set_prior(self, prior: FactorialGaussian) -> bool:
        """Put another prior in the place of the present one."""
        return self._factorise(self._precisions, self.shift, prior)

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
        return {**arrays_of("prior", self.prior), "precisions": self._precisions, "shift": self.shift}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        self._factorise(np.array(state["precisions"]), np.array(state["shift"]), gaussian_of("prior", state))

    def _spreads(self, part: slice) -> FloatArray:
        """Give the standard deviations of the predictors of a part, under the posterior as it stands."""
        return np.sqrt(np.maximum(self._variances_of(part), np.finfo(np.float64).tiny))

    def _variances_of(self, part: slice) -> FloatArray:
        """Variances of predictors, computed for all rows when they are first asked for."""
        if self._row_variances is None:
            self._row_variances = self.factor.row_variances()
        variances: FloatArray = self._row_variances[part]
        return variances

    def _factorise(self, precisions: FloatArray, shift: FloatArray, prior: FactorialGaussian) -> bool:
        if not (np.all(np.isfinite(precisions)) and np.all(np.isfinite(shift))):
            return False
        try:
            factor = factorise(self.analysis, precisions, prior.precision)
        except LinAlgError:
            return False
        mean = factor.solve(prior.shift + shift)
        if not np.all(np.isfinite(mean)):
            return False
        self.factor = factor
        self.mean, self.shift, self.prior, self._precisions = mean, shift, prior, precisions
        self._row_variances = None
        return True
