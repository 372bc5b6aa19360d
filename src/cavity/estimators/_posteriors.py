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

from cavity._checks import number_between, whole_number
from cavity.ep.knowledge import Gaussian, Knowledge
from cavity.ep.result import Status
from cavity.estimators._design import squared, with_intercept
from cavity.estimators._packing import check_state, packed, unpacked
from cavity.estimators._parameters import Parameters
from cavity.estimators._plan import WIDEST_COVARIANCE, Plan
from cavity.estimators._table import coefficient_table
from cavity.estimators._totals import Totals
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# What can be rebuilt from the rest, and what else a stream keeps.
_TRANSIENT = ("_posteriors", "_streams")
_OF_STREAMS = ("_refused", "_updates", "_found_variances", "_rows_at_revision")


class Posteriors(BaseEstimator):  # type: ignore[misc]
    """A prior and what the rows say, for every linear predictor, and all that follows from their product."""

    # Set by fitting.
    n_features_in_: int
    status_: Status
    trace_: Any
    plan_: Plan
    n_iter_: int
    tol: float
    _intercept: bool
    _knowledge: tuple[Knowledge, ...]
    _priors: tuple[FactorialGaussian, ...]
    _totals: Totals
    _fitted_beta: float
    _loss: Loss

    @property
    def posterior_(self) -> tuple[Gaussian, ...]:
        """Posterior of every linear predictor, the intercept last: one, or one per class if there are more than two."""
        found = self.__dict__.get("_posteriors")
        if found is None:
            known = self._known()
            found = tuple(k.posterior(prior) for k, prior in zip(known, self._priors, strict=True))
            self._posteriors = found
        return found

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
        return self._public(np.array([p.covariance for p in posterior]))

    @property
    def prior_variance_(self) -> Any:
        """Prior variance of the coefficients, given or found: a number, or one per feature or per class."""
        self._fitted("_priors")
        each = np.array([prior.variance[: self.n_features_in_] for prior in self._priors])
        each = each[:, 0] if np.all(each == each[:, :1]) else each
        return float(each[0]) if each.shape == (1,) else each[0] if len(each) == 1 else each

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the data's density under the model, summed over the linear predictors."""
        return float(sum(p.log_mass for p in self.posterior_))

    def __sklearn_is_fitted__(self) -> bool:
        return "_knowledge" in self.__dict__

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

    def _check_state(self) -> None:
        """Raise `ValueError` unless all parts of a model, from a file say, fit together."""
        check_state(self)

    def _known(self) -> tuple[Knowledge, ...]:
        """Give what the rows say for every linear predictor, apart from the prior."""
        streams = self.__dict__.get("_streams")
        known: tuple[Knowledge, ...] = self._fitted("_knowledge") if streams is None else streams.knowledge()
        return known

    def _latent(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors ``(count, n)`` at rows, checked before."""
        parts = [self._latent_of_one(X, posterior) for posterior in self.posterior_]
        return np.array([mean for mean, _ in parts]), np.array([variance for _, variance in parts])

    def _latent_of_one(self, X: Any, posterior: Gaussian) -> tuple[FloatArray, FloatArray]:
        m, d = posterior.mean, self.n_features_in_
        X = X.astype(np.float64, copy=False)
        mean = np.asarray(X @ m[:d]) + (m[d] if self._intercept else 0.0)
        if isinstance(posterior, FactorialGaussian):  # without a copy of the rows
            v = posterior.variance
            return mean, np.asarray(squared(X) @ v[:d]) + (v[d] if self._intercept else 0.0)
        return mean, posterior.predictor_variance(with_intercept(X) if self._intercept else X)

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
        n = whole_number("n", n, least=0)
        rng, posterior, d = check_random_state(random_state), self.posterior_, self.n_features_in_
        noise = rng.standard_normal((n, len(posterior), posterior[0].dim))
        draws = np.stack([p.draws(noise[:, k]) for k, p in enumerate(posterior)], axis=1)
        coef = draws[:, :, :d]
        intercept = draws[:, :, d] if self._intercept else np.zeros(draws.shape[:2])
        if len(posterior) == 1:
            coef, intercept = coef[:, 0], intercept[:, 0]
        return (coef, intercept) if return_intercept else coef

    def merge(self, other: Self) -> Self:
        """Combine with a model trained on other rows.

        What the rows say adds up, and the prior counts once: its variance, where the models found it, is the average
        of theirs by rows. Both models stay as they are.

        Returns
        -------
        Self
            A new model that knows what both know.

        Raises
        ------
        ValueError
            If the models differ in kind, features, loss, covariance or given prior, or if the product is not proper.
        """
        self._check_mergeable(other)
        result = copy.copy(self)
        for name in (*_TRANSIENT, *_OF_STREAMS):
            result.__dict__.pop(name, None)
        result._absorb(self, other)
        try:
            result.posterior_  # noqa: B018
        except ImproperError as error:
            raise ValueError("the product of the two models is not proper: one of them knows too little") from error
        return result

    def _absorb(self, one: Self, other: Self) -> None:
        """Become what two models know together."""
        self._knowledge = tuple(a.plus(b) for a, b in zip(one._known(), other._known(), strict=True))
        self._totals = one._totals.plus(other._totals)
        share = one._totals.rows / max(self._totals.rows, np.finfo(np.float64).tiny)
        self._priors = tuple(pooled_prior(a, b, share) for a, b in zip(one._priors, other._priors, strict=True))

    def _check_mergeable(self, other: Self) -> None:
        if type(other) is not type(self):
            raise ValueError(f"only another {type(self).__name__} can be merged, got {type(other).__name__}")
        if not (self.__sklearn_is_fitted__() and other.__sklearn_is_fitted__()):
            raise NotFittedError("both models must be fitted before they are merged")
        if other.n_features_in_ != self.n_features_in_ or other._intercept != self._intercept:
            raise ValueError(
                f"the models must have the same columns, got {self.n_features_in_} and {other.n_features_in_} features "
                f"with fit_intercept {self._intercept} and {other._intercept}"
            )
        if not self._same_loss(other):
            raise ValueError(f"the models have different losses, {self._loss} and {other._loss}")
        if type(self._known()[0]) is not type(other._known()[0]):
            raise ValueError(
                f"the models keep different posteriors, {self.plan_.covariance} and {other.plan_.covariance}: give "
                "both the same covariance"
            )
        if self._fitted_beta != other._fitted_beta:
            raise ValueError(f"the models have different beta, {self._fitted_beta:g} and {other._fitted_beta:g}")
        if not Parameters.of(self, self.n_features_in_).same_prior(Parameters.of(other, self.n_features_in_)):
            raise ValueError(
                "the models have different priors: give both the same prior_variance, prior_mean and "
                "intercept_prior_variance"
            )

    def _same_loss(self, other: Self) -> bool:
        return type(other._loss) is type(self._loss) and other._loss == self._loss

    def summary(self, level: float = 0.95) -> Any:
        """Table of coefficients: mean, standard deviation and interval of that posterior probability.

        Returns
        -------
        pandas.DataFrame or str
            A DataFrame where pandas is installed, text otherwise.
        """
        return coefficient_table(*self._named_coefficients(), number_between("level", level, 0.0, 1.0, "()"))

    def _named_coefficients(self) -> tuple[list[Any], FloatArray, FloatArray]:
        """Names, means and standard deviations of all coefficients, the intercept first."""
        means, stds = self._intercept_first(self._means()), self._intercept_first(self._stds())
        features = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        names = [*(["intercept"] if self._intercept else []), *map(str, features)]
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
        self._fitted("_knowledge")
        traces = self.trace_ if isinstance(self.trace_, tuple) else (self.trace_,)
        return _plots().plot_trace(traces, self._groups(), self.tol, ax=ax)

    def _forget_all(self) -> None:
        for name in ("_knowledge", *_TRANSIENT, *_OF_STREAMS):
            self.__dict__.pop(name, None)

    def _fitted(self, name: str) -> Any:
        if name not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit or partial_fit first")
        return self.__dict__[name]

    def _means(self) -> FloatArray:
        return np.array([p.mean for p in self.posterior_])

    def _stds(self) -> FloatArray:
        return np.sqrt(np.array([p.variance for p in self.posterior_]))

    def _intercept_first(self, values: FloatArray) -> FloatArray:
        return np.roll(values, 1, axis=1) if self._intercept else values

    def _intercepts(self, values: FloatArray) -> FloatArray:
        return values[:, -1] if self._intercept else np.zeros(len(values))

    def _public(self, values: FloatArray) -> Any:
        """One linear predictor per row, as scikit-learn's classifiers have it."""
        return values


def pooled_prior(a: FactorialGaussian, b: FactorialGaussian, share: float) -> FactorialGaussian:
    """Prior between two, by the share of the first: means, and variances on a logarithmic scale."""
    if a == b:
        return a
    mean = share * a.mean + (1.0 - share) * b.mean
    return FactorialGaussian.from_moments(mean, a.variance**share * b.variance ** (1.0 - share))


def _plots() -> Any:
    try:
        return import_module("cavity.estimators._plots")
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install cavity[plot]") from error
