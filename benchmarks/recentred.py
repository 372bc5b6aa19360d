"""The bars on recentred variational quadrature: nine cells of the paper, standardised columns, and time."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import cavity
from benchmarks.bars import Row, at_most
from benchmarks.speed import one_pass
from cavity import datasets
from reference import solvers
from reference.problems import LOSS_TITLES, LOSSES, PRIOR_VARIANCE, SMALL, TITLES
from reference.timing import best_times

BATCH, LOOPS = 10, 15
WITHIN = 0.01
BARS = {
    "logistic": "within 1 % of the minimum",
    "hinge": "within 1 % of the minimum",
    "quasi01": "at most Powell's from the logistic solution",
}


def end_cost(data: str, loss: str, scale: str, scheme: str, safeguards: bool = False) -> float:
    """Cost at the posterior mean."""
    design, priced = datasets.paper(data, scale), LOSSES[loss]
    prior = cavity.FactorialGaussian.from_moments(np.zeros(design.X.shape[1]), PRIOR_VARIANCE)
    batches = cavity.LinearFactor.batches(priced, design.X, design.y, BATCH)
    with warnings.catch_warnings():  # the cost is what counts, wherever the loops ended
        warnings.simplefilter("ignore", ConvergenceWarning)
        mean = cavity.fit(batches, prior, scheme, max_iter=LOOPS, safeguards=safeguards, compiled=True).mean
    return solvers.cost(priced, design.y[:, None] * design.X, mean, PRIOR_VARIANCE)


def small_cells() -> list[Row]:
    """Cost at the end against the minimum, the paper's scaling."""
    rows = []
    for data in SMALL:
        design = datasets.paper(data)
        A = design.y[:, None] * design.X
        for loss, bar in BARS.items():
            ours = end_cost(data, loss, "norm", "rvq")
            least = solvers.cost(LOSSES[loss], A, solvers.offline_minimum(loss, A, PRIOR_VARIANCE), PRIOR_VARIANCE)
            excess = ours / least - 1.0
            measured = f"{ours:.2f} against {least:.2f}: {100.0 * excess:+.2f} %"
            met = excess <= (0.0 if loss == "quasi01" else WITHIN)
            rows.append(Row(f"RVQ {TITLES[data]}, {LOSS_TITLES[loss]}", measured, bar, met))
    return rows


def standardised_cells() -> list[Row]:
    """Cost at the end against the cost at zero, on columns of unit variance, with safeguards and without."""
    rows = []
    for data in SMALL:
        for loss in BARS:
            start = len(datasets.paper(data).y) * float(LOSSES[loss].value(np.ones(1), np.zeros(1))[0])
            plain, safe = (end_cost(data, loss, "std", "rvq", safeguards) for safeguards in (False, True))
            vq = end_cost(data, loss, "std", "vq")
            measured = f"{plain:.1f}, {safe:.1f} with safeguards, from {start:.1f}; VQ {vq:.1f}"
            title = f"RVQ {TITLES[data]}, {LOSS_TITLES[loss]}, standardised"
            rows.append(Row(title, measured, "never above the cost at zero", max(plain, safe) <= start))
    return rows


def large_pass(repeats: int) -> list[Row]:
    """Time of one pass over Census income against that of VQ."""
    design = datasets.paper("census")
    works: dict[str, Any] = {
        f"{scheme} {name}": one_pass(loss, design.X, design.y, scheme)
        for name, loss in LOSSES.items()
        for scheme in ("rvq", "vq")
    }
    t = best_times(works, repeats)
    return [
        at_most(f"RVQ {LOSS_TITLES[n]}, one pass over Census income", t[f"rvq {n}"], t[f"vq {n}"], 10.0, "VQ")
        for n in LOSSES
    ]


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars; no table beside them."""
    return [*small_cells(), *standardised_cells(), *large_pass(3 if quick else 20)], {}
