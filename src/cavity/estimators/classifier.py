"""A linear classifier with a posterior."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cavity import losses
from cavity._checks import as_float, shown
from cavity._types import FloatArray
from cavity.estimators.base import over_blocks, predicted_targets
from cavity.estimators.parameters import Plan, plan_joint
from cavity.estimators.posterior import joint_latent, turned
from cavity.estimators.progress import Verbose
from cavity.estimators.regressor import accuracy
from cavity.estimators.rows import Data, NoWeightError, Order, Totals, checked_offset, rows_of_weight
from cavity.estimators.runs import Coding, Summary, is_source, signs_of
from cavity.estimators.streams import StreamingEP
from cavity.losses import Loss, offers
from cavity.losses.joint import Softmax
from cavity.moments import joint_log_masses, joint_means, tilts

# Nodes for links other than the logistic: places that are fine around the border of the classes and coarse far out,
# where slow links rise, and steps in standard deviations around the peak of link times Gaussian.
_PLACES, _STEPS = np.sinh(np.linspace(-12.0, 12.0, 121)) / 10.0, np.linspace(-6.0, 6.0, 41)
# Probability of a class of several below which its logarithm is integrated around its own peak.
_FAR = 1e-4


def log_probabilities(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Logarithms of the means of both links under N(mean, variance), of shape ``(2, n)``: of -1 and of +1.

    Exact to 1e-8 for the logistic loss and to 1e-3 for others, however small a probability is: that of the less likely
    class is integrated, and the other is what is left.
    """
    slope = offers(loss).logistic
    less = np.where((_gap(loss, 1.0, mean) if slope is None else slope * mean) > 0.0, -1.0, 1.0)
    if slope is not None:
        low = tilts(loss, less, mean, variance).log_mass
    else:
        parts = [slice(i, i + 1024) for i in range(0, max(len(mean), 1), 1024)]  # 160 nodes and their middles: 2.6 MB
        low = np.concatenate([_log_means(loss, less[part], mean[part], np.sqrt(variance[part])) for part in parts])
    low = np.minimum(low, -np.finfo(np.float64).eps)
    high = np.log1p(-np.exp(low))
    return np.where(less < 0.0, [low, high], [high, low])


def softmax_probability(mean: FloatArray, variance: FloatArray, classes: int) -> FloatArray:
    """Mean of the softmax in the classes' own order, from means and covariances of its contrasts."""
    loss = Softmax(classes)
    out = joint_means(loss.mean_probabilities, mean, variance)
    return out / np.sum(out, axis=1, keepdims=True)


def softmax_log_probability(mean: FloatArray, variance: FloatArray, classes: int) -> FloatArray:
    """Logarithms of these; small probabilities are integrated around their own peaks."""
    found = softmax_probability(mean, variance, classes)
    rows, far = np.nonzero(found < _FAR)
    logs = np.log(np.maximum(found, _FAR))
    logs[rows, far] = joint_log_masses(Softmax(classes), far.astype(np.float64), mean[rows], variance[rows])
    return np.asarray(log_softmax(logs, axis=1))


def log_odds(logs: FloatArray) -> FloatArray:
    """Log odds of every class against all others, from logarithms of probabilities ``(n, classes)``."""
    count = logs.shape[1]
    others = [np.delete(np.arange(count), k) for k in range(count)]
    return logs - np.column_stack([logsumexp(logs[:, rest], axis=1) for rest in others])


def _gap(loss: Loss, sign: Any, z: FloatArray) -> FloatArray:
    """Log odds of a class at known predictors."""
    return np.asarray(loss.value(-sign, z) - loss.value(sign, z))


def _log_link(loss: Loss, sign: Any, z: FloatArray) -> FloatArray:
    gap = _gap(loss, sign, z)
    return np.asarray(np.minimum(gap, 0.0) - np.log1p(np.exp(-np.abs(gap))))


def _log_means(loss: Loss, sign: FloatArray, m: FloatArray, s: FloatArray) -> FloatArray:
    """Logarithms of the means of any link, by Simpson's rule between nodes that follow the peak of the product."""
    out, center, left = _log_link(loss, sign, m), m.copy(), np.flatnonzero(s > 0.0)
    for _ in range(50):  # far into the tails of losses that grow fast, a peak lies many steps away
        if not left.size:
            break
        c, mean, std = center[left, None], m[left, None], s[left, None]
        ends = np.concatenate([c + std * _STEPS, np.broadcast_to(_PLACES, (left.size, _PLACES.size))], axis=1)
        ends.sort(axis=1, kind="stable")
        z = np.concatenate([ends, 0.5 * (ends[:, 1:] + ends[:, :-1])], axis=1)
        f = _log_link(loss, sign[left, None], z) - 0.5 * np.square((z - mean) / std)
        at = np.argmax(f, axis=1)[:, None]
        peak, top = np.take_along_axis(z, at, axis=1), np.take_along_axis(f, at, axis=1)
        f -= top
        np.exp(f, out=f)
        count = ends.shape[1]
        mass = np.sum((f[:, 1:count] + f[:, : count - 1] + 4.0 * f[:, count:]) * np.diff(ends, axis=1), axis=1) / 6.0
        out[left] = top[:, 0] + np.log(mass / (np.sqrt(2.0 * np.pi) * std[:, 0]))
        center[left] = peak[:, 0]
        left = left[(np.abs(peak - c) > 2.0 * std)[:, 0]]
    return out


