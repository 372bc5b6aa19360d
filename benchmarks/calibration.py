"""How good probabilities are: held-out log loss and calibration error beside LogisticRegressionCV.

Five folds of all five sets, standardised and scaled as in the paper. Rows come in random order: those of Bank marketing
lie in order of time, and cross-validation without shuffling, the peer's default, then chooses badly. The calibration
error is the expected calibration error over ten bins of equally many rows: the mean distance of predicted probability
and share of positives.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold

import cavity
from benchmarks.timing import Row, markdown
from cavity import datasets

HEADER = ("data", "scaling", "model", "log loss", "± against the first peer", "calibration error", "±", "seconds")
BINS = 10
DRAWS = 200


class Outcome(NamedTuple):
    """Probabilities of a model on rows it was not fitted to."""

    data: str
    scaling: str
    model: str
    labels: Any
    chances: Any
    seconds: float

    @property
    def losses(self) -> Any:
        """Log loss of every row."""
        return -np.log(np.clip(np.where(self.labels > 0.0, self.chances, 1.0 - self.chances), 1e-15, 1.0))

    @property
    def log_loss(self) -> float:
        """Mean log loss."""
        return float(np.mean(self.losses))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error."""
        return expected_calibration_error(self.labels, self.chances)


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars, and the table behind them by the name of its file."""
    bars, table = [], []
    for data in datasets.NAMES[: 3 if quick else None]:
        for scaling in ("std", "norm"):
            outcomes = [_held_out(data, scaling, name) for name in (*_PEERS, *_OURS)]
            peers = outcomes[: len(_PEERS)]
            bars += [bar for ours in outcomes[len(_PEERS) :] if ours.model in _BARS for bar in _bars(ours, peers)]
            table += [_line(o, peers[0]) for o in outcomes]
    return bars, {"calibration-models": markdown(HEADER, table)}


def expected_calibration_error(y: Any, p: Any, bins: int = BINS) -> float:
    """Mean distance of predicted probability and share, over bins of equally many rows."""
    order = np.argsort(p, kind="stable")
    parts = np.array_split(order, bins)
    return float(sum(part.size * abs(np.mean(p[part]) - np.mean(y[part] > 0.0)) for part in parts) / y.size)


def _peer(scoring: str) -> Any:
    """Ten strengths from 1e-4 to 1e4 and five folds, as by default; Newton's method finds the same minima sooner."""
    options = {"solver": "newton-cholesky", "max_iter": 1000}
    return LogisticRegressionCV(scoring=scoring, l1_ratios=(0.0,), use_legacy_attributes=False, **options)


def _ep(loss: str = "logistic", **options: Any) -> Any:
    return cavity.EPClassifier(loss, random_state=0, **options)


# Ranking by accuracy is the default of LogisticRegressionCV.
_PEERS = {
    "LogisticRegressionCV": lambda: _peer("accuracy"),
    "LogisticRegressionCV, neg_log_loss": lambda: _peer("neg_log_loss"),
}
_OURS = {
    "EPClassifier": _ep,
    "EPClassifier, evidence": lambda: _ep(prior_variance="evidence"),
    "EPClassifier, hinge, evidence": lambda: _ep("hinge", prior_variance="evidence"),
    "EPClassifier, hinge": lambda: _ep("hinge"),
    "EPClassifier, quasi01": lambda: _ep("quasi01"),
}
_BARS = ("EPClassifier", "EPClassifier, evidence")


def _held_out(data: str, scaling: str, name: str) -> Outcome:
    """Probabilities of every row from a model fitted to the other four folds."""
    design = datasets.paper(data, scale=scaling)
    order = np.random.default_rng(0).permutation(design.y.size)
    X, y = np.ascontiguousarray(design.X[order, :-1]), design.y[order]
    make = {**_PEERS, **_OURS}[name]
    chances, seconds = np.empty(y.size), 0.0
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make().fit(X[train], y[train])
        seconds += time.perf_counter() - start
        chances[test] = model.predict_proba(X[test])[:, 1]
    return Outcome(data, scaling, name, y, chances, seconds)


def _bars(ours: Outcome, peers: list[Outcome]) -> list[Row]:
    """Ours against each peer, by both measures; the standard error of the difference is context."""
    rows = []
    for peer in peers:
        work = f"{ours.data}, {ours.scaling}, {ours.model} against {peer.model}"
        for title, measure, error in (
            ("log loss", "log_loss", _log_loss_error),
            ("calibration error", "calibration_error", _calibration_error_error),
        ):
            a, b = getattr(ours, measure), getattr(peer, measure)
            measured = f"{a:.4f} against {b:.4f}: {a - b:+.4f} ± {error(ours, peer):.4f}"
            rows.append(Row(f"{work}: {title}", measured, "no worse", a <= b))
    return rows


def _log_loss_error(a: Outcome, b: Outcome) -> float:
    """Standard error of the difference, rows taken as independent."""
    return float(np.std(a.losses - b.losses) / np.sqrt(a.losses.size))


def _calibration_error_error(a: Outcome, b: Outcome) -> float:
    """Standard error of the difference by the bootstrap over rows."""
    rng = np.random.default_rng(0)
    draws = (rng.integers(a.labels.size, size=a.labels.size) for _ in range(DRAWS))
    differences = [
        expected_calibration_error(a.labels[i], a.chances[i]) - expected_calibration_error(b.labels[i], b.chances[i])
        for i in draws
    ]
    return float(np.std(differences))


def _line(o: Outcome, peer: Outcome) -> tuple[str, ...]:
    losses = (f"{o.log_loss:.4f}", f"{_log_loss_error(o, peer):.4f}")
    errors = (f"{o.calibration_error:.4f}", f"{_calibration_error_error(o, peer):.4f}")
    return o.data, o.scaling, o.model, *losses, *errors, f"{o.seconds:.2f}"
