r"""Gaussians with a sparse precision matrix :math:`P = \mathrm{diag}(p) + X^\top \mathrm{diag}(t) X`.

Columns with entries in many rows (an intercept, numbers beside one-hot columns) meet all others. They form a border:
with :math:`P = \begin{pmatrix} S & Q \\ Q^\top & D \end{pmatrix}`, S sparse, :math:`G = S^{-1} Q` and the Schur
complement :math:`H = D - Q^\top G`, the variance of a predictor is a sum of two terms that are not negative,

.. math:: x_s^\top S^{-1} x_s + u^\top H^{-1} u, \qquad u = x_d - G^\top x_s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, lapack

from cavity._types import FloatArray
from cavity.gaussians._analysis import AnalysedRows, Analysis, Pattern, pattern_of
from cavity.gaussians._factor import Factor, eliminate
from cavity.gaussians._sums import PatternSums
from cavity.gaussians.dense import WIDEST_COVARIANCE

_ENTRIES_AT_ONCE = 10_000_000  # of dense rows: bounds them to 80 MB


@dataclass(frozen=True, eq=False, repr=False)
class SparsePrecision:
    r"""A factorised sparse precision matrix P, and everything of :math:`P^{-1}` that needs no dense matrix.

    Made by `factorise`, or by `of` from the matrix itself.

    Parameters
    ----------
    pattern
        The order of the columns and the places of the entries.
    entries, coupling, border
        The matrix itself: its entries on the pattern, between inner columns and border, and of the border.
    factor, solved, root
        Its factor: of the inner part, what follows from it for the border, and the border's Cholesky factor.
    rows
        The analysed rows, if it was made from such.
    """

    pattern: Pattern
    entries: FloatArray
    coupling: FloatArray
    border: FloatArray
    factor: Factor
    solved: FloatArray
    root: FloatArray
    rows: AnalysedRows | None = None

    @classmethod
    def of(cls, matrix: sparse.csc_array, border: NDArray[Any], pattern: Pattern | None = None) -> SparsePrecision:
        """Factorise a matrix.

        Parameters
        ----------
        matrix
            Its upper triangle, in CSC form.
        border
            Columns that meet many others, and are eliminated last, as a dense matrix.
        pattern
            Pattern of the entries, if one with these entries was made before.
        """
        pattern = pattern_of(matrix, border) if pattern is None else pattern
        layout = pattern.elimination.layout
        full = (matrix + sparse.triu(matrix, 1).T).tocsr()[pattern.order][:, pattern.order]
        inner = layout.order.size
        head = full[:inner, :inner].tocoo()
        upper = head.row <= head.col
        flat = np.zeros(layout.size)
        flat[layout.positions(*(x[upper].astype(np.int64) for x in (head.row, head.col)))] = head.data[upper]
        return _factorised(
            pattern, flat[pattern.at], full[:inner, inner:].toarray(), full[inner:, inner:].toarray(), None
        )

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self.pattern.order.size)

    @cached_property
    def log_det(self) -> float:
        """Logarithm of the determinant of P."""
        return self.factor.log_det + 2.0 * float(np.sum(np.log(np.diagonal(self.root))))

    @property
    def matrix(self) -> sparse.csc_array:
        """Upper triangle of P, in the order of the columns of X."""
        inner, order = self.inner, self.pattern.order
        i, j = np.meshgrid(np.arange(inner), np.arange(inner, self.dim), indexing="ij")
        k, m = np.triu_indices(self.dim - inner)
        left = order[np.concatenate([self.pattern.left, i.ravel(), k + inner])]
        right = order[np.concatenate([self.pattern.right, j.ravel(), m + inner])]
        data = np.concatenate([self.entries, self.coupling.ravel(), self.border[k, m]])
        where = (np.minimum(left, right), np.maximum(left, right))
        return sparse.csc_array((data, where), shape=(self.dim, self.dim))

    @property
    def inner(self) -> int:
        """Number of columns that do not belong to the border."""
        return int(self.coupling.shape[0])

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve a system of equations with this matrix.

        Parameters
        ----------
        right
            One right-hand side ``(dim,)``, or several as the columns of a matrix.
        """
        right = np.asarray(right, dtype=np.float64)[self.pattern.order]
        head, tail = right[: self.inner], right[self.inner :]
        end = self._half.T @ (self._half @ (tail - self.solved.T @ head))
        return self._restored(np.concatenate([self.factor.solve(head) - self.solved @ end, end]))

    def variances(self) -> FloatArray:
        """Diagonal of the inverse."""
        inner = self.factor.inverse[self.pattern.at[: self.inner]] + _squares(self.solved @ self._half.T)
        return self._restored(np.concatenate([inner, _squares(self._half.T)]))

    def row_variances(self, rows: AnalysedRows | None = None) -> FloatArray:
        """Variance of the predictor of every row of the analysed X, from the entries of the inverse on the pattern.

        Parameters
        ----------
        rows
            Other rows, analysed on the same pattern.
        """
        rows = self.rows if rows is None else rows
        if rows is None:
            raise ValueError("row_variances needs a factor made by factorise; use predictor_variance(rows)")
        result = np.asarray(rows.products @ self.factor.inverse[self.pattern.at])
        for part in rows.parts:
            rest = rows.border[part] - rows.inner[part] @ self.solved
            result[part] += _squares(rest @ self._half.T)
        return result

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the predictor of every row, whatever columns meet in it.

        Parameters
        ----------
        rows
            Rows ``(n, dim)``, dense or sparse.
        """
        result, is_sparse = np.empty(rows.shape[0]), sparse.issparse(rows)
        size = max(1, _ENTRIES_AT_ONCE // ((self.factor.elimination.layout.corner if is_sparse else self.dim) + 100))
        for start in range(0, result.size, size):
            part = rows[start : start + size]
            if is_sparse:
                ordered = sparse.csr_array(part, dtype=np.float64)[:, self.pattern.order]
                inner, border = ordered[:, : self.inner], ordered[:, self.inner :].toarray()
                found = self.factor.squares(inner) + _squares((border - inner @ self.solved) @ self._half.T)
            else:
                part = np.asarray(part, dtype=np.float64)
                found = np.einsum("ij,ji->i", part, self.solve(part.T))
            result[start : start + size] = found
        return result

    def draws(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers into draws with mean zero and the inverse as covariance.

        Parameters
        ----------
        noise
            Standard normal numbers ``(n, dim)``, one draw per row.
        """
        noise = np.asarray(noise, dtype=np.float64).T
        end = self._half.T @ noise[self.inner :]
        return self._restored(np.concatenate([self.factor.draw(noise[: self.inner]) - self.solved @ end, end])).T

    @cached_property
    def _half(self) -> FloatArray:
        """Inverse of the border's Cholesky factor."""
        return np.asarray(lapack.dtrtri(self.root, lower=1)[0] if self.root.size else self.root)

    def _restored(self, x: FloatArray) -> FloatArray:
        """Put into the order of the columns of X."""
        result = np.empty_like(x)
        result[self.pattern.order] = x
        return result


