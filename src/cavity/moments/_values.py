"""What goes in and out: rows with their Gaussians, and what factors do to these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from cavity._types import FloatArray


class Tilts(NamedTuple):
    """What the factors of rows do to their Gaussians; arrays of shape ``(n,)``.

    Parameters
    ----------
    log_mass
        Logarithm of the mass.
    shift
        Shift of the mean, in standard deviations of the Gaussian.
    ratio
        Variance after over variance before.
    """

    log_mass: FloatArray
    shift: FloatArray
    ratio: FloatArray


class Rows(NamedTuple):
    """Targets, means and variances of the predictors, and powers of the factors; arrays of shape ``(n,)``."""

    y: FloatArray
    mean: FloatArray
    variance: FloatArray
    power: FloatArray

    def at(self, chosen: Any) -> Rows:
        """Return some of the rows."""
        return Rows(self.y[chosen], self.mean[chosen], self.variance[chosen], self.power[chosen])


def put(tilts: Tilts, chosen: Any, values: Tilts) -> None:
    """Write the values of some rows."""
    for target, value in zip(tilts, values, strict=True):
        target[chosen] = value


def slices(n: int, nodes: int) -> Iterator[slice]:
    """Cut ``n`` rows of so many nodes each into parts to be computed at once."""
    step = max(1, 8192 // nodes)  # so many numbers stay within the caches, and memory is bounded
    return (slice(start, start + step) for start in range(0, n, step))
