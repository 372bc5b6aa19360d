"""A linear regressor with a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy
from sklearn.base import RegressorMixin

from cavity import losses
from cavity._checks import one_of, shown
from cavity._types import FloatArray
from cavity.ep.leave_one_out import LeftOut
from cavity.estimators import reports
from cavity.estimators.base import LinearEP, over_blocks, predicted_targets
from cavity.estimators.fitted import Fitted
from cavity.estimators.numbers import Numbers
from cavity.estimators.parameters import Parameters
from cavity.estimators.progress import Verbose
from cavity.estimators.runs import is_source
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import LOG_2PI
from cavity.gaussians.mixture import normal_mixture_quantile
from cavity.losses import Loss
from cavity.losses.joint import Normal, spread_log_density, spread_quantile, spread_std
from cavity.losses.noise import log_normalizer, mixture_quantile, predictive_std, with_scale
from cavity.moments import joint_log_masses, tilts

Score = Callable[[Any, Any, Any, Any], Any]


def score_of(loss: Loss, y: ArrayLike | None, predicted: FloatArray, weights: ArrayLike | None) -> float:
    """Share of the loss of a constant prediction that is saved."""
    score = next((score for kind, score in _SCORES.items() if isinstance(loss, kind)), _r2)
    return float(score(loss, y, predicted, weights))


def accuracy(y: Any, labels: Any, weights: Any) -> float:
    """Share of labels that are as predicted."""
    return float(_metric("accuracy_score")(y, labels, sample_weight=weights))


def _metric(name: str) -> Any:
    # Loaded with the first score: sklearn.metrics brings preprocessing and more.
    return getattr(import_module("sklearn.metrics"), name)


def _r2(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("r2_score")(y, predicted, sample_weight=weights)


def _absolute(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_absolute_error_score")(y, predicted, sample_weight=weights)


def _pinball(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_pinball_score")(y, predicted, sample_weight=weights, alpha=loss.quantile)


def _poisson(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_tweedie_score")(y, _positive(predicted), sample_weight=weights, power=1)


def _gamma(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_tweedie_score")(y, _positive(predicted), sample_weight=weights, power=2)


def _negative_binomial(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    counts, alpha = np.asarray(y, dtype=np.float64), loss.dispersion
    constant = np.full(counts.shape, np.average(counts, weights=weights))

    def deviance(mean: FloatArray) -> float:
        excess = xlogy(counts, counts / mean) - (counts + 1.0 / alpha) * np.log1p(
            alpha * (counts - mean) / (1.0 + alpha * mean)
        )
        return float(np.average(excess, weights=weights))

    least = deviance(_positive(constant))
    return 1.0 - deviance(_positive(predicted)) / least if least > 0.0 else np.nan


def _positive(predicted: Any) -> FloatArray:
    """Means that are numbers above zero."""
    limits = np.finfo(np.float64)
    return np.clip(predicted, limits.tiny, np.sqrt(limits.max))


_SCORES: dict[type, Score] = {
    losses.Absolute: _absolute,
    losses.Quantile: _pinball,
    losses.Poisson: _poisson,
    losses.Gamma: _gamma,
    losses.NegativeBinomial: _negative_binomial,
}


class EPRegressor(RegressorMixin, LinearEP):  # type: ignore[misc]
    r"""Linear regressor with a posterior: means, standard deviations and correlations of all coefficients.

    Each loss corresponds to a noise distribution: squared to Gaussian, absolute to Laplace, quantile to asymmetric
    Laplace, and Huber to Gaussian noise with heavy tails. Poisson and negative binomial are for counts, and gamma for
    positive targets, all with the mean :math:`e^z`. The noise scale is estimated unless it is given.

    Parameters
    ----------
    loss : name or loss object, default="squared"
        Loss of the linear predictor: ``"squared"`` (or ``"normal"``, which is the same), ``"absolute"``, ``"huber"``,
        ``"quantile"``, ``"poisson"``, ``"negative_binomial"``, ``"gamma"``, or your own loss (`cavity.losses`).
    formula : str, optional
        The model as lme4, mgcv and others write it, for rows in a DataFrame: ``"reaction ~ days + (days | subject)"``.
        See the guide, "Mixed and additive models".
    terms, structures
        As in `EPClassifier`.
    quantile : float in (0, 1), default=0.5
        The quantile that ``loss="quantile"`` predicts.
    epsilon : float, default=1.35
        Distance at which ``loss="huber"`` changes from squared to absolute, in units of the scale.
    scale : float, "auto" or "linear", default="auto"
        Noise scale in units of y, for losses given by name. ``"auto"`` estimates it by maximum likelihood during the
        fit, and updates it in a stream. For ``"gamma"``, it is the standard deviation divided by the mean, and the
        shape is ``scale**-2``. For ``"negative_binomial"``, it is the same for the random rate: the variance of a count
        with mean m is ``m + (scale * m)**2``. Poisson has no scale. With ``"linear"``, for ``loss="normal"``, the
        logarithm of the noise standard deviation is a linear function of the features, with coefficients
        `scale_coef_`.
    normalize_y : bool, default=True
        Whether the prior refers to targets with mean zero and standard deviation one, so that predictions do not
        depend on the units of y. Ignored for losses that predict the logarithm of a mean: ``"poisson"``,
        ``"negative_binomial"`` and ``"gamma"``.
    prior_variance, prior_groups, prior_mean, fit_intercept, intercept_prior_variance, covariance, max_iter, tol
        As in `EPClassifier`.
    errors : {"auto", "posterior", "robust", "cluster"}, default="auto"
        Errors of the coefficients in `coef_std_`, `summary`, `contrast` and ``predict(return_std="mean")``: those of
        the posterior, or those that the scatter of the rows, or of clusters of rows, gives whatever the model
        ("sandwich"). These need rows in memory and ``covariance="full"``. There ``"auto"`` is ``"cluster"`` where
        ``fit`` is given clusters, and ``"robust"`` for ``loss="quantile"``, whose posterior has no meaning of its own,
        with at least ten rows per coefficient; else, and for rows on disk, Dask and streams, it is ``"posterior"``.
    loo_refit : bool, default=False
        Whether to refit rows that move their own predictor by more than a standard deviation, one by one, for `loo_`;
        with ``covariance="full"``.
    random_state, verbose
        As in `EPClassifier`.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : float
        Posterior mean and standard deviation of the intercept.
    covariance_ : ndarray of shape (n, n)
        Posterior covariances of the n coefficients; the intercept is last.
    scale_ : float
        Noise scale, given or estimated, in the units of the parameter.
    scale_coef_, scale_coef_std_, scale_intercept_
        For ``scale="linear"``: posterior of the coefficients of the log standard deviation, and mean of its intercept.
    posterior_ : tuple of one Gaussian
        The posterior for the normalised targets, with the uncertainty of an estimated prior variance; the intercept is
        the last coefficient.
    log_evidence_ : float
        Estimate of the log evidence, the logarithm of the density of y in its original units. Use it to compare sets of
        columns, scales and priors.
    loo_ : ndarray of shape (n_samples,)
        Log density of the target of every row without that row, from EP's cavities, in units of y.
    elpd_loo_, elpd_loo_std_, loo_unreliable_
        As in `EPClassifier`.
    n_features_in_, feature_names_in_, n_iter_, prior_variance_, prior_units_, plan_, trace_, status_
        As in `EPClassifier`; the prior variance is in squared units of the normalised targets.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-1.0, 1.0, 50)[:, None]
    >>> model = EPRegressor().fit(X, 3.0 * X[:, 0] + 1.0)
    >>> model.predict(X[:2]).round(2), round(model.intercept_, 2)
    (array([-2.  , -1.88]), 1.0)
    """

    _targets_kind = Numbers

    def __init__(
        self,
        loss: Any = "squared",
        *,
        formula: str | None = None,
        terms: Any = None,
        structures: Any = None,
        quantile: float = 0.5,
        epsilon: float = 1.35,
        scale: Any = "auto",
        normalize_y: bool = True,
        prior_variance: Any = "auto",
        prior_groups: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        intercept_prior_variance: float = 100.0,
        covariance: str = "auto",
        max_iter: int = 100,
        tol: float = 0.01,
        errors: str = "auto",
        loo_refit: bool = False,
        random_state: Any = None,
        verbose: Verbose = None,
    ) -> None:
        self.loss = loss
        self.formula = formula
        self.terms = terms
        self.structures = structures
        self.quantile = quantile
        self.epsilon = epsilon
        self.scale = scale
        self.normalize_y = normalize_y
        self.prior_variance = prior_variance
        self.prior_groups = prior_groups
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_prior_variance = intercept_prior_variance
        self.covariance = covariance
        self.max_iter = max_iter
        self.tol = tol
        self.errors = errors
        self.loo_refit = loo_refit
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        forget: float = 0.0,
        offset: ArrayLike | None = None,
        halflife: float | None = None,
    ) -> Self:
        """Update the posterior with new rows, of which some are kept for a while.

        See `EPClassifier.partial_fit`. With the squared loss sums are kept instead, and the result is that of `fit`.
        The prior, the normalisation of y and the noise scale, unless given, follow the rows.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.
        forget : float in [0, 1), default=0.0
            Share of the information from earlier rows that is discarded before the update, for data that
            drift.
        halflife : float, optional
            Number of rows after which a row counts half, instead of ``forget``. The result does not depend on the
            number of rows per call.

        Returns
        -------
        Self
            The estimator. If the rows are invalid, or all have weight zero, it is unchanged.
        """
        if forget or not sample_weight is offset is halflife is None or not self._took_row(X, y):
            targets = Numbers.of(self, None if self._state is None else self._state.targets)
            self._take(Parameters.of(self), targets, X, y, sample_weight, forget, offset, halflife)
        return self

    @property
    def y_scale_(self) -> float:
        """Unit of the targets that the posterior refers to."""
        return self._fitted.targets.unit

    @property
    def y_offset_(self) -> float:
        """What is subtracted from the targets that the posterior refers to."""
        return self._fitted.targets.offset

    @property
    def scale_(self) -> float:
        """Scale of the noise in units of y."""
        fitted = self._fitted
        if isinstance(fitted.loss, Normal):
            return float(np.exp(self.posterior_[1].mean[-1] * fitted.design.intercept) * self.y_scale_)
        return float(self.y_scale_ * fitted.scale)

    @property
    def scale_coef_(self) -> FloatArray:
        """Posterior means of the coefficients of the log standard deviation, for ``scale="linear"``."""
        return np.asarray(self._log_scale_part().mean[: self._fitted.design.width])

    @property
    def scale_coef_std_(self) -> FloatArray:
        """Posterior standard deviations of `scale_coef_`."""
        return np.sqrt(self._log_scale_part().variance[: self._fitted.design.width])

    @property
    def scale_intercept_(self) -> float:
        """Posterior mean of the intercept of the log standard deviation, in units of y."""
        return float(np.sum(self._log_scale_part().mean[self._fitted.design.width :]) + np.log(self.y_scale_))

    def _log_scale_part(self) -> Any:
        if not isinstance(self._fitted.loss, Normal):
            raise AttributeError("only a model with scale='linear' has coefficients of the scale")
        return self.posterior_[1]

    @over_blocks
    def predict(
        self,
        X: Any,
        return_std: Any = False,
        quantile: Any = None,
        offset: ArrayLike | None = None,
        exclude: Sequence[str] = (),
    ) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        return_std : bool or "mean", default=False
            Whether to also return the standard deviation of a new target, which includes the noise and the uncertainty
            of the coefficients. For ``loss="quantile"``, the standard deviation of the predicted quantile. With
            ``"mean"``, the standard deviation of the mean of new targets: the uncertainty of the coefficients alone.
        quantile : float or array of floats in (0, 1), optional
            Return this quantile of a new target instead of its mean; for several quantiles, one column each. With
            ``return_std="mean"``, the quantile of the mean: ``predict(X, return_std="mean", quantile=(0.05, 0.95))[0]``
            has the borders of its 90 % interval.
        offset : array-like of shape (n_samples,), optional
            Known part of the linear predictor, such as the logarithm of an exposure.
        exclude : list of str, optional
            Terms whose effects are left out, such as ``["(days | subject)"]``; columns that only they read may be
            missing.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_quantiles), or two of them
            Posterior mean of the linear predictor, or of its exponential for losses of counts and positive targets.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(-1.0, 1.0, 50)[:, None]
        >>> model = EPRegressor().fit(X, 2.0 * X[:, 0] + np.sin(37.0 * np.arange(50)))
        >>> of_target = model.predict([[0.0]], return_std=True)[1]
        >>> of_mean = model.predict([[0.0]], return_std="mean")[1]
        >>> print((of_target / of_mean).round(1))
        [7.1]
        """
        (fitted, X, offset), levels = self._rows(X, offset, exclude), None if quantile is None else _levels(quantile)
        if isinstance(return_std, str):
            one_of("return_std", return_std, ("mean",))
            return _predicted_mean(fitted, X, offset, levels)
        if isinstance(fitted.loss, Normal):
            both = _predicted_spread(fitted, X, offset, levels)
            return both if return_std else both[0]
        unit, center, is_real = fitted.targets.unit, fitted.targets.offset, fitted.targets.kind == "reals"
        if levels is None and is_real:
            told = fitted.errors if isinstance(fitted.loss, losses.Quantile) else fitted.posterior
            (mean,), (variance,) = told.predictors(X, offset)
            if not return_std:
                return center + unit * mean
            noise = 0.0 if isinstance(fitted.loss, losses.Quantile) else _noise_variance(fitted)
            return center + unit * mean, unit * np.sqrt(variance + noise)
        weights, parts, means, variances = fitted.posterior.parts(X, offset)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite where it is too large
            each = means if is_real else np.exp(means + 0.5 * variances)
            found = weights @ each
            stds = np.array([predictive_std(*part) for part in zip(parts, means, variances, strict=True)])
            spread = np.sqrt(weights @ (np.square(stds) + np.square(each - found)))
        if levels is not None:
            columns = [mixture_quantile(parts, weights, means, variances, float(q)) for q in np.atleast_1d(levels)]
            found = np.column_stack(columns) if np.ndim(levels) else columns[0]
        found = center + unit * found
        return (found, unit * np.where(np.isnan(spread), np.inf, spread)) if return_std else found

    def log_densities(self, X: Any, y: ArrayLike, offset: ArrayLike | None = None) -> FloatArray:
        """Logarithm of the density of every target, the coefficients integrated out.

        Parameters
        ----------
        X, y, offset
            As in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log densities in units of y.
        """
        (fitted, X, offset), targets = self._rows(X, offset), self._fitted.targets
        t = (np.asarray(y, dtype=np.float64) - targets.offset) / targets.unit
        if isinstance(fitted.loss, Normal):
            found = spread_log_density(*fitted.posterior.joint_predictors(X, offset), t)
            return np.asarray(found - np.log(targets.unit))
        (mean,), (variance,) = fitted.posterior.predictors(X, offset)
        mass = tilts(fitted.loss, t, mean, variance).log_mass
        return np.asarray(mass - log_normalizer(fitted.loss, t) - np.log(targets.unit))

    def score(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Score of the predictions: 1 is perfect, 0 is as good as a constant prediction.

        The score is R² for the squared loss, the Huber loss and your own losses. For the other losses it is D², as in
        scikit-learn: of the absolute error, the pinball loss, the Poisson deviance (`d2_tweedie_score` with power 1),
        the gamma deviance (power 2), or the negative binomial deviance with the dispersion of the model.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.

        Returns
        -------
        float
            The score of `predict`.
        """
        if is_source(X):
            return score_of(self.loss_, *predicted_targets(self, X))
        return score_of(self.loss_, y, self.predict(X, offset=offset), sample_weight)

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the density of y in its original units."""
        fitted = self._fitted
        mass, totals, kind = super().log_evidence_, fitted.totals, fitted.targets.kind
        if kind == "counts":
            return mass - totals.constants
        if kind == "positives":
            return mass - totals.rows * float(log_normalizer(fitted.loss, np.exp([totals.mean]))[0])
        is_spread = isinstance(fitted.loss, Normal)
        constant = 0.5 * LOG_2PI if is_spread else float(log_normalizer(fitted.loss, np.zeros(1))[0])
        return mass - totals.rows * (constant + float(np.log(fitted.targets.unit)))

    def _without_themselves(self, state: Fitted, rows: Rows, left: list[LeftOut]) -> tuple[FloatArray, float]:
        loss: Any = state.loss
        mean, variance, _ = left[0]
        t = rows.targets[0]
        with np.errstate(all="ignore"):
            if isinstance(loss, Normal):
                found = spread_log_density(mean, variance, t)
            elif hasattr(loss, "predictors"):
                smooth = hasattr(loss, "derivatives")
                found = joint_log_masses(loss, t, mean, variance) if smooth else np.full(t.size, np.nan)
            else:
                found = tilts(loss, t, mean, variance).log_mass - log_normalizer(loss, t)
        return found - np.log(state.targets.unit), 1.0

    def _drawn(self, offset: Any, X: Any, y: Any, n: int, seed: int, rng: Any) -> tuple[Any, Any, Any]:
        fitted, X, offset = self._rows(X, offset)
        return reports.drawn_targets(fitted, fitted.posterior.sampled_predictors(X, n, seed, offset), y, rng)


def _predicted_mean(fitted: Fitted, X: Any, offset: Any, levels: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Means of new targets, or quantiles of these means, and their standard deviations."""
    if isinstance(fitted.loss, Normal):
        mean, covariance = fitted.errors.joint_predictors(X, offset)
        weights, means, variances = np.ones(1), mean[None, :, 0], covariance[None, :, 0, 0]
    else:
        weights, _, means, variances = fitted.errors.parts(X, offset)
    unit, center = fitted.targets.unit, fitted.targets.offset
    is_log, each, spreads = fitted.targets.kind != "reals", means, variances
    with np.errstate(over="ignore", invalid="ignore"):  # infinite where it is too large
        if is_log:
            each = np.exp(means + 0.5 * variances)
            spreads = np.square(each) * np.expm1(variances)
        found = weights @ each
        std = np.sqrt(weights @ (spreads + np.square(each - found)))
        if levels is not None:
            args = weights, means, np.sqrt(variances)
            quantiles = np.array([normal_mixture_quantile(*args, float(q)) for q in np.atleast_1d(levels)])
            found = (np.exp(quantiles) if is_log else quantiles).T
            found = found if np.ndim(levels) else found[:, 0]
    return center + unit * found, unit * np.where(np.isnan(std), np.inf, std)


def _predicted_spread(fitted: Fitted, X: Any, offset: Any, levels: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Means, or quantiles in their place, and standard deviations of new targets with a linear spread."""
    mean, variance = fitted.posterior.joint_predictors(X, offset)
    center, targets = mean[:, 0], fitted.targets
    if levels is not None:
        columns = [spread_quantile(mean, variance, float(q)) for q in np.atleast_1d(levels)]
        center = np.column_stack(columns) if np.ndim(levels) else columns[0]
    return targets.offset + targets.unit * center, targets.unit * spread_std(mean, variance)


def _noise_variance(fitted: Fitted) -> float:
    """Variance of the noise of real targets, averaged over hyperparameters."""
    zero, loss, total = np.zeros(1), fitted.loss, 0.0
    for setting in fitted.posterior.settings:
        one = with_scale(loss, setting.scale) if "scale" in getattr(loss, "_fields", ()) else loss
        total += setting.weight * float(predictive_std(one, zero, zero)[0]) ** 2
    return total


def _levels(quantile: Any) -> FloatArray:
    """Check one probability, or a list of them."""
    try:
        levels = np.asarray(quantile, dtype=np.float64)
    except (TypeError, ValueError):
        levels = np.array([np.nan])
    if (
        isinstance(quantile, bool | str)
        or levels.ndim > 1
        or levels.size == 0
        or not np.all((levels > 0.0) & (levels < 1.0))
    ):
        raise ValueError(f"quantile must be one or several numbers in (0, 1), got {shown(quantile)}")
    return levels