def classes_and_codes(y: Any) -> tuple[Any, Any]:
    """Labels in order, and which of them every row has; two whole numbers are found without sorting."""
    if y.dtype.kind in "iubf" and y.size:
        low, high = np.min(y), np.max(y)
        upper = y == high
        whole = low != high and float(low).is_integer() and float(high).is_integer()
        if whole and np.count_nonzero(upper) + np.count_nonzero(y == low) == y.size:
            return np.array([low, high], dtype=y.dtype), upper.view(np.int8)
    try:
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"y must hold labels of one kind, numbers or strings: {error}") from error
    return classes, codes


def codes_of(y: Any, classes: Any, rows: int) -> Any:
    """Which of known classes every row has."""
    labels = y if type(y) is np.ndarray and y.ndim == 1 else column_or_1d(y, warn=True)
    if labels.shape[0] != rows:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: [{rows}, {labels.shape[0]}]")
    known = classes.tolist()
    if classes.size == 2:
        upper = labels == classes[1]
        if np.all(upper | (labels == classes[0])):
            return upper.view(np.int8)
    elif all(one in known for one in labels) if labels.dtype == object else np.all(np.isin(labels, classes)):
        return np.searchsorted(classes, labels)
    unknown = sorted({repr(label) for label in labels.tolist()} - {repr(label) for label in known})
    raise ValueError(f"y holds labels that were not among the classes {classes}: {', '.join(unknown[:10])}")


def by_row(values: FloatArray) -> FloatArray:
    """One number per row for one linear predictor, a column per class for more."""
    return values[0] if len(values) == 1 else values.T


def normalised(logs: FloatArray) -> FloatArray:
    """Log probabilities of two classes, or of many from each against the rest; ``logs`` are those of both signs."""
    negative, positive = logs
    if len(positive) == 1:
        return np.column_stack([negative[0], positive[0]])
    return np.asarray(log_softmax(positive, axis=0).T)


def check_count(classes: Any) -> Any:
    """Refuse a single class, in scikit-learn's words."""
    if classes.size < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {classes.size} class")
    return classes


def ranks_of_classes(X: Any, codes: Any, weights: Any, count: int) -> list[int]:
    """Place of every class in an order that follows from its rows: by their weight, then by the sums of columns."""
    w = np.ones(codes.size) if weights is None else weights
    totals = np.bincount(codes, w, count)
    belongs = np.asarray(codes == np.arange(count)[:, None], dtype=np.float64) * w
    sums = np.asarray(belongs @ X)
    order = np.lexsort((*sums.T[::-1], totals))
    return [int(rank) for rank in np.argsort(order)]


# Losses that have a name; all are symmetric in the two classes.
LOSSES: dict[str, type] = {"logistic": losses.Logistic, "hinge": losses.Hinge, "quasi01": losses.QuasiZeroOne}


