"""Never a broken posterior: every scheme, guarded, on every set, scale and loss of the paper."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import Row
from cavity.experiments.posterior_fits import Case, by_estimator
from cavity.experiments.problems import LARGE, LOSSES, SMALL
from cavity.schemes import NAMES

# Rounding allowed a cost that is compared with another.
_LEEWAY = 1e-9

CHOICES: dict[str, dict[str, Any]] = {
    "default basis, from the mode": {},
    "own columns, from the prior": {"basis": None, "init": "prior"},
}


class Outcome(NamedTuple):
    """How one fit ended."""

    case: Case
    is_proper: bool
    share: float

    @property
    def is_safe(self) -> bool:
        """Whether the posterior is one, at a mean that costs no more than zero."""
        return self.is_proper and self.share <= 1.0 + _LEEWAY


def safety(quick: bool) -> list[Row]:
    """One row for every scheme and choice of basis and start, over all cells."""
    data = SMALL[:1] if quick else (*SMALL, *LARGE)
    cases = [Case(name, loss, scale) for name in data for scale in ("std", "norm") for loss in LOSSES]
    return [
        summed_up(f"{scheme}, safeguards, {title}", [outcome(case, scheme, choice) for case in cases])
        for scheme in NAMES
        for title, choice in CHOICES.items()
    ]


def outcome(case: Case, scheme: str, choice: dict[str, Any]) -> Outcome:
    """Fit one cell, and hold its cost against that of the prior mean."""
    fit = by_estimator(case, scheme=scheme, safeguards=True, **choice)
    return Outcome(case, fit.is_proper, case.cost(fit.mean) / case.cost(np.zeros_like(fit.mean)))


def summed_up(work: str, outcomes: list[Outcome]) -> Row:
    """Count what went wrong, and name the cell that came off worst."""
    worst = max(outcomes, key=lambda o: (not o.is_proper, o.share))
    improper = sum(not o.is_proper for o in outcomes)
    above = sum(o.is_proper and not o.is_safe for o in outcomes)
    told = (
        f"{len(outcomes)} cells: {improper} improper, {above} above; highest {worst.share:.3f} of the cost at zero "
        f"({worst.case.title}, {worst.case.scale})"
    )
    return Row(work, told, "all proper, no cost above that at zero", all(o.is_safe for o in outcomes))
