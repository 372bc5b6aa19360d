"""Partitions of rows wherever tasks run, with their sites: what `cavity.ep.partitions` asks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.dask._executors import Executor, LostError
from cavity.dask._tasks import added, log_scale_of_part, sweep_part, told_by
from cavity.ep.partition import Message, Sums, costs
from cavity.gaussians import Analysis
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# Sums that one task of the tree adds up, and times that a round is begun again after losses before it is given up.
_BRANCHES, _ROUNDS = 8, 100


class OnExecutor:
    """Partitions whose rows and sites are handles of an executor.

    Sites are results of tasks that cannot be computed again (`cavity.dask._executors.Cluster`). Where some are lost,
    new ones are derived from the posterior in the next sweep.
    """

    def __init__(
        self, executor: Executor, rows: Sequence[Any], names: Sequence[object], analysis: Analysis | None = None
    ) -> None:
        self._executor, self._rows, self._names, self.analysis = executor, rows, names, analysis
        self._pattern = None if analysis is None else executor.share(analysis)  # once, and not with every message
        self._sites: list[Any] = [None] * len(rows)
        self._mixes: list[Sequence[float]] = [(0.0, 1.0)] * len(rows)

    @property
    def count(self) -> int:
        """Number of partitions."""
        return len(self._rows)

    def sweep(self, message: Message, chosen: Sequence[int]) -> Sums:
        """Let these partitions visit their rows, and add up what they tell."""
        swept: dict[int, Any] = {}

        def attempt(shared: Any) -> Sums:
            missing = [k for k in chosen if k not in swept or self._executor.is_lost(swept[k])]
            swept.update(zip(missing, self._map(sweep_part, shared, missing), strict=True))
            # What partitions tell is added up on their workers first: sites stay where they are.
            groups = self._executor.neighbours([swept[k] for k in chosen])
            each = self._executor.map(told_by, [(group,) for group in groups])
            total: Sums = self._executor.fetch([self._tree(each)])[0]
            return total

        total: Sums = self._repeated(attempt, message)
        for k in chosen:
            self._sites[k] = swept[k]
        return total

    def accept(self, chosen: Sequence[int], mix: Sequence[float]) -> None:
        """Remember the combination for the next sweep."""
        for k in chosen:
            self._mixes[k] = mix

    def forget(self) -> None:
        """Drop all sites."""
        self._sites = [None] * self.count

    def costs(self, loss: Loss, predictor: int, points: FloatArray, last: int) -> FloatArray:
        """Sum up the losses of all rows of the partitions up to the last at several points."""
        arguments = [(rows, loss, predictor, points) for rows in self._rows[: last + 1]]
        found: FloatArray = np.sum(self._executor.fetch(self._executor.map(costs, arguments)), axis=0)
        return found

    def log_scale(self, message: Message) -> float:
        """Sum up the scales of all sites."""

        def attempt(shared: Any) -> float:
            return float(sum(self._executor.fetch(self._map(log_scale_of_part, shared, range(self.count)))))

        return float(self._repeated(attempt, message))

    def _map(self, function: Callable[..., Any], shared: Any, chosen: Sequence[int]) -> list[Any]:
        arguments = [(self._rows[k], self._sites[k], shared, self._mixes[k], self._pattern) for k in chosen]
        return self._executor.map(function, arguments, [self._names[k] for k in chosen])

    def _repeated(self, attempt: Callable[[Any], Any], message: Message) -> Any:
        """Try until nothing that is needed was lost meanwhile."""
        message = message._replace(analysis=None)
        shared = self._executor.share(message)
        for _ in range(_ROUNDS):
            try:
                return attempt(shared)
            except LostError:
                if any(self._executor.is_lost(rows) for rows in self._rows):
                    raise RuntimeError(
                        "rows were lost with a worker and cannot be computed again, since they were scattered: give X "
                        "as a collection that is read or computed by tasks"
                    ) from None
                self._sites = [None if self._executor.is_lost(sites) else sites for sites in self._sites]
                if self._executor.is_lost(shared):
                    shared = self._executor.share(message)
                if self._executor.is_lost(self._pattern):
                    self._pattern = self._executor.share(self.analysis)
        raise RuntimeError(f"workers were lost {_ROUNDS} times within a round of the fit")

    def _tree(self, parts: list[Any]) -> Any:
        """Add up in groups, and groups of these."""
        while len(parts) > 1:
            groups = [(parts[i : i + _BRANCHES],) for i in range(0, len(parts), _BRANCHES)]
            parts = self._executor.map(added, groups)
        return parts[0]
