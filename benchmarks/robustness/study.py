"""Every fit of the study: data, how they are scaled, loss, and the form of the posterior.

Rows are split into training and held-out ones by the seed. Means and deviations are compared with those of a full
covariance run to a tenth of the default tolerance, with the same prior.
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

from cavity import EPClassifier, FactorialGaussian, LinearFactor, datasets, fit, losses
from cavity.estimators.classifier import log_probabilities
from cavity.schemes import NAMES as SCHEMES

SCALINGS = ("norm", "unit variance", "raw", "wild")
LOSSES = ("logistic", "hinge", "quasi01")
# Rows seen of a large set: enough to distinguish the choices.
MOST_ROWS = 6000
PRIOR_VARIANCE = 25.0
# Loops of a product of Gaussians, and of the reference.
PRODUCT_LOOPS, REFERENCE_LOOPS, REFERENCE_TOL = 30, 200, 1e-3

CHOICES: dict[str, dict[str, Any]] = {
    "EPClassifier()": {},
    "EPClassifier(prior_variance=25)": {"prior_variance": PRIOR_VARIANCE},
    **{f'cavity.fit(..., "{scheme}")': {"scheme": scheme} for scheme in SCHEMES if scheme != "exact"},
    'EPClassifier(prior_variance=25, covariance="diagonal")': {
        "prior_variance": PRIOR_VARIANCE,
        "covariance": "diagonal",
        "max_iter": PRODUCT_LOOPS,
    },
}


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

    ``distance`` is the largest distance of a mean from the reference's in its standard deviations, ``low`` and ``high``
    are the smallest and the largest ratio of a deviation to the reference's. They are not numbers where the prior
    differs.
    """

    data: str
    scaling: str
    loss: str
    seed: int
    choice: str
    status: str
    loops: int
    held_out_log_loss: float
    distance: float
    low: float
    high: float
    seconds: float

    @property
    def is_near(self) -> bool:
        """Whether every mean and every deviation is near the reference."""
        return self.distance <= 0.5 and self.low >= 0.8 and self.high <= 1.25

    @property
    def is_finite(self) -> bool:
        """Whether there is an answer."""
        return bool(np.isfinite(self.held_out_log_loss))


COLUMNS = tuple(field.name for field in fields(Outcome))


def cells(seeds: int) -> Iterator[Cell]:
    """All data."""
    for parts in itertools.product(datasets.NAMES, SCALINGS, LOSSES, range(seeds)):
        yield Cell(*parts)


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


def moments(model: Any) -> tuple[Any, Any]:
    """Means and standard deviations of the coefficients."""
    return model.coef_[0], model.coef_std_[0]


class Product:
    """A product of Gaussians by `cavity.fit`, in mini-batches of ten rows, with the attributes of `EPClassifier`."""

    def __init__(self, loss: str, random_state: int, scheme: str) -> None:
        kinds = {"logistic": losses.Logistic, "hinge": losses.Hinge, "quasi01": losses.QuasiZeroOne}
        self.loss, self.seed, self.scheme, self.classes_ = kinds[loss](), random_state, scheme, np.array([-1.0, 1.0])

    def fit(self, X: Any, y: Any) -> None:
        """Fit with safeguards, from the prior."""
        design = np.column_stack([X, np.ones(len(y))])
        prior = FactorialGaussian.from_moments(np.zeros(X.shape[1] + 1), [PRIOR_VARIANCE] * X.shape[1] + [100.0])
        factors = LinearFactor.batches(self.loss, design, y, 10)
        seed = int(np.random.RandomState(self.seed).randint(2**31 - 1))
        options: Any = {"max_iter": PRODUCT_LOOPS, "order": "shuffled", "tol": 0.01, "safeguards": True}
        result = fit(factors, prior, self.scheme, random_state=seed, **options)
        self.mean, self.variance = result.mean, result.std**2
        self.status_, self.n_iter_ = result.status, len(result.trace.changes)
        self.coef_, self.coef_std_ = result.mean[None, :-1], result.std[None, :-1]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of both labels."""
        design = np.column_stack([X, np.ones(len(X))])
        return np.exp(log_probabilities(self.loss, design @ self.mean, np.square(design) @ self.variance)).T


@lru_cache(maxsize=2)
def reference(cell: Cell) -> tuple[Any, Any]:
    """Means and standard deviations of a full covariance."""
    X, y, _, _ = rows(cell.data, cell.scaling, cell.seed)
    model = EPClassifier(
        cell.loss, prior_variance=PRIOR_VARIANCE, covariance="full", tol=REFERENCE_TOL, max_iter=REFERENCE_LOOPS
    )
    return moments(model.fit(X, y))


def run(cell: Cell, choice: str) -> Outcome:
    """Fit once and look at the answer."""
    X, y, X_out, y_out = rows(cell.data, cell.scaling, cell.seed)
    make = Product if "scheme" in CHOICES[choice] else EPClassifier
    model: Any = make(cell.loss, random_state=cell.seed, **CHOICES[choice])
    held_out = distance = low = high = np.nan
    loops, start = 0, time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y)
            seconds, status, loops = time.process_time() - start, model.status_.name, model.n_iter_
            held_out = float(log_loss(y_out, model.predict_proba(X_out)[:, 1], labels=model.classes_))
            if CHOICES[choice]:  # the prior is that of the reference
                (mean, std), (best, width) = moments(model), reference(cell)
                distance, ratios = float(np.max(np.abs(mean - best) / width)), std / width
                low, high = float(np.min(ratios)), float(np.max(ratios))
        except (ValueError, RuntimeError, ArithmeticError) as error:
            seconds, status = time.process_time() - start, type(error).__name__
    parts = (cell.data, cell.scaling, cell.loss, cell.seed, choice)
    return Outcome(*parts, status, loops, held_out, distance, low, high, seconds)
