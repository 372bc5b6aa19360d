"""The closed form of VQ beside the paper's Newton method: curves, times, and how times grow with d."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from cavity.factors import LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Logistic
from cavity.schemes._protocol import Scheme
from paper.curves import trace
from paper.experiment import Drawing, Experiment, Json, Panel, Settings, Task
from paper.timing import update_time
from reference.problems import LOSS_TITLES, LOSSES, NEWTON, SCHEMES, TITLES, Problem, design
from reference.timing import best_of

# Newton's method visits so many mini-batches of a large set, and goes up to this dimension.
_NEWTON_UPDATES = {"bank": 100, "census": 50}
_NEWTON_MOST = 1024
_DIMENSIONS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Exponents are slopes over so many of the largest dimensions, each twice the one before.
_FITTED = 4
SLOPE_SPAN = 2.0 ** (_FITTED - 1)
_ROWS = 100
# Entries as if a column of norm one had so many rows.
_COLUMN = 10_000
_BATCH_SIZES = (10, 100, 1000)
_TIMED_UPDATES = 30

SOLVERS: dict[str, Scheme] = {"closed": SCHEMES["vq"], "newton": NEWTON}


def keys(settings: Settings) -> list[tuple[str, str]]:
    """All problems."""
    return [(data, loss) for data in settings.data for loss in LOSSES]


def dimensions(settings: Settings) -> tuple[int, ...]:
    """Dimensions of the scaling experiment."""
    return tuple(d for d in _DIMENSIONS if d <= 64) if settings.quick else _DIMENSIONS


def tasks(settings: Settings) -> list[Task]:
    """Curves of every problem; then alone the times of every problem, dimension and batch size."""
    problems, quick = keys(settings), settings.quick
    return [
        *(Task(compare, (*key, quick), 2.0) for key in problems),
        *(Task(both_times, (*key, quick), alone=True) for key in problems),
        *(Task(one_update, (d,), alone=True) for d in dimensions(settings)),
        *(Task(overhead, (settings.data[-1], size, quick), alone=True) for size in _BATCH_SIZES),
    ]


def compare(data: str, loss: str, quick: bool) -> Json:
    """Run both solvers on one problem: costs after every update."""
    problem = Problem(data, loss, quick)
    most = 10 if quick else _NEWTON_UPDATES.get(data)
    curves = {name: trace(problem, scheme, most) for name, scheme in SOLVERS.items()}
    closed, newton = (np.array(curves[name]["cost"]) for name in ("closed", "newton"))
    apart = np.abs(closed - newton) / newton
    d = design(data, quick)[0].shape[1]
    return {
        "data": data,
        "loss": loss,
        "d": d,
        "start": float(problem.batches().cost(np.zeros(d))),
        "difference": float(np.max(apart)),
        "last_difference": float(apart[-1]),
        "curves": curves,
    }


def both_times(data: str, loss: str, quick: bool) -> Json:
    """Milliseconds an update by both solvers, over the first mini-batches."""
    problem, updates = Problem(data, loss, quick), 5 if quick else _TIMED_UPDATES
    return {name: update_time(problem, scheme, updates) for name, scheme in SOLVERS.items()}


def one_update(d: int) -> Json:
    """Milliseconds of one site in ``d`` dimensions, on a mini-batch of 100 random rows."""
    rng = np.random.default_rng(d)
    rows = rng.standard_normal((_ROWS, d)) / np.sqrt(_COLUMN)
    factor = LinearFactor(Logistic(), rows, np.sign(rng.standard_normal(_ROWS)))
    prior = FactorialGaussian.from_moments(np.zeros(d), 1.0)
    schemes = {**SOLVERS, "qla": SCHEMES["qla"], "gq": SCHEMES["gq"]}
    answer: Json = {"d": d}
    for name, scheme in schemes.items():
        if name == "newton" and d > _NEWTON_MOST:
            answer[name] = None
            continue
        calls = max(1, 200 // d) if name == "newton" else 20
        seconds, _ = best_of(partial(_repeat, scheme, factor, prior, calls))
        answer[name] = 1e3 * seconds / calls
    return answer


def _repeat(scheme: Scheme, factor: LinearFactor, cavity: FactorialGaussian, calls: int) -> None:
    for _ in range(calls):
        scheme.approximate(factor, cavity)


def overhead(data: str, batch_size: int, quick: bool) -> Json:
    """Milliseconds of QLA and VQ at another size of the mini-batches."""
    problem = Problem(data, "logistic", quick)
    count = 4 if quick else 20
    schemes = {"qla": SCHEMES["qla"], "vq": SCHEMES["vq"], "newton": NEWTON}
    times = {name: update_time(problem, s, count, batch_size)["ms"] for name, s in schemes.items()}
    return {"data": data, "batch_size": batch_size, **times}


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Cells, scaling with its slopes, and batch sizes."""
    count, left = len(keys(settings)), iter(answers)
    cells, times = list(islice(left, count)), list(islice(left, count))
    scaling = list(islice(left, len(dimensions(settings))))
    return {
        "cells": [{**cell, "times": both} for cell, both in zip(cells, times, strict=True)],
        "scaling": scaling,
        "slopes": {name: _slope(scaling, name) for name in ("closed", "newton", "qla", "gq")},
        "batch_sizes": list(left),
    }


