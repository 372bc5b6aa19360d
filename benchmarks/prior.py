"""The prior variance that is found: separable data, losses that are no likelihoods, and streams."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from benchmarks.bars import Row, markdown
from benchmarks.calibration import held_out
from benchmarks.data import REAL, Data, load
from cavity import EPClassifier
from reference.problems import LARGE, FloatArray

FIXED = 25.0
GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CHUNKS = (10, 100, 1000)
QUICK_ROWS = 1000
# The linear predictor of an average row on separable data, and by how much held-out losses may exceed those of variance
# 25.
MOST_SPREAD, HARM = 1e4, 0.01
HARM_HEADER = ("data", "loss", "found", "log loss", "log loss, 25", "log loss, best of a grid", "error", "error, 25")
STREAM_HEADER = (
    "data",
    "rows per call",
    "log loss",
    "log loss of fit",
    "variance found, by fit",
    "deviations to fit's",
)


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and the tables behind them."""
    rows = separable()
    harm_rows, harm_cells = harm([_some(name, quick) for name in REAL])
    stream_cells = [line for name in (*LARGE, "breast_cancer") for line in streams(_some(name, quick))]
    tables = {
        "prior-harm": markdown(HARM_HEADER, harm_cells),
        "prior-streams": markdown(STREAM_HEADER, stream_cells),
    }
    return [*rows, *harm_rows], tables


def _some(name: str, quick: bool) -> Data:
    data = load(name)
    return data._replace(X=data.X[:QUICK_ROWS], y=data.y[:QUICK_ROWS]) if quick else data


def fitted(loss: str, X: FloatArray, y: FloatArray, **options: Any) -> EPClassifier:
    """Fit without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EPClassifier(loss, **options).fit(X, y)


def separable() -> list[Row]:
    """Standard deviation of the predictor of an average row under the prior found, as separable data grow."""
    rows = []
    for loss in ("logistic", "hinge", "quasi01"):
        spreads = []
        for n in (20, 200, 2000):
            rng = np.random.default_rng(n)
            X = rng.standard_normal((n, 5))
            model = fitted(loss, X, np.where(X[:, 0] + 0.5 * X[:, 1] > 0.0, 1.0, -1.0))
            spreads.append(float(np.sqrt(model.prior_variance_ * X.shape[1])))
        found = f"{spreads[0]:.3g}, {spreads[1]:.3g}, {spreads[2]:.3g} with 20, 200, 2000 rows"
        title = f"separable data, {loss}: spread of the predictor under the prior"
        rows.append(Row(title, found, f"bounded, at most {MOST_SPREAD:g}", max(spreads) <= MOST_SPREAD))
    return rows


def harm(chosen: list[Data]) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Held-out losses with the variance found, with 25, and with the best of a grid by held-out log loss."""
    rows, cells = [], []
    for loss in ("logistic", "hinge", "quasi01"):
        worse = []
        for data in chosen:
            if loss == "quasi01" and data.name in LARGE:
                continue
            free = held_out(data, partial(EPClassifier, loss))
            fixed = held_out(data, partial(EPClassifier, loss, prior_variance=FIXED))
            grid = GRID if data.name not in LARGE else GRID[::2]
            best = min(held_out(data, partial(EPClassifier, loss, prior_variance=v)).log_loss for v in grid)
            found = fitted(loss, data.X, data.y).prior_variance_
            worse.append(free.log_loss / fixed.log_loss - 1.0)
            losses = (f"{free.log_loss:.4f}", f"{fixed.log_loss:.4f}", f"{best:.4f}")
            errors = (f"{1.0 - free.accuracy:.4f}", f"{1.0 - fixed.accuracy:.4f}")
            cells.append((data.title, loss, f"{found:.3g}", *losses, *errors))
        measured = f"{100.0 * min(worse):+.1f} to {100.0 * max(worse):+.1f} %"
        rows.append(
            Row(f"{loss}: held-out log loss against variance 25", measured, "at most 1 % worse", max(worse) <= HARM)
        )
    return rows, cells


def streams(data: Data) -> list[tuple[str, ...]]:
    """One pass in calls of some rows, against a fit to the same rows: held-out log loss, and deviations."""
    cut = int(0.8 * data.y.size)
    X, y, rest, labels = data.X[:cut], data.y[:cut], data.X[cut:], data.y[cut:]
    whole, lines = fitted("logistic", X, y), []
    reference = log_loss(labels, whole.predict_proba(rest), labels=whole.classes_)
    for chunk in CHUNKS:
        if chunk > cut:
            continue
        model = EPClassifier()
        for i in range(0, cut, chunk):
            model.partial_fit(X[i : i + chunk], y[i : i + chunk], classes=[-1.0, 1.0])
        found = log_loss(labels, model.predict_proba(rest), labels=whole.classes_)
        ratios = model.coef_std_ / whole.coef_std_
        spread = f"{np.min(ratios):.2f}, {np.median(ratios):.2f}, {np.max(ratios):.2f}"
        variances = f"{model.prior_variance_:.3g}, {whole.prior_variance_:.3g}"
        lines.append((data.title, f"{chunk}", f"{found:.5f}", f"{reference:.5f}", variances, spread))
    return lines
