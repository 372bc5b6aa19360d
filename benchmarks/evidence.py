"""Hyperparameters at the maximum of the evidence: units, maxima, components beside peers, little data, loops, times.

`python -m benchmarks.evidence NAME [--quick]` runs one of the studies alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

if __name__ == "__main__":  # one thread: set before any library reads it
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.bars import Row, markdown
from benchmarks.data import REAL, SIMULATED, load, standardised
from benchmarks.models_crossed import simulate
from cavity import EPClassifier, EPRegressor
from reference.problems import LARGE, FloatArray
from reference.reml import LOGISTIC, POISSON, RandomIntercepts, dummies, reml

Outcome = tuple[list[Row], dict[str, str]]


def measure(quick: bool) -> Outcome:
    """All bars, and the tables behind them."""
    rows: list[Row] = []
    tables: dict[str, str] = {}
    for study in STUDIES.values():
        more, behind = study(quick)
        rows += more
        tables |= behind
    return rows, tables


def fitted(model: Any, X: Any, y: Any) -> Any:
    """Fit without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def variance_of(model: Any, name: str) -> float:
    """Prior variance of a group, in squared units of the targets."""
    found = model.prior_variance_
    return float(found[name] if isinstance(found, dict) else found) * getattr(model, "y_scale_", 1.0) ** 2


def per_cent(share: float, digits: int = 1) -> str:
    """A share for people."""
    return f"{100.0 * share:.{digits}f} %"


def own_units(X: FloatArray) -> FloatArray:
    """Columns in the units in which the library finds a prior: for these, found and given variances mean the same.

    Centre and unit are mean and standard deviation or, where a column has two values, or zero, its smallest or its
    largest in more than half of its rows, that value and the root mean square distance of the other rows from it.
    """
    X = X[:, np.std(X, axis=0) > 1e-12]
    center, unit = np.mean(X, axis=0), np.std(X, axis=0)
    for j, column in enumerate(X.T):
        for value in (0.0, np.min(column), np.max(column)):
            others = column[column != value]
            if 0 < others.size < column.size and (2 * others.size < column.size or np.ptp(others) == 0.0):
                center[j], unit[j] = value, np.sqrt(np.mean(np.square(others - value)))
                break
    return np.ascontiguousarray((X - center) / unit)


# 1. Units of the columns.

SAME_PROBABILITY, SAME_LOSS = 1e-4, 0.01
FOLDS_HEADER = ("data", "log loss, raw columns", "log loss, standardised", "difference")
UNITS_HEADER = ("data", "model", "largest change of a prediction")


def units(quick: bool) -> Outcome:
    """Raw columns give what standardised ones give."""
    rows, lines = [*raw_classifier(), raw_regressor()], []
    for title, make, X, y in rescaled_problems():
        change = largest_change(make, X, y, 1 if quick else 3)
        lines.append((title, make().__class__.__name__ + f", {make().loss}", f"{change:.1e}", change))
    worst = max(lines, key=lambda line: line[-1])
    rows.append(
        Row(
            "columns times 10^[-8, 8], shifted by up to 1,000 deviations: predictions",
            f"change by at most {worst[-1]:.1e} ({worst[0]})",
            f"at most {SAME_PROBABILITY:g}",
            worst[-1] <= SAME_PROBABILITY,
        )
    )
    folds = []
    for title, X, y in raw_tables():
        raw = five_fold(X, y, EPClassifier)
        scaled = five_fold(X, y, lambda: make_pipeline(StandardScaler(), EPClassifier()))
        share = raw / scaled - 1.0
        folds.append((title, f"{raw:.4f}", f"{scaled:.4f}", f"{100.0 * share:+.2f} %", share))
    worst = max(folds, key=lambda line: line[-1])
    measured = f"at most {100.0 * worst[-1]:+.2f} % ({worst[0]})"
    title = f"five-fold log loss, raw against standardised columns, {len(folds)} data sets"
    rows.append(Row(title, measured, f"at most {per_cent(SAME_LOSS, 0)} worse", worst[-1] <= SAME_LOSS))
    return rows, {
        "evidence-units": markdown(UNITS_HEADER, [line[:-1] for line in lines]),
        "evidence-units-folds": markdown(FOLDS_HEADER, [line[:-1] for line in folds]),
    }


def age_and_income() -> tuple[FloatArray, FloatArray, np.random.Generator]:
    """600 rows of an age in years and an income in money; labels depend on the age."""
    rng, n = np.random.default_rng(0), 600
    X = np.c_[rng.uniform(20, 80, n), rng.lognormal(10, 0.5, n)]
    return X, 0.06 * (X[:, 0] - 50) + rng.logistic(size=n) > 0, rng


def raw_classifier() -> list[Row]:
    """Age and income, against the best of a grid of fixed variances for standardised columns."""
    X, y, _ = age_and_income()
    model, scaled, unit = fitted(EPClassifier(), X, y), standardised(X), float(np.std(X[:, 0]))
    grid = [fitted(EPClassifier(prior_variance=v), scaled, y) for v in np.geomspace(0.01, 100.0, 25)]
    best = max(grid, key=lambda one: one.log_evidence_)
    own, peer = (model.coef_[0, 0], model.coef_std_[0, 0]), (best.coef_[0, 0] / unit, best.coef_std_[0, 0] / unit)
    apart = max(abs(own[0] - peer[0]) / peer[1], abs(own[1] / peer[1] - 1.0))
    accuracy, other = model.score(X, y), best.score(scaled, y)
    below = best.log_evidence_ - model.log_evidence_
    title, against = "age and income in raw units", "of the best fixed variance"
    return [
        Row(
            f"{title}: accuracy",
            f"{accuracy:.3f} against {other:.3f}",
            f"within 0.01 {against}",
            accuracy >= other - 0.01,
        ),
        Row(
            f"{title}: coefficient of age",
            f"{own[0]:.4f} ± {own[1]:.4f} against {peer[0]:.4f} ± {peer[1]:.4f}",
            f"within 0.05 deviations {against}",
            apart <= 0.05,
        ),
        Row(
            f"{title}: log evidence",
            f"{model.log_evidence_:.2f} against {best.log_evidence_:.2f}",
            f"at most 0.1 nats below that {against}",
            below <= 0.1,
        ),
    ]


