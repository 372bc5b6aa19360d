"""A linear classifier with a posterior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import ClassifierMixin

from cavity._checks import whole_number
from cavity._types import FloatArray
from cavity.ep.calibration import calibrating_factor, scaled
from cavity.ep.leave_one_out import LeftOut
from cavity.estimators import reports
from cavity.estimators.base import LinearEP, over_blocks, predicted_targets
from cavity.estimators.fitted import Fitted
from cavity.estimators.labels import LOSSES, Labels, codes_of
from cavity.estimators.parameters import Parameters
from cavity.estimators.progress import Verbose
from cavity.estimators.regressor import accuracy
from cavity.estimators.rows import checked_offset
from cavity.estimators.runs import is_source
from cavity.factors.rows import Rows
from cavity.losses import Loss, offers
from cavity.losses.joint import Softmax
from cavity.moments import joint_log_masses, joint_means, tilts
from cavity.moments.logistic import log_mean_and_slopes

# Nodes for links other than the logistic: places that are fine around the border of the classes and coarse far out,
# where slow links rise, and steps in standard deviations around the peak of link times Gaussian.
_PLACES, _STEPS = np.sinh(np.linspace(-12.0, 12.0, 121)) / 10.0, np.linspace(-6.0, 6.0, 41)
# Probability of a class of several below which its logarithm is integrated around its own peak.
_FAR = 1e-4


def log_probabilities(loss: Loss, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Logarithms of the means of both links under N(mean, variance), of -1 and of +1, of shape ``(2, *mean.shape)``.

    Exact to 1e-8 for the logistic loss and to 1e-3 for others, however small a probability is: that of the less likely
    class is integrated, and the other is what is left.
    """
    slope, m, v = offers(loss).logistic, mean.ravel(), variance.ravel()
    with np.errstate(all="ignore"):
        if slope is not None:
            less = np.where(m > 0.0, -1.0, 1.0)
            low = log_mean_and_slopes(-slope * np.abs(m), slope**2 * v)[0]
        else:
            less = np.where(_gap(loss, 1.0, m) > 0.0, -1.0, 1.0)
            parts = [slice(i, i + 1024) for i in range(0, max(m.size, 1), 1024)]  # 160 nodes and middles: 2.6 MB
            low = np.concatenate([_log_means(loss, less[part], m[part], np.sqrt(v[part])) for part in parts])
        low = np.minimum(low, -np.finfo(np.float64).eps)
        high = np.log1p(-np.exp(low))
    return np.where(less < 0.0, [low, high], [high, low]).reshape(2, *mean.shape)


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


def by_row(values: FloatArray) -> FloatArray:
    """One number per row for one linear predictor, a column per class for more."""
    return values[0] if len(values) == 1 else values.T


def normalised(logs: FloatArray) -> FloatArray:
    """Log probabilities of two classes, or of many from each against the rest; ``logs`` are those of both signs."""
    negative, positive = logs
    if len(positive) == 1:
        return np.column_stack([negative[0], positive[0]])
    return np.asarray(log_softmax(positive, axis=0).T)


def class_probabilities(fitted: Fitted, X: Any, offset: Any, means: Any = softmax_probability) -> FloatArray:
    """Probabilities of all classes, integrated over a joint posterior, or their logarithms."""
    fitted.targets.refuse_offset(offset)
    targets = fitted.targets
    found: FloatArray = means(*fitted.posterior.joint_predictors(X), targets.classes.size)[:, list(targets.ranks)]
    return found


def _log_proba(fitted: Fitted, X: Any, offset: Any) -> FloatArray:
    """Log probabilities of all classes, with the factor that calibrates them."""
    if fitted.is_joint:
        return scaled(class_probabilities(fitted, X, offset, softmax_log_probability), fitted.factor)
    logs = normalised(log_probabilities(fitted.loss, *fitted.posterior.predictors(X, offset)))
    return logs if fitted.factor == 1.0 else scaled(logs, fitted.factor)


def _left_out_classes(left: LeftOut, classes: int) -> FloatArray:
    """Log probabilities of classes for rows without themselves; NaN where what is left is improper."""
    fine = np.isfinite(np.sum(left.mean, axis=1) + np.sum(left.variance, axis=(1, 2)))
    found = np.full((fine.size, classes), np.nan)
    if np.any(fine):
        found[fine] = softmax_log_probability(left.mean[fine], left.variance[fine], classes)
    return found


