"""What the tests of the estimators share: data, models whose numbers no default decides, and states to compare."""

from __future__ import annotations

import pickle
import warnings
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from cavity import EPClassifier, EPRegressor, FactorialGaussian, losses

# Equal but for the order in which rounding happens.
PARITY = 1e-10
STORAGES = {
    "dense": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "csr": sparse.csr_array,
}
# The prior variance fixed and a tight tolerance: what the defaults find has tests of its own.
_FIXED = {"prior_variance": 1.0, "tol": 1e-5, "random_state": 0}
# The product of Gaussians is compiled, once per loss: tests of it share this one.
_PRODUCT = {"covariance": "diagonal", "max_iter": 50, "tol": 1e-3}


class SquaredHinge(NamedTuple):
    """A user's own loss."""

    strength: float = 1.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        t = np.maximum(1.0 - y * z, 0.0)
        return 0.5 * self.strength * t * t

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        t = np.maximum(1.0 - y * z, 0.0)
        inside = 0.5 + 0.5 * np.sign(1.0 - y * z)
        return 0.5 * self.strength * t * t, -self.strength * y * t, self.strength * inside


class Broken(NamedTuple):
    """The logistic loss, but for predictors beyond a limit, where its cost is no number."""

    limit: float = 1e4

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return np.where(np.abs(z) > self.limit, np.nan, losses.Logistic().value(y, z))

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        value, slope, curvature = losses.Logistic().derivatives(y, z)
        return np.where(np.abs(z) > self.limit, np.nan, value), slope, curvature


def classifier(**options: Any) -> EPClassifier:
    return EPClassifier(**{**_FIXED, **options})


def regressor(**options: Any) -> EPRegressor:
    return EPRegressor(**{**_FIXED, "prior_variance": 25.0, **options})


def product_classifier(**options: Any) -> EPClassifier:
    """Factorised EP, the paper's algorithm, on the user's own columns."""
    return classifier(**{**_PRODUCT, **options})


def product_regressor(**options: Any) -> EPRegressor:
    return regressor(**{**_PRODUCT, **options})


def gaussian_regressor(**options: Any) -> EPRegressor:
    """A regressor whose factors are Gaussian and the same whatever the data."""
    return regressor(**{"scale": 0.7, "normalize_y": False, "prior_variance": 2.0, **options})


@cache
def two_classes(n: int = 57, d: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """Rows with zeros, and labels 0 and 1."""
    rng = np.random.default_rng(seed)
    X = 0.5 * rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
    y = (rng.random(n) < expit(4.0 * X @ np.linspace(1.0, -1.0, d))).astype(int)
    return _frozen(X), _frozen(y)


@cache
def three_classes(n: int = 57, d: int = 4, seed: int = 1) -> tuple[Any, Any]:
    """Rows with zeros, and labels that are words."""
    rng = np.random.default_rng(seed)
    X = 0.5 * rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
    scores = 3.0 * X @ rng.normal(size=(d, 3)) + rng.gumbel(size=(n, 3))
    return _frozen(X), _frozen(np.array(["ash", "birch", "cedar"])[np.argmax(scores, axis=1)])


CLASSES = {2: two_classes, 3: three_classes}


@cache
def cancer() -> tuple[Any, Any]:
    """Real data: 569 rows, 30 columns that correlate."""
    X, y = load_breast_cancer(return_X_y=True)
    return _frozen(scale(X)), _frozen(y)


COEF = np.array([2.0, -1.0, 0.5, 0.0])
INTERCEPT = 1.0


@cache
def line(noise: str = "normal", size: float = 0.7, n: int = 600, seed: int = 0) -> tuple[Any, Any]:
    """Rows, and targets on a plane with noise of a known kind and scale."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, COEF.size))
    return _frozen(X), _frozen(X @ COEF + INTERCEPT + getattr(rng, noise)(scale=size, size=n))


@cache
def orthogonal(n: int = 60, d: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """Rows of a single entry: every mini-batch is an orthogonal design, on which factorised EP is exact."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, d))
    X[np.arange(n), rng.integers(d, size=n)] = rng.normal(size=n)
    return _frozen(X), _frozen(X @ rng.normal(size=d) + 0.7 * rng.normal(size=n))


def batches(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def state_of(model: Any) -> Any:
    """The state of a fitted model, `cavity.estimators.fitted.Fitted`."""
    return model._fitted


def frozen(model: Any) -> tuple[Any, bytes]:
    """All that a model is: posteriors to the last bit, and the pickled whole."""
    fitted = model.__sklearn_is_fitted__()
    posteriors = [[np.asarray(n).tobytes() for n in numbers_of(p)] for p in model.posterior_] if fitted else None
    return posteriors, pickle.dumps(model)


def numbers_of(posterior: Any) -> tuple[Any, ...]:
    """Natural parameters of a product; mass, mean and covariance where there is a full one."""
    if isinstance(posterior, FactorialGaussian):
        return posterior.log_scale, posterior.shift, posterior.precision
    return posterior.log_mass, posterior.mean, posterior.covariance


def assert_same_model(found: Any, wanted: Any, tol: float = 0.0) -> None:
    """Compare the numbers of posteriors, entry by entry; bit by bit without a tolerance."""
    assert len(found.posterior_) == len(wanted.posterior_)
    for a, b in zip(found.posterior_, wanted.posterior_, strict=True):
        assert type(a) is type(b)
        for one, other in zip(numbers_of(a), numbers_of(b), strict=True):
            if tol == 0.0:
                np.testing.assert_array_equal(one, other)
            else:
                np.testing.assert_allclose(one, other, rtol=tol, atol=tol)


@contextmanager
def unsettled() -> Any:
    """EP may end as it likes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array
