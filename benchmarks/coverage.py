"""How often 90 % intervals hold the truth, over data sets drawn from the model: coefficients, and new targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse, stats

from benchmarks.bars import Row, markdown
from cavity import EPClassifier, EPRegressor
from reference.problems import FloatArray

LEVEL, BAR = 0.9, (0.88, 0.92)
# Data sets of a classifier: 300 would leave a standard error of 1.7 % per coefficient, these leave 0.5 %.
SETS, SETS_QUICK = 3000, 100
# Streams: each data set has so many rows, and as many new targets, so that 300 sets are enough.
STREAMS, STREAMS_QUICK, ROWS, NEW = 300, 10, 1000, 200
CHUNKS = (1, 10, 1000)
_ROWS, _PRIOR, _INTERCEPT = 150, 1.0, 1.0
_HALF = float(stats.norm.ppf(0.5 + LEVEL / 2.0))


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and a table of them."""
    count = SETS_QUICK if quick else SETS
    rows = [
        coefficients(storage, variance, count)
        for storage in ("dense", "CSR")
        for variance in (_PRIOR, "auto")
    ]  # fmt: skip
    count = STREAMS_QUICK if quick else STREAMS
    rows += [targets(loss, chunk, count) for loss in ("squared", "absolute") for chunk in CHUNKS]
    return rows, {"coverage-intervals": markdown(("what", "covered", "bar", ""), [row.cells for row in rows])}


def coefficients(storage: str, variance: Any, count: int) -> Row:
    """Share of data sets, per coefficient, whose interval holds it; prior variance given, or found."""
    rng, held = np.random.default_rng(0), []
    for _ in range(count):
        X = _dense(rng) if storage == "dense" else _sparse(rng)
        theta = rng.normal(0.0, np.sqrt(_PRIOR), X.shape[1])
        intercept = rng.normal(0.0, np.sqrt(_INTERCEPT))
        y = np.where(X @ theta + intercept + rng.logistic(size=X.shape[0]) > 0.0, 1.0, -1.0)
        if np.all(y == y[0]):
            continue
        model = EPClassifier(prior_variance=variance, intercept_prior_variance=_INTERCEPT).fit(X, y)
        mean, std = model.posterior_[0].mean, np.sqrt(model.posterior_[0].variance)
        held.append(np.abs(np.append(theta, intercept) - mean) <= _HALF * std)
    shares = np.mean(held, axis=0)
    title = f"EPClassifier, {storage}, {_ROWS} rows of {shares.size - 1} columns, prior variance "
    title += "found" if variance == "auto" else "given"
    found = f"{100.0 * np.min(shares):.1f} to {100.0 * np.max(shares):.1f} % by coefficient, {len(held)} data sets"
    return Row(title, found, "88 to 92 %", bool(np.min(shares) >= BAR[0] and np.max(shares) <= BAR[1]))


def _dense(rng: np.random.Generator) -> FloatArray:
    """Six columns of correlation 0.5."""
    return np.sqrt(0.5) * (rng.standard_normal((_ROWS, 1)) + rng.standard_normal((_ROWS, 6)))


def _sparse(rng: np.random.Generator) -> Any:
    """Two factors of three and four levels, all of them as columns, and a number that is rarely not zero."""
    levels = [np.eye(k)[rng.integers(k, size=_ROWS)] for k in (3, 4)]
    number = rng.standard_normal((_ROWS, 1)) * (rng.random((_ROWS, 1)) < 0.3)
    return sparse.csr_array(np.column_stack([*levels, number]))


def targets(loss: str, chunk: int, count: int) -> Row:
    """Share of new targets in their interval after a stream in calls of so many rows."""
    rng, held = np.random.default_rng(1), []
    for _ in range(count):
        theta, scale = rng.normal(size=5), 10.0 ** rng.uniform(-1.0, 1.0)
        X = rng.standard_normal((ROWS + NEW, 5))
        noise = rng.standard_normal(ROWS + NEW) if loss == "squared" else rng.laplace(size=ROWS + NEW)
        y = 3.0 + X @ theta + scale * noise
        model = EPRegressor(loss)
        for i in range(0, ROWS, chunk):
            model.partial_fit(X[i : min(i + chunk, ROWS)], y[i : min(i + chunk, ROWS)])
        low, high = model.predict(X[ROWS:], quantile=[0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0]).T
        held.append(np.mean((low <= y[ROWS:]) & (y[ROWS:] <= high)))
    share, least = float(np.mean(held)), float(np.min(held))
    found = f"{100.0 * share:.1f} % of new targets, {100.0 * least:.0f} % in the worst of {count} streams"
    title = f"EPRegressor, {loss}, {ROWS} rows in calls of {chunk}"
    return Row(title, found, "88 to 92 %", BAR[0] <= share <= BAR[1])
