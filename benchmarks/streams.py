"""Streams on ordinary data: one pass of mini-batches over standardised columns with a wide prior."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from cavity.full import fit_full
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier

import cavity
from benchmarks.timing import Row, markdown
from cavity import datasets, losses
from cavity.mode import find_mode

BATCH = 100
PRIOR_VARIANCE = 25.0
LOSSES = {"logistic": losses.Logistic(), "hinge": losses.Hinge()}
# Shares above the minimum that the default may end at, and its microseconds a row.
BARS, QUICK = {"logistic": 0.02, "hinge": 0.05}, 20.0


class Problem(NamedTuple):
    """Standardised rows and signs, the lowest cost, and mean and standard deviations of EP with a full covariance."""

    name: str
    loss: str
    X: Any
    y: Any
    lowest: float
    mean: Any
    std: Any

    def cost(self, point: Any) -> float:
        """Losses of all rows and the prior's share."""
        value = float(np.sum(LOSSES[self.loss].value(self.y, self.X @ point)))
        return value + 0.5 * float(point @ point) / PRIOR_VARIANCE


class Outcome(NamedTuple):
    """What one pass came to; deviations where there is a posterior."""

    work: str
    point: Any
    std: Any
    micros: float


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars on the default, and a table of all methods, on both large sets and with both losses."""
    rows, cells = [], []
    for name in ("census", "bank"):
        for loss in LOSSES:
            more, bars = _compare(name, loss, 1 if quick else 3, quick)
            rows += bars
            cells += more
    return rows, {"streams_methods": markdown(HEADER, cells)}


def _compare(name: str, loss: str, repeats: int, quick: bool) -> tuple[list[tuple[str, ...]], list[Row]]:
    """Lines of the table for one data set and loss, and the bars on the default."""
    problem = _problem(name, loss, quick)
    works: dict[str, Callable[[], Any]] = {"SGDClassifier": partial(_sgd, loss)}
    for scheme in ("qla", "vq", "exact"):
        works[f"{scheme}, own columns"] = partial(cavity.EPClassifier, loss, scheme, basis=None, **_options())
    works["exact, basis of the first rows"] = partial(cavity.EPClassifier, loss, basis="pca", **_options())
    ours = works["partial_fit with its defaults"] = partial(cavity.EPClassifier, loss, fit_intercept=False)
    outcomes = [_streamed(work, make, problem, repeats) for work, make in works.items()]
    cells = [_cells(problem, outcome) for outcome in outcomes]
    if not quick:
        in_order = _in_order_of_the_file(problem)
        cells.append(_cells(in_order, _streamed("the same, rows in the order of the file", ours, in_order, 1)))
    return cells, _bars(problem, outcomes[-1])


def _in_order_of_the_file(problem: Problem) -> Problem:
    """The same rows as they come in the file, which for Bank marketing is the order of time."""
    design = datasets.paper(problem.name, scale="std")
    return problem._replace(X=np.ascontiguousarray(design.X), y=design.y)


def _options() -> dict[str, Any]:
    return {"batch_size": BATCH, "fit_intercept": False, "safeguards": False}


def _sgd(loss: str) -> Any:
    return SGDClassifier(loss={"logistic": "log_loss"}.get(loss, loss), fit_intercept=False, random_state=0)


def _problem(name: str, loss: str, quick: bool) -> Problem:
    """Rows shuffled once, and what to compare with; the constant is one of the columns."""
    design = datasets.paper(name, scale="std")
    order = np.random.default_rng(0).permutation(design.y.size)[: 5000 if quick else None]
    X, y = np.ascontiguousarray(design.X[order]), design.y[order]
    prior = cavity.FactorialGaussian.from_moments(np.zeros(X.shape[1]), PRIOR_VARIANCE)
    factors = cavity.LinearFactor.batches(LOSSES[loss], X, y, BATCH)
    full = fit_full(factors, prior)
    problem = Problem(name, loss, X, y, np.inf, full.mean, np.sqrt(full.variance))
    return problem._replace(lowest=problem.cost(find_mode(factors, prior, width=0.01).point))


def _streamed(work: str, make: Callable[[], Any], problem: Problem, repeats: int) -> Outcome:
    """One pass, all calls timed together; the best of some."""
    X, y = problem.X, problem.y
    best = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(repeats + 1):
            model = make()
            start = time.perf_counter()
            for i in range(0, y.size, BATCH):
                model.partial_fit(X[i : i + BATCH], y[i : i + BATCH], classes=[-1.0, 1.0])
            best = min(best, time.perf_counter() - start)
    std = getattr(model, "coef_std_", None)
    return Outcome(work, model.coef_[0], None if std is None else std[0], 1e6 * best / y.size)


def _cells(problem: Problem, outcome: Outcome) -> tuple[str, ...]:
    cost = problem.cost(outcome.point)
    distance = np.sqrt(np.mean(((outcome.point - problem.mean) / problem.std) ** 2))
    spread = ""
    if outcome.std is not None:
        low, middle, high = np.quantile(outcome.std / problem.std, [0.05, 0.5, 0.95])
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    above = f"{cost / problem.lowest - 1.0:.2%}"
    return (
        problem.name, problem.loss, outcome.work, f"{cost:.0f}", above, f"{outcome.micros:.1f}", spread,
        f"{distance:.2f}",
    )  # fmt: skip


def _bars(problem: Problem, outcome: Outcome) -> list[Row]:
    above, title = problem.cost(outcome.point) / problem.lowest - 1.0, f"partial_fit, {problem.name} {problem.loss}"
    ratio = float(np.median(outcome.std / problem.std))
    least = float(np.quantile(outcome.std / problem.std, 0.05))
    bar = BARS[problem.loss]
    return [
        Row(f"{title}: cost", f"{above:.2%} above {problem.lowest:.0f}", f"at most {bar:.0%}", above <= bar),
        Row(f"{title}: time", f"{outcome.micros:.1f} µs a row", f"at most {QUICK:.0f} µs", outcome.micros <= QUICK),
        Row(
            f"{title}: standard deviations against full EP",
            f"median {ratio:.2f}, one column in twenty below {least:.2f}",
            "median at least 0.9, fewer than one in twenty below 0.5",
            ratio >= 0.9 and least >= 0.5,
        ),
    ]


HEADER = (
    "data", "loss", "one pass", "cost", "above the minimum", "µs a row", "std against full EP (5 to 95 %)",
    "distance of the mean",
)  # fmt: skip
