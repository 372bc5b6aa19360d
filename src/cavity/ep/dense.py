r"""The posterior of a linear model with a full covariance, while EP works on it.

.. math:: P = \text{diag}(p) + G, \quad G = X^\top \text{diag}(T)\, X, \qquad P m = r + h, \quad h = X^\top R.

Prior (p, r) and what the rows say (G, h) are kept apart, so that the prior's variance can change at any time. Level-3
operations are those of SciPy's BLAS and LAPACK throughout: NumPy brings a thread pool of its own, and the two wait for
each other where calls alternate.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dgemv, dsyrk, dtrmm
from scipy.linalg.lapack import dpotrf, dpotrs, dtpttr, dtrtri, dtrttp

from cavity.ep.knowledge import DenseKnowledge
from cavity.ep.snapshots import State, arrays_of, gaussian_of
from cavity.factors.arranged import Rows
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian, ImproperError

FloatArray = NDArray[np.float64]


# Columns up to which weighted rows are multiplied as they are. Beyond, choosing rows by the sign of their weight first
# saves half of the products; between 100 and 200 columns both take the same time.
_NARROW = 128
# Rows are kept as one dense array between loops up to this size; beyond, each block is gathered when it is visited.
_KEPT_BYTES = 2**28
# Rows of a block at most, where there are not more columns: arrays of one number per row stay in the cache.
_MOST_ROWS = 1 << 13


class DensePosterior:
    """Prior, what is known beside it, and the triangular factor of their product."""

    information: FloatArray
    shift: FloatArray
    root: FloatArray
    mean: FloatArray

    def __init__(self, prior: FactorialGaussian, start: DenseKnowledge) -> None:
        self.prior, self.start, self.shift = prior, start, start.shift
        self._inverted = np.empty(0), np.empty(0)
        if not self._factorise(np.asfortranarray(start.information)):
            raise ImproperError("prior and what is known before must make a proper posterior")

    def knowledge(self, log_scale: float) -> DenseKnowledge:
        """Give what the rows say, apart from the prior, added to what was known before."""
        lower = np.tril(self.information)
        return DenseKnowledge(lower + np.tril(lower, -1).T, self.shift, self.start.log_scale + log_scale)

    @property
    def flat(self) -> FloatArray:
        """What the rows say, but for their shift, in one row of numbers: the lower triangle, column by column."""
        return np.asarray(dtrttp(np.asfortranarray(self.information), uplo="L")[0])

    def replace(self, flat: FloatArray, shift: FloatArray) -> bool:
        """Put other knowledge in the place of the present one; False, and nothing changed, if that is improper."""
        return self._replace(dtpttr(self.prior.dim, flat, uplo="L")[0], shift)

    def scale(self, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors; exchange the prior if one is given."""
        same = precisions == shifts == 1.0
        sums = (self.information, self.shift) if same else (precisions * self.information, shifts * self.shift)
        return self._replace(*sums, prior)

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return 2.0 * float(np.sum(np.log(np.diagonal(self.root))))

    def gaussian(self) -> DenseGaussian:
        """Normalised posterior."""
        return DenseGaussian(self.mean, np.ascontiguousarray(self._inverse().T), 0.0)

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        inverse = self._inverse()
        return np.asarray(np.einsum("ij,ij->j", inverse, inverse))

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return np.asarray(dpotrs(self.root, right, lower=1)[0])

    def snapshot(self) -> dict[str, Any]:
        """Give the prior and what the rows say."""
        return {**arrays_of("prior", self.prior), "information": self.information, "shift": self.shift}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        self.prior, self.shift = gaussian_of("prior", state), np.array(state["shift"])
        self._factorise(np.asfortranarray(state["information"]))

    def _replace(self, information: FloatArray, shift: FloatArray, prior: FactorialGaussian | None = None) -> bool:
        before = self.shift, self.prior
        self.shift, self.prior = shift, prior or self.prior
        if self._factorise(information):
            return True
        self.shift, self.prior = before
        return False

    def _inverse(self) -> FloatArray:
        """Inverse of the root: products with it take half the time of solving, and are as exact."""
        if self._inverted[0] is not self.root:
            self._inverted = self.root, dtrtri(self.root, lower=1)[0]
        return self._inverted[1]

    def _factorise(self, information: FloatArray) -> bool:
        precision = information.copy(order="F")
        precision[np.diag_indices(self.prior.dim)] += self.prior.precision
        root, info = dpotrf(precision, lower=1, clean=1, overwrite_a=1)
        if info != 0 or not np.all(np.isfinite(np.diag(root))):
            return False
        mean, info = dpotrs(root, self.prior.shift + self.shift, lower=1)
        if info != 0 or not np.all(np.isfinite(mean)):
            return False
        self.information, self.root, self.mean = information, root, mean
        return True


