r"""Marginals that are not Gaussian: their skewness and width, to second order, from the tilted distributions of rows.

The posterior is EP's Gaussian times the ratios of factors to sites, whose first two moments are matched. What is left
of the ratio of row i is led by the third cumulant of its tilted distribution. With :math:`b_i` that cumulant over the
cube of the predictor's posterior variance, and :math:`a_{ij} = (S x_i)_j` the covariance of predictor and coefficient,

.. math:: \kappa_{3,j} = \sum_i b_i a_{ij}^3, \qquad
    \Delta_j = \tfrac12 \sum_{i \ne k} b_i b_k\, (x_i^\top S x_k)^2 a_{ij} a_{kj}

are the third cumulant of coefficient j and what its variance lacks: pairs of rows that skew the posterior into the same
direction widen it (Opper, Paquet and Winther, "Perturbative corrections for approximate inference in Gaussian latent
variable models", Journal of Machine Learning Research 14, 2013). A marginal is shown as a shifted gamma distribution of
this mean, variance and skewness (Pearson's type III).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammainc, gammaincinv, ndtr, ndtri

from cavity._types import FloatArray
from cavity.ep.blocks import RowSites
from cavity.factors.rows import Rows
from cavity.gaussians.dense import DenseGaussian
from cavity.moments import tilts

# Skewness from which on widths are corrected: below, the twentieths that a Gaussian cuts off at its ends hold 4 to 6 %.
SKEWED = 0.2
# Step of the numerical derivative of the tilted variance, in standard deviations of the cavity.
_STEP = 0.05
# Numbers of rows times coefficients held at once: 32 MB.
_AT_ONCE = 1 << 22


class Shapes(NamedTuple):
    """Skewness of every coefficient, and the factor by which its variance is larger than the Gaussian's."""

    skewness: FloatArray
    widening: FloatArray

    def quantiles(self, q: float) -> FloatArray:
        """Quantiles at probability ``q``, in deviations of the Gaussian from its mean."""
        g = self.skewness / self.widening**1.5
        return np.asarray(np.sqrt(self.widening) * skewed_quantile(g, q))

    def above(self, x: FloatArray) -> FloatArray:
        """Probabilities beyond places ``x``, in deviations of the Gaussian from its mean."""
        g = self.skewness / self.widening**1.5
        return 1.0 - skewed_probability(g, x / np.sqrt(self.widening))


def skewed_quantile(skewness: FloatArray, q: float) -> FloatArray:
    """Quantiles of standardised gamma distributions of these skewnesses, of either sign."""
    g = np.abs(skewness)
    shape = 4.0 / np.square(np.maximum(g, 1e-3))  # beyond a million, a Gaussian to five digits
    at = np.where(skewness >= 0.0, q, 1.0 - q)
    found = np.sign(skewness) * (gammaincinv(shape, at) - shape) / np.sqrt(shape)
    return np.asarray(np.where(g < 1e-3, ndtri(q), found))


def skewed_probability(skewness: FloatArray, x: FloatArray) -> FloatArray:
    """Probabilities below ``x`` of standardised gamma distributions of these skewnesses, of either sign."""
    g = np.abs(skewness)
    shape = 4.0 / np.square(np.maximum(g, 1e-3))
    below = gammainc(shape, np.maximum(shape + np.sqrt(shape) * np.sign(skewness) * x, 0.0))
    return np.asarray(np.where(g < 1e-3, ndtr(x), np.where(skewness >= 0.0, below, 1.0 - below)))


def third_cumulants(loss: Any, targets: FloatArray, weights: FloatArray, sites: RowSites) -> FloatArray:
    """Third cumulants of the tilted distributions, over the cubes of the predictors' posterior variances.

    That is the derivative of the tilted variance in the mean of the cavity, times the cavity's variance.

    Parameters
    ----------
    loss, targets, weights
        The rows, of one linear predictor.
    sites
        Their sites; ``sites.mean`` and ``sites.variance`` hold the predictors under the posterior.
    """
    with np.errstate(all="ignore"):
        cavity = sites.cavities(weights, 1.0, 1.0)
        std = np.sqrt(cavity.variance)
        ends = [
            tilts(loss, targets, cavity.mean + sites.offset + step * std, cavity.variance, cavity.exponent).ratio
            for step in (_STEP, -_STEP)
        ]
        found = std**3 * (ends[0] - ends[1]) / (2.0 * _STEP) / sites.variance**3
    return np.asarray(np.where(np.isfinite(found) & ~cavity.improper, found, 0.0))


def _largest_skewness(b: FloatArray, sites: RowSites) -> float:
    r"""Bound of all skewnesses, since :math:`\sum_i T_i a_i^2 \le s^2` and :math:`|a_i| \le s \sqrt{v_i}`."""
    if np.any(sites.precision < 0.0):
        return np.inf
    with np.errstate(all="ignore"):
        ratios = np.abs(b) * np.sqrt(sites.variance) / sites.precision
    return float(np.max(np.where(b == 0.0, 0.0, ratios), initial=0.0))


def marginal_shapes(
    loss: Any,
    rows: Rows,
    targets: FloatArray,
    sites: RowSites,
    posterior: DenseGaussian,
    combinations: FloatArray | None = None,
) -> Shapes:
    """Skewness of all coefficients or of combinations of them, and the widening of those that are skewed.

    Costs as much as the predictors of an iteration of EP, and as much again for every coefficient that is skewed.

    Parameters
    ----------
    loss, rows, targets
        The rows, of one linear predictor.
    sites
        Their sites; ``sites.mean`` and ``sites.variance`` hold the predictors under the posterior.
    posterior
        The posterior.
    combinations
        Factors of the coefficients in every combination, one row each; by default every coefficient is one.
    """
    n, d = rows.shape
    b = third_cumulants(loss, targets, rows.weights, sites)
    root = posterior.root
    along = root if combinations is None else combinations @ root
    std = np.sqrt(np.sum(np.square(along), axis=1))
    length = max(1, _AT_ONCE // d)
    parts = [slice(i, min(i + length, n)) for i in range(0, n, length)]
    skewness, widening = np.zeros(std.size), np.ones(std.size)
    if _largest_skewness(b, sites) <= SKEWED:
        return Shapes(skewness, widening)
    directions = root @ along.T / std
    for part in parts:
        a = rows.block(part) @ directions
        skewness += b[part] @ (a * a * a)
    skewed = np.flatnonzero(np.abs(skewness) > SKEWED)
    if skewed.size:
        # Sums over pairs of rows are squares of sums over rows: of the matrices b a w w' in whitened coordinates.
        totals, own = np.zeros((skewed.size, d, d)), np.zeros(skewed.size)
        for part in parts:
            white = rows.block(part) @ root
            u = b[part, None] * (white @ along[skewed].T)
            own += np.square(u).T @ np.square(sites.variance[part])
            for total, column in zip(totals, u.T, strict=True):
                total += (white * column[:, None]).T @ white
        lacking = 0.5 * (np.einsum("jkl,jkl->j", totals, totals) - own)
        widening[skewed] += np.maximum(lacking / std[skewed] ** 2, 0.0)
    return Shapes(skewness, widening)
