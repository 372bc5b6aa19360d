"""A Gaussian of coefficients in other units of their columns, and of effects relative to their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cavity._types import FloatArray, IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    r"""Coefficients :math:`\theta_j / s_j` and, last, an intercept less :math:`\sum_j c_j \theta_j / s_j`.

    Then the mean effect of the levels of every column of categories goes from the effects to the intercept. Rows that
    have one level of every column and a constant have the same predictors.

    Parameters
    ----------
    center, unit
        The numbers c and s, one per column.
    intercept
        Whether there is an intercept, the last coefficient; without one, nothing is moved to it.
    levels
        Columns of the levels of every column of categories, the last of which is for unknown ones and does not count
        in the mean.
    """

    center: FloatArray
    unit: FloatArray
    intercept: bool
    levels: tuple[IndexArray, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether coefficients stay what they are."""
        moves = self.intercept and bool(self.levels)
        return not moves and not np.any(self.center) and bool(np.all(self.unit == 1.0))

    def coefficients(self, values: FloatArray) -> FloatArray:
        """Change vectors of coefficients.

        Parameters
        ----------
        values
            Vectors of coefficients, one per column.
        """
        d, found = self.unit.size, np.array(values, dtype=np.float64)
        found[:d] /= self.unit[:, None]
        if self.intercept:
            moved = np.flatnonzero(self.center)
            found[d] -= self.center[moved] @ found[moved]
            for columns in self.levels:
                mean = np.mean(found[columns[:-1]], axis=0)
                found[columns] -= mean
                found[d] += mean
        return found

    def rows(self, rows: Any) -> Any:
        """Weights of the coefficients before the change in combinations of those after it.

        Parameters
        ----------
        rows
            Combinations ``(n, dim)`` of the coefficients after the change, dense or sparse.
        """
        d = self.unit.size
        scales = 1.0 / np.append(self.unit, [1.0] * self.intercept)
        if not sparse.issparse(rows):
            found = np.array(rows, dtype=np.float64)
            if self.intercept:
                for columns in self.levels:
                    lacking = found[:, d] - np.sum(found[:, columns], axis=1)
                    found[:, columns[:-1]] += (lacking / (columns.size - 1))[:, None]
                found[:, :d] -= found[:, d:] * self.center
            return found * scales
        found = sparse.csr_array(rows, dtype=np.float64)
        if self.intercept:
            constant = found[:, [d]]
            for columns in self.levels:
                lacking = constant.toarray().ravel() - np.asarray(found[:, columns].sum(axis=1)).ravel()
                if np.any(np.abs(lacking) > 1e-12):
                    return sparse.csr_array(self.rows(found.toarray()))
            moved = np.flatnonzero(self.center)
            if moved.size:
                places = (np.zeros(moved.size, dtype=np.intp), moved)
                found = sparse.csr_array(found - constant @ sparse.csr_array((self.center[moved], places), (1, d + 1)))
        return sparse.csr_array(found @ sparse.diags_array(scales))


@dataclass(frozen=True, slots=True, eq=False)
class AffineGaussian:
    """The Gaussian of changed coefficients.

    Parameters
    ----------
    inner
        The Gaussian of the coefficients before the change, of any kind.
    change
        What is changed.
    """

    inner: Any
    change: Change

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.inner.dim)

    @property
    def log_mass(self) -> float:
        """Logarithm of the integral."""
        return float(self.inner.log_mass)

    @property
    def mean(self) -> FloatArray:
        """Mean of the normalised density."""
        return np.asarray(self.change.coefficients(self.inner.mean[:, None])[:, 0])

    @property
    def variance(self) -> FloatArray:
        """Variances of the normalised density."""
        change, d = self.change, self.change.unit.size
        found = self.inner.variance / np.append(np.square(change.unit), [1.0] * change.intercept)
        if not change.intercept:
            return np.asarray(found)
        for columns in change.levels:
            weights = np.zeros(self.dim)
            weights[columns[:-1]] = 1.0 / (columns.size - 1)
            shared = self.inner.covariance_with(weights)
            found[columns] += float(weights @ shared) - 2.0 * shared[columns]
        found[d] = self.predictor_variance(np.eye(1, d + 1, d))[0]
        return np.asarray(np.maximum(found, 0.0))

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the normalised density."""
        half = self.change.coefficients(np.asarray(self.inner.covariance))
        return self.change.coefficients(np.ascontiguousarray(half.T))

    def draws(self, noise: FloatArray) -> FloatArray:
        """Draw from the normalised density; arguments as in `FactorialGaussian.draws`."""
        return self.change.coefficients(self.inner.draws(noise).T).T

    def predictor_variance(self, rows: Any) -> FloatArray:
        """Variance of the linear predictor of every row; arguments as in `FactorialGaussian.predictor_variance`."""
        found: FloatArray = self.inner.predictor_variance(self.change.rows(rows))
        return found
