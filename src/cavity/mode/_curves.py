r"""The losses of all rows as functions of their predictors, as they are or smoothed.

A loss with kinks has no curvature to speak of. Its mean under noise of width h, :math:`E\,\ell(z + h\epsilon)` with
:math:`\epsilon \sim N(0, 1)`, has; and with h the posterior's own width of z its slope and curvature are those that a
Gaussian posterior sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from cavity.losses import Loss

FloatArray = NDArray[np.float64]
Width = FloatArray | float
Derived = tuple[FloatArray, FloatArray, FloatArray]

_NODES = 32
_BLOCK_ROWS = 1024
_ROOT_2PI = float(np.sqrt(2.0 * np.pi))
# Targets for which pieces are asked one by one, before they are tried for being straight lines in the target.
_FEW = 64
_CONTINUOUS = 1e-9


class Curve(Protocol):
    """A scalar function for every row."""

    def derivatives(self, z: FloatArray) -> Derived:
        """Value, slope and curvature of every row at its own predictor."""

    def bound(self, z: FloatArray) -> FloatArray:
        """Curvature with which no row asks for a much longer way than to where its loss bends.

        Where a loss is nearly straight, as far from a margin, its own curvature says nothing of what comes, and a few
        such rows would cut down the step for all.
        """


@dataclass(frozen=True, slots=True)
class Plain:
    """The loss as it is."""

    loss: Loss
    targets: FloatArray

    def value(self, z: FloatArray) -> FloatArray:
        """Ask the loss for its value alone."""
        result: FloatArray = self.loss.value(self.targets, z)
        return result

    def derivatives(self, z: FloatArray) -> Derived:
        """Ask the loss."""
        value, slope, curvature = self.loss.derivatives(self.targets, z)
        return value, slope, curvature

    def bound(self, z: FloatArray) -> FloatArray:
        """Change of slope from here to the target, or to zero for signs and counts, over the distance."""
        return _secant(self, _anchors(self.loss, self.targets), z)


@dataclass(frozen=True, slots=True)
class Kinks:
    r"""Losses that are linear in pieces: a line and, at every kink t, a change D of slope.

    .. math:: E\,\ell(z + h\epsilon) = a + b z + \sum_i D_i \left[(z - t_i)\,\Phi(u_i) + h\,\varphi(u_i)\right],
        \qquad u_i = (z - t_i) / h

    Arrays of the kinks have one row for each of them, and a column for each row of the data.
    """

    offset: FloatArray
    slope: FloatArray
    places: FloatArray
    jumps: FloatArray

    @property
    def is_convex(self) -> bool:
        """Whether no slope falls."""
        return bool(np.all(self.jumps >= 0.0))

    def take(self, rows: NDArray[np.intp]) -> Kinks:
        """Keep some rows."""
        return Kinks(self.offset[rows], self.slope[rows], self.places[:, rows], self.jumps[:, rows])

    def smoothed(self, width: Width) -> SmoothKinks:
        """Take the mean under noise."""
        return SmoothKinks(self, width)

    def distances(self, z: FloatArray) -> FloatArray:
        """Distance of every predictor to the furthest kink."""
        result: FloatArray = np.max(np.abs(z - self.places), axis=0, initial=0.0)
        return result

    def bends(self) -> FloatArray:
        """Sum of all changes of slope."""
        result: FloatArray = np.sum(np.abs(self.jumps), axis=0)
        return result


@dataclass(frozen=True, slots=True)
class SmoothKinks:
    """`Kinks` under noise, in closed form."""

    kinks: Kinks
    width: Width

    def derivatives(self, z: FloatArray) -> Derived:
        """One normal density and distribution a kink."""
        value, slope = self.kinks.offset + self.kinks.slope * z, self.kinks.slope + 0.0 * z
        curvature = np.zeros_like(value)
        for place, jump in zip(self.kinks.places, self.kinks.jumps, strict=True):
            t = z - place
            u = t / self.width
            below, density = ndtr(u), np.exp(-0.5 * u * u) / _ROOT_2PI
            value += jump * (t * below + self.width * density)
            slope += jump * below
            curvature += jump * density / self.width
        return value, slope, curvature

    def bound(self, z: FloatArray) -> FloatArray:
        """Half a jump over the distance to its kink: the parabola that touches both sides and lies above."""
        jumps, away = np.maximum(self.kinks.jumps, 0.0), np.abs(z - self.kinks.places)
        result: FloatArray = np.sum(0.5 * jumps / (away + self.width), axis=0)
        return result


@dataclass(frozen=True, slots=True)
class Unknown:
    """A loss of which nothing is used but its value."""

    loss: Loss
    targets: FloatArray

    @property
    def is_convex(self) -> bool:
        """Nobody knows."""
        return False

    def smoothed(self, width: Width) -> SmoothValues:
        """Take the mean under noise."""
        return SmoothValues(self, width)

    def distances(self, z: FloatArray) -> FloatArray:
        """Distance to the target, which stands for the places where the loss bends."""
        return np.abs(z - self.targets)

    def bends(self) -> FloatArray:
        """Change of slope around the target, by differences over one."""
        below, here, above = (self.loss.value(self.targets, self.targets + t) for t in (-1.0, 0.0, 1.0))
        result: FloatArray = np.abs(above - here) + np.abs(below - here)
        return result


@dataclass(frozen=True, slots=True)
class SmoothValues:
    r"""`Unknown` under noise, by Gauss-Hermite quadrature and Stein's identity.

    .. math:: \frac{d}{dz} E\,\ell(z + h\epsilon) = \frac{E\,\ell\,\epsilon}{h}, \qquad
        \frac{d^2}{dz^2} E\,\ell(z + h\epsilon) = \frac{E\,\ell\,(\epsilon^2 - 1)}{h^2}
    """

    of: Unknown
    width: Width

    def derivatives(self, z: FloatArray) -> Derived:
        """One loss a node, taken against that at the centre, which rounding likes better."""
        nodes, polynomials = _hermite()
        width = np.broadcast_to(np.asarray(self.width, dtype=np.float64), z.shape)
        center = np.asarray(self.of.loss.value(self.of.targets, z), dtype=np.float64)
        sums = np.empty((3, z.size))
        for start in range(0, z.size, _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            there = self.of.loss.value(self.of.targets[rows], z[rows] + nodes[:, None] * width[rows])
            sums[:, rows] = polynomials @ (there - center[rows])
        return center + sums[0], sums[1] / width, sums[2] / (width * width)

    def bound(self, z: FloatArray) -> FloatArray:
        """Change of slope from here to the target, or to zero for signs and counts, over the distance."""
        return _secant(self, _anchors(self.of.loss, self.of.targets), z)


Rough = Kinks | Unknown


def rough_curve(loss: Loss, targets: FloatArray) -> Rough:
    """Find what can be smoothed: pieces where the loss tells them, else its values."""
    return kinks_of(loss, targets) or Unknown(loss, targets)


def kinks_of(loss: Loss, targets: FloatArray) -> Kinks | None:
    """Read the pieces of a loss for all targets; None if it has none, or they do not meet."""
    pieces = getattr(loss, "pieces", None)
    if pieces is None:
        return None
    distinct, inverse = np.unique(targets, return_inverse=True)
    table = _table(pieces, distinct)[inverse]
    ends, slopes, offsets = table[:, :-1, 0].T, table[:, :, 1].T, table[:, :, 2].T
    left, right = offsets[:-1] + slopes[:-1] * ends, offsets[1:] + slopes[1:] * ends
    size = 1.0 + np.max(np.abs(offsets))
    if not (np.all(np.isfinite(ends)) and np.all(np.abs(left - right) <= _CONTINUOUS * size)):
        return None
    return Kinks(offsets[0], slopes[0], np.ascontiguousarray(ends), np.diff(slopes, axis=0))


def _table(pieces: Any, targets: FloatArray) -> FloatArray:
    """Pieces of every target; where they follow straight lines in it, as for y - z, from two of them."""

    def asked(chosen: FloatArray) -> FloatArray:
        return np.array([pieces(float(y)) for y in chosen], dtype=np.float64)

    if targets.size <= _FEW:
        return asked(targets)
    probes = np.linspace(0, targets.size - 1, _FEW // 4).astype(np.intp)
    known = asked(targets[probes])
    known[:, -1, 0] = 0.0  # the last end is infinite, and not used
    share = ((targets - targets[0]) / (targets[-1] - targets[0]))[:, None, None]
    straight = known[0] + share * (known[-1] - known[0])
    size = 1.0 + np.max(np.abs(known))
    is_straight = np.all(np.abs(straight[probes] - known) <= _CONTINUOUS * size)
    result: FloatArray = straight if is_straight else asked(targets)
    return result


def _anchors(loss: Loss, targets: FloatArray) -> FloatArray:
    """Predictors near which a loss bends, if it says no more than the kind of its targets."""
    return targets if loss.targets == "reals" else np.zeros_like(targets)


def _secant(curve: Curve, anchors: FloatArray, z: FloatArray) -> FloatArray:
    change = np.abs(curve.derivatives(z)[1] - curve.derivatives(anchors)[1])
    return np.where(z == anchors, 0.0, change / np.abs(z - anchors))


@cache
def _hermite() -> tuple[FloatArray, FloatArray]:
    """Nodes, and their weights times one and the next two polynomials."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return nodes, np.stack([np.ones_like(nodes), nodes, nodes**2 - 1.0]) * (weights / np.sum(weights))
