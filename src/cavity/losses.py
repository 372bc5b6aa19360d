r"""Losses of a linear predictor: value, slope and curvature in :math:`z = x^\top \theta`.

A loss is a ``NamedTuple`` with at least one field and two methods, written with arithmetic and numpy functions,
comparisons used as factors and no ``if``, so that the same lines serve arrays here and scalars in compiled code.
`cavity.testing.check_loss` checks whether a loss of your own keeps the contract.

A loss may offer more, each of which has a default (`Offers`). Above all, one that is linear in pieces may say so by a
method ``pieces(y)``: exact integrals follow. It returns triples ``(end, slope, offset)`` from left to right, of which
the last ends at infinity: the loss is ``offset + slope * z`` for ``z`` up to ``end`` and beyond the end before. It is
written for a number ``y`` and for an array, without ``if``; what does not depend on ``y`` may be a float in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

__all__ = ["Absolute", "Hinge", "Huber", "Logistic", "Poisson", "Quantile", "QuasiZeroOne", "Squared"]

Piece: TypeAlias = tuple[Any, Any, Any]


class Loss(Protocol):
    """What is asked of a loss. ``y`` and ``z`` are arrays that broadcast, or two numbers."""

    @property
    def targets(self) -> str:
        """Which targets are meant: ``"signs"`` (-1 and +1), ``"reals"``, or ``"counts"`` (reals of zero or more)."""

    def value(self, y: Any, z: Any) -> Any:
        """Loss of the prediction ``z`` where the target is ``y``; never overflows for finite ``z``."""

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature in ``z``; at a kink the half sum of both sides."""


class Offers(NamedTuple):
    """What a loss can do besides, by members of its own; the defaults are those of a loss without them."""

    pieces: Callable[[Any], tuple[Piece, ...]] | None = None  # the method of that name
    logistic: float | None = None  # the property as_logistic: the field sharpness of a loss that is `Logistic`
    squared: float | None = None  # the property as_squared: the field scale of a loss that is `Squared`
    smooth: bool = True  # the property is_smooth, or no pieces: whether Newton's method applies to the loss itself


def offers(loss: object) -> Offers:
    """Read what a loss offers; of a class, which of it its instances will have."""
    pieces = getattr(loss, "pieces", None)
    logistic, squared = getattr(loss, "as_logistic", None), getattr(loss, "as_squared", None)
    return Offers(pieces, logistic, squared, getattr(loss, "is_smooth", pieces is None))