def raw_regressor() -> Row:
    """Three times the age, and noise."""
    X, _, rng = age_and_income()
    y = 3.0 * X[:, 0] + 10.0 * rng.standard_normal(len(X))
    model, peer = fitted(EPRegressor(), X, y), LinearRegression().fit(X, y)
    found, truth = (model.coef_[0], model.score(X, y)), (peer.coef_[0], peer.score(X, y))
    return Row(
        "three times the age and noise, in raw units: slope, R²",
        f"{found[0]:.4f}, {found[1]:.4f} against {truth[0]:.4f}, {truth[1]:.4f} by least squares",
        "within 1 %, 0.001",
        abs(found[0] / truth[0] - 1.0) <= 0.01 and abs(found[1] - truth[1]) <= 0.001,
    )


def raw_sets() -> dict[str, tuple[FloatArray, FloatArray]]:
    """Labels 0 and 1 and raw columns of scikit-learn's tables."""
    cancer, wine, digits = (read(return_X_y=True) for read in (load_breast_cancer, load_wine, load_digits))
    pairs = {f"digits, {a} against {b}": _pair(*digits, a, b) for a, b in ((3, 8), (4, 9))}
    return {
        "breast cancer": cancer,
        "wine, 0 against the rest": (wine[0], (wine[1] == 0).astype(int)),
        **pairs,
        "iris, 1 against 2": _pair(*load_iris(return_X_y=True), 1, 2),
    }


def _pair(X: FloatArray, y: FloatArray, first: int, second: int) -> tuple[FloatArray, FloatArray]:
    kept = (y == first) | (y == second)
    return X[kept], (y[kept] == first).astype(int)


def rescaled_problems() -> Iterator[tuple[str, Callable[[], Any], FloatArray, FloatArray]]:
    """Title, estimator, columns without zeros and ones, targets."""
    for title, (X, y) in raw_sets().items():
        if title not in ("digits, 4 against 9", "iris, 1 against 2"):
            yield title, EPClassifier, X, y
    rng = np.random.default_rng(5)
    X = rng.standard_normal((300, 6)) @ rng.standard_normal((6, 6))
    z = standardised(X) @ (0.7 * rng.standard_normal(6))
    labels = (z + rng.logistic(size=300) > 0.0).astype(int)
    yield "simulated, 300 x 6", EPClassifier, X, labels
    yield "simulated, 300 x 6", partial(EPClassifier, "hinge"), X, labels
    yield "simulated, 300 x 6", EPRegressor, X, z + rng.standard_normal(300)
    yield "simulated, 300 x 6", partial(EPRegressor, "absolute"), X, z + rng.laplace(size=300)
    yield "simulated, 300 x 6", partial(EPRegressor, "poisson"), X, rng.poisson(np.exp(z)).astype(float)
    yield "diabetes", EPRegressor, *load_diabetes(return_X_y=True)
    wide = rng.standard_normal((40, 60))
    yield "simulated, 40 x 60", EPClassifier, wide, (wide[:, 0] + rng.logistic(size=40) > 0.0).astype(int)


def largest_change(make: Callable[[], Any], X: FloatArray, y: FloatArray, count: int) -> float:
    """Largest change of a prediction by other units: of a probability, or in units of the targets' deviation."""
    before, rng, worst = predicted(fitted(make(), X, y), X), np.random.default_rng(0), 0.0
    for _ in range(count):
        shifts = rng.uniform(-1000.0, 1000.0, X.shape[1]) * np.std(X, axis=0)
        moved = (X + shifts) * 10.0 ** rng.uniform(-8.0, 8.0, X.shape[1])
        change = np.max(np.abs(predicted(fitted(make(), moved, y), moved) - before))
        worst = max(worst, float(change) / (1.0 if make().__class__ is EPClassifier else float(np.std(y))))
    return worst


def predicted(model: Any, X: Any) -> FloatArray:
    """Probabilities, or means of targets."""
    return np.asarray(model.predict_proba(X)[:, 1] if isinstance(model, EPClassifier) else model.predict(X))


def raw_tables() -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Eight tables: raw columns and labels."""
    for title, data in raw_sets().items():
        yield title, *data
    rng = np.random.default_rng(6)
    X = rng.lognormal(rng.uniform(-6.0, 10.0, 8), 1.0, (400, 8))
    yield "lognormal columns, 400 x 8", X, _labels(standardised(X) @ rng.normal(0.0, 0.7, 8), rng)
    X = rng.poisson(10.0 ** rng.uniform(-0.5, 3.0, 10), (500, 10)).astype(float)
    yield "counts, 500 x 10", X, _labels(standardised(X) @ rng.normal(0.0, 0.5, 10), rng)
    region, numbers = np.eye(8)[rng.choice(8, 600, p=np.arange(1, 9) / 36.0)], age_and_income()[0]
    z = region @ rng.standard_normal(8) + 0.06 * (numbers[:, 0] - 50.0)
    yield "age, income and eight dummies, 600 x 10", np.column_stack([numbers, region]), _labels(z, rng)


def _labels(z: FloatArray, rng: np.random.Generator) -> FloatArray:
    return (z + rng.logistic(size=z.size) > 0.0).astype(int)


def five_fold(X: FloatArray, y: FloatArray, make: Callable[[], Any]) -> float:
    """Held-out log loss."""
    chances = np.empty(len(y))
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        chances[test] = fitted(make(), X[train], y[train]).predict_proba(X[test])[:, 1]
    return float(log_loss(y, chances))


# 2. The maximum of the evidence, against grids of fixed hyperparameters.

NATS, CLOSE, CURVED = 0.02, 0.05, 1.0
# Logarithms between which variances, and noise scales in units of the targets' deviation, are looked for, and the
# points of the first grid along each of one, two or three of them.
VARIANCES, SCALES, POINTS = (np.log(1e-5), np.log(1e4)), (np.log(2e-4), np.log(3.0)), (21, 9, 7)
MAXIMUM_HEADER = (
    "problem",
    "variances found",
    "at the maximum",
    "curvatures",
    "scale found, at the maximum",
    "nats below the maximum",
    "",
)


class Problem(NamedTuple):
    """Columns as `own_units` has them; ``groups`` are the columns of every group of coefficients."""

    title: str
    make: Callable[..., Any]
    X: Any
    y: FloatArray
    groups: tuple[Any, ...]
    finds_scale: bool

    def fit(self, **options: Any) -> Any:
        """Fit with these options."""
        return fitted(self.make(max_iter=500, **options), self.X, self.y)

    def default(self) -> Any:
        """Fit with everything to be found."""
        if len(self.groups) == 1:
            return self.fit()
        labels = np.empty(self.X.shape[1], dtype=object)
        for k, columns in enumerate(self.groups):
            labels[columns] = f"group {k}"
        return self.fit(prior_groups=list(labels))

    def found(self, model: Any) -> FloatArray:
        """Logarithms of variances, and of the scale in units of the targets' deviation, of a default fit."""
        v = model.prior_variance_
        logs = np.log(list(v.values()) if isinstance(v, dict) else [v])
        return np.append(logs, np.log(model.scale_ / self.unit)) if self.finds_scale else logs

    @property
    def unit(self) -> float:
        """Unit of the noise scale."""
        return float(np.std(self.y)) if self.make().loss in REALS else 1.0

    def objective(self, logs: FloatArray) -> float:
        """Log evidence with these hyperparameters fixed, less what the library subtracts; nothing where EP fails."""
        variances = np.exp(logs[: len(self.groups)])
        each = np.empty(self.X.shape[1])
        for columns, v in zip(self.groups, variances, strict=True):
            each[columns] = v
        options = {"scale": self.unit * float(np.exp(logs[-1]))} if self.finds_scale else {}
        try:
            model = self.fit(prior_variance=each, tol=1e-4, **options)
        except ValueError:  # beyond what numbers can hold
            return -np.inf
        if not model.status_.is_success:
            return -np.inf
        return float(model.log_evidence_) - penalty(self, variances)


