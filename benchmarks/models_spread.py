"""`EPRegressor(loss="normal", scale="linear")`: 90 % intervals of new targets, wide and narrow ones."""

from __future__ import annotations

import numpy as np

from benchmarks.bars import Row, markdown
from cavity import EPRegressor

SETS, SETS_QUICK = 50, 5
ROWS, NEW, COLUMNS = 1000, 1000, 5
LEVEL, BAR, PARTS = 0.9, (0.88, 0.92), 5


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Coverage in every fifth of the new rows by the width of their interval, over data sets."""
    count = SETS_QUICK if quick else SETS
    linear, constant = covered("linear", count), covered("auto", count)
    shares = np.mean(linear, axis=0)
    found = f"{100.0 * np.min(shares):.1f} to {100.0 * np.max(shares):.1f} %, {count} data sets of {ROWS:,} rows"
    met = bool(np.min(shares) >= BAR[0] and np.max(shares) <= BAR[1])
    rows = [Row("linear spread, new targets in their 90 % intervals, by fifths of the width", found, "88 to 92 %", met)]
    header = ("scale", *(f"fifth {k + 1}" for k in range(PARTS)), "worst data set")
    cells = [
        (name, *(f"{100.0 * share:.1f} %" for share in np.mean(held, axis=0)), f"{100.0 * np.min(held):.1f} %")
        for name, held in (("linear", linear), ("the same for all rows", constant))
    ]
    return rows, {"models-spread": markdown(header, cells)}


def covered(scale: str, count: int) -> np.ndarray:
    """Share of new targets in their intervals, ``(data sets, fifths)``; fifths by the true deviation for one scale."""
    rng, held = np.random.default_rng(0), []
    for _ in range(count):
        X = rng.standard_normal((ROWS + NEW, COLUMNS))
        slopes, log_slopes = rng.standard_normal(COLUMNS), 0.4 * rng.standard_normal(COLUMNS)
        std = np.exp(-0.5 + X @ log_slopes)
        y = 100.0 + 20.0 * (X @ slopes + std * rng.standard_normal(ROWS + NEW))
        model = EPRegressor(loss="normal", scale="linear") if scale == "linear" else EPRegressor()
        low, high = _interval(model.fit(X[:ROWS], y[:ROWS]), X[ROWS:])
        inside = (low <= y[ROWS:]) & (y[ROWS:] <= high)
        width = high - low if scale == "linear" else std[ROWS:]
        held.append([np.mean(inside[part]) for part in np.array_split(np.argsort(width), PARTS)])
    return np.array(held)


def _interval(model: EPRegressor, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = model.predict(X, quantile=[0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0]).T
    return low, high
