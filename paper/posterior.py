"""Posteriors on ordinary data, columns of unit variance: how far each method of fitting lies from the truth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from paper import posterior_panels
from paper.experiment import Drawing, Experiment, Json, Panel, Settings, Task
from paper.posterior_fits import (
    Case,
    Fit,
    Marginals,
    as_a_product,
    as_in_the_paper,
    by_estimator,
    by_sampling,
    distance_of_means,
    ratios_of_deviations,
)
from reference.problems import LOSSES, PAPER_SCHEMES, TITLES

# The set and the loss of which every coefficient is shown, if the set is among those taken.
_SHOWN, _SHOWN_LOSS = "breast_cancer", "logistic"
# Chains and draws of each.
_SAMPLING, _SAMPLING_QUICK = (64, 400), (16, 20)


def keys(settings: Settings) -> list[tuple[str, str]]:
    """Small cells: all losses, or the first one in a quick run, which has no time to compile the others."""
    return [(data, loss) for data in settings.small for loss in _losses(settings)]


def tasks(settings: Settings) -> list[Task]:
    """One task for every small cell, then for every large cell."""
    shown = settings.small and (_SHOWN if _SHOWN in settings.small else settings.small[0], _SHOWN_LOSS)
    # EP does not converge on quasi 0-1 there, and is no reference.
    large = [(data, loss) for data in settings.large for loss in _losses(settings) if loss != "quasi01"]
    return [
        *(Task(compare, (*key, settings.quick, key == shown), 4.0) for key in keys(settings)),
        *(Task(compare_large, (*key, settings.quick), 4.0) for key in large),
    ]


def compare(data: str, loss: str, quick: bool, with_paper: bool) -> Json:
    """Fit a small cell by all methods, those of the paper if asked for, and measure them against sampling."""
    case = Case(data, loss, quick=quick)
    drawn = by_sampling(case, *(_SAMPLING_QUICK if quick else _SAMPLING))
    fits = {name: as_in_the_paper(case, name) for name in PAPER_SCHEMES if with_paper}
    fits |= {"product": as_a_product(case), "blocks": by_estimator(case)}
    return {
        "data": data,
        "loss": loss,
        "shown": with_paper,
        "sampling": {"effective_size": drawn.effective_size, "r_hat": drawn.disagreement},
        "sampled": _profile(drawn),
        "fits": {name: summary(case, fit, drawn) for name, fit in fits.items()},
    }


def compare_large(data: str, loss: str, quick: bool) -> Json:
    """Fit a large cell by the classifier and as a product of Gaussians, measured against the former."""
    case = Case(data, loss, quick=quick)
    blocks = by_estimator(case)
    fits = {"product": as_a_product(case), "blocks": blocks}
    return {"data": data, "loss": loss, "fits": {name: summary(case, fit, blocks) for name, fit in fits.items()}}


def summary(case: Case, fit: Fit, reference: Marginals) -> Json:
    """Means, deviations and cost of a fit, and how far its worst coefficient lies from the reference."""
    return {
        "cost": case.cost(fit.mean),
        "loops": fit.loops,
        "status": fit.status,
        **_profile(fit),
        "distance": distance_of_means(fit, reference),
        "ratios": ratios_of_deviations(fit, reference),
    }


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Small cells, the one shown, and large cells."""
    left = iter(answers)
    cells = list(islice(left, len(keys(settings))))
    return {"cells": cells, "shown": next((c for c in cells if c["shown"]), None), "large": list(left)}


def _profile(of: Marginals) -> Json:
    return {"mean": [float(f"{v:.8g}") for v in of.mean], "std": [float(f"{v:.8g}") for v in of.std]}


def _losses(settings: Settings) -> tuple[str, ...]:
    return (_SHOWN_LOSS,) if settings.quick else tuple(LOSSES)


def draw(results: Json, needed: Mapping[str, Json]) -> Drawing:
    """One panel per method of fitting, sampling behind it; then both measures over all cells."""
    shown = results["shown"]
    if shown is None:
        return Drawing([], (4.1, 3.0))
    panels = [
        Panel(f"coefficients-{name}", _alt(shown, name), partial(posterior_panels.coefficients, shown, name))
        for name in shown["fits"]
    ]
    over = {"distance": posterior_panels.distances, "ratios": posterior_panels.ratios}
    panels += [
        Panel(f"cells-{measure}", _alt_cells(results, measure), partial(drawn, results))
        for measure, drawn in over.items()
    ]
    return Drawing([panels[i : i + 2] for i in range(0, len(panels), 2)], (6.1, 3.2))


def _alt(shown: Json, name: str) -> str:
    return (
        f"Coefficients of {TITLES[shown['data']]}, {shown['loss']} loss, by {posterior_panels.NAMES[name]}, sampling "
        f"behind them: {posterior_panels.outcome(shown['fits'][name])}."
    )


def _alt_cells(results: Json, measure: str) -> str:
    ranges = []
    for name in posterior_panels.COMPARED:
        values = np.array([cell["fits"][name][measure] for cell in results["cells"]])
        ranges.append(f"{posterior_panels.NAMES[name]} from {np.min(values):.2g} to {np.max(values):.2g}")
    return f"{posterior_panels.MEASURES[measure]} in {len(results['cells'])} cells: {'; '.join(ranges)}."


EXPERIMENT = Experiment("posterior", "posteriors on columns of unit variance", tasks, gather, draw=draw)
