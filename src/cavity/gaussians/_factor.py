r"""Numeric elimination of a sparse positive definite matrix, and the entries of its inverse on the pattern.

Backwards over the steps, :math:`\Sigma_{SC} = -W \Sigma_{CC}` and
:math:`\Sigma_{jj} = 1 / A_{jj} + w_j \Sigma_{CC} w_j^\top` need no entry of :math:`\Sigma_{CC}` outside the pattern of
the Schur complement (Takahashi's recursion, one set at a time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, lapack

from cavity._types import FloatArray
from cavity.gaussians._elimination import Elimination, Step


@dataclass(frozen=True, eq=False, repr=False)
class Factor:
    """A factorised matrix; all vectors are in the order of elimination, with columns along the first axis.

    ``values`` is the flat array: pivots A and the entries of W. ``root`` is the lower Cholesky factor of the corner,
    which takes its place.
    """

    elimination: Elimination
    values: FloatArray
    root: FloatArray

    @cached_property
    def log_det(self) -> float:
        pivots = sum(float(np.sum(np.log(self.values[step.diagonal]))) for step in self.elimination.steps)
        return pivots + 2.0 * float(np.sum(np.log(np.diagonal(self.root))))

    def solve(self, right: FloatArray) -> FloatArray:
        x = np.array(right, dtype=np.float64)
        for step, pivots, w in self._eliminated():
            x[step.last :] -= w.T @ x[step.first : step.last]
            x[step.first : step.last] /= _along(pivots, x)
        corner = x[self.elimination.layout.inner :]
        if corner.size:
            corner[...] = lapack.dpotrs(self.root, corner, lower=1)[0]
        return self._back(x)

    def draw(self, noise: FloatArray) -> FloatArray:
        """Turn standard normal numbers into vectors whose covariance is the inverse."""
        x = np.array(noise, dtype=np.float64)
        for step, pivots, _ in self._eliminated():
            x[step.first : step.last] /= np.sqrt(_along(pivots, x))
        corner = x[self.elimination.layout.inner :]
        if corner.size:
            corner[...] = lapack.dtrtrs(self.root, corner, lower=1, trans=1)[0]
        return self._back(x)

    def squares(self, rows: sparse.csr_array) -> FloatArray:
        """Variances of linear combinations, one per row of a sparse matrix.

        Rows are eliminated as the matrix was, and stay sparse: no solve, whatever columns meet in them.
        """
        result = np.zeros(rows.shape[0])
        for step, pivots, w in self._eliminated():
            size = step.last - step.first
            head, rows = rows[:, :size], rows[:, size:] - rows[:, :size] @ w
            result += head.power(2) @ (1.0 / pivots)
        if self.elimination.layout.corner:
            result += _quadratic(rows, self.corner_inverse)
        return result

    @cached_property
    def inverse(self) -> FloatArray:
        """Entries of the inverse on the pattern, in a flat array of the same layout."""
        layout = self.elimination.layout
        result = np.empty(layout.size)
        result[layout.corner_start :] = self.corner_inverse.ravel()
        for step in reversed(self.elimination.steps):
            pivots, w = self.values[step.diagonal], self.values[step.entries]
            z = self._times_inverse(step, w, result[step.stop :])
            result[step.entries] = -z
            result[step.diagonal] = 1.0 / pivots + np.bincount(step.rows, weights=w * z, minlength=pivots.size)
        return result

    @cached_property
    def corner_inverse(self) -> FloatArray:
        """Inverse of the corner, both triangles."""
        if not self.root.size:
            return np.zeros((0, 0))
        result: FloatArray = lapack.dpotri(self.root, lower=1)[0].T
        at_once = 256  # columns: a square of them fits into the cache
        for start in range(0, result.shape[0], at_once):
            part = slice(start, start + at_once)
            result[part, :start] = result[:start, part].T
            result[part, part] = np.triu(result[part, part]) + np.triu(result[part, part], 1).T
        return result

    def _times_inverse(self, step: Step, w: FloatArray, inverse: FloatArray) -> FloatArray:
        """Entries of W times the inverse of the rest, on the pattern of W."""
        if step.pairs is None:
            rows = _dense(self.elimination, step, w) @ self.corner_inverse
            return np.asarray(rows[step.rows, step.columns - (self.elimination.layout.inner - step.last)])
        met = inverse[step.pairs.targets]
        upper = sparse.csr_array((met, step.pairs.partners, step.pairs.indptr), shape=(w.size, w.size))
        # Pairs are kept once; those of an entry with itself are the first of their rows.
        return np.asarray(upper @ w + upper.T @ w - met[step.pairs.indptr[:-1]] * w)

    def _back(self, x: FloatArray) -> FloatArray:
        for step, _, w in reversed(list(self._eliminated())):
            x[step.first : step.last] -= w @ x[step.last :]
        return x

    def _eliminated(self) -> Iterator[tuple[Step, FloatArray, sparse.csr_array]]:
        """Go through the steps with their pivots and W."""
        total = self.elimination.layout.order.size
        for step in self.elimination.steps:
            shape = (step.last - step.first, total - step.last)
            w = sparse.csr_array((self.values[step.entries], step.columns, step.indptr), shape=shape)
            yield step, self.values[step.diagonal], w


def eliminate(elimination: Elimination, values: FloatArray) -> Factor:
    """Factorise the matrix whose entries are given in the flat array, which is overwritten."""
    for step in elimination.steps:
        pivots, entries = values[step.diagonal], values[step.entries]
        if not np.all(pivots > 0.0):
            raise LinAlgError("the precision matrix is not positive definite")
        w = entries / pivots[step.rows]
        rest = values[step.stop :]
        if step.pairs is None:
            rows = _dense(elimination, step, entries / np.sqrt(pivots)[step.rows])
            values[elimination.layout.corner_start :] -= (rows.T @ rows).ravel()
        elif step.pairs.targets.size:
            products = np.repeat(w, np.diff(step.pairs.indptr)) * entries[step.pairs.partners]
            rest -= np.bincount(step.pairs.targets, weights=products, minlength=rest.size)
        entries[...] = w
    corner = elimination.layout.corner
    if not corner:
        return Factor(elimination, values, np.zeros((0, 0)))
    # The upper triangle in C order is the lower one in the order of LAPACK.
    square = values[elimination.layout.corner_start :].reshape(corner, corner).T
    root, failed = lapack.dpotrf(square, lower=1, overwrite_a=1)
    if failed or not np.all(np.isfinite(np.diagonal(root))):
        raise LinAlgError("the precision matrix is not positive definite")
    return Factor(elimination, values, root)


def _dense(elimination: Elimination, step: Step, entries: FloatArray) -> FloatArray:
    """Rows of a step whose columns all lie in the corner, as a dense matrix."""
    columns = step.columns - (elimination.layout.inner - step.last)
    result = np.zeros((step.last - step.first, elimination.layout.corner))
    result[step.rows, columns] = entries
    return result


def _along(pivots: FloatArray, x: FloatArray) -> FloatArray:
    return pivots if x.ndim == 1 else pivots[:, None]


def _quadratic(rows: sparse.csr_array, matrix: FloatArray) -> FloatArray:
    """Quadratic form of every row, a bounded number of rows at once."""
    result = np.empty(rows.shape[0])
    size = max(1, 4_000_000 // matrix.shape[0])  # 32 MB of dense rows
    for start in range(0, result.size, size):
        part = rows[start : start + size]
        if part.nnz > 0.1 * part.shape[0] * part.shape[1]:  # a dense product is faster
            dense = part.toarray()
            result[start : start + size] = np.einsum("ij,ij->i", dense @ matrix, dense)
        else:
            result[start : start + size] = part.multiply(part @ matrix).sum(axis=1)
    return result
