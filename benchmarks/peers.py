"""One-pass quality beside time: what a Python user would pick otherwise, where it is installed."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.svm import LinearSVC

import cavity
from cavity import datasets, losses

PRIOR_VARIANCE = 25.0


class Outcome(NamedTuple):
    """What one peer reached on one data set."""

    data: str
    peer: str
    seconds: float | None
    cost: float | None
    log_loss: float | None
    note: str = ""


def compare(name: str, repeats: int) -> list[Outcome]:
    """Fit every peer on a random 80 % of a data set; cost on those rows, log loss on the others."""
    design = datasets.paper(name)
    order = np.random.default_rng(0).permutation(len(design.y))
    cut = int(0.8 * len(order))
    X, y = np.ascontiguousarray(design.X[order[:cut]]), design.y[order[:cut]]
    X_test, y_test = design.X[order[cut:]], design.y[order[cut:]]

    def outcome(peer: str, fit: Callable[[], Any], variance: bool = False) -> Outcome:
        seconds, fitted = float("inf"), None
        for round_ in range(repeats + 1):
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = fit()
            if round_:  # the first round compiles, and does not count
                seconds = min(seconds, time.perf_counter() - start)
        mean, spread = fitted if variance else (np.ravel(fitted), None)
        z = X_test @ mean
        if spread is not None:  # the usual approximation of the logistic function averaged over a Gaussian
            z = z / np.sqrt(1.0 + np.pi / 8.0 * (X_test**2 @ spread))
        cost = float(-log_expit(y * (X @ mean)).sum() + mean @ mean / (2.0 * PRIOR_VARIANCE))
        return Outcome(name, peer, seconds, cost, float(-log_expit(y_test * z).mean()))

    def ep(scheme: str, loops: int = 1) -> Callable[[], Any]:
        def fit() -> Any:
            factors = cavity.LinearFactor.batches(losses.Logistic(), X, y, 100)
            prior = cavity.FactorialGaussian.from_moments(np.zeros(X.shape[1]), PRIOR_VARIANCE)
            sites = "none" if loops == 1 else "own"
            result = cavity.fit(factors, prior, scheme, sites=sites, max_iter=loops, safeguards=False)
            return result.mean, result.variance

        return fit

    def sk(model: Any) -> Callable[[], Any]:
        return lambda: model.fit(X, y).coef_

    plain = {"fit_intercept": False}
    outcomes = [outcome(f"cavity {s.upper()}, one pass", ep(s), variance=True) for s in ("qla", "vq", "gq", "la")]
    outcomes.append(outcome("cavity VQ, 5 loops", ep("vq", 5), variance=True))
    sgd = SGDClassifier(loss="log_loss", alpha=1.0 / (PRIOR_VARIANCE * cut), max_iter=1, tol=None, **plain)
    outcomes.append(outcome("SGDClassifier, one epoch", sk(sgd)))
    outcomes.append(outcome("SGDClassifier, 20 epochs", sk(sgd.__class__(**{**sgd.get_params(), "max_iter": 20}))))
    for solver in ("lbfgs", "newton-cholesky"):
        model = LogisticRegression(C=PRIOR_VARIANCE, solver=solver, max_iter=1000, **plain)
        outcomes.append(outcome(f"LogisticRegression, {solver}", sk(model)))
    svm = outcome("LinearSVC", sk(LinearSVC(C=PRIOR_VARIANCE, loss="hinge", max_iter=1000, **plain)))
    outcomes.append(svm._replace(cost=None, log_loss=None, note="another loss: time only"))
    outcomes += [_optional(name, peer, X, y, outcome) for peer in ("vowpalwabbit", "river", "skglm")]
    return outcomes


def _optional(data: str, peer: str, X: Any, y: Any, outcome: Callable[..., Outcome]) -> Outcome:
    """A peer of the extra ``bench``; named as absent where it is, as failed where it fails."""
    if importlib.util.find_spec(peer) is None:
        return Outcome(data, peer, None, None, None, "absent")
    titles = {"vowpalwabbit": "Vowpal Wabbit, one pass", "river": "river, one pass", "skglm": "skglm, lbfgs"}
    try:
        return outcome(titles[peer], lambda: _PEERS[peer](X, y))
    except Exception as error:
        return Outcome(data, peer, None, None, None, f"failed: {type(error).__name__}: {error}")


def _vowpal(X: Any, y: Any) -> Any:
    from vowpalwabbit import Workspace

    model = Workspace("--loss_function logistic --noconstant --quiet")
    for row, label in zip(X, y, strict=True):
        model.learn(f"{int(label)} | " + " ".join(f"{j}:{v:.8g}" for j, v in enumerate(row) if v))
    weights = np.array([model.get_weight_from_name(str(j), " ") for j in range(X.shape[1])])
    model.finish()
    return weights


def _river(X: Any, y: Any) -> Any:
    from river import linear_model, optim

    model = linear_model.LogisticRegression(optimizer=optim.SGD(1.0), intercept_lr=0.0)
    rows = (dict(enumerate(row)) for row in X.tolist())
    for row, label in zip(rows, (y > 0).tolist(), strict=True):
        model.learn_one(row, label)
    return np.array([model.weights.get(j, 0.0) for j in range(X.shape[1])])


def _skglm(X: Any, y: Any) -> Any:
    from skglm.datafits import Logistic
    from skglm.penalties import L2
    from skglm.solvers import LBFGS
    from skglm.utils.jit_compilation import compiled_clone

    penalty = compiled_clone(L2(1.0 / (PRIOR_VARIANCE * len(y))))
    return LBFGS().solve(X, y, compiled_clone(Logistic()), penalty)[0]


_PEERS = {"vowpalwabbit": _vowpal, "river": _river, "skglm": _skglm}
