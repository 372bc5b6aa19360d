r"""Losses of a linear predictor: value, slope and curvature in :math:`z = x^\top \theta`.

A loss is a ``NamedTuple`` with at least one field and two methods, written with arithmetic and numpy functions,
comparisons used as factors and no ``if``, so that the same lines serve arrays here and scalars in compiled code.
`cavity.testing.check_loss` tells whether a loss of your own keeps the contract.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["Hinge", "Logistic", "QuasiZeroOne", "Squared"]


class Loss(Protocol):
    """What is asked of a loss. ``y`` and ``z`` are arrays that broadcast, or two numbers."""

    @property
    def targets(self) -> str:
        """Which targets are meant: ``"signs"`` (-1 and +1) or ``"reals"``."""

    def value(self, y: Any, z: Any) -> Any:
        """Loss of the prediction ``z`` where the target is ``y``; never overflows for finite ``z``."""

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature in ``z``; at a kink the half sum of both sides."""


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
        """Sharpness; that it is there tells compiled code to use the form it has for this loss."""
        return self.sharpness

    @property
    def targets(self) -> str:
        """Signs."""
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        """Loss at ``z``."""
        a = self.sharpness * y * z
        return np.log1p(np.exp(-np.abs(a))) + np.maximum(-a, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature at ``z``."""
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
    >>> value, slope, curvature = Hinge().derivatives(1.0, 0.25)
    >>> float(value), float(slope), float(curvature)
    (0.75, -1.0, 0.0)
    """

    margin: float = 1.0

    @property
    def targets(self) -> str:
        """Signs."""
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        """Loss at ``z``."""
        return np.maximum(self.margin - y * z, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature at ``z``."""
        t = self.margin - y * z
        return np.maximum(t, 0.0), -y * (0.5 + 0.5 * np.sign(t)), 0.0 * t


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
        """Signs."""
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        """Loss at ``z``."""
        a = y * z
        descent = np.minimum(np.maximum(a, 0.0), self.epsilon) * (1.0 / self.epsilon)
        return 1.0 - descent - self.epsilon * np.minimum(a, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature at ``z``."""
        a = y * z
        descent = np.minimum(np.maximum(a, 0.0), self.epsilon) * (1.0 / self.epsilon)
        v = 1.0 - descent - self.epsilon * np.minimum(a, 0.0)
        below, above = 0.5 - 0.5 * np.sign(a), 0.5 + 0.5 * np.sign(a - self.epsilon)
        return v, -y * (self.epsilon * below + (1.0 - below - above) / self.epsilon), 0.0 * a


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
    def targets(self) -> str:
        """Reals."""
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        """Loss at ``z``."""
        r = (z - y) / self.scale
        return 0.5 * r * r

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature at ``z``."""
        r = (z - y) / self.scale
        return 0.5 * r * r, r / self.scale, 0.0 * r + 1.0 / (self.scale * self.scale)
