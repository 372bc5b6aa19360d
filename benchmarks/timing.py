"""Side by side in one run: best times, their ratios, and whether a bar is met."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def best_times(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best seconds of each work, all of them run once a round, after one round that does not count."""
    best = dict.fromkeys(works, float("inf"))
    for round_ in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds = time.perf_counter() - start
            if round_:
                best[name] = min(best[name], seconds)
    return best


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of bars."""

    work: str
    measured: str
    bar: str
    met: bool

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Cells of the line."""
        return self.work, self.measured, self.bar, "met" if self.met else "MISSED"


def at_least(work: str, ours: float, reference: float, factor: float, name: str) -> Row:
    """Ours must be so many times faster than the reference."""
    ratio = reference / ours
    times = f"{1e3 * ours:.2f} ms against {1e3 * reference:.2f} ms: {ratio:.2f} x"
    return Row(work, times, f"at least {factor:g} x as fast as {name}", ratio >= factor)


def at_most(work: str, ours: float, reference: float, factor: float, name: str) -> Row:
    """Ours may take so many times the reference."""
    ratio = ours / reference
    times = f"{1e3 * ours:.2f} ms against {1e3 * reference:.2f} ms: {ratio:.2f} x"
    return Row(work, times, f"at most {factor:g} x {name}", ratio <= factor)


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table for people and for files."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
