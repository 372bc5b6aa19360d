"""One posterior by several methods: by the classifier, as a product of Gaussians, as the paper had it, and by sampling.

All of them see the same matrix, the constant column included, and the same prior, so that they can be compared.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import cavity
from cavity import datasets
from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from reference import mcmc
from reference.problems import LARGE, LOSS_TITLES, LOSSES, PRIOR_VARIANCE, QUICK_ROWS, TITLES

FloatArray = NDArray[np.float64]

# Rows of a mini-batch and loops of the paper's runs on small sets.
_BATCH_SIZE, _PAPER_LOOPS = 10, 5
_ROW_SEED = 0


class Marginals(Protocol):
    """Anything with means and standard deviations of the coordinates."""

    @property
    def mean(self) -> FloatArray:
        """Means."""

    @property
    def std(self) -> FloatArray:
        """Standard deviations."""


class Fit(NamedTuple):
    """Result of a method of fitting, in the columns of the problem."""

    mean: FloatArray
    std: FloatArray
    loops: int
    status: str

    @property
    def is_proper(self) -> bool:
        """Whether all means and deviations are finite, and the deviations positive."""
        return bool(np.all(np.isfinite(self.mean)) and np.all(np.isfinite(self.std)) and np.all(self.std > 0.0))


@dataclass(frozen=True, slots=True)
class Case:
    """One data set under one loss, its rows shuffled once.

    Parameters
    ----------
    data, loss
        Names, as in `problems`.
    scale
        ``"std"``: columns of unit variance. ``"norm"``: columns of norm one, as the paper had them.
    quick
        Whether to see only the first rows of a large set.
    """

    data: str
    loss: str
    scale: str = "std"
    quick: bool = False

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{TITLES[self.data]}, {LOSS_TITLES[self.loss]}"

    @property
    def rows(self) -> tuple[FloatArray, FloatArray]:
        """Matrix and labels."""
        return _rows(self.data, self.scale, self.quick)

    def batches(self) -> LinearBatches:
        """Cut the rows into mini-batches."""
        return LinearBatches(LOSSES[self.loss], *self.rows, _BATCH_SIZE)

    def prior(self) -> FactorialGaussian:
        """Build the prior of mean zero and variance 25, the same for the constant."""
        return FactorialGaussian.from_moments(np.zeros(self.rows[0].shape[1]), PRIOR_VARIANCE)

    def cost(self, point: FloatArray) -> float:
        """Sum of the losses at a point, and the prior's term."""
        with np.errstate(all="ignore"):
            return float(self.batches().cost(point) + point @ point / (2.0 * PRIOR_VARIANCE))


def distance_of_means(ours: Marginals, reference: Marginals) -> float:
    """Largest distance of a mean from the reference, in standard deviations of the reference."""
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(ours.mean - reference.mean) / reference.std))


def ratios_of_deviations(ours: Marginals, reference: Marginals) -> tuple[float, float]:
    """Smallest and largest ratio of a standard deviation to that of the reference."""
    ratios = ours.std / reference.std
    return float(np.min(ratios)), float(np.max(ratios))


def by_estimator(case: Case, **options: Any) -> Fit:
    """Fit `EPClassifier`, with options of its own; that it did not converge is in the status alone.

    The constant is a column of the matrix, with the prior of all others, and no intercept is added.
    """
    model = cavity.EPClassifier(
        LOSSES[case.loss], prior_variance=PRIOR_VARIANCE, fit_intercept=False, random_state=0, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(*case.rows)
    return Fit(model.coef_[0], model.coef_std_[0], model.n_iter_, model.status_.name)


def as_a_product(case: Case) -> Fit:
    """Fit a product of Gaussians in the case's own columns, the sites by exact projection."""
    return by_estimator(case, covariance="diagonal")


def as_in_the_paper(case: Case, scheme: str) -> Fit:
    """Run a scheme from the prior, sites floored and nothing guarded; the outcome is in the status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = cavity.fit(
            case.batches(),
            case.prior(),
            scheme,
            max_iter=_PAPER_LOOPS,
            safeguards=False,
            negative="floor",
            tol=0.0,
            compiled=False if case.quick else None,
        )
    return Fit(result.mean, result.std, len(result.trace.changes), result.status.name)


def by_sampling(case: Case, chains: int, draws: int) -> mcmc.Draws:
    """Sample the posterior itself, around the Gaussian that EP by blocks finds."""
    factors, prior = case.batches(), case.prior()
    near = cavity.fit(factors, prior, covariance="full", tol=0.01).posterior
    return mcmc.sample(factors, prior, near.mean, near.covariance, chains=chains, draws=draws)


@lru_cache(maxsize=2 * len(TITLES))
def _rows(data: str, scale: str, quick: bool) -> tuple[FloatArray, FloatArray]:
    loaded = datasets.paper(data, scale=scale)
    order = np.random.default_rng(_ROW_SEED).permutation(len(loaded.y))
    order = order[:QUICK_ROWS] if quick and data in LARGE else order
    return np.ascontiguousarray(loaded.X[order]), loaded.y[order]
