"""Softmax of ten classes: which handwritten digits the model is unsure about, and how sure its probabilities are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import cavity

SHOWN, DRAWS = 6, 300


def main(out: Path) -> dict[str, Any]:
    """Fit some digits, and show those of the rest whose most likely class is least likely."""
    images, y = load_digits(return_X_y=True)
    rows, held = train_test_split(np.arange(len(y)), train_size=600, random_state=0, stratify=y)
    X = PCA(25, random_state=0).fit(images[rows]).transform(images) / 16.0
    model = cavity.EPClassifier().fit(X[rows], y[rows])
    p = model.predict_proba(X[held])
    top, right = p.max(axis=1), p.argmax(axis=1) == y[held]
    order = np.argsort(top)
    unsure = held[order[:SHOWN]]
    draw(model, images[unsure], X[unsure], y[unsure], out / "unsure_digits.png")
    tenth = len(held) // 10
    return {
        "held-out accuracy": float(right.mean()),
        "held-out log loss": float(log_loss(y[held], p)),
        "accuracy where most unsure, a tenth of the digits": float(right[order[:tenth]].mean()),
        "accuracy elsewhere": float(right[order[tenth:]].mean()),
    }


def draw(model: Any, images: np.ndarray, X: np.ndarray, y: np.ndarray, path: Path) -> None:
    """One digit per column: its picture, and under it the probabilities with intervals from draws."""
    p = model.predict_proba(X)
    low, high = np.quantile(model.predict_proba_samples(X, DRAWS, random_state=0), [0.05, 0.95], axis=0)
    figure, axes = plt.subplots(
        2, len(y), figsize=(11.0, 4.4), layout="constrained", gridspec_kw={"height_ratios": [1.0, 1.5]}
    )
    places = np.arange(10)
    for j, (above, below) in enumerate(axes.T):
        above.imshow(images[j].reshape(8, 8), cmap="gray_r")
        above.set_axis_off()
        above.set_title(f"true class: {y[j]}", fontsize="medium")
        below.barh(places, p[j], color=["C0" if k == y[j] else "0.75" for k in places])
        below.hlines(places, low[j], high[j], color="0.2", linewidth=1.2)
        below.spines[["top", "right"]].set_visible(False)
        below.set(xlim=(0.0, 1.0), ylim=(9.6, -0.6), yticks=places, xticks=(0.0, 0.5, 1.0))
        if j:
            below.set_yticklabels([])
    axes[1, 0].set_ylabel("class")
    figure.supxlabel("probability of the class, with its 90% interval; blue: the true class", fontsize="medium")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    run(main, __doc__)