class LabelledRows(StreamingEP):
    """Base of the classifier."""

    loss: Any
    class_weight: Any
    classes_: Any
    # Place of every class among the predictors of a softmax.
    _class_ranks: list[int]

    def _check_classes(self, classes: Any) -> None:
        """Check the classes of a call of `partial_fit`, and keep those of the first."""
        first = not self.__sklearn_is_fitted__()
        if first:
            self._check_parameters()
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight {self.class_weight!r} is not supported for partial_fit; to use it, compute the weights "
                "with compute_class_weight and pass them as class_weight"
            )
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if first:
            self.classes_ = check_count(np.unique(column_or_1d(classes)))
        elif classes is not None and not np.array_equal(np.unique(column_or_1d(classes)), self.classes_):
            raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit, {self.classes_!r}")

    def _read(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None, reset: bool = True, stream: bool = False
    ) -> tuple[Data, Totals]:
        """Check rows, labels, weights and offsets; a stream has its classes before."""
        if reset or not self._is_plain(X):
            X, y = self._check_X(X, y=y, reset=reset)
        if stream:
            codes = self._codes(y, X.shape[0])
        else:
            self.classes_, codes = classes_and_codes(y)
            check_count(self.classes_)
        known = checked_offset(offset, X.shape[0])
        self._refuse_offset(known)
        labels = codes if known is None else np.stack([codes, known])
        by_class = None if self.class_weight is None else self._weights_by_class(codes)[codes]
        X, labels, weights = rows_of_weight(X, labels, sample_weight, by_class)
        codes, known = (labels, None) if known is None else (labels[0], labels[1])
        return Data(X, signs_of(codes, self.classes_.size), weights, known), Totals.of(X.shape[0], weights)

    def _codes(self, y: Any, rows: int) -> Any:
        """Which of the classes every row has."""
        return codes_of(y, self.classes_, rows)

    def _refuse_offset(self, offset: Any) -> None:
        if offset is not None and self.classes_.size > 2:
            raise ValueError(f"offset is for two classes only, got {self.classes_.size}")

    def _joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        """Softmax over more than two classes, where that is not too wide."""
        loss = self._make_loss()
        if self.classes_.size == 2 or not (isinstance(loss, losses.Logistic) and loss.sharpness == 1.0):
            return None
        plan = plan_joint(rows, columns, self.classes_.size - 1, covariance, stream)
        return None if plan is None else (Softmax(int(self.classes_.size)), plan)

    def _adopt_targets(self, summary: Summary) -> tuple[Coding, Totals]:
        """Take over the classes of a source, and the weights that they have."""
        if summary.classes is None or summary.class_counts is None:
            raise ValueError("targets must be labels")
        self.classes_ = check_count(summary.classes)
        if summary.has_offset:
            self._refuse_offset(summary)
        counts = summary.class_counts
        each = None if self.class_weight is None else self._weights_by_class(np.arange(counts.size))
        if each is not None and isinstance(self.class_weight, str):
            each = np.sum(counts) / (counts.size * counts)  # balanced, as scikit-learn has it
        weight = 1.0 if each is None else float(each @ counts / np.sum(counts))
        totals = Totals(weight * summary.weight)
        return Coding(int(counts.size), class_weights=each), totals

    def _joint_coding(self, coding: Coding, summary: Summary) -> Coding:
        """Count classes by their rows, so that permuting the labels permutes the answer."""
        counts: Any = summary.class_counts
        order = np.lexsort((np.arange(counts.size), counts))
        self._class_ranks = [int(rank) for rank in np.argsort(order)]
        return coding._replace(ranks=tuple(self._class_ranks))

    def _joint_targets(self, data: Data, first: bool) -> FloatArray:
        """Numbers of the classes, counted in an order that does not depend on the names of the classes.

        Then permuting the labels permutes the answer, to the last digit.
        """
        codes = np.argmax(data.targets, axis=0)
        if first:
            self._class_ranks = ranks_of_classes(data.X, codes, data.weights, self.classes_.size)
        return np.asarray(self._class_ranks, dtype=np.float64)[codes][None]

    def _order_with(self, targets: FloatArray) -> Order:
        numbers = (targets[0] > 0.0).astype(np.intp) if len(targets) == 1 else np.argmax(targets, axis=0)
        return self._order.plus(numbers, self.classes_.size)

    def _mixing(self) -> FloatArray:
        return super()._mixing()[self._class_ranks]

    def _make_loss(self) -> Loss:
        balanced = isinstance(self.class_weight, str) and self.class_weight == "balanced"
        if not (self.class_weight is None or balanced or isinstance(self.class_weight, Mapping)):
            raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {shown(self.class_weight)}")
        loss: Any = self.loss
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise ValueError(f"loss must be one of {', '.join(map(repr, LOSSES))} or a loss object, got {loss!r}")
            loss = LOSSES[loss]()
        elif isinstance(loss, type) or getattr(loss, "targets", None) != "signs":
            raise ValueError(f"loss must be made for the labels -1 and +1 (targets 'signs'), got {loss!r}")
        made: Loss = loss
        return made

    def _weights_by_class(self, codes: Any) -> FloatArray:
        """Weight of every class, given the classes of rows."""
        given = self.class_weight if isinstance(self.class_weight, str) else dict(self.class_weight)
        if not isinstance(given, str) and not all(0.0 <= as_float(w) < np.inf for w in given.values()):
            raise ValueError(f"class_weight must hold finite numbers that are not negative, got {shown(given)}")
        each = compute_class_weight(given, classes=self.classes_, y=self.classes_[codes])
        return np.asarray(each, dtype=np.float64)

    def _check_own_state(self) -> None:
        classes = vars(self).get("classes_")
        count = classes.size if isinstance(classes, np.ndarray) and classes.ndim == 1 else 0
        joint, ranks = isinstance(self._loss, Softmax), vars(self).get("_class_ranks")
        fits = len(self._knowledge) == (1 if count == 2 or joint else count)
        if isinstance(self._loss, Softmax):
            fits &= self._loss.predictors == count - 1 and sorted(ranks or []) == list(range(count))
        if count < 2 or not fits or not (joint or self._loss.targets == "signs"):
            raise ValueError("the model is not consistent: its classes do not fit its posteriors and its loss")

    def _check_mergeable(self, other: Self) -> None:
        super()._check_mergeable(other)
        if not np.array_equal(other.classes_, self.classes_):
            raise ValueError(f"the models have different classes, {self.classes_} and {other.classes_}")

    def _absorb(self, one: Self, other: Self) -> None:
        if one._is_joint and one._class_ranks != other._class_ranks:
            rotation = one._mixing().T @ other._mixing()
            other = copy.copy(other)
            known: Any = other._known()[0]
            other._revise(_knowledge=(turned(known, rotation),))
        super()._absorb(one, other)


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
        """Update the posterior with new rows, of which some are kept for a while.

        Rows are kept and fitted together, as `fit` does, up to 2^18 numbers, or twenty rows per coefficient where these
        are more; then half of them go. Files of the model contain those that are kept.
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
