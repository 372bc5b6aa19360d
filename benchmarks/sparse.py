"""The sparse problem: one pass over wide rows, its held-out log loss and time beside those of peers, and the evidence.

Rows have 50 equal non-zeros and norm one, at distinct columns of a Zipf-like law; the true coefficients are N(0, 9) and
the labels those of the logistic model. Probabilities of ours are integrated over the posterior.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression, SGDClassifier

import cavity
from benchmarks.bars import Row, at_most, markdown
from reference.timing import best_times

TRUE_VARIANCE = 9.0
GRID = tuple(9.0 * 2.0 ** (k / 2.0) for k in range(-6, 7))
HEADER = ("model", "seconds", "held-out log loss", "")


class Problem(NamedTuple):
    """Rows to learn from, and rows held out."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any


class Outcome(NamedTuple):
    """What one model reached; no log loss where it is absent or failed."""

    model: str
    seconds: float | None
    log_loss: float | None
    note: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Cells of a line."""
        seconds = "" if self.seconds is None else f"{self.seconds:.2f}"
        return self.model, seconds, "" if self.log_loss is None else f"{self.log_loss:.4f}", self.note


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars, and the table behind them by the name of its file."""
    rows, width = (20_000, 10_000) if quick else (200_000, 100_000)
    data = problem(rows, rows // 4, width)
    _compile(data)
    passes = [_ours(data, 25.0), _ours(data, 25.0, how="partial_fit"), _ours(data, "auto")]
    twice = [_ours(data, 25.0, loops=2), _ours(data, "auto", loops=2)]
    grid = _grid(data)
    peers = [*_sgd(data), *_regressions(data), *_optional(data)]
    bars = [*_time_bars(data, 1 if quick else 5), *_loss_bars(passes, peers), *_evidence_bars(data, grid)]
    table = markdown(HEADER, [o.cells for o in (*passes, *twice, *grid.outcomes, *peers)])
    return bars, {"sparse-models": table}


def problem(rows: int, held_out: int, width: int, nonzeros: int = 50, seed: int = 0) -> Problem:
    """Make the data."""
    rng = np.random.default_rng(seed)
    count = rows + held_out
    columns = _distinct_columns(count, width, nonzeros, rng)
    starts = np.arange(0, (count + 1) * nonzeros, nonzeros, dtype=np.int32)
    X = sparse.csr_array((np.full(columns.size, nonzeros**-0.5), columns.ravel(), starts), shape=(count, width))
    theta = np.sqrt(TRUE_VARIANCE) * rng.standard_normal(width)
    y = np.where(X @ theta + rng.logistic(size=count) > 0.0, 1.0, -1.0)
    return Problem(X[:rows], y[:rows], X[rows:], y[rows:])


def _distinct_columns(rows: int, width: int, nonzeros: int, rng: np.random.Generator) -> Any:
    """Columns of probability about one over their rank, sorted in every row; one drawn twice is drawn again."""

    def draw(shape: Any) -> Any:
        return np.minimum((np.exp(rng.random(shape) * np.log(width)) - 1.0).astype(np.int32), width - 1)

    columns, open_rows = np.sort(draw((rows, nonzeros)), axis=1), np.arange(rows)
    while open_rows.size:
        part = columns[open_rows]
        twice = np.zeros(part.shape, dtype=bool)
        twice[:, 1:] = part[:, 1:] == part[:, :-1]
        part[twice] = draw(int(np.sum(twice)))
        part.sort(axis=1)
        columns[open_rows] = part
        open_rows = open_rows[np.any(twice, axis=1)]
    return columns


def _log_loss(data: Problem, z: Any) -> float:
    return float(-np.mean(log_expit(data.y_test * z)))


def _model(variance: Any, loops: int = 1) -> cavity.EPClassifier:
    return cavity.EPClassifier(covariance="diagonal", max_iter=loops, prior_variance=variance, random_state=0)


def _compile(data: Problem) -> None:
    """Compile what is timed."""
    some = data.X[:100], data.y[:100]
    for loops in (1, 2):
        _timed(lambda n=loops: _model(25.0, n).fit(*some))
    _timed(lambda: _model(25.0).partial_fit(*some, classes=[-1.0, 1.0]))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = work()
    return time.perf_counter() - start, done


def _ours(data: Problem, variance: Any, loops: int = 1, how: str = "fit") -> Outcome:
    """One pass or two of `fit`, or `partial_fit`; what is not named are the defaults."""
    model = _model(variance, loops)
    works = {
        "fit": lambda: model.fit(data.X, data.y),
        "partial_fit": lambda: model.partial_fit(data.X, data.y, classes=[-1.0, 1.0]),
    }
    seconds, _ = _timed(works[how])
    loss = _log_loss(data, model.decision_function(data.X_test))
    chosen = f" {model.prior_variance_:.3g}" if variance == "auto" else ""
    title = f"cavity, {'one pass' if loops == 1 else f'{loops} loops'} of {how}, prior variance {variance}{chosen}"
    return Outcome(title, seconds, loss, f"log evidence {model.log_evidence_:.1f}")


class _Grid(NamedTuple):
    """Every prior variance of the grid, the best of them by either measure, and all outcomes."""

    by_log_loss: float
    by_evidence: float
    outcomes: list[Outcome]


def _grid(data: Problem) -> _Grid:
    outcomes, evidences = [], []
    for variance in GRID:
        model = _model(variance)
        seconds, _ = _timed(lambda m=model: m.fit(data.X, data.y))
        loss = _log_loss(data, model.decision_function(data.X_test))
        evidences.append(model.log_evidence_)
        note = f"log evidence {evidences[-1]:.1f}"
        outcomes.append(Outcome(f"cavity, grid, prior variance {variance:.3g}", seconds, loss, note))
    losses = [o.log_loss for o in outcomes]
    return _Grid(GRID[int(np.argmin(losses))], GRID[int(np.argmax(evidences))], outcomes)


def _sgd(data: Problem) -> list[Outcome]:
    """One epoch, as ours, and twenty."""
    outcomes = []
    for average in (False, True):
        for alpha in (1e-4, 1e-5, 1e-6, 1e-7):
            for epochs in (1, 20) if alpha in (1e-5, 1e-6) else (1,):
                model = SGDClassifier(
                    loss="log_loss", alpha=alpha, average=average, max_iter=epochs, tol=None, random_state=0
                )
                seconds, _ = _timed(lambda m=model: m.fit(data.X, data.y))
                kind = "averaged, " if average else ""
                title = f"SGDClassifier, {kind}alpha {alpha:g}, {epochs} epoch{'s' * (epochs > 1)}"
                outcomes.append(Outcome(title, seconds, _log_loss(data, model.decision_function(data.X_test))))
    return outcomes


def _regressions(data: Problem) -> list[Outcome]:
    """At convergence, for several prior variances, the true one among them."""
    outcomes = []
    for C in (0.3, 1.0, 3.0, 9.0, 25.0):
        model = LogisticRegression(C=C, max_iter=2000)
        seconds, _ = _timed(lambda m=model: m.fit(data.X, data.y))
        loss = _log_loss(data, model.decision_function(data.X_test))
        outcomes.append(Outcome(f"LogisticRegression, lbfgs, C={C:g}", seconds, loss, f"{model.n_iter_[0]} iterations"))
    return outcomes


def _optional(data: Problem) -> list[Outcome]:
    """Peers of the extra ``bench``; named as absent where they are, as failed where they fail."""
    outcomes = []
    for package, title, fit in _OPTIONAL:
        if importlib.util.find_spec(package) is None:
            outcomes.append(Outcome(title, None, None, "absent"))
            continue
        try:
            seconds, weights = fit(data)
            outcomes.append(Outcome(title, seconds, _log_loss(data, data.X_test @ weights)))
        except Exception as error:
            outcomes.append(Outcome(title, None, None, f"failed: {type(error).__name__}: {error}"))
    return outcomes


def _vowpal(data: Problem, options: str = "") -> tuple[float, Any]:
    """Lines of text are made beforehand; to parse them is part of its time."""
    from vowpalwabbit import Workspace

    names, value, ends = [str(j) for j in range(data.X.shape[1])], f":{data.X.data[0]:.10g} ", data.X.indptr
    entries = [name + value for name in names]
    lines = [
        f"{int(label)} | " + "".join(entries[j] for j in data.X.indices[ends[i] : ends[i + 1]])
        for i, label in enumerate(data.y)
    ]
    model = Workspace(f"--loss_function logistic --noconstant --quiet {options}")

    def learn() -> None:
        for line in lines:
            model.learn(line)

    seconds, _ = _timed(learn)
    weights = np.array([model.get_weight_from_name(name, " ") for name in names])
    model.finish()
    return seconds, weights


def _river(data: Problem, optimizer: str = "SGD", rate: float = 1.0) -> tuple[float, Any]:
    from river import linear_model, optim

    model = linear_model.LogisticRegression(optimizer=getattr(optim, optimizer)(rate), intercept_lr=0.0)
    ends, entry, seconds = data.X.indptr, float(data.X.data[0]), 0.0
    labels = (data.y > 0.0).tolist()
    for start in range(0, len(labels), 1000):  # so that not all rows are dictionaries at once
        chunk = range(start, min(start + 1000, len(labels)))
        rows = [dict.fromkeys(data.X.indices[ends[i] : ends[i + 1]].tolist(), entry) for i in chunk]
        spent, _ = _timed(
            lambda rows=rows, chunk=chunk: [model.learn_one(r, labels[i]) for r, i in zip(rows, chunk, strict=True)]
        )
        seconds += spent
    learned = dict(model.weights)  # asked for once: it is a copy
    return seconds, np.array([learned.get(j, 0.0) for j in range(data.X.shape[1])])


def _skglm(data: Problem) -> tuple[float, Any]:
    from skglm.datafits import Logistic
    from skglm.penalties import L2
    from skglm.solvers import LBFGS
    from skglm.utils.jit_compilation import compiled_clone

    def solve(X: Any, y: Any) -> Any:
        penalty = compiled_clone(L2(1.0 / (TRUE_VARIANCE * len(y))))
        solver = LBFGS(max_iter=2000, tol=1e-7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return solver.solve(sparse.csc_matrix(X), y, compiled_clone(Logistic()), penalty)[0]

    solve(data.X[:100], data.y[:100])  # compiles
    return _timed(lambda: solve(data.X, data.y))


_OPTIONAL: tuple[tuple[str, str, Callable[[Problem], tuple[float, Any]]], ...] = (
    ("vowpalwabbit", "Vowpal Wabbit, one pass", _vowpal),
    ("vowpalwabbit", "Vowpal Wabbit, one pass, learning rate 1", lambda data: _vowpal(data, "-l 1")),
    ("river", "river, one pass, SGD 1", _river),
    ("river", "river, one pass, AdaGrad 0.3", lambda data: _river(data, "AdaGrad", 0.3)),
    ("skglm", "skglm, lbfgs, prior variance 9", _skglm),
)


def _time_bars(data: Problem, repeats: int) -> list[Row]:
    """One pass against one epoch of SGD, both from raw arrays."""
    works = {f"fit {v:g}": lambda v=v: _model(v).fit(data.X, data.y) for v in (25.0, 9.0)}
    works["partial_fit"] = lambda: _model(25.0).partial_fit(data.X, data.y, classes=[-1.0, 1.0])
    works["SGD"] = lambda: SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=0).fit(data.X, data.y)
    t = best_times(works, repeats)
    shape = f"{data.X.shape[0]:,} x {data.X.shape[1]:,}"
    titles = {"fit 25": "one pass of fit", "fit 9": "the same, prior variance 9", "partial_fit": "partial_fit"}
    return [at_most(f"CSR {shape}, {title}", t[name], t["SGD"], 2.5, "one SGD epoch") for name, title in titles.items()]


def _loss_bars(ours: list[Outcome], peers: list[Outcome]) -> list[Row]:
    best = min((p for p in peers if p.log_loss is not None), key=lambda p: p.log_loss)
    return [
        Row(
            f"{o.model}: held-out log loss",
            f"{o.log_loss:.4f} against {best.log_loss:.4f} ({best.model})",
            "below every peer",
            o.log_loss < best.log_loss,
        )
        for o in ours
    ]


def _evidence_bars(data: Problem, grid: _Grid) -> list[Row]:
    """What the evidence chooses, and what the choice costs."""
    single, _ = _timed(lambda: _model(9.0).fit(data.X, data.y))
    model = _model("auto")
    seconds, _ = _timed(lambda: model.fit(data.X, data.y))
    rows = []
    for best, measure in ((grid.by_log_loss, "held-out log loss"), (grid.by_evidence, "evidence on the grid")):
        apart = max(model.prior_variance_ / best, best / model.prior_variance_)
        measured = f"{model.prior_variance_:.3g} against {best:.3g}: {apart:.2f} x, for {seconds / single:.1f} passes"
        rows.append(Row(f"prior_variance='auto' against the best by {measure}", measured, "factor 2", apart <= 2.0))
    return rows
