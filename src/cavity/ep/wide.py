r"""The posterior of the predictors of rows while EP works on it, by their prior covariance.

The predictors z of n rows have the prior :math:`N(c, K)`: for a linear model :math:`K = X V X^\top`, for a Gaussian
process the values of its kernel. With the natural parameters (T, R) of the sites,

.. math:: W = (K + T^{-1})^{-1}, \qquad a = (I + T K)^{-1} (R - T c), \qquad
    \text{mean } c + K a, \qquad \text{covariance } S = K - K W K,

so that nothing needs the coefficients, of which there may be many more than rows. Rows whose sites have a positive
precision are taken first: with :math:`s = T^{1/2}` and the triangular factor of :math:`B = I + s K s`,

.. math:: W_+ = s B^{-1} s, \qquad 1 - T_i S_{ii} = (B^{-1})_{ii},

which does not cancel where a site knows its predictor well. Those of negative precision, :math:`T = -t^2`, follow:

.. math:: S = S_+ + S_+ N N^\top S_+, \qquad N N^\top = t (I - t S_+ t)^{-1} t,

and the posterior is proper as long as the matrix in brackets is positive definite. The evidence has the gradient

.. math:: \frac{\partial \log Z}{\partial \psi} = \tfrac12 \operatorname{tr}\Big((a a^\top - W)
    \frac{\partial K}{\partial \psi}\Big), \qquad \text{average information } \tfrac12\, a^\top \dot K_i W \dot K_j a.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from scipy.linalg.blas import dgemm, dtrmm
from scipy.linalg.lapack import dpotrf, dtrtri

from cavity._types import FloatArray, IndexArray
from cavity.ep.posteriors import DenseNatural, row_blocks
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.gaussians.wide import ProcessGaussian, RowsGaussian, WideRows

# What is left of one after the share of a site in the precision of its predictor, above which the variance is computed
# from the prior: below, it is exact to 13 digits.
_LITTLE = 0.999
# Coefficients of a group from which on a part of them says how what the sites determine depends on its variance.
_ENOUGH = 1000
# Rows of the first block that is visited: `DensePosterior.parts`.
_FIRST = 50


class Kernel(Protocol):
    """Prior mean and covariance of the predictors of rows, and how they depend on hyperparameters."""

    def at(self, prior: Any) -> tuple[FloatArray, list[FloatArray]]:
        """Prior means ``(predictors, n)``, and a covariance ``(n, n)`` for every predictor.

        Parameters
        ----------
        prior
            The prior.
        """

    def slopes(self, prior: Any, groups: Sequence[Any]) -> list[list[FloatArray | None]]:
        """Differentiate the covariances of every predictor by every hyperparameter; None for zeros.

        Parameters
        ----------
        prior
            The prior.
        groups
            Which hyperparameters are to be found.
        """


@dataclass(eq=False)
class LinearKernel:
    """Prior covariance of linear predictors whose coefficients are independent.

    Parameters
    ----------
    rows
        The rows.
    groups
        Coefficients that share a variance which may change, for each such variance. Products of their columns are made
        once, so that another variance needs no pass over the columns; those of all other columns once for every prior.
        Several linear predictors have copies of all coefficients, one after the other.
    """

    rows: WideRows
    groups: tuple[IndexArray, ...] = ()

    def __post_init__(self) -> None:
        self._grams: dict[bytes, FloatArray] = {}
        self._rest: dict[int, tuple[FloatArray, FloatArray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be made again."""
        return {"rows": self.rows, "groups": self.groups, "_grams": {}, "_rest": {}}

    def gram(self, columns: IndexArray) -> FloatArray:
        """Products of some columns, made once."""
        key = columns.tobytes()
        if key not in self._grams:
            self._grams[key] = self.rows.gram(np.ones(self.rows.shape[1]), columns)
        return self._grams[key]

    def _own(self, group: IndexArray, predictor: int) -> IndexArray:
        """Columns of a group among the coefficients of a predictor."""
        d = self.rows.shape[1]
        return np.asarray(group[(group >= predictor * d) & (group < (predictor + 1) * d)] - predictor * d)

    def at(self, prior: FactorialGaussian) -> tuple[FloatArray, list[FloatArray]]:
        """Prior means ``(predictors, n)``, and a covariance for every predictor."""
        (n, d), means = self.rows.shape, prior.mean
        count = prior.dim // d
        center = np.zeros((count, n))
        if np.any(means):
            center = self.rows.times(means.reshape(-1, d).T).T
        found: list[FloatArray] = []
        for k, variance in enumerate(prior.variance.reshape(count, d)):
            if k and np.array_equal(variance, prior.variance[:d]):
                found.append(found[0])
                continue
            own, left = [self._own(group, k) for group in self.groups], np.ones(d, dtype=bool)
            for columns in own:
                left[columns] = False
            rest = np.flatnonzero(left)
            if k not in self._rest or not np.array_equal(self._rest[k][0], variance[rest]):
                self._rest[k] = variance[rest], self.rows.gram(variance, rest)
            total = self._rest[k][1].copy()
            for columns in own:
                if columns.size:
                    total += variance[columns[0]] * self.gram(columns)
            found.append(total)
        return center, found

    def slopes(self, prior: FactorialGaussian, groups: Sequence[Any]) -> list[list[FloatArray | None]]:
        """Differentiate by the logarithms of the variances of the groups, which must be these groups."""
        count, found = prior.dim // self.rows.shape[1], []
        for group in self.groups:
            each: list[FloatArray | None] = []
            for columns in (self._own(group, k) for k in range(count)):
                each.append(prior.variance[group[0]] * self.gram(columns) if columns.size else None)
            found.append(each)
        return found