class Logistic(NamedTuple):
    r"""Logistic loss for signs :math:`y`.

    .. math:: \ell(y, z) = \log(1 + e^{-b y z})

    Parameters
    ----------
    sharpness
        The factor :math:`b > 0` of the margin.

    Examples
    --------
    >>> value, slope, curvature = Logistic().derivatives(1.0, 0.0)
    >>> round(float(value), 4), float(slope), float(curvature)
    (0.6931, -0.5, 0.25)
    """

    sharpness: float = 1.0

    @property
    def as_logistic(self) -> float:
        return self.sharpness

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        a = self.sharpness * y * z
        return np.log1p(np.exp(-np.abs(a))) + np.maximum(-a, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        b = self.sharpness * y
        a = b * z
        e = np.exp(-np.abs(a))  # in (0, 1]: never overflows
        q = 1.0 / (1.0 + e)
        p = q * (e + (1.0 - e) * (a < 0.0))
        return np.log1p(e) + np.maximum(-a, 0.0), -b * p, b * b * e * q * q


class Hinge(NamedTuple):
    r"""Hinge loss of support vector machines for signs :math:`y`.

    .. math:: \ell(y, z) = \max(0, c - y z)

    Parameters
    ----------
    margin
        The margin :math:`c` below which a row costs something.

    Examples
    --------
    >>> float(Hinge().value(1.0, 0.25))
    0.75
    """

    margin: float = 1.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return np.maximum(self.margin - y * z, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        t = self.margin - y * z
        return np.maximum(t, 0.0), -y * (0.5 + 0.5 * np.sign(t)), 0.0 * t

    def pieces(self, y: Any) -> tuple[Piece, Piece]:
        """Descent and floor, in the order of ``y``."""
        falls, rises = 1.0 * (y > 0.0), 1.0 * (y <= 0.0)
        return (self.margin * y, -y * falls, self.margin * falls), (np.inf, -y * rises, self.margin * rises)


class QuasiZeroOne(NamedTuple):
    r"""Continuous, non-convex stand-in of the paper for the 0-1 loss, for signs :math:`y`.

    .. math:: \ell(y, z) = \begin{cases} 1 - \epsilon a & a < 0 \\ 1 - a/\epsilon & 0 \le a < \epsilon \\
        0 & a \ge \epsilon \end{cases}, \qquad a = y z

    Parameters
    ----------
    epsilon
        Width of the descent; 1 gives the hinge loss, smaller values come closer to the 0-1 loss.

    Examples
    --------
    >>> float(QuasiZeroOne().value(1.0, -1.0)), float(QuasiZeroOne().value(1.0, 0.05))
    (1.1, 0.5)
    """

    epsilon: float = 0.1

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        # The two slopes times the sign come first: over many z they are numbers, and a loop has less to do.
        return np.maximum(np.minimum(1.0 - (y / self.epsilon) * z, 1.0 - (y * self.epsilon) * z), 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        a = y * z
        descent = np.minimum(np.maximum(a, 0.0), self.epsilon) * (1.0 / self.epsilon)
        v = 1.0 - descent - self.epsilon * np.minimum(a, 0.0)
        below, above = 0.5 - 0.5 * np.sign(a), 0.5 + 0.5 * np.sign(a - self.epsilon)
        return v, -y * (self.epsilon * below + (1.0 - below - above) / self.epsilon), 0.0 * a

    def pieces(self, y: Any) -> tuple[Piece, Piece, Piece]:
        """Slope of the wrong side, descent and floor, in the order of ``y``."""
        gentle, steep, end = -self.epsilon * y, -y / self.epsilon, self.epsilon * y
        falls, rises = 1.0 * (y > 0.0), 1.0 * (y <= 0.0)
        first, last = (np.minimum(end, 0.0), gentle * falls, falls), (np.inf, gentle * rises, rises)
        return first, (np.maximum(end, 0.0), steep, 1.0), last


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
    r"""Absolute loss for real targets :math:`y`: noise of Laplace, whose outliers cost no more than their distance.

    .. math:: \ell(y, z) = \frac{|y - z|}{s}

    Parameters
    ----------
    scale
        The mean size :math:`s` of the noise.

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
        The distance :math:`k` in units of the scale beyond which a row counts as an outlier. The default loses five
        percent against the squared loss where the noise is Gaussian after all.
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
    r"""Pinball loss for real targets :math:`y`, least at a quantile of them in place of their mean.

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


class Poisson(NamedTuple):
    r"""Poisson loss for counts :math:`y`: the logarithm of their mean is the prediction.

    .. math:: \ell(y, z) = e(z) - y z, \qquad
        e(z) = \begin{cases} e^z & z \le c \\ e^c (1 + z - c) & z > c \end{cases}

    Beyond the ceiling the exponential is continued by its tangent, so that nothing overflows and the loss stays convex.

    Parameters
    ----------
    ceiling
        The prediction :math:`c` beyond which that is done; the default stands for a mean of :math:`10^{13}`.

    Examples
    --------
    >>> float(Poisson().value(3.0, 0.0))
    1.0
    """

    ceiling: float = 30.0

    @property
    def targets(self) -> str:
        return "counts"

    def value(self, y: Any, z: Any) -> Any:
        e = np.exp(np.minimum(z, self.ceiling))
        return e * (1.0 + np.maximum(z - self.ceiling, 0.0)) - y * z

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        e = np.exp(np.minimum(z, self.ceiling))
        v = e * (1.0 + np.maximum(z - self.ceiling, 0.0)) - y * z
        return v, e - y, e * (0.5 + 0.5 * np.sign(self.ceiling - z))
