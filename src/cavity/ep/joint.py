r"""The joint posterior of several linear predictors of the same features, while EP works on it.

Coefficients are ordered by predictors, then columns. The precision matrix has K × K blocks of columns × columns; its
sums over rows, and the covariances of predictors, are one product of matrices per predictor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm
from scipy.linalg.lapack import dpotri

from cavity.ep.dense import DenseWork, doubling_parts, equal_parts, share_within
from cavity.ep.knowledge import DenseKnowledge
from cavity.factors.arranged import Rows
from cavity.gaussians.factorial import FactorialGaussian

FloatArray = NDArray[np.float64]

# Numbers of a block of rows times coefficients that are held at once: 32 MB.
_AT_ONCE = 1 << 22


class JointWork(DenseWork):
    """Working state over dense blocks of rows, of several predictors."""

    def __init__(
        self, rows: Rows, prior: FactorialGaussian, start: DenseKnowledge | None = None, kept: bool = True
    ) -> None:
        self.count = prior.dim // rows.shape[1]
        self._covariance = np.empty(0), np.empty((0, 0))
        super().__init__(rows, prior, start, kept)

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows, at least as many as there are coefficients (`DenseWork.parts`)."""
        n, smallest, most = self.rows.shape[0], max(50, self.prior.dim), self.rows.at_once
        if first:
            return doubling_parts(n, min(max(50, smallest // 4), most), most)
        return equal_parts(n, min(max(smallest, -(-n // 16)), most))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Means ``(rows, K)`` and covariances ``(rows, K, K)`` of the predictors of a part of the rows."""
        A, k = self._rows_of(part), self.count
        n, d = A.shape
        variance, covariance = np.empty((n, k, k)), self._inverse_precision()
        for piece in _pieces(n, self.prior.dim):
            rows = A[piece]
            for i in range(k):
                below = covariance[i * d :, i * d : (i + 1) * d]
                products = dgemm(1.0, below, rows.T).T.reshape(-1, k - i, d)
                variance[piece, i:, i] = np.einsum("nld,nd->nl", products, rows)
                variance[piece, i, i:] = variance[piece, i:, i]
        spread = np.sqrt(np.maximum(np.einsum("nii->ni", variance), np.finfo(np.float64).tiny))
        self._spread = spread
        return self._means(A, self.mean), variance

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a part of the rows and return one; or change nothing and return the share to try."""
        A = self._rows_of(part)
        information = self.plus_sites(part, precisions, self.information.copy(order="F"))
        before = self.information, self.shift, self.root, self.mean, self._spread
        self.shift = self.shift + self.sum_of_shifts(part, shifts)
        share = 0.5
        if np.all(np.isfinite(self.shift)) and self._factorise(information):
            moves = self._means(A, self.mean - before[3])
            share = share_within(farthest, moves, before[4], lambda: self._spreads(part))
        if share < 1.0:
            self.information, self.shift, self.root, self.mean, self._spread = before
        return share

    def plus_sites(self, part: slice, precisions: FloatArray, information: FloatArray) -> FloatArray:
        """Add precisions of sites of a part of the rows to a matrix, of which the lower triangle counts, in place."""
        A, k = self._rows_of(part), self.count
        n, d = A.shape
        for piece in _pieces(n, self.prior.dim):
            rows = A[piece]
            for i in range(k):
                weighted = (precisions[piece, i:, i, None] * rows[:, None, :]).reshape(len(rows), -1)
                information[i * d :, i * d : (i + 1) * d] += dgemm(1.0, weighted.T, rows.T, trans_b=1)
        return information

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of sites of a part of the rows."""
        return np.asarray(dgemm(1.0, self._rows_of(part).T, np.asfortranarray(shifts)).ravel(order="F"))

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        return np.diag(self._inverse_precision()).copy()

    def _means(self, A: FloatArray, mean: FloatArray) -> FloatArray:
        return np.asarray(dgemm(1.0, A.T, mean.reshape(self.count, -1).T, trans_a=1))

    def _inverse_precision(self) -> FloatArray:
        """Lower triangle of the covariance, the diagonal blocks whole."""
        if self._covariance[0] is not self.root:
            inverse, _ = dpotri(self.root, lower=1)
            d = self.rows.shape[1]
            for i in range(0, self.prior.dim, d):
                block = np.tril(inverse[i : i + d, i : i + d])
                inverse[i : i + d, i : i + d] = block + np.tril(block, -1).T
            self._covariance = self.root, inverse
        return self._covariance[1]


def _pieces(rows: int, columns: int) -> list[slice]:
    length = max(1, _AT_ONCE // max(columns, 1))
    return [slice(i, min(i + length, rows)) for i in range(0, rows, length)]
