"""Quantile regression: bands that follow the spread of the data, with the uncertainty of the bands themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

import cavity

QUANTILES = (0.1, 0.5, 0.9)


def main(out: Path) -> dict[str, Any]:
    """Fit three quantiles to data whose spread grows, and count how many new rows lie below each."""
    rng = np.random.default_rng(0)
    x, y = draw(800, rng)
    x_new, y_new = draw(20_000, rng)
    grid = np.linspace(0.0, 10.0, 200)[:, None]
    figure, axes = plt.subplots(figsize=(8.0, 4.5), layout="constrained")
    axes.plot(x, y, ".", color="0.6", markersize=3)
    shares = {}
    for k, q in enumerate(QUANTILES):
        model = make_pipeline(
            SplineTransformer(n_knots=8),
            StandardScaler(),
            cavity.EPRegressor(loss="quantile", quantile=q, random_state=0),
        ).fit(x, y)
        line, std = model.predict(grid, return_std=True)
        axes.plot(grid, line, color=f"C{k}", label=f"quantile {q}")
        axes.fill_between(grid[:, 0], line - 2.0 * std, line + 2.0 * std, color=f"C{k}", alpha=0.2)
        shares[f"share of new rows below quantile {q}"] = float(np.mean(y_new < model.predict(x_new)))
    axes.set(xlabel="x", ylabel="y")
    axes.legend()
    figure.savefig(out / "quantile_bands.png", dpi=120)
    plt.close(figure)
    return shares


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a curve with skewed noise that widens."""
    x = rng.uniform(0.0, 10.0, n)
    return x[:, None], np.sin(x) + 0.3 * x + (0.1 + 0.1 * x) * (rng.gamma(2.0, size=n) - 2.0)


if __name__ == "__main__":
    run(main, __doc__)
