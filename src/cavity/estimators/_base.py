"""How the classifier and the regressor learn: from all rows at once, or as rows come. Check, plan, run, keep."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning

from cavity.ep.hyperparameters import Group, Hyperparameters
from cavity.ep.result import Result, Status
from cavity.estimators._checkpoints import Checkpoint
from cavity.estimators._design import Data, Totals
from cavity.estimators._joint import repeated, repeated_groups
from cavity.estimators._parameters import Parameters
from cavity.estimators._plan import Plan, of_each, plan_fit
from cavity.estimators._posteriors import RATE, TRANSIENT
from cavity.estimators._reading import ReadsRows
from cavity.estimators._runs import Task
from cavity.estimators._sources import Coding, InMemory, Prepared, Source, Summary, is_source
from cavity.estimators._threads import threads_for
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

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

    def _measure(self, sums: Callable[[], ColumnSums]) -> None:
        """Set centres and units of the columns, by sums over the rows where a variance is to be found."""
        p = Parameters.of(self, self._width)
        self._sums = sums() if p.named.keys() - p.categories else None
        self._columns = p.columns(self._sums)

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

    def _prepare_arrays(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> tuple[Prepared, Totals, Any]:
        """Check arrays, and bring their rows to the order of visits; the last is a joint loss and its plan, or None."""
        self.__dict__.pop("preprocessing_", None)
        data, totals = self._read(X, y, sample_weight, offset)
        intercept = bool(self.fit_intercept)
        self._measure(lambda: ColumnSums.of(data.X, data.weights))
        joint = self._joint(data.X.shape[0], data.X.shape[1] + int(intercept), self.covariance, stream=False)
        if joint is not None:
            data = data._replace(targets=self._joint_targets(data, first=True))
        columns = None if self._sums is None else self._columns
        rows = Rows.arrange(data.X, data.targets, data.weights, intercept, data.offset, columns)
        return InMemory(data, rows), totals, joint

    def _prepare_source(self, source: Source) -> tuple[Prepared, Totals, Any]:
        """Prepare the rows of a table or a Dask collection, by their summary."""
        summary = source.cavity_summary("classes" if is_classifier(self) else "numbers")
        try:
            coding, totals, joint = self._adopt(summary)
            return source.cavity_prepare(coding, bool(self.fit_intercept), self._columns), totals, joint
        except BaseException:
            getattr(source, "cavity_discard", lambda: None)()
            raise

    def _adopt(self, summary: Summary) -> tuple[Coding, Totals, Any]:
        """Take over names, levels and targets of a source; the last is a joint loss and its plan, or None."""
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
        self._measure(lambda: summary.sums.wider(levels))
        width = self._width + int(bool(self.fit_intercept))
        joint = self._joint(int(summary.weight), width, self.covariance, stream=False)
        return (coding if joint is None else self._joint_coding(coding, summary)), totals, joint

    def _task(self, loss: Any, plan: Plan) -> Task:
        """Describe the run."""
        p = Parameters.of(self, self._width)
        prior, groups = self._prior_and_groups(p, getattr(loss, "predictors", 1), self._fit_units())
        free = Hyperparameters(groups, self._finds_scale, self._least_scale())
        return Task(loss, prior, plan, p, free, self._columns, random_state=self.random_state)

    def _learn(self, rows: Prepared, totals: Totals, joint: tuple[Any, Plan] | None, checkpoint: Any) -> None:
        """Plan, run EP, and keep what it found."""
        if joint is None:
            loss, (plan, analysis) = self._make_loss(), plan_fit(rows, self.covariance)
        else:
            (loss, plan), analysis = joint, None
        self._totals = totals
        task = self._task(loss, plan)._replace(analysis=analysis, checkpoint=checkpoint)
        outcomes = rows.run(task)
        with threads_for(rows.shape, analysis):
            totals = totals.plus(self._constants(rows, outcomes[0].loss))
            self._keep(plan, task.parameters.intercept, outcomes, totals)

    def _check_parameters(self) -> None:
        """Check all parameters before the data are looked at."""
        Parameters.of(self)
        self._make_loss()

    def _constants(self, rows: Data | Prepared, loss: Loss) -> Totals:
        """Give sums over rows that the evidence needs and that depend on the loss."""
        return Totals()

    def _keep(self, plan: Plan, intercept: bool, outcomes: Sequence[Result], totals: Totals) -> None:
        """Keep what a fit found in rows of which these are the sums."""
        for name in ("_rows_at_revision", "_kept", "_order", "_unsettled"):  # of a stream
            self.__dict__.pop(name, None)
        traces = tuple(o.trace for o in outcomes)
        p = Parameters.of(self, self._width)
        self._revise(
            _free=self._prior_and_groups(p, getattr(outcomes[0].loss, "predictors", 1), self._fit_units())[1],
            _knowledge=tuple(o.sites for o in outcomes),
            _priors=tuple(o.prior for o in outcomes),
            _posteriors=tuple(o.posterior for o in outcomes),
            _loss=outcomes[0].loss,
            _intercept=intercept,
            _totals=totals,
            plan_=of_each(plan, len(outcomes)),
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
