"""Figure 2: cost curves on the three small sets, five loops over mini-batches of ten in file order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import panels
from paper.curves import cells, traced
from paper.experiment import Drawing, Experiment, Json, Settings, Task
from reference.problems import LOSSES, PAPER_SCHEMES, SCHEMES


def keys(settings: Settings) -> list[tuple[str, str, str]]:
    """All curves: the figure's, and those of the 0-1 loss, which the paper describes and does not show."""
    drawn = [(data, loss, variant) for data in settings.small for loss in LOSSES for variant in SCHEMES]
    described = [(data, "zero_one", variant) for data in settings.small for variant in PAPER_SCHEMES]
    return drawn + described


def tasks(settings: Settings) -> list[Task]:
    """One task a curve."""
    return [Task(traced, (*key, settings.quick), 1.0 if "la" in key[2] else 0.1) for key in keys(settings)]


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Put the curves together by data set and loss."""
    return {"cells": cells(answers)}


def draw(results: Json, needed: Mapping[str, Json]) -> Drawing:
    """Give every data set a row, every loss a column."""
    return panels.grid(results, needed["minima"])


EXPERIMENT = Experiment("fig2", "cost curves on the three small sets", tasks, gather, needs=("minima",), draw=draw)
