"""A linear regressor with a posterior."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cavity import losses
from cavity._checks import as_float, flag, number_between, one_of, shown
from cavity.estimators._base import checked_share, checked_weights
from cavity.estimators._design import rows_of_weight
from cavity.estimators._parameters import LARGEST_TARGET, Parameters, moderate_number
from cavity.estimators._targets import NormalisedTargets
from cavity.estimators._totals import Totals
from cavity.losses import Loss
from cavity.noise import log_normalizer, predictive_quantile, predictive_std

FloatArray = NDArray[np.float64]

_NAMES = ("squared", "absolute", "huber", "quantile", "poisson")


class EPRegressor(RegressorMixin, NormalisedTargets):  # type: ignore[misc]
    r"""Linear regressor with a posterior: means, standard deviations and correlations of all coefficients.

    The losses stand for noise: squared for Gaussian, absolute for Laplace, quantile for asymmetric Laplace, Huber for
    Gaussian with heavy tails, Poisson for counts with the mean :math:`e^z`. The scale of the noise is estimated unless
    given.

    Parameters
    ----------
    loss : {"squared", "absolute", "huber", "quantile", "poisson"} or a loss object, default="squared"
        Loss of the linear predictor.
    quantile : float in (0, 1), default=0.5
        What ``loss="quantile"`` predicts.
    epsilon : float, default=1.35
        Where ``loss="huber"`` turns from squared to absolute, in units of the scale.
    scale : float or "auto", default="auto"
        Scale of the noise in units of y, for the losses given by name. ``"auto"`` finds it by maximum likelihood while
        the posterior is fitted; in a stream it follows the rows.
    normalize_y : bool, default=True
        Whether the prior speaks of coefficients in units of the standard deviation of y, and of an intercept around its
        mean, so that predictions do not depend on the units of y. Not for ``loss="poisson"``.
    prior_variance, prior_mean, fit_intercept, intercept_prior_variance, covariance, scheme, batch_size
        As in `EPClassifier`.
    max_iter, tol, beta, random_state, verbose
        As in `EPClassifier`.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : float
        The same of the intercept.
    covariance_ : ndarray of shape (n, n)
        Posterior covariances of the n coefficients, that of the intercept last.
    scale_ : float
        Scale of the noise used.
    posterior_ : tuple of one Gaussian
        The posterior for the normalised targets, the intercept last.
    log_evidence_ : float
        Estimate of the logarithm of the density of y in its own units: comparable between sets of columns, scales and
        priors.
    n_features_in_, feature_names_in_, n_iter_, prior_variance_, plan_, trace_, status_
        As in `EPClassifier`; the prior variance is in squared units of the normalised targets.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-1.0, 1.0, 50)[:, None]
    >>> model = EPRegressor().fit(X, 3.0 * X[:, 0] + 1.0)
    >>> model.predict(X[:2]).round(2), round(model.intercept_, 2)
    (array([-2.  , -1.88]), 1.0)
    """

    _typical_spread = 1.0

    def __init__(
        self,
        loss: Any = "squared",
        *,
        quantile: float = 0.5,
        epsilon: float = 1.35,
        scale: Any = "auto",
        normalize_y: bool = True,
        prior_variance: Any = "auto",
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        intercept_prior_variance: float = 100.0,
        covariance: str = "auto",
        scheme: Any = "exact",
        batch_size: int = 10,
        max_iter: int = 100,
        tol: float = 0.01,
        beta: float = 1.0,
        random_state: Any = None,
        verbose: bool | None = None,
    ) -> None:
        self.loss = loss
        self.quantile = quantile
        self.epsilon = epsilon
        self.scale = scale
        self.normalize_y = normalize_y
        self.prior_variance = prior_variance
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_prior_variance = intercept_prior_variance
        self.covariance = covariance
        self.scheme = scheme
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.beta = beta
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior to data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows; CSR is used as it is.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            A row of weight w counts as w equal rows; weight 0 as absent.

        Returns
        -------
        Self
            The fitted estimator.
        """
        return self._atomically(lambda: self._fit(X, y, sample_weight))

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_parameters()
        X, y = self._check_X(X, y=y, y_numeric=True)
        X, y, weights = rows_of_weight(X, self._checked_targets(y), checked_weights(sample_weight, X))
        self._normalise(y, weights)
        t, loss = self._inner(y), self._named_loss()
        totals = Totals.of(X, weights, t, log_normalizer(loss, y) if self._counts() else None)
        self._learn(X, t[None], weights, loss, totals, find_scale=self._finds_scale())
        self._scales = totals.rows * self._scale_of(self._loss), totals.rows

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, forget: float = 0.0) -> Self:
        """Take in rows of a stream: their sites are added to what is known, and dropped.

        As `EPClassifier.partial_fit`; exact for the squared loss. Prior, normalisation and noise scale, unless given,
        follow the rows seen so far, however few came first.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        forget : float in [0, 1), default=0.0
            Share of what was learned beyond the prior that is given up before the rows are taken in, for data that
            drift.

        Returns
        -------
        Self
            The estimator, which is exactly what it was if the rows are refused.
        """
        return self._atomically(lambda: self._partial_fit(X, y, sample_weight, forget))

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, forget: Any) -> None:
        first, share = not self.__sklearn_is_fitted__(), checked_share(forget)
        if first:
            self._check_parameters()
        if first or not (self._is_plain(X) and type(y) is np.ndarray and y.shape == X.shape[:1]):
            X, y = self._check_X(X, y=y, y_numeric=True, reset=first)
        X, y, weights = rows_of_weight(X, self._checked_targets(y), checked_weights(sample_weight, X))
        if first:
            self._normalise(y, weights)
            self._begin_stream(X, 1, self._named_loss())
            self._scales = 0.0, 0.0
        t = self._inner(y)
        totals = Totals.of(X, weights, t, log_normalizer(self._loss, y) if self._counts() else None)
        if share:
            self._scales = (1.0 - share) * self._scales[0], (1.0 - share) * self._scales[1]
        self._take(X, t[None], weights, share, totals)

    def predict(self, X: Any, return_std: bool = False, quantile: Any = None) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return the standard deviation of a new target too, noise and posterior together. For
            ``loss="quantile"``, whose noise is a device, that of the quantile itself.
        quantile : float or array of floats in (0, 1), optional
            Return this quantile of a new target in the place of its mean, or one column for each of several.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_quantiles), or two of them
            Posterior mean of the linear predictor, or of its exponential for ``loss="poisson"``.
        """
        check_is_fitted(self)
        levels = None if quantile is None else _levels(quantile)
        X = X if self._is_plain(X) else self._check_X(X, reset=False)
        mean, variance = (part[0] for part in self._latent(X))
        loss, beta = self._loss, self._fitted_beta
        if levels is not None:
            columns = [predictive_quantile(loss, mean, variance, q, beta=beta) for q in np.atleast_1d(levels)]
            center = self._outer(np.column_stack(columns) if np.ndim(levels) else columns[0])
        elif loss.targets == "counts":
            with np.errstate(over="ignore"):  # infinite where it is too large, as its standard deviation
                center = np.exp(mean + 0.5 * variance)
        else:
            center = self._outer(mean)
        if not return_std:
            return center
        bare = isinstance(loss, losses.Quantile)
        std = np.sqrt(variance) if bare else predictive_std(loss, mean, variance, beta=beta)
        return center, self.y_scale_ * std

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the density of y in its own units."""
        mass = super().log_evidence_
        if self._counts():
            return mass - self._totals.constants
        constant = float(log_normalizer(self._loss, np.zeros(1), beta=self._fitted_beta)[0])
        return mass - self._totals.rows * (constant + float(np.log(self.y_scale_)))

    @property
    def coef_(self) -> FloatArray:
        """Posterior means of the coefficients."""
        return super().coef_ * self.y_scale_

    @property
    def coef_std_(self) -> FloatArray:
        """Posterior standard deviations of the coefficients."""
        return super().coef_std_ * self.y_scale_

    @property
    def intercept_(self) -> float:
        """Posterior mean of the intercept, the mean of y added back."""
        return float(self._outer(super().intercept_))

    @property
    def intercept_std_(self) -> float:
        """Posterior standard deviation of the intercept."""
        return float(super().intercept_std_ * self.y_scale_)

    @property
    def covariance_(self) -> Any:
        """Posterior covariances of coefficients and intercept, the intercept last."""
        return super().covariance_ * self.y_scale_**2

    def sample_coef(self, n: int = 1, random_state: Any = None, return_intercept: bool = False) -> Any:
        """Draw coefficients from the posterior; see `EPClassifier.sample_coef`."""
        coef, intercept = super().sample_coef(n, random_state, return_intercept=True)
        coef, intercept = self.y_scale_ * coef, self._outer(intercept)
        return (coef, intercept) if return_intercept else coef

    def _check_parameters(self) -> None:
        """Check all parameters before the data are looked at."""
        Parameters.of(self)
        flag("normalize_y", self.normalize_y)
        self.y_scale_ = 1.0
        self._named_loss()

    def _named_loss(self) -> Loss:
        if not isinstance(self.loss, str):
            if isinstance(self.loss, type) or getattr(self.loss, "targets", None) not in ("reals", "counts"):
                raise ValueError(f"loss must be made for real targets or counts, got {self.loss!r}")
            given: Loss = self.loss
            return given
        name = one_of("loss", self.loss, _NAMES)
        if name == "poisson":
            return losses.Poisson()
        scale = 1.0 if self._finds_scale() else moderate_number("scale", self.scale) / self.y_scale_
        if name == "quantile":
            return losses.Quantile(number_between("quantile", self.quantile, 0.0, 1.0, "()"), scale)
        if name == "huber":
            return losses.Huber(moderate_number("epsilon", self.epsilon), scale)
        return losses.Squared(scale) if name == "squared" else losses.Absolute(scale)

    def _finds_scale(self) -> bool:
        if not isinstance(self.scale, str):
            moderate_number("scale", self.scale)
        elif self.scale != "auto":
            raise ValueError(f"scale must be a positive number or 'auto', got {shown(self.scale)}")
        return isinstance(self.loss, str) and self.loss != "poisson" and isinstance(self.scale, str)

    def _counts(self) -> bool:
        if isinstance(self.loss, str):
            return self.loss == "poisson"
        return getattr(self.loss, "targets", None) == "counts"

    def _checked_targets(self, y: Any) -> FloatArray:
        y = np.asarray(y, dtype=np.float64)
        if not np.all(np.abs(y) <= LARGEST_TARGET):
            raise ValueError(f"y must hold finite numbers of at most {LARGEST_TARGET:g} in size; change its units")
        if self._counts() and not np.all(y >= 0.0):
            raise ValueError("loss='poisson' needs counts, zero or more, got negative targets")
        return y

    def _public(self, values: FloatArray) -> Any:
        return values[0]

    def _named_coefficients(self) -> tuple[list[Any], FloatArray, FloatArray]:
        labels, means, stds = super()._named_coefficients()
        means, stds = self.y_scale_ * means, self.y_scale_ * stds
        if labels and labels[0] == "intercept":
            means[0] += self.y_offset_
        return labels, means, stds

    def _check_own_state(self) -> None:
        scales = vars(self).get("_scales")
        sums = scales if isinstance(scales, list | tuple) and len(scales) == 2 else (np.nan,)
        offset, unit, *sums = (as_float(n) for n in (vars(self).get("y_offset_"), vars(self).get("y_scale_"), *sums))
        if not (np.isfinite(offset) and 0.0 < unit < np.inf and np.all(np.isfinite(sums))):
            raise ValueError("the model is not consistent: its normalisation is not finite")
        if len(self._knowledge) != 1 or self._loss.targets not in ("reals", "counts"):
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


__all__ = ["EPRegressor"]
