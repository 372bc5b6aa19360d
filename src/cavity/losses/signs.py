"""Losses of labels -1 and +1."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.losses.protocol import Piece


class Logistic(NamedTuple):
    r"""Logistic loss for labels :math:`y` in -1 and +1.

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
    r"""Hinge loss of support vector machines for labels :math:`y` in -1 and +1.

    .. math:: \ell(y, z) = \max(0, c - y z)

    Parameters
    ----------
    margin
        The margin :math:`c` below which the loss of a row is positive.

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
    r"""Continuous, non-convex approximation of the 0-1 loss from the paper, for labels :math:`y` in -1 and +1.

    .. math:: \ell(y, z) = \begin{cases} 1 - \epsilon a & a < 0 \\ 1 - a/\epsilon & 0 \le a < \epsilon \\
        0 & a \ge \epsilon \end{cases}, \qquad a = y z

    Parameters
    ----------
    epsilon
        Width of the descent. 1 gives the hinge loss; smaller values are closer to the 0-1 loss.

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
