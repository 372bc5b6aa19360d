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

from cavity.ep.dense import doubling_parts, equal_parts
from cavity.ep.knowledge import SparseKnowledge
from cavity.ep.rows import Rows
from cavity.gaussian import FactorialGaussian
from cavity.gaussians import Analysis, SparsePrecision, factorise

FloatArray = NDArray[np.float64]

# Blocks of the first loop start with this share of the rows, and of later loops there are so many: a factorisation
# costs about the same for any block, so there are few of them.
_FIRST_SHARE, _LATER_BLOCKS = 64, 2


class SparseWork:
    """Working state over all rows at once: one sparse factor, renewed after every block.

    Rows begin with small steps: blocks are large, and many rows of one block speak of the same few columns. With full
    steps the hinge loss overshoots by thousands of standard deviations on crossed factors of 1,000 and 10,000 levels
    and takes more than 100 loops to come back, with steps of 0.3 it takes 26, with 0.2 it takes 15.
    """

    first_step = 0.2

    def __init__(self, rows: Rows, matrix: Any, analysis: Analysis, prior: FactorialGaussian) -> None:
        self.rows, self.analysis, self.prior, self._matrix = rows, analysis, prior, matrix
        self._precisions = np.zeros(rows.shape[0])
        self._row_variances: FloatArray | None = None
        self.shift: FloatArray = np.zeros(rows.shape[1])
        if not self._factorise(self._precisions, self.shift, prior):
            raise ValueError("the prior must be proper")

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first loop, a few large ones afterwards."""
        n = self.rows.shape[0]
        return doubling_parts(n, max(100, n // _FIRST_SHARE)) if first else equal_parts(n, -(-n // _LATER_BLOCKS))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a part of the rows."""
        if self._row_variances is None:
            self._row_variances = self.factor.row_variances()
        return np.asarray(self._matrix[part] @ self.mean), self._row_variances[part]

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray) -> bool:
        """Add to the sites of a part of the rows; False, and nothing changed, if the posterior would be improper."""
        new = self._precisions.copy()
        new[part] += precisions
        return self._factorise(new, self.shift + self._matrix[part].T @ shifts, self.prior)

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
        self.factor: SparsePrecision = factor
        self.mean, self.shift, self.prior, self._precisions = mean, shift, prior, precisions
        self._row_variances = None
        return True
