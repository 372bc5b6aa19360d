"""Lines of the table of bars: what was measured, what was asked for, and whether it is met."""

from __future__ import annotations

from dataclasses import dataclass


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