REALS = ("squared", "absolute", "huber", "quantile")


def penalty(problem: Problem, variances: FloatArray) -> float:
    """What the library subtracts from the log evidence, by the variance that a group gives the predictor."""
    squares = problem.X.multiply(problem.X) if sparse.issparse(problem.X) else np.square(problem.X)
    sizes = np.ravel(np.asarray(squares.mean(axis=0)))
    spreads = [v * np.sum(sizes[columns]) for columns, v in zip(problem.groups, variances, strict=True)]
    return 0.5 * rate(problem) ** 2 * float(np.sum(spreads))


def rate(problem: Problem) -> float:
    """Rate of the half-normal bound, per unit of the linear predictor."""
    return float(problem.make()._rate)


def maximum(quick: bool) -> Outcome:
    """Evidence and variances found, against the maximum over fixed ones."""
    chosen = problems()
    compared = [against_grid(problem) for problem in (chosen[::6] if quick else chosen)]
    worst = max(compared, key=lambda one: abs(one.below))
    late = sum(abs(one.below) > NATS for one in compared)
    curved = [(one.farthest, one.title) for one in compared if np.isfinite(one.farthest)]
    apart = sum(distance > CLOSE for distance, _ in curved)
    title = f"maximum of the evidence, {len(compared)} problems"
    rows = [
        Row(
            f"{title}: evidence found",
            f"up to {worst.below:.3f} nats below the best ({worst.title}), {late} beyond the bar",
            f"within {NATS:g} nats of the best of a grid",
            late == 0,
        ),
        Row(
            f"{title}: log variances where the curvature is at least {CURVED:g}",
            f"at most {max(curved)[0]:.3f} apart ({max(curved)[1]}), {apart} of {len(curved)} beyond the bar",
            f"within {CLOSE:g} of the maximiser",
            apart == 0,
        ),
    ]
    return rows, {"evidence-maximum": markdown(MAXIMUM_HEADER, [one.cells for one in compared])}


