"""How posteriors are drawn: coefficients over those of sampling, and distances over all cells."""

from __future__ import annotations

from typing import Any

import numpy as np

from paper.experiment import Json
from reference.problems import LOSS_TITLES, TITLES

NAMES = {
    "la": "LA, as in the paper",
    "qla": "QLA, as in the paper",
    "gq": "GQ, as in the paper",
    "vq": "VQ, as in the paper",
    "product": "product of Gaussians",
    "blocks": "EPClassifier()",
}
COMPARED = ("product", "blocks")
MEASURES = {"distance": "Largest distance of a mean (s.d.)", "ratios": "Smallest to largest ratio of s.d."}
_STYLES: dict[str, dict[str, Any]] = {
    "la": {"color": "#D55E00", "marker": "s"},
    "qla": {"color": "#CC79A7", "marker": "^"},
    "gq": {"color": "#009E73", "marker": "X"},
    "vq": {"color": "#00406B", "marker": "o"},
    "product": {"color": "#A65E00", "marker": "v"},
    "blocks": {"color": "#0072B2", "marker": "o"},
}
# Intervals are so many standard deviations to either side.
_WIDTH = 2.0
# Room above and below the sampled intervals, as a share of all they span.
_ROOM = 0.45
# What is asked for of the worst coefficient where the posterior is not skewed: distance, and ratios.
_DISTANCE, _RATIOS = 0.15, (0.9, 1.1)


def coefficients(shown: Json, name: str, axes: Any) -> None:
    """Means and intervals of every coefficient, those of sampling as grey bars behind, which decide on the frame."""
    mean, std = (np.array(shown["sampled"][key]) for key in ("mean", "std"))
    order = np.argsort(mean)
    mean, std, x = mean[order], std[order], np.arange(mean.size)
    fit = shown["fits"][name]
    ours, spread = (np.array([np.nan if v is None else v for v in fit[key]])[order] for key in ("mean", "std"))
    axes.bar(x, 2.0 * _WIDTH * std, 0.85, mean - _WIDTH * std, color="#D5D8DE", zorder=1)
    axes.hlines(mean, x - 0.425, x + 0.425, color="#7A808C", linewidth=1.0, zorder=2)
    low, high = float(np.min(mean - _WIDTH * std)), float(np.max(mean + _WIDTH * std))
    room = _ROOM * (high - low)
    low, high = low - 0.3 * room, high + room
    is_inside = (ours > low) & (ours < high)
    # Bars end a little outside the frame: nothing far away may decide on the size of the drawing.
    tops, bottoms = (np.clip(ours + sign * _WIDTH * spread, low - room, high + room) for sign in (1.0, -1.0))
    style = _STYLES[name]
    axes.vlines(x[is_inside], bottoms[is_inside], tops[is_inside], color=style["color"], linewidth=1.3, zorder=3)
    axes.plot(x[is_inside], ours[is_inside], linestyle="none", markersize=3.2, zorder=4, **style)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.8, mean.size - 0.2)
    axes.set_xticks([])
    axes.set_xlabel("coefficients, in the order of the sampled means")
    axes.set_ylabel("mean ± 2 s.d.")
    axes.set_title(NAMES[name])
    note = outcome(fit)
    if not np.all(is_inside):
        most = np.nanmax(np.abs(ours[~is_inside]), initial=0.0)
        note += f"\n{np.count_nonzero(~is_inside)} of {mean.size} means outside, to {_size(most)}"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(0.015, 0.985, note, transform=axes.transAxes, ha="left", va="top", fontsize=8.0, zorder=6, bbox=box)


def distances(results: Json, axes: Any) -> None:
    """Largest distance of a mean from sampling's in every cell, and what is asked for as a grey band."""
    cells = results["cells"]
    axes.axhspan(1e-3, _DISTANCE, color="#E6E8EC", zorder=1)
    for shift, name in zip((-0.13, 0.13), COMPARED, strict=True):
        values = [cell["fits"][name]["distance"] for cell in cells]
        x = np.arange(len(cells)) + shift
        axes.plot(x, values, linestyle="none", markersize=5.0, label=NAMES[name], zorder=3, **_STYLES[name])
    axes.set_yscale("log")
    axes.set_ylim(0.003, 10.0)
    axes.set_yticks([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0], ["0.003", "0.01", "0.03", "0.1", "0.3", "1", "3"])
    axes.minorticks_off()
    axes.legend(fontsize=8.0, loc="upper left", ncols=2)
    _name_cells(cells, "distance", axes)


def ratios(results: Json, axes: Any) -> None:
    """Smallest and largest ratio of a deviation to sampling's in every cell, and what is asked for as a grey band."""
    cells = results["cells"]
    axes.axhspan(*_RATIOS, color="#E6E8EC", zorder=1)
    for shift, name in zip((-0.13, 0.13), COMPARED, strict=True):
        low, high = np.array([cell["fits"][name]["ratios"] for cell in cells]).T
        x, style = np.arange(len(cells)) + shift, _STYLES[name]
        axes.vlines(x, low, high, color=style["color"], linewidth=2.0, zorder=3)
        for ends in (low, high):
            axes.plot(x, ends, linestyle="none", markersize=4.0, zorder=4, **style)
    axes.set_ylim(0.0, 1.6)
    _name_cells(cells, "ratios", axes)


def outcome(fit: Json) -> str:
    """Both measures of a fit in words."""
    distance, (low, high) = fit["distance"], fit["ratios"]
    if distance is None or low is None or high is None:
        return "no finite posterior"
    return f"means within {_size(distance)} s.d., s.d. {_size(low)} to {_size(high)} times sampling’s"


def _name_cells(cells: list[Json], measure: str, axes: Any) -> None:
    titles = [f"{TITLES[c['data']]}\n{LOSS_TITLES[c['loss']]}" for c in cells]
    axes.set_xticks(np.arange(len(cells)), titles, rotation=90, fontsize=7.5)
    axes.set_xlim(-0.6, len(cells) - 0.4)
    axes.set_title(f"{MEASURES[measure]}, against sampling")


def _size(value: float) -> str:
    return f"{value:.2g}" if value < 10.0 else f"{value:,.0f}" if value < 1e5 else f"{value:.0e}"
