"""How the estimators read rows and learn from all of them at once: check, plan, run, keep."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, check_is_fitted, validate_data

from cavity._types import FloatArray
from cavity.ep.hyperparameters import Group, Hyperparameters
from cavity.ep.result import Result, Status
from cavity.estimators.checkpoints import Checkpoint
from cavity.estimators.columns import EncodedRows, Preprocessing, encode, levels_of, naming_columns
from cavity.estimators.parameters import LARGEST_NUMBER, Parameters, Plan, of_each, plan_fit, threads_for
from cavity.estimators.posterior import RATE, TRANSIENT, repeated, repeated_groups
from cavity.estimators.reports import Reports
from cavity.estimators.rows import Data, Totals
from cavity.estimators.runs import Coding, InMemory, Prepared, Source, Summary, Task, is_source
from cavity.factors import canonical
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

# Types of the entries of X that are kept as they are.
_KINDS = (np.float64, np.float32)


class ReadsRows(Reports):
    """Checks rows once, before anything is computed from them."""

    # What a table's columns went through, in plain form; models fitted to arrays have none.
    preprocessing_: Any

    def _check_X(self, X: Any, **options: Any) -> Any:  # noqa: N802
        if isinstance(X, EncodedRows):
            y = options.get("y")
            if y is None:
                return X.matrix
            return X.matrix, _check_y(y, y_numeric=options.get("y_numeric", False), estimator=self)
        if "preprocessing_" in self.__dict__ and not options.get("reset", True):
            done = Preprocessing.of(self.preprocessing_)
            X = done.frame(X, list(self.__dict__.get("categories_", {})))
        if options.get("reset", True):
            levels = levels_of(X)
            self.__dict__.pop("categories_", None)
            self.__dict__.update({"categories_": levels} if levels else {})
        checked = (self._encoded if "categories_" in self.__dict__ else self._validated)(X, **options)
        rows, *y = checked if isinstance(checked, tuple) else (checked,)
        entries = rows.data if sparse.issparse(rows) else rows
        if entries.size and max(float(np.max(entries)), -float(np.min(entries))) > LARGEST_NUMBER:
            raise ValueError(f"X must hold numbers of at most {LARGEST_NUMBER:g} in size; scale its columns")
        rows = canonical(rows) if sparse.issparse(rows) else rows
        return (rows, *y) if y else rows

    def _validated(self, X: Any, **options: Any) -> Any:
        """Check an array, a sparse matrix or a table of numbers."""
        if sparse.issparse(X) and X.format == "csr":
            X = canonical(X)  # before anything in compiled code walks along its indices
        try:
            with naming_columns(X):
                return validate_data(self, X, accept_sparse="csr", dtype=_KINDS, order="C", **options)
        except ValueError as error:
            if "could not convert string to float" not in str(error):
                raise
            raise ValueError(
                f"X holds strings ({error}): pass a DataFrame of pandas or polars, whose columns of strings are "
                "categories, or encode them"
            ) from error

    def _encoded(self, X: Any, y: Any = None, y_numeric: bool = False, reset: bool = True) -> Any:
        """Check a table with columns of categories, and give a matrix with one column per level."""
        if not hasattr(X, "columns"):
            names = list(vars(self).get("feature_names_in_", range(self.n_features_in_)))
            raise ValueError(f"X must be a DataFrame with the columns {names}, as it was in fit")
        validate_data(self, X, reset=reset, skip_check_array=True)
        rows = encode(X, self.categories_, unseen=y is None)
        if y is None:
            return rows
        y = _check_y(y, multi_output=False, y_numeric=y_numeric, estimator=self)
        check_consistent_length(rows, y)
        return rows, y

    def _checked_for_prediction(self, X: Any) -> Any:
        check_is_fitted(self)
        return X if self._is_plain(X) else self._check_X(X, reset=False)

    def _is_plain(self, X: Any) -> bool:
        """Whether rows need no further look: finite, of the right kind, order and width, and without names."""
        return (
            type(X) is np.ndarray
            and X.ndim == 2
            and X.dtype in _KINDS
            and X.flags.c_contiguous
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in self.__dict__
            and "categories_" not in self.__dict__
            and float(np.max(np.abs(X))) <= LARGEST_NUMBER
        )


def over_blocks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that takes rows also take a table: it then gives an iterator over the table's blocks, in order."""

    @wraps(method)
    def predict(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not is_source(X):
            return method(self, X, *args, **options)
        if options.get("offset") is not None:
            raise ValueError("a table names its offsets itself: pass the table alone")
        blocks = blocks_of(self, X)
        return (method(self, block.rows, *args, **{**options, "offset": block.offset}) for block in blocks)

    return predict


def blocks_of(model: Any, table: Any) -> Iterator[Any]:
    """Blocks of a table, encoded for a model."""
    check_is_fitted(model)
    levels = vars(model).get("categories_", {})
    if "preprocessing_" in vars(model):
        done = Preprocessing.of(model.preprocessing_)
    elif "feature_names_in_" in vars(model):  # fitted to a DataFrame, which has the same columns
        numbers = tuple(name for name in model.feature_names_in_ if name not in levels)
        done = Preprocessing(numbers, np.zeros(len(numbers)))
    else:
        raise ValueError(
            "this model was fitted to arrays without names of columns: pass arrays to it, or fit a model to a table"
        )
    blocks: Iterator[Any] = table.cavity_blocks(done, levels, is_classifier(model))
    return blocks


def predicted_targets(model: Any, table: Any) -> tuple[Any, Any, Any]:
    """Targets, predictions and weights of all rows of a table; weights are None where it has none."""
    targets, predictions, weights = [], [], []
    for block in blocks_of(model, table):
        if block.target is None:
            raise ValueError("a table needs a target to be scored: Table(..., target=...)")
        targets.append(block.target)
        predictions.append(model.predict(block.rows, offset=block.offset))
        weights.append(block.weight)
    joined = np.concatenate(targets), np.concatenate(predictions)
    return *joined, None if weights[0] is None else np.concatenate(weights)


# What to do with the parameters that estimators have; other endings speak for themselves.
_NARROWER = "or narrow the prior by prior_variance and intercept_prior_variance"
_ADVICE = {
    Status.MAX_ITER: f"not converged in max_iter loops: raise max_iter, {_NARROWER}",
    Status.IMPROPER_CAVITY: (
        "updates were refused in the last loop, since a variance would not have been positive: scale the columns, "
        f"{_NARROWER}; trace_ names the reasons"
    ),
}


class ConditionalDeviationsWarning(UserWarning):
    """The posterior has no correlations, so its standard deviations are conditional on the other coefficients."""


class LinearEP(ReadsRows):
    """Base of the estimators, which document the parameters and say how labels or targets are read."""

    # Declared for the reader: subclasses set them in their constructors.
    random_state: Any
    covariance: Any
    class_weight: Any

    # Variance that coefficients give to the linear predictor where the search for their prior variance starts, and rate
    # of the exponential prior of its square root.
    _first_spread, _rate = 5.0, RATE
    # Sums over the rows, by which columns have centres and units; None where all variances are given.
    _sums: ColumnSums | None
    _columns: Columns

    # Whether the scale of the noise is to be found.
    _finds_scale: Any = False

    def _make_loss(self) -> Loss:
        """Check the parameters that the other estimator does not have, and give the loss."""
        raise NotImplementedError

    def _read(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None, reset: bool = True, stream: bool = False
    ) -> tuple[Data, Totals]:
        """Check rows, labels or targets, weights and offsets."""
        raise NotImplementedError

    def _joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        """Give the loss of several predictors with one posterior, and its plan; None where each stands alone."""
        return None

    def _joint_targets(self, data: Data, first: bool) -> FloatArray:
        """Targets of a loss of several predictors, of a fit or of the first or a later call of a stream."""
        return np.asarray(data.targets)

    def _prior_and_groups(
        self, p: Parameters, predictors: int, units: tuple[float, float] = (1.0, 0.0)
    ) -> tuple[FactorialGaussian, tuple[Group, ...]]:
        """Prior of all coefficients of a posterior, and which of its variances are to be found."""
        groups = p.groups(self._sizes(), self._rate, units[0])
        prior = p.prior(self._first_spread, groups, self._columns, *units)
        if predictors == 1:
            return prior, groups
        return repeated(prior, predictors), repeated_groups(groups, predictors, prior.dim)

    def _fit_units(self) -> tuple[float, float]:
        """Give the unit of the coefficients and the centre of the intercept's prior in a fit."""
        return 1.0, 0.0

    def _sizes(self) -> FloatArray:
        """Mean squares of the columns in their units; one where variances are given and nobody has looked."""
        return np.ones(self._width) if self._sums is None else self._sums.sizes(self._columns)

    def _least_scale(self) -> float:
        """Smallest noise scale that is found."""
        return 0.0

    def _measure(self, sums: Callable[[], ColumnSums]) -> Parameters:
        """Set centres and units of the columns, by sums over the rows where a variance is to be found."""
        p = Parameters.of(self, self._width)
        self._sums = sums() if p.named.keys() - p.categories else None
        self._columns = p.columns(self._sums)
        return p

    def _adopt_targets(self, summary: Summary) -> tuple[Coding, Totals]:
        """Take over classes, or set the unit of targets, from the summary of a source; say how targets are coded."""
        raise NotImplementedError

    def _joint_coding(self, coding: Coding, summary: Summary) -> Coding:
        """Coding of targets for a loss of several predictors."""
        return coding

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = 60.0,
    ) -> Self:
        """Fit the posterior to data.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_samples, n_features), or Table
            Rows. Sparse matrices are best given as CSR. A column of a DataFrame that contains strings, or has a
            categorical type, is a random effect, with one coefficient per level and one estimated variance per
            column. A `cavity.tables.Table` contains its own targets, weights and offsets.
        y : array-like of shape (n_samples,)
            Labels of a classifier, targets of a regressor.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows. A row with weight w counts as w identical rows.
        offset : array-like of shape (n_samples,), optional
            Known term that is added to the linear predictor, such as the logarithm of an exposure.
        checkpoint : path, optional
            File in which the state of the fit is saved. If it exists, the fit continues from it, and gives the same
            numbers as an uninterrupted fit. A checkpoint of other data, parameters or versions raises a ValueError. Not
            used with ``covariance="diagonal"``.
        every : float, default=60.0
            Minimum number of seconds between two writes of the checkpoint.

        Returns
        -------
        Self
            The fitted estimator.
        """
        with self._whole_or_not_at_all():
            self._check_parameters()
            if is_source(X):
                if y is not None or sample_weight is not None or offset is not None:
                    raise ValueError("a table names its target, weights and offsets itself: pass the table alone")
                prepared = self._prepare_source(X)
            else:
                prepared = self._prepare_arrays(X, y, sample_weight, offset)
            try:
                self._learn(*prepared, None if checkpoint is None else partial(_checkpoint, self, checkpoint, every))
            finally:
                prepared[0].close()
        return self

    def _prepare_arrays(
        self, X: Any, y: Any, sample_weight: Any, offset: Any
    ) -> tuple[Prepared, Totals, Any, Parameters]:
        """Check arrays, and order their rows for the visits; the third is a joint loss and its plan, or None."""
        self.__dict__.pop("preprocessing_", None)
        data, totals = self._read(X, y, sample_weight, offset)
        intercept = bool(self.fit_intercept)
        p = self._measure(lambda: ColumnSums.of(data.X, data.weights))
        joint = self._joint(data.X.shape[0], data.X.shape[1] + int(intercept), self.covariance, stream=False)
        if joint is not None:
            data = data._replace(targets=self._joint_targets(data, first=True))
        columns = None if self._sums is None else self._columns
        rows = Rows.arrange(data.X, data.targets, data.weights, intercept, data.offset, columns)
        return InMemory(data, rows), totals, joint, p

    def _prepare_source(self, source: Source) -> tuple[Prepared, Totals, Any, Parameters]:
        """Prepare the rows of a table or a Dask collection, by their summary."""
        summary = source.cavity_summary("classes" if is_classifier(self) else "numbers")
        try:
            coding, totals, joint, p = self._adopt(summary)
            return source.cavity_prepare(coding, bool(self.fit_intercept), self._columns), totals, joint, p
        except BaseException:
            getattr(source, "cavity_discard", lambda: None)()
            raise

    def _adopt(self, summary: Summary) -> tuple[Coding, Totals, Any, Parameters]:
        """Take over names, levels and targets of a source; the third is a joint loss and its plan, or None."""
        names = None if summary.names is None else np.asarray(summary.names, dtype=object)
        found = {
            "feature_names_in_": names,
            "categories_": {name: list(levels) for name, levels in summary.categories.items()} or None,
            "preprocessing_": summary.preprocessing,
        }
        for name, value in found.items():
            self.__dict__.pop(name, None)
            if value is not None:
                setattr(self, name, value)
        self.n_features_in_ = summary.features
        coding, totals = self._adopt_targets(summary)
        levels = self._width - summary.sums.mean.size
        p = self._measure(lambda: summary.sums.wider(levels))
        width = self._width + int(bool(self.fit_intercept))
        joint = self._joint(int(summary.weight), width, self.covariance, stream=False)
        return (coding if joint is None else self._joint_coding(coding, summary)), totals, joint, p

    def _learn(
        self, rows: Prepared, totals: Totals, joint: tuple[Any, Plan] | None, p: Parameters, checkpoint: Any
    ) -> None:
        """Plan, run EP, and keep what it found."""
        if joint is None:
            loss, (plan, analysis) = self._make_loss(), plan_fit(rows, self.covariance)
        else:
            (loss, plan), analysis = joint, None
        self._totals = totals
        prior, groups = self._prior_and_groups(p, getattr(loss, "predictors", 1), self._fit_units())
        free = Hyperparameters(groups, self._finds_scale, self._least_scale())
        task = Task(loss, prior, plan, p, free, self._columns, analysis, self.random_state, checkpoint)
        outcomes = rows.run(task)
        with threads_for(rows.shape, analysis):
            self._keep(task, outcomes, totals.plus(self._constants(rows, outcomes[0].loss)))

    def _check_parameters(self) -> None:
        """Check all parameters before the data are looked at."""
        Parameters.of(self)
        self._make_loss()

    def _constants(self, rows: Data | Prepared, loss: Loss) -> Totals:
        """Give sums over rows that the evidence needs and that depend on the loss."""
        return Totals()

    def _keep(self, task: Task, outcomes: Sequence[Result], totals: Totals) -> None:
        """Keep what a fit found in rows of which these are the sums."""
        for name in ("_rows_at_revision", "_kept", "_order", "_unsettled"):  # of a stream
            self.__dict__.pop(name, None)
        traces = tuple(o.trace for o in outcomes)
        self._revise(
            _free=tuple(task.hyperparameters.groups),
            _knowledge=tuple(o.sites for o in outcomes),
            _priors=tuple(o.prior for o in outcomes),
            _posteriors=tuple(o.posterior for o in outcomes),
            _loss=outcomes[0].loss,
            _intercept=task.parameters.intercept,
            _totals=totals,
            plan_=of_each(task.plan, len(outcomes)),
            n_iter_=max(len(trace.changes) for trace in traces),
            trace_=traces[0] if len(traces) == 1 else traces,
            status_=next((o.status for o in outcomes if not o.status.is_success), outcomes[0].status),
        )
        self._check_finite()

    def _revise(self, **parts: Any) -> None:
        """Set parts of the model, and drop what was derived from the ones before."""
        for name in TRANSIENT:
            self.__dict__.pop(name, None)
        self.__dict__.update(parts, _derived={})

    def _check_finite(self) -> None:
        """Refuse a posterior that numbers cannot hold; what was before is then kept."""
        fine = True
        posteriors = self._present_posteriors()
        for posterior in posteriors:
            stds = self._units[0] * np.sqrt(posterior.variance)  # in units of y, in which they may underflow
            stds[: self._width] /= self._columns.unit
            fine &= bool(np.all(np.isfinite(posterior.mean)) and np.all((stds > 0.0) & (stds < np.inf)))
        what = "evidence" if fine else "posterior"
        if what == "posterior" or not np.isfinite(sum(posterior.log_mass for posterior in posteriors)):
            raise ValueError(
                f"the {what} is beyond what numbers can hold: bring columns and targets to ordinary sizes, or narrow "
                "the prior"
            )

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """Undo a change that raises; warn of a new plan's defect, and where EP had trouble."""
        before, streams = dict(self.__dict__), self.__dict__.get("_streams")
        try:
            yield
            plan = self.plan_
            if plan.covariance == "diagonal" and plan.chosen and plan is not before.get("plan_"):
                text = (
                    "standard deviations are conditional on the other coefficients, and so too small where columns are "
                    f"correlated: {plan.reason}. Use fewer columns; covariance='diagonal' accepts this without a "
                    "warning"
                )
                warnings.warn(text, ConditionalDeviationsWarning, stacklevel=4)
            if not self.status_.is_success:
                advice = _ADVICE.get(self.status_, self.status_.value)
                warnings.warn(f"EP ended with trouble: {advice}", ConvergenceWarning, stacklevel=4)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            if streams is not None:
                streams.undo()
            raise
        if "_streams" in self.__dict__:
            self._streams.commit()


