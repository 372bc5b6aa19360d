"""Exact projection: the moments of cavity times factor, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import sparse

from cavity._checks import whole_number
from cavity._types import FloatArray
from cavity.factors import Factor, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.moments import tilts


@dataclass(frozen=True, slots=True)
class ExactProjection:
    r"""Match the exact moments of cavity times factor, one row after the other.

    A row depends on :math:`\theta` only through :math:`z = x^\top \theta`, which under the cavity is Gaussian with mean
    :math:`m = x^\top \mu` and variance :math:`v = \sum_j x_j^2 \sigma_j^2`. If :math:`m'` and :math:`v'` are the mean
    and the variance of this Gaussian times the factor of the row, the coordinates are updated by

    .. math:: \mu_j \leftarrow \mu_j + \sigma_j^2 x_j \frac{m' - m}{v}, \qquad
        \sigma_j^2 \leftarrow \sigma_j^2 + (\sigma_j^2 x_j)^2\, \frac{v'/v - 1}{v}.

    The result of one row is the cavity of the next, and the site is the last Gaussian divided by the first cavity. The
    cost is :math:`O(d)` per row. The scheme is exact for a single row, for rows that share no coordinate, and for
    Gaussian factors along the axes. Otherwise the result depends slightly on the order of the rows.

    Parameters
    ----------
    order
        Nodes of the first Gauss-Hermite rule, for losses without ``pieces``. It is doubled until two rules agree.

    Examples
    --------
    >>> from cavity import FactorialGaussian, LinearFactor, losses
    >>> factor = LinearFactor(losses.Hinge(), [[2.0, 1.0]], [1.0])
    >>> cavity = FactorialGaussian.from_moments([0.0, 0.0], variance=1.0)
    >>> (cavity * ExactProjection().approximate(factor, cavity)).mean.round(4)
    array([0.6703, 0.3351])
    """

    name: ClassVar[str] = "exact"
    order: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", whole_number("order", self.order, least=1, most=32))

    def check(self, factor: Factor) -> None:
        """Refuse a factor without rows."""
        if not isinstance(factor, LinearFactor):
            raise ValueError(
                f"scheme='exact' needs a LinearFactor, whose rows it takes one by one, got {type(factor).__name__}; "
                "for any other factor use scheme='vq'"
            )

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Take the rows in one after the other, then divide by the cavity."""
        self.check(factor)
        assert isinstance(factor, LinearFactor)
        mean, variance, log_mass = cavity.mean, cavity.variance, 0.0
        for x, y, weight in zip(_own_rows(factor), factor.targets, factor.weights, strict=True):
            covariance = variance * x  # of every coordinate with z
            v = float(covariance @ x)
            target, m, power = np.array([y]), np.array([x @ mean]), beta * float(weight)
            row = tilts(factor.loss, target, m, np.array([v]), power, self.order)
            gained, shift, ratio = (float(a[0]) for a in row)
            log_mass += gained
            if v > 0.0:
                mean = mean + covariance * (shift / np.sqrt(v))
                # No coordinate can lose more of its variance than z does.
                variance = np.maximum(
                    variance + covariance * covariance * ((ratio - 1.0) / v), min(ratio, 1.0) * variance
                )
        return _quotient(log_mass, mean, variance, cavity)


def _own_rows(factor: LinearFactor) -> FloatArray:
    """Rows in the coordinates that the factor touches."""
    rows = factor.rows if factor.coordinates is None else factor.rows[:, factor.coordinates]
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=np.float64)


def _quotient(log_mass: float, mean: FloatArray, variance: FloatArray, cavity: FactorialGaussian) -> FactorialGaussian:
    """Divide the Gaussian of this mass and these moments by the cavity, normalised."""
    m, p = cavity.mean, cavity.precision
    step = mean - m
    precision = 1.0 / variance - p
    shift = mean / variance - cavity.shift
    at_mean = log_mass - 0.5 * float(np.sum(step * step / variance + np.log(variance * p)))
    return FactorialGaussian(at_mean - float((shift - 0.5 * precision * m) @ m), shift, precision)
