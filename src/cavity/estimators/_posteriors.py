"""What a fitted linear model knows: coefficients with their spread, draws, tables, pictures, products of models."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state

from cavity.correlated import CorrelatedGaussian
from cavity.estimators._frame import Frame, Posterior
from cavity.estimators._packing import packed, unpacked
from cavity.estimators._table import coefficient_table
from cavity.gaussian import FactorialGaussian
from cavity.losses import Loss
from cavity.result import Status
from cavity.schedules import resolve_beta

FloatArray = NDArray[np.float64]

# Columns up to which a whole covariance is given.
WIDEST_COVARIANCE = 5000
# What can be rebuilt from the rest.
_TRANSIENT = ("_streams", "_padded", "_sites")


class Posteriors(BaseEstimator):  # type: ignore[misc]
    """A posterior for every linear predictor, in the coordinates of a `Frame`."""

    # Set by fitting.
    n_features_in_: int
    status_: Status
    trace_: Any
    n_iter_: int
    tol: float
    beta: Any
    _frame: Frame
    _posteriors: tuple[Posterior, ...]
    _loss: Loss

    @property
    def posterior_(self) -> tuple[Posterior, ...]:
        """Posterior of every linear predictor, the intercept last: one, or one a class if there are more than two.

        A `FactorialGaussian`; or, with ``covariance="full"`` and after `partial_fit` with its defaults, a
        `cavity.correlated.CorrelatedGaussian`, the moments of which have the same names.
        """
        streams = getattr(self, "_streams", None)
        if streams is not None:
            return tuple(stream.posterior for stream in streams)
        return self._fitted("_posteriors")

    @property
    def coef_(self) -> FloatArray:
        """Posterior means of the coefficients."""
        return self._public(self._means()[:, : self.n_features_in_])

    @property
    def coef_std_(self) -> FloatArray:
        """Posterior standard deviations of the coefficients."""
        return self._public(self._stds()[:, : self.n_features_in_])

    @property
    def intercept_(self) -> Any:
        """Posterior mean of the intercept; zero without one."""
        return self._public(self._intercepts(self._means()))

    @property
    def intercept_std_(self) -> Any:
        """Posterior standard deviation of the intercept; zero without one."""
        return self._public(self._intercepts(self._stds()))

    @property
    def covariance_(self) -> Any:
        """Posterior covariances of coefficients and intercept, the intercept last."""
        posterior = self.posterior_
        if posterior[0].dim > WIDEST_COVARIANCE:
            raise ValueError(
                f"covariance_ holds dim² numbers: at most {WIDEST_COVARIANCE} columns, got {posterior[0].dim}; "
                "coef_std_ has the standard deviations, sample_coef draws"
            )
        return self._public(np.array([self._frame.covariance(p) for p in posterior]))

    @property
    def log_evidence_(self) -> float:
        """Estimate of the log evidence, summed over the linear predictors."""
        return float(sum(p.log_mass for p in self.posterior_))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_posteriors")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return numbers, arrays and names only: a file then needs no other types. What can be rebuilt is left out."""
        state = {**super().__getstate__(), **packed(self)}
        for name in _TRANSIENT:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(unpacked(state))

    def _latent(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors ``(count, n)`` at rows, checked before."""
        parts = [self._frame.latent(X, posterior) for posterior in self.posterior_]
        return np.array([mean for mean, _ in parts]), np.array([variance for _, variance in parts])

    def sample_coef(
        self, n: int = 1, random_state: Any = None, return_intercept: bool = False
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Draw coefficients from the posterior.

        Parameters
        ----------
        n
            Number of draws.
        random_state
            Seed, `numpy.random.RandomState` or None.
        return_intercept
            Whether to return the intercepts of the same draws too.

        Returns
        -------
        ndarray
            ``(n, n_features)``, or ``(n, n_classes, n_features)`` for more than two classes; with
            ``return_intercept`` also the intercepts, ``(n,)`` or ``(n, n_classes)``.
        """
        rng, posterior, d = check_random_state(random_state), self.posterior_, self.n_features_in_
        noise = rng.standard_normal((n, len(posterior), posterior[0].dim))
        draws = np.stack([self._frame.draws(p, noise[:, k]) for k, p in enumerate(posterior)], axis=1)
        coef = draws[:, :, :d]
        intercept = draws[:, :, d] if self._frame.intercept else np.zeros(draws.shape[:2])
        if len(posterior) == 1:
            coef, intercept = coef[:, 0], intercept[:, 0]
        return (coef, intercept) if return_intercept else coef

    def merge(self, other: Self) -> Self:
        """Combine with a model trained on other data under the same prior.

        Natural parameters add, the prior counted once. Both models stay as they are.

        Returns
        -------
        Self
            A new model that knows what both know.

        Raises
        ------
        ValueError
            If the models differ in kind, features, loss or prior, or if the product is not proper.
        """
        self._check_mergeable(other)
        prior = self._frame.inner_prior
        merged = tuple(_product(a, b, prior) for a, b in zip(self.posterior_, other.posterior_, strict=True))
        if not all(p.is_proper for p in merged):
            raise ValueError("the product of the two posteriors is not proper: train with power or damping below one")
        result = copy.copy(self)
        result._forget_all()
        result._posteriors = merged
        return result

    def _check_mergeable(self, other: Self) -> None:
        if type(other) is not type(self):
            raise ValueError(f"only another {type(self).__name__} can be merged, got {type(other).__name__}")
        if not (self.__sklearn_is_fitted__() and other.__sklearn_is_fitted__()):
            raise NotFittedError("both models must be fitted before they are merged")
        if other.n_features_in_ != self.n_features_in_:
            raise ValueError(f"the models have {self.n_features_in_} and {other.n_features_in_} features")
        if type(other._loss) is not type(self._loss) or other._loss != self._loss:
            raise ValueError(
                f"the models have different losses, {self._loss} and {other._loss}: give both the same, and its scale"
            )
        a, b = self._frame.prior, other._frame.prior
        if not (a.dim == b.dim and np.array_equal(a.shift, b.shift) and np.array_equal(a.precision, b.precision)):
            raise ValueError("the models have different priors: give both the same prior_variance, as a number")
        if not _same(self._frame.basis, other._frame.basis):
            raise ValueError("the models work in different bases: train both with basis=None or the same matrix")

    def summary(self, level: float = 0.95) -> Any:
        """Table of coefficients: mean, standard deviation and interval of that posterior probability.

        Returns
        -------
        pandas.DataFrame or str
            A DataFrame where pandas is installed, text otherwise.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie in (0, 1), got {level}")
        return coefficient_table(*self._named_coefficients(), level)

    def _named_coefficients(self) -> tuple[list[Any], FloatArray, FloatArray]:
        """Names, means and standard deviations of all coefficients, the intercept first."""
        means, stds = self._intercept_first(self._means()), self._intercept_first(self._stds())
        features = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        names = [*(["intercept"] if self._frame.intercept else []), *map(str, features)]
        groups = self._groups()
        labels = names if groups is None else [(g, name) for g in groups for name in names]
        return labels, means.ravel(), stds.ravel()

    def _groups(self) -> list[str] | None:
        """Names of the linear predictors where there are several."""
        return None

    def plot_coefficients(self, ax: Any = None, top: int = 20, level: float = 0.95) -> Any:
        """Plot the coefficients that are largest against their standard deviation, with intervals.

        Needs matplotlib (``pip install cavity[plot]``). Returns the axes.
        """
        return _plots().plot_coefficients(*self._named_coefficients(), ax=ax, top=top, level=level)

    def plot_trace(self, ax: Any = None) -> Any:
        """Plot how much every loop of `fit` changed the posterior. Needs matplotlib. Returns the axes."""
        self._fitted("_posteriors")
        traces = self.trace_ if isinstance(self.trace_, tuple) else (self.trace_,)
        return _plots().plot_trace(traces, self._groups(), self.tol, ax=ax)

    def _forget_all(self) -> None:
        for name in ("_streams", "_padded", "_sites", "_posteriors", "_refused", "_updates"):
            self.__dict__.pop(name, None)

    def _fitted(self, name: str) -> Any:
        if name not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit or partial_fit first")
        return self.__dict__[name]

    def _final_beta(self) -> float:
        """Inverse temperature at which the fit ended."""
        return resolve_beta(self.beta).beta(self.n_iter_ - 1)

    def _means(self) -> FloatArray:
        return np.array([self._frame.mean(p) for p in self.posterior_])

    def _stds(self) -> FloatArray:
        return np.sqrt(np.array([self._frame.variance(p) for p in self.posterior_]))

    def _intercept_first(self, values: FloatArray) -> FloatArray:
        return np.roll(values, 1, axis=1) if self._frame.intercept else values

    def _intercepts(self, values: FloatArray) -> FloatArray:
        return values[:, -1] if self._frame.intercept else np.zeros(len(values))

    def _public(self, values: FloatArray) -> Any:
        """One linear predictor a row, as scikit-learn's classifiers have it."""
        return values


def _product(a: Posterior, b: Posterior, prior: FactorialGaussian) -> Posterior:
    """Multiply what two models know, the prior counted once."""
    if isinstance(a, FactorialGaussian) and isinstance(b, FactorialGaussian):
        return a * b / prior
    one, other, base = (g if isinstance(g, CorrelatedGaussian) else CorrelatedGaussian.of(g) for g in (a, b, prior))
    return one * other / base


def _same(a: FloatArray | None, b: FloatArray | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _plots() -> Any:
    try:
        return import_module("cavity.estimators._plots")
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install cavity[plot]") from error
