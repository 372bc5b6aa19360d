"""The bars on the estimators: what the wrappers add to their kernels, and how well probabilities are calibrated."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cavity
from benchmarks.timing import Row, best_times
from cavity import datasets, schemes
from cavity.fitting import make_settings
from cavity.linear import LinearRun

BATCH = 100


def wrappers(repeats: int) -> list[Row]:
    """Census income, one pass of `fit` and mini-batches of `partial_fit` against the compiled sweep they call."""
    design = datasets.paper("census")
    X, y = design.X, design.y
    rows = []
    for scheme, loss in (("qla", "logistic"), ("vq", "hinge"), ("exact", "logistic")):
        for loops in (1, 10):
            model = _model(scheme, loss, loops)
            sweep = _sweep(model, X, y, loops)
            t = best_times({"fit": lambda m=model: m.fit(X, y), "sweep": sweep}, repeats)
            ratio = t["fit"] / t["sweep"]
            rows.append(
                Row(
                    f"EPClassifier.fit, {scheme} {loss}, {loops} loops",
                    f"{1e3 * t['fit']:.2f} ms against {1e3 * t['sweep']:.2f} ms: {ratio:.2f} x",
                    "at most 1.2 x the compiled sweep",
                    ratio <= 1.2,
                )
            )
        rows.append(_stream_row(scheme, loss, X, y, repeats))
    return rows


def _model(scheme: str, loss: str, loops: int, intercept: bool = False) -> cavity.EPClassifier:
    """A model whose rows are those given, so that the sweep sees the same numbers."""
    return cavity.EPClassifier(
        loss, scheme, batch_size=BATCH, loops=loops, tol=0.0, shuffle=False, fit_intercept=intercept,
        basis=None, init="prior",
    )  # fmt: skip


def _sweep(model: cavity.EPClassifier, X: Any, y: Any, loops: int) -> Any:
    """The loops that `fit` runs, and nothing else."""
    model.fit(X, y)
    factors = cavity.LinearFactor.batches(model._loss, X, y, BATCH)
    settings = make_settings(
        loops, "none" if loops == 1 else "own", 1.0, 1.0, 1.0, "cyclic", 0, "keep", 0.0, len(factors), loops > 1
    )
    prior = model._frame.inner_prior

    def sweeps() -> None:
        run = LinearRun(factors, prior, schemes.resolve(model.scheme), settings)
        for loop in range(loops):
            run.loop(loop)

    return sweeps


def _stream_row(scheme: str, loss: str, X: Any, y: Any, repeats: int) -> Row:
    model = _model(scheme, loss, 1, intercept=True).partial_fit(X[:BATCH], y[:BATCH], classes=[-1.0, 1.0])
    rows, labels = np.ascontiguousarray(X[BATCH : 2 * BATCH]), y[BATCH : 2 * BATCH].copy()
    stream, inner = model._streams[0], model._frame.rows(rows)
    targets = np.where(labels > 0.0, 1.0, -1.0)
    works = {
        "partial_fit": lambda: [model.partial_fit(rows, labels) for _ in range(100)],
        "kernel": lambda: [stream.take(inner, targets, None, BATCH) for _ in range(100)],
    }
    t = best_times(works, repeats)
    beyond = 1e4 * (t["partial_fit"] - t["kernel"])
    return Row(
        f"EPClassifier.partial_fit, {scheme} {loss}, 100 rows with an intercept",
        f"{1e4 * t['partial_fit']:.1f} µs, kernel {1e4 * t['kernel']:.1f} µs: {beyond:.1f} µs beyond",
        "at most 60 µs beyond its kernel",
        beyond <= 60.0,
    )


def calibration(quick: bool) -> list[tuple[str, ...]]:
    """Log loss and calibration error of `predict_proba`, five folds, every loss and logistic regression beside it."""
    rows = []
    for name in datasets.NAMES[: 3 if quick else None]:
        design = datasets.paper(name, scale="std")
        X, y = design.X[:, :-1], design.y
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        models: dict[str, Any] = {
            loss: cavity.EPClassifier(loss, random_state=0) for loss in ("logistic", "hinge", "quasi01")
        }
        models["LogisticRegression"] = LogisticRegression(C=25.0, max_iter=2000)
        for label, model in models.items():
            p = cross_val_predict(make_pipeline(StandardScaler(), model), X, y, cv=folds, method="predict_proba")[:, 1]
            rows.append((name, label, f"{_log_loss(y, p):.4f}", f"{expected_calibration_error(y, p):.4f}"))
    return rows


def _log_loss(y: Any, p: Any) -> float:
    chosen = np.clip(np.where(y > 0.0, p, 1.0 - p), 1e-15, 1.0)
    return float(-np.mean(np.log(chosen)))


def expected_calibration_error(y: Any, p: Any, bins: int = 10) -> float:
    """Mean distance of predicted probability and share, over bins of equally many rows."""
    order = np.argsort(p, kind="stable")
    parts = np.array_split(order, bins)
    return float(sum(part.size * abs(np.mean(p[part]) - np.mean(y[part] > 0.0)) for part in parts) / y.size)
