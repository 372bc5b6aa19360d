"""The claims table: sentences of the paper, what was measured here, and a verdict computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import claims_large, claims_small, claims_time, claims_whole
from paper.claim import NOISE, judged
from paper.evidence import Tolerances, assemble
from paper.experiment import Experiment, Json, Settings, Task

GROUPS = {
    "Small data sets": claims_small.CLAIMS,
    "Large data sets": claims_large.CLAIMS,
    "Time": claims_time.CLAIMS,
    "Abstract and discussion": claims_whole.CLAIMS,
}


def tasks(settings: Settings) -> list[Task]:
    """Nothing to compute: the numbers are there."""
    return []


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """Judge every claim."""
    evidence, tolerances = assemble(needed), Tolerances()
    groups = [
        {"title": title, "claims": [judged(claim, evidence, tolerances) for claim in claims]}
        for title, claims in GROUPS.items()
    ]
    return {"steady": tolerances.steady, "close": tolerances.close, "noise": NOISE, "groups": groups}


EXPERIMENT = Experiment(
    "claims",
    "verdicts on the paper’s sentences",
    tasks,
    gather,
    needs=("minima", "fig2", "fig3", "table1", "closedform"),
)
