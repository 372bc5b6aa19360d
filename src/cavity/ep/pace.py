"""How far a loop moved the posterior, how far later loops will, and how large the steps of rows may be."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Largest rate at which changes are believed to fall from loop to loop.
_LARGEST_RATE = 0.9
# Largest step of a row, reached by runs that take long: there revisions keep their direction and fall by half per loop.
# On 12 data sets and 200 random problems, logistic and hinge: with 1.0 the longest take a sixth more loops, with 1.6 as
# many as with 1.3; 1.3 from the first loop on costs short runs a loop.
_LONGEST_STEP = 1.3


def change_between(mean: FloatArray, variance: FloatArray, new_mean: FloatArray, new_variance: FloatArray) -> float:
    """Largest move of a mean in standard deviations, or of the logarithm of a variance."""
    shift = np.max(np.abs(new_mean - mean) / np.sqrt(new_variance), initial=0.0)
    stretch = np.max(np.abs(np.log(new_variance / variance)), initial=0.0)
    return float(max(shift, stretch))


class Pace:
    """What is remembered from loop to loop about changes and steps.

    ``change`` is that of the last loop, ``ceiling`` the largest step of any row, ``longer`` its last growth.
    """

    def __init__(self, tol: float) -> None:
        self.tol, self.change, self.ceiling, self.longer = tol, np.inf, 1.0, 1.0

    @property
    def numbers(self) -> list[float]:
        """All of it, for a snapshot."""
        return [self.change, self.ceiling, self.longer]

    @numbers.setter
    def numbers(self, numbers: Iterable[float]) -> None:
        self.change, self.ceiling, self.longer = numbers

    def close(self, number: int, change: float, pending: float, average_step: float, held_back: bool) -> float:
        """End a loop that changed the posterior by so much; estimate what all later loops will change.

        ``pending`` is the most that a single block moved a mean by, in standard deviations: two blocks can undo each
        other's moves, and what one of them moved is still to come, too. Blocks that were held back say more than that.
        """
        before, self.change = self.change, change
        self._set_ceiling(number, before, held_back)
        if held_back:
            return np.inf
        # With changes that fall by a constant rate, the sum of those to come; steps below one hide a part of them.
        # Two changes estimate the rate.
        rate = min(change / before, _LARGEST_RATE) if before > 0.0 else 0.0
        return max(change, pending) * max(1.0, rate / (1.0 - rate)) / min(average_step, 1.0)

    def _set_ceiling(self, number: int, before: float, held_back: bool) -> None:
        """Take smaller steps with all rows after a loop that changes more than the one before, larger ones else.

        Convex costs hardly need it; of the others it decides whether they converge. Where blocks were held back, the
        change is what they were held back to, and says nothing of the steps. After larger steps a loop may change as
        much more as its steps are longer, and a fiftieth beyond that.
        """
        if number >= 5 and not held_back and self.change > self.tol:
            grew = self.change > 1.02 * max(self.longer, 1.0) * before
            ceiling = min(max((0.8 if grew else 1.1) * self.ceiling, 0.02), _LONGEST_STEP)
            self.longer, self.ceiling = ceiling / self.ceiling, ceiling
