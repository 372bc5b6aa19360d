"""What keeps a run from diverging: more damping while it gets worse, and the return to its best loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Guard:
    """Watches changes and costs of the loops. Without a cost it is off, and the damping is that asked for."""

    retries = 4  # of an improper cavity, each with half as much of the site removed

    def __init__(self, cost: Callable[[FloatArray], float] | None, damping: float) -> None:
        self.is_on, self.damping, self._asked = cost is not None, damping, damping
        self._cost: Callable[[FloatArray], float] = (lambda point: math.nan) if cost is None else cost
        self._beta, self._changes = math.nan, (math.inf, math.inf)
        self._bound = self._lowest = self._last = math.inf
        self.best: Mapping[str, Any] = {}

    @property
    def relative_damping(self) -> float:
        """Damping now as a share of that asked for: a damped loop hides a part of the change."""
        return self.damping / self._asked

    @property
    def is_worse_than_prior(self) -> bool:
        """Whether the last loop ended at a higher cost than the prior mean."""
        return self.is_on and not self._last <= self._bound + 1e-9 * (1.0 + abs(self._bound))

    def begin_loop(
        self, beta: float, prior_mean: FloatArray, mean: FloatArray, snapshot: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Start over at a new temperature: costs of other temperatures cannot be compared."""
        if beta == self._beta:
            return
        self._beta, self._changes = beta, (math.inf, math.inf)
        self._bound, self._lowest = self._cost(prior_mean), self._cost(mean)
        self.best = snapshot()

    def end_loop(self, change: float, mean: FloatArray, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        """Choose the damping of the next loop, and keep the state if no loop ended at a lower cost.

        A loop must change the posterior less than the larger of the two loops before it, by a share of 0.05 times the
        damping in use; then the damping grows by 1.2, otherwise it is halved, down to a 16th of the one asked for: what
        needs less does not converge in any number of loops. Chosen on the study of robustness (docs/robustness.md);
        with a share of 0.1 a few fits take one loop more.
        """
        undamped = change / self.relative_damping
        if undamped <= (1.0 - 0.05 * self.relative_damping) * max(self._changes):
            self.damping = min(1.2 * self.damping, self._asked)
        else:
            self.damping = max(0.5 * self.damping, self._asked / 16.0)
        self._changes = (self._changes[1], undamped)
        self._last = self._cost(mean)
        if self._last < self._lowest:
            self._lowest, self.best = self._last, snapshot()

    def snapshot(self) -> dict[str, Any]:
        """Give the state between two loops."""
        numbers = (self.damping, self._beta, *self._changes, self._bound, self._lowest, self._last)
        return {"guard": np.array(numbers), **{f"best.{name}": value for name, value in self.best.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to such a state."""
        numbers = [float(number) for number in state["guard"]]
        self.damping, self._beta, first, second, self._bound, self._lowest, self._last = numbers
        self._changes = (first, second)
        self.best = {name[5:]: value for name, value in state.items() if name.startswith("best.")}
