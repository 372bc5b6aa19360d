r"""Rounds over partitions are extrapolated: Anderson's method.

Partitions do not see each other. Where a few rows of each say the same, as rows of a rare level that are all of one
class, together they overshoot, and plain rounds must be damped until they hardly move. With :math:`f_k` the move of the
posterior in round k, the combination of the last rounds whose move would be the smallest,

.. math:: \min_\gamma \Big\lVert f_k - \sum_j \gamma_j (f_{j+1} - f_j) \Big\rVert,

is taken of what they proposed (Walker and Ni, "Anderson acceleration for fixed-point iterations", SIAM Journal on
Numerical Analysis 49, 2011). Natural parameters of sites add up, so partitions combine theirs by the same coefficients.
It needs rounds that all do the same: rows have one constant step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Earlier rounds that are combined with the last, chosen on Census income in 16 partitions: more save at most a round.
DEPTH = 3
# Step of all rows, chosen on the data sets of the paper: half of it takes about the same rounds, twice as much can fail
# to converge where rows are sorted by label.
STEP = 0.5
# Move of a round, in standard deviations, above which rows have steps of their own and rounds are not combined.
_NEAR = 1.0
# Largest rate at which moves are believed to fall from round to round, as in `cavity.ep.blocks`.
_LARGEST_RATE = 0.9
# Differences of moves that are linear combinations of others but for this share count as such.
_DEPENDENT = 1e-3


class Extrapolation(NamedTuple):
    """Coefficients of the proposals of the last rounds, the last one first, and what is to come that they leave out."""

    coefficients: FloatArray
    remaining: float


class Acceleration:
    """Moves of the posterior in the last rounds, while these all do the same."""

    def __init__(self) -> None:
        self.is_steady, self._moves = False, np.empty((0, 0))

    @property
    def step(self) -> float | None:
        """Step of all rows in the next round; None where every row has its own."""
        return STEP if self.is_steady else None

    def forget(self) -> None:
        """Start over: the next round differs from the last ones."""
        self._moves = np.empty((0, 0))

    def after(self, move: FloatArray, comparable: bool) -> Extrapolation:
        """End a round that moved the posterior by so much, in standard deviations and logarithms of these.

        ``comparable`` says whether it was a whole one.
        """
        nothing = Extrapolation(np.ones(1), np.inf)
        was_steady = self.is_steady
        self.is_steady = comparable and bool(np.all(np.abs(move) < _NEAR))
        if not (self.is_steady and was_steady):
            self.forget()
            return nothing
        # Two numbers per coefficient tell no more combinations apart than there are coefficients.
        earlier = self._moves.reshape(-1, move.size)[: min(DEPTH, move.size // 2)]
        self._moves = np.vstack([move, earlier])
        if not earlier.size:
            return nothing
        differences = (self._moves[:-1] - self._moves[1:]).T
        weights = np.linalg.lstsq(differences, move, rcond=_DEPENDENT)[0]
        left = float(np.max(np.abs(move - differences @ weights)))
        coefficients = np.append(1.0, np.zeros(weights.size))
        coefficients[:-1] -= weights
        coefficients[1:] += weights
        return Extrapolation(coefficients, left / (1.0 - _LARGEST_RATE))


__all__ = ["DEPTH", "Acceleration", "Extrapolation"]