def _checkpoint(model: LinearEP, path: str | os.PathLike[str], every: float, digest: str) -> Checkpoint:
    """Open the checkpoint of a fit to data of this digest."""
    parameters = sorted((name, value) for name, value in model.get_params().items() if name != "verbose")
    described = {f"parameter {name}": _described(value) for name, value in parameters}
    return Checkpoint(path, every, {"model": type(model).__name__, **described, "data": digest})


def _described(value: Any) -> str:
    """Write a parameter by its content: other content differs, and equal content does not, in whatever process."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"array {value.dtype} {value.shape} {_digest(value.tobytes())}"
    content: Any
    if isinstance(value, np.ndarray):
        content = value.shape, *value.ravel().tolist()
    elif hasattr(value, "to_numpy"):  # DataFrames, Series and indices
        content = *getattr(value, "columns", [getattr(value, "name", None)]), value.to_numpy()
    elif isinstance(value, Mapping):
        content = sorted((_described(key), _described(one)) for key, one in value.items())
    elif isinstance(value, Set):
        content = sorted(map(_described, value))
    elif isinstance(value, list | tuple):
        content = value
    elif isinstance(value, np.random.Generator):
        content = value.bit_generator.state
    elif isinstance(value, type) or hasattr(value, "__code__"):  # classes and functions, by their names
        return f"{value.__module__}.{value.__qualname__}"
    else:  # dataclasses, RandomState, and other objects; what has no state has its type, unless it writes more
        content = value.__getstate__() or ([] if repr(value) == object.__repr__(value) else [repr(value)])
    parts = content if isinstance(content, list | tuple) else [content]
    text = f"{type(value).__qualname__}({', '.join(map(_described, parts))})"
    return text if len(text) <= 200 else f"{type(value).__qualname__} {_digest(text.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
