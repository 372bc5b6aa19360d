r"""Natural parameters of the product of all sites, apart from any prior.

.. math:: e^{c + h^\top \theta - \frac12 \theta^\top G \theta}

They add, so two models are merged by adding theirs, older rows are forgotten by multiplying them, and a prior can be
replaced at any time. G is a matrix, a sparse matrix, or a vector (its diagonal), by how the posterior is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg.lapack import dpotrf, dpotrs, dtpttr, dtrtri

from cavity._types import FloatArray
from cavity.gaussians import SparseGaussian, SparsePrecision
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import LOG_2PI, FactorialGaussian, ImproperError
from cavity.terms.prior import Prior, StructuredPrior, upper_of

# A posterior, whatever the form of its covariance.
Gaussian = DenseGaussian | SparseGaussian | FactorialGaussian


class NaturalParameters(Protocol):
    """Natural parameters of a product of sites, whatever the form of G."""

    def posterior(self, prior: Prior) -> Gaussian:
        """Multiply by a prior; `ImproperError` if the product is improper."""

    def plus(self, other: Any) -> Any:
        """Add those of other rows."""

    def times(self, factor: float) -> Any:
        """Multiply by a factor: keep a share of the information."""

    def with_factor(self, log_factor: float) -> Any:
        """Multiply by a constant."""

    def moved(self, ratio: float, shift: FloatArray) -> Any:
        """Natural parameters of coefficients that are ``ratio`` times these, plus ``shift``."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseNatural:
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

    def posterior(self, prior: Prior) -> DenseGaussian:
        """Multiply by a prior."""
        precision: FloatArray = np.array(self.information, order="F")
        precision[np.diag_indices(prior.dim)] += prior.precision
        if isinstance(prior, StructuredPrior):
            left, right, values = prior.couplings
            precision[np.maximum(left, right), np.minimum(left, right)] += values
        linear = prior.shift + self.shift
        root, failed = dpotrf(precision, lower=1, clean=1, overwrite_a=1)
        if failed or not np.all(np.isfinite(np.diag(root))):
            raise ImproperError("prior times sites is not proper")
        mean, _ = dpotrs(root, linear, lower=1)
        inverse, _ = dtrtri(root, lower=1)
        log_det = 2.0 * float(np.sum(np.log(np.diag(root))))
        log_mass = _log_mass(self.log_scale + prior.log_scale, mean, linear, log_det)
        return DenseGaussian(mean, np.ascontiguousarray(inverse.T), log_mass)

    def plus(self, other: DenseNatural) -> DenseNatural:
        """Add those of other rows."""
        return DenseNatural(
            self.information + other.information, self.shift + other.shift, self.log_scale + other.log_scale
        )

    def with_factor(self, log_factor: float) -> DenseNatural:
        """Multiply by a constant."""
        return replace(self, log_scale=self.log_scale + log_factor)

    def times(self, factor: float) -> DenseNatural:
        """Multiply by a factor: keep a share of the information."""
        return DenseNatural(factor * self.information, factor * self.shift, factor * self.log_scale)

    def of_columns(self, change: Any) -> DenseNatural:
        """Natural parameters in other columns: ``change``, a sparse matrix, maps the shift to theirs."""
        information = change @ (change @ self.information).T
        return DenseNatural(0.5 * (information + information.T), change @ self.shift, self.log_scale)

    def moved(self, ratio: float, shift: FloatArray) -> DenseNatural:
        """Natural parameters of coefficients that are ``ratio`` times these, plus ``shift``."""
        G = self.information / ratio**2
        h, c = _moved(G @ shift, self.shift / ratio, self.log_scale, shift)
        return DenseNatural(G, h, c)


