"""Stream: Census income in chunks of 100 rows. Drift: a simulated stream whose coefficients move.

Every chunk is predicted before it is learned from; the first one is not scored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, SGDClassifier

from benchmarks.comparison.core import Entry, Prediction, Problem, Task, around, log_loss_of, with_constant
from benchmarks.data import load
from cavity import EPClassifier

CHUNK = 100
CENSUS, CENSUS_QUICK = 32_000, 500
DRIFT, DRIFT_QUICK, COLUMNS = 20_000, 500, 10
# Correlation of a coefficient with itself one chunk later; the deviation of all of them is one at any time.
MEMORY = 0.997
# Memories of all models for the drift: the best of grids, by log loss on a stream of another seed. Rates of peers on
# Census income are the best of grids on this stream itself.
HALFLIFE, WINDOW, RATE = 300.0, 1000, 0.02
# A fit to all rows is repeated when they have grown by this factor.
GROWTH = 1.1
Follow = Callable[[Problem], Prediction]


def census(quick: bool) -> list[Problem]:
    """Rows in a fixed random order, columns standardised once for everyone."""
    data = load("census")
    count = CENSUS_QUICK if quick else CENSUS
    X, y = data.X[:count], (data.y[:count] > 0.0).astype(int)
    return [Problem(X, y, X[CHUNK:], y[CHUNK:])]


def drift(quick: bool, seed: int = 0) -> list[Problem]:
    """The truth has the coefficients of every chunk but the first, the intercept left out."""
    rng, count = np.random.default_rng(seed), DRIFT_QUICK if quick else DRIFT
    slopes = [rng.standard_normal(COLUMNS + 1)]
    for _ in range(count // CHUNK - 1):
        slopes.append(MEMORY * slopes[-1] + np.sqrt(1.0 - MEMORY**2) * rng.standard_normal(COLUMNS + 1))
    X = rng.standard_normal((count, COLUMNS))
    z = np.sum(with_constant(X) * np.repeat(slopes, CHUNK, axis=0), axis=1)
    y = (z + rng.logistic(size=count) > 0.0).astype(int)
    return [Problem(X, y, X[CHUNK:], y[CHUNK:], np.array(slopes)[1:, :-1])]


def follow(
    problem: Problem,
    learn: Callable[[Any, Any], object],
    predict: Callable[[Any], Any],
    moments: Callable[[], tuple[Any, Any]] | None = None,
) -> Prediction:
    """Predict every chunk, learn it, and keep means and deviations of the coefficients for the next."""
    learn(problem.X[:CHUNK], problem.y[:CHUNK])
    found, known = [], []
    for start in range(CHUNK, problem.y.size, CHUNK):
        part = slice(start, start + CHUNK)
        found.append(predict(problem.X[part]))
        if moments is not None and problem.truth is not None:
            known.append(moments())
        learn(problem.X[part], problem.y[part])
    interval = around(*(np.stack(values) for values in zip(*known, strict=True))) if known else None
    return Prediction(np.concatenate(found), interval)


def _second(model: Any, X: Any) -> Any:
    return model.predict_proba(X)[:, 1]


def _cavity(halflife: float | None = None, **options: Any) -> Follow:
    def solve(problem: Problem) -> Prediction:
        model = EPClassifier(**options)
        learn = partial(model.partial_fit, classes=[0, 1], halflife=halflife)
        return follow(problem, learn, partial(_second, model), lambda: (model.coef_[0], model.coef_std_[0]))

    return solve


def _sgd(**options: Any) -> Follow:
    def solve(problem: Problem) -> Prediction:
        model = SGDClassifier(loss="log_loss", random_state=0, **options)
        return follow(problem, partial(model.partial_fit, classes=[0, 1]), partial(_second, model))

    return solve


def _refitted(window: int | None = None) -> Follow:
    """A fit to the last rows after every chunk, or to all so far whenever they are a tenth more."""

    def solve(problem: Problem) -> Prediction:
        model, seen, next_ = LogisticRegression(max_iter=1000), 0, 0.0

        def learn(X: Any, y: Any) -> None:
            nonlocal seen, next_
            seen += y.size
            if seen >= next_:
                part = slice(0 if window is None else max(0, seen - window), seen)
                model.fit(problem.X[part], problem.y[part])
                next_ = 0.0 if window is not None else GROWTH * seen

        return follow(problem, learn, partial(_second, model))

    return solve


def _bandit(name: str, keep: float | None = None) -> Follow:
    """``keep`` is the share of what is known that stays per row."""

    def solve(problem: Problem) -> Prediction:
        import bayesianbandits

        forgetting = None if keep is None else bayesianbandits.StabilizedForgetting(keep)
        model = getattr(bayesianbandits, name)(forgetting=forgetting)

        def moments() -> tuple[Any, Any]:
            return model.coef_[:-1], np.sqrt(np.diag(np.linalg.inv(model.cov_inv_)))[:-1]

        learn, predict = (
            (lambda X, y: model.partial_fit(with_constant(X), y)),
            lambda X: model.predict(with_constant(X)),
        )
        return follow(problem, learn, predict, moments)

    return solve


def _river(make: Callable[[Any], Any]) -> Follow:
    def solve(problem: Problem) -> Prediction:
        from river import linear_model, optim

        model = linear_model.LogisticRegression(optimizer=make(optim))

        def learn(X: Any, y: Any) -> None:
            for row, label in zip(X.tolist(), y.tolist(), strict=True):
                model.learn_one(dict(enumerate(row)), bool(label))

        return follow(problem, learn, lambda X: np.array([_of_one(model, row) for row in X.tolist()]))

    return solve


def _of_one(model: Any, row: list[float]) -> float:
    return model.predict_proba_one(dict(enumerate(row)))[True]


def _vowpal(options: str = "") -> Follow:
    """Rows as lines of text, which is what it reads."""

    def solve(problem: Problem) -> Prediction:
        from vowpalwabbit import Workspace

        model = Workspace(f"--loss_function logistic --link logistic --quiet {options}")

        def learn(X: Any, y: Any) -> None:
            for row, label in zip(X, y, strict=True):
                model.learn(f"{2 * label - 1} {_line(row)}")

        found = follow(problem, learn, lambda X: np.array([model.predict(_line(row)) for row in X]))
        model.finish()
        return found

    return solve


def _line(row: Any) -> str:
    return "| " + " ".join(f"{j}:{v:.6g}" for j, v in enumerate(row.tolist()) if v)


_KEPT = 0.5 ** (1.0 / HALFLIFE)
_BB, _VW = ("bayesianbandits",), ("vowpalwabbit",)
TASKS = (
    Task(
        "stream",
        "Stream: Census income, 32,000 x 100 in chunks of 100",
        "log loss",
        census,
        log_loss_of,
        (
            Entry("cavity", "EPClassifier.partial_fit", "defaults", ("cavity",), _cavity()),
            Entry("scikit-learn", "SGDClassifier.partial_fit", "defaults", (), _sgd()),
            Entry(
                "scikit-learn",
                "SGDClassifier.partial_fit",
                "rate falls from 0.03",
                (),
                _sgd(learning_rate="invscaling", eta0=0.03, power_t=0.25),
            ),
            Entry("scikit-learn", "LogisticRegression", "refitted when rows are a tenth more", (), _refitted()),
            Entry("river", "LogisticRegression", "defaults", ("river",), _river(lambda optim: optim.SGD())),
            Entry("river", "LogisticRegression", "SGD 0.003", ("river",), _river(lambda optim: optim.SGD(0.003))),
            Entry("Vowpal Wabbit", "logistic", "defaults", _VW, _vowpal()),
            Entry(
                "Vowpal Wabbit", "logistic", "--sgd, constant rate 0.005", _VW, _vowpal("--sgd -l 0.005 --power_t 0")
            ),
            Entry("bayesianbandits", "BayesianGLM", "defaults", _BB, _bandit("BayesianGLM")),
            Entry("bayesianbandits", "EmpiricalBayesGLM", "defaults", _BB, _bandit("EmpiricalBayesGLM")),
        ),
    ),
    Task(
        "drift",
        "Drift: simulated, 20,000 x 10 in chunks of 100, moving coefficients",
        "log loss",
        drift,
        log_loss_of,
        (
            Entry("cavity", "EPClassifier.partial_fit", "defaults", ("cavity",), _cavity()),
            Entry("cavity", "EPClassifier.partial_fit", f"halflife={HALFLIFE:g}", ("cavity",), _cavity(HALFLIFE)),
            Entry("scikit-learn", "SGDClassifier.partial_fit", "defaults", (), _sgd()),
            Entry(
                "scikit-learn",
                "SGDClassifier.partial_fit",
                f"constant rate {RATE:g}",
                (),
                _sgd(learning_rate="constant", eta0=RATE),
            ),
            Entry(
                "scikit-learn",
                "LogisticRegression",
                f"refitted to the last {WINDOW:,} rows",
                (),
                _refitted(WINDOW),
            ),
            Entry("river", "LogisticRegression", "defaults", ("river",), _river(lambda optim: optim.SGD())),
            Entry(
                "river",
                "LogisticRegression",
                f"SGD {RATE:g}",
                ("river",),
                _river(lambda optim: optim.SGD(RATE)),
            ),
            Entry("Vowpal Wabbit", "logistic", "defaults", _VW, _vowpal()),
            Entry(
                "Vowpal Wabbit",
                "logistic",
                f"--sgd, constant rate {RATE:g}",
                _VW,
                _vowpal(f"--sgd -l {RATE} --power_t 0"),
            ),
            Entry("bayesianbandits", "BayesianGLM", "defaults", _BB, _bandit("BayesianGLM")),
            Entry("bayesianbandits", "BayesianGLM", f"half-life {HALFLIFE:g}", _BB, _bandit("BayesianGLM", _KEPT)),
        ),
    ),
)
