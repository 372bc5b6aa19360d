"""From the fits of the study to tables of a page."""

from __future__ import annotations

import bz2
import csv
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

import numpy as np

from benchmarks.bars import markdown
from benchmarks.robustness.study import CHOICES, COLUMNS, LOSSES, SCALINGS, Outcome

RESULTS = Path(__file__).with_name("results.csv.bz2")


def save(outcomes: Iterable[Outcome], path: Path) -> None:
    """Write one line per fit."""
    with bz2.open(path, "wt", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for o in outcomes:
            writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in astuple(o)])


def load(path: Path = RESULTS) -> list[Outcome]:
    """Read them back."""
    kinds = (str, str, str, int, str, str, int, *([float] * 5))
    with bz2.open(path, "rt", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        return [Outcome(*(kind(cell) for kind, cell in zip(kinds, line, strict=True))) for line in lines]


def tables(outcomes: list[Outcome]) -> dict[str, str]:
    """All tables, by name: one of everything, and one per loss by scaling."""
    shares = ("raw columns" if scaling == "raw" else scaling for scaling in SCALINGS)
    header = ("fit", *shares, "smallest and largest deviation", "converged", "held-out log loss")
    made = {f"choices, {loss}": markdown(header, by_scaling(outcomes, loss)) for loss in LOSSES}
    return {"in brief": in_brief(outcomes), **made}


def in_brief(outcomes: list[Outcome]) -> str:
    """One line per choice, all data and scalings together."""
    rows = []
    for choice in CHOICES:
        group = [o for o in outcomes if o.choice == choice]
        near = (_share(o.is_near for o in group if o.loss == loss) for loss in LOSSES)
        logistic = [o for o in group if o.loss == "logistic"]
        rows.append(
            (
                f"`{choice}`",
                *(near if np.isfinite(group[0].distance) else ("",) * len(LOSSES)),
                _share(o.status == "CONVERGED" for o in group),
                f"{np.mean([o.held_out_log_loss for o in logistic]):.3f}",
                f"{1e3 * np.median([o.seconds for o in group]):.0f} ms",
            )
        )
    header = ("fit", "logistic", "hinge", "quasi 0-1", "converged", "held-out log loss, logistic", "median time")
    return markdown(header, rows)


def by_scaling(outcomes: list[Outcome], loss: str) -> list[tuple[str, ...]]:
    """For every choice: how often every coefficient is near the reference, by scaling, and how it ended."""
    rows = []
    for choice in CHOICES:
        group = [o for o in outcomes if o.choice == choice and o.loss == loss]
        finite = [o for o in group if np.isfinite(o.low)]
        known = bool(finite)
        near = (_share(o.is_near for o in group if o.scaling == scaling) for scaling in SCALINGS)
        low, high = (np.min([o.low for o in finite]), np.max([o.high for o in finite])) if known else (np.nan, np.nan)
        rows.append(
            (
                f"`{choice}`",
                *(near if known else ("",) * len(SCALINGS)),
                f"{low:.2g} to {high:.2g}" if known else "",
                _share(o.status == "CONVERGED" for o in group),
                f"{np.mean([o.held_out_log_loss for o in group]):.3f}",
            )
        )
    return rows


def _share(flags: Iterable[bool]) -> str:
    """A share in per cent."""
    kept = list(flags)
    return f"{100.0 * np.mean(kept):.0f} %" if kept else ""
