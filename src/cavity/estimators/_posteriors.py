"""What a fitted linear model knows: coefficients with their standard deviations, draws, tables and plots."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
from cavity.estimators._plan import Plan
from cavity.estimators._table import coefficient_table, combinations
from cavity.estimators._totals import Totals
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers

FloatArray = NDArray[np.float64]

# What is derived from the rest and can be rebuilt.
TRANSIENT = ("_posteriors", "_streams")
# What only streams keep.
OF_STREAMS = ("_refused", "_updates", "_rows_at_revision")


class Posteriors(BaseEstimator):  # type: ignore[misc]
    """A prior and what the rows say, for every linear predictor, and all that follows from their product."""

    # Set by fitting. `_streams` are working copies of products of Gaussians in a stream, ahead of `_knowledge`.
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
    _loss: Loss

    # Unit and offset of the targets: posteriors are those of normalised ones.
    _units: Any = (1.0, 0.0)
    # Names of the linear predictors where there are several.
    _groups: Any = None
    # Whether there is but one linear predictor, so that attributes have no row per predictor.
    _is_single = False

    @property
    def posterior_(self) -> tuple[Gaussian, ...]:
        """Posterior of every linear predictor, the intercept last: one, or one per class if there are more than two."""
        found = self.__dict__.get("_posteriors")
        if found is None:
            found = tuple(k.posterior(prior) for k, prior in zip(self._known(), self._priors, strict=True))
            self._posteriors = found
        return found

    @property
    def coef_(self) -> FloatArray:
        """Posterior means of the coefficients."""
        return _public(self, _moments(self)[0][:, : self.n_features_in_])

    @property
    def coef_std_(self) -> FloatArray:
        """Posterior standard deviations of the coefficients."""
        return _public(self, _moments(self)[1][:, : self.n_features_in_])

    @property
    def intercept_(self) -> Any:
        """Posterior mean of the intercept; zero without one."""
        return _public(self, np.sum(_moments(self)[0][:, self.n_features_in_ :], axis=1))

    @property
    def intercept_std_(self) -> Any:
        """Posterior standard deviation of the intercept; zero without one."""
        return _public(self, np.sum(_moments(self)[1][:, self.n_features_in_ :], axis=1))

    @property
    def covariance_(self) -> Any:
        """Posterior covariances of coefficients and intercept, the intercept last."""
        posterior = self.posterior_
        if posterior[0].dim > WIDEST_COVARIANCE:
            raise ValueError(
                f"covariance_ holds dim² numbers: at most {WIDEST_COVARIANCE} columns, got {posterior[0].dim}; "
                "coef_std_ has the standard deviations, sample_coef draws"
            )
        return _public(self, self._units[0] ** 2 * np.array([p.covariance for p in posterior]))

    @property
    def prior_variance_(self) -> Any:
        """Prior variance of the coefficients, given or found: a number, or one per feature or per class."""
        self._known()
        each = np.array([prior.variance[: self.n_features_in_] for prior in self._priors])
        each = each[:, 0] if np.all(each == each[:, :1]) else each
        return float(each[0]) if each.shape == (1,) else each[0] if len(each) == 1 else each

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the data's density under the model, summed over the linear predictors."""
        return float(sum(p.log_mass for p in self.posterior_))

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
        unit, offset = self._units
        draws = unit * np.stack([p.draws(noise[:, k]) for k, p in enumerate(posterior)], axis=1)
        coef, intercept = draws[:, :, :d], offset + np.sum(draws[:, :, d:], axis=2)
        if len(posterior) == 1:
            coef, intercept = coef[:, 0], intercept[:, 0]
        return (coef, intercept) if return_intercept else coef

    def summary(self, level: float = 0.95) -> Any:
        """Table of coefficients: mean, standard deviation, interval of that probability, probability to be positive.

        For the logistic loss and losses of counts and positive targets also the exponential of mean and interval: the
        ratio of odds, or of means, of a step of one in a feature.

        Returns
        -------
        pandas.DataFrame or str
            A DataFrame where pandas is installed, text otherwise.
        """
        level = number_between("level", level, 0.0, 1.0, "()")
        return coefficient_table(*_named_coefficients(self), level, _is_log(self))

    def contrast(self, *weights: Any, level: float = 0.95) -> Any:
        """Table of linear combinations of coefficients, from their joint posterior.

        Parameters
        ----------
        *weights
            Each a dict of coefficient names and factors, such as ``{"age": 1, "height": -1}`` for a difference, or an
            array of one factor per coefficient in the order of `summary`, the intercept first.
        level
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame or str
            As of `summary`, one combination per row, for every class if there are more than two.
        """
        level = number_between("level", level, 0.0, 1.0, "()")
        posteriors = self.posterior_  # not fitted: raised here
        names, shift = _names(self), int(self._intercept)
        labels, rows = combinations(weights, names)
        means = rows @ np.roll(_moments(self)[0], shift, axis=1).T
        rows = np.roll(rows, -shift, axis=1)
        stds = self._units[0] * np.sqrt([posterior.predictor_variance(rows) for posterior in posteriors])
        places = labels if self._groups is None else [(group, label) for group in self._groups for label in labels]
        return coefficient_table(places, means.T.ravel(), np.ravel(stds), level, _is_log(self))

    def plot_coefficients(self, ax: Any = None, top: int = 20, level: float = 0.95) -> Any:
        """Plot the coefficients that are largest against their standard deviation, with intervals.

        Needs matplotlib (``pip install cavity[plot]``). Returns the axes.
        """
        return _plots().plot_coefficients(*_named_coefficients(self), ax=ax, top=top, level=level)

    def plot_trace(self, ax: Any = None) -> Any:
        """Plot how much every loop of `fit` changed the posterior. Needs matplotlib. Returns the axes."""
        self._known()
        traces = self.trace_ if isinstance(self.trace_, tuple) else (self.trace_,)
        return _plots().plot_trace(traces, self._groups, self.tol, ax=ax)

    def __sklearn_is_fitted__(self) -> bool:
        return "_knowledge" in self.__dict__

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return numbers, arrays and names only: a file then needs no other types. What can be rebuilt is left out."""
        state = {**super().__getstate__(), **packed(self)}
        return {name: value for name, value in state.items() if name not in TRANSIENT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(unpacked(state))

    def _check_state(self) -> None:
        """Raise `ValueError` unless all parts of a model, from a file say, fit together."""
        check_state(self)

    def _known(self) -> tuple[Knowledge, ...]:
        """Give what the rows say for every linear predictor, apart from the prior."""
        if "_knowledge" not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit or partial_fit first")
        streams = self.__dict__.get("_streams")
        known: tuple[Knowledge, ...] = self._knowledge if streams is None else streams.knowledge()
        return known

    def _latent(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors ``(count, n)`` at rows, checked before."""
        X, d, posteriors = X.astype(np.float64, copy=False), self.n_features_in_, self.posterior_
        means = [np.asarray(X @ p.mean[:d]) + np.sum(p.mean[d:]) for p in posteriors]
        if isinstance(posteriors[0], FactorialGaussian):  # without a copy of the rows
            squares = squared(X)
            variances = [np.asarray(squares @ p.variance[:d]) + np.sum(p.variance[d:]) for p in posteriors]
        else:
            rows = with_intercept(X) if self._intercept else X
            variances = [p.predictor_variance(rows) for p in posteriors]
        return np.array(means), np.array(variances)


