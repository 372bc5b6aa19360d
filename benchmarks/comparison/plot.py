"""Quality against time: one panel per task, one colour per library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison.tasks import TASKS

COLOURS = {
    "cavity": "#d62728", "scikit-learn": "#1f77b4", "statsmodels": "#2ca02c", "PyMC": "#9467bd", "bambi": "#8c564b",
    "river": "#7f7f7f", "Vowpal Wabbit": "#17becf", "bayesianbandits": "#bcbd22",
}  # fmt: skip
MARKERS = dict(zip(COLOURS, "*sD^voPX", strict=True))
# Panels reach from the best score to so many times the median distance from it; what is worse is drawn at the edge.
REACH = 2.0
# All panels have the same axis of time, up to the limit of a fit.
SECONDS, TICKS = (5e-4, 250.0), (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)

# Powers of ten that a printed number takes.
WIDTH = 0.5


def draw(lines: list[Any], path: Path) -> None:
    """Left and low is best."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(4, 2, figsize=(9.0, 12.0))
    for ax, (name, task) in zip(axes.flat, TASKS.items(), strict=True):
        shown = [line for line in lines if line.task == name and line.score is not None]
        ax.set_title(task.title.partition(",")[0], fontsize=11)
        ax.set(xscale="log", xlim=SECONDS, xticks=TICKS, xticklabels=[f"{tick:g}" for tick in TICKS])
        ax.set(xlabel="seconds", ylabel=task.score_name)
        if shown:
            _panel(ax, shown)
    handles = [
        plt.Line2D([], [], linestyle="none", marker=MARKERS[n], color=c, markersize=13 if n == "cavity" else 7, label=n)
        for n, c in COLOURS.items()
    ]
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0.0, 0.05, 1.0, 1.0))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(ax: Any, lines: list[Any]) -> None:
    scores = np.array([line.score for line in lines])
    low, reach = np.min(scores), REACH * np.median(scores - np.min(scores))
    ours = [line.score for line in lines if line.library == "cavity"]
    top = max(low + reach, *ours) if ours else low + reach
    margin = 0.08 * max(top - low, 1e-6)
    for line in lines:
        beyond, first = line.score > top, line.library == "cavity"
        ax.plot(
            max(line.seconds, 1.2 * SECONDS[0]), min(line.score, top + margin),
            marker="|" if beyond else MARKERS[line.library], color=COLOURS[line.library],
            markersize=14 if first else 7, zorder=3 if first else 2, alpha=1.0 if first else 0.8,
        )  # fmt: skip
    _name_beyond(ax, [line for line in lines if line.score > top], top + margin)
    ax.set_ylim(low - margin, top + margin)
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.grid(alpha=0.25)


def _name_beyond(ax: Any, lines: list[Any], edge: float) -> None:
    """Print the scores of marks at the upper edge, below one another where they would overlap."""
    ends: list[float] = []  # of each row of numbers, as logarithms of seconds
    for line in sorted(lines, key=lambda line: line.seconds):
        place = np.log10(max(line.seconds, 1.2 * SECONDS[0]))
        row = next((k for k, end in enumerate(ends) if end < place - WIDTH), len(ends))
        ends[row : row + 1] = [place]
        ax.annotate(f"{line.score:.3g}", (10.0**place, edge), (0, -14 - 9 * row), textcoords="offset points",
                    ha="center", fontsize=7, color=COLOURS[line.library])  # fmt: skip
