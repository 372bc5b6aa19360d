"""Figure 1: the losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paper.experiment import Drawing, Experiment, Json, Panel, Settings, Task
from reference.problems import LOSS_TITLES, LOSSES, ZeroOne

_STYLES: dict[str, dict[str, Any]] = {
    "logistic": {"color": "#0072B2", "linestyle": "-"},
    "hinge": {"color": "#D55E00", "linestyle": (0, (5, 1.5))},
    "quasi01": {"color": "#009E73", "linestyle": (0, (4, 1, 1, 1))},
    "zero_one": {"color": "#555555", "linestyle": (0, (1, 1.2))},
}


def tasks(settings: Settings) -> list[Task]:
    """Evaluate all losses in one task."""
    return [Task(tabulate, (41 if settings.quick else 801,))]


def tabulate(points: int) -> Json:
    """Every loss against the margin."""
    margin = np.linspace(-2.0, 2.0, points)
    losses = {**LOSSES, "zero_one": ZeroOne()}
    values = {name: loss.value(np.ones_like(margin), margin).round(12).tolist() for name, loss in losses.items()}
    return {"margin": margin.round(12).tolist(), "losses": values}


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Keep the only answer."""
    result: Json = answers[0]
    return result


def draw(results: Json, needed: Mapping[str, Json]) -> Drawing:
    """Draw one panel, labelled within."""

    def panel(axes: Any) -> None:
        for name, values in results["losses"].items():
            axes.plot(results["margin"], values, label=LOSS_TITLES[name], linewidth=1.8, **_STYLES[name])
        axes.set_xlabel("margin  y θᵀx")
        axes.set_ylabel("loss")
        axes.set_ylim(-0.05, 3.05)
        axes.legend()

    alt = (
        "The losses against the margin from -2 to 2. Logistic: smooth, 2.1 at -2, 0.1 at 2. Hinge: a straight line "
        "from 3 down to 0 at margin 1. Quasi 0-1: 1.2 at -2, 1 at 0, from there straight down to 0 at 0.1. "
        "The 0-1 loss steps from 1 to 0 at margin 0."
    )
    return Drawing([[Panel("losses", alt, panel)]], (5.2, 3.4))


EXPERIMENT = Experiment("fig1", "the loss functions", tasks, gather, draw=draw)