class _Directions(NamedTuple):
    """Site precisions of one sign as a sum over directions ``u u'``, each in the predictors of one row.

    ``row`` and ``vector`` are of shape ``(m,)`` and ``(m, predictors)``; ``pieces`` cuts them such that within a piece
    every row occurs once at most.
    """

    row: IndexArray
    vector: FloatArray
    pieces: tuple[slice, ...]

    @classmethod
    def of(cls, precisions: FloatArray, sign: float) -> _Directions:
        """Directions of the site precisions of this sign, of shape ``(n,)`` or ``(n, predictors, predictors)``."""
        if precisions.ndim == 1:
            row = np.flatnonzero(sign * precisions > 0.0)
            return cls(row, np.sqrt(sign * precisions[row])[:, None], (slice(0, row.size),))
        values, vectors = np.linalg.eigh(precisions)
        rows, found = [], []
        for k in range(values.shape[1]):
            # What rounding leaves of a matrix that is singular is nothing.
            largest = np.max(np.abs(values), axis=1)
            row = np.flatnonzero(sign * values[:, k] > 1e-13 * largest)
            rows.append(row)
            found.append(np.sqrt(sign * values[row, k])[:, None] * vectors[row, :, k])
        ends = np.cumsum([0, *(row.size for row in rows)])
        pieces = tuple(slice(int(a), int(b)) for a, b in pairwise(ends))
        return cls(np.concatenate(rows), np.concatenate(found), pieces)

    def gather(self, values: FloatArray) -> FloatArray:
        """Along every direction, of numbers ``(predictors, n, k)``: ``(m, k)``."""
        found = np.zeros((self.row.size, values.shape[2]))
        for one, along in zip(values, self.vector.T, strict=True):
            found += along[:, None] * one[self.row]
        return found

    def spread(self, values: FloatArray, rows: int) -> FloatArray:
        """Sum of the directions, each times a row of numbers ``(m, k)``: ``(predictors, n, k)``."""
        found = np.zeros((self.vector.shape[1], rows, values.shape[1]))
        for piece in self.pieces:
            for one, along in zip(found, self.vector[piece].T, strict=True):
                one[self.row[piece]] += along[:, None] * values[piece]
        return found

    def between(self, kernels: Sequence[FloatArray]) -> FloatArray:
        """Prior covariance of the predictors along all directions."""
        m = self.row.size
        total: Any = 0.0
        for kernel, along in zip(kernels, self.vector.T, strict=True):
            whole = m == len(kernel) and len(self.pieces) == 1
            part = kernel if whole else kernel[np.ix_(self.row, self.row)]
            total = total + along[:, None] * part * along
        return np.asarray(total) if m else np.empty((0, 0))

    def across(self, kernels: Sequence[FloatArray], part: Any) -> list[FloatArray]:
        """Prior covariances ``(m, rows of a part)`` of the predictors along all directions with every predictor."""
        return [along[:, None] * k[self.row][:, part] for k, along in zip(kernels, self.vector.T, strict=True)]


