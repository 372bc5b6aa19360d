"""Losses of real targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.losses.protocol import Piece


class Squared(NamedTuple):
    r"""Squared loss for real targets :math:`y`: the negative logarithm of a Gaussian, up to a constant.

    .. math:: \ell(y, z) = \frac{(z - y)^2}{2 \sigma^2}

    Parameters
    ----------
    scale
        The standard deviation :math:`\sigma` of the noise.

    Examples
    --------
    >>> float(Squared(scale=0.5).value(2.0, 1.0))
    2.0
    """

    scale: float = 1.0

    @property
    def as_squared(self) -> float:
        return self.scale

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        r = (z - y) / self.scale
        return 0.5 * r * r

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = (z - y) / self.scale
        return 0.5 * r * r, r / self.scale, 0.0 * r + 1.0 / (self.scale * self.scale)


class Absolute(NamedTuple):
    r"""Absolute loss for real targets :math:`y`, for Laplace noise; robust against outliers.

    .. math:: \ell(y, z) = \frac{|y - z|}{s}

    Parameters
    ----------
    scale
        The scale :math:`s` of the noise: its mean absolute value.

    Examples
    --------
    >>> float(Absolute(scale=0.5).value(2.0, 1.0))
    2.0
    """

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.abs(z - y) / self.scale

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return np.abs(r) / self.scale, np.sign(r) / self.scale, 0.0 * r

    def pieces(self, y: Any) -> tuple[Piece, Piece]:
        a = 1.0 / self.scale
        return (1.0 * y, -a, a * y), (np.inf, a, -a * y)


class Huber(NamedTuple):
    r"""Huber loss for real targets :math:`y`: squared near the target, absolute far from it.

    .. math:: \ell(y, z) = \begin{cases} u^2 / 2 & |u| \le k \\ k |u| - k^2 / 2 & |u| > k \end{cases},
        \qquad u = \frac{y - z}{s}

    Parameters
    ----------
    threshold
        The distance :math:`k`, in units of the scale, beyond which a row counts as an outlier. With the default and
        Gaussian noise, the loss is five percent less efficient than the squared loss.
    scale
        The scale :math:`s` of the noise.

    Examples
    --------
    >>> float(Huber(threshold=1.0).value(0.0, 0.5)), float(Huber(threshold=1.0).value(0.0, 10.0))
    (0.125, 9.5)
    """

    threshold: float = 1.35
    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        u = (z - y) / self.scale
        near = np.minimum(np.maximum(u, -self.threshold), self.threshold)
        return near * (u - 0.5 * near)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        u = (z - y) / self.scale
        near = np.minimum(np.maximum(u, -self.threshold), self.threshold)
        inside = 0.5 + 0.5 * np.sign(self.threshold - np.abs(u))
        return near * (u - 0.5 * near), near / self.scale, inside / (self.scale * self.scale)


class Quantile(NamedTuple):
    r"""Pinball loss for real targets :math:`y`, which is minimised by a quantile.

    .. math:: \ell(y, z) = \frac{q \max(y - z, 0) + (1 - q) \max(z - y, 0)}{s}

    Parameters
    ----------
    quantile
        The share :math:`q` of targets below the prediction, between zero and one.
    scale
        The scale :math:`s`.

    Examples
    --------
    >>> float(Quantile(0.75).value(1.0, 0.0)), float(Quantile(0.75).value(0.0, 1.0))
    (0.75, 0.25)
    """

    quantile: float = 0.5
    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        r = z - y
        return (np.maximum(r, 0.0) - self.quantile * r) / self.scale

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return self.value(y, z), (0.5 + 0.5 * np.sign(r) - self.quantile) / self.scale, 0.0 * r

    def pieces(self, y: Any) -> tuple[Piece, Piece]:
        down, up = -self.quantile / self.scale, (1.0 - self.quantile) / self.scale
        return (1.0 * y, down, -down * y), (np.inf, up, -up * y)