class EPClassifier(ClassifierMixin, LinearEP):  # type: ignore[misc]
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
    formula : str, optional
        The model as lme4, mgcv and others write it, for rows in a DataFrame: ``"~ age + s(bmi) + (1 | clinic/ward)"``.
        See the guide, "Mixed and additive models".
    terms : list of terms, optional
        The same as a list of `cavity.terms`, instead of a formula.
    structures : dict of names and graphs or matrices, optional
        What a formula names beside the columns: ``neighbours(region, graph)``, ``known(animal, kinship)``.
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
    covariance : {"auto", "full", "sparse", "rows", "diagonal"}, default="auto"
        Form of the posterior. ``"full"`` keeps all correlations, for at most 5000 columns. ``"sparse"`` keeps them in a
        sparse precision matrix, for many one-hot columns. ``"rows"`` keeps them in the space of the rows, for at most
        5000 rows of any number of columns; the rows become part of the model. ``"diagonal"`` treats the coefficients as
        independent, so that standard deviations are conditional on the other coefficients; it is fitted by exact
        projection of mini-batches of 10 rows. ``"auto"`` uses one of the first three where the size of the data allows
        it, and warns if it does not; `plan_` shows the choice.
    max_iter : int, default=100
        Maximum number of loops over the rows. 1 is a single pass.
    tol : float, default=0.01
        The fit ends when the estimated remaining change is below this many standard deviations for every mean, and
        below this share for every variance.
    errors : {"auto", "posterior", "robust", "cluster"}, default="auto"
        Errors of the coefficients in `coef_std_`, `summary` and `contrast`: those of the posterior, or those that the
        scatter of the rows, or of clusters of rows, gives whatever the model ("sandwich"), which needs rows in
        memory and ``covariance="full"``. ``"auto"`` is ``"cluster"`` where ``fit`` is given clusters, else
        ``"posterior"``. Probabilities come from the posterior.
    calibration : "loo" or None, default=None
        With ``"loo"``, log odds are multiplied by one factor, `calibration_`, for which the probabilities of the rows
        without themselves are the best. Coefficients stay as they are.
    loo_refit : bool, default=False
        Whether to refit rows that move their own predictor by more than a standard deviation, one by one, for `loo_`;
        with ``covariance="full"``.
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
    loo_ : ndarray of shape (n_samples,)
        Log probability of the label of every row without that row, from EP's cavities; in the order of the rows given.
    elpd_loo_, elpd_loo_std_ : float
        Sum of `loo_` by the weights of the rows, and its standard error; see `cavity.compare`.
    loo_unreliable_ : ndarray
        Rows whose `loo_` a refit would change.
    calibration_ : float
        Factor of the log odds; one without ``calibration="loo"``.
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

    _targets_kind = Labels

    def __init__(
        self,
        loss: Any = "logistic",
        *,
        formula: str | None = None,
        terms: Any = None,
        structures: Any = None,
        prior_variance: Any = "auto",
        prior_groups: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        intercept_prior_variance: float = 100.0,
        covariance: str = "auto",
        max_iter: int = 100,
        tol: float = 0.01,
        errors: str = "auto",
        calibration: str | None = None,
        loo_refit: bool = False,
        class_weight: Any = None,
        random_state: Any = None,
        verbose: Verbose = None,
    ) -> None:
        self.loss = loss
        self.formula = formula
        self.terms = terms
        self.structures = structures
        self.prior_variance = prior_variance
        self.prior_groups = prior_groups
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_prior_variance = intercept_prior_variance
        self.covariance = covariance
        self.max_iter = max_iter
        self.tol = tol
        self.errors = errors
        self.calibration = calibration
        self.loo_refit = loo_refit
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

        Rows are kept and fitted together, as `fit` does, up to 2^18 numbers, or sixty rows per coefficient where these
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
        is_plain = not forget and sample_weight is offset is halflife is None and self._knows(classes)
        if not is_plain or not self._took_row(X, y):
            p = Parameters.of(self)
            targets = Labels.of(self, None if self._state is None else self._state.targets).with_classes(classes)
            self._take(p, targets, X, y, sample_weight, forget, offset, halflife)
        return self

    def _knows(self, classes: Any) -> bool:
        """Whether classes are those of the model, in order, or not given."""
        if classes is None:
            return True
        return self._state is not None and np.array_equal(classes, self._state.targets.classes)

    @property
    def calibration_(self) -> float:
        """Factor of the log odds; one without ``calibration="loo"``."""
        return self._fitted.factor

    @property
    def classes_(self) -> Any:
        """Class labels."""
        return self._present.targets.classes

    @over_blocks
    def decision_function(
        self, X: Any, return_std: bool = False, offset: ArrayLike | None = None, exclude: Sequence[str] = ()
    ) -> Any:
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
        exclude : list of str, optional
            Terms whose effects are left out, such as ``["(1 | clinic)"]``; columns that only they read may be missing.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes), or two of them
            Positive means ``classes_[1]``, or the class of the column.
        """
        fitted, X, offset = self._rows(X, offset, exclude)
        fitted.targets.refuse_offset(offset)
        mean, variance = fitted.posterior.predictors(X, offset)
        if return_std:
            return by_row(mean), by_row(np.sqrt(variance))
        if fitted.is_joint:
            return log_odds(scaled(class_probabilities(fitted, X, offset, softmax_log_probability), fitted.factor))
        negative, positive = log_probabilities(fitted.loss, mean, variance)
        return by_row(fitted.factor * (positive - negative))

    @over_blocks
    def predict(self, X: Any, offset: ArrayLike | None = None, exclude: Sequence[str] = ()) -> Any:
        """Predict the label with the highest probability; arguments as in `decision_function`."""
        fitted, X, offset = self._rows(X, offset, exclude)
        classes = fitted.targets.classes
        if fitted.is_joint:
            return classes[np.argmax(class_probabilities(fitted, X, offset), axis=1)]
        mean, variance = fitted.posterior.predictors(X, offset)
        if len(mean) == 1 and isinstance(fitted.loss, tuple(LOSSES.values())):  # symmetric: the mean's sign decides
            return classes[(mean[0] > 0.0).astype(np.intp)]
        negative, positive = log_probabilities(fitted.loss, mean, variance)
        return classes[np.argmax(positive - negative if len(mean) > 1 else [negative[0], positive[0]], axis=0)]

    @over_blocks
    def predict_proba(self, X: Any, offset: ArrayLike | None = None, exclude: Sequence[str] = ()) -> FloatArray:
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
        fitted, X, offset = self._rows(X, offset, exclude)
        if fitted.is_joint and fitted.factor == 1.0:
            return class_probabilities(fitted, X, offset)
        return np.exp(_log_proba(fitted, X, offset))

    @over_blocks
    def predict_log_proba(self, X: Any, offset: ArrayLike | None = None, exclude: Sequence[str] = ()) -> FloatArray:
        """Logarithms of `predict_proba`, finite for any probability; arguments as in `decision_function`."""
        return _log_proba(*self._rows(X, offset, exclude))

    def predict_proba_samples(
        self,
        X: Any,
        n: int = 100,
        random_state: Any = None,
        offset: ArrayLike | None = None,
        exclude: Sequence[str] = (),
    ) -> FloatArray:
        """Probabilities for random draws of the coefficients, for intervals and Thompson sampling.

        Parameters
        ----------
        X, offset, exclude
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
        fitted, X, offset = self._rows(X, offset, exclude)
        fitted.targets.refuse_offset(offset)
        coef, intercept = fitted.posterior.coefficients(whole_number("n", n, least=0), random_state)
        coef, intercept = coef.reshape(n, -1, fitted.design.width), intercept.reshape(n, -1)
        known, draws = 0.0 if offset is None else checked_offset(offset, X.shape[0]), []
        for c, b in zip(coef, intercept, strict=True):
            z = (np.asarray(X @ c.T, dtype=np.float64) + b).T + known
            if fitted.is_joint:
                draws.append(softmax(z, axis=0).T)
                continue
            draws.append(np.exp(normalised(log_probabilities(fitted.loss, z, np.zeros_like(z)))))
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

    def _without_themselves(self, state: Fitted, rows: Rows, left: list[LeftOut]) -> tuple[FloatArray, float]:
        targets = state.targets
        with np.errstate(all="ignore"):
            if len(left) == 1 and not state.is_joint and self.calibration is None and offers(state.loss).logistic:
                mass = tilts(state.loss, rows.targets[0], left[0].mean, left[0].variance).log_mass
                return mass, 1.0  # the loss is normalised, and one class is all that is needed
            if state.is_joint:
                logs = _left_out_classes(left[0], targets.classes.size)
                codes = rows.targets[0].astype(np.intp)
            else:
                each = [log_probabilities(state.loss, one.mean, one.variance) for one in left]
                logs = normalised(np.stack(each, axis=1))
                is_pair = len(left) == 1
                codes = (rows.targets[0] > 0.0).astype(np.intp) if is_pair else np.argmax(rows.targets, axis=0)
        factor = 1.0
        if self.calibration is not None:
            factor = calibrating_factor(logs, codes, rows.weights)
        return scaled(logs, factor)[np.arange(codes.size), codes], factor

    def _drawn(self, offset: Any, X: Any, y: Any, n: int, seed: int, rng: Any) -> tuple[Any, Any, Any]:
        probabilities = self.predict_proba_samples(X, n, seed, offset=offset)
        codes = None if y is None else codes_of(np.asarray(y), self.classes_, probabilities.shape[1])
        return reports.drawn_labels(probabilities, codes, rng)
