"""Two methods to weight a row: w equal rows that share one site, or one factor of power w that is fitted as one."""

from __future__ import annotations

import numpy as np

from benchmarks.sampling import Target, sample
from cavity import losses
from cavity.ep.blocks import RowSites, propose
from reference.problems import FloatArray

PRIOR_VARIANCE = 25.0
LOOPS, STEP = 2000, 0.2
HEADER = ("cells", "loss", "rows that share a site: deviations, largest error of a mean", "merged into one factor")
LOSSES = {"logistic": losses.Logistic(), "hinge": losses.Hinge()}


def _levels() -> tuple[FloatArray, FloatArray, FloatArray]:
    """One factor of three levels, one column each: 74 rows all negative, 60 of 100 positive, 10 of 100 positive."""
    counts = np.array([[0, 74], [60, 40], [10, 90]])
    return _table(np.eye(3), counts)


def _crossed() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Two crossed factors of 4 and 6 levels, 1000 rows, all levels as columns."""
    rng = np.random.default_rng(0)
    a, b = np.divmod(np.arange(24), 6)
    cells = np.column_stack([np.eye(4)[a], np.eye(6)[b]])
    chances = 1.0 / (1.0 + np.exp(-cells @ rng.normal(size=10)))
    sizes = rng.multinomial(1000, rng.dirichlet(np.ones(24)))
    positive = rng.binomial(sizes, chances)
    return _table(cells, np.column_stack([positive, sizes - positive]))


def _table(cells: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct rows, their labels, and how often they occur."""
    X, y = np.repeat(cells, 2, axis=0), np.tile([1.0, -1.0], len(cells))
    weights = counts.ravel().astype(np.float64)
    kept = weights > 0.0
    return X[kept], y[kept], weights[kept]


TABLES = {"levels of 74 negative rows, and two more": _levels, "4 x 6 levels, 1,000 rows": _crossed}


def fit(loss: str, X: FloatArray, y: FloatArray, weights: FloatArray, merged: bool) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance: damped EP over all distinct rows at once."""
    sites = RowSites.uniform(y.size)
    power = 1.0 if merged else 1.0 / weights
    for _ in range(LOOPS):
        covariance = np.linalg.inv(X.T @ (sites.precision[:, None] * X) + np.eye(X.shape[1]) / PRIOR_VARIANCE)
        mean = covariance @ (X.T @ sites.shift)
        sites.mean[:], sites.variance[:] = X @ mean, np.einsum("ij,jk,ik->i", X, covariance, X)
        changes = propose(LOSSES[loss], y, weights, sites, power=power, fresh=True)
        sites.precision[:] += STEP * changes.precision
        sites.shift[:] += STEP * changes.shift
    return mean, covariance


def lines(draws: int) -> list[tuple[str, ...]]:
    """One line per table and loss: both methods against sampling."""
    made = []
    for title, table in TABLES.items():
        X, y, weights = table()
        for loss in LOSSES:
            both = {merged: fit(loss, X, y, weights, merged) for merged in (False, True)}
            counts, variances = weights.astype(int), np.full(X.shape[1], PRIOR_VARIANCE)
            target = Target(loss, np.repeat(X, counts, axis=0), np.repeat(y, counts), variances)
            truth = sample(target, *both[True], draws)
            cells = []
            for mean, covariance in both.values():
                ratios, error = np.sqrt(np.diag(covariance)) / truth.std, np.max(np.abs(mean - truth.mean) / truth.std)
                cells.append(f"{np.min(ratios):.3f} to {np.max(ratios):.3f}, {error:.3f} sd")
            made.append((title, loss, *cells))
    return made
