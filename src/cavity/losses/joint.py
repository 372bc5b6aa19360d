r"""Losses of several linear predictors of one row, :math:`u(y, z_1, \ldots, z_K)`, all from the same features.

A loss of this kind is a ``NamedTuple`` with a property ``predictors``, the number of predictors, and a method
``value``. `cavity.testing.check_joint_loss` checks your own loss. Two further methods are optional:

- ``derivatives(y, z)``: value, gradient ``(..., K)`` and Hessian ``(..., K, K)``. With more than four predictors,
  sites are computed from these, averaged over the posterior. Without them, 2 K + 1 values of the loss are used.
- ``averages(y, z, weights, width)``: the weighted means of these three over nodes, where ``z`` has the shape
  ``(rows, nodes, K)`` and the predictors have an additional variance ``width`` in all directions, one number per row. A
  loss that provides this method needs fewer nodes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp, softmax

from cavity._types import FloatArray
from cavity.gaussians.factorial import LOG_2PI
from cavity.gaussians.mixture import normal_mixture_quantile
from cavity.quadrature import hermite

__all__ = ["Normal", "Softmax"]


class JointLoss(Protocol):
    """Interface of a loss of several predictors. They are the last axis of ``z``; its other axes are those of ``y``."""

    @property
    def targets(self) -> str:
        """Kind of the targets: ``"classes"`` (integers from zero) or ``"reals"``."""

    @property
    def predictors(self) -> int:
        """Number of linear predictors."""

    def value(self, y: Any, z: Any) -> Any:
        """Loss of a prediction. It must not overflow for a finite ``z``.

        Parameters
        ----------
        y
            Target.
        z
            Linear predictors, along the last axis.
        """


class Softmax(NamedTuple):
    r"""Negative log probability of class :math:`y`, symmetric in the classes.

    .. math:: u(y, z) = \log \sum_k e^{s_k} - s_y, \qquad s = Q z.

    Only differences of the scores :math:`s_k` matter. The predictors are the coordinates of the scores in an
    orthonormal basis :math:`Q` of all scores that sum to zero (`contrasts`), one fewer than classes. With the same
    normal prior for all coefficients, every such basis gives the same posterior.

    Parameters
    ----------
    classes
        Number of classes.

    Examples
    --------
    >>> float(Softmax(2).value(1, np.array([0.0])).round(4))
    0.6931
    """

    classes: int = 3

    @property
    def targets(self) -> str:
        return "classes"

    @property
    def predictors(self) -> int:
        return int(self.classes) - 1

    def value(self, y: Any, z: Any) -> Any:
        basis = contrasts(int(self.classes))
        at_class = np.einsum("...k,...k->...", z, basis[np.asarray(y, dtype=np.intp)])
        # Classes first: sums over them then run along memory.
        scores = np.moveaxis(np.asarray(z) @ basis.T, -1, 0).copy()
        largest = np.max(scores, axis=0)
        scores -= largest
        np.exp(scores, out=scores)
        return np.log(np.sum(scores, axis=0)) + largest - at_class

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        basis = contrasts(int(self.classes))
        scores = np.asarray(z) @ basis.T
        p = softmax(scores, axis=-1)
        slopes = (p - _indicators(y, p)) @ basis
        spread = p @ basis
        curvature = np.einsum("...k,ki,kj->...ij", p, basis, basis) - spread[..., :, None] * spread[..., None, :]
        return self.value(y, z), slopes, curvature

    def mean_probabilities(self, z: FloatArray, weights: FloatArray, width: FloatArray) -> FloatArray:
        """Probabilities of the classes, averaged over nodes.

        Parameters
        ----------
        z, weights, width
            As in `averages`.
        """
        flat = np.sqrt(1.0 + np.pi / 8.0 * width)
        scores = z @ (contrasts(int(self.classes)).T / flat[:, None, None])
        return np.asarray(np.einsum("n,bnk->bk", weights, softmax(scores, axis=-1)))

    def averages(
        self, y: Any, z: FloatArray, weights: FloatArray, width: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        r"""Weighted means of value, slopes and curvatures over nodes.

        A wide normal variable flattens the softmax by :math:`\sqrt{1 + \pi w / 8}`.

        Parameters
        ----------
        y
            Classes, one per row.
        z
            Nodes ``(rows, nodes, predictors)``.
        weights
            Weights of the nodes.
        width
            Further variance w of the predictors in all directions, one number per row.
        """
        basis, flat = contrasts(int(self.classes)), np.sqrt(1.0 + np.pi / 8.0 * width)
        # Nodes last: sums over classes then run along memory.
        p = np.matmul(basis / flat[:, None, None], z.transpose(0, 2, 1))
        at_class = np.take_along_axis(p @ weights, np.asarray(y, dtype=np.intp)[:, None], axis=1)[:, 0]
        largest = np.max(p, axis=1)
        p -= largest[:, None]
        np.exp(p, out=p)
        totals = np.sum(p, axis=1)
        p /= totals[:, None]
        np.log(totals, out=totals)
        mean_value = flat * ((totals + largest) @ weights - at_class)
        mean = p @ weights
        products = -np.matmul(p * weights, p.transpose(0, 2, 1))
        diagonal = np.arange(int(self.classes))
        products[:, diagonal, diagonal] += mean
        curvature = basis.T @ products @ (basis / flat[:, None, None])
        return mean_value, (mean - _indicators(y, mean)) @ basis, curvature


class Normal(NamedTuple):
    r"""Negative log density of normal targets with a predicted mean and standard deviation, up to a constant.

    .. math:: u(y, z) = z_2 + \tfrac12 (y - z_1)^2 e^{-2 z_2}.

    Parameters
    ----------
    floor
        Smallest log standard deviation. Below it, the exponential is continued by its tangent, which prevents
        overflow.

    Examples
    --------
    >>> float(Normal().value(1.0, np.array([0.0, 0.0])))
    0.5
    """

    floor: float = -50.0

    @property
    def targets(self) -> str:
        return "reals"

    @property
    def predictors(self) -> int:
        return 2

    def value(self, y: Any, z: Any) -> Any:
        mean, log_std = np.asarray(z)[..., 0], np.asarray(z)[..., 1]
        return log_std + 0.5 * np.square(y - mean) * self._precision(log_std)

    def _precision(self, log_std: Any) -> Any:
        held = np.maximum(log_std, self.floor)
        return np.exp(-2.0 * held) * (1.0 + 2.0 * (held - log_std))


def spread_std(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Compute standard deviations of new targets of `Normal`, from means ``(n, 2)`` and covariances ``(n, 2, 2)``."""
    with np.errstate(over="ignore"):
        return np.sqrt(variance[:, 0, 0] + np.exp(2.0 * mean[:, 1] + 2.0 * variance[:, 1, 1]))


