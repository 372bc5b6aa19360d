r"""Gaussians of many coefficients that few rows inform, kept in the space of the rows.

With a prior of independent coefficients, :math:`\theta \sim N(\mu, V)`, and n rows X, a posterior that is prior times
sites of the rows is

.. math:: m = \mu + V X^\top a, \qquad \Sigma = V - V X^\top (M M^\top - N N^\top) X V,

with a vector a and matrices M, N of n rows each. Nothing of the size of columns × columns is ever made: means,
variances, draws and covariances are passes over the columns, at :math:`O(n^2 d)` at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import eigh, solve_triangular
from scipy.linalg.blas import dgemm, dsyrk

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.affine import AffineGaussian, Change
from cavity.gaussians.mixture import GaussianMixture

# Entries of a dense block of columns that are held at once, unless the space of the rows is larger than that: 1 MB.
_AT_ONCE = 1 << 17


def symmetric(lower: FloatArray) -> FloatArray:
    """Complete a matrix of which the lower triangle is given, in place."""
    upper = np.triu_indices(len(lower), 1)
    lower[upper] = lower.T[upper]
    return lower


@dataclass(frozen=True, eq=False)
class WideRows:
    """Rows ``(x - center) / unit`` of a matrix, a constant column last if there is an intercept.

    Parameters
    ----------
    X
        The matrix, dense or CSR, in any order and precision. A dense one is never copied as a whole; of a sparse one a
        CSC of double precision is made.
    order
        Which rows of it, in this order.
    center, unit
        Centre and unit of every column.
    intercept
        Whether a constant column follows.
    """

    X: Any
    order: IndexArray
    center: FloatArray
    unit: FloatArray
    intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the constant one."""
        return len(self.order), self.unit.size + int(self.intercept)

    def __getstate__(self) -> dict[str, Any]:
        """Keep these rows and no others, and nothing that follows from them."""
        kept = self.X if self._is_whole else self.X[self.order]
        names = ("center", "unit", "intercept")
        return {"X": kept, "order": np.arange(kept.shape[0]), **{name: getattr(self, name) for name in names}}

    @cached_property
    def _is_whole(self) -> bool:
        """Whether these are all rows of the matrix as they are stored."""
        return bool(np.array_equal(self.order, np.arange(self.X.shape[0])))

    def in_columns(self, center: FloatArray, unit: FloatArray) -> WideRows:
        """Bring the columns to other centres and units."""
        return WideRows(self.X, self.order, center, unit, self.intercept)

    def plus(self, other: WideRows) -> WideRows:
        """Append other rows, whose columns are in the same units."""
        both = [rows.X if rows._is_whole else rows.X[rows.order] for rows in (self, other)]
        if any(sparse.issparse(one) for one in both):
            X = sparse.csr_array(sparse.vstack([sparse.csr_array(one) for one in both], format="csr"))
        else:
            X = np.vstack(both)
        return WideRows(X, np.arange(X.shape[0]), self.center, self.unit, self.intercept)

    @cached_property
    def _sparse(self) -> Any:
        """Columns of a sparse matrix without centre, in their units, with the constant one; empty for the others."""
        if not sparse.issparse(self.X):
            return None
        chosen = self.X if self._is_whole else self.X[self.order]
        data = chosen.data / self.unit[chosen.indices]
        data[self.center[chosen.indices] != 0.0] = 0.0
        found = sparse.csr_array((data, chosen.indices, chosen.indptr), shape=chosen.shape)
        if np.any(self.center):
            found = found.copy()
            found.eliminate_zeros()
        found = found.tocsc()
        if not self.intercept:
            return found
        return sparse.csc_array(sparse.hstack([found, np.ones((found.shape[0], 1))], format="csc"))

    @cached_property
    def _centred(self) -> tuple[IndexArray, Any]:
        """Columns of a sparse matrix that have a centre, and these columns as they are."""
        moved = np.flatnonzero(self.center)
        return moved, sparse.csc_array(self.X[:, moved])

    def _full(self, columns: IndexArray | None = None) -> Iterator[tuple[Any, FloatArray]]:
        """Dense blocks ``(rows, some columns)`` in double precision, and which columns they are.

        Of a sparse matrix these are the columns that have a centre; ``columns``, in order, chooses among all.
        """
        n, d = self.shape
        if self._sparse is not None:
            if not np.any(self.center):
                return
            places, X = self._centred
            inside = None if columns is None else np.isin(places, columns)
            names, source = places, np.arange(places.size)
            if inside is not None:
                names, source = places[inside], source[inside]
        else:
            X, names = self.X, np.arange(d) if columns is None else columns
            source = names
        length = max(1, max(_AT_ONCE, n * n) // max(n, 1))
        for i in range(0, names.size, length):
            which, where = names[i : i + length], source[i : i + length]
            follows = bool(which[-1] + 1 - which[0] == which.size)
            of_matrix = where[: np.searchsorted(which, self.unit.size)]
            block = np.ones((n, which.size))
            if of_matrix.size:
                chosen = slice(int(of_matrix[0]), int(of_matrix[-1]) + 1) if follows else of_matrix
                part = X[:, chosen]
                part = part.toarray() if sparse.issparse(part) else part
                own = slice(0, of_matrix.size)
                block[:, own] = part if self._is_whole else part[self.order]
                block[:, own] -= self.center[which[own]]
                block[:, own] /= self.unit[which[own]]
            yield (slice(int(which[0]), int(which[-1]) + 1) if follows else which), block

    def gram(self, weights: FloatArray, columns: IndexArray | None = None) -> FloatArray:
        r""":math:`X D X^\top` over all columns, or some, with a positive weight for each of these.

        Parameters
        ----------
        weights
            The weights, one per column of all.
        columns
            Which columns count, in order; all by default.
        """
        n, roots = self.shape[0], np.sqrt(weights)
        total = np.zeros((n, n), order="F")
        for where, block in self._full(columns):
            block *= roots[where]
            total = dsyrk(1.0, block.T, trans=1, beta=1.0, c=total, lower=1, overwrite_c=1)
        total = symmetric(total)
        if self._sparse is not None:
            scaled = self._sparse @ sparse.diags_array(self._among(roots, columns))
            product = (scaled @ scaled.T).tocoo()
            total[product.coords] += product.data
        return total

    def _among(self, weights: FloatArray, columns: IndexArray | None) -> FloatArray:
        if columns is None:
            return weights
        found = np.zeros_like(weights)
        found[columns] = weights[columns]
        return found

    def times(self, values: FloatArray) -> FloatArray:
        """Product with columns of coefficients ``(d, k)``."""
        found = np.zeros((self.shape[0], values.shape[1]))
        for where, block in self._full():
            found += block @ values[where]
        return found if self._sparse is None else np.asarray(found + self._sparse @ values)

    def transposed_times(self, values: FloatArray) -> FloatArray:
        """Product of the transpose with columns of numbers per row ``(n, k)``."""
        found = np.empty((self.shape[1], values.shape[1]))
        if self._sparse is not None:
            found[:] = self._sparse.T @ values
        for where, block in self._full():
            found[where] = block.T @ values
        return found

    def squares(self, root: FloatArray, columns: IndexArray | None = None) -> FloatArray:
        r"""Diagonal of :math:`X^\top R R^\top X` for a matrix R of n rows, a block of columns at a time.

        Parameters
        ----------
        root
            The matrix R.
        columns
            Columns that are wanted, in order; all by default.
        """
        found, right = np.zeros(self.shape[1]), np.asfortranarray(root)
        if self._sparse is not None:
            kept = np.arange(self.shape[1]) if columns is None else columns
            length = max(1, max(_AT_ONCE, right.size) // max(right.shape[1], 1))
            for i in range(0, kept.size, length):
                products = self._sparse[:, kept[i : i + length]].T @ root
                found[kept[i : i + length]] = np.einsum("ij,ij->i", products, products)
        for where, block in self._full(columns):
            products = dgemm(1.0, right, block.T, trans_a=1, trans_b=1)
            found[where] = np.einsum("ij,ij->j", products, products)
        return found if columns is None else found[columns]

    def products_with(self, rows: Any, weights: FloatArray) -> FloatArray:
        r""":math:`Y D X^\top` for other rows Y in the same units, dense or sparse, with a weight per column."""
        if sparse.issparse(rows):
            rows = sparse.csr_array(rows @ sparse.diags_array(weights))
        found = np.zeros((rows.shape[0], self.shape[0]))
        for where, block in self._full():
            part = rows[:, where]
            found += part @ block.T if sparse.issparse(rows) else (part * weights[where]) @ block.T
        if self._sparse is not None:
            product = (rows if sparse.issparse(rows) else rows * weights) @ self._sparse.T
            found += product.toarray() if sparse.issparse(product) else product
        return found


@dataclass(frozen=True, eq=False)
class ProcessGaussian:
    r"""A Gaussian process at some inputs, with what it takes to know it at any others.

    With the prior covariance k of other inputs and these, the mean at the others is :math:`k a` and their covariance
    that of the prior less :math:`k (M M^\top - N N^\top) k^\top`, for every one of several functions.

    Parameters
    ----------
    mean, variance
        Means and variances of the functions at the inputs, one function after the other.
    weights
        The vector a of every function, ``(functions, n)``.
    narrowed, widened
        The matrices M and N of every function, ``(functions, n, m)``.
    log_mass
        Logarithm of the integral.
    """

    mean: FloatArray
    variance: FloatArray
    weights: FloatArray
    narrowed: FloatArray
    widened: FloatArray
    log_mass: float

    def predictors(self, shared: FloatArray, own: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means ``(m, functions)`` and covariances ``(m, functions, functions)`` at other inputs.

        Parameters
        ----------
        shared
            Prior covariances ``(m, n)`` of the others with these.
        own
            Prior variances ``(m,)`` of the others.
        """
        q = len(self.weights)
        less, more = shared @ self.narrowed, shared @ self.widened
        covariance = np.einsum("kmj,lmj->mkl", more, more) - np.einsum("kmj,lmj->mkl", less, less)
        covariance[:, np.arange(q), np.arange(q)] += own[:, None]
        return shared @ self.weights.T, covariance

    def covariance(self, shared: FloatArray, own: FloatArray) -> FloatArray:
        """Covariance ``(functions, m, functions, m)`` at other inputs, of which ``own`` is the prior covariance.

        Parameters
        ----------
        shared, own
            As in `predictors`.
        """
        q, m = len(self.weights), len(own)
        less, more = (np.concatenate(list(shared @ half)) for half in (self.narrowed, self.widened))
        return np.asarray(np.kron(np.eye(q), own) + more @ more.T - less @ less.T).reshape(q, m, q, m)

    def slopes(self, derivatives: FloatArray) -> FloatArray:
        """Gradient of the evidence in the hyperparameters of a prior covariance that all functions have.

        Parameters
        ----------
        derivatives
            Derivatives of the prior covariance ``(n, n, hyperparameters)``.
        """
        pulls: Any = 0.0
        for a, M, N in zip(self.weights, self.narrowed, self.widened, strict=True):
            pulls = pulls + np.outer(a, a) - dgemm(1.0, M.T, M.T, trans_a=1) + N @ N.T
        return np.asarray(0.5 * np.tensordot(pulls, derivatives, axes=2))


@dataclass(frozen=True, eq=False)
class RowsGaussian:
    r"""A Gaussian of coefficients in the space of the rows, always proper; no array may be written afterwards.

    Parameters
    ----------
    rows
        The rows. Several linear predictors of the same rows have copies of all coefficients, one after the other.
    prior_mean, prior_variance
        Mean and variance of every coefficient before the rows.
    weights
        The vector a, one number per row, of further predictors behind those of the first.
    narrowed
        The matrix M, whose columns are as many as there are sites.
    triangle
        A triangular matrix L with :math:`L L^\top = I - M^\top X V X^\top M`, by which draws are made; None where it
        has to be found.
    widened
        The matrix N, of sites of negative precision.
    log_mass
        Logarithm of the integral.
    """

    rows: WideRows
    prior_mean: FloatArray
    prior_variance: FloatArray
    weights: FloatArray
    narrowed: FloatArray
    triangle: FloatArray | None
    widened: FloatArray
    log_mass: float

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.prior_mean.size)

    @property
    def copies(self) -> int:
        """Number of linear predictors."""
        return self.dim // self.rows.shape[1]

    @property
    def is_proper(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.isfinite(np.sum(self.weights) + np.sum(self.narrowed) + np.sum(self.widened) + self.log_mass))

    def _up(self, values: FloatArray) -> FloatArray:
        """Predictors of the rows, of vectors of coefficients."""
        copies = values.reshape(self.copies, self.rows.shape[1], values.shape[1])
        return np.concatenate([self.rows.times(one) for one in copies])

    def _down(self, values: FloatArray) -> FloatArray:
        """Transpose of `_up`."""
        copies = values.reshape(self.copies, self.rows.shape[0], values.shape[1])
        return np.concatenate([self.rows.transposed_times(one) for one in copies])

    @cached_property
    def mean(self) -> FloatArray:
        """Mean of the normalised density."""
        return np.asarray(self.prior_mean + self.prior_variance * self._down(self.weights[:, None])[:, 0])

    @cached_property
    def variance(self) -> FloatArray:
        """Variances of the normalised density: one pass over the columns."""
        return self.prior_variance - np.square(self.prior_variance) * self.explained(self.narrowed, self.widened)

    def explained(self, narrowed: FloatArray, widened: FloatArray) -> FloatArray:
        r"""Diagonal of :math:`X^\top (M M^\top - N N^\top) X` for every coefficient."""
        n, found = self.rows.shape[0], []
        for i in range(self.copies):
            part = slice(i * n, (i + 1) * n)
            less = self.rows.squares(widened[part]) if widened.shape[1] else 0.0
            found.append(self.rows.squares(narrowed[part]) - less)
        return np.concatenate(found)

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the normalised density."""
        return np.sqrt(self.variance)

    def covariance_with(self, weights: FloatArray) -> FloatArray:
        """Covariances of all coordinates with combinations, ``(dim,)`` or ``(dim, k)``.

        Parameters
        ----------
        weights
            Weights of the coordinates in the combinations.
        """
        right = (self.prior_variance * weights.T).T.reshape(self.dim, -1)
        inside = self._up(right)
        inside = self.narrowed @ (self.narrowed.T @ inside) - self.widened @ (self.widened.T @ inside)
        return np.asarray(right - self.prior_variance[:, None] * self._down(inside)).reshape(weights.shape)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density: all of its ``dim²`` numbers."""
        found = self.covariance_with(np.eye(self.dim))
        return 0.5 * (found + found.T)

    def draws(self, noise: FloatArray) -> FloatArray:
        r"""Draw from the normalised density; arguments as in `FactorialGaussian.draws`.

        With standard normal noise e and :math:`F = V^{1/2} X^\top` a draw is the mean plus
        :math:`V^{1/2} (e - F M (I + L)^{-1} M^\top F^\top e)`: the square of the matrix in brackets is
        :math:`I - F M M^\top F^\top`. Where there are sites of negative precision, e has been stretched before.
        """
        roots, e = np.sqrt(self.prior_variance)[:, None], noise.T
        kernel = self._kernel() if self.widened.shape[1] or self.triangle is None else np.empty((0, 0))
        identity = np.eye(self.narrowed.shape[1])
        triangle: Any = self.triangle
        if triangle is None:
            triangle = np.linalg.cholesky(identity - self.narrowed.T @ kernel @ self.narrowed)
        if self.widened.shape[1]:
            pull = self.narrowed @ solve_triangular(identity + triangle, self.narrowed.T, lower=True)
            inner = np.linalg.solve(np.eye(len(kernel)) - pull @ kernel, self.widened)
            values, vectors = eigh(inner.T @ kernel @ inner)
            values = np.maximum(values, 0.0)
            stretch = inner @ (vectors / (1.0 + np.sqrt(1.0 + values))) @ vectors.T
            e = e + roots * self._down(stretch @ (inner.T @ self._up(roots * e)))
        inside = solve_triangular(identity + triangle, self.narrowed.T @ self._up(roots * e), lower=True)
        moved = e - roots * self._down(self.narrowed @ inside)
        return np.asarray((self.mean[:, None] + roots * moved).T)

    def _kernel(self) -> FloatArray:
        """Prior covariance of the predictors of all rows."""
        (n, d), copies = self.rows.shape, self.copies
        found = np.zeros((n * copies, n * copies))
        for i in range(copies):
            own = slice(i * n, (i + 1) * n)
            found[own, own] = self.rows.gram(self.prior_variance[i * d : (i + 1) * d])
        return found

    def predictors(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means ``(m, copies)`` and covariances ``(m, copies, copies)`` of the linear predictors of other rows.

        Parameters
        ----------
        rows
            Rows ``(m, d)`` in the same units, dense or sparse.
        """
        (n, d), q, m = self.rows.shape, self.copies, rows.shape[0]
        means = np.asarray(rows @ self.mean.reshape(q, d).T)
        covariance, length = np.zeros((m, q, q)), max(1, (1 << 22) // max(q * n, 1))
        for start in range(0, m, length):
            part = rows[start : start + length]
            squares = part.power(2) if sparse.issparse(part) else np.square(part)
            narrowed, widened = [], []
            for k in range(q):
                variance = self.prior_variance[k * d : (k + 1) * d]
                shared = self.rows.products_with(part, variance)
                narrowed.append(shared @ self.narrowed[k * n : (k + 1) * n])
                widened.append(shared @ self.widened[k * n : (k + 1) * n])
                covariance[start : start + length, k, k] = np.asarray(squares @ variance)
            covariance[start : start + length] -= np.einsum("kmj,lmj->mkl", narrowed, narrowed)
            covariance[start : start + length] += np.einsum("kmj,lmj->mkl", widened, widened)
        return means, covariance

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row; arguments as in `FactorialGaussian.predictor_variance`.

        Of several predictors, rows are combinations of the coefficients of all.
        """
        if self.copies == 1:
            return np.asarray(np.maximum(self.predictors(rows)[1][:, 0, 0], 0.0))
        right = np.asarray(rows).T
        return np.asarray(np.maximum(np.einsum("ij,ij->j", right, self.covariance_with(right)), 0.0))

    def combination(self, weights: FloatArray) -> RowsGaussian:
        """Gaussian of a combination of several linear predictors, whose coefficients have the same prior, or of one.

        Parameters
        ----------
        weights
            Weights of the predictors.
        """
        (n, d), size = self.rows.shape, float(weights @ weights)
        first = int(np.flatnonzero(weights)[0])
        mean = weights @ self.prior_mean.reshape(-1, d)

        def combined(parts: FloatArray) -> FloatArray:
            return np.asarray(np.tensordot(weights, parts.reshape(weights.size, n, -1), axes=1) / size)

        return RowsGaussian(
            self.rows,
            mean,
            size * self.prior_variance[first * d : (first + 1) * d],
            combined(self.weights)[:, 0],
            combined(self.narrowed),
            None,
            combined(self.widened),
            self.log_mass,
        )


@dataclass(frozen=True, eq=False)
class JointRowsGaussian:
    """Coefficients of several linear predictors in changed units, as one Gaussian or a mixture of some.

    Parameters
    ----------
    parts
        The Gaussian, or several with weights that sum to one.
    change
        What is changed in the coefficients of every predictor.
    weights
        Weights of the parts.
    """

    parts: RowsGaussian | tuple[RowsGaussian, ...]
    change: Change
    weights: FloatArray = field(default_factory=lambda: np.ones(1))

    @classmethod
    def mixture(cls, mixture: GaussianMixture) -> JointRowsGaussian:
        """Join what a mixture has of these."""
        each = mixture.parts
        return cls(tuple(part.parts for part in each), each[0].change, mixture.weights)

    @property
    def _all(self) -> tuple[RowsGaussian, ...]:
        return self.parts if isinstance(self.parts, tuple) else (self.parts,)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self._all[0].dim

    @property
    def log_mass(self) -> float:
        """Logarithm of the integral."""
        return self._all[0].log_mass

    def marginals(self, mix: FloatArray) -> tuple[Any, ...]:
        """Gaussians or mixtures of combinations of the predictors, each for itself.

        Parameters
        ----------
        mix
            Weights of the predictors, a combination per row.
        """
        found: list[Any] = []
        for row in mix:
            each = tuple(AffineGaussian(part.combination(row), self.change) for part in self._all)
            found.append(each[0] if len(each) == 1 else GaussianMixture(self.weights, each, each[0].log_mass))
        return tuple(found)

    def draws(self, mix: FloatArray, noise: FloatArray) -> FloatArray:
        """Draws of the coefficients of combinations of the predictors, ``(draws, combinations, columns)``.

        Parameters
        ----------
        mix
            As in `marginals`.
        noise
            Standard normal numbers ``(draws, dim)``.
        """
        drawn = GaussianMixture(self.weights, self._all, self.log_mass).draws(noise)
        copies = drawn.reshape(len(noise), mix.shape[1], -1).transpose(1, 2, 0)
        return np.asarray(np.einsum("pk,kcn->npc", mix, np.array([self.change.coefficients(one) for one in copies])))

    def predictors(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means ``(m, predictors)`` and covariances ``(m, predictors, predictors)`` at rows as they come.

        Parameters
        ----------
        rows
            Rows ``(m, d)``, dense or sparse.
        """
        inner = self.change.rows(rows)
        each = [part.predictors(inner) for part in self._all]
        mean = sum(weight * one for weight, (one, _) in zip(self.weights, each, strict=True))
        covariance = sum(
            weight * (spread + np.einsum("mk,ml->mkl", one - mean, one - mean))
            for weight, (one, spread) in zip(self.weights, each, strict=True)
        )
        return np.asarray(mean), np.asarray(covariance)

    def predictor_variance(self, rows: FloatArray) -> FloatArray:
        """Variances of combinations ``(m, dim)`` of all coefficients.

        Parameters
        ----------
        rows
            Their weights.
        """
        copies = rows.reshape(len(rows), self._all[0].copies, -1).transpose(1, 0, 2)
        inner = np.concatenate([self.change.rows(one) for one in copies], axis=1)
        means = np.array([inner @ part.mean for part in self._all])
        variances = np.array([part.predictor_variance(inner) for part in self._all])
        return np.asarray(self.weights @ (variances + np.square(means - self.weights @ means)))
