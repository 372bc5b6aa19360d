"""Sums over all rows that a model has seen: what priors and noise scales follow in a stream."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.estimators._design import squared

FloatArray = NDArray[np.float64]


class Totals(NamedTuple):
    """Weighted sums, with weight w per row: of w, w |x|², w t, w t² and, for counts, the logarithms of normalisers.

    The targets t are logarithms where targets are positive.
    """

    rows: float = 0.0
    sizes: float = 0.0
    targets: float = 0.0
    squares: float = 0.0
    constants: float = 0.0

    @classmethod
    def of(
        cls, X: Any, weights: FloatArray | None, targets: FloatArray | None = None, constants: FloatArray | None = None
    ) -> Totals:
        """Sum over rows."""
        w = np.ones(X.shape[0]) if weights is None else weights
        if isinstance(X, np.ndarray):
            lengths = np.einsum("ij,ij->i", X, X, dtype=np.float64)
        else:
            lengths = np.asarray(squared(X.astype(np.float64)).sum(axis=1)).ravel()
        t, c = (np.zeros(w.size) if a is None else a for a in (targets, constants))
        return cls(*(float(w @ a) for a in (np.ones(w.size), lengths, t, t * t, c)))

    def plus_row(self, size: float, target: float) -> Totals:
        """Add one row of weight one, its squared length and target given."""
        rows, sizes, targets, squares, constants = self
        return Totals(rows + 1.0, sizes + size, targets + target, squares + target * target, constants)

    def plus(self, other: Totals) -> Totals:
        """Add the sums over other rows."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Totals:
        """Keep a share of them."""
        return Totals(*(factor * a for a in self))

    @property
    def mean(self) -> float:
        """Mean of the targets."""
        return self.targets / self.rows if self.rows else 0.0

    @property
    def spread(self) -> float:
        """Standard deviation of the targets; zero where rounding leaves nothing of it."""
        if not self.rows:
            return 0.0
        variance = self.squares / self.rows - self.mean * self.mean
        return float(np.sqrt(variance)) if variance > 1e-12 * self.squares / self.rows else 0.0

    def typical_variance(self, spread: float) -> float:
        """Variance of the coefficients under which the predictor of an average row has this variance."""
        return coarse(spread * self.rows / self.sizes) if 0.0 < self.sizes < np.inf else 1.0


def coarse(number: float, unit: float | None = None) -> float:
    """Round to a billionth of a unit, or of the number itself.

    Sums over weighted and over repeated rows, which round differently, then agree to the last bit.
    """
    if unit is None:
        unit = math.ldexp(1.0, math.frexp(number)[1])
    bits = 30  # a billionth: far above the rounding of sums and far below what matters
    return unit * math.ldexp(round(math.ldexp(number / unit, bits)), -bits)