class DenseWork(DensePosterior):
    """Working state over dense blocks of rows: one triangular factor, renewed after every block.

    ``kept`` says whether the rows may be held as one array of double precision from block to block.
    """

    _spread: FloatArray

    def __init__(
        self, rows: Rows, prior: FactorialGaussian, start: DenseKnowledge | None = None, kept: bool = True
    ) -> None:
        self.rows, self._block, self._buffer = rows, (slice(0), np.empty((0, rows.shape[1]))), np.empty((0, 0))
        n, d = rows.shape
        self._kept = kept and 8 * n * d <= _KEPT_BYTES and n <= rows.at_once
        super().__init__(prior, DenseKnowledge.nothing(prior.dim) if start is None else start)

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first loop, of equal size afterwards.

        A block has at least as many rows as there are columns, so that its factorisation costs no more than its sums.
        """
        n, d = self.rows.shape
        # 50 rows make array operations pay. With 20, problems converge in fewer loops that take longer; with 400, some
        # of few columns take more loops. Fewer than 16 blocks amortise factorisations, more see newer posteriors.
        smallest = max(50, d)
        most = min(self.rows.at_once, max(smallest, _MOST_ROWS))
        if first:
            return doubling_parts(n, min(smallest, most), most)
        return equal_parts(n, min(max(smallest, -(-n // 16)), most))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a part of the rows."""
        A = self._rows_of(part)
        half = self._scratch(len(A))
        half[:] = A
        half = dtrmm(1.0, self._inverse(), half.T, lower=1, overwrite_b=1)  # L^-1 A', its squares sum to the variances
        variance = np.einsum("ij,ij->i", half.T, half.T)
        self._spread = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
        return np.asarray(dgemv(1.0, A.T, self.mean, trans=1)), variance

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a part of the rows and return one; or change nothing and return the share to try."""
        A = self._rows_of(part)
        information = self.plus_sites(part, precisions, self.information.copy(order="F"))
        before = self.information, self.shift, self.root, self.mean, self._spread
        self.shift = self.shift + self.sum_of_shifts(part, shifts)
        share = 0.5
        if np.all(np.isfinite(self.shift)) and self._factorise(information):
            moves = dgemv(1.0, A.T, self.mean - before[3], trans=1)
            share = share_within(farthest, moves, before[4], lambda: self._spreads(part))
        if share < 1.0:
            self.information, self.shift, self.root, self.mean, self._spread = before
        return share

    def plus_sites(self, part: slice, precisions: FloatArray, information: FloatArray) -> FloatArray:
        """Add precisions of sites of a part of the rows to a matrix, of which the lower triangle counts, in place."""
        A = self._rows_of(part)
        if A.shape[1] <= _NARROW:
            weighted = np.multiply(A, precisions[:, None], out=self._scratch(len(A)))
            return np.asarray(dgemm(1.0, weighted.T, A.T, trans_b=1, beta=1.0, c=information, overwrite_c=1))
        for sign in (1.0, -1.0):
            chosen = np.flatnonzero(sign * precisions > 0.0)
            if chosen.size:
                # Not the mode "raise", which goes through another array.
                scaled = np.take(A, chosen, axis=0, out=self._scratch(chosen.size), mode="clip")
                scaled *= np.sqrt(sign * precisions[chosen])[:, None]
                information = dsyrk(sign, scaled.T, beta=1.0, c=information, lower=1, overwrite_c=1)
        return information

    def flat_of_sites(self, part: slice, precisions: FloatArray) -> FloatArray:
        """Sum up precisions of sites of a part of the rows, in one row of numbers."""
        nothing = np.zeros((self.prior.dim, self.prior.dim), order="F")
        return np.asarray(dtrttp(self.plus_sites(part, precisions, nothing), uplo="L")[0])

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of sites of a part of the rows."""
        return np.asarray(dgemv(1.0, self._rows_of(part).T, shifts))

    def _spreads(self, part: slice) -> FloatArray:
        """Give the standard deviations of the predictors of a part, under the posterior as it stands."""
        self.predictors(part)
        return self._spread

    def _scratch(self, rows: int) -> FloatArray:
        """Give the same memory for so many rows every time."""
        if len(self._buffer) < rows:
            self._buffer = np.empty((rows, self.rows.shape[1]))
        return self._buffer[:rows]

    def _rows_of(self, part: slice) -> FloatArray:
        n = self.rows.shape[0]
        if self._kept:
            if self._block[1].shape[0] != n:
                self._block = slice(0, n), self.rows.block(slice(0, n))
            return self._block[1][part]
        if self._block[0] != part:
            self._block = part, self.rows.block(part)
        return self._block[1]


def share_within(farthest: float, moves: FloatArray, before: FloatArray, after: Callable[[], FloatArray]) -> float:
    """Share of the moves of predictors that is not farther than allowed, in their standard deviations.

    Those before the moves or after them, the larger: sites that were far too narrow must be able to widen. Those after
    are computed only where it depends on them.
    """
    distances = np.abs(moves)
    if np.all(distances <= farthest * before):
        return 1.0
    moved = float(np.max(distances / np.maximum(before, after())))
    return 1.0 if moved <= farthest else farthest / moved


def doubling_parts(rows: int, smallest: int, most: int | None = None) -> list[slice]:
    """Cut rows into blocks none of which is larger than all before it together, but for the first; or than ``most``."""
    ends = [min(smallest, rows)]
    while ends[-1] < rows:
        ends.append(min(ends[-1] + min(ends[-1], most or rows), rows))
    return [slice(a, b) for a, b in pairwise([0, *ends])]


def equal_parts(rows: int, size: int) -> list[slice]:
    """Cut rows into blocks of about this size."""
    count = max(1, round(rows / size))
    cuts = np.linspace(0, rows, count + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(cuts)]
