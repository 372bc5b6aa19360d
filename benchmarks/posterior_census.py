"""Census income against sampling: as `benchmarks.posterior`, apart from it because the draws take long.

Levels of few rows, all of one label, have skewed coefficients, along whose tails chains move slowly: these may have
fewer effective draws than the others, which the bar speaks of.
"""

from __future__ import annotations

from benchmarks.bars import Row, markdown
from benchmarks.data import load
from benchmarks.posterior import HEADER, LOSSES, SKEWED_HEADER, SKEWNESS, against_sampling


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Both losses; not in a smoke test."""
    found = [] if quick else [against_sampling(load("census"), loss, quick, SKEWNESS) for loss in LOSSES]
    lines, skewed = [line for _, line, _ in found], [line for *_, rest in found for line in rest]
    tables = {
        "posterior_census-coefficients": markdown(HEADER, lines),
        "posterior_census-skewed": markdown(SKEWED_HEADER, skewed),
    }
    return [row for row, *_ in found], tables