class Compared(NamedTuple):
    """One problem: log hyperparameters found and at the maximum, curvatures of the variances, and nats between them."""

    title: str
    groups: int
    found: FloatArray
    best: FloatArray
    curvatures: FloatArray
    below: float

    @property
    def farthest(self) -> float:
        """Largest distance of a log variance from the maximiser where that is curved; minus infinity without any."""
        apart = np.abs(self.found - self.best)[: self.groups]
        return float(np.max(apart[self.curvatures[: self.groups] > CURVED], initial=-np.inf))

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table."""
        k = self.groups
        variances = (", ".join(f"{v:.3g}" for v in np.exp(logs[:k])) for logs in (self.found, self.best))
        scales = ", ".join(f"{np.exp(logs[k]):.3g}" for logs in (self.found, self.best)) if self.found.size > k else ""
        curvatures = ", ".join(f"{c:.2g}" for c in self.curvatures[:k])
        missed = abs(self.below) > NATS or self.farthest > CLOSE
        return self.title, *variances, curvatures, scales, f"{self.below:.4f}", "MISSED" if missed else ""


def against_grid(problem: Problem) -> Compared:
    """Grid over everything, then a simplex search from its best point and from what was found."""
    model = problem.default()
    found, size = problem.found(model), len(problem.groups) + problem.finds_scale
    value = float(model.log_evidence_) - penalty(problem, np.exp(found[: len(problem.groups)]))
    bounds = [VARIANCES] * len(problem.groups) + [SCALES] * problem.finds_scale
    grid = [np.array(point) for point in product(*(np.linspace(*ends, POINTS[size - 1]) for ends in bounds))]
    starts = [max(grid, key=problem.objective), np.clip(found, *np.transpose(bounds))]
    ends = [_climb(problem.objective, start, bounds) for start in starts]
    best, top = max(ends, key=lambda end: end[1])
    return Compared(problem.title, len(problem.groups), found, best, _curvatures(problem.objective, best), top - value)


def _climb(objective: Callable[[FloatArray], float], start: FloatArray, bounds: Any) -> tuple[FloatArray, float]:
    """Simplex search: a grid that shrinks around the maximum."""
    steps = np.where(start + 0.3 < np.transpose(bounds)[1], 0.3, -0.3)
    options = {"xatol": 0.01, "fatol": 1e-4, "initial_simplex": np.vstack([start, start + np.diag(steps)])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # differences of infinities
        end = minimize(lambda x: -objective(x), start, method="Nelder-Mead", bounds=bounds, options=options)
    return end.x, -float(end.fun)


def _curvatures(objective: Callable[[FloatArray], float], best: FloatArray, step: float = 0.1) -> FloatArray:
    """Curvatures of the profile along every logarithm; zero where the objective is not concave."""
    k, shifts = best.size, step * np.eye(best.size)
    hessian = np.empty((k, k))
    for i in range(k):
        for j in range(i, k):
            corners = [objective(best + a * shifts[i] + b * shifts[j]) for a, b in product((1, -1), repeat=2)]
            hessian[i, j] = hessian[j, i] = -(corners[0] - corners[1] - corners[2] + corners[3]) / (4.0 * step**2)
    if not np.all(np.isfinite(hessian)):
        return np.zeros(k)
    values, vectors = np.linalg.eigh(hessian)
    return 1.0 / np.sum(vectors**2 / np.maximum(values, 1e-6), axis=1)


FAMILIES = ("logistic", "hinge", *REALS, "poisson", "negative_binomial", "gamma")


def problems() -> list[Problem]:
    """Nine losses of five designs, wide ones and two groups among them; fewer columns, little noise, separable ones."""
    chosen = [one for loss in FAMILIES for one in _designs(loss)]
    for k, loss in enumerate(("logistic", "squared", "absolute", "poisson", "gamma")):
        chosen.append(_problem("one column, 100 x 1", loss, _columns(100, 1, 50 + k), seed=50 + k))
    for k, loss in enumerate(REALS):
        chosen.append(_problem("little noise, 13 x 10", loss, _columns(13, 10, 60 + k), seed=60 + k, noise=0.01))
        chosen.append(_problem("little noise, 40 x 10", loss, _columns(40, 10, 70 + k), seed=70 + k, noise=0.001))
    for k, loss in enumerate(("logistic", "hinge")):
        chosen.append(_problem("separable, 100 x 5", loss, _columns(100, 5, 80 + k), seed=80 + k, noise=0.0))
    return chosen


def _designs(loss: str) -> Iterator[Problem]:
    seed = 10 * FAMILIES.index(loss)
    yield _problem("dense, 200 x 5", loss, _columns(200, 5, seed), seed=seed)
    yield _problem("correlated, 400 x 12", loss, _columns(400, 12, seed + 1, common=1.0), seed=seed + 1)
    yield _problem("CSR, 400 x 20", loss, _sparse_columns(400, 20, seed + 2), seed=seed + 2)
    yield _problem("two groups, 300 x 12", loss, _columns(300, 12, seed + 3), seed=seed + 3, split=4)
    yield _problem("wide, 40 x 80", loss, _columns(40, 80, seed + 4), seed=seed + 4)


def _columns(rows: int, width: int, seed: int, common: float = 0.0) -> FloatArray:
    rng = np.random.default_rng(seed)
    return own_units(rng.standard_normal((rows, width)) + common * rng.standard_normal((rows, 1)))


def _sparse_columns(rows: int, width: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return sparse.csr_array(own_units(rng.standard_normal((rows, width)) * (rng.random((rows, width)) < 0.3)))


def _problem(title: str, loss: str, X: Any, seed: int, noise: float = 0.5, split: int = 0) -> Problem:
    """Simulate targets; with two groups, of which the second begins at column `split`, the second says little."""
    rng, width = np.random.default_rng((seed, 1)), X.shape[1]
    theta = rng.standard_normal(width) / np.sqrt(width)
    groups: tuple[Any, ...] = (np.arange(width),)
    if split:
        theta[split:] *= 0.2
        groups = np.arange(split), np.arange(split, width)
    z = np.asarray(X @ theta)
    make, y = partial(EPRegressor, loss), z
    if loss in ("logistic", "hinge"):
        make = partial(EPClassifier, loss)
        y = np.where(2.0 * z + (noise > 0.0) * rng.logistic(size=z.size) > 0.0, 1, -1)
    elif loss in REALS:
        y = z + noise * (rng.standard_normal(z.size) if loss in ("squared", "huber") else rng.laplace(size=z.size))
    elif loss == "gamma":
        y = np.exp(z) * rng.gamma(4.0, 0.25, z.size)
    else:
        y = rng.poisson(np.exp(1.0 + z) * (1.0 if loss == "poisson" else rng.gamma(4.0, 0.25, z.size))).astype(float)
    if loss == "quantile":
        make = partial(make, quantile=0.3)
    finds_scale = loss not in ("logistic", "hinge", "poisson")
    return Problem(f"{loss}: {title}", make, X, y, groups, finds_scale)


# 3. Variance components of simulated factors.

SHAPES = ((5, 100), (10, 50), (20, 50), (50, 20))
TRUTHS = (0.0, 0.01, 0.1, 1.0)
SETS, SETS_QUICK = 100, 3
RELATIVE, ABSOLUTE, COVERED = 0.10, 0.005, (0.90, 0.98)
COMPONENTS_HEADER = ("model", "levels x rows", "true", "cavity, mean", "reference, mean", "95 % interval covers", "")


def components(quick: bool) -> Outcome:
    """Mean estimates against REML or quadrature, and coverage of the intervals."""
    sets, rows, lines = SETS_QUICK if quick else SETS, [], []
    for family, reference in (("normal", "REML"), ("logistic", "quadrature"), ("poisson", "quadrature")):
        settings = [component(family, *shape, truth, sets) for shape in SHAPES for truth in TRUTHS]
        lines += [one.cells for one in settings]
        worst = max(settings, key=lambda one: one.excess)
        rows.append(
            Row(
                f"variance of a factor, {family}, {len(settings)} settings of {sets} sets: mean estimate",
                f"{sum(one.excess > 1.0 for one in settings)} beyond the bar; worst {worst.text}",
                f"within {per_cent(RELATIVE, 0)} or {ABSOLUTE:g} of {reference}",
                worst.excess <= 1.0,
            )
        )
        for levels, _ in SHAPES:
            here = [one for one in settings if one.levels == levels]
            zero = float(np.mean([one.covered for one in here if one.truth == 0.0]))
            share = float(np.mean([one.covered for one in here if one.truth > 0.0]))
            rows.append(
                Row(
                    f"variance of a factor, {family}, {levels} levels: 95 % intervals",
                    f"cover {per_cent(share)} of {len(TRUTHS) - 1} variances, zero in {per_cent(zero)}",
                    f"{per_cent(COVERED[0], 0)} to {per_cent(COVERED[1], 0)}, zero at least {per_cent(COVERED[0], 0)}",
                    COVERED[0] <= share <= COVERED[1] and zero >= COVERED[0],
                )
            )
    return rows, {"evidence-components": markdown(COMPONENTS_HEADER, lines)}


class Component(NamedTuple):
    """Mean estimates of one setting, and the share of the intervals that hold the truth."""

    family: str
    levels: int
    rows: int
    truth: float
    estimate: float
    reference: float
    covered: float

    @property
    def excess(self) -> float:
        """Distance of the means as a share of what is allowed."""
        return abs(self.estimate - self.reference) / max(RELATIVE * self.reference, ABSOLUTE)

    @property
    def text(self) -> str:
        """The estimates for people."""
        setting = f"{self.levels} levels, true variance {self.truth:g}"
        return f"{self.estimate:.4f} against {self.reference:.4f} ({setting})"

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table."""
        shape, means = f"{self.levels} x {self.rows}", (f"{self.estimate:.4f}", f"{self.reference:.4f}")
        missed = self.excess > 1.0 or self.covered < COVERED[0]
        return self.family, shape, f"{self.truth:g}", *means, per_cent(self.covered, 0), "MISSED" if missed else ""


