"""Text as hashed words, one pass: which library a paragraph of documentation comes from.

The text is the docstrings of numpy and scipy, which are installed with cavity; their names are taken out.
"""

from __future__ import annotations

import inspect
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import cavity

MODULES = {
    "numpy": ("numpy", "numpy.linalg", "numpy.fft", "numpy.polynomial", "numpy.random", "numpy.ma"),
    "scipy": ("scipy.linalg", "scipy.optimize", "scipy.stats", "scipy.signal", "scipy.sparse", "scipy.interpolate"),
}


def main(out: Path) -> dict[str, Any]:
    """Hash paragraphs, learn in one pass, and show how sure the classifier is of what it got wrong."""
    texts, labels = zip(*[(p, name) for name in MODULES for p in paragraphs(name)], strict=True)
    X = HashingVectorizer(n_features=2**18, alternate_sign=False, norm="l2").transform(texts)
    X_train, X_test, y_train, y_test = train_test_split(X, np.array(labels), test_size=0.3, random_state=0)
    # One pass of a product of Gaussians takes a fraction of a second, and its deviations are conditional on the other
    # words. With covariance left at "auto" all correlations of the words would be kept, which takes about a minute.
    model = cavity.EPClassifier(covariance="diagonal", max_iter=1, prior_variance=25.0, random_state=0)
    model.fit(X_train, y_train)
    mean, std = model.decision_function(X_test, return_std=True)
    right = model.predict(X_test) == y_test
    figure, axes = plt.subplots(figsize=(7.0, 4.5), layout="constrained")
    for name, chosen in {"right": right, "wrong": ~right}.items():
        axes.plot(mean[chosen], std[chosen], ".", markersize=4, alpha=0.6, label=name)
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    axes.set(xlabel="linear predictor (negative: numpy)", ylabel="its standard deviation")
    axes.legend()
    figure.savefig(out / "sparse_text.png", dpi=120)
    plt.close(figure)
    return {
        "paragraphs": len(texts),
        "columns": X.shape[1],
        "non-zeros a row": X.nnz / X.shape[0],
        "accuracy": float(np.mean(right)),
        "log loss": log_loss(y_test, model.predict_proba(X_test)),
    }


def paragraphs(library: str) -> list[str]:
    """Paragraphs of a library's docstrings, each once, in a fixed order."""
    found: dict[str, None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES[library]:
            module = import_module(name)
            for member in sorted(dir(module)):
                text = inspect.getdoc(getattr(module, member)) or ""
                for paragraph in re.split(r"\n\s*\n", text):
                    words = re.findall(r"[a-z]{3,}", re.sub(r"\b(num|sci)py\w*|\bnp\b", " ", paragraph.lower()))
                    if len(words) >= 8:
                        found.setdefault(" ".join(words))
    return list(found)


if __name__ == "__main__":
    run(main, __doc__)
