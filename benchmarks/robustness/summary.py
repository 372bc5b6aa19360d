"""From the fits of the study to tables of a page."""

from __future__ import annotations

import bz2
import csv
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import astuple
from pathlib import Path

import numpy as np

from benchmarks.robustness.study import COLUMNS, LOSSES, SCALINGS, Outcome
from benchmarks.timing import markdown

RESULTS = Path(__file__).with_name("results.csv.bz2")
# A cost at most this share above the lowest of its cell counts as good; quasi 0-1 has many minima.
GOOD = {"logistic": 0.01, "hinge": 0.01, "quasi01": 0.1}


def save(outcomes: Iterable[Outcome], path: Path) -> None:
    """Write one line a fit."""
    with bz2.open(path, "wt", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for o in outcomes:
            writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in astuple(o)])


def load(path: Path = RESULTS) -> list[Outcome]:
    """Read them back."""
    kinds = (str, str, str, int, str, str, str, int, str, *([float] * 6))
    with bz2.open(path, "rt", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        return [Outcome(*(kind(cell) for kind, cell in zip(kinds, line, strict=True))) for line in lines]


def excess(outcomes: list[Outcome]) -> dict[Outcome, float]:
    """Cost above the lowest of its cell, as a share of what there is to gain; infinite for a fit that is lost."""
    lowest: dict[tuple[object, ...], float] = defaultdict(lambda: np.inf)
    for o in outcomes:
        if not o.is_lost:
            lowest[_cell(o)] = min(lowest[_cell(o)], o.cost)
    return {o: np.inf if o.is_lost else (o.cost - lowest[_cell(o)]) / lowest[_cell(o)] for o in outcomes}


def _cell(o: Outcome) -> tuple[object, ...]:
    return o.data, o.scaling, o.loss, o.seed


def tables(outcomes: list[Outcome]) -> dict[str, str]:
    """All tables, by name."""
    shares = tuple(f"{scaling} columns" if scaling == "raw" else scaling for scaling in SCALINGS)
    header = ("scheme", "basis", "start", *shares, "honest deviations", "lost", "settled")
    made = {f"choices, {loss}": markdown(header, by_choice(outcomes, loss)) for loss in LOSSES}
    made["batch sizes"] = markdown(
        ("basis", "batch", *shares, "honest deviations", "held-out log loss", "time"), by_batch(outcomes)
    )
    return made


def in_brief(outcomes: list[Outcome]) -> str:
    """One table for a page: the ways that people go, all scalings together, ten rows a batch."""
    above = excess(outcomes)
    ways = {("none", "prior"): "own columns, from the prior", ("none", "mode"): "own columns, from the mode"}
    ways |= {(basis, "mode"): f'basis="{basis}", from the mode' for basis in ("pca", "curvature")}
    rows = _table(
        [o for o in outcomes if o.batch_size == 10 and (o.basis, o.init) in ways],
        lambda o: (f'"{o.scheme}"', ways[o.basis, o.init]),
        lambda group: (
            *(_share(above[o] <= GOOD[loss] for o in group if o.loss == loss) for loss in LOSSES),
            _share(o.is_honest for o in group),
            _share(o.is_lost for o in group),
        ),
    )
    return markdown(("scheme", "how", "logistic", "hinge", "quasi 0-1", "honest deviations", "lost"), rows)


def by_choice(outcomes: list[Outcome], loss: str) -> list[tuple[str, ...]]:
    """For every scheme, basis and start: how often the cost is good, by scaling; how often the fit is lost."""
    above = excess(outcomes)
    return _table(
        [o for o in outcomes if o.loss == loss],
        lambda o: (o.scheme, o.basis, o.init),
        lambda group: (
            *(_share(above[o] <= GOOD[o.loss] for o in group if o.scaling == scaling) for scaling in SCALINGS),
            _share(o.is_honest for o in group),
            _share(o.is_lost for o in group),
            _share(o.status in ("CONVERGED", "SINGLE_PASS") for o in group),
        ),
    )


def by_batch(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """For exact projection from the mode: cost, held-out log loss and time by basis and batch size."""
    above = excess(outcomes)
    return _table(
        [o for o in outcomes if o.scheme == "exact" and o.init == "mode"],
        lambda o: (o.basis, f"{o.batch_size}"),
        lambda group: (
            *(_share(above[o] <= GOOD[o.loss] for o in group if o.scaling == scaling) for scaling in SCALINGS),
            _share(o.is_honest for o in group),
            f"{np.median([o.held_out_log_loss for o in group]):.4f}",
            f"{1e3 * np.median([o.seconds for o in group]):.0f} ms",
        ),
    )


def _table(
    outcomes: list[Outcome],
    key: Callable[[Outcome], tuple[str, ...]],
    row: Callable[[list[Outcome]], tuple[str, ...]],
) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[key(o)].append(o)
    return [(*name, *row(group)) for name, group in groups.items()]


def _share(flags: Iterable[bool]) -> str:
    """A share in per cent."""
    kept = list(flags)
    return f"{100.0 * np.mean(kept):.0f} %" if kept else ""
