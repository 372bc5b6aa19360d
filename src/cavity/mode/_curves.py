r"""The losses of all rows as functions of their predictors, as they are or smoothed.

A loss with kinks has no useful curvature. Its mean under noise of width h, :math:`E\,\ell(z + h\epsilon)` with
:math:`\epsilon \sim N(0, 1)`, has; and with h the posterior's own width of z its slope and curvature are those that a
Gaussian posterior sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from cavity._types import FloatArray
from cavity.losses import Loss, offers
from cavity.quadrature import hermite_polynomials

Derived = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class Plain:
    """The loss as it is."""

    loss: Loss
    targets: FloatArray

    def derivatives(self, z: FloatArray) -> Derived:
        return self.loss.derivatives(self.targets, z)


@dataclass(frozen=True, slots=True)
class SmoothKinks:
    r"""A loss that is linear in pieces, under noise: a line and, at every kink t, a change D of slope.

    .. math:: E\,\ell(z + h\epsilon) = a + b z + \sum_i D_i \left[(z - t_i)\,\Phi(u_i) + h\,\varphi(u_i)\right],
        \qquad u_i = (z - t_i) / h

    ``places`` and ``jumps`` have one row per kink, and one column per row of the data.
    """

    offset: FloatArray
    slope: FloatArray
    places: FloatArray
    jumps: FloatArray
    width: FloatArray

    def derivatives(self, z: FloatArray) -> Derived:
        away = z - self.places
        u = away / self.width
        below, density = ndtr(u), np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi)
        value = self.offset + self.slope * z + np.sum(self.jumps * (away * below + self.width * density), axis=0)
        curvature: FloatArray = np.sum(self.jumps * density, axis=0) / self.width
        return value, self.slope + np.sum(self.jumps * below, axis=0), curvature


@dataclass(frozen=True, slots=True)
class SmoothValues:
    r"""Any loss under noise, from its values alone: Gauss-Hermite quadrature and Stein's identity.

    .. math:: \frac{d}{dz} E\,\ell(z + h\epsilon) = \frac{E\,\ell\,\epsilon}{h}, \qquad
        \frac{d^2}{dz^2} E\,\ell(z + h\epsilon) = \frac{E\,\ell\,(\epsilon^2 - 1)}{h^2}
    """

    loss: Loss
    targets: FloatArray
    width: FloatArray

    def derivatives(self, z: FloatArray) -> Derived:
        """Take one loss per node, less that at the centre, which loses fewer digits."""
        nodes, weights = hermite_polynomials(32)  # each node costs one loss per row
        center = np.asarray(self.loss.value(self.targets, z), dtype=np.float64)
        sums = np.zeros((3, z.size))
        for node, polynomials in zip(nodes, weights.T, strict=True):
            sums += polynomials[:, None] * (self.loss.value(self.targets, z + node * self.width) - center)
        return center + sums[0], sums[1] / self.width, sums[2] / self.width**2


# A scalar function for every row.
Curve = Plain | SmoothKinks | SmoothValues


def smoothed(loss: Loss, targets: FloatArray, width: FloatArray) -> Curve:
    """Take the mean under noise: in closed form where the loss has pieces and they meet, else by quadrature."""
    offered = offers(loss).pieces
    if offered is None:
        return SmoothValues(loss, targets, width)
    pieces = [[np.broadcast_to(np.asarray(a, dtype=np.float64), targets.shape) for a in p] for p in offered(targets)]
    ends, slopes, offsets = (np.array(part) for part in zip(*pieces, strict=True))
    gaps = np.diff(offsets, axis=0) + np.diff(slopes, axis=0) * ends[:-1]
    # Not continuous up to rounding, or with ends that are not finite:
    if not np.all(np.abs(gaps) <= 1e-9 * (1.0 + np.max(np.abs(offsets)))):
        return SmoothValues(loss, targets, width)
    return SmoothKinks(offsets[0], slopes[0], ends[:-1], np.diff(slopes, axis=0), width)