def component(family: str, levels: int, rows: int, truth: float, sets: int) -> Component:
    """y = x + effect of the level, and noise, or labels and counts with this linear predictor."""
    found = []
    for k in range(sets):
        rng = np.random.default_rng((levels, int(1000 * truth), k))
        codes = np.repeat(np.arange(levels), rows)
        x = rng.standard_normal(codes.size)
        z = x + np.sqrt(truth) * rng.standard_normal(levels)[codes]
        X = np.column_stack([np.ones(codes.size), x])
        make: Any = EPRegressor
        if family == "normal":
            y = z + rng.standard_normal(codes.size)
            reference = float(reml(y, X, [dummies(codes)]).variances[0])
        elif family == "logistic":
            make, y = EPClassifier, (z + rng.logistic(size=codes.size) > 0.0).astype(int)
            reference = RandomIntercepts(LOGISTIC, y, X, codes).maximum()[0]
        else:
            make, y = partial(EPRegressor, "poisson"), rng.poisson(np.exp(z)).astype(float)
            reference = RandomIntercepts(POISSON, y, X, codes).maximum()[0]
        model = fitted(make(), factor_table(x, codes), y)
        row = model.summary().loc["variance of level"]
        low, high = float(row["lower 95%"]), float(row["upper 95%"])
        found.append((variance_of(model, "level"), reference, low - 1e-9 <= truth <= high))
    return Component(family, levels, rows, truth, *(float(mean) for mean in np.mean(found, axis=0)))


def factor_table(x: FloatArray, codes: Any) -> pd.DataFrame:
    """A number and a column of text."""
    return pd.DataFrame({"x": x, "level": [f"g{code:03d}" for code in codes]})


# 4. Beside lme4, on its own tables.

PEERS_HEADER = ("model", "component", "cavity, sd", "reference, sd", "difference", "reference", "lme4, sd", "")
NOT_INSTALLED = "lme4 not installed: not compared"


class Peer(NamedTuple):
    """A model of one of lme4's tables: its fit, and the names that lme4 has for the groups.

    ``units`` are those of a group's columns where they are not one.
    """

    name: str
    fit: Callable[[pd.DataFrame], Any]
    names: dict[str, str]
    bar: float
    integrated: Callable[[pd.DataFrame], float] | None = None
    units: Mapping[str, float] = MappingProxyType({})

    @property
    def reference(self) -> str:
        """What the components are compared with; nothing for several factors of labels or counts."""
        return "quadrature" if self.integrated is not None else "REML" if "Residual" in self.names else ""

    @property
    def asked(self) -> str:
        """The bar in words."""
        return f"within {per_cent(self.bar, 0)} of {self.reference}"


def peers(quick: bool) -> Outcome:
    """Components of normal models against REML; of others against quadrature where there is one factor."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = lme4(Path(folder), quick)
        if theirs is None:
            absent = [peer for peer in PEERS if peer.reference == "REML"]
            return [Row(f"{peer.name}: {NOT_INSTALLED}", "not installed", peer.asked, True) for peer in absent], {}
        rows, lines = [], []
        for peer in PEERS:
            table = pd.read_csv(Path(folder) / f"{peer.name.partition(',')[0]}.csv", dtype=TEXT)
            own = theirs[theirs.model == peer.name].set_index("component")
            start = time.perf_counter()
            model = peer.fit(table)
            seconds = time.perf_counter() - start
            compared = [_compared(peer, table, model, own, name) for name in peer.names]
            lines += [cells for _, _, cells in compared]
            barred = [(name, apart) for name, apart, _ in compared if apart is not None]
            if barred and peer.reference == "REML":  # of labels and counts the table says how far all are
                worst = max(barred, key=lambda pair: abs(pair[1]))
                measured = f"{100.0 * worst[1]:+.2f} % ({worst[0]}), {seconds:.2f} s, lme4 {own.seconds.iloc[0]:.2f} s"
                met = abs(worst[1]) <= peer.bar
                rows.append(Row(f"{peer.name}: standard deviations", measured, peer.asked, met))
    return rows, {"evidence-peers": markdown(PEERS_HEADER, lines)}


def lme4(folder: Path, quick: bool) -> pd.DataFrame | None:
    """Components that lme4 finds, after its tables were written to a folder; None where it is not installed."""
    if shutil.which("Rscript") is None:
        return None
    script = Path(__file__).with_name("peers.R")
    command = ["Rscript", str(script), str(folder), *(["quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return None
    if done.returncode:
        raise RuntimeError(f"Rscript {script.name} failed: {done.stderr[-500:]}")
    return pd.read_csv(folder / "components.csv")


def _compared(
    peer: Peer, table: pd.DataFrame, model: Any, own: pd.DataFrame, name: str
) -> tuple[str, float | None, tuple[str, ...]]:
    """Component, its difference as a share if there is a reference, and cells of a table."""
    theirs = float(own.sd[peer.names[name]])
    found = float(model.scale_) if name == "Residual" else float(np.sqrt(variance_of(model, name)))
    found /= peer.units.get(name, 1.0)
    if not peer.reference:
        return name, None, (peer.name, name, f"{found:.4f}", "", "", "", f"{theirs:.4f}", "")
    reference = theirs if peer.integrated is None else peer.integrated(table)
    # Where REML finds nothing, the distance counts as a share of the noise.
    apart = (found - reference) / (reference or float(own.sd["Residual"]))
    texts = (f"{found:.4f}", f"{reference:.4f}", f"{100.0 * apart:+.2f} %", peer.reference, f"{theirs:.4f}")
    missed = peer.reference == "REML" and abs(apart) > peer.bar
    return name, apart, (peer.name, name, *texts, "MISSED" if missed else "")


# Columns that hold names of levels, also where these are numbers.
TEXT = dict.fromkeys(
    ("Batch", "Subject", "plate", "sample", "batch", "recipe", "replicate", "temperature", "cell", "s", "d", "dept",
     "herd", "period", "id", "item", "BROOD", "INDEX", "LOCATION", "YEAR"),
    str,
)  # fmt: skip
# Prior variance of fixed effects, in squared units of the targets' deviation or of log odds: as good as flat.
FLAT = 1e4


def contrasts(table: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Columns of zeros and ones for all levels but the first."""
    return pd.get_dummies(table[list(names)], drop_first=True, dtype=float)