class _Factor(NamedTuple):
    """The posterior of the predictors, factorised: ``inverse`` is that of the triangular factor of B."""

    plus: _Directions
    minus: _Directions
    inverse: FloatArray
    widened: FloatArray  # (predictors, n, directions of negative sites): (I - W+ K) N
    weights: FloatArray  # a, of shape (predictors, n)
    mean: FloatArray  # of shape (predictors, n)
    log_det: float  # of I + T K


class KernelPosterior:
    """Of predictors whose prior covariance is given, one or several per row: one dense factor of rows × rows.

    It offers what `DensePosterior` does, for the predictors of these rows.

    Parameters
    ----------
    kernel
        Prior mean and covariance of the predictors.
    prior
        The prior, of whatever kind the kernel knows.
    predictors
        Number of linear predictors; None for a single one.
    start
        Natural parameters of the sites to begin with, none by default.
    """

    prior: Any
    precisions: FloatArray  # of the sites, one per row, or a matrix
    shift: FloatArray
    kernels: list[FloatArray]
    center: FloatArray
    factor: _Factor

    def __init__(
        self,
        kernel: Kernel,
        prior: Any,
        predictors: int | None = None,
        start: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        self.kernel, self._is_warm = kernel, start is not None
        self.center, self.kernels = kernel.at(prior)
        n, vector = self.center.shape[1], () if predictors is None else (predictors,)
        start = (np.zeros((n, *vector, *vector)), np.zeros((n, *vector))) if start is None else start
        self.prior = prior
        if not self._factorise(*start, prior):
            raise ImproperError("prior and the natural parameters of the sites must make a proper posterior")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.center.shape[1])

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows: of doubling size in the first iteration, all at once afterwards, as one factor costs."""
        if not first or self._is_warm:
            return [slice(0, self.rows)]
        return row_blocks(self.rows, _FIRST, self.rows, True)

    def means(self, part: slice) -> FloatArray:
        """Means of the predictors of a block of rows, ``(rows,)`` or ``(rows, predictors)``."""
        found = self.factor.mean[:, part]
        return found[0].copy() if self.shift.ndim == 1 else found.T.copy()

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Means and variances of the predictors of a block of rows, or covariances of several."""
        return self.means(part), self._variance(part)

    def _variance(self, part: slice) -> FloatArray:
        f, n = self.factor, self.rows
        rows = np.arange(n)[part]
        if self.shift.ndim == 1:
            found, known = np.empty(n), np.zeros(n, dtype=bool)
            left = np.einsum("ij,ij->j", f.inverse, f.inverse)
            sure = left < _LITTLE
            known[f.plus.row[sure]] = True
            found[f.plus.row[sure]] = (1.0 - left[sure]) / np.square(f.plus.vector[sure, 0])
            unknown = rows[~known[rows]]
            if unknown.size:
                halves = dtrmm(1.0, f.inverse, f.plus.across(self.kernels, unknown)[0], lower=1)
                found[unknown] = self.kernels[0][unknown, unknown] - np.einsum("ij,ij->j", halves, halves)
            if f.minus.row.size:
                wider = self.kernels[0][rows] @ f.widened[0]
                found[rows] += np.einsum("ij,ij->i", wider, wider)
            return found[rows]
        q = len(self.kernels)
        halves = [dtrmm(1.0, f.inverse, one, lower=1) for one in f.plus.across(self.kernels, rows)]
        wider = [kernel[rows] @ one for kernel, one in zip(self.kernels, f.widened, strict=True)]
        found = np.zeros((rows.size, q, q))
        for i in range(q):
            found[:, i, i] = self.kernels[i][rows, rows]
            for j in range(i + 1):
                apart = np.einsum("ij,ij->i", wider[i], wider[j]) - np.einsum("ij,ij->j", halves[i], halves[j])
                found[:, i, j] += apart
                found[:, j, i] = found[:, i, j]
        return found

    @property
    def mean(self) -> FloatArray:
        """Posterior means of the predictors of all rows."""
        return self.factor.mean.ravel()

    def variance(self) -> FloatArray:
        """Posterior variances of the predictors of all rows."""
        variance = self._variance(slice(0, self.rows))
        if variance.ndim > 1:
            variance = np.einsum("nii->in", variance)
        # A row of zeros has no variance, and that of a predictor that is known exactly is rounding.
        return np.maximum(variance.ravel(), np.finfo(np.float64).tiny)

    def with_sites(self, part: slice, precisions: FloatArray, shifts: FloatArray) -> Self | None:
        """Posterior with more in the sites of a block of rows; None where that is improper."""
        T, R, new = self.precisions.copy(), self.shift.copy(), copy(self)
        T[part] += precisions
        R[part] += shifts
        return new if new._factorise(T, R, self.prior) else None

    def sum_of_shifts(self, part: slice, shifts: FloatArray) -> FloatArray:
        """Shifts of the sites of a block of rows, among those of all."""
        found = np.zeros_like(self.shift)
        found[part] = shifts
        return found

    @property
    def flat(self) -> FloatArray:
        """Precisions of all sites as one array."""
        return self.precisions.ravel()

    def flat_of_sites(self, part: slice, precisions: FloatArray) -> FloatArray:
        """Precisions of the sites of a block of rows, as `flat` has them."""
        found = np.zeros_like(self.precisions)
        found[part] = precisions
        return found.ravel()

    def replace(self, flat: FloatArray, shift: FloatArray, prior: Any = None) -> bool:
        """Replace all sites, and the prior if one is given; False if that is improper."""
        return self._factorise(flat.reshape(self.precisions.shape), shift, prior or self.prior)

    def scale(self, precisions: float, shifts: float, prior: Any = None) -> bool:
        """Multiply precisions and shifts of all sites by factors, and replace the prior if one is given."""
        return self._factorise(precisions * self.precisions, shifts * self.shift, prior or self.prior)

    @property
    def log_mass(self) -> float:
        """Logarithm of the integral of prior times sites, the sites without their scales."""
        R, c, T = self.shift.reshape(self.rows, -1).T, self.center, self.precisions
        if not np.any(c):
            return 0.5 * (float(np.sum(R * self.factor.mean)) - self.factor.log_det)
        pulled = T * c if T.ndim == 1 else np.einsum("nij,jn->in", T, c)
        r = R - pulled
        fitted = np.sum((R - 0.5 * pulled) * c) + 0.5 * np.sum(r * (self.factor.mean - c))
        return float(fitted) - 0.5 * self.factor.log_det

    def log_mass_of_normal(self, weight: float, scale: float) -> float:
        """Logarithm of the integral where rows have normal noise, with the terms that depend on the noise scale."""
        a, targets = self.factor.weights[0], self.shift / self.precisions
        return -0.5 * float(a @ (targets - self.center[0])) - 0.5 * self.factor.log_det - weight * float(np.log(scale))

    def narrowed(self) -> FloatArray:
        """Matrix M of which the product with its transpose is W, that of sites of negative precision apart."""
        return self.factor.plus.spread(self.factor.inverse.T, self.rows)

    def slopes(self, groups: Sequence[Any], weight: float | None = None) -> tuple[FloatArray, FloatArray]:
        """Gradient of the evidence in all hyperparameters, and the average information.

        Parameters
        ----------
        groups
            Which hyperparameters are to be found.
        weight
            Sum of the weights of rows with normal noise, whose log scale then is the last hyperparameter.
        """
        f, n = self.factor, self.rows
        found = self.kernel.slopes(self.prior, groups)
        k = len(found)
        gradient = np.zeros(k + (weight is not None))
        M = self.narrowed()
        along = np.zeros((len(gradient), len(self.kernels), n))
        for s, (narrow, wide) in enumerate(zip(M, f.widened, strict=True)):
            W = dgemm(1.0, narrow.T, narrow.T, trans_a=1)
            if wide.shape[1]:
                W -= wide @ wide.T
            for i, slopes in enumerate(found):
                slope = slopes[s]
                if slope is not None:
                    along[i, s] = slope @ f.weights[s]
                    gradient[i] += 0.5 * (float(f.weights[s] @ along[i, s]) - float(np.vdot(W, slope)))
        if weight is not None:
            a, T = f.weights[0], self.precisions
            along[k, 0] = 2.0 * a / T
            gradient[k] = float(np.sum(np.square(a) / T)) + self.explained - weight
        narrow = np.einsum("isn,snm->im", along, M)
        wide = np.einsum("isn,snm->im", along, f.widened)
        return gradient, 0.5 * (narrow @ narrow.T - wide @ wide.T)

    @property
    def explained(self) -> float:
        """How many numbers of the prior the sites determine, where all have positive precisions."""
        return len(self.factor.inverse) - float(np.sum(np.square(self.factor.inverse)))

    def _factorise(self, precisions: FloatArray, shift: FloatArray, prior: Any) -> bool:
        if not (np.all(np.isfinite(precisions)) and np.all(np.isfinite(shift))):
            return False
        center, kernels = (self.center, self.kernels) if prior is self.prior else self.kernel.at(prior)
        n = center.shape[1]
        plus, minus = _Directions.of(precisions, 1.0), _Directions.of(precisions, -1.0)
        if not all(np.all(np.isfinite(kernel)) for kernel in kernels[:1]):
            return False
        B = plus.between(kernels)
        B[np.diag_indices_from(B)] += 1.0
        root, failed = dpotrf(B, lower=1, clean=1) if len(B) else (B, 0)
        if failed or not np.all(np.isfinite(np.diagonal(root))):
            return False
        inverse = dtrtri(root, lower=1)[0] if len(B) else B
        log_det = 2.0 * float(np.sum(np.log(np.diagonal(root))))
        # The shift apart from what the prior mean says, along the directions of the sites and beside them.
        pulled = precisions * center[0] if precisions.ndim == 1 else np.einsum("nij,jn->in", precisions, center)
        r = shift.reshape(n, -1).T - pulled
        along = plus.gather(r[:, :, None])[:, 0] / np.sum(np.square(plus.vector), axis=1)
        if precisions.ndim == 1:
            beside = r.copy()
            beside[0, plus.row] = 0.0
        else:
            beside = r - plus.spread(along[:, None], n)[:, :, 0]

        def through(vectors: FloatArray, own: FloatArray) -> FloatArray:
            """Solve with I + T+ K, for right sides in two parts: along the directions, and beside."""
            if np.any(vectors):
                reached = np.array([kernel @ one for kernel, one in zip(kernels, vectors, strict=True)])
                own = own - plus.gather(reached)
            return vectors + plus.spread(inverse.T @ (inverse @ own), n)

        weights = through(beside[:, :, None], along[:, None])[:, :, 0]
        widened = np.zeros((len(kernels), n, 0))
        if minus.row.size:
            m = minus.row.size
            solved = through(minus.spread(np.eye(m), n), np.zeros((plus.row.size, m)))  # (I - W+ K) t
            reached = np.array([kernel @ one for kernel, one in zip(kernels, solved, strict=True)])
            C = np.eye(m) - minus.gather(reached)
            low, failed = dpotrf(0.5 * (C + C.T), lower=1, clean=1)
            if failed or not np.all(np.isfinite(np.diagonal(low))):
                return False
            inner = dtrtri(low, lower=1)[0]
            log_det += 2.0 * float(np.sum(np.log(np.diagonal(low))))
            widened = solved @ inner.T
            pulled = np.array([kernel @ one for kernel, one in zip(kernels, weights, strict=True)])
            gained = inner.T @ (inner @ minus.gather(pulled[:, :, None]))
            weights = weights + (solved @ gained)[:, :, 0]
        mean = center + np.array([kernel @ one for kernel, one in zip(kernels, weights, strict=True)])
        if not np.all(np.isfinite(mean)):
            return False
        self.precisions, self.shift, self.prior, self.center, self.kernels = precisions, shift, prior, center, kernels
        self.factor = _Factor(plus, minus, inverse, widened, weights, mean, log_det)
        return True

    def natural(self, log_scale: float) -> Any:
        """Natural parameters of all sites, with this scale of their product."""
        return KernelNatural(self.kernel, self.precisions, self.shift, log_scale)

    def gaussian(self, log_scale: float = 0.0) -> Any:
        """Posterior, whose mass includes this scale of the sites."""
        f = self.factor
        moments = self.mean, self.variance()
        return ProcessGaussian(*moments, f.weights, self.narrowed(), f.widened, self.log_mass + log_scale)


