"""Every fit of the study, one after the other: data, how they are scaled, loss, and the choices of a user.

Rows are split into training and held-out ones by the seed. A fit counts as lost if it raises, gives a number that is
not finite, or ends above the cost of coefficients zero. Means and deviations are held against those of a full
covariance, the best posterior known for such models.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from cavity import EPClassifier, datasets, losses
from cavity.schemes import NAMES as SCHEMES

SCALINGS = ("norm", "unit variance", "raw", "wild")
LOSSES = {"logistic": losses.Logistic(), "hinge": losses.Hinge(), "quasi01": losses.QuasiZeroOne()}
SMALL = ("haberman", "ionosphere", "breast_cancer")
# Rows seen of a large set: enough to tell schemes apart.
MOST_ROWS = 6000
LOOPS = {True: 15, False: 5}
PRIOR_VARIANCE, INTERCEPT_VARIANCE = 25.0, 100.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user picks."""

    scheme: str
    basis: str
    init: str
    batch_size: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What the user has."""

    data: str
    scaling: str
    loss: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fit.

    The cost is that of the training rows at the posterior mean, prior included. ``distance`` is the root mean square
    distance of the means from a full covariance's in its standard deviations, ``ratio`` the median ratio of deviations.
    """

    data: str
    scaling: str
    loss: str
    seed: int
    scheme: str
    basis: str
    init: str
    batch_size: int
    status: str
    cost: float
    cost_at_zero: float
    held_out_log_loss: float
    distance: float
    ratio: float
    seconds: float

    @property
    def is_honest(self) -> bool:
        """Whether means and deviations are near those of a full covariance."""
        return self.distance <= 0.5 and 0.8 <= self.ratio <= 1.25

    @property
    def is_lost(self) -> bool:
        """Whether the answer is none."""
        return not self.cost <= self.cost_at_zero * (1.0 + 1e-9)


COLUMNS = tuple(field.name for field in fields(Outcome))


def cells(seeds: int) -> Iterator[Cell]:
    """All data."""
    for parts in itertools.product(datasets.NAMES, SCALINGS, LOSSES, range(seeds)):
        yield Cell(*parts)


def choices() -> Iterator[Choice]:
    """All choices: a row a batch with exact projection only, the curvature only where it is known."""
    bases, starts = ("none", "pca", "curvature"), ("prior", "mode")
    for scheme, basis, init, batch in itertools.product(SCHEMES, bases, starts, (1, 10, 100)):
        if (batch > 1 or scheme == "exact") and (basis != "curvature" or init == "mode"):
            yield Choice(scheme, basis, init, batch)


@lru_cache(maxsize=2)
def rows(data: str, scaling: str, seed: int) -> tuple[Any, ...]:
    """Training and held-out rows, four to one; scaled by the training rows."""
    design = datasets.paper(data, scale="raw")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(design.y))[:MOST_ROWS]
    X, y = design.X[order, :-1], design.y[order]
    cut = 4 * len(y) // 5
    train = X[:cut]
    if scaling != "raw":
        spread = np.std(train, axis=0)
        X = (X - np.mean(train, axis=0)) / np.where(spread > 0.0, spread, 1.0)
        if scaling == "norm":
            X = X / np.sqrt(cut)
        elif scaling == "wild":
            X = X * 10.0 ** rng.choice((-3.0, 3.0), size=X.shape[1])
    return np.ascontiguousarray(X[:cut]), y[:cut], np.ascontiguousarray(X[cut:]), y[cut:]


def model(cell: Cell, **choice: Any) -> EPClassifier:
    """A classifier for a cell."""
    return EPClassifier(
        LOSSES[cell.loss],
        loops=LOOPS[cell.data in SMALL],
        prior_variance=PRIOR_VARIANCE,
        intercept_prior_variance=INTERCEPT_VARIANCE,
        random_state=cell.seed,
        **choice,
    )


@lru_cache(maxsize=2)
def reference(cell: Cell) -> tuple[Any, Any]:
    """Means and standard deviations of a full covariance."""
    X, y, _, _ = rows(cell.data, cell.scaling, cell.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = model(cell, covariance="full").set_params(loops=50).fit(X, y)
    return coefficients(full)


def coefficients(fitted: EPClassifier) -> tuple[Any, Any]:
    """Means and standard deviations, the intercept last."""
    return np.append(fitted.coef_[0], fitted.intercept_), np.append(fitted.coef_std_[0], fitted.intercept_std_)


def run(cell: Cell, choice: Choice) -> Outcome:
    """Fit once and look at the answer."""
    X, y, X_out, y_out = rows(cell.data, cell.scaling, cell.seed)
    loss = LOSSES[cell.loss]
    basis = None if choice.basis == "none" else choice.basis
    tried = model(cell, scheme=choice.scheme, basis=basis, init=choice.init, batch_size=choice.batch_size)
    cost = held_out = distance = ratio = np.nan
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tried.fit(X, y)
        seconds, status = time.perf_counter() - start, tried.status_.name
        cost = total_cost(loss, X, y, tried.coef_[0], tried.intercept_[0])
        held_out = float(log_loss(y_out, tried.predict_proba(X_out)[:, 1], labels=tried.classes_))
        (mean, std), (best, width) = coefficients(tried), reference(cell)
        distance = float(np.sqrt(np.mean(((mean - best) / width) ** 2)))
        ratio = float(np.median(std / width))
    except (ValueError, RuntimeError, ArithmeticError) as error:
        seconds, status = time.perf_counter() - start, type(error).__name__
    zero = total_cost(loss, X, y, np.zeros(X.shape[1]), 0.0)
    parts = (cell.data, cell.scaling, cell.loss, cell.seed, choice.scheme, choice.basis, choice.init, choice.batch_size)
    return Outcome(*parts, status, cost, zero, held_out, distance, ratio, seconds)


def total_cost(loss: Any, X: Any, y: Any, coef: Any, intercept: float) -> float:
    """Losses of the rows and the prior's term."""
    data = float(np.sum(loss.value(y, X @ coef + intercept)))
    return data + 0.5 * float(coef @ coef) / PRIOR_VARIANCE + 0.5 * intercept**2 / INTERCEPT_VARIANCE
