"""What a task, a peer and a prediction are, and the scores that all tasks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from sklearn.metrics import log_loss

from reference.problems import FloatArray

Interval = tuple[Any, Any]

LEVEL = 0.9
# An interval of that level reaches so many standard deviations to both sides of a Gaussian's mean.
HALF = float(stats.norm.ppf(0.5 + LEVEL / 2.0))
TAILS = (0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0)


class Problem(NamedTuple):
    """Rows to learn from, rows held out, and the true coefficients where data are simulated.

    ``extra`` holds what only some peers read: the same rows in another form.
    """

    X: Any
    y: Any
    X_new: Any
    y_new: Any
    truth: FloatArray | None = None
    extra: Any = None


class Prediction(NamedTuple):
    """What the task scores on the held-out rows, and 90 % intervals of true coefficients and of held-out targets."""

    held_out: Any
    coefficients: Interval | None = None
    targets: Interval | None = None


class Entry(NamedTuple):
    """A peer at one setting: what it needs installed, its work, and what may be done before time is taken."""

    library: str
    model: str
    setting: str
    needs: tuple[str, ...]
    solve: Callable[[Problem], Prediction]
    prepare: Callable[[Problem], object] | None = None

    @property
    def title(self) -> str:
        """Name of the line in the table."""
        return f"{self.library}: {self.model}"


class Task(NamedTuple):
    """Data sets that every entry works on, one after another, and how predictions are scored: lower is better."""

    name: str
    title: str
    score_name: str
    load: Callable[[bool], list[Problem]]
    score: Callable[[Problem, Any], float]
    entries: tuple[Entry, ...]


def around(mean: Any, std: Any) -> Interval:
    """A 90 % interval of a Gaussian."""
    return np.asarray(mean) - HALF * np.asarray(std), np.asarray(mean) + HALF * np.asarray(std)


def of_draws(draws: Any) -> Interval:
    """Central 90 % intervals of draws, one per row of ``draws``."""
    low, high = np.quantile(draws, TAILS, axis=0)
    return low, high


def covered(interval: Interval | None, truth: Any) -> float | None:
    """Share of true values inside their intervals."""
    if interval is None or truth is None:
        return None
    low, high = interval
    return float(np.mean((low <= truth) & (truth <= high)))


def log_loss_of(problem: Problem, probabilities: Any) -> float:
    """Mean log loss; classes are numbered from 0."""
    p = np.asarray(probabilities, dtype=np.float64)
    labels = np.arange(2 if p.ndim == 1 else p.shape[1])
    return float(log_loss(problem.y_new, p, labels=labels))


def negative_log_density(problem: Problem, moments: Any) -> float:
    """Mean of the negative log density of held-out targets under a Gaussian for each of them."""
    mean, std = moments
    return float(-np.mean(stats.norm.logpdf(problem.y_new, mean, std)))


def standardised(X: FloatArray, X_new: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both by the means and deviations of the first; columns that are constant there are left out."""
    mean, std = np.mean(X, axis=0), np.std(X, axis=0)
    kept = std > 1e-9 * np.maximum(np.abs(mean), 1.0)
    return (X[:, kept] - mean[kept]) / std[kept], (X_new[:, kept] - mean[kept]) / std[kept]


def with_constant(X: FloatArray) -> FloatArray:
    """A column of ones after the others, for peers that add none."""
    return np.column_stack([X, np.ones(X.shape[0])])