def random_effects(target: str, *names: str) -> Callable[[pd.DataFrame], Any]:
    """Fit a normal model with an intercept and random effects only."""
    return lambda table: fitted(EPRegressor(), table[list(names)], table[target].to_numpy(float))


# Every subject of sleepstudy has the days 0 to 9: root mean square of those that are not zero.
SLOPE = float(np.sqrt(np.mean(np.arange(1.0, 10.0) ** 2)))


def sleepstudy(table: pd.DataFrame) -> Any:
    """Random intercepts and slopes without correlation, from columns of one's own in the units of the prior."""
    levels, days = dummies(table.Subject), table.Days.to_numpy(float)
    k = levels.shape[1]
    groups = {"intercepts": list(range(1, k + 1)), "slopes": list(range(k + 1, 2 * k + 1))}
    X = np.column_stack([days, levels, levels * days[:, None] / SLOPE])
    return fitted(EPRegressor(prior_variance=FLAT, prior_groups=groups), X, table.Reaction.to_numpy(float))


def cake(table: pd.DataFrame) -> Any:
    """Recipes and temperatures are fixed effects."""
    X = pd.concat([contrasts(table, "recipe", "temperature"), table[["replicate", "cell"]]], axis=1)
    return fitted(EPRegressor(prior_variance=FLAT), X, table.angle.to_numpy(float))


def cows(table: pd.DataFrame) -> pd.DataFrame:
    """One row per animal, with its label."""
    each = table.loc[table.index.repeat(table["size"])]
    order = each.groupby(level=0).cumcount()
    return each.assign(ill=(order < each.incidence).astype(int)).reset_index(drop=True)


def cbpp(table: pd.DataFrame) -> Any:
    """Periods are fixed effects."""
    each = cows(table)
    X = pd.concat([contrasts(each, "period"), each[["herd"]]], axis=1)
    return fitted(EPClassifier(prior_variance=FLAT), X, each.ill)


def cbpp_integrated(table: pd.DataFrame) -> float:
    """Standard deviation of the herds."""
    each = cows(table)
    X = np.column_stack([np.ones(len(each)), contrasts(each, "period")])
    return float(np.sqrt(RandomIntercepts(LOGISTIC, each.ill.to_numpy(float), X, each.herd, 15).maximum()[0]))


def _answers(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table[["Anger"]].astype(float), contrasts(table, "Gender", "btype", "situ")], axis=1)


def verbal_aggression(*factors: str) -> Callable[[pd.DataFrame], Any]:
    """Random effects of persons, and of items or not."""

    def fit(table: pd.DataFrame) -> Any:
        X = pd.concat([_answers(table), table[list(factors)]], axis=1)
        return fitted(EPClassifier(prior_variance=FLAT), X, table.yes)

    return fit


def verbal_aggression_integrated(table: pd.DataFrame) -> float:
    """Standard deviation of the persons."""
    fixed = _answers(table).assign(Anger=table.Anger - table.Anger.mean()).to_numpy(float)
    X = np.column_stack([np.ones(len(fixed)), fixed])
    model = RandomIntercepts(LOGISTIC, table.yes.to_numpy(float), X, table.id, nodes=9, fixed_nodes=3)
    return float(np.sqrt(model.maximum()[0]))


def _chicks(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table[["height"]], contrasts(table, "YEAR")], axis=1)


def grouse_ticks(*factors: str) -> Callable[[pd.DataFrame], Any]:
    """Random effects of broods, and of chicks and places or not."""

    def fit(table: pd.DataFrame) -> Any:
        X = pd.concat([_chicks(table), table[list(factors)]], axis=1)
        return fitted(EPRegressor("poisson", prior_variance=FLAT), X, table.TICKS.to_numpy(float))

    return fit


def grouse_ticks_integrated(table: pd.DataFrame) -> float:
    """Standard deviation of the broods."""
    X = np.column_stack([np.ones(len(table)), _chicks(table)])
    return float(np.sqrt(RandomIntercepts(POISSON, table.TICKS.to_numpy(float), X, table.BROOD, 15).maximum()[0]))


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


PEERS = (
    Peer("Dyestuff", random_effects("Yield", "Batch"), _same("Batch", "Residual"), 0.01),
    Peer(
        "sleepstudy",
        sleepstudy,
        {"intercepts": "Subject", "slopes": "Days", "Residual": "Residual"},
        0.01,
        units={"slopes": SLOPE},
    ),
    Peer("Penicillin", random_effects("diameter", "plate", "sample"), _same("plate", "sample", "Residual"), 0.02),
    Peer("Pastes", random_effects("strength", "batch", "sample"), _same("batch", "sample", "Residual"), 0.02),
    Peer("cake", cake, _same("replicate", "cell", "Residual"), 0.02),
    Peer("InstEval", random_effects("y", "s", "d", "dept"), _same("s", "d", "dept", "Residual"), 0.02),
    Peer("cbpp", cbpp, _same("herd"), 0.02, cbpp_integrated),
    Peer("VerbAgg, one factor", verbal_aggression("id"), _same("id"), 0.02, verbal_aggression_integrated),
    Peer("VerbAgg", verbal_aggression("id", "item"), _same("id", "item"), 0.02),
    Peer("grouseticks, one factor", grouse_ticks("BROOD"), _same("BROOD"), 0.02, grouse_ticks_integrated),
    Peer("grouseticks", grouse_ticks("BROOD", "INDEX", "LOCATION"), _same("BROOD", "INDEX", "LOCATION"), 0.02),
)


# 5. Intervals on little data.

LEVEL, BAR, NEW_BAR = 0.9, (0.87, 0.93), (0.87, 0.98)
LITTLE, LITTLE_QUICK, NEW = 1000, 50, 20
LITTLE_HEADER = ("data", "what", "covered", "bar", "")


