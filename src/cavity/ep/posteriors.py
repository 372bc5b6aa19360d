r"""Natural parameters of sites, and the posterior that they make with a prior while EP works on it.

The product of all sites, apart from any prior, is

.. math:: e^{c + h^\top \theta - \frac12 \theta^\top G \theta}, \quad G = X^\top \text{diag}(T)\, X, \quad h = X^\top R.

Natural parameters (G, h, c) add, so two models are merged by adding theirs, older rows are forgotten by multiplying
them, and a prior can be replaced at any time. With the prior's (P, r) the posterior has the precision P + G and the
mean :math:`(P + G)^{-1} (r + h)`.

G is a matrix (`DenseNatural`), a sparse matrix (`SparseNatural`) or its diagonal (`DiagonalNatural`). Each has a
posterior that is kept factorised while prior and sites change: `DensePosterior`, `SparsePosterior`, `ProductPosterior`,
and `JointPosterior` for several linear predictors of the same features. Changes that would make the posterior improper
leave it as it was. Posteriors without rows serve hyperparameters, reports and partitions.

Level-3 operations are those of SciPy's BLAS and LAPACK throughout: NumPy brings a thread pool of its own, and the two
wait for each other where calls alternate.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dgemm, dgemv, dsyrk, dtrmm
from scipy.linalg.lapack import dlauum, dpotrf, dpotri, dpotrs, dtpttr, dtrtri, dtrttp

from cavity._types import FloatArray
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis, SparseGaussian, SparsePrecision
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import LOG_2PI, FactorialGaussian, ImproperError
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
# Below it the difference of two numbers near one has lost half of its digits.
_ROOT_OF_ROUNDING = float(np.sqrt(np.finfo(np.float64).eps))


# A posterior, whatever the form of its covariance.
Gaussian = DenseGaussian | SparseGaussian | FactorialGaussian


class NaturalParameters:
    """Natural parameters of a product of sites, whatever the form of G: ``information``, ``shift``, ``log_scale``."""

    __slots__ = ()
    information: Any
    shift: Any
    log_scale: Any

    def working(self, prior: Prior) -> Any:
        """Posterior whose prior can change; `ImproperError` if it is improper."""
        raise NotImplementedError

    def posterior(self, prior: Prior) -> Any:
        """Multiply by a prior; `ImproperError` if the product is improper."""
        return self.working(prior).gaussian(self.log_scale)

    def replaced(self, information: Any, shift: FloatArray, log_scale: float) -> Self:
        """Natural parameters of the same form."""
        return replace(self, information=information, shift=shift, log_scale=log_scale)  # type: ignore[type-var]

    def plus(self, other: Self) -> Self:
        """Add those of other rows."""
        return self.replaced(
            self.information + other.information, self.shift + other.shift, self.log_scale + other.log_scale
        )

    def times(self, factor: float) -> Self:
        """Multiply by a factor: keep a share of the information."""
        return self.replaced(factor * self.information, factor * self.shift, factor * self.log_scale)

    def with_factor(self, log_factor: float) -> Self:
        """Multiply by a constant."""
        return self.replaced(self.information, self.shift, self.log_scale + log_factor)

    def along(self, x: FloatArray) -> FloatArray:
        """Multiply a vector by the information."""
        return np.asarray(self.information @ x)

    def moved(self, ratio: float, shift: FloatArray) -> Self:
        """Natural parameters of coefficients that are ``ratio`` times these, plus ``shift``."""
        new = self.replaced(self.information / ratio**2, self.shift / ratio, self.log_scale)
        along = new.along(shift)
        log_scale = self.log_scale - float(new.shift @ shift) - 0.5 * float(shift @ along)
        return self.replaced(new.information, new.shift + along, log_scale)


@dataclass(frozen=True, slots=True, eq=False)
class DenseNatural(NaturalParameters):
    """With all correlations: ``information`` is a symmetric matrix of which the lower triangle counts."""

    information: FloatArray
    shift: FloatArray
    log_scale: float = 0.0

    @classmethod
    def zero(cls, dim: int) -> Self:
        """Natural parameters of no rows."""
        return cls(np.zeros((dim, dim)), np.zeros(dim))

    @classmethod
    def of_flat(cls, flat: FloatArray, shift: FloatArray) -> Self:
        """From the lower triangle of the information as one array, column by column."""
        return cls(np.asarray(dtpttr(shift.size, flat, uplo="L")[0]), shift)

    @classmethod
    def of_normal_rows(cls, rows: FloatArray, targets: FloatArray, weights: FloatArray | None, scale: float) -> Self:
        """Of rows with normal noise of this standard deviation."""
        weighted = rows if weights is None else rows * weights[:, None]
        squares = float(targets @ (targets if weights is None else weights * targets))
        information = rows.T @ weighted
        return cls(
            0.5 * (information + information.T) / scale**2, targets @ weighted / scale**2, -0.5 * squares / scale**2
        )

    def working(self, prior: Prior) -> DensePosterior:
        """Posterior whose prior can change; `ImproperError` if it is improper."""
        return DensePosterior(None, prior, self)

    def of_columns(self, change: Any) -> DenseNatural:
        """Natural parameters in other columns: ``change``, a sparse matrix, maps the shift to theirs."""
        information = change @ (change @ self.information).T
        return DenseNatural(0.5 * (information + information.T), change @ self.shift, self.log_scale)


@dataclass(frozen=True, slots=True, eq=False)
class SparseNatural(NaturalParameters):
    """With the correlations of a sparse precision: ``information`` is the upper triangle as CSC.

    ``border`` names the columns that meet most others.
    """

    information: Any
    shift: FloatArray
    border: NDArray[np.int64]
    log_scale: float = 0.0

    def working(self, prior: Prior) -> SparsePosterior:
        """Posterior whose prior can change; `ImproperError` if it is improper."""
        pattern = pattern_of(sparse.csc_array(self.information + upper_of(prior)), self.border)
        entries, diagonal = sparse.coo_array(self.information), self.information.diagonal()[pattern.order]
        # Entries that are zero are stored, and are not in the pattern of the sum.
        (left, right), beside = entries.coords, (entries.coords[0] != entries.coords[1]) & (entries.data != 0.0)
        sums = Places.of(pattern, left[beside], right[beside]).add(PatternSums.nothing(pattern), entries.data[beside])
        inner = len(sums.coupling)
        sums.entries[:inner] += diagonal[:inner]
        sums.border[np.diag_indices(len(sums.border))] += diagonal[inner:]
        return SparsePosterior(None, Analysis(0, 0.0, 0.0, pattern), prior, start=(sums.flat, self.shift))

    def plus(self, other: SparseNatural) -> SparseNatural:
        """Add those of other rows."""
        border = np.union1d(self.border, other.border)
        information = sparse.csc_array(self.information + other.information)
        return SparseNatural(information, self.shift + other.shift, border, self.log_scale + other.log_scale)

    def along(self, x: FloatArray) -> FloatArray:
        """Multiply a vector by the information."""
        return np.asarray(self.information @ x + sparse.triu(self.information, 1).T @ x)

    def of_columns(self, change: Any) -> SparseNatural:
        """Natural parameters in other columns: ``change`` maps the shift to theirs."""
        change = sparse.csr_array(change)
        whole = self.information + sparse.triu(self.information, 1).T
        information = sparse.csc_array(sparse.triu(change @ whole @ change.T))
        return self.replaced(information, change @ self.shift, self.log_scale)


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalNatural(NaturalParameters):
    """As a product of one-dimensional Gaussians, whose natural parameters these are."""

    sites: FactorialGaussian

    @classmethod
    def zero(cls, dim: int) -> Self:
        """Natural parameters of no rows."""
        return cls(FactorialGaussian.uniform(dim))

    def working(self, prior: Any) -> ProductPosterior:
        """Posterior whose prior can change; `ImproperError` if it is improper."""
        return ProductPosterior(prior, self.sites)

    def posterior(self, prior: Any) -> FactorialGaussian:
        """Multiply by a prior; `ImproperError` if the product is improper."""
        posterior: FactorialGaussian = prior * self.sites
        if not posterior.is_proper:
            raise ImproperError("prior times sites is not proper")
        return posterior

    @property
    def information(self) -> FloatArray:
        """Diagonal of the information."""
        return self.sites.precision

    @property
    def shift(self) -> FloatArray:
        """Shift of the sites."""
        return self.sites.shift

    @property
    def log_scale(self) -> float:
        """Logarithm of the scale of the sites."""
        return self.sites.log_scale

    def replaced(self, information: FloatArray, shift: FloatArray, log_scale: float) -> DiagonalNatural:
        """Natural parameters of the same form."""
        return DiagonalNatural(FactorialGaussian(log_scale, shift, information))

    def along(self, x: FloatArray) -> FloatArray:
        """Multiply a vector by the information."""
        return np.asarray(self.information * x)

    def changed(self, factors: FloatArray, coupling: FloatArray) -> DiagonalNatural:
        """Natural parameters of other coefficients, of which these are multiples by factors.

        The last one here also has a part of the others, by ``coupling``; that part is taken at their means, since
        without correlations nothing else can be kept.
        """
        shift, precision = factors * self.shift, factors**2 * self.information
        if coupling.size:
            means = np.divide(shift, precision, out=np.zeros_like(shift), where=precision > 0.0)
            shift[-1] -= precision[-1] * float(coupling @ means[:-1])
        return self.replaced(precision, shift, self.log_scale)


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
        start = DenseNatural(np.zeros((prior.dim,) * 2), np.zeros(prior.dim)) if start is None else start
        self._start_scale, self._inverted = start.log_scale, (np.empty(0), np.empty(0))
        self._block, self._buffer, self._kept = (slice(0), np.empty((0, 0))), np.empty((0, 0)), False
        if rows is not None:
            self.rows = rows
            self._kept = kept and 8 * rows.shape[0] * rows.shape[1] <= _KEPT_BYTES and rows.shape[0] <= rows.at_once
        if not self._factorise(np.asfortranarray(start.information), start.shift, prior):
            raise ImproperError("prior and the natural parameters of the sites must make a proper posterior")

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first iteration, of equal size afterwards."""
        # A block has at least as many rows as there are columns: its factorisation costs no more than its sums. 50 rows
        # make array operations pay. With 20, problems converge in fewer iterations that take longer; with 400, some of
        # few columns take more iterations. Fewer than 16 blocks amortise factorisations, more see newer posteriors.
        n, d = self.rows.shape
        smallest = max(50, d)
        most = min(self.rows.at_once, max(smallest, _MOST_ROWS))
        return row_blocks(n, min(smallest if first else max(smallest, -(-n // 16)), most), most, first)

    def means(self, part: slice) -> FloatArray:
        """Means of the linear predictors of a block of rows."""
        return np.asarray(dgemv(1.0, self._rows_of(part).T, self.mean, trans=1))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block of rows."""
        A = self._rows_of(part)
        half = self._buffer[: len(A)]
        half[:] = A
        half = dtrmm(1.0, self._inverse(), half.T, lower=1, overwrite_b=1)  # L^-1 A', its squares sum to the variances
        return self.means(part), np.einsum("ij,ij->i", half.T, half.T)

    def with_sites(self, part: slice, precisions: FloatArray, shifts: FloatArray) -> Self | None:
        """Posterior with more in the sites of a block of rows; None where that is improper."""
        information = self.plus_sites(part, precisions, self.information.copy(order="F"))
        shift, new = self.shift + self.sum_of_shifts(part, shifts), copy(self)
        return new if np.all(np.isfinite(shift)) and new._factorise(information, shift, self.prior) else None

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

    def gaussian(self, log_scale: float = 0.0) -> DenseGaussian:
        """Posterior as a value; its mass is that of prior and sites, whose scale is given."""
        fitted = float(self.mean @ (self.prior.shift + self.shift))
        log_mass = log_scale + self.prior.log_scale + 0.5 * (fitted + self.mean.size * LOG_2PI - self.log_det)
        return DenseGaussian(self.mean, np.ascontiguousarray(self._inverse().T), log_mass)

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        inverse = self._inverse()
        return np.asarray(np.einsum("ij,ij->j", inverse, inverse))

    def shares(self) -> FloatArray:
        """Share of every independent coefficient that the rows determine, rounding errors of tiny shares removed."""
        shares = 1.0 - self.prior.precision * self.variance()
        tiny = np.flatnonzero(np.abs(shares) < _ROOT_OF_ROUNDING)
        if tiny.size:  # the diagonal of the covariance times the information of the rows
            lower = np.tril(self.information)
            whole = lower + np.tril(lower, -1).T
            shares[tiny] = np.einsum("ij,ij->j", self.solve(np.eye(shares.size)[:, tiny]), whole[:, tiny])
        return shares

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return np.asarray(dpotrs(self.root, right, lower=1)[0])

    def covariances_of_couplings(self, couplings: Couplings) -> FloatArray:
        """Posterior covariances of the pairs of coefficients that the prior couples."""
        lower, _ = dpotri(self.root, lower=1)
        left, right, _ = couplings
        return np.asarray(lower[np.maximum(left, right), np.minimum(left, right)])

    def _inverse(self) -> FloatArray:
        """Inverse of the root: products with it take half the time of solving, and are as exact."""
        if self._inverted[0] is not self.root:
            self._inverted = self.root, dtrtri(self.root, lower=1)[0]
        return self._inverted[1]

    def _rows_of(self, part: slice) -> FloatArray:
        """Rows of a block in double precision, and room for as many in the buffer."""
        held = slice(0, self.rows.shape[0]) if self._kept else part
        if self._block[0] != held:
            self._block = held, self.rows.block(held)
        A = self._block[1][part] if self._kept else self._block[1]
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
        size = max(50, smallest // 4) if first else max(smallest, -(-n // 16))
        return row_blocks(n, min(size, most), most, first)

    def means(self, part: slice) -> FloatArray:
        """Means ``(rows, K)`` of the predictors of a block of rows."""
        return np.asarray(dgemm(1.0, self._rows_of(part).T, self.mean.reshape(self.count, -1).T, trans_a=1))

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Means ``(rows, K)`` and covariances ``(rows, K, K)`` of the predictors of a block of rows."""
        A, k = self._rows_of(part), self.count
        n, d = A.shape
        variance, covariance = np.empty((n, k, k)), self._inverse_precision()
        if d <= _NARROW:
            (upper, lower), (left, right) = np.tril_indices(k), np.triu_indices(d)
            # Of a block only its symmetric part counts, whose entries beside the diagonal occur twice.
            blocks = covariance.reshape(k, d, k, d)[upper, :, lower]
            each = np.where(left == right, 0.5, 1.0) * (blocks[:, left, right] + blocks[:, right, left])
            for piece in _pieces(n, 16 * left.size):
                found = dgemm(1.0, _squares(A[piece]).T, each.T)
                variance[piece, upper, lower] = variance[piece, lower, upper] = found
            return self.means(part), variance
        for piece in _pieces(n, self.prior.dim):
            rows = A[piece]
            for i in range(k):
                below = covariance[i * d :, i * d : (i + 1) * d]
                products = dgemm(1.0, below, rows.T).T.reshape(-1, k - i, d)
                variance[piece, i:, i] = np.einsum("nld,nd->nl", products, rows)
                variance[piece, i, i:] = variance[piece, i:, i]
        return self.means(part), variance

    def plus_sites(self, part: slice, precisions: FloatArray, information: FloatArray) -> FloatArray:
        """Add precisions of the sites of a block to a matrix, of which the lower triangle counts, in place."""
        A, k = self._rows_of(part), self.count
        n, d = A.shape
        if d <= _NARROW:
            (upper, lower), (left, right) = np.tril_indices(k), np.triu_indices(d)
            sums = np.zeros((left.size, upper.size), order="F")
            for piece in _pieces(n, 16 * left.size):
                weights = np.ascontiguousarray(precisions[piece, upper, lower])
                squares = _squares(A[piece])
                sums = dgemm(1.0, squares.T, weights.T, trans_a=1, trans_b=1, beta=1.0, c=sums, overwrite_c=1)
            block = np.empty((d, d))
            for a, b, entries in zip(upper, lower, sums.T, strict=True):
                block[left, right] = block[right, left] = entries
                information[a * d : (a + 1) * d, b * d : (b + 1) * d] += block
            return information
        for piece in _pieces(n, self.prior.dim):
            rows = A[piece]
            for i in range(k):
                weighted = (precisions[piece, i:, i, None] * rows[:, None, :]).reshape(len(rows), -1)
                information[i * d :, i * d : (i + 1) * d] += dgemm(1.0, weighted.T, rows.T, trans_b=1)
        return information

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Sum up shifts of the sites of a block of rows."""
        return np.asarray(dgemm(1.0, self._rows_of(part).T, np.asfortranarray(shifts)).ravel(order="F"))

    def _inverse_precision(self) -> FloatArray:
        """Lower triangle of the covariance, the diagonal blocks whole."""
        if self._covariance[0] is not self.root:
            inverse, _ = dlauum(self._inverse(), lower=1)
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

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first iteration, a few large ones afterwards, as memory allows."""
        # A factorisation costs about the same for any block, so there are few of them.
        n = self.rows.shape[0]
        most = n if self._analysed is not None else self.rows.csr_at_once
        return row_blocks(n, min(max(100, n // 16) if first else -(-n // 2), most), most, first)

    def means(self, part: slice) -> FloatArray:
        """Means of the linear predictors of a block of rows."""
        return np.asarray(self._rows_of(part)[0] @ self.mean)

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block of rows."""
        return self.means(part), self.factor.row_variances(self._rows_of(part)[1])

    def with_sites(self, part: slice, precisions: FloatArray, shifts: FloatArray) -> Self | None:
        """Posterior with more in the sites of a block of rows, as `DensePosterior.with_sites`."""
        matrix, analysed = self._rows_of(part)
        if not (np.all(np.isfinite(precisions)) and np.all(np.isfinite(shifts))):
            return None
        sums, new = self.sums.plus(PatternSums.of(analysed, precisions)), copy(self)
        return new if new._factorise(sums, self.shift + matrix.T @ shifts, self.prior) else None

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

    def gaussian(self, log_scale: float = 0.0) -> SparseGaussian:
        """Posterior as a value; its mass is that of prior and sites, whose scale is given."""
        fitted = float(self.mean @ (self.prior.shift + self.shift))
        log_mass = log_scale + self.prior.log_scale + 0.5 * (fitted + self.mean.size * LOG_2PI - self.log_det)
        return SparseGaussian(self.mean, self.factor, log_mass)

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return self.factor.log_det

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""
        return self.factor.variances()

    def shares(self) -> FloatArray:
        """Share of every independent coefficient that the rows determine."""
        return np.asarray(1.0 - self.prior.precision * self.variance())

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

    def shares(self) -> FloatArray:
        """Share of every coefficient that the rows determine."""
        return np.asarray(self._sites.precision * self.variance())

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


def row_blocks(rows: int, size: int, most: int | None = None, doubling: bool = False) -> list[slice]:
    """Cut rows into blocks of about this size; doubling, none but the first is larger than all before it together."""
    if not doubling:
        ends = np.linspace(0, rows, max(1, round(rows / size)) + 1).astype(int).tolist()
    else:
        ends = [0, min(size, rows)]
        while ends[-1] < rows:
            ends.append(min(ends[-1] + min(ends[-1], most or rows), rows))
    return [slice(a, b) for a, b in pairwise(ends)]


def _squares(rows: FloatArray) -> FloatArray:
    """Products of any two entries of a row, one line per entry of the upper triangle."""
    columns = np.ascontiguousarray(rows.T)
    d, n = columns.shape
    found, start = np.empty((d * (d + 1) // 2, n)), 0
    for i in range(d):
        np.multiply(columns[i:], columns[i], out=found[start : start + d - i])
        start += d - i
    return found


def _pieces(rows: int, columns: int) -> list[slice]:
    length = max(1, _AT_ONCE // max(columns, 1))
    return [slice(i, min(i + length, rows)) for i in range(0, rows, length)]
