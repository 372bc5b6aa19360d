"""Held-out probabilities and time of `EPClassifier()` against cross-validated logistic regression, five folds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold

from benchmarks.bars import Row, markdown
from benchmarks.data import REAL, Data, load
from cavity import EPClassifier
from reference.problems import LARGE, FloatArray

# Log loss no worse on so many of the sets, and on none by more than this share.
AT_LEAST, NEVER_BY = 7, 0.03
QUICK_ROWS = 2000
HEADER = ("data", "model", "held-out log loss", "expected calibration error", "accuracy", "seconds, five fits")

MODELS: dict[str, Callable[[], Any]] = {
    "EPClassifier": EPClassifier,
    "LogisticRegressionCV": lambda: LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000),
    "EPClassifier, hinge": lambda: EPClassifier("hinge"),
    "EPClassifier, prior variance 25": lambda: EPClassifier(prior_variance=25.0),
}


class Outcome(NamedTuple):
    """Held-out probability of the positive label of every row, and processor time of the fits."""

    labels: FloatArray
    chances: FloatArray
    seconds: float

    @property
    def log_loss(self) -> float:
        """Mean of minus the logarithm of the true label's probability."""
        right = np.where(self.labels > 0.0, self.chances, 1.0 - self.chances)
        return float(-np.mean(np.log(np.clip(right, 1e-15, 1.0))))

    @property
    def calibration_error(self) -> float:
        """Mean distance of probability and frequency, over ten equal parts of the rows by probability."""
        parts = np.array_split(np.argsort(self.chances, kind="stable"), 10)
        apart = [abs(np.mean(self.chances[p]) - np.mean(self.labels[p] > 0.0)) * p.size for p in parts if p.size]
        return float(np.sum(apart) / self.labels.size)

    @property
    def accuracy(self) -> float:
        """Share of labels that have the larger probability."""
        return float(np.mean((self.chances > 0.5) == (self.labels > 0.0)))


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars, and a table of all models."""
    rows, cells, worse = [], [], []
    for name in REAL:
        data = load(name)
        if quick and name in LARGE:
            data = data._replace(X=data.X[:QUICK_ROWS], y=data.y[:QUICK_ROWS])
        found = {model: held_out(data, make) for model, make in MODELS.items()}
        ours, peer = found["EPClassifier"], found["LogisticRegressionCV"]
        share = ours.log_loss / peer.log_loss - 1.0
        worse.append(share)
        measured = f"{ours.log_loss:.4f} against {peer.log_loss:.4f}: {100.0 * share:+.1f} %; "
        measured += f"{ours.seconds:.2f} s against {peer.seconds:.2f} s"
        met = share <= NEVER_BY and ours.seconds < peer.seconds
        rows.append(Row(data.title, measured, "at most 3 % worse than LogisticRegressionCV, in less time", met))
        cells += [_cells(data, model, outcome) for model, outcome in found.items()]
    count = sum(share <= 0.0 for share in worse)
    measured = f"{count} of {len(worse)}"
    rows.append(Row("held-out log loss no worse", measured, f"at least {AT_LEAST} of {len(worse)}", count >= AT_LEAST))
    return rows, {"calibration-models": markdown(HEADER, cells)}


def held_out(data: Data, make: Callable[[], Any]) -> Outcome:
    """Probabilities of every row from a model fitted to the other four folds."""
    chances, seconds = np.empty(data.y.size), 0.0
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(data.X, data.y):
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make().fit(data.X[train], data.y[train])
        seconds += time.process_time() - start
        chances[test] = model.predict_proba(data.X[test])[:, 1]
    return Outcome(data.y, chances, seconds)


def _cells(data: Data, model: str, o: Outcome) -> tuple[str, ...]:
    measures = (f"{o.log_loss:.4f}", f"{o.calibration_error:.4f}", f"{o.accuracy:.4f}", f"{o.seconds:.2f}")
    return data.title, model, *measures