class Covered(NamedTuple):
    """Share of the intervals that hold the truth."""

    data: str
    what: str
    share: float
    bar: tuple[float, float]

    def row(self, sets: int) -> Row:
        """Line of the table of bars."""
        bar = f"{per_cent(self.bar[0], 0)} to {per_cent(self.bar[1], 0)}"
        met = self.bar[0] <= self.share <= self.bar[1]
        return Row(f"90 % intervals, {self.data}: {self.what}", f"{per_cent(self.share)}, {sets} data sets", bar, met)


def little(quick: bool) -> Outcome:
    """Coverage of 90 % intervals of coefficients, effects and new targets."""
    sets = LITTLE_QUICK if quick else LITTLE
    found = [one for shape in ((3, 1), (5, 1), (10, 5), (50, 50)) for one in regression(*shape, sets)]
    found += [one for loss, *shape in (("logistic", 30, 3), ("logistic", 60, 5), ("poisson", 30, 3))
              for one in other_targets(loss, *shape, sets)]  # fmt: skip
    found += [one for levels in (3, 5, 8, 20) for one in few_levels(levels, sets)]
    rows = [one.row(sets) for one in found]
    lines = [(one.data, one.what, per_cent(one.share), *row.cells[2:]) for one, row in zip(found, rows, strict=True)]
    return rows, {"evidence-little": markdown(LITTLE_HEADER, lines)}


def _holds(low: Any, truth: Any, high: Any) -> float:
    return float(np.mean((low <= truth) & (truth <= high)))


