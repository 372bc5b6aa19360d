"""Models of more than one linear predictor or prior variance: softmax, random effects, a spread for every row."""

from __future__ import annotations

from benchmarks import models_mixed, models_softmax, models_spread
from benchmarks.bars import Row


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and the tables behind them."""
    rows: list[Row] = []
    tables: dict[str, str] = {}
    for part in (models_softmax, models_mixed, models_spread):
        more, behind = part.measure(quick)
        rows += more
        tables |= behind
    return rows, tables
