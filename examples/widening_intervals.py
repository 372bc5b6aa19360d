"""Intervals that widen where the data do: the log standard deviation as a linear function of the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

import cavity

SCALES = {"auto": 'scale="auto": one spread for all rows', "linear": 'scale="linear": the spread follows the features'}


def main(out: Path) -> dict[str, Any]:
    """Fit a curve with one spread and with a spread of its own for every row; count new rows within the intervals."""
    rng = np.random.default_rng(0)
    x, y = draw(400, rng)
    x_new, y_new = draw(20_000, rng)
    grid = np.linspace(0.0, 10.0, 200)[:, None]
    figure, panels = plt.subplots(1, 2, figsize=(10.0, 4.2), sharey=True, layout="constrained")
    numbers: dict[str, Any] = {}
    for axes, (scale, name) in zip(panels, SCALES.items(), strict=True):
        model = make_pipeline(
            SplineTransformer(n_knots=6), StandardScaler(), cavity.EPRegressor(loss="normal", scale=scale)
        ).fit(x, y)
        low, middle, high = model.predict(grid, quantile=[0.05, 0.5, 0.95]).T
        axes.plot(x, y, ".", color="0.55", markersize=4)
        axes.plot(grid, middle, color="C0", label="median")
        axes.fill_between(grid[:, 0], low, high, color="C0", alpha=0.25, linewidth=0.0, label="90% of new rows")
        axes.set(xlabel="x", title=name)
        low, high = model.predict(x_new, quantile=[0.05, 0.95]).T
        inside = (low < y_new) & (y_new < high)
        for part, rows in {"x below 3": x_new[:, 0] < 3.0, "x above 7": x_new[:, 0] > 7.0}.items():
            numbers[f"share of new rows in 90% intervals, {part}, scale={scale!r}"] = float(inside[rows].mean())
        numbers[f"log evidence, scale={scale!r}"] = float(model[-1].log_evidence_)
    panels[0].set_ylabel("y")
    panels[0].legend(loc="upper left")
    figure.savefig(out / "widening_intervals.png", dpi=120)
    plt.close(figure)
    return numbers


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a curve with normal noise that widens."""
    x = rng.uniform(0.0, 10.0, n)
    return x[:, None], np.sin(x) + 0.3 * x + np.exp(-2.0 + 0.25 * x) * rng.standard_normal(n)


if __name__ == "__main__":
    run(main, __doc__)
