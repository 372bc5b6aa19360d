"""How posteriors are drawn: coefficients over those of sampling, and distances over all cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.experiments.experiment import Json
from cavity.experiments.problems import LOSS_TITLES, TITLES

NAMES = {
    "la": "LA",
    "qla": "QLA",
    "gq": "GQ",
    "vq": "VQ",
    "exact": "exact projection, own columns",
    "exact_pca": "exact projection, PCA basis",
    "exact_curvature": "exact projection, curvature basis",
    "full": "EP with a full covariance",
}
COMPARED = ("exact", "exact_pca", "exact_curvature", "full")
_STYLES: dict[str, dict[str, Any]] = {
    "la": {"color": "#D55E00", "marker": "s"},
    "qla": {"color": "#CC79A7", "marker": "^"},
    "gq": {"color": "#009E73", "marker": "X"},
    "vq": {"color": "#00406B", "marker": "o"},
    "exact": {"color": "#A65E00", "marker": "v"},
    "exact_pca": {"color": "#0072B2", "marker": "o"},
    "exact_curvature": {"color": "#56B4E9", "marker": "P"},
    "full": {"color": "#000000", "marker": "D"},
}
# Intervals are so many standard deviations either way.
_WIDTH = 2.0
# Room above and below the sampled intervals, as a share of all they span.
_ROOM = 0.45


class Measure(NamedTuple):
    """One of the two measures: its title, the range that is asked for, and whether its axis is logarithmic."""

    title: str
    low: float
    high: float
    is_log: bool


MEASURES = {
    "dm": Measure("distance of means (s.d.)", 0.0, 0.3, True),
    "sdr": Measure("ratio of s.d.", 0.85, 1.15, False),
}


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
    note = _distance(fit)
    if not np.all(is_inside):
        most = np.nanmax(np.abs(ours[~is_inside]), initial=0.0)
        note += f"\n{np.count_nonzero(~is_inside)} of {mean.size} means outside, to {_size(most)}"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(0.015, 0.985, note, transform=axes.transAxes, ha="left", va="top", fontsize=8.0, zorder=6, bbox=box)


def over_cells(results: Json, measure: str, axes: Any) -> None:
    """One measure against sampling in every cell, and the range that is asked for as a grey band."""
    title, low, high, is_log = MEASURES[measure]
    cells = results["cells"]
    x = np.arange(len(cells))
    axes.axhspan(low, high, color="#E6E8EC", zorder=1)
    for shift, name in zip((-0.27, -0.09, 0.09, 0.27), COMPARED, strict=True):
        values = [cell["fits"][name][f"{measure}_sampled"] for cell in cells]
        axes.plot(x + shift, values, linestyle="none", markersize=4.5, label=NAMES[name], zorder=3, **_STYLES[name])
    if is_log:
        axes.set_yscale("log")
        axes.set_ylim(0.003, 3.0)
        axes.set_yticks([0.003, 0.01, 0.03, 0.1, 0.3, 1.0], ["0.003", "0.01", "0.03", "0.1", "0.3", "1"])
        axes.minorticks_off()
        axes.legend(fontsize=7.5, loc="upper left")
    else:
        axes.set_ylim(0.3, 1.4)
    axes.set_xticks(x, [f"{TITLES[c['data']]}\n{LOSS_TITLES[c['loss']]}" for c in cells], rotation=90, fontsize=7.0)
    axes.set_ylabel(title)
    axes.set_title(f"against sampling: {'dm' if measure == 'dm' else 'sdr'}")


def _distance(fit: Json) -> str:
    dm, sdr = fit["dm_sampled"], fit["sdr_sampled"]
    if dm is None or sdr is None:
        return "no finite posterior"
    return f"dm {_size(dm)}, sdr {sdr:.2f}"


def _size(value: float) -> str:
    return f"{value:.2g}" if value < 10.0 else f"{value:,.0f}" if value < 1e5 else f"{value:.0e}"
