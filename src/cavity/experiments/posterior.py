"""Posteriors on ordinary data, columns of unit variance: how far each way of fitting lies from the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from cavity.experiments import posterior_panels
from cavity.experiments.experiment import Drawing, Experiment, Json, Panel, Settings, Task
from cavity.experiments.posterior_fits import (
    Case,
    Fit,
    Marginals,
    as_in_the_paper,
    by_estimator,
    by_full_covariance,
    by_sampling,
    distance_of_means,
    ratio_of_deviations,
)
from cavity.experiments.posterior_sites import site_distances
from cavity.experiments.problems import LOSSES, PAPER_SCHEMES, TITLES

# The set and the loss of which every coefficient is shown, if the set is among those taken.
_SHOWN, _SHOWN_LOSS = "breast_cancer", "logistic"
# Chains and draws of each.
_SAMPLING, _SAMPLING_QUICK = (64, 200), (16, 20)
# Loops of EP with a full covariance on large sets.
_LARGE_LOOPS = 10

# What is compared in every small cell, in the order of the table.
WAYS: dict[str, Callable[[Case], Fit]] = {
    "exact": partial(by_estimator, basis=None),
    "exact_pca": partial(by_estimator, basis="pca"),
    "exact_curvature": partial(by_estimator, basis="curvature"),
}


def keys(settings: Settings) -> list[tuple[str, str]]:
    """Small cells: all losses, or the first one in a quick run, which has no time to compile the others."""
    return [(data, loss) for data in settings.small for loss in _losses(settings)]


def tasks(settings: Settings) -> list[Task]:
    """One task for every small cell, then for the cell shown in full, then for every large cell."""
    quick, small = settings.quick, keys(settings)
    shown = [Task(paper_fits, (_shown(settings), quick), 3.0)] if small else []
    # Full EP breaks down on quasi 0-1 there, and is no reference.
    large = [(data, loss) for data in settings.large for loss in _losses(settings) if loss != "quasi01"]
    return [
        *(Task(compare, (*key, quick), 4.0) for key in small),
        *shown,
        *(Task(compare_large, (*key, quick), 4.0) for key in large),
    ]


def compare(data: str, loss: str, quick: bool) -> Json:
    """Run everything but the paper's schemes on a small cell, and measure against full EP and against sampling."""
    case = Case(data, loss, quick=quick)
    full = by_full_covariance(case)
    chains, draws = _SAMPLING_QUICK if quick else _SAMPLING
    drawn = by_sampling(case, full, chains, draws)
    fits = {name: fit(case) for name, fit in WAYS.items()}
    fits["full"] = Fit(full.mean, full.std, len(full.trace.changes), full.status.name)
    references: dict[str, Marginals] = {"full": full, "sampled": drawn}
    return {
        "data": data,
        "loss": loss,
        "sampling": {"effective_size": drawn.effective_size, "r_hat": drawn.disagreement},
        "sampled": _profile(drawn),
        "fits": {name: summary(case, fit, references) for name, fit in fits.items()},
        "sites": site_distances(case, PAPER_SCHEMES),
    }


def compare_large(data: str, loss: str, quick: bool) -> Json:
    """Compare the estimator's defaults with full EP on a large cell."""
    case = Case(data, loss, quick=quick)
    full = by_full_covariance(case, _LARGE_LOOPS)
    fit = by_estimator(case)
    ours = summary(case, fit, {"full": full})
    return {
        "data": data,
        "loss": loss,
        "cost": ours["cost"],
        "full_cost": case.cost(full.mean),
        "full_status": full.status.name,
        "loops": fit.loops,
        "dm": ours["dm_full"],
        "sdr": ours["sdr_full"],
    }


def paper_fits(data: str, quick: bool) -> dict[str, Json]:
    """Run the paper's four schemes, as the paper had them, on the cell shown."""
    case = Case(data, _SHOWN_LOSS, quick=quick)
    fits = {name: as_in_the_paper(case, name) for name in PAPER_SCHEMES}
    return {name: summary(case, fit, {}) for name, fit in fits.items()}


