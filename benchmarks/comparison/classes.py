"""Small: breast cancer, two classes, five folds. Many classes: the ten digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold, train_test_split

from benchmarks.comparison import nuts
from benchmarks.comparison.core import Entry, Prediction, Problem, Task, log_loss_of, standardised, with_constant
from cavity import EPClassifier

FOLDS = 5
Solve = Callable[[Problem], Prediction]


def small(quick: bool) -> list[Problem]:
    """Five folds of breast cancer; one in a smoke test."""
    X, y = load_breast_cancer(return_X_y=True)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y)
    problems = [Problem(*_split(X, y, train, test)) for train, test in folds]
    return problems[:1] if quick else problems


def digits(quick: bool) -> list[Problem]:
    """Two thirds of the digits to learn from."""
    X, y = load_digits(return_X_y=True)
    size = {"train_size": 200, "test_size": 200} if quick else {"test_size": 1.0 / 3.0}
    return [Problem(*_split(X, y, *train_test_split(np.arange(y.size), stratify=y, random_state=0, **size)))]


def _split(X: Any, y: Any, train: Any, test: Any) -> tuple[Any, ...]:
    first, second = standardised(X[train], X[test])
    return first, y[train], second, y[test]


def proba(model: Any) -> Solve:
    """A classifier of scikit-learn's interface."""
    return lambda problem: Prediction(_two(model.fit(problem.X, problem.y).predict_proba(problem.X_new)))


def _two(p: Any) -> Any:
    return p[:, 1] if p.shape[1] == 2 else p


def _logit(regularised: bool) -> Solve:
    """Maximum likelihood, or with a small L1 penalty; several classes by MNLogit."""

    def solve(problem: Problem) -> Prediction:
        import statsmodels.api as sm

        kind = sm.Logit if np.max(problem.y) == 1 else sm.MNLogit
        model = kind(problem.y, with_constant(problem.X))
        found = model.fit_regularized(alpha=1.0, disp=0) if regularised else model.fit(disp=0)
        return Prediction(found.predict(with_constant(problem.X_new)))

    return solve


def _bandit(name: str) -> Solve:
    def solve(problem: Problem) -> Prediction:
        import bayesianbandits

        model = getattr(bayesianbandits, name)().fit(with_constant(problem.X), problem.y)
        return Prediction(model.predict(with_constant(problem.X_new)))

    return solve


def _river(advised: bool) -> Solve:
    """One pass, or ten with AdaGrad."""

    def solve(problem: Problem) -> Prediction:
        from river import linear_model, optim

        several = np.max(problem.y) > 1
        kind = linear_model.SoftmaxRegression if several else linear_model.LogisticRegression
        model = kind(optimizer=optim.AdaGrad(0.1)) if advised else kind()
        rows, new = ([dict(enumerate(row)) for row in X.tolist()] for X in (problem.X, problem.X_new))
        for _ in range(10 if advised else 1):
            for row, label in zip(rows, problem.y.tolist(), strict=True):
                model.learn_one(row, label)
        answers = [model.predict_proba_one(row) for row in new]
        p = np.array([[answer.get(label, 0.0) for label in range(int(np.max(problem.y)) + 1)] for answer in answers])
        return Prediction(_two(p))

    return solve


_RBF = ConstantKernel(10.0) * RBF(10.0)
_CAREFUL = {"Cs": 20, "cv": 10, "scoring": "neg_log_loss", "max_iter": 2000}
# Of both tasks; what a kind of peer lacks for several classes is left out there.
COMMON = (
    Entry("cavity", "EPClassifier", "defaults", ("cavity",), proba(EPClassifier())),
    Entry("scikit-learn", "LogisticRegression", "defaults", (), proba(LogisticRegression())),
    Entry("scikit-learn", "LogisticRegressionCV", "defaults", (), proba(LogisticRegressionCV(max_iter=2000))),
    Entry(
        "scikit-learn",
        "LogisticRegressionCV",
        "log loss, 20 values, 10 folds",
        (),
        proba(LogisticRegressionCV(**_CAREFUL)),
    ),
    Entry("scikit-learn", "GaussianProcessClassifier", "defaults", (), proba(GaussianProcessClassifier())),
    Entry(
        "scikit-learn", "GaussianProcessClassifier", "RBF kernel, fitted", (), proba(GaussianProcessClassifier(_RBF))
    ),
    Entry("statsmodels", "Logit", "defaults", ("statsmodels.api",), _logit(False)),
    Entry("statsmodels", "Logit", "L1 penalty 1", ("statsmodels.api",), _logit(True)),
    Entry("river", "LogisticRegression", "defaults, one pass", ("river",), _river(False)),
    Entry("river", "LogisticRegression", "AdaGrad 0.1, ten passes", ("river",), _river(True)),
)
BINARY = (
    Entry("bayesianbandits", "BayesianGLM", "defaults", ("bayesianbandits",), _bandit("BayesianGLM")),
    Entry("bayesianbandits", "EmpiricalBayesGLM", "defaults", ("bayesianbandits",), _bandit("EmpiricalBayesGLM")),
)
SAMPLED = nuts.entries("logistic, prior scale found", nuts.logistic, nuts.probabilities)
SEVERAL = {"Logit": "MNLogit", "LogisticRegression": "SoftmaxRegression"}


def _of_several(entry: Entry) -> Entry:
    renamed = entry.library in ("statsmodels", "river")
    return entry._replace(model=SEVERAL[entry.model]) if renamed else entry


TASKS = (
    Task(
        "small",
        "Small: breast cancer, 569 x 30, five folds",
        "log loss",
        small,
        log_loss_of,
        (*COMMON, *BINARY, *SAMPLED),
    ),
    Task(
        "classes",
        "Many classes: digits, 1,797 x 64, ten classes",
        "log loss",
        digits,
        log_loss_of,
        (*map(_of_several, COMMON), *SAMPLED),
    ),
)
