"""The bars on the estimators: what the wrappers add to their kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

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
