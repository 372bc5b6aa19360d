"""A robust curve that is not linear: a damped oscillation under an absolute loss, EP against MCMC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from scipy.optimize import least_squares

import cavity

# Logarithms of the amplitude at a time in the middle, of the rate of decay, and of the frequency. The amplitude at the
# start would say the same, but hang together with the decay, and a product of Gaussians cannot know that.
TRUTH, MIDDLE = np.log([0.8, 0.2, 2.0]), 2.5
NAMES = ("log amplitude", "log decay", "log frequency")
ROWS, OUTLIERS, BATCH = 120, 18, 10
# Mean size of the noise, which the cost is told.
SCALE = 0.1
DRAWS, WARMUP = 40_000, 4_000


def main(out: Path) -> dict[str, Any]:
    """Fit the curve by EP, by MCMC and by least squares, and put means and standard deviations side by side."""
    rng = np.random.default_rng(0)
    t, y = measure(rng)
    prior = cavity.FactorialGaussian.from_moments(mean=[0.0, -2.0, np.log(2.2)], variance=[1.0, 1.0, 0.01])
    begin = perf_counter()
    factors = [
        cavity.CostFactor(misfit(t[k : k + BATCH], y[k : k + BATCH]), dim=3, vectorized=True)
        for k in range(0, ROWS, BATCH)
    ]
    result = cavity.fit(factors, prior, scheme="rvq", max_iter=50, tol=0.02)
    middle = perf_counter()
    cost = misfit(t, y)
    draws = walk(lambda p: prior.log_density(p[None])[0] - cost(p[None])[0], result.mean, result.std, rng)
    end = perf_counter()
    squares = least_squares(lambda p: curve(p[None], t)[0] - y, prior.mean).x
    draw(t, y, result, draws, squares, out / "robust_curve.png")
    mean, std = draws.mean(axis=0), draws.std(axis=0)
    lines = (
        f"EP {a:.3f} ± {b:.3f}, MCMC {c:.3f} ± {d:.3f}, in truth {e:.3f}, least squares {f:.3f}"
        for a, b, c, d, e, f in zip(result.mean, result.std, mean, std, TRUTH, squares, strict=True)
    )
    return {
        **dict(zip(NAMES, lines, strict=True)),
        "largest distance of the means in standard deviations": float(np.max(np.abs(result.mean - mean) / std)),
        "least ratio of standard deviations": float(np.min(result.std / std)),
        "largest ratio of standard deviations": float(np.max(result.std / std)),
        "largest correlation of the draws": float(np.max(np.abs(np.corrcoef(draws.T) - np.eye(3)))),
        "seconds, EP": middle - begin,
        "seconds, MCMC": end - middle,
    }


def curve(thetas: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Curves ``(n, times)`` for every row of parameters; what would overflow is cut off."""
    level, decay, frequency = thetas.T[..., None]
    size = np.minimum(level - np.exp(np.minimum(decay, 10.0)) * (t - MIDDLE), 20.0)
    return np.exp(size) * np.cos(np.exp(frequency) * t)


def misfit(t: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Absolute loss of many parameters at once."""
    return lambda thetas: np.abs(curve(thetas, t) - y).sum(axis=1) / SCALE


def measure(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Measure heights at random times; some go wrong."""
    t = rng.uniform(0.0, 10.0, ROWS)
    y = curve(TRUTH[None], t)[0] + SCALE * rng.laplace(size=ROWS)
    y[:OUTLIERS] = rng.uniform(0.5, 2.0, OUTLIERS)
    mixed = rng.permutation(ROWS)
    return t[mixed], y[mixed]


def walk(
    log_density: Callable[[np.ndarray], float], start: np.ndarray, std: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Random-walk Metropolis; the steps of the second walk have the covariance of the first."""
    root = np.diag(std)
    for count in (WARMUP, DRAWS):
        draws, here = np.empty((count, start.size)), log_density(start)
        moves = 1.4 * rng.standard_normal((count, start.size)) @ root.T
        bars = np.log(rng.random(count))
        for k in range(count):
            there = log_density(start + moves[k])
            if there - here > bars[k]:
                start, here = start + moves[k], there
            draws[k] = start
        root = np.linalg.cholesky(np.cov(draws.T))
    return draws


def draw(
    t: np.ndarray, y: np.ndarray, result: cavity.Result, draws: np.ndarray, squares: np.ndarray, path: Path
) -> None:
    """Show the data with both bands, and every parameter with both densities."""
    grid = np.linspace(0.0, 10.0, 400)
    noise = np.random.default_rng(1).standard_normal((2000, result.mean.size))
    ours = np.quantile(curve(result.posterior.draws(noise), grid), [0.025, 0.975], axis=0)
    theirs = np.quantile(curve(draws[::20], grid), [0.025, 0.975], axis=0)
    figure, axes = plt.subplot_mosaic("aaa;bcd", figsize=(9.0, 6.5), layout="constrained", height_ratios=(1.6, 1.0))
    axes["a"].plot(t, y, ".", color="0.6", markersize=5)
    axes["a"].fill_between(grid, *ours, color="C0", alpha=0.35, label="EP, 95 percent of curves")
    for k, edge in enumerate(theirs):
        axes["a"].plot(grid, edge, color="C1", linewidth=1.0, label="MCMC, the same" if k == 0 else None)
    axes["a"].plot(grid, curve(TRUTH[None], grid)[0], "k--", linewidth=1.0, label="truth")
    axes["a"].plot(grid, curve(squares[None], grid)[0], color="C3", linewidth=1.0, label="least squares")
    axes["a"].set(xlabel="time", ylabel="height", ylim=(-1.6, 2.2))
    axes["a"].legend(ncols=2, fontsize="small", loc="lower right")
    for k, (key, name) in enumerate(zip("bcd", NAMES, strict=True)):
        m, s = result.mean[k], result.std[k]
        x = np.linspace(m - 4.5 * s, m + 4.5 * s, 200)
        axes[key].hist(draws[:, k], bins=60, density=True, color="C1", alpha=0.4)
        axes[key].plot(x, np.exp(-0.5 * ((x - m) / s) ** 2) / (s * np.sqrt(2.0 * np.pi)), color="C0")
        axes[key].axvline(TRUTH[k], color="k", linestyle="--", linewidth=1.0)
        axes[key].set(xlabel=name, yticks=[])
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    run(main, __doc__)
