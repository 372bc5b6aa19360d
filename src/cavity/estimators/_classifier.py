"""A linear classifier with a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cavity import losses
from cavity._checks import as_float, shown
from cavity.estimators._base import LinearEP, checked_share, checked_weights
from cavity.estimators._design import rows_of_weight
from cavity.estimators._labels import by_row, check_count, classes_and_codes, normalised, signs_of
from cavity.estimators._links import log_odds, positive_probability
from cavity.estimators._parameters import Parameters
from cavity.estimators._totals import Totals
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

_LOSSES: dict[str, type] = {"logistic": losses.Logistic, "hinge": losses.Hinge, "quasi01": losses.QuasiZeroOne}


class EPClassifier(ClassifierMixin, LinearEP):  # type: ignore[misc]
    r"""Linear classifier with a posterior: means, standard deviations and correlations of all coefficients.

    The posterior of :math:`\theta` under a Gaussian prior and the likelihood
    :math:`e^{-\beta \ell(y, x^\top\theta)}` of every row is approximated by a Gaussian, by expectation propagation over
    blocks of rows. More than two classes get one posterior each, one class against the rest.

    Parameters
    ----------
    loss : {"logistic", "hinge", "quasi01"} or a loss object, default="logistic"
        Loss of the linear predictor for labels -1 and +1; `cavity.losses` tells how to write one.
    prior_variance : "auto", float or array of shape (n_features,), default="auto"
        Prior variance of the coefficients. ``"auto"`` finds one number for all of them from the data, by maximising the
        evidence while the posterior is fitted; `prior_variance_` tells it. For hinge and quasi 0-1, which are not
        likelihoods, it is the variance that makes the coefficients found typical draws of the prior.
    prior_mean : float or array of shape (n_features,), default=0.0
        Prior mean of the coefficients.
    fit_intercept : bool, default=True
        Whether to add a constant column.
    intercept_prior_variance : float, default=100.0
        Prior variance of the intercept.
    covariance : {"auto", "full", "sparse", "diagonal"}, default="auto"
        Form of the posterior. ``"full"`` keeps all correlations, at most 5000 columns wide; ``"sparse"`` keeps them in
        a sparse precision matrix, for one-hot columns in great number; ``"diagonal"`` is a product of Gaussians, the
        paper's algorithm, whose standard deviations are conditional on the other coefficients. ``"auto"`` takes the
        first of the three that the data's size allows, and warns where that is the last; `plan_` tells.
    scheme : str or scheme object, default="exact"
        How the sites of a product of Gaussians are fitted, as in `cavity.fit`. Of no effect on the others.
    batch_size : int, default=10
        Rows that share one site of a product of Gaussians. Of no effect on the others.
    max_iter : int, default=100
        Most loops over the rows. 1 is a single pass.
    tol : float, default=0.01
        The fit ends when no mean is estimated to move by more than this many standard deviations any more, and no
        variance by more than this share.
    beta : float, default=1.0
        Weight of the data against the prior, the inverse temperature.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; they multiply the weights of the rows.
    random_state : int, RandomState or None, default=None
        Seed of the visiting order of a product of Gaussians. The others do not depend on any order of the rows.
    verbose : bool or None, default=None
        Whether to show progress and the time left on standard error; None for long fits in a terminal.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : ndarray of shape (1,) or (n_classes,)
        The same of the intercepts.
    covariance_ : ndarray of shape (1, n, n) or (n_classes, n, n)
        Posterior covariances of the n coefficients, those of the intercept last.
    posterior_ : tuple of Gaussians
        The posteriors themselves, the intercept last.
    classes_ : ndarray
        Labels seen.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    n_iter_ : int
        Loops done.
    log_evidence_ : float
        Estimate of the log evidence, summed over the posteriors.
    prior_variance_ : float or ndarray
        The prior variance, given or found; one per class if it was found for more than two.
    plan_ : Plan
        Which form of posterior was chosen, and why; ``print(model.plan_)``.
    trace_ : Trace or tuple of Trace
        What happened during the fit, refused updates by reason.
    status_ : Status
        How it ended, and what to do about it.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = EPClassifier().fit(scale(X), y)
    >>> model.coef_.shape, model.coef_std_.shape, model.score(scale(X), y) > 0.97
    ((1, 30), (1, 30), True)
    """

    def __init__(
        self,
        loss: Any = "logistic",
        *,
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
        class_weight: Any = None,
        random_state: Any = None,
        verbose: bool | None = None,
    ) -> None:
        self.loss = loss
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
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior to data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows; CSR is used as it is.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            A row of weight w counts as w equal rows; weight 0 as absent.

        Returns
        -------
        Self
            The fitted estimator.
        """
        return self._atomically(lambda: self._fit(X, y, sample_weight))

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        loss = self._checked_loss()
        X, y = self._check_X(X, y=y)
        weights = checked_weights(sample_weight, X)
        classes, codes = classes_and_codes(y)
        check_count(classes)
        weights = self._class_weights(classes, codes, weights)
        X, codes, weights = rows_of_weight(X, codes, weights)
        self._learn(X, signs_of(codes, classes.size), weights, loss, Totals.of(X, weights), find_scale=False)
        self.classes_ = classes

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        forget: float = 0.0,
    ) -> Self:
        """Take in rows of a stream: their sites are added to what is known, and dropped.

        With at most 500 columns, dense or CSR, a stream keeps all correlations, at O(n_features²) per row and
        O(n_features³) per call; above that, or with ``covariance="diagonal"``, it is a product of Gaussians. The prior
        variance, unless given, follows the stream.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like, optional
            All labels that may come; needed at the first call.
        forget : float in [0, 1), default=0.0
            Share of what was learned beyond the prior that is given up before the rows are taken in, for data that
            drift.

        Returns
        -------
        Self
            The estimator, which is exactly what it was if the rows are refused.
        """
        return self._atomically(lambda: self._partial_fit(X, y, classes, sample_weight, forget))

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any, forget: Any) -> None:
        first, share = not self.__sklearn_is_fitted__(), checked_share(forget)
        loss = self._checked_loss() if first else self._loss
        if first or not self._is_plain(X):
            X, y = self._check_X(X, y=y, reset=first)
        if first:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self.classes_ = np.unique(column_or_1d(classes))
            check_count(self.classes_)
            self._begin_stream(X, 1 if self.classes_.size == 2 else self.classes_.size, loss)
        elif classes is not None and not (
            np.array_equal(classes, self.classes_) or np.array_equal(np.unique(column_or_1d(classes)), self.classes_)
        ):
            raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit, {self.classes_!r}")
        targets = self._stream_targets(y, X.shape[0])
        weights = checked_weights(sample_weight, X)
        if self.class_weight is not None:
            if isinstance(self.class_weight, str):
                raise ValueError(
                    f"class_weight {self.class_weight!r} is not supported for partial_fit; to use it, compute the "
                    "weights with compute_class_weight and pass them as class_weight"
                )
            weights = self._class_weights(self.classes_, np.searchsorted(self.classes_, np.ravel(y)), weights)
        X, targets, weights = rows_of_weight(X, targets, weights)
        self._take(X, targets, weights, share, Totals.of(X, weights))

    def _stream_targets(self, y: Any, rows: int) -> FloatArray:
        """Signs of labels that were seen before, one row per posterior."""
        labels = y if type(y) is np.ndarray and y.ndim == 1 else column_or_1d(y, warn=True)
        if labels.shape[0] != rows:
            raise ValueError(f"Found input variables with inconsistent numbers of samples: [{rows}, {labels.shape[0]}]")
        known = self.classes_.tolist()
        if self.classes_.size == 2:
            positive = labels == self.classes_[1]
            if np.all(positive | (labels == self.classes_[0])):
                return np.where(positive, 1.0, -1.0)[None]
        elif all(one in known for one in labels) if labels.dtype == object else np.all(np.isin(labels, self.classes_)):
            return signs_of(np.searchsorted(self.classes_, labels), self.classes_.size)
        strange = sorted({repr(label) for label in labels.tolist()} - {repr(label) for label in known})
        raise ValueError(f"y holds labels that were not among the classes {self.classes_}: {', '.join(strange[:10])}")

    def decision_function(self, X: Any, return_std: bool = False) -> Any:
        """Score of every row: the log odds of `predict_proba`, or the linear predictor itself with its spread.

        The log odds are the linear predictor moderated by how little is known of it, and rank rows as the probabilities
        do. For more than two classes they are those of every class against the rest.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return posterior mean and standard deviation of the linear predictor instead.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes), or two of them
            Positive means ``classes_[1]``, or the class of the column.
        """
        mean, variance = self._latent_of(X)
        if return_std:
            return by_row(mean), by_row(np.sqrt(variance))
        return by_row(self._over_predictors(log_odds, mean, variance))

    def predict(self, X: Any) -> Any:
        """Label of the highest probability."""
        mean, variance = self._latent_of(X)
        if len(mean) > 1:
            return self.classes_[np.argmax(self._over_predictors(log_odds, mean, variance), axis=0)]
        symmetric = isinstance(self._loss, tuple(_LOSSES.values()))  # then the sign of the mean decides
        scores = mean if symmetric else self._over_predictors(log_odds, mean, variance)
        return self.classes_[(scores[0] > 0.0).astype(np.intp)]

    def predict_proba(self, X: Any) -> FloatArray:
        r"""Probabilities of the classes, integrated over the posterior.

        The link of a loss is :math:`P(+ \mid z) \propto e^{-\beta \ell(+1, z)}`, normalised over both signs: the
        logistic function for the logistic loss, and :math:`1/(1 + e^{-\beta(\ell(-1, z) - \ell(+1, z))})` for hinge,
        quasi 0-1 and any other. Its mean under the Gaussian posterior of :math:`z = x^\top\theta` is returned. More
        than two classes: the probabilities of each against the rest, divided by their sum.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows sum to one.
        """
        return normalised(self._over_predictors(positive_probability, *self._latent_of(X)))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_proba_samples(self, X: Any, n: int = 100, random_state: Any = None) -> FloatArray:
        """Probabilities under draws of the coefficients, for credible intervals and Thompson sampling.

        Returns
        -------
        ndarray of shape (n, n_samples, n_classes)
            One set of probabilities a draw.
        """
        X = self._checked_for_prediction(X)
        coef, intercept = self.sample_coef(n, random_state, return_intercept=True)
        coef, intercept = coef.reshape(n, -1, self.n_features_in_), intercept.reshape(n, -1)
        draws = []
        for c, b in zip(coef, intercept, strict=True):
            z = (np.asarray(X @ c.T, dtype=np.float64) + b).T
            draws.append(normalised(self._over_predictors(positive_probability, z, np.zeros_like(z))))
        return np.array(draws)

    def _over_predictors(self, link: Any, mean: FloatArray, variance: FloatArray) -> FloatArray:
        """Apply a link to every linear predictor, one a row."""
        beta = self._fitted_beta
        return np.array([link(self._loss, beta, m, v) for m, v in zip(mean, variance, strict=True)])

    def _latent_of(self, X: Any) -> tuple[FloatArray, FloatArray]:
        return self._latent(self._checked_for_prediction(X))

    def _checked_for_prediction(self, X: Any) -> Any:
        check_is_fitted(self)
        return X if self._is_plain(X) else self._check_X(X, reset=False)

    def _checked_loss(self) -> Loss:
        """Check all parameters before the data are looked at, and give the loss."""
        Parameters.of(self)
        balanced = isinstance(self.class_weight, str) and self.class_weight == "balanced"
        if not (self.class_weight is None or balanced or isinstance(self.class_weight, Mapping)):
            raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {shown(self.class_weight)}")
        if isinstance(self.loss, str):
            if self.loss not in _LOSSES:
                raise ValueError(
                    f"loss must be one of {', '.join(map(repr, _LOSSES))} or a loss object, got {self.loss!r}"
                )
            built: Loss = _LOSSES[self.loss]()
            return built
        if isinstance(self.loss, type) or getattr(self.loss, "targets", None) != "signs":
            raise ValueError(f"loss must be made for the labels -1 and +1 (targets 'signs'), got {self.loss!r}")
        given: Loss = self.loss
        return given

    def _class_weights(self, classes: Any, codes: Any, weights: FloatArray | None) -> FloatArray | None:
        """Weights of the rows times those of their classes."""
        if self.class_weight is None:
            return weights
        given = self.class_weight if isinstance(self.class_weight, str) else dict(self.class_weight)
        if not isinstance(given, str) and not all(0.0 <= as_float(w) < np.inf for w in given.values()):
            raise ValueError(f"class_weight must hold finite numbers that are not negative, got {shown(given)}")
        each = compute_class_weight(given, classes=classes, y=classes[codes])
        return np.asarray(each[codes] if weights is None else weights * each[codes], dtype=np.float64)

    def _groups(self) -> list[str] | None:
        return None if len(self.posterior_) == 1 else [str(c) for c in self.classes_]

    def _check_own_state(self) -> None:
        classes = vars(self).get("classes_")
        count = classes.size if isinstance(classes, np.ndarray) and classes.ndim == 1 else 0
        if count < 2 or len(self._knowledge) != (1 if count == 2 else count) or self._loss.targets != "signs":
            raise ValueError("the model is not consistent: its classes do not fit its posteriors and its loss")

    def _check_mergeable(self, other: Self) -> None:
        super()._check_mergeable(other)
        if not np.array_equal(other.classes_, self.classes_):
            raise ValueError(f"the models have different classes, {self.classes_} and {other.classes_}")


__all__ = ["EPClassifier"]