def _slope(scaling: list[Json], name: str) -> float:
    """Power of d in the time, from the largest dimensions, where the constant share has faded."""
    d, ms = np.array([(s["d"], s[name]) for s in scaling if s[name] is not None][-_FITTED:]).T
    return float(np.polyfit(np.log(d), np.log(ms), 1)[0])


def draw(results: Json, needed: Mapping[str, Json]) -> Drawing:
    """Curves of each loss, then the times against d."""
    panels = [
        Panel(f"curves-{loss}", _alt(results, loss), partial(_curves, results, loss))
        for loss in LOSSES
        if any(cell["loss"] == loss for cell in results["cells"])
    ]
    last = results["scaling"][-1]
    alt = (
        "Time of one VQ update against the dimension d, both axes logarithmic. The closed form grows as d to the "
        f"power {results['slopes']['closed']:.2f} and takes {last['closed']:.3g} ms at d = {last['d']}; Newton's "
        f"method grows as d to the power {results['slopes']['newton']:.2f}."
    )
    return Drawing([panels[:2], [*panels[2:], Panel("times", alt, partial(_times, results))]], (4.6, 3.2))


_STYLES: dict[str, dict[str, Any]] = {
    "haberman": {"color": "#000000", "linestyle": "-"},
    "ionosphere": {"color": "#D55E00", "linestyle": (0, (6, 1.5))},
    "breast_cancer": {"color": "#0072B2", "linestyle": (0, (3, 1, 1, 1))},
    "bank": {"color": "#009E73", "linestyle": (0, (1, 1))},
    "census": {"color": "#CC79A7", "linestyle": (0, (3, 1.5))},
}


def _curves(results: Json, loss: str, axes: Any) -> None:
    for cell in (cell for cell in results["cells"] if cell["loss"] == loss):
        style, title = _STYLES[cell["data"]], TITLES[cell["data"]]
        closed, newton = (np.array(cell["curves"][name]["cost"]) / cell["start"] for name in ("closed", "newton"))
        share = np.arange(1, closed.size + 1) / closed.size
        axes.plot(share, closed, linewidth=1.4, label=title, **style)
        some = slice(None, None, max(1, newton.size // 18))
        axes.plot(share[some], newton[some], "o", color=style["color"], markersize=4, markerfacecolor="none")
    axes.set_title(f"VQ, {LOSS_TITLES[loss]}: closed form (lines), Newton (circles)")
    axes.set_xlabel("share of the updates")
    axes.set_ylabel("total cost / cost at the start")
    axes.set_ylim(0.0, 1.32 * axes.get_ylim()[1])
    axes.legend(fontsize=7.5, ncols=2, loc="upper right", handlelength=3.0)


_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "newton": ("VQ, Newton", {"color": "#D55E00", "linestyle": (0, (5, 2)), "marker": "s"}),
    "gq": ("GQ", {"color": "#009E73", "linestyle": (0, (1, 1)), "marker": "X"}),
    "closed": ("VQ, closed form", {"color": "#00406B", "linestyle": "-", "marker": "o"}),
    "qla": ("QLA", {"color": "#CC79A7", "linestyle": (0, (3, 1, 1, 1)), "marker": "^"}),
}


def _times(results: Json, axes: Any) -> None:
    for name, (title, style) in _LINES.items():
        points = [(s["d"], s[name]) for s in results["scaling"] if s[name] is not None]
        d, ms = zip(*points, strict=True)
        axes.plot(d, ms, markersize=4.5, label=f"{title}  $d^{{{results['slopes'][name]:.1f}}}$", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("dimension d")
    axes.set_ylabel("milliseconds per update")
    axes.set_title("time of one update, 100 rows")
    axes.legend(handlelength=3.5)


def _alt(results: Json, loss: str) -> str:
    worst = max((cell for cell in results["cells"] if cell["loss"] == loss), key=lambda cell: float(cell["difference"]))
    return (
        f"Cost curves of VQ with the {LOSS_TITLES[loss]} loss, by the closed form and by Newton's method, on every "
        f"data set. The largest relative difference is {worst['difference']:.1e}, on {TITLES[worst['data']]}."
    )


EXPERIMENT = Experiment("closedform", "VQ by the closed form and by Newton", tasks, gather, draw=draw)
