"""Gaussian processes with the kernels of scikit-learn: a classifier and a regressor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import pairwise_distances
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cavity import losses
from cavity._checks import nonnegative_number, number_between, one_of, shown, whole_number
from cavity._types import FloatArray
from cavity.ep.processes import Process, ProcessRows, maximise
from cavity.ep.result import warn_of
from cavity.estimators.classifier import (
    log_probabilities,
    normalised,
    softmax_log_probability,
    softmax_probability,
)
from cavity.estimators.labels import LOSSES as LABEL_LOSSES
from cavity.estimators.labels import check_count, classes_and_codes
from cavity.estimators.numbers import LOSSES as NUMBER_LOSSES
from cavity.estimators.parameters import moderate_number
from cavity.estimators.posterior import RATE
from cavity.estimators.regressor import _levels, score_of
from cavity.estimators.runs import signs_of
from cavity.losses.joint import Softmax
from cavity.losses.noise import predictive_quantile, predictive_std, with_scale

# Rows at which the search for the hyperparameters begins, where there are more: its end is where that of all begins.
_FIRST_ROWS = 1000
# Rows times functions up to which one posterior is kept: 300 MB for each of its matrices.
_WIDEST = 6000
# Classes up to which EP matches moments of all of them (`cavity.moments.joint`).
_MOST_CLASSES = 5
# Numbers of prior covariances that are held at once in a prediction: 32 MB.
_AT_ONCE = 1 << 22


class _GaussianProcess(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: kernel, search, and functions at other inputs."""

    kernel: Any
    optimizer: Any
    n_restarts_optimizer: int
    max_iter: int
    tol: float
    random_state: Any
    kernel_: Any
    X_train_: FloatArray
    _processes: tuple[Process, ...]

    def _check_common(self) -> None:
        whole_number("max_iter", self.max_iter, least=1)
        nonnegative_number("tol", self.tol)
        whole_number("n_restarts_optimizer", self.n_restarts_optimizer, least=0)
        if self.optimizer is not None and self.optimizer != "fmin_l_bfgs_b":
            raise ValueError(f"optimizer must be 'fmin_l_bfgs_b' or None, got {shown(self.optimizer)}")
        if self.kernel is not None and not hasattr(self.kernel, "clone_with_theta"):
            raise ValueError(f"kernel must be a kernel of sklearn.gaussian_process.kernels, got {shown(self.kernel)}")

    def _first_kernel(self, X: FloatArray, rng: Any) -> Any:
        """Kernel where the search starts; without one, of the typical distance between inputs."""
        if self.kernel is not None:
            return clone(self.kernel)
        some = X[rng.permutation(len(X))[:300]]
        distances = pairwise_distances(some)
        apart = distances[distances > 0.0]
        return ConstantKernel(1.0) * RBF(float(np.median(apart)) if apart.size else 1.0, (1e-5, 1e8))

    def _fit_one(self, X: FloatArray, targets: FloatArray, loss: Any, offset: float, finds_scale: bool) -> Process:
        """Fit functions to targets, with the hyperparameters of the largest evidence unless they are given."""
        rng = check_random_state(self.random_state)
        kernel = self._first_kernel(X, rng)
        theta, functions = np.asarray(kernel.theta, dtype=np.float64), getattr(loss, "predictors", 1)
        if len(X) * functions > _WIDEST:
            raise ValueError(
                f"a Gaussian process keeps the square of rows times functions: at most {_WIDEST}, got {len(X)} rows of "
                f"{functions} functions; use fewer rows, or EPClassifier or EPRegressor"
            )
        limits = np.asarray(kernel.bounds, dtype=np.float64).reshape(-1, 2)
        if self.optimizer is None or not (theta.size or finds_scale):
            self._kernel_found = kernel
            return ProcessRows(loss, targets, offset, self.max_iter, self.tol).fit(theta, kernel(X))
        with np.errstate(all="ignore"):
            starts = [np.clip(theta, *limits.T)]
        starts += [rng.uniform(*np.clip(limits, -20.0, 20.0).T) for _ in range(self.n_restarts_optimizer)]
        found = None
        for size in dict.fromkeys((min(len(X), _FIRST_ROWS), len(X))):
            some = np.arange(len(X)) if size == len(X) else np.sort(rng.permutation(len(X))[:size])
            inputs = X[some]
            rows = ProcessRows(loss, targets[some], offset, self.max_iter, min(self.tol, 1e-3))

            def covariance(theta: FloatArray, inputs: FloatArray = inputs) -> tuple[FloatArray, FloatArray]:
                values, slopes = kernel.clone_with_theta(theta)(inputs, eval_gradient=True)
                return np.asarray(values), np.asarray(slopes)

            found = maximise(rows, covariance, starts, limits, finds_scale, RATE)
            starts, loss = [found.theta], found.loss
        assert found is not None
        self._kernel_found = kernel.clone_with_theta(found.theta)
        return found

    def _keep(self, X: FloatArray, processes: list[Process], kernels: list[Any]) -> None:
        """Keep what was fitted, and warn where EP had trouble."""
        self.X_train_ = X
        self.kernel_ = kernels[0] if len(kernels) == 1 else tuple(kernels)
        self._processes = tuple(processes)
        self.log_evidence_ = float(sum(one.log_evidence for one in processes))
        statuses = [one.result.status for one in processes]
        self.status_ = next((status for status in statuses if not status.is_success), statuses[0])
        self.n_iter_ = max(len(one.result.trace.changes) for one in processes)
        if not self.status_.is_success:
            warn_of(self.status_, f"{type(self).__name__}.fit", stacklevel=4)

    def _inputs(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

    def _functions(self, X: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Means ``(m, functions)`` and covariances ``(m, functions, functions)`` at inputs, of every process."""
        kernels = self.kernel_ if isinstance(self.kernel_, tuple) else (self.kernel_,)
        found, length = [], max(1, _AT_ONCE // len(self.X_train_))
        for kernel, process in zip(kernels, self._processes, strict=True):
            parts = [X[i : i + length] for i in range(0, len(X), length)]
            each = [process.gaussian.predictors(kernel(part, self.X_train_), kernel.diag(part)) for part in parts]
            means, covariances = (np.concatenate(one) for one in zip(*each, strict=True))
            diagonal = np.arange(means.shape[1])
            covariances[:, diagonal, diagonal] = np.maximum(covariances[:, diagonal, diagonal], 0.0)
            found.append((means, covariances))
        return found


class EPGaussianProcessClassifier(ClassifierMixin, _GaussianProcess):  # type: ignore[misc]
    r"""Gaussian process classifier by expectation propagation.

    The function f has the prior of a Gaussian process with a kernel of scikit-learn, and the label of an input x the
    likelihood :math:`e^{-\ell(y, f(x))}`. EP approximates the posterior of f by another Gaussian process, more exactly
    than Laplace's method, and its evidence, which decides on the hyperparameters of the kernel. With more than two
    classes, the logistic loss becomes the softmax with one function per class less one, which share a kernel; other
    losses, and more than five classes, use one process for each class against the rest.

    Parameters
    ----------
    kernel : kernel of scikit-learn or None, default=None
        Covariance of the function, from `sklearn.gaussian_process.kernels`. None is ``ConstantKernel() * RBF()``, with
        a length scale that starts at the typical distance between inputs. A constant kernel as a summand is an
        intercept.
    loss : {"logistic", "hinge", "quasi01"} or a loss object, default="logistic"
        As in `EPClassifier`.
    optimizer : "fmin_l_bfgs_b" or None, default="fmin_l_bfgs_b"
        Whether hyperparameters of the kernel that are not fixed are found by maximising the evidence.
    n_restarts_optimizer : int, default=0
        Number of further searches that start at random hyperparameters within their bounds.
    max_iter : int, default=100
        Maximum number of iterations of EP for given hyperparameters.
    tol : float, default=0.01
        EP ends when the estimated remaining change is below this many standard deviations.
    random_state : int, RandomState or None, default=None
        Seed of the restarts, and of the rows with which the search starts where there are more than 1000.

    Attributes
    ----------
    kernel_ : kernel, or tuple of kernels
        The kernel with the hyperparameters found; one per class if every class has a process of its own.
    classes_ : ndarray
        Class labels.
    log_evidence_ : float
        Estimate of the log evidence, summed over the processes.
    X_train_ : ndarray of shape (n_samples, n_features)
        The inputs, of which predictions need all.
    n_features_in_, feature_names_in_, n_iter_, status_
        As in `EPClassifier`.

    Notes
    -----
    Rows times functions are at most 6000. Time grows with their third power, about a second per evaluation of the
    evidence at 1000 rows, and memory with their square.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3.0, 3.0, 60)[:, None]
    >>> y = np.where(np.abs(X[:, 0]) < 1.5, "inside", "outside")
    >>> model = EPGaussianProcessClassifier().fit(X, y)
    >>> model.predict([[0.0], [2.5]])
    array(['inside', 'outside'], dtype='<U7')
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        loss: Any = "logistic",
        optimizer: Any = "fmin_l_bfgs_b",
        n_restarts_optimizer: int = 0,
        max_iter: int = 100,
        tol: float = 0.01,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit the posterior of the function, and find the hyperparameters of the kernel.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Labels.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_common()
        loss = (
            LABEL_LOSSES[one_of("loss", self.loss, tuple(LABEL_LOSSES))]() if isinstance(self.loss, str) else self.loss
        )
        if getattr(loss, "targets", None) != "signs" or isinstance(loss, type):
            raise ValueError(f"loss must be made for labels of two classes, got {loss!r}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        classes, codes = classes_and_codes(y)
        check_count(classes)
        self._is_joint = 2 < classes.size <= _MOST_CLASSES and isinstance(loss, losses.Logistic)
        if self._is_joint:
            loss, targets = Softmax(int(classes.size)), codes.astype(np.float64)[None]
        else:
            targets = signs_of(codes, classes.size)
        processes, kernels = [], []
        for one in targets:
            processes.append(self._fit_one(X, one, loss, 0.0, False))
            kernels.append(self._kernel_found)
        self.classes_ = classes
        self._keep(X, processes, kernels)
        return self

    def latent_mean_and_variance(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Posterior means and variances of the functions at inputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        two ndarrays of shape (n_samples,) or (n_samples, n_functions)
            Of the log odds of ``classes_[1]`` for two classes; of those of every class against the rest, or of the
            contrasts of a softmax, for more.
        """
        parts = self._functions(self._inputs(X))
        means = np.concatenate([mean for mean, _ in parts], axis=1)
        variances = np.concatenate([np.einsum("nii->ni", covariance) for _, covariance in parts], axis=1)
        return (means[:, 0], variances[:, 0]) if means.shape[1] == 1 else (means, variances)

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the classes, averaged over the posterior of the functions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows sum to one.
        """
        parts = self._functions(self._inputs(X))
        if self._is_joint:
            return softmax_probability(*parts[0], self.classes_.size)
        return np.exp(self._logs(parts))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of `predict_proba`, finite for any probability; arguments as there."""
        parts = self._functions(self._inputs(X))
        return softmax_log_probability(*parts[0], self.classes_.size) if self._is_joint else self._logs(parts)

    def predict(self, X: Any) -> Any:
        """Predict the label with the highest probability; arguments as in `predict_proba`."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]

    def _logs(self, parts: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
        each = [
            log_probabilities(process.loss, mean[:, 0], covariance[:, 0, 0])
            for process, (mean, covariance) in zip(self._processes, parts, strict=True)
        ]
        return normalised(np.stack(each, axis=1))


class EPGaussianProcessRegressor(RegressorMixin, _GaussianProcess):  # type: ignore[misc]
    r"""Gaussian process regressor by expectation propagation, for noise of any kind.

    The function f has the prior of a Gaussian process with a kernel of scikit-learn; the noise around it is that of the
    loss: Gaussian, of Laplace, with heavy tails, that of a quantile, counts or positive numbers of mean :math:`e^f`.
    The noise scale and the hyperparameters of the kernel maximise the evidence. With the squared loss the posterior is
    exact.

    Parameters
    ----------
    kernel : kernel of scikit-learn or None, default=None
        As in `EPGaussianProcessClassifier`, for targets with mean zero and standard deviation one. It needs no
        ``WhiteKernel``: the loss has the noise.
    loss, quantile, epsilon, scale
        As in `EPRegressor`; the scale is a number or ``"auto"``.
    optimizer, n_restarts_optimizer, max_iter, tol, random_state
        As in `EPGaussianProcessClassifier`. Without an optimizer the scale must be given.

    Attributes
    ----------
    kernel_ : kernel
        The kernel with the hyperparameters found, for normalised targets.
    scale_ : float
        Noise scale, given or found, in units of y; 1.0 where the loss has none.
    log_evidence_ : float
        Estimate of the logarithm of the density of y.
    X_train_, n_features_in_, feature_names_in_, n_iter_, status_
        As in `EPGaussianProcessClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0.0, 6.0, 50)[:, None]
    >>> model = EPGaussianProcessRegressor(loss="absolute").fit(X, np.sin(X[:, 0]))
    >>> model.predict([[1.5]]).round(1)
    array([1.])
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        loss: Any = "squared",
        quantile: float = 0.5,
        epsilon: float = 1.35,
        scale: Any = "auto",
        optimizer: Any = "fmin_l_bfgs_b",
        n_restarts_optimizer: int = 0,
        max_iter: int = 100,
        tol: float = 0.01,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.quantile = quantile
        self.epsilon = epsilon
        self.scale = scale
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit the posterior of the function, and find kernel and noise scale.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_common()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        kind = self._kind()
        if kind != "reals" and (np.any(y < 0.0) or (kind == "positives" and np.any(y == 0.0))):
            wanted = "above zero" if kind == "positives" else "zero or more"
            raise ValueError(f"y must be {wanted} for this loss, got {np.min(y):g}")
        center, unit, offset = 0.0, 1.0, 0.0
        if kind == "reals":
            center, unit = float(np.mean(y)), float(np.std(y))
            # What rounding leaves of a constant is no unit.
            unit = unit if unit > 1e-12 * abs(center) and unit > 0.0 else 1.0
        else:
            offset = float(np.log(max(float(np.mean(y)), 1e-12)))
        loss, finds_scale = self._make_loss(unit)
        found = self._fit_one(X, (y - center) / unit, loss, offset, finds_scale)
        self._center, self._unit, self._offset = center, unit, offset
        self._keep(X, [found], [self._kernel_found])
        self.log_evidence_ -= len(y) * float(np.log(unit))
        self.scale_ = float(getattr(found.loss, "scale", 1.0)) * (unit if kind == "reals" else 1.0)
        return self

    def predict(self, X: Any, return_std: Any = False, quantile: Any = None) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        return_std : bool or "mean", default=False
            Whether to also return the standard deviation of a new target, noise included; for ``loss="quantile"`` that
            of the quantile. With ``"mean"``, that of the mean of new targets.
        quantile : float or array of floats in (0, 1), optional
            Return this quantile of a new target instead of its mean; for several, one column each.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_quantiles), or two of them
            The prediction: the mean of the function, or of its exponential for counts and positive targets.
        """
        inputs = self._inputs(X)
        ((means, covariance),) = self._functions(inputs)
        mean, variance = means[:, 0] + self._offset, covariance[:, 0, 0]
        loss, is_log = self._processes[0].loss, self._kind() != "reals"
        with np.errstate(over="ignore"):  # infinite where it is too large
            found = np.exp(mean + 0.5 * variance) if is_log else mean
        if quantile is not None:
            levels = _levels(quantile)
            columns = [predictive_quantile(loss, mean, variance, float(q)) for q in np.atleast_1d(levels)]
            found = np.column_stack(columns) if np.ndim(levels) else columns[0]
        found = self._center + self._unit * found
        if return_std is False:
            return found
        if isinstance(return_std, str):
            one_of("return_std", return_std, ("mean",))
        if isinstance(return_std, str) or isinstance(loss, losses.Quantile):
            with np.errstate(over="ignore"):
                std = np.sqrt(np.expm1(variance)) * np.exp(mean + 0.5 * variance) if is_log else np.sqrt(variance)
        else:
            std = predictive_std(loss, mean, variance)
        return found, self._unit * std

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> FloatArray:
        """Draw functions from the posterior, at inputs, without noise.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState or None, default=0
            Seed of the draws.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
            A draw per column, in units of y; means for losses of counts and positive targets.
        """
        inputs, rng = self._inputs(X), check_random_state(random_state)
        process, kernel = self._processes[0].gaussian, self.kernel_
        shared = kernel(inputs, self.X_train_)
        covariance = process.covariance(shared, kernel(inputs))[0, :, 0, :]
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = (shared @ process.weights[0])[:, None] + self._offset
        drawn = drawn + root @ rng.standard_normal((len(inputs), whole_number("n_samples", n_samples, least=1)))
        return np.exp(drawn) if self._kind() != "reals" else self._center + self._unit * drawn

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Score of the predictions, as `EPRegressor.score`.

        Parameters
        ----------
        X, y
            As in `fit`.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.
        """
        return score_of(self._processes[0].loss, y, self.predict(X), sample_weight)

    def _kind(self) -> Any:
        loss = NUMBER_LOSSES.get(self.loss, losses.Squared) if isinstance(self.loss, str) else self.loss
        return (loss() if isinstance(loss, type) else loss).targets

    def _make_loss(self, unit: float) -> tuple[Any, bool]:
        """Loss for normalised targets, and whether its scale is to be found."""
        loss = self.loss
        if not isinstance(loss, str):
            if isinstance(loss, type) or getattr(loss, "targets", None) not in ("reals", "counts", "positives"):
                raise ValueError(f"loss must be made for real or positive targets or counts, got {loss!r}")
            if "scale" in getattr(loss, "_fields", ()) and loss.targets == "reals":
                loss = with_scale(loss, float(loss.scale) / unit)
            return loss, False
        made: Any = NUMBER_LOSSES[one_of("loss", loss, tuple(NUMBER_LOSSES))]
        if loss == "poisson":
            return made(), False
        finds = isinstance(self.scale, str)
        if finds and self.scale != "auto":
            raise ValueError(f"scale must be a positive number or 'auto', got {shown(self.scale)}")
        if finds and self.optimizer is None:
            raise ValueError("scale must be a number where optimizer is None, got 'auto'")
        scale = 0.5 if finds else moderate_number("scale", self.scale) / (unit if self._kind() == "reals" else 1.0)
        if loss == "quantile":
            level = number_between("quantile", self.quantile, 0.0, 1.0, "()")
            first = float(np.exp(-0.5 * ndtri(level) ** 2) / np.sqrt(2.0 * np.pi))
            return losses.Quantile(level, 0.5 * first if finds else scale), finds
        if loss == "huber":
            return losses.Huber(moderate_number("epsilon", self.epsilon), scale), finds
        return with_scale(made(), scale), finds