def factorise(analysis: Analysis, weights: FloatArray, precisions: FloatArray) -> SparsePrecision:
    r"""Factorise :math:`\mathrm{diag}(p) + X^\top \mathrm{diag}(t) X` for the analysed X.

    Parameters
    ----------
    analysis
        What `analyse` found.
    weights
        One weight t per row, of any sign.
    precisions
        One number p per column.

    Raises
    ------
    scipy.linalg.LinAlgError
        If the matrix is not positive definite.
    ValueError
        If the analysis was refused, or the shapes do not match it.
    """
    rows, pattern = analysis.rows, analysis.pattern
    if rows is None or pattern is None:
        raise ValueError("the factor of this X would be too large; use another form of covariance")
    shape = (rows.inner.shape[0], pattern.order.size)
    if (np.shape(weights), np.shape(precisions)) != ((shape[0],), (shape[1],)):
        came = f"got arrays of shapes {np.shape(weights)} and {np.shape(precisions)}"
        raise ValueError(
            f"X has {shape[0]} rows and {shape[1]} columns: one weight per row and one precision per column; {came}"
        )
    sums = PatternSums.of(rows, np.asarray(weights, dtype=np.float64))
    return factorise_sums(pattern, sums, np.asarray(precisions, dtype=np.float64), rows)


def factorise_sums(
    pattern: Pattern, sums: PatternSums, precisions: FloatArray, rows: AnalysedRows | None = None
) -> SparsePrecision:
    """Factorise sums over rows plus one number per column on the diagonal; `LinAlgError` if not positive definite."""
    inner, diagonal = sums.coupling.shape[0], precisions[pattern.order]
    entries, border = sums.entries.copy(), sums.border + np.diag(diagonal[inner:])
    entries[:inner] += diagonal[:inner]
    return _factorised(pattern, entries, sums.coupling, border, rows)


def _factorised(
    pattern: Pattern, entries: FloatArray, coupling: FloatArray, border: FloatArray, rows: AnalysedRows | None
) -> SparsePrecision:
    flat = np.zeros(pattern.elimination.layout.size)
    flat[pattern.at] = entries
    factor = eliminate(pattern.elimination, flat)
    solved = factor.solve(coupling)
    rest = border - coupling.T @ solved
    root, failed = lapack.dpotrf(rest, lower=1) if rest.size else (rest, 0)
    if failed or not np.all(np.isfinite(np.diagonal(root))):
        raise LinAlgError("the precision matrix is not positive definite")
    return SparsePrecision(pattern, entries, coupling, border, factor, solved, root, rows)


def _squares(x: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("ij,ij->i", x, x))


@dataclass(frozen=True, eq=False)
class SparseGaussian:
    """A Gaussian with a mean, a sparse precision matrix and a mass, always proper.

    Parameters
    ----------
    mean
        The mean, of shape ``(dim,)``.
    factor
        The factorised precision matrix.
    log_mass
        Logarithm of the integral.

    Examples
    --------
    >>> from cavity.gaussians import analyse
    >>> factor = factorise(analyse(sparse.eye_array(2, format="csr")), np.ones(2), np.ones(2))
    >>> SparseGaussian(np.array([1.0, -2.0]), factor, 0.0).variance
    array([0.5, 0.5])
    """

    mean: FloatArray
    factor: SparsePrecision
    log_mass: float

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.mean.size)

    @property
    def is_proper(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.isfinite(np.sum(self.mean) + self.factor.log_det + self.log_mass))

    @cached_property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        return self.factor.variances()

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density, for up to 5000 coordinates."""
        if self.dim > WIDEST_COVARIANCE:
            need = f"a covariance matrix is given for up to {WIDEST_COVARIANCE} columns, got {self.dim}"
            raise ValueError(f"{need}; use std, predictor_variance(rows) or draws(noise)")
        return self.factor.solve(np.eye(self.dim))

    def covariance_with(self, weights: FloatArray) -> FloatArray:
        """Covariances of all coordinates with a linear combination of them.

        Parameters
        ----------
        weights
            The linear combination, of shape ``(dim,)``.
        """
        return self.factor.solve(weights)

    def draws(self, noise: FloatArray) -> FloatArray:
        """Draw from the normalised density; arguments as in `SparsePrecision.draws`."""
        return self.mean + self.factor.draws(noise)

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row; arguments as in `SparsePrecision.predictor_variance`."""
        return self.factor.predictor_variance(rows)