@dataclass(frozen=True, slots=True, eq=False)
class SparseNatural:
    """With the correlations of a sparse precision: ``information`` is the upper triangle as CSC.

    ``border`` names the columns that meet most others.
    """

    information: Any
    shift: FloatArray
    border: NDArray[np.int64]
    log_scale: float = 0.0

    def posterior(self, prior: Prior) -> SparseGaussian:
        """Multiply by a prior."""
        upper = sparse.csc_array(self.information + upper_of(prior))
        try:
            factor = SparsePrecision.of(upper, self.border)
        except np.linalg.LinAlgError as error:
            raise ImproperError("prior times sites is not proper") from error
        right = prior.shift + self.shift
        mean = factor.solve(right)
        return SparseGaussian(mean, factor, _log_mass(self.log_scale + prior.log_scale, mean, right, factor.log_det))

    def plus(self, other: SparseNatural) -> SparseNatural:
        """Add those of other rows."""
        border = np.union1d(self.border, other.border)
        information = sparse.csc_array(self.information + other.information)
        return SparseNatural(information, self.shift + other.shift, border, self.log_scale + other.log_scale)

    def with_factor(self, log_factor: float) -> SparseNatural:
        """Multiply by a constant."""
        return replace(self, log_scale=self.log_scale + log_factor)

    def times(self, factor: float) -> SparseNatural:
        """Multiply by a factor: keep a share of the information."""
        return SparseNatural(factor * self.information, factor * self.shift, self.border, factor * self.log_scale)

    def of_columns(self, change: Any) -> SparseNatural:
        """Natural parameters in other columns: ``change`` maps the shift to theirs."""
        change = sparse.csr_array(change)
        whole = self.information + sparse.triu(self.information, 1).T
        information = sparse.csc_array(sparse.triu(change @ whole @ change.T))
        return SparseNatural(information, change @ self.shift, self.border, self.log_scale)

    def moved(self, ratio: float, shift: FloatArray) -> SparseNatural:
        """Natural parameters of coefficients that are ``ratio`` times these, plus ``shift``."""
        G = self.information / ratio**2
        along = G @ shift + sparse.triu(G, 1).T @ shift
        h, c = _moved(along, self.shift / ratio, self.log_scale, shift)
        return SparseNatural(sparse.csc_array(G), h, self.border, c)


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalNatural:
    """As a product of one-dimensional Gaussians."""

    sites: FactorialGaussian

    @classmethod
    def zero(cls, dim: int) -> Self:
        """Natural parameters of no rows."""
        return cls(FactorialGaussian.uniform(dim))

    def posterior(self, prior: Any) -> FactorialGaussian:
        """Multiply by a prior of independent coefficients."""
        posterior: FactorialGaussian = prior * self.sites
        if not posterior.is_proper:
            raise ImproperError("prior times sites is not proper")
        return posterior

    def plus(self, other: DiagonalNatural) -> DiagonalNatural:
        """Add those of other rows."""
        return DiagonalNatural(self.sites * other.sites)

    def with_factor(self, log_factor: float) -> DiagonalNatural:
        """Multiply by a constant."""
        return replace(self, sites=replace(self.sites, log_scale=self.sites.log_scale + log_factor))

    def times(self, factor: float) -> DiagonalNatural:
        """Multiply by a factor: keep a share of the information."""
        return DiagonalNatural(self.sites**factor)

    def changed(self, factors: FloatArray, coupling: FloatArray) -> DiagonalNatural:
        """Natural parameters of other coefficients, of which these are multiples by factors.

        The last one here also has a part of the others, by ``coupling``; that part is taken at their means, since
        without correlations nothing else can be kept.
        """
        sites = self.sites
        shift, precision = factors * sites.shift, factors**2 * sites.precision
        if coupling.size:
            means = np.divide(shift, precision, out=np.zeros_like(shift), where=precision > 0.0)
            shift[-1] -= precision[-1] * float(coupling @ means[:-1])
        return DiagonalNatural(FactorialGaussian(sites.log_scale, shift, precision))

    def moved(self, ratio: float, shift: FloatArray) -> DiagonalNatural:
        """Natural parameters of coefficients that are ``ratio`` times these, plus ``shift``."""
        p = self.sites.precision / ratio**2
        h, c = _moved(p * shift, self.sites.shift / ratio, self.sites.log_scale, shift)
        return DiagonalNatural(FactorialGaussian(c, h, p))


def _moved(along: FloatArray, h: FloatArray, log_scale: float, shift: FloatArray) -> tuple[FloatArray, float]:
    """Shift and scale after the argument of a product of sites moved; ``along`` is its new information times that."""
    return h + along, log_scale - float(h @ shift) - 0.5 * float(shift @ along)


def _log_mass(log_scale: float, mean: FloatArray, right: FloatArray, log_det: float) -> float:
    return log_scale + 0.5 * (float(mean @ right) + mean.size * LOG_2PI - log_det)
