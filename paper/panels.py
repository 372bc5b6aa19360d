"""How cost curves are drawn; axes come from `canvas`, so nothing here imports matplotlib."""

from __future__ import annotations

from functools import partial
from math import ceil, floor, log10
from typing import Any

import numpy as np

from paper.experiment import Drawing, Json, Panel
from paper.minima import lookup
from reference.problems import LOSS_TITLES, SCHEME_TITLES, SCHEMES, TITLES

# Colours of Okabe and Ito; every line also has its own dashes and marker, so that it can be distinguished in grey.
STYLES: dict[str, dict[str, Any]] = {
    "la": {"color": "#D55E00", "linestyle": (0, (6, 1.5)), "marker": "s"},
    "qla": {"color": "#CC79A7", "linestyle": (0, (3, 1, 1, 1)), "marker": "^"},
    "gq": {"color": "#009E73", "linestyle": (0, (1, 1)), "marker": "X"},
    "vq": {"color": "#00406B", "linestyle": "-", "marker": "o"},
    "la_slope": {"color": "#D55E00", "linestyle": (0, (5, 2)), "marker": ""},
    "qla_slope": {"color": "#A3407F", "linestyle": (0, (1, 1.5)), "marker": ""},
    "best": {"color": "#000000", "linestyle": "-", "marker": ""},
    "paper": {"color": "#777777", "linestyle": (0, (7, 3)), "marker": ""},
}
WIDTHS = {"vq": 2.0, "la_slope": 0.9, "qla_slope": 0.9, "best": 0.9, "paper": 0.9}
LABELS = {**SCHEME_TITLES, "best": "best minimum known", "paper": "minimum of the paper’s method"}
# Costs above so many times the cost at the prior mean leave the frame, with a note.
_CAP = 1.6


def grid(results: Json, minima: Json) -> Drawing:
    """Lay out one panel per cell, one row per data set."""
    known = lookup(minima)
    rows: dict[str, list[Panel]] = {}
    for cell in results["cells"]:
        key = (cell["data"], cell["loss"])
        if key in known:
            panel = Panel("-".join(key), _alt(cell, known[key]), partial(curve_panel, cell, known[key]))
            rows.setdefault(cell["data"], []).append(panel)
    has_paper = any(known[key]["paper"] is not None for key in known if key[0] in rows)
    return Drawing(list(rows.values()), (4.1, 3.0), legend=(*SCHEMES, "best", *(["paper"] if has_paper else [])))


def curve_panel(cell: Json, minimum: Json, axes: Any) -> None:
    """Total cost on a logarithmic axis, the minima as lines; what leaves the frame is named at its top."""
    best = minimum["best"]["cost"]
    cap = _CAP * cell["start"]
    tops = []
    for name, curve in cell["curves"].items():
        cost = np.array([np.inf if c is None else c for c in curve["cost"]])
        axes.plot(
            np.arange(1, cost.size + 1),
            np.clip(cost, None, 10.0 * cap),
            **STYLES[name],
            linewidth=WIDTHS.get(name, 1.3),
            markersize=4.0,
            markevery=(cost.size // 16, max(1, cost.size // 7)),
            zorder=4 if name == "vq" else 3,
        )
        tops.append((float(np.max(cost)), name))
    axes.axhline(best, **STYLES["best"], linewidth=WIDTHS["best"], zorder=2)
    if minimum["paper"] is not None and minimum["paper"]["cost"] > best * 1.001:
        axes.axhline(minimum["paper"]["cost"], **STYLES["paper"], linewidth=WIDTHS["paper"], zorder=2)
    for loop in range(1, cell["loops"]):
        axes.axvline(loop * cell["batches"], color="#000000", alpha=0.12, linewidth=0.7, zorder=1)
    _frame(axes, best, min(cap, max(top for top, _ in tops)))
    out = [f"{SCHEME_TITLES[name]} to {_short(top)}" for top, name in tops if top > cap]
    if out:
        note = {"ha": "right", "va": "top", "fontsize": 7.5, "zorder": 6}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(0.985, 0.985, "↑ " + ", ".join(out), transform=axes.transAxes, bbox=box, **note)
    axes.set_xlabel("mini-batch updates")
    axes.set_ylabel("total cost")
    axes.set_title(f"{TITLES[cell['data']]}, {LOSS_TITLES[cell['loss']]}")


def _frame(axes: Any, low: float, high: float) -> None:
    ratio = (high / low) ** 0.06
    low, high = low / ratio, high * ratio
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.minorticks_off()
    places = ticks(low, high)
    axes.set_yticks(places, [f"{t:,.0f}" if t >= 10 else f"{t:g}" for t in places])


def ticks(low: float, high: float) -> list[float]:
    """Between three and seven round numbers in a range, spread for a logarithmic axis."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        found = [s * 10.0**e for e in decades for s in steps if low <= s * 10.0**e <= high]
        if len(found) >= 3:
            return found
    for step in (10.0**e * s for e in range(floor(log10(high)), -9, -1) for s in (5.0, 2.5, 2.0, 1.0)):
        found = [k * step for k in range(ceil(low / step), floor(high / step) + 1)]
        if len(found) >= 3:
            return found
    return [low, high]


def _alt(cell: Json, minimum: Json) -> str:
    ends = ", ".join(f"{SCHEME_TITLES[name]} {_short(curve['cost'][-1])}" for name, curve in cell["curves"].items())
    return (
        f"Total cost after every update on {TITLES[cell['data']]} with the {LOSS_TITLES[cell['loss']]} loss. "
        f"It starts at {_short(cell['start'])} and ends at: {ends}. Best minimum known: "
        f"{_short(minimum['best']['cost'])}."
    )


def _short(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "no number"
    return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.1e}"