def summary(case: Case, fit: Fit, references: Mapping[str, Marginals]) -> Json:
    """Means, deviations and cost of a fit, and its distances from the references."""
    found: Json = {"cost": case.cost(fit.mean), "loops": fit.loops, "status": fit.status, **_profile(fit)}
    for name, reference in references.items():
        found |= distances(fit, reference, name)
    return found


def distances(ours: Marginals, reference: Marginals, name: str) -> Json:
    """Both measures against a reference of that name."""
    return {
        f"dm_{name}": distance_of_means(ours, reference),
        f"sdr_{name}": ratio_of_deviations(ours, reference),
    }


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Small cells, the one shown with the paper's schemes in it, and large cells."""
    left = iter(answers)
    cells = list(islice(left, len(keys(settings))))
    shown: Json | None = None
    if cells:
        of_paper = next(left)
        cell = next(c for c in cells if (c["data"], c["loss"]) == (_shown(settings), _SHOWN_LOSS))
        sampled = _Sampled(cell["sampled"])
        for fit in of_paper.values():
            fit |= distances(_Sampled(fit), sampled, "sampled")
        shown = {**{k: cell[k] for k in ("data", "loss", "sampled")}, "fits": {**of_paper, **cell["fits"]}}
    return {"cells": cells, "shown": shown, "large": list(left)}


class _Sampled:
    """Means and deviations as they were stored."""

    def __init__(self, stored: Json) -> None:
        self.mean, self.std = np.array(stored["mean"]), np.array(stored["std"])


def _profile(of: Marginals) -> Json:
    return {"mean": [float(f"{v:.8g}") for v in of.mean], "std": [float(f"{v:.8g}") for v in of.std]}


def _losses(settings: Settings) -> tuple[str, ...]:
    return (_SHOWN_LOSS,) if settings.quick else tuple(LOSSES)


def _shown(settings: Settings) -> str:
    return _SHOWN if _SHOWN in settings.small else settings.small[0]


def draw(results: Json, needed: Mapping[str, Json]) -> Drawing:
    """One panel a way of fitting, sampling behind it; then both measures over all cells."""
    shown = results["shown"]
    if shown is None:
        return Drawing([], (4.1, 3.0))
    panels = [
        Panel(f"coefficients-{name}", _alt(shown, name), partial(posterior_panels.coefficients, shown, name))
        for name in shown["fits"]
    ]
    panels += [
        Panel(f"cells-{measure}", _alt_cells(results, measure), partial(posterior_panels.over_cells, results, measure))
        for measure in posterior_panels.MEASURES
    ]
    return Drawing([panels[i : i + 3] for i in range(0, len(panels), 3)], (4.1, 3.0))


def _alt(shown: Json, name: str) -> str:
    fit = shown["fits"][name]
    return (
        f"Coefficients of {TITLES[shown['data']]}, {shown['loss']} loss, by {posterior_panels.NAMES[name]}, sampling "
        f"behind them: means {_said(fit['dm_sampled'], '.2g')} standard deviations away in the root mean square, "
        f"deviations {_said(fit['sdr_sampled'], '.2f')} times those of sampling in the median."
    )


def _alt_cells(results: Json, measure: str) -> str:
    told = []
    for name in posterior_panels.COMPARED:
        values = [cell["fits"][name][f"{measure}_sampled"] for cell in results["cells"]]
        told.append(f"{posterior_panels.NAMES[name]} from {min(values):.2g} to {max(values):.2g}")
    return f"{posterior_panels.MEASURES[measure].title} in {len(results['cells'])} cells: {'; '.join(told)}."


def _said(value: float | None, form: str) -> str:
    return "without number" if value is None else format(value, form)


EXPERIMENT = Experiment("posterior", "posteriors on columns of unit variance", tasks, gather, draw=draw)
