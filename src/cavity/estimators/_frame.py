r"""The coordinates in which the posterior factorises, and the way back to the user's columns.

With prior standard deviations :math:`S` and an orthonormal basis :math:`V`, the coefficients are
:math:`\theta = S V \psi`, and EP works on :math:`\psi`, whose prior has unit variance in every direction: in scaled
coordinates an isotropic prior stays one when it is turned. Without a basis EP works on :math:`\theta` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg.blas import dsyrk

from cavity.correlated import CorrelatedGaussian
from cavity.estimators._design import squared, with_intercept
from cavity.gaussian import FactorialGaussian

FloatArray = NDArray[np.float64]
Posterior = FactorialGaussian | CorrelatedGaussian

# Rows turned at a time, so that they are still in the cache when they are written.
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """Coordinates of a model.

    Parameters
    ----------
    features
        Number of the user's columns.
    intercept
        Whether a constant column comes after them.
    prior
        Prior in the user's coordinates, the intercept included.
    basis
        Orthonormal matrix :math:`V`, or None.
    """

    features: int
    intercept: bool
    prior: FactorialGaussian
    basis: FloatArray | None = None

    @property
    def inner_prior(self) -> FactorialGaussian:
        """Prior of what EP works on."""
        if self.basis is None:
            return self.prior
        return FactorialGaussian.from_moments(self.inner(self.prior.mean), 1.0)

    def rows(self, X: Any, out: Any = None) -> Any:
        """Rows as EP sees them; ``out`` as in `with_intercept`."""
        if self.basis is None:
            return with_intercept(X, out) if self.intercept else X
        turn = self._turn()
        turned = np.empty((X.shape[0], turn.shape[1]))
        for i in range(0, X.shape[0], _BLOCK):
            block = turned[i : i + _BLOCK]
            block[:] = X[i : i + _BLOCK] @ turn[: self.features]
            if self.intercept:
                block += turn[self.features]
        return turned

    def inner(self, point: FloatArray) -> FloatArray:
        """Coordinates that EP works on, of a point in the user's."""
        return point if self.basis is None else self.basis.T @ (point / self.prior.std)

    def mean(self, posterior: Posterior) -> FloatArray:
        """Posterior means in the user's coordinates."""
        return posterior.mean if self.basis is None else self._turn() @ posterior.mean

    def variance(self, posterior: Posterior) -> FloatArray:
        """Posterior variances in the user's coordinates."""
        return posterior.variance if self.basis is None else posterior.spread_along(self._turn())

    def covariance(self, posterior: Posterior) -> FloatArray:
        """Posterior covariances in the user's coordinates."""
        return self.opened(posterior).covariance

    def draws(self, posterior: Posterior, noise: FloatArray) -> FloatArray:
        """Draws in the user's coordinates from standard normal numbers, a draw a row."""
        inner = posterior.draws(noise)
        return inner if self.basis is None else inner @ self._turn().T

    def latent(self, X: Any, posterior: Posterior) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictor at rows."""
        if self.basis is not None or isinstance(posterior, CorrelatedGaussian):
            rows = self.rows(X)
            return rows @ posterior.mean, posterior.spread_along(rows)
        m, v, d = posterior.mean, posterior.variance, self.features
        mean = np.asarray(X @ m[:d], dtype=np.float64) + (m[d] if self.intercept else 0.0)
        variance = np.asarray(squared(X) @ v[:d], dtype=np.float64) + (v[d] if self.intercept else 0.0)
        return mean, variance

    def opened(self, posterior: Posterior) -> CorrelatedGaussian:
        """Give a posterior in the user's coordinates, its covariance written out."""
        if isinstance(posterior, CorrelatedGaussian):
            return posterior
        return CorrelatedGaussian.of(posterior, None if self.basis is None else self._turn())

    def _turn(self) -> FloatArray:
        """Return the matrix from inner to the user's coordinates."""
        assert self.basis is not None
        turn: FloatArray = self.prior.std[:, None] * self.basis
        return turn


def principal_basis(X: Any, prior: FactorialGaussian, intercept: bool) -> FloatArray:
    """Principal directions of the rows, in coordinates divided by the prior's standard deviations.

    Complete: directions that the rows do not span come last. Costs one product of the rows with themselves and one
    eigenvalue problem, O(n d² + d³).
    """
    std = prior.std
    gram = np.zeros((std.size, std.size), order="F")
    for i in range(0, X.shape[0], _BLOCK):
        rows = with_intercept(X[i : i + _BLOCK]) if intercept else X[i : i + _BLOCK]
        rows = rows.toarray() if sparse.issparse(rows) else np.asarray(rows, dtype=np.float64)
        gram = dsyrk(1.0, rows.T, beta=1.0, c=gram, overwrite_c=True)
    return directions(np.triu(gram) + np.triu(gram, 1).T, std)


def directions(gram: FloatArray, std: FloatArray) -> FloatArray:
    """Eigenvectors of a matrix in coordinates divided by these deviations, those of large eigenvalues first."""
    scaled = gram * (std[:, None] * std)
    scale = np.max(np.diag(scaled), initial=0.0)
    if not 0.0 < scale < np.inf or not np.all(np.isfinite(scaled)):
        return np.eye(std.size)
    return np.ascontiguousarray(np.linalg.eigh(scaled / scale)[1][:, ::-1])


def completed_basis(given: Any, features: int, intercept: bool) -> FloatArray:
    """Check a user's orthonormal columns, and complete them to a basis of all coordinates."""
    columns = np.asarray(given, dtype=np.float64)
    if columns.ndim != 2 or columns.shape[0] != features or not 1 <= columns.shape[1] <= features:
        raise ValueError(
            f"basis must be 'auto', 'pca', 'curvature', None or a matrix with {features} rows, one a feature, and at "
            f"most as many orthonormal columns, got shape {columns.shape}"
        )
    if not np.allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-8):
        raise ValueError("basis must have orthonormal columns; np.linalg.qr(basis)[0] makes them so")
    full = np.linalg.qr(np.concatenate([columns, np.eye(features)], axis=1))[0][:, :features]
    full[:, : columns.shape[1]] = columns
    width = features + int(intercept)
    basis = np.eye(width)
    basis[:features, :features] = full
    return basis
