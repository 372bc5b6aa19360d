"""A linear classifier with a posterior."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin

from cavity.estimators._design import NoWeightError, checked_offset
from cavity.estimators._labels import LOSSES, LabelledRows, by_row, normalised
from cavity.estimators._links import log_odds, log_probabilities, softmax_log_probability, softmax_probability
from cavity.estimators._posteriors import joint_latent
from cavity.estimators._progress import Verbose
from cavity.estimators._reading import over_blocks, predicted_targets
from cavity.estimators._scores import accuracy
from cavity.estimators._sources import is_source

FloatArray = NDArray[np.float64]


class EPClassifier(ClassifierMixin, LabelledRows):  # type: ignore[misc]
    r"""Linear classifier with a posterior: means, standard deviations and correlations of all coefficients.

    The posterior of the coefficients :math:`\theta`, with a Gaussian prior and the likelihood
    :math:`e^{-\ell(y, x^\top\theta)}` per row, is approximated by a Gaussian. The method is expectation propagation
    over blocks of rows. With more than two classes, the logistic loss becomes the softmax: the coefficients of all
    classes sum to zero and have one joint posterior. Other losses, and tables with too many columns for a joint
    posterior, use one posterior for each class against the rest.

    Parameters
    ----------
    loss : {"logistic", "hinge", "quasi01"} or a loss object, default="logistic"
        Loss of the linear predictor for labels -1 and +1. See `cavity.losses` for how to write your own.
    prior_variance : "auto", float or array of shape (n_features,), default="auto"
        Prior variance of the coefficients, in raw units if it is given. ``"auto"`` estimates one variance for all
        coefficients by maximising the evidence during the fit; it is that of coefficients of centred columns in units
        of their standard deviation, so that the units of the columns do not matter.
    prior_groups : array of n_features labels, dict of names and features, "categories" or None, default=None
        Groups of features; one prior variance is estimated per group. With ``"categories"``, the features that encode
        the same column form a group, according to their names. Categorical columns of a DataFrame are always
        groups (see `fit`). A number given as ``prior_variance`` is that of the features in no group.
    prior_mean : float or array of shape (n_features,), default=0.0
        Prior mean of the coefficients. It has no effect on the softmax of several classes, which depends only on
        differences between classes.
    fit_intercept : bool, default=True
        Whether to add a constant column.
    intercept_prior_variance : float, default=100.0
        Prior variance of the intercept.
    covariance : {"auto", "full", "sparse", "diagonal"}, default="auto"
        Form of the posterior. ``"full"`` keeps all correlations, for at most 5000 columns. ``"sparse"`` keeps them in a
        sparse precision matrix, for many one-hot columns. ``"diagonal"`` treats the coefficients as independent, so
        that standard deviations are conditional on the other coefficients; it is fitted by exact projection of
        mini-batches of 10 rows. ``"auto"`` uses the first of the three that the size of the data allows, and warns if
        that is the last; `plan_` shows the choice.
    max_iter : int, default=100
        Maximum number of loops over the rows. 1 is a single pass.
    tol : float, default=0.01
        The fit ends when the estimated remaining change is below this many standard deviations for every mean, and
        below this share for every variance.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, which multiply the weights of the rows.
    random_state : int, RandomState or None, default=None
        Seed of the order of the rows with ``covariance="diagonal"``. The other forms do not depend on the order.
    verbose : bool, function or None, default=None
        Whether to show the progress and the remaining time on standard error. None shows them for long fits in a
        terminal. A function is called with a `cavity.estimators.Progress` before the first loop and after every loop
        of a fit with correlations. If it raises KeyboardInterrupt, a fit with a checkpoint saves it first.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : ndarray of shape (1,) or (n_classes,)
        Posterior means and standard deviations of the intercepts.
    covariance_ : ndarray of shape (1, n, n) or (n_classes, n, n)
        Posterior covariances of the n coefficients; the intercept is last.
    posterior_ : tuple of Gaussians
        Posterior distributions, with the uncertainty of an estimated prior variance; the intercept is the last
        coefficient.
    classes_ : ndarray
        Class labels.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    n_iter_ : int
        Number of loops over the rows.
    log_evidence_ : float
        Estimate of the log evidence, summed over the posteriors.
    prior_variance_ : float, ndarray or dict
        The prior variance, given or estimated. One per class if every class has a separate posterior; a dict of names
        and variances if there are categorical columns or ``prior_groups``.
    prior_units_ : ndarray of shape (n_features,)
        Units of the columns in which an estimated variance is: ``prior_variance_ / prior_units_**2`` is that of the
        coefficients in raw units.
    plan_ : Plan
        The form of the posterior, and why it was chosen; use ``print(model.plan_)``.
    trace_ : Trace or tuple of Trace
        Changes in every loop, and the number of rejected updates by reason.
    status_ : Status
        How the fit ended, and what to do if it did not converge.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = EPClassifier().fit(X, y)
    >>> model.coef_.shape, model.coef_std_.shape, model.score(X, y) > 0.97
    ((1, 30), (1, 30), True)
    """

    def __init__(
        self,
        loss: Any = "logistic",
        *,
        prior_variance: Any = "auto",
        prior_groups: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        intercept_prior_variance: float = 100.0,
        covariance: str = "auto",
        max_iter: int = 100,
        tol: float = 0.01,
        class_weight: Any = None,
        random_state: Any = None,
        verbose: Verbose = None,
    ) -> None:
        self.loss = loss
        self.prior_variance = prior_variance
        self.prior_groups = prior_groups
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_prior_variance = intercept_prior_variance
        self.covariance = covariance
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        forget: float = 0.0,
        offset: ArrayLike | None = None,
        halflife: float | None = None,
    ) -> Self:
        """Update the posterior with new rows; the rows are not stored.

        With at most 500 columns, dense or CSR, all correlations are kept, at a cost of O(n_features²) per row and
        O(n_features³) per call. With more columns, or with ``covariance="diagonal"``, the coefficients are treated as
        independent. The prior variance, unless given, is updated as well.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.
        classes : array-like, optional
            All labels that can occur; required at the first call.
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
        if self._took_row(X, y, classes, sample_weight, forget or None, offset, halflife):
            return self
        try:
            with self._whole_or_not_at_all():
                self._check_classes(classes)
                self._take(X, y, sample_weight, forget, offset, halflife)
        except NoWeightError:
            if not self.__sklearn_is_fitted__():
                raise
        return self

    @over_blocks
    def decision_function(self, X: Any, return_std: bool = False, offset: ArrayLike | None = None) -> Any:
        """Log odds of `predict_proba`, or the linear predictor with its standard deviation.

        The log odds are closer to zero than the linear predictor if it is uncertain, and rank rows as the probabilities
        do. For more than two classes, they are the log odds of every class against the rest.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to return the posterior mean and standard deviation of the linear predictor instead.
        offset : array-like of shape (n_samples,), optional
            Known part of the linear predictor.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes), or two of them
            Positive means ``classes_[1]``, or the class of the column.
        """
        X = self._checked_for_prediction(X)
        self._refuse_offset(offset)
        mean, variance = self._latent(X, offset)
        if return_std:
            return by_row(mean), by_row(np.sqrt(variance))
        if self._is_joint:
            return log_odds(self._class_probabilities(X, offset, softmax_log_probability))
        negative, positive = self._logs(mean, variance)
        return by_row(positive - negative)

    @over_blocks
    def predict(self, X: Any, offset: ArrayLike | None = None) -> Any:
        """Predict the label with the highest probability; arguments as in `decision_function`."""
        X = self._checked_for_prediction(X)
        if self._is_joint:
            return self.classes_[np.argmax(self._class_probabilities(X, offset), axis=1)]
        mean, variance = self._latent(X, offset)
        if len(mean) == 1 and isinstance(self._loss, tuple(LOSSES.values())):  # symmetric: the sign of the mean decides
            return self.classes_[(mean[0] > 0.0).astype(np.intp)]
        negative, positive = self._logs(mean, variance)
        return self.classes_[np.argmax(positive - negative if len(mean) > 1 else [negative[0], positive[0]], axis=0)]

    @over_blocks
    def predict_proba(self, X: Any, offset: ArrayLike | None = None) -> FloatArray:
        r"""Probabilities of the classes, averaged over the posterior.

        For a given linear predictor :math:`z = x^\top\theta`, the probability of the second class is
        :math:`1/(1 + e^{-(\ell(-1, z) - \ell(+1, z))})`, which is the logistic function for the logistic loss. Its
        mean over the Gaussian posterior of :math:`z` is returned. For more than two classes, the result is the mean of
        the softmax, or for separate posteriors, the probabilities of each class against the rest divided by
        their sum. Arguments as in `decision_function`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows sum to one.
        """
        X = self._checked_for_prediction(X)
        if self._is_joint:
            return self._class_probabilities(X, offset)
        return np.exp(normalised(self._logs(*self._latent(X, offset))))

    @over_blocks
    def predict_log_proba(self, X: Any, offset: ArrayLike | None = None) -> FloatArray:
        """Logarithms of `predict_proba`, finite for any probability; arguments as in `decision_function`."""
        X = self._checked_for_prediction(X)
        if self._is_joint:
            return self._class_probabilities(X, offset, softmax_log_probability)
        return normalised(self._logs(*self._latent(X, offset)))

    def predict_proba_samples(
        self, X: Any, n: int = 100, random_state: Any = None, offset: ArrayLike | None = None
    ) -> FloatArray:
        """Probabilities for random draws of the coefficients, for intervals and Thompson sampling.

        Parameters
        ----------
        X, offset
            As in `decision_function`.
        n : int, default=100
            Number of draws.
        random_state : int, RandomState or None, default=None
            Seed of the draws.

        Returns
        -------
        ndarray of shape (n, n_samples, n_classes)
            One set of probabilities per draw.
        """
        X = self._checked_for_prediction(X)
        coef, intercept = self.sample_coef(n, random_state, return_intercept=True)
        coef, intercept = coef.reshape(n, -1, self._width), intercept.reshape(n, -1)
        self._refuse_offset(offset)
        known, draws = checked_offset(offset, X.shape[0]), []
        for c, b in zip(coef, intercept, strict=True):
            z = (np.asarray(X @ c.T, dtype=np.float64) + b).T + (0.0 if known is None else known)
            if self._is_joint:
                draws.append(softmax(z, axis=0).T)
                continue
            draws.append(np.exp(normalised(self._logs(z, np.zeros_like(z)))))
        return np.array(draws)

    def score(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Accuracy: the share of rows whose label is predicted correctly; arguments as in `fit`."""
        if is_source(X):
            y, labels, weights = predicted_targets(self, X)
            return accuracy(np.asarray(y).astype(labels.dtype), labels, weights)
        return accuracy(y, self.predict(X, offset), sample_weight)

    def _class_probabilities(self, X: Any, offset: Any, means: Any = softmax_probability) -> FloatArray:
        """Probabilities of all classes, integrated over the joint posterior, or their logarithms."""
        self._refuse_offset(offset)
        found: FloatArray = means(*joint_latent(self, X), self.classes_.size)[:, self._class_ranks]
        return found

    def _logs(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        """Logarithms of the probabilities of both signs, of shape ``(2, predictors, n)``."""
        each = [log_probabilities(self._loss, m, v) for m, v in zip(mean, variance, strict=True)]
        return np.stack(each, axis=1)

    @property
    def _groups(self) -> list[str] | None:
        return None if len(self.posterior_) == 1 else [str(c) for c in self.classes_]
