"""A linear regressor with a posterior."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import RegressorMixin

from cavity import losses
from cavity._checks import as_float, flag, number_between, one_of, shown
from cavity.estimators._design import Data, NoWeightError, Totals, checked_offset, rows_of_weight, with_intercept
from cavity.estimators._parameters import moderate_number
from cavity.estimators._progress import Verbose
from cavity.estimators._reading import over_blocks, predicted_targets
from cavity.estimators._scores import score_of
from cavity.estimators._sources import is_source
from cavity.estimators._spread import LinearSpread
from cavity.gaussians.factorial import LOG_2PI
from cavity.gaussians.mixture import GaussianMixture, normal_mixture_quantile
from cavity.losses import Loss
from cavity.losses.noise import log_normalizer, mixture_quantile, predictive_std, with_scale

FloatArray = NDArray[np.float64]

# Losses that have a name, and the targets of losses of a regression.
_LOSSES: dict[str, Any] = {
    "squared": losses.Squared,
    "normal": losses.Squared,
    "absolute": losses.Absolute,
    "huber": losses.Huber,
    "quantile": losses.Quantile,
    "poisson": losses.Poisson,
    "negative_binomial": losses.NegativeBinomial,
    "gamma": losses.Gamma,
}
_KINDS = ("reals", "counts", "positives")


class EPRegressor(RegressorMixin, LinearSpread):  # type: ignore[misc]
    r"""Linear regressor with a posterior: means, standard deviations and correlations of all coefficients.

    Each loss corresponds to a noise distribution: squared to Gaussian, absolute to Laplace, quantile to asymmetric
    Laplace, and Huber to Gaussian noise with heavy tails. Poisson and negative binomial are for counts, and gamma for
    positive targets, all with the mean :math:`e^z`. The noise scale is estimated unless it is given.

    Parameters
    ----------
    loss : name or loss object, default="squared"
        Loss of the linear predictor: ``"squared"`` (or ``"normal"``, which is the same), ``"absolute"``, ``"huber"``,
        ``"quantile"``, ``"poisson"``, ``"negative_binomial"``, ``"gamma"``, or your own loss (`cavity.losses`).
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

    _first_spread = 1.0
    _is_single = True

    def __init__(
        self,
        loss: Any = "squared",
        *,
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
        random_state: Any = None,
        verbose: Verbose = None,
    ) -> None:
        self.loss = loss
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
        """Update the posterior with new rows; the rows are not stored.

        See `EPClassifier.partial_fit`. The update is exact for the squared loss. The prior, the normalisation of y and
        the noise scale, unless given, are updated with every call.

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
        if self._took_row(X, y, sample_weight, forget or None, offset, halflife):
            return self
        try:
            with self._whole_or_not_at_all():
                self._take(X, y, sample_weight, forget, offset, halflife)
        except NoWeightError:
            if not self.__sklearn_is_fitted__():
                raise
        return self

    def _read(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None, reset: bool = True, stream: bool = False
    ) -> tuple[Data, Totals]:
        """Check rows, targets, weights and offsets, and normalise the targets; the first call sets unit and offset."""
        if reset or not (self._is_plain(X) and type(y) is np.ndarray and y.shape == X.shape[:1]):
            X, y = self._check_X(X, y=y, y_numeric=True, reset=reset)
        y = np.asarray(y, dtype=np.float64)
        self._check_size(y)
        self._check_sign(y)
        known = checked_offset(offset, X.shape[0])
        X, both, weights = rows_of_weight(X, y if known is None else np.stack([y, known]), sample_weight)
        y, known = (both, None) if known is None else (both[0], both[1])
        return self._normalised(X, y, weights, known, reset)

    @over_blocks
    def predict(self, X: Any, return_std: Any = False, quantile: Any = None, offset: ArrayLike | None = None) -> Any:
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
        X, levels = self._checked_for_prediction(X), None if quantile is None else _levels(quantile)
        if isinstance(return_std, str):
            one_of("return_std", return_std, ("mean",))
            return self._predicted_mean(X, offset, levels)
        if self._is_spread:
            both = self._predicted_spread(X, offset, levels)
            return both if return_std else both[0]
        unit, center = self._units
        if levels is None and self._kind == "reals":
            (mean,), (variance,) = self._latent(X, offset)
            if not isinstance(self._loss, losses.Quantile):
                variance = variance + self._noise_variance()
            return (center + unit * mean, unit * np.sqrt(variance)) if return_std else center + unit * mean
        weights, parts, means, variances = self._parts(X, offset)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite where it is too large
            each = means if self._kind == "reals" else np.exp(means + 0.5 * variances)
            found = weights @ each
            stds = np.array([predictive_std(*part) for part in zip(parts, means, variances, strict=True)])
            spread = np.sqrt(weights @ (np.square(stds) + np.square(each - found)))
        if levels is not None:
            columns = [mixture_quantile(parts, weights, means, variances, float(q)) for q in np.atleast_1d(levels)]
            found = np.column_stack(columns) if np.ndim(levels) else columns[0]
        found = center + unit * found
        return (found, unit * np.where(np.isnan(spread), np.inf, spread)) if return_std else found

    def _predicted_mean(self, X: Any, offset: Any, levels: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Means of new targets, or quantiles of these means, and their standard deviations."""
        if self._is_spread:
            mean, covariance = self._spread_predictors(X, offset)
            weights, means, variances = np.ones(1), mean[None, :, 0], covariance[None, :, 0, 0]
        else:
            weights, _, means, variances = self._parts(X, offset)
        unit, center = self._units
        is_log, each, spreads = self._kind != "reals", means, variances
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

    def _noise_variance(self) -> float:
        """Variance of the noise of real targets, averaged over hyperparameters."""
        zero, loss, total = np.zeros(1), self._loss, 0.0
        for setting in self._settings()[0]:
            one = with_scale(loss, setting.scale) if "scale" in getattr(loss, "_fields", ()) else loss
            total += setting.weight * float(predictive_std(one, zero, zero)[0]) ** 2
        return total

    def _parts(self, X: Any, offset: Any) -> tuple[FloatArray, list[Any], FloatArray, FloatArray]:
        """Weights, losses, and means and variances of the predictor at rows, for all hyperparameters averaged over."""
        posterior, settings = self.posterior_[0], self._settings()[0]
        if not isinstance(posterior, GaussianMixture):
            mean, variance = self._latent(X, offset)
            return np.ones(1), [self._loss], mean, variance
        rows = with_intercept(X.astype(np.float64, copy=False)) if self._intercept else X.astype(np.float64, copy=False)
        means, variances = posterior.predictors(rows)
        known = checked_offset(offset, X.shape[0])
        means = means + (0.0 if known is None else known / self._units[0])
        parts: list[Any] = [self._loss] * len(settings)
        if "scale" in getattr(self._loss, "_fields", ()):
            parts = [with_scale(self._loss, setting.scale) for setting in settings]
        return posterior.weights, parts, means, variances

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
            return score_of(self._loss, *predicted_targets(self, X))
        return score_of(self._loss, y, self.predict(X, offset=offset), sample_weight)

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the density of y in its original units."""
        mass = super().log_evidence_
        if self._kind == "counts":
            return mass - self._totals.constants
        if self._kind == "positives":
            return mass - self._totals.rows * float(log_normalizer(self._loss, np.exp([self._totals.mean]))[0])
        constant = 0.5 * LOG_2PI if self._is_spread else float(log_normalizer(self._loss, np.zeros(1))[0])
        return mass - self._totals.rows * (constant + float(np.log(self.y_scale_)))

    def _make_loss(self) -> Loss:
        flag("normalize_y", self.normalize_y)
        loss: Any = self.loss
        if self._is_linear and not (isinstance(loss, str) and loss in ("squared", "normal")):
            raise ValueError(f"scale='linear' is for loss='normal', got loss={shown(loss)}")
        if not isinstance(loss, str):
            if isinstance(loss, type) or getattr(loss, "targets", None) not in _KINDS:
                raise ValueError(f"loss must be made for real or positive targets or counts, got {loss!r}")
            given: Loss = loss
            return given
        kind = _LOSSES[one_of("loss", loss, tuple(_LOSSES))]
        made: Loss = kind()
        if kind is losses.Poisson or self._is_linear:
            return made
        unit = self.__dict__.get("y_scale_", 1.0) if self._kind == "reals" else 1.0
        scale = 1.0 if self._finds_scale else moderate_number("scale", self.scale) / unit
        if loss == "quantile":
            level = number_between("quantile", self.quantile, 0.0, 1.0, "()")
            # The search for the scale starts at that of normal noise, of targets without any predictor.
            start = float(np.exp(-0.5 * ndtri(level) ** 2) / np.sqrt(2.0 * np.pi))
            return losses.Quantile(level, start if self._finds_scale else scale)
        if loss == "huber":
            return losses.Huber(moderate_number("epsilon", self.epsilon), scale)
        return with_scale(made, scale)

    @property
    def _finds_scale(self) -> bool:
        if not isinstance(self.scale, str):
            moderate_number("scale", self.scale)
        elif self.scale not in ("auto", "linear"):
            raise ValueError(f"scale must be a positive number, 'auto' or 'linear', got {shown(self.scale)}")
        return (
            isinstance(self.loss, str)
            and self.loss != "poisson"
            and isinstance(self.scale, str)
            and not self._is_linear
        )

    @property
    def _kind(self) -> Any:
        loss = _LOSSES.get(self.loss, losses.Squared)() if isinstance(self.loss, str) else self.loss
        return getattr(loss, "targets", None)

    def _check_own_state(self) -> None:
        scales: Any = self._scales
        sums = scales if isinstance(scales, list | tuple) and len(scales) == 2 else (np.nan,)
        offset, unit, *sums = (as_float(n) for n in (vars(self).get("y_offset_"), vars(self).get("y_scale_"), *sums))
        if not (np.isfinite(offset) and 0.0 < unit < np.inf and np.all(np.isfinite(sums))):
            raise ValueError("the model is not consistent: its normalisation is not finite")
        if len(self._knowledge) != 1 or self._loss.targets not in _KINDS:
            raise ValueError("the model is not consistent: its loss is not one of a regression, or it has no posterior")


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