def intervals(model: Any, names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Ends of the intervals of these coefficients."""
    table = model.summary(level=LEVEL).loc[list(names)]
    return table[f"lower {100 * LEVEL:g}%"].to_numpy(), table[f"upper {100 * LEVEL:g}%"].to_numpy()


def regression(rows: int, width: int, sets: int) -> list[Covered]:
    """Normal noise of deviation 0.5 or 1, and coefficients of which all together give the targets the deviation 1."""
    coefficients, targets, names = [], [], [f"x{j}" for j in range(width)]
    for k in range(sets):
        rng = np.random.default_rng((rows, width, k))
        theta, noise = rng.standard_normal(width) / np.sqrt(width), (0.5, 1.0)[k % 2]
        X = rng.standard_normal((rows + NEW, width))
        y = 1.0 + X @ theta + noise * rng.standard_normal(rows + NEW)
        model = fitted(EPRegressor(), X[:rows], y[:rows])
        low, high = intervals(model, names)
        coefficients.append(_holds(low, theta, high))
        low, high = model.predict(X[rows:], quantile=[0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0]).T
        targets.append(_holds(low, y[rows:], high))
    title = f"EPRegressor, {rows} x {width}"
    return [
        Covered(title, "coefficients", float(np.mean(coefficients)), BAR),
        Covered(title, "new targets", float(np.mean(targets)), BAR),
    ]


def other_targets(loss: str, rows: int, width: int, sets: int) -> list[Covered]:
    """Coefficients of labels and counts; intervals of discrete targets hold more than they say, by their nature."""
    held, names = [], [f"x{j}" for j in range(width)]
    for k in range(sets):
        rng = np.random.default_rng((rows, width, k))
        theta, X = rng.standard_normal(width) / np.sqrt(width), rng.standard_normal((rows, width))
        z = X @ theta
        if loss == "poisson":
            model: Any = fitted(EPRegressor(loss), X, rng.poisson(np.exp(z)).astype(float))
        else:
            y = z + rng.logistic(size=rows) > 0.0
            if np.all(y == y[0]):
                continue
            model = fitted(EPClassifier(loss), X, y)
        low, high = intervals(model, names)
        held.append(_holds(low, theta, high))
    return [Covered(f"{loss}, {rows} x {width}", "coefficients", float(np.mean(held)), BAR)]


def few_levels(levels: int, sets: int) -> list[Covered]:
    """Effects of a factor with 20 rows per level, normal noise of deviation 1, true variances from 0.05 to 1."""
    known, new, targets, title = [], [], [], f"random effects, {levels} levels x 20"
    for k in range(sets):
        rng = np.random.default_rng((levels, k))
        deviation = np.sqrt((0.05, 0.1, 0.2, 0.5, 1.0)[k % 5])
        codes = np.repeat(np.arange(levels), 20)
        x, effects = rng.standard_normal(codes.size), deviation * rng.standard_normal(levels)
        model = fitted(EPRegressor(), factor_table(x, codes), x + effects[codes] + rng.standard_normal(codes.size))
        names = [f"level=g{code:03d}" for code in range(levels)]
        low, high = intervals(model, names)
        known.append(_holds(low, relative(effects, effects), high))
        unseen = deviation * rng.standard_normal(NEW)
        low, high = intervals(model, ["level=(unseen)"])
        new.append(_holds(low, relative(unseen, effects), high))
        places, noise = rng.standard_normal(NEW), rng.standard_normal(NEW)
        table = factor_table(places, np.full(NEW, levels))
        low, high = model.predict(table, quantile=[0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0]).T
        targets.append(_holds(low, places + unseen + noise, high))
    return [
        Covered(title, "effects of known levels", float(np.mean(known)), BAR),
        Covered(title, "effect of a new level", float(np.mean(new)), NEW_BAR),
        Covered(title, "new targets of new levels", float(np.mean(targets)), NEW_BAR),
    ]


def relative(effects: FloatArray, known: FloatArray) -> FloatArray:
    """Effects as the summary has them: relative to the mean of the known levels' effects."""
    return effects - np.mean(known)


# 6. Loops of a fit that finds the variance, against those of one that has it.

MOST_LOOPS = 2.0
LOOPS_HEADER = ("data", "loss", "loops, variance found", "loops, the same variance given", "ratio")


def loops(quick: bool) -> Outcome:
    """Loops with the variance to be found, on columns in its units, against those with the one that was found."""
    lines, ratios = [], []
    for title, make, X, y in loop_problems(quick):
        free = fitted(make(), X, y)
        given = {} if free.__class__ is EPClassifier or free.loss == "poisson" else {"scale": free.scale_}
        fixed = fitted(make(prior_variance=free.prior_variance_, **given), X, y)
        ratios.append(free.n_iter_ / fixed.n_iter_)
        lines.append((title, free.loss, f"{free.n_iter_}", f"{fixed.n_iter_}", f"{ratios[-1]:.2f}"))
    worst = lines[int(np.argmax(ratios))]
    measured = f"{np.mean(ratios):.2f} x on average, at most {max(ratios):.1f} x ({worst[0]}, {worst[1]})"
    bar, title = f"at most {MOST_LOOPS:g} x on average", f"loops with the variance to be found, {len(ratios)} fits"
    return [Row(title, measured, bar, float(np.mean(ratios)) <= MOST_LOOPS)], {
        "evidence-loops": markdown(LOOPS_HEADER, lines)
    }


def loop_problems(quick: bool) -> Iterator[tuple[str, Callable[..., Any], FloatArray, FloatArray]]:
    """Labels with two losses, targets with two and counts; not the squared loss, which needs no loops."""
    names = [name for name in (*REAL, *SIMULATED) if not (quick and name in LARGE)]
    for name in names[:3] if quick else names:
        data = load(name)
        for loss in ("logistic", "hinge"):
            yield data.title, partial(EPClassifier, loss), own_units(data.X), data.y
    X, y = load_diabetes(return_X_y=True)
    for loss in ("absolute", "huber"):
        yield "diabetes, 442 x 10", partial(EPRegressor, loss), own_units(X), y
    rng = np.random.default_rng(7)
    X = own_units(rng.standard_normal((500, 10)))
    yield "counts, 500 x 10", partial(EPRegressor, "poisson"), X, rng.poisson(np.exp(X @ rng.normal(0, 0.3, 10))) * 1.0


# 7. Times.

SECONDS, SLOWER = 3.0, 1.05
ROWS, LEVELS = 73_000, {"s": 2_972, "d": 1_128, "dept": 28}
TIMES_HEADER = ("data", "seconds, variance found", "seconds, the same variance given", "ratio", "loops")
THREADS_HEADER = ("data", "seconds, one thread", "seconds, default threads", "ratio")


def times(quick: bool) -> Outcome:
    """Default fits against fixed variances; a normal model of three crossed factors; default threads against one."""
    lines = []
    for title, make, X, y in loop_problems(quick):
        free, model = best_of_three(make, X, y)
        given = {} if model.__class__ is EPClassifier or model.loss == "poisson" else {"scale": model.scale_}
        fixed, other = best_of_three(partial(make, prior_variance=model.prior_variance_, **given), X, y)
        counts = f"{model.n_iter_} and {other.n_iter_}"
        lines.append((f"{title}, {model.loss}", f"{free:.4f}", f"{fixed:.4f}", f"{free / fixed:.2f}", counts))
    rows, threads = [], []
    for name in TIMED:
        title = f"{name}, reduced for a smoke test" if quick else name
        one, default = (in_process(name, quick, limit) for limit in (True, False))
        threads.append((title, f"{one:.2f}", f"{default:.2f}", f"{default / one:.2f}"))
        if name == CROSSED:
            bar = f"at most {SECONDS:g} s"
            rows.append(Row(f"{title}: default fit on one thread", f"{one:.2f} s", bar, one <= SECONDS))
        measured, bar = f"{default:.2f} s against {one:.2f} s", f"at most {SLOWER:g} x one thread"
        rows.append(Row(f"{title}: default threads", measured, bar, default <= SLOWER * one))
    return rows, {
        "evidence-times": markdown(TIMES_HEADER, lines),
        "evidence-times-threads": markdown(THREADS_HEADER, threads),
    }


def best_of_three(make: Callable[[], Any], X: Any, y: Any) -> tuple[float, Any]:
    """Shortest of three fits, and the model."""
    seconds, model = np.inf, None
    for _ in range(3):
        start = time.perf_counter()
        model = fitted(make(), X, y)
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, model


def crossed(quick: bool) -> tuple[Callable[[], Any], pd.DataFrame, FloatArray]:
    """A normal model of three crossed factors in the sizes of InstEval, levels as text."""
    rng, rows = np.random.default_rng(8), ROWS // 10 if quick else ROWS
    y, columns = 3.0 + 1.2 * rng.standard_normal(rows), {}
    for (name, levels), deviation in zip(LEVELS.items(), (0.33, 0.52, 0.1), strict=True):
        codes = rng.integers(levels // 10 if quick and levels > 100 else levels, size=rows)
        y += deviation * rng.standard_normal(levels)[codes]
        columns[name] = np.array([f"{name}{k:04d}" for k in range(levels)], dtype=object)[codes]
    return EPRegressor, pd.DataFrame(columns), y


def crossed_labels(quick: bool) -> tuple[Callable[[], Any], pd.DataFrame, FloatArray]:
    """Labels with random effects of two crossed factors."""
    data = simulate(*((2_000, 50, 200) if quick else (20_000, 200, 2_000)), 0)
    return EPClassifier, data.table(), data.y


def dense_labels(quick: bool) -> tuple[Callable[[], Any], FloatArray, FloatArray]:
    """Census income, dense."""
    data, kept = load("census"), slice(2000 if quick else None)
    return EPClassifier, data.X[kept], data.y[kept]


CROSSED = f"normal, {ROWS:,} rows, {' x '.join(f'{n:,}' for n in LEVELS.values())} crossed levels"
TIMED: dict[str, Callable[[bool], tuple[Callable[[], Any], Any, Any]]] = {
    CROSSED: crossed,
    "logistic, 20,000 rows, 200 x 2,000 crossed levels": crossed_labels,
    "logistic, census income": dense_labels,
}


def in_process(name: str, quick: bool, one_thread: bool) -> float:
    """Seconds of the best of three fits in a process of its own, with one thread or as many as libraries take."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    environment |= dict.fromkeys(names, "1") if one_thread else {}
    code = f"from benchmarks.evidence import timed; timed({name!r}, {quick!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def timed(name: str, quick: bool) -> None:
    """Print the seconds of the best of three fits."""
    print(json.dumps(best_of_three(*TIMED[name](quick))[0]))


STUDIES: dict[str, Callable[[bool], Outcome]] = {
    "units": units,
    "maximum": maximum,
    "components": components,
    "peers": peers,
    "little": little,
    "loops": loops,
    "times": times,
}


def main() -> None:
    """Run one study and print its bars and tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller data: a smoke test")
    options = parser.parse_args()
    rows, tables = STUDIES[options.study](options.quick)
    for table in (markdown(("work", "measured", "bar", ""), [row.cells for row in rows]), *tables.values()):
        print(f"{table}\n")


if __name__ == "__main__":
    main()
