"""Best times of repeated work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeVar

Answer = TypeVar("Answer")


def timed(work: Callable[[], Answer]) -> tuple[Answer, float]:
    """Answer and seconds of one call."""
    begin = perf_counter()
    answer = work()
    return answer, perf_counter() - begin


def best_of(work: Callable[[], object], repeats: int = 5, budget: float = 0.25) -> tuple[float, int]:
    """Best seconds of up to ``repeats`` calls, the last when ``budget`` seconds are spent; and the number of calls."""
    best, spent, calls = float("inf"), 0.0, 0
    while calls < repeats and (calls == 0 or spent < budget):
        _, seconds = timed(work)
        best, spent, calls = min(best, seconds), spent + seconds, calls + 1
    return best, calls


def best_times(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best seconds of each work, all of them run once per round, after one round that does not count."""
    best = dict.fromkeys(works, float("inf"))
    for round_ in range(repeats + 1):
        for name, work in works.items():
            _, seconds = timed(work)
            if round_:
                best[name] = min(best[name], seconds)
    return best