def _public(model: Posteriors, values: FloatArray) -> Any:
    """One linear predictor per row, as scikit-learn's classifiers have it, or the only one."""
    if not model._is_single:
        return values
    return float(values[0]) if values.ndim == 1 else values[0]


def _moments(model: Posteriors) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations of all coefficients, a linear predictor per row, the intercept last."""
    posteriors, (unit, offset) = model.posterior_, model._units
    means = unit * np.array([p.mean for p in posteriors])
    means[:, model.n_features_in_ :] += offset
    return means, unit * np.sqrt(np.array([p.variance for p in posteriors]))


def _named_coefficients(model: Posteriors) -> tuple[list[Any], FloatArray, FloatArray]:
    """Names, means and standard deviations of all coefficients, the intercept first."""
    means, stds = (np.roll(a, int(model._intercept), axis=1) for a in _moments(model))
    names = _names(model)
    labels = names if model._groups is None else [(g, name) for g in model._groups for name in names]
    return labels, means.ravel(), stds.ravel()


def _names(model: Posteriors) -> list[str]:
    """Names of the coefficients of one linear predictor, the intercept first."""
    features = getattr(model, "feature_names_in_", [f"x{j}" for j in range(model.n_features_in_)])
    return [*(["intercept"] if model._intercept else []), *map(str, features)]


def _is_log(model: Posteriors) -> bool:
    """Whether coefficients are logarithms of ratios: of odds, or of means."""
    return offers(model._loss).logistic is not None or model._loss.targets in ("counts", "positives")


def _plots() -> Any:
    try:
        return import_module("cavity.estimators._plots")
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install cavity[plot]") from error
