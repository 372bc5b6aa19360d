"""Figure 3: cost curves on the two large sets, one pass over mini-batches of a hundred, without stored sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import panels
from paper.curves import cells, traced
from paper.experiment import Drawing, Experiment, Json, Settings, Task
from reference.problems import LOSSES, SCHEMES


def keys(settings: Settings) -> list[tuple[str, str, str]]:
    """All curves of the figure."""
    return [(data, loss, variant) for data in settings.large for loss in LOSSES for variant in SCHEMES]


def tasks(settings: Settings) -> list[Task]:
    """One task a curve."""
    return [Task(traced, (*key, settings.quick), 5.0 if key[2].startswith("la") else 2.0) for key in keys(settings)]


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Put the curves together by data set and loss."""
    return {"cells": cells(answers)}


def draw(results: Json, needed: Mapping[str, Json]) -> Drawing:
    """Give every data set a row, every loss a column."""
    return panels.grid(results, needed["minima"])


EXPERIMENT = Experiment("fig3", "cost curves on the two large sets", tasks, gather, needs=("minima",), draw=draw)
