"""A stream whose coefficients turn slowly: forgetting keeps the posterior awake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import cavity

ROWS, WIDTH, STEPS = 100, 10, 400


def main(out: Path) -> dict[str, Any]:
    """Predict every mini-batch before learning from it; plot the loss as the stream goes on."""
    models = {
        "all rows count alike": (cavity.EPClassifier(prior_variance=4.0), 0.0),
        "forget=0.05": (cavity.EPClassifier(prior_variance=4.0), 0.05),
        "SGDClassifier": (SGDClassifier(loss="log_loss", random_state=0), None),
    }
    losses: dict[str, list[float]] = {name: [] for name in models}
    for step, (X, y) in enumerate(stream(np.random.default_rng(0))):
        for name, (model, forget) in models.items():
            if step:
                losses[name].append(log_loss(y, model.predict_proba(X), labels=[0, 1]))
            options = {} if forget is None else {"forget": forget}
            model.partial_fit(X, y, classes=[0, 1], **options)
    figure, axes = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
    for name, values in losses.items():
        axes.plot(np.convolve(values, np.full(20, 0.05), mode="valid"), label=name)
    axes.set(xlabel="mini-batch of 100 rows", ylabel="log loss before learning, mean of 20", ylim=(0.2, 1.2))
    axes.legend()
    figure.savefig(out / "drifting_stream.png", dpi=120)
    plt.close(figure)
    half = STEPS // 2
    return {f"log loss in the second half, {name}": float(np.mean(values[half:])) for name, values in losses.items()}


def stream(rng: np.random.Generator) -> Any:
    """Mini-batches of a logistic model whose coefficients make a full turn in two planes."""
    for step in range(STEPS):
        angle = 2.0 * np.pi * step / STEPS
        theta = np.zeros(WIDTH)
        theta[:4] = 3.0 * np.array([np.cos(angle), np.sin(angle), np.sin(angle), -np.cos(angle)])
        X = rng.standard_normal((ROWS, WIDTH))
        yield X, (X @ theta + rng.logistic(size=ROWS) > 0.0).astype(int)


if __name__ == "__main__":
    run(main, __doc__)
