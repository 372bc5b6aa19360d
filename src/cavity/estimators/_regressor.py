"""A linear regressor with a posterior."""

from __future__ import annotations

from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cavity import losses
from cavity.estimators._base import LinearEP, checked_rows, checked_weights, is_plain_vector
from cavity.estimators._design import rows_of_weight
from cavity.estimators._noise import estimate_scale, predictive_quantile, predictive_std, with_scale
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

_NAMES = ("squared", "absolute", "huber", "quantile", "poisson")
# Rounds of fit and scale, and the change of the scale's logarithm that ends them.
_ROUNDS = 8
_CLOSE = 0.02


class EPRegressor(RegressorMixin, LinearEP):  # type: ignore[misc]
    r"""Linear regressor by fully factorized expectation propagation, with a posterior for every coefficient.

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
        Scale of the noise in units of y, for the losses given by name. ``"auto"`` estimates it by maximum likelihood,
        alternating with the fit; `partial_fit` estimates it from the rows of its first call.
    normalize_y : bool, default=True
        Whether the targets are shifted and scaled to mean zero and variance one inside; the prior then speaks of
        coefficients in units of the standard deviation of y, and predictions do not depend on the units of y. Not for
        ``loss="poisson"``. `partial_fit` takes mean and variance from its first call.
    scheme, batch_size, loops, tol, prior_variance, prior_mean, basis, covariance, init, fit_intercept
        As in `EPClassifier`.
    intercept_prior_variance, beta, damping, power, safeguards, shuffle, random_state, warm_start, verbose
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
    posterior_ : tuple of one FactorialGaussian
        The posterior for the normalised targets, the intercept last.
    n_features_in_, feature_names_in_, n_iter_, log_evidence_, prior_variance_, trace_, status_
        As in `EPClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-1.0, 1.0, 50)[:, None]
    >>> model = EPRegressor(random_state=0).fit(X, 3.0 * X[:, 0] + 1.0)
    >>> model.predict(X[:2]).round(2), round(model.intercept_, 2)
    (array([-2.  , -1.88]), 1.0)
    """

    def __init__(
        self,
        loss: Any = "squared",
        scheme: Any = "exact",
        *,
        quantile: float = 0.5,
        epsilon: float = 1.35,
        scale: Any = "auto",
        normalize_y: bool = True,
        batch_size: int = 10,
        loops: int = 50,
        tol: float = 0.02,
        prior_variance: Any = 25.0,
        prior_mean: Any = 0.0,
        basis: Any = "auto",
        covariance: str = "auto",
        init: str = "mode",
        fit_intercept: bool = True,
        intercept_prior_variance: float = 100.0,
        beta: Any = 1.0,
        damping: float = 1.0,
        power: float = 1.0,
        safeguards: bool = True,
        shuffle: bool = True,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.scheme = scheme
        self.quantile = quantile
        self.epsilon = epsilon
        self.scale = scale
        self.normalize_y = normalize_y
        self.batch_size = batch_size
        self.loops = loops
        self.tol = tol
        self.prior_variance = prior_variance
        self.prior_mean = prior_mean
        self.basis = basis
        self.covariance = covariance
        self.init = init
        self.fit_intercept = fit_intercept
        self.intercept_prior_variance = intercept_prior_variance
        self.beta = beta
        self.damping = damping
        self.power = power
        self.safeguards = safeguards
        self.shuffle = shuffle
        self.random_state = random_state
        self.warm_start = warm_start
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
            A row of weight w counts as its factor to the power w; weight 0 as absent.

        Returns
        -------
        Self
            The fitted estimator.
        """
        return self._atomically(lambda: self._fit(X, y, sample_weight))

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        X, y = self._check_data(X, y, y_numeric=True)
        X, y, weights = rows_of_weight(X, np.asarray(y, dtype=np.float64), checked_weights(sample_weight, X))
        self._normalise(y, weights)
        self._fit_scaled(X, self._inner(y), weights)

    def _fit_scaled(self, X: Any, t: FloatArray, weights: FloatArray | None) -> None:
        """Fit normalised targets; with the scale unknown, fit and scale take turns until the scale stands."""
        loss = self._named_loss()
        if not self._scale_is_free():
            self._fit_posteriors(X, t[None], weights, loss)
            return
        for _ in range(_ROUNDS):
            self._fit_posteriors(X, t[None], weights, loss)
            mean, variance = self._latent(X)
            before = self._scale_of(loss)
            scale = estimate_scale(loss, t - mean[0], variance[0], weights, beta=self._final_beta())
            loss = with_scale(loss, scale)
            if abs(np.log(scale / before)) < _CLOSE:
                break

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, forget: float = 0.0) -> Self:
        """Take in rows of a stream: the posterior so far is their prior, and no site is kept.

        By default with a full covariance, as in `EPClassifier.partial_fit`; exact for the squared loss. The first rows
        decide on scale and normalisation, unless ``scale`` is a number and ``normalize_y=False``.

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

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, forget: float) -> None:
        first = not self.__sklearn_is_fitted__()
        if first or not (self._is_plain(X) and is_plain_vector(y, X.shape[0])):
            X, y = self._check_X(X, y=y, y_numeric=True, reset=first)
            X, y = checked_rows(X), np.asarray(y, dtype=np.float64)
        X, y, weights = rows_of_weight(X, y, checked_weights(sample_weight, X))
        if first:
            loss = self._first_loss(X, y, weights)
            self._begin_stream(X, 1, loss)
        self._check_kind(y)
        self._take(X, self._inner(y)[None], weights, forget)

    def _first_loss(self, X: Any, y: FloatArray, weights: FloatArray | None) -> Loss:
        """Normalisation and scale of a stream, from its first rows."""
        self._normalise(y, weights)
        if not self._scale_is_free():
            return self._named_loss()
        self._fit_scaled(X, self._inner(y), weights)
        loss: Loss = self._loss
        return loss

    def predict(self, X: Any, return_std: bool = False, quantile: float | None = None) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return the standard deviation of a new target too, noise and posterior together. For
            ``loss="quantile"``, whose noise is a device, that of the quantile itself.
        quantile : float in (0, 1), optional
            Return this quantile of a new target in the place of its mean.

        Returns
        -------
        ndarray of shape (n_samples,), or two of them
            Posterior mean of the linear predictor, or of its exponential for ``loss="poisson"``.
        """
        check_is_fitted(self)
        X = X if self._is_plain(X) else self._check_X(X, reset=False)
        mean, variance = (part[0] for part in self._latent(X))
        loss = self._loss
        if quantile is not None:
            if not 0.0 < quantile < 1.0:
                raise ValueError(f"quantile must lie in (0, 1), got {quantile}")
            center = self._outer(predictive_quantile(loss, mean, variance, quantile, beta=self._final_beta()))
        elif loss.targets == "counts":
            with np.errstate(over="ignore"):  # infinite where it is too large, as its standard deviation
                center = np.exp(mean + 0.5 * variance)
        else:
            center = self._outer(mean)
        if not return_std:
            return center
        bare = isinstance(loss, losses.Quantile)
        std = np.sqrt(variance) if bare else predictive_std(loss, mean, variance, beta=self._final_beta())
        return center, self.y_scale_ * std

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

    @property
    def scale_(self) -> float:
        """Scale of the noise in units of y."""
        return float(self.y_scale_ * self._scale_of(self._fitted("_loss")))

    def sample_coef(self, n: int = 1, random_state: Any = None, return_intercept: bool = False) -> Any:
        """Draw coefficients from the posterior; see `EPClassifier.sample_coef`."""
        coef, intercept = super().sample_coef(n, random_state, return_intercept=True)
        coef, intercept = self.y_scale_ * coef, self._outer(intercept)
        return (coef, intercept) if return_intercept else coef

    def _named_loss(self) -> Loss:
        if not isinstance(self.loss, str):
            if getattr(self.loss, "targets", None) not in ("reals", "counts"):
                raise ValueError(f"loss must be made for real targets or counts, got {self.loss!r}")
            given: Loss = self.loss
            return given
        if self.loss not in _NAMES:
            raise ValueError(f"loss must be one of {', '.join(map(repr, _NAMES))} or a loss object, got {self.loss!r}")
        if self.loss == "poisson":
            return losses.Poisson()
        if self.scale != "auto" and not (isinstance(self.scale, Real) and 0.0 < float(self.scale) < np.inf):
            raise ValueError(f"scale must be a positive number or 'auto', got {self.scale!r}")
        scale = 1.0 if self.scale == "auto" else float(self.scale) / self.y_scale_
        if self.loss == "quantile":
            if not 0.0 < self.quantile < 1.0:
                raise ValueError(f"quantile must lie in (0, 1), got {self.quantile}")
            return losses.Quantile(float(self.quantile), scale)
        if self.loss == "huber":
            if not self.epsilon > 0.0:
                raise ValueError(f"epsilon must be positive, got {self.epsilon}")
            return losses.Huber(float(self.epsilon), scale)
        return losses.Squared(scale) if self.loss == "squared" else losses.Absolute(scale)

    def _scale_is_free(self) -> bool:
        return isinstance(self.loss, str) and self.loss != "poisson" and self.scale == "auto"

    def _scale_of(self, loss: Loss) -> float:
        return float(getattr(loss, "scale", 1.0))

    def _normalise(self, y: FloatArray, weights: FloatArray | None) -> None:
        """Set the offset and the scale by which targets are seen inside."""
        self._check_kind(y)
        self.y_offset_, self.y_scale_ = 0.0, 1.0
        if self.normalize_y and not self._counts():
            self.y_offset_ = float(np.average(y, weights=weights))
            spread = float(np.sqrt(np.average((y - self.y_offset_) ** 2, weights=weights)))
            self.y_scale_ = spread if spread > 1e-12 * abs(self.y_offset_) else 1.0

    def _counts(self) -> bool:
        return self.loss == "poisson" or getattr(self.loss, "targets", None) == "counts"

    def _check_kind(self, y: FloatArray) -> None:
        if self._counts() and not np.all(y >= 0.0):
            raise ValueError("loss='poisson' needs counts, zero or more, got negative targets")

    def _inner(self, y: FloatArray) -> FloatArray:
        return (y - self.y_offset_) / self.y_scale_

    def _outer(self, t: Any) -> Any:
        return self.y_offset_ + self.y_scale_ * t

    def _public(self, values: FloatArray) -> Any:
        return values[0]

    def _named_coefficients(self) -> tuple[list[Any], FloatArray, FloatArray]:
        labels, means, stds = super()._named_coefficients()
        means, stds = self.y_scale_ * means, self.y_scale_ * stds
        if labels and labels[0] == "intercept":
            means[0] += self.y_offset_
        return labels, means, stds

    def _check_mergeable(self, other: Self) -> None:
        super()._check_mergeable(other)
        if (other.y_offset_, other.y_scale_) != (self.y_offset_, self.y_scale_):
            raise ValueError(
                "the models normalised their targets differently: train both with normalize_y=False and scale a number"
            )
