"""Thompson sampling on a logistic bandit: draws of the coefficients explore, their mean alone gets stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run

import cavity

ARMS, WIDTH, ROUNDS, BANDITS = 20, 8, 1000, 8


def main(out: Path) -> dict[str, Any]:
    """Play several bandits with both policies and plot their regret."""
    regrets = {
        name: np.array([play(thompson, seed) for seed in range(BANDITS)])
        for name, thompson in {"Thompson sampling": True, "plug-in": False}.items()
    }
    figure, axes = plt.subplots(figsize=(7.0, 4.0), layout="constrained")
    for name, regret in regrets.items():
        axes.plot(regret.mean(axis=0), label=name)
        axes.fill_between(np.arange(ROUNDS), regret.min(axis=0), regret.max(axis=0), alpha=0.15)
    axes.set(xlabel="round", ylabel=f"regret, mean and range of {BANDITS} bandits")
    axes.legend()
    figure.savefig(out / "thompson_sampling.png", dpi=120)
    plt.close(figure)
    return {f"regret after {ROUNDS} rounds, {name}": float(r[:, -1].mean()) for name, r in regrets.items()}


def play(thompson: bool, seed: int) -> np.ndarray:
    """Cumulated regret of one bandit: every arm has features, and one hidden vector decides on rewards."""
    rng = np.random.default_rng(seed)
    arms = rng.standard_normal((ARMS, WIDTH)) / np.sqrt(WIDTH)
    chances = 1.0 / (1.0 + np.exp(-arms @ (3.0 * rng.standard_normal(WIDTH))))
    model = cavity.EPClassifier(prior_variance=9.0, fit_intercept=False)
    model.partial_fit(arms[:1], [int(rng.random() < chances[0])], classes=[0, 1])
    regret = np.empty(ROUNDS)
    for t in range(ROUNDS):
        theta = model.sample_coef(random_state=seed * ROUNDS + t)[0] if thompson else model.coef_[0]
        arm = int(np.argmax(arms @ theta))
        regret[t] = chances.max() - chances[arm]
        model.partial_fit(arms[arm : arm + 1], [int(rng.random() < chances[arm])])
    return np.cumsum(regret)


if __name__ == "__main__":
    run(main, __doc__)
