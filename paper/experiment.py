"""What an experiment is: tasks for the workers, a gathering of their answers, and figures drawn from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cavity._version import __version__
from reference.problems import LARGE, SMALL, TITLES

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the results depend on; results made with other settings are not resumed from.

    Parameters
    ----------
    quick
        Smaller everything: for a look at the report, not for its numbers.
    data
        Names of the data sets taken.
    """

    quick: bool = False
    data: tuple[str, ...] = tuple(TITLES)

    @property
    def small(self) -> tuple[str, ...]:
        """Small sets among those taken."""
        return tuple(name for name in SMALL if name in self.data)

    @property
    def large(self) -> tuple[str, ...]:
        """Large sets among those taken."""
        return tuple(name for name in LARGE if name in self.data)

    def as_json(self) -> Json:
        """Return the form stored with the results."""
        return {"quick": self.quick, "data": sorted(self.data), "cavity": __version__}


class Task(NamedTuple):
    """A piece of work that a worker can do on its own.

    Parameters
    ----------
    function, arguments
        A module-level function, and what to call it with.
    weight
        Rough cost relative to others: the longest tasks start first.
    alone
        Whether it takes times, so that nothing else may run beside it.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    weight: float = 1.0
    alone: bool = False


class Panel(NamedTuple):
    """One drawing of a figure; the page shows panels one below the other where there is no room beside."""

    name: str
    alt: str
    draw: Callable[[Any], None]


class Drawing(NamedTuple):
    """A figure: panels in rows, as in the paper, and who draws the legend."""

    panels: list[list[Panel]]
    panel_size: tuple[float, float]
    legend: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table: how it is computed, and how it is drawn.

    Parameters
    ----------
    name
        Name of the results file and on the command line.
    summary
        What it is, in a line.
    tasks
        Work to be done under the given settings.
    gather
        Results from the answers, in the order of the tasks, and from the results of the experiments needed.
    needs
        Experiments whose results `gather` reads.
    draw
        The figure from the results and those of the experiments needed, or None for tables.
    """

    name: str
    summary: str
    tasks: Callable[[Settings], list[Task]]
    gather: Callable[[Settings, list[Any], Mapping[str, Json]], Json]
    needs: tuple[str, ...] = ()
    draw: Callable[[Json, Mapping[str, Json]], Drawing] | None = None
