r"""The posterior of a linear model while EP works on it: prior times sites, kept factorised.

.. math:: P = \text{diag}(p) + G, \quad G = X^\top \text{diag}(T)\, X, \qquad P m = r + h, \quad h = X^\top R.

`DensePosterior` keeps all correlations, `JointPosterior` those of several linear predictors of the same features,
`SparsePosterior` a sparse precision matrix, and `ProductPosterior` none. Prior (p, r) and natural parameters of the
sites (G, h) are kept apart, so that the prior can change at any time. Changes that would make the posterior improper
return False and leave it as it was. Posteriors without rows serve hyperparameters, reports and partitions.

Level-3 operations are those of SciPy's BLAS and LAPACK throughout: NumPy brings a thread pool of its own, and the two
wait for each other where calls alternate.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dgemm, dgemv, dsyrk, dtrmm
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtpttr, dtrtri, dtrttp

from cavity._types import FloatArray
from cavity.ep.natural import DenseNatural, SparseNatural
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis, SparseGaussian, SparsePrecision
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.gaussians.sparse import (
    AnalysedRows,
    PatternSums,
    Places,
    factorise_sums,
    pattern_of,
    rows_of,
    rows_on,
)
from cavity.terms.prior import Couplings, Prior, StructuredPrior, upper_of

# Columns up to which weighted rows are multiplied as they are. Beyond, choosing rows by the sign of their weight first
# saves half of the products; between 100 and 200 columns both take the same time.
_NARROW = 128
# Rows are kept as one dense array between iterations up to this size; beyond, each block is gathered when visited.
_KEPT_BYTES = 2**28
# Rows of a block at most, where there are not more columns: arrays of one number per row stay in the cache.
_MOST_ROWS = 1 << 13
# Numbers of a block of rows times coefficients of several predictors that are held at once: 32 MB.
_AT_ONCE = 1 << 22


class DensePosterior:
    """With a full covariance: one triangular factor, renewed after every block.

    Parameters
    ----------
    rows
        The rows, in memory or read block by block; None where no row is visited.
    prior
        The prior.
    start
        Natural parameters of earlier rows, that are there before the sites of these.
    kept
        Whether the rows may be held as one array of double precision from block to block.
    """

    prior: Prior
    information: FloatArray
    shift: FloatArray
    root: FloatArray
    mean: FloatArray
    log_det: float  # logarithm of the determinant of the precision matrix

    def __init__(self, rows: Rows | None, prior: Prior, start: DenseNatural | None = None, kept: bool = True) -> None:
        start = DenseNatural.zero(prior.dim) if start is None else start
        self._start_scale, self._inverted = start.log_scale, (np.empty(0), np.empty(0))
        self._block, self._buffer, self._spread = (slice(0), np.empty((0, 0))), np.empty((0, 0)), np.empty(0)
        self._kept = False
        if rows is not None:
            self.rows = rows
            self._kept = kept and 8 * rows.shape[0] * rows.shape[1] <= _KEPT_BYTES and rows.shape[0] <= rows.at_once
        if not self._factorise(np.asfortranarray(start.information), start.shift, prior):
            raise ImproperError("prior and the natural parameters of the sites must make a proper posterior")

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first iteration, of equal size afterwards.

        A block has at least as many rows as there are columns, so that its factorisation costs no more than its sums.
        """
        n, d = self.rows.shape
        # 50 rows make array operations pay. With 20, problems converge in fewer iterations that take longer; with 400,
        # some of few columns take more iterations. Fewer than 16 blocks amortise factorisations, more see newer
        # posteriors.
        smallest = max(50, d)
        most = min(self.rows.at_once, max(smallest, _MOST_ROWS))
        if first:
            return doubling_parts(n, min(smallest, most), most)
        return equal_parts(n, min(max(smallest, -(-n // 16)), most))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block of rows."""
        A = self._rows_of(part)
        half = self._buffer[: len(A)]
        half[:] = A
        half = dtrmm(1.0, self._inverse(), half.T, lower=1, overwrite_b=1)  # L^-1 A', its squares sum to the variances
        variance = np.einsum("ij,ij->i", half.T, half.T)
        self._spread = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
        return self._means(A, self.mean), variance

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a block of rows and return one; or change nothing and return the share that may be added.

        The posterior must be proper, and no predictor of the block may move by more than ``farthest`` of its standard
        deviations, before or after, whichever is larger; these were computed by `predictors` last.
        """
        before = self.information, self.shift, self.root, self.mean, self.log_det, self._spread
        information = self.plus_sites(part, precisions, self.information.copy(order="F"))
        shift, share = self.shift + self.sum_of_shifts(part, shifts), 0.5
        if np.all(np.isfinite(shift)) and self._factorise(information, shift, self.prior):

            def spread_after() -> FloatArray:
                self.predictors(part)
                return self._spread

            moves = self._means(self._rows_of(part), self.mean - before[3])
            share = share_within(farthest, moves, before[5], spread_after)
        if share < 1.0:
            self.information, self.shift, self.root, self.mean, self.log_det, self._spread = before
        return share

    def plus_sites(self, part: slice, precisions: FloatArray, information: FloatArray) -> FloatArray:
        """Add precisions of the sites of a block to a matrix, of which the lower triangle counts, in place."""
        A = self._rows_of(part)
        if A.shape[1] <= _NARROW:
            weighted = np.multiply(A, precisions[:, None], out=self._buffer[: len(A)])
            return np.asarray(dgemm(1.0, weighted.T, A.T, trans_b=1, beta=1.0, c=information, overwrite_c=1))
        for sign in (1.0, -1.0):
            chosen = np.flatnonzero(sign * precisions > 0.0)
            if chosen.size:
                # Not the mode "raise", which goes through another array.
                scaled = np.take(A, chosen, axis=0, out=self._buffer[: chosen.size], mode="clip")
                scaled *= np.sqrt(sign * precisions[chosen])[:, None]
                information = dsyrk(sign, scaled.T, beta=1.0, c=information, lower=1, overwrite_c=1)
        return information

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of the sites of a block of rows."""
        return np.asarray(dgemv(1.0, self._rows_of(part).T, shifts))

    @property
    def flat(self) -> FloatArray:
        """Precisions summed over all sites as one array: the lower triangle, column by column."""
        return np.asarray(dtrttp(np.asfortranarray(self.information), uplo="L")[0])

    def flat_of_sites(self, part: slice, precisions: FloatArray) -> FloatArray:
        """Sum up precisions of the sites of a block of rows, as `flat` has them."""
        zeros = np.zeros((self.prior.dim, self.prior.dim), order="F")
        return np.asarray(dtrttp(self.plus_sites(part, precisions, zeros), uplo="L")[0])

    def replace(self, flat: FloatArray, shift: FloatArray, prior: Prior | None = None) -> bool:
        """Replace the sums over all sites, and the prior if one is given; False if that is improper."""
        return self._factorise(dtpttr(self.prior.dim, flat, uplo="L")[0], shift, prior or self.prior)

    def scale(self, precisions: float, shifts: float, prior: Prior | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors, and replace the prior if one is given."""
        information = self.information if precisions == 1.0 else precisions * self.information
        return self._factorise(information, self.shift if shifts == 1.0 else shifts * self.shift, prior or self.prior)

    def natural(self, log_scale: float) -> DenseNatural:
        """Natural parameters of all sites, with this scale of their product."""
        lower = np.tril(self.information)
        return DenseNatural(lower + np.tril(lower, -1).T, self.shift, self._start_scale + log_scale)

    def gaussian(self) -> DenseGaussian:
        """Normalised posterior."""
        return DenseGaussian(self.mean, np.ascontiguousarray(self._inverse().T), 0.0)

    def marginals(self) -> tuple[FloatArray, FloatArray]:
        """Means and variances by which changes are measured: those of the coefficients."""
        return self.mean, self.variance()

    def means(self) -> FloatArray:
        """Means of `marginals`."""
        return self.mean

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        inverse = self._inverse()
        return np.asarray(np.einsum("ij,ij->j", inverse, inverse))

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return np.asarray(dpotrs(self.root, right, lower=1)[0])

    def covariances_of_couplings(self, couplings: Couplings) -> FloatArray:
        """Posterior covariances of the pairs of coefficients that the prior couples."""
        lower, _ = dpotri(self.root, lower=1)
        left, right, _ = couplings
        return np.asarray(lower[np.maximum(left, right), np.minimum(left, right)])

    def _means(self, A: FloatArray, mean: FloatArray) -> FloatArray:
        return np.asarray(dgemv(1.0, A.T, mean, trans=1))

    def _inverse(self) -> FloatArray:
        """Inverse of the root: products with it take half the time of solving, and are as exact."""
        if self._inverted[0] is not self.root:
            self._inverted = self.root, dtrtri(self.root, lower=1)[0]
        return self._inverted[1]

    def _rows_of(self, part: slice) -> FloatArray:
        """Rows of a block in double precision, and room for as many in the buffer."""
        if self._kept:
            if self._block[1].shape != self.rows.shape:
                self._block = slice(0, self.rows.shape[0]), self.rows.block(slice(0, self.rows.shape[0]))
            A = self._block[1][part]
        else:
            if self._block[0] != part:
                self._block = part, self.rows.block(part)
            A = self._block[1]
        if len(self._buffer) < len(A):
            self._buffer = np.empty(A.shape)
        return A

    def _factorise(self, information: FloatArray, shift: FloatArray, prior: Prior) -> bool:
        precision = information.copy(order="F")
        precision[np.diag_indices(prior.dim)] += prior.precision
        if isinstance(prior, StructuredPrior):
            left, right, values = prior.couplings
            precision[np.maximum(left, right), np.minimum(left, right)] += values
        root, info = dpotrf(precision, lower=1, clean=1, overwrite_a=1)
        diagonal = np.diagonal(root)
        if info != 0 or not np.all(np.isfinite(diagonal)):
            return False
        mean, info = dpotrs(root, prior.shift + shift, lower=1)
        if info != 0 or not np.all(np.isfinite(mean)):
            return False
        self.information, self.shift, self.prior, self.root, self.mean = information, shift, prior, root, mean
        self.log_det = 2.0 * float(np.sum(np.log(diagonal)))
        return True


class JointPosterior(DensePosterior):
    """With a full covariance of several linear predictors of the same features.

    Coefficients are ordered by predictors, then columns. The precision matrix has K × K blocks of columns × columns;
    its sums over rows, and the covariances of predictors, are one product of matrices per predictor.
    """

    def __init__(self, rows: Rows, prior: Prior, start: DenseNatural | None = None, kept: bool = True) -> None:
        self.count = prior.dim // rows.shape[1]
        self._covariance = np.empty(0), np.empty((0, 0))
        super().__init__(rows, prior, start, kept)

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows, at least as many as there are coefficients (`DensePosterior.parts`)."""
        n, smallest, most = self.rows.shape[0], max(50, self.prior.dim), self.rows.at_once
        if first:
            return doubling_parts(n, min(max(50, smallest // 4), most), most)
        return equal_parts(n, min(max(smallest, -(-n // 16)), most))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Means ``(rows, K)`` and covariances ``(rows, K, K)`` of the predictors of a block of rows."""
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
        self._spread = np.sqrt(np.maximum(np.einsum("nii->ni", variance), np.finfo(np.float64).tiny))
        return self._means(A, self.mean), variance

    def plus_sites(self, part: slice, precisions: FloatArray, information: FloatArray) -> FloatArray:
        """Add precisions of the sites of a block to a matrix, of which the lower triangle counts, in place."""
        A, k = self._rows_of(part), self.count
        n, d = A.shape
        for piece in _pieces(n, self.prior.dim):
            rows = A[piece]
            for i in range(k):
                weighted = (precisions[piece, i:, i, None] * rows[:, None, :]).reshape(len(rows), -1)
                information[i * d :, i * d : (i + 1) * d] += dgemm(1.0, weighted.T, rows.T, trans_b=1)
        return information

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of the sites of a block of rows."""
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


class SparsePosterior:
    """With a sparse precision matrix: sums over sites on its pattern, and a sparse factor, renewed after every block.

    As `DensePosterior` for rows of few columns among many: only entries of the precision matrix where two columns meet
    in a row are kept, and variances are exact (`cavity.gaussians.sparse`).

    Parameters
    ----------
    rows
        The rows, in memory or read block by block; None where no row is visited.
    analysis
        Pattern of the precision matrix of these rows, from `cavity.gaussians.analyse`, and where rows are in memory
        their analysis.
    prior
        The prior.
    matrix
        The rows as CSR, where they are in memory and were analysed.
    start
        Sums of precisions, as `flat` has them, and of shifts of the sites to begin with; none by default.
    """

    prior: Prior
    factor: SparsePrecision
    sums: PatternSums
    _places: Places  # of the entries beside the diagonal that the prior has
    shift: FloatArray
    mean: FloatArray
    _slack = 0.0  # by which share the diagonal of the prior may grow where rounding makes it improper

    def __init__(
        self,
        rows: Any,
        analysis: Analysis,
        prior: Prior,
        matrix: Any = None,
        start: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        if analysis.pattern is None:
            raise ValueError("the factor of these rows would be too large; use another form of covariance")
        self.rows, self._matrix, self._analysed = rows, matrix, None if matrix is None else analysis.rows
        self._last: tuple[slice, Any, AnalysedRows | None] = (slice(0, 0), None, None)
        self._spread = np.empty(0)
        self._pattern = analysis.pattern
        if isinstance(prior, StructuredPrior):
            self._places = Places.of(self._pattern, prior.couplings.left, prior.couplings.right)
        sums, shift = PatternSums.nothing(self._pattern), np.zeros(prior.dim)
        if start is not None:
            sums, shift = sums.like(start[0]), start[1]
        # Rounding makes the prior of a long walk improper: its diagonal may grow by the least that helps.
        rounds = start is None and isinstance(prior, StructuredPrior)
        while not self._factorise(sums, shift, prior):
            self._slack = max(2.0 * self._slack, float(np.finfo(np.float64).eps))
            if not rounds or self._slack > 1e-10:
                raise ImproperError("prior and the natural parameters of the sites must make a proper posterior")

    @classmethod
    def of(cls, prior: Prior, natural: SparseNatural) -> SparsePosterior:
        """Posterior without rows, from natural parameters of sites."""
        pattern = pattern_of(sparse.csc_array(natural.information + upper_of(prior)), natural.border)
        entries, diagonal = sparse.coo_array(natural.information), natural.information.diagonal()[pattern.order]
        (left, right), beside = entries.coords, entries.coords[0] != entries.coords[1]
        sums = Places.of(pattern, left[beside], right[beside]).add(PatternSums.nothing(pattern), entries.data[beside])
        inner = len(sums.coupling)
        sums.entries[:inner] += diagonal[:inner]
        sums.border[np.diag_indices(len(sums.border))] += diagonal[inner:]
        return cls(None, Analysis(0, 0.0, 0.0, pattern), prior, start=(sums.flat, natural.shift))

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first iteration, a few large ones afterwards, as memory allows."""
        # A factorisation costs about the same for any block, so there are few of them.
        n = self.rows.shape[0]
        most = n if self._analysed is not None else self.rows.csr_at_once
        return doubling_parts(n, min(max(100, n // 64), most), most) if first else equal_parts(n, min(-(-n // 2), most))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block of rows."""
        matrix, analysed = self._rows_of(part)
        variance = self.factor.row_variances(analysed)
        self._spread = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
        return np.asarray(matrix @ self.mean), variance

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a block of rows, as `DensePosterior.add`."""
        matrix, analysed = self._rows_of(part)
        before = self.factor, self.mean, self.shift, self.sums, self._spread
        if not (np.all(np.isfinite(precisions)) and np.all(np.isfinite(shifts))):
            return 0.5
        sums = self.sums.plus(PatternSums.of(analysed, precisions))
        if not self._factorise(sums, self.shift + matrix.T @ shifts, self.prior):
            return 0.5

        def spread_after() -> FloatArray:
            self.predictors(part)
            return self._spread

        share = share_within(farthest, matrix @ (self.mean - before[1]), before[4], spread_after)
        if share < 1.0:
            self.factor, self.mean, self.shift, self.sums, self._spread = before
        return share

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of the sites of a block of rows."""
        return np.asarray(self._rows_of(part)[0].T @ shifts)

    @property
    def flat(self) -> FloatArray:
        """Precisions summed over all sites as one array: entries, coupling and border."""
        return self.sums.flat

    def flat_of_sites(self, part: slice, precisions: FloatArray) -> FloatArray:
        """Sum up precisions of the sites of a block of rows, as `flat` has them."""
        return PatternSums.of(self._rows_of(part)[1], precisions).flat

    def replace(self, flat: FloatArray, shift: FloatArray, prior: Prior | None = None) -> bool:
        """Replace the sums over all sites, and the prior if one is given; False if that is improper."""
        return self._factorise(self.sums.like(flat), shift, prior or self.prior)

    def scale(self, precisions: float, shifts: float, prior: Prior | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors, and replace the prior if one is given."""
        return self._factorise(self.sums.times(precisions), shifts * self.shift, prior or self.prior)

    def natural(self, log_scale: float) -> SparseNatural:
        """Natural parameters of all sites, with this scale of their product."""
        entries, coupling, outer = self.sums
        information = replace(self.factor, entries=entries, coupling=coupling, border=outer).matrix
        border = self.factor.pattern.order[self.factor.inner :]
        return SparseNatural(information, self.shift, border, log_scale)

    def gaussian(self) -> SparseGaussian:
        """Normalised posterior."""
        return SparseGaussian(self.mean, self.factor, 0.0)

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return self.factor.log_det

    def marginals(self) -> tuple[FloatArray, FloatArray]:
        """Means and variances by which changes are measured: those of the coefficients."""
        return self.mean, self.variance()

    def means(self) -> FloatArray:
        """Means of `marginals`."""
        return self.mean

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        return self.factor.variances()

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return self.factor.solve(right)

    def covariances_of_couplings(self, couplings: Couplings) -> FloatArray:
        """Posterior covariances of the pairs of coefficients that the prior couples."""
        return self.factor.covariances(self._places)

    def _rows_of(self, part: slice) -> tuple[Any, AnalysedRows]:
        """Rows of a block as CSR, and analysed; the last block is kept."""
        if self._last[0] != part or self._last[2] is None:
            matrix = self.rows.csr(part) if self._matrix is None else rows_of(self._matrix, part)
            own = rows_on(self._pattern, matrix) if self._analysed is None else self._analysed.part(part)
            self._last = part, matrix, own
        _, matrix, analysed = self._last
        assert analysed is not None
        return matrix, analysed

    def _factorise(self, sums: PatternSums, shift: FloatArray, prior: Prior) -> bool:
        whole = sums
        if isinstance(prior, StructuredPrior):
            whole = self._places.add(sums, prior.couplings.values)
        for slack in dict.fromkeys((0.0, self._slack)):
            with suppress(LinAlgError):
                factor = factorise_sums(self._pattern, whole, prior.precision * (1.0 + slack))
                break
        else:
            return False
        mean = factor.solve(prior.shift + shift)
        if not np.all(np.isfinite(mean)):
            return False
        self.factor, self.mean, self.sums, self.shift, self.prior = factor, mean, sums, shift, prior
        return True


class ProductPosterior:
    """Without correlations: a product of Gaussians."""

    def __init__(self, prior: Any, sites: FactorialGaussian) -> None:
        self.prior, self._sites = prior, sites

    @property
    def shift(self) -> FloatArray:
        """Shift of the sites."""
        return self._sites.shift

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return np.asarray((self.prior.shift + self._sites.shift) * self.variance())

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return -float(np.sum(np.log(self.variance())))

    def gaussian(self) -> FactorialGaussian:
        """Normalised posterior."""
        return FactorialGaussian.from_moments(self.mean, self.variance())

    def variance(self) -> FloatArray:
        """Posterior variances."""
        return np.asarray(1.0 / (self.prior.precision + self._sites.precision))

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return np.asarray((self.variance() * right.T).T)

    def scale(self, precisions: float, shifts: float, prior: Any = None) -> bool:
        """Multiply precisions and shifts of the sites by factors, and replace the prior if one is given."""
        prior, sites = prior or self.prior, self._sites
        if precisions != 1.0 or shifts != 1.0:
            sites = FactorialGaussian(sites.log_scale, shifts * sites.shift, precisions * sites.precision)
        if not np.all(prior.precision + sites.precision > 0.0):
            return False
        self.prior, self._sites = prior, sites
        return True


Posterior = DensePosterior | SparsePosterior | ProductPosterior
# Posteriors with rows, whose sites are updated by blocks.
RowPosterior = DensePosterior | SparsePosterior


def share_within(farthest: float, moves: FloatArray, before: FloatArray, after: Callable[[], FloatArray]) -> float:
    """Share of the moves of predictors that is not farther than allowed, in their standard deviations.

    The standard deviations before or after the moves, whichever is larger: sites that were far too narrow must be able
    to widen. Those after are computed only where the share depends on them.
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


def _pieces(rows: int, columns: int) -> list[slice]:
    length = max(1, _AT_ONCE // max(columns, 1))
    return [slice(i, min(i + length, rows)) for i in range(0, rows, length)]