class RowsPosterior(KernelPosterior):
    """Of the coefficients of a linear model with more columns than rows.

    Parameters
    ----------
    kernel
        The rows, and which columns share a variance that may change.
    prior
        The prior, of independent coefficients; copies of them for several predictors.
    start
        Natural parameters of the sites to begin with, none by default.
    """

    kernel: LinearKernel

    def __init__(
        self, kernel: LinearKernel, prior: FactorialGaussian, start: tuple[FloatArray, FloatArray] | None = None
    ) -> None:
        count = prior.dim // kernel.rows.shape[1]
        super().__init__(kernel, prior, None if count == 1 else count, start)

    def log_information(self, group: IndexArray) -> float:
        """Half the logarithm of what the sites say of the logarithm of a variance, up to a constant.

        From the shares of the coefficients that they determine; of many from some, which say how that depends on the
        variance.

        Parameters
        ----------
        group
            The coefficients that have this variance.
        """
        f, rows, d, total = self.factor, self.kernel.rows, self.kernel.rows.shape[1], 0.0
        some = group[:: max(1, group.size // _ENOUGH)]
        for k, (narrow, wide) in enumerate(zip(self.narrowed(), f.widened, strict=True)):
            own = some[(some >= k * d) & (some < (k + 1) * d)] - k * d
            if own.size:
                determined = rows.squares(narrow, own)
                if wide.shape[1]:
                    determined -= rows.squares(wide, own)
                determined *= self.prior.variance[own + k * d]
                total += float(determined @ determined)
        return 0.5 * float(np.log(max(total, np.finfo(np.float64).tiny)))

    def growth(self, groups: Sequence[Any]) -> FloatArray:
        """Largest growth of a posterior variance by the uncertainty of every hyperparameter, per variance of that.

        Parameters
        ----------
        groups
            Which hyperparameters are to be found.
        """
        f, rows, prior, variance = self.factor, self.kernel.rows, self.prior.variance, self.gaussian().variance
        pinned, M, found = np.minimum(variance / prior, 1.0), self.narrowed(), []
        for group, slopes in zip(groups, self.kernel.slopes(self.prior, groups), strict=True):
            pairs = zip(slopes, f.weights, strict=True)
            moved = np.array([np.zeros(one.size) if slope is None else slope @ one for slope, one in pairs])
            inside = np.einsum("sn,snm->m", moved, M), np.einsum("sn,snm->m", moved, f.widened)
            fewer = f.weights - (M @ inside[0] - f.widened @ inside[1])
            moves = prior * np.concatenate([rows.transposed_times(one[:, None])[:, 0] for one in fewer])
            grown = np.square(moves) / variance + 0.5 * pinned
            found.append(float(np.max(grown[group.columns])))
        return np.array(found)

    def natural(self, log_scale: float) -> RowsNatural:
        """Natural parameters of all sites, with this scale of their product."""
        return RowsNatural(self.kernel, self.precisions, self.shift, log_scale)

    def gaussian(self, log_scale: float = 0.0) -> RowsGaussian:
        """Posterior, whose mass includes this scale of the sites."""
        f, prior = self.factor, self.prior
        M, N = (np.concatenate(list(each)) for each in (self.narrowed(), f.widened))
        mass, weights = self.log_mass + log_scale, f.weights.ravel()
        return RowsGaussian(self.kernel.rows, prior.mean, prior.variance, weights, M, f.inverse, N, mass)


@dataclass(frozen=True, slots=True, eq=False)
class KernelNatural:
    """Natural parameters of the sites of predictors whose prior covariance is given: those of every row.

    Parameters
    ----------
    kernel
        Prior mean and covariance of the predictors.
    precisions, shift
        Of the sites.
    log_scale
        Logarithm of the scale of their product.
    """

    kernel: Any
    precisions: FloatArray
    shift: FloatArray
    log_scale: float = 0.0

    def working(self, prior: Any) -> Any:
        """Posterior whose prior can change; `ImproperError` if it is improper."""
        count = None if self.shift.ndim == 1 else self.shift.shape[1]
        return KernelPosterior(self.kernel, prior, count, (self.precisions, self.shift))

    def posterior(self, prior: Any) -> Any:
        """Multiply by a prior."""
        return self.working(prior).gaussian(self.log_scale)

    def with_factor(self, log_factor: float) -> Self:
        """Multiply by a constant."""
        return replace(self, log_scale=self.log_scale + log_factor)

    def times(self, factor: float) -> Self:
        """Multiply by a factor: keep a share of the information."""
        return replace(
            self,
            precisions=factor * self.precisions,
            shift=factor * self.shift,
            log_scale=factor * self.log_scale,
        )


class RowsNatural(KernelNatural):
    """Natural parameters of the sites of linear predictors in the space of the rows: the rows belong to them."""

    kernel: LinearKernel

    @property
    def predictors(self) -> int:
        """Number of linear predictors."""
        return 1 if self.shift.ndim == 1 else int(self.shift.shape[1])

    def plus(self, other: RowsNatural) -> RowsNatural:
        """Add those of other rows, whose columns are in the same units."""
        kernel = LinearKernel(self.kernel.rows.plus(other.kernel.rows), self.kernel.groups)
        precisions = np.concatenate([self.precisions, other.precisions])
        shift = np.concatenate([self.shift, other.shift])
        return RowsNatural(kernel, precisions, shift, self.log_scale + other.log_scale)

    def in_columns(self, center: FloatArray, unit: FloatArray) -> RowsNatural:
        """Natural parameters in columns of other centres and units: sites of predictors stay as they are."""
        return replace(self, kernel=LinearKernel(self.kernel.rows.in_columns(center, unit), self.kernel.groups))

    def moved(self, ratio: float, shift: FloatArray) -> RowsNatural:
        """Natural parameters of coefficients that are ``ratio`` times these, plus ``shift``."""
        along = self.kernel.rows.times(shift.reshape(self.predictors, -1).T).reshape(self.shift.shape)
        T, R = self.precisions / ratio**2, self.shift / ratio
        pulled = T * along if T.ndim == 1 else np.einsum("nij,nj->ni", T, along)
        change = float(np.sum((R + 0.5 * pulled) * along))
        return RowsNatural(self.kernel, T, R + pulled, self.log_scale - change)

    def dense(self) -> DenseNatural:
        """Convert to natural parameters of the coefficients, of columns × columns numbers."""
        (_, d), q, rows = self.kernel.rows.shape, self.predictors, self.kernel.rows
        precisions = self.precisions.reshape(-1, q, q)
        shift = rows.transposed_times(self.shift.reshape(-1, q)).T.ravel()
        information = np.empty((q * d, q * d))
        matrix = rows.times(np.eye(d))
        for i in range(q):
            for j in range(q):
                block = matrix.T @ (precisions[:, i, j, None] * matrix)
                information[i * d : (i + 1) * d, j * d : (j + 1) * d] = block
        return DenseNatural(0.5 * (information + information.T), shift, self.log_scale)

    def working(self, prior: FactorialGaussian) -> RowsPosterior:
        """Posterior whose prior can change; `ImproperError` if it is improper."""
        return RowsPosterior(self.kernel, prior, (self.precisions, self.shift))
