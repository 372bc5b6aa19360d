"""One pass in calls of 100 rows: the default, products of Gaussians and SGD, against a fit to all rows at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from benchmarks.bars import Row, markdown
from benchmarks.data import Data, load
from cavity import EPClassifier
from reference.problems import LARGE

CHUNK = 100
QUICK_ROWS = 3000
# Shares above the held-out log loss of a fit to all rows, ratios of deviations to its, and microseconds per row.
ABOVE, BETWEEN, MICROS = 0.005, (0.8, 1.25), 40.0
HEADER = ("data", "one pass", "held-out log loss", "deviations to those of fit: least, median, most", "µs per row")

MODELS: dict[str, Callable[[], Any]] = {
    "partial_fit": EPClassifier,
    'covariance="diagonal"': partial(EPClassifier, covariance="diagonal", prior_variance=25.0),
    "SGDClassifier": partial(SGDClassifier, loss="log_loss", random_state=0),
}


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars on the default, and a table of all models."""
    rows, cells = [], []
    for name in LARGE:
        data = load(name)
        if quick:
            data = data._replace(X=data.X[:QUICK_ROWS], y=data.y[:QUICK_ROWS])
        more, lines = _compare(data, 1 if quick else 3)
        rows += more
        cells += lines
    return rows, {"streams-models": markdown(HEADER, cells)}


def _compare(data: Data, repeats: int) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Four fifths of the rows are learned from, the rest is held out."""
    cut = int(0.8 * data.y.size)
    X, y, rest, labels = data.X[:cut], data.y[:cut], data.X[cut:], data.y[cut:]
    whole = EPClassifier().fit(X, y)
    lowest = log_loss(labels, whole.predict_proba(rest), labels=whole.classes_)
    cells, rows = [(data.title, "fit, all rows at once", f"{lowest:.5f}", "", "")], []
    for title, make in MODELS.items():
        model, micros = _streamed(make, X, y, repeats)
        found = log_loss(labels, model.predict_proba(rest), labels=whole.classes_)
        spread = ""
        if hasattr(model, "coef_std_"):
            ratios = model.coef_std_ / whole.coef_std_
            low, middle, high = np.min(ratios), np.median(ratios), np.max(ratios)
            spread = f"{low:.2f}, {middle:.2f}, {high:.2f}"
        cells.append((data.title, title, f"{found:.5f}", spread, f"{micros:.1f}"))
        if make is EPClassifier:
            share = found / lowest - 1.0
            measured, bar = f"{100.0 * share:+.2f} %", f"at most {100.0 * ABOVE:g} % above a fit to all rows"
            rows.append(Row(f"{data.title}: held-out log loss", measured, bar, share <= ABOVE))
            bar = f"{BETWEEN[0]:g} to {BETWEEN[1]:g} of those of a fit"
            rows.append(Row(f"{data.title}: deviations", spread, bar, low >= BETWEEN[0] and high <= BETWEEN[1]))
            rows.append(Row(f"{data.title}: time", f"{micros:.1f} µs per row", f"{MICROS:g} µs", micros <= MICROS))
    return rows, cells


def _streamed(make: Callable[[], Any], X: Any, y: Any, repeats: int) -> tuple[Any, float]:
    """One pass, and processor time per row, the best of several."""
    best = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats + 1):
            model, start = make(), time.process_time()
            for i in range(0, y.size, CHUNK):
                model.partial_fit(X[i : i + CHUNK], y[i : i + CHUNK], classes=[-1.0, 1.0])
            best = min(best, time.process_time() - start)
    return model, 1e6 * best / y.size