def spread_quantile(mean: FloatArray, variance: FloatArray, q: float) -> FloatArray:
    """Quantiles of new targets, mixtures over the spread, to about six digits."""
    centers, widths, weights = _spread_mixture(mean, variance)
    return normal_mixture_quantile(weights, centers.T, widths.T, q)


def spread_log_density(mean: FloatArray, variance: FloatArray, targets: FloatArray) -> FloatArray:
    """Logarithms of the densities of targets, mixtures over the spread."""
    centers, widths, weights = _spread_mixture(mean, variance)
    exponents = -0.5 * np.square((targets[:, None] - centers) / widths) - np.log(widths)
    return np.asarray(logsumexp(exponents, axis=1, b=weights)) - 0.5 * LOG_2PI


def _spread_mixture(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means and standard deviations of targets at nodes over the spread, ``(n, nodes)``, and weights of the nodes."""
    nodes, weights = hermite(15)
    std = np.sqrt(np.maximum(variance[:, 1, 1], 0.0))
    slope = np.divide(variance[:, 0, 1], std, out=np.zeros_like(std), where=std > 0.0)
    centers = mean[:, :1] + slope[:, None] * nodes
    left = np.maximum(variance[:, 0, 0] - slope**2, 0.0)[:, None]
    with np.errstate(over="ignore"):
        widths = np.sqrt(left + np.exp(2.0 * (mean[:, 1:] + std[:, None] * nodes)))
    return centers, np.clip(widths, 1e-300, 1e300), weights


@cache
def contrasts(classes: int) -> FloatArray:
    """Orthonormal basis of all vectors that sum to zero, one per column (Helmert's)."""
    basis = np.zeros((classes, classes - 1))
    for j in range(classes - 1):
        basis[: j + 1, j], basis[j + 1, j] = 1.0, -(j + 1.0)
        basis[:, j] /= np.sqrt((j + 1.0) * (j + 2.0))
    basis.flags.writeable = False
    return basis


def _indicators(y: Any, like: FloatArray) -> FloatArray:
    return np.asarray(np.asarray(y, dtype=np.intp)[..., None] == np.arange(like.shape[-1]), dtype=np.float64)
