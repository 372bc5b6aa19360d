"""Posteriors whose prior can change, for `cavity.ep.hyperparameters`: sparse, and without correlations.

`cavity.ep.dense.DensePosterior` is the one with a full covariance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError

from cavity.ep.knowledge import SparseKnowledge
from cavity.gaussians import SparseGaussian, SparsePrecision
from cavity.gaussians.factorial import FactorialGaussian, ImproperError

FloatArray = NDArray[np.float64]


class SparsePosterior:
    """A sparse precision matrix, factorised again for every prior on the pattern of the first."""

    factor: SparsePrecision
    mean: FloatArray

    def __init__(self, prior: FactorialGaussian, known: SparseKnowledge) -> None:
        self._information, self._border = sparse.csc_array(known.information), known.border
        self._pattern: Any = None
        self.prior, self.shift = prior, known.shift
        if not self._factorise(self._information, self.shift, prior):
            raise ImproperError("prior and what is known must make a proper posterior")

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return self.factor.log_det

    def gaussian(self) -> SparseGaussian:
        """Normalised posterior."""
        return SparseGaussian(self.mean, self.factor, 0.0)

    def variance(self) -> FloatArray:
        """Posterior variances."""
        return self.factor.variances()

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return self.factor.solve(right)

    def scale(self, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply the sites by factors and exchange the prior; False, and nothing changed, if that is improper."""
        information = self._information if precisions == 1.0 else precisions * self._information
        return self._factorise(information, shifts * self.shift, prior or self.prior)

    def _factorise(self, information: sparse.csc_array, shift: FloatArray, prior: FactorialGaussian) -> bool:
        upper = sparse.csc_array(information + sparse.diags_array(prior.precision))
        try:
            factor = SparsePrecision.of(upper, self._border, self._pattern)
        except LinAlgError:
            return False
        self.factor, self.mean, self._pattern = factor, factor.solve(prior.shift + shift), factor.pattern
        self._information, self.shift, self.prior = information, shift, prior
        return True


class ProductPosterior:
    """A product of Gaussians whose prior changes, as `cavity.ep.hyperparameters` asks for it."""

    def __init__(self, prior: FactorialGaussian, sites: FactorialGaussian) -> None:
        self.prior, self._sites = prior, sites

    @property
    def shift(self) -> FloatArray:
        """Shift of the sites."""
        return self._sites.shift

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return (self.prior.shift + self._sites.shift) * self.variance()

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        return -float(np.sum(np.log(self.variance())))

    def gaussian(self) -> FactorialGaussian:
        """Normalised posterior."""
        return FactorialGaussian.from_moments(self.mean, self.variance())

    def variance(self) -> FloatArray:
        """Posterior variances."""
        return 1.0 / (self.prior.precision + self._sites.precision)

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply by the posterior covariance."""
        return np.asarray((self.variance() * right.T).T)

    def scale(self, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply the sites by factors and exchange the prior; False, and nothing changed, if that is improper."""
        prior, sites = prior or self.prior, self._sites
        if precisions != 1.0 or shifts != 1.0:
            sites = FactorialGaussian(sites.log_scale, shifts * sites.shift, precisions * sites.precision)
        if not np.all(prior.precision + sites.precision > 0.0):
            return False
        self.prior, self._sites = prior, sites
        return True
