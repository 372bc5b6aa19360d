"""The base of the estimators: check, read, run, and assign what was found, one frozen value, at the end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import Tags

from cavity._checks import flag, nonnegative_number, one_of, whole_number
from cavity._types import FloatArray, IndexArray
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.leave_one_out import LeftOut
from cavity.ep.posteriors import Gaussian
from cavity.ep.result import Result, Status
from cavity.estimators import exact, reports, row_findings, streams, term_reports
from cavity.estimators.checkpoints import Checkpoint, described
from cavity.estimators.columns import ColumnDesign, FirstRows, Preprocessing
from cavity.estimators.fitted import Fitted
from cavity.estimators.parameters import MOST_ROWS, Parameters, Plan, of_each, plan_fit, threads_for
from cavity.estimators.row_findings import Densities, RowFindings
from cavity.estimators.rows import Data, NoWeightError, Totals, forgetting
from cavity.estimators.runs import Checkpoints, InMemory, Prepared, Problem, Source, is_source
from cavity.estimators.term_design import TermDesign
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows
from cavity.gaussians.affine import Change
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.losses import Loss


def over_blocks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that takes rows also take a table: it then gives an iterator over the table's blocks, in order."""

    @wraps(method)
    def predict(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not hasattr(X, "cavity_blocks"):
            return method(self, X, *args, **options)
        if options.get("offset") is not None:
            raise ValueError("a table names its offsets itself: pass the table alone")
        blocks = self.blocks(X)
        return (method(self, block.rows, *args, **{**options, "offset": block.offset}) for block in blocks)

    return predict


def predicted_targets(model: Any, table: Any) -> tuple[Any, Any, Any]:
    """Targets, predictions and weights of all rows of a table; weights are None where it has none."""
    targets, predictions, weights = [], [], []
    for block in model.blocks(table):
        if block.target is None:
            raise ValueError("a table needs a target to be scored: Table(..., target=...)")
        targets.append(block.target)
        predictions.append(model.predict(block.rows, offset=block.offset))
        weights.append(block.weight)
    joined = np.concatenate(targets), np.concatenate(predictions)
    return *joined, None if weights[0] is None else np.concatenate(weights)


# Rows per coefficient from which on quantile losses have robust errors by default: of fewer, many are met exactly, and
# their scatter says next to nothing. Twice as many keep the posterior's errors for tables of a few hundred rows.
ROWS_FOR_SCATTER = 10

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


# Parameters that may change between two calls of `partial_fit`: the others say what the posterior is one of.
_MAY_CHANGE = ("verbose", "max_iter", "tol", "random_state", "class_weight", "covariance")


class LinearEP(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators, which document the parameters and name what reads their targets.

    All that fitting finds is one frozen value, which takes the place of the one before when all is done: a call that
    raises changes nothing.
    """

    # Parameters that all estimators have, and which they document.
    errors: str
    loo_refit: bool

    # What reads labels or numbers: `of(model, before)` checks the parameters that only one of the estimators has.
    _targets_kind: Any
    # The state; None before a fit.
    _state: Fitted | None = None
    # A short way for single rows of a stream, with the parameters that it was opened with.
    _path: tuple[streams.RowPath, list[tuple[str, Any]]] | None = None

    # What was found.

    @property
    def _fitted(self) -> Fitted:
        """The state, with prior and noise found for the last rows of a stream."""
        if self._state is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit or partial_fit first")
        if self._state.stream.is_behind:
            self._state = streams.settled(self._state)
        return self._state

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be rebuilt."""
        settled = {} if self._state is None else {"_state": self._fitted}
        return {name: value for name, value in super().__getstate__().items() if name != "_path"} | settled

    @property
    def n_features_in_(self) -> int:
        """Number of columns, a column of categories counted once."""
        return self._present.design.features

    @property
    def feature_names_in_(self) -> Any:
        """Names of the columns, where they have names."""
        return _existing("feature_names_in_", self._present.design.feature_names)

    @property
    def categories_(self) -> dict[str, list[Any]]:
        """Levels of every column of categories, where there are any."""
        return _existing("categories_", self._present.design.levels or None)

    @property
    def preprocessing_(self) -> Any:
        """What the columns of a table went through, in plain form; models fitted to arrays have none."""
        return _existing("preprocessing_", self._present.design.preprocessing)

    @property
    def _present(self) -> Fitted:
        """The state as it is, whose names and columns do not depend on what is yet to be found."""
        return self._fitted if self._state is None else self._state

    @property
    def loss_(self) -> Loss:
        """The loss, with the noise scale that was found, of normalised targets."""
        return self._fitted.loss

    @property
    def n_samples_seen_(self) -> float:
        """Sum of the weights of all rows seen, as far as they are not forgotten."""
        return self._present.totals.rows

    @property
    def plan_(self) -> Plan:
        """The form of the posterior, and why it was chosen."""
        return self._present.plan

    @property
    def status_(self) -> Status:
        """How the fit ended."""
        return self._fitted.status

    @property
    def trace_(self) -> Any:
        """Changes in every loop, and the number of rejected updates by reason."""
        return self._fitted.trace

    @property
    def n_iter_(self) -> int:
        """Number of loops over the rows."""
        return self._present.loops

    @property
    def posterior_(self) -> tuple[Gaussian, ...]:
        """Posterior of every linear predictor, the intercept last: one, or one per class if there are more than two."""
        return self._fitted.posterior.each

    @property
    def coef_(self) -> FloatArray:
        """Posterior means of the coefficients."""
        return self._public(self._fitted.errors.moments[0][:, : self._fitted.design.width])

    @property
    def coef_std_(self) -> FloatArray:
        """Posterior standard deviations of the coefficients."""
        return self._public(self._fitted.errors.moments[1][:, : self._fitted.design.width])

    @property
    def intercept_(self) -> Any:
        """Posterior mean of the intercept; zero without one."""
        return self._public(np.sum(self._fitted.errors.moments[0][:, self._fitted.design.width :], axis=1))

    @property
    def intercept_std_(self) -> Any:
        """Posterior standard deviation of the intercept; zero without one."""
        return self._public(np.sum(self._fitted.errors.moments[1][:, self._fitted.design.width :], axis=1))

    def _public(self, values: FloatArray) -> Any:
        """One linear predictor per row, as scikit-learn's classifiers have it, or the only one."""
        if not self._targets_kind.is_single:
            return values
        return float(values[0]) if values.ndim == 1 else values[0]

    @property
    def covariance_(self) -> Any:
        """Posterior covariances of coefficients and intercept, the intercept last."""
        posterior = self._fitted.errors.each
        if posterior[0].dim > WIDEST_COVARIANCE:
            raise ValueError(
                f"covariance_ holds dim² numbers: at most {WIDEST_COVARIANCE} columns, got {posterior[0].dim}; "
                "coef_std_ has the standard deviations, sample_coef draws"
            )
        return self._public(self._fitted.targets.unit**2 * np.array([p.covariance for p in posterior]))

    @property
    def prior_variance_(self) -> Any:
        """Prior variance of the coefficients, given or found: a number, or one per feature, per class or per group.

        Where it was found, it is that of coefficients of columns in the units `prior_units_`.
        """
        fitted = self._fitted
        if isinstance(fitted.design, TermDesign):
            raise AttributeError("a model with terms has components_, standard deviations and correlations")
        named, priors = fitted.design.groups, fitted.priors
        if len(named) > 1 or (named and fitted.design.variances is not None):
            return {name: float(priors[0].variance[columns[0]]) for name, columns in named.items()}
        each = np.array([prior.variance[: fitted.design.width] for prior in priors])
        each = each[:, 0] if np.all(each == each[:, :1]) else each
        return float(each[0]) if each.shape == (1,) else each[0] if len(each) == 1 else each

    @property
    def prior_units_(self) -> FloatArray:
        """Units of the columns in which `prior_variance_` is: ``prior_variance_ / prior_units_**2`` is in raw units."""
        return self._fitted.columns.unit.copy()

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the data's density under the model, summed over the linear predictors."""
        return float(sum(p.log_mass for p in self._fitted.posteriors))

    @property
    def loo_(self) -> FloatArray:
        """Logarithm of the predictive density of every row of the fit without itself, in the order of the rows given.

        From EP's cavities, without a refit; NaN for rows of weight zero. Probabilities of labels for a classifier.
        """
        return self._densities.each.copy()

    @property
    def elpd_loo_(self) -> float:
        """Sum of `loo_` over the rows, by their weights: what the model predicts of new rows."""
        return self._densities.total

    @property
    def elpd_loo_std_(self) -> float:
        """Standard error of `elpd_loo_`."""
        return self._densities.std

    @property
    def loo_unreliable_(self) -> IndexArray:
        """Rows that move their own predictor so far that `loo_` is not what a refit would say.

        With ``loo_refit=True`` these are refitted, and none is left.
        """
        return self._densities.unreliable.copy()

    @property
    def _densities(self) -> Densities:
        found = self._fitted.rows
        if found is None:
            raise AttributeError(
                "rows are left out after fit, in memory and with correlations; not in streams, merged models or with "
                "covariance='diagonal'"
            )
        return found.densities

    def sample_coef(
        self, n: int = 1, random_state: Any = None, return_intercept: bool = False
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Draw coefficients from the posterior.

        Parameters
        ----------
        n : int, default=1
            Number of draws.
        random_state : int, RandomState or None, default=None
            Seed of the draws.
        return_intercept : bool, default=False
            Whether to return the intercepts of the same draws too.

        Returns
        -------
        ndarray
            ``(n, n_features)``, or ``(n, n_classes, n_features)`` for more than two classes; with
            ``return_intercept`` also the intercepts, ``(n,)`` or ``(n, n_classes)``.
        """
        coef, intercept = self._fitted.posterior.coefficients(whole_number("n", n, least=0), random_state)
        return (coef, intercept) if return_intercept else coef

    # Fitting.

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = 60.0,
        clusters: ArrayLike | None = None,
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
        clusters : array-like of shape (n_samples,), optional
            Labels of the clusters that the rows belong to, for ``errors="cluster"``: rows of different clusters are
            independent.

        Returns
        -------
        Self
            The fitted estimator.
        """
        p, targets = Parameters.of(self), self._targets_kind.of(self)
        errors = self._checked_errors(clusters)
        if is_source(X):
            if not y is sample_weight is offset is clusters is None:
                raise ValueError("a table names its target, weights and offsets itself: pass the table alone")
            if p.formula is None:
                rows, known = self._prepare_source(p, targets, X)
            else:
                rows, known = self._prepare_frame(p, targets, X)
            kept = None
        else:
            y = p.formula.targets(X) if y is None and p.formula is not None else y
            rows, known = self._prepare_arrays(p, targets, X, y, sample_weight, offset)
            kept = row_findings.rows_kept(sample_weight, getattr(self, "class_weight", None), y)
        try:
            opened = None if checkpoint is None else partial(self._checkpoint, checkpoint, every)
            state, outcomes = self._learn(p, rows, opened, *known)
            has_matrix = isinstance(rows, InMemory) and state.plan.covariance == "full"
            if errors != "posterior" and not has_matrix:
                if self.errors != "auto" or clusters is not None:
                    raise ValueError(f"errors={errors!r} needs rows in memory and covariance='full'")
                errors = "posterior"
            if errors == "robust" and self.errors == "auto" and rows.shape[0] < ROWS_FOR_SCATTER * rows.shape[1]:
                errors = "posterior"
            if isinstance(rows, InMemory) and state.plan.covariance != "diagonal":
                given = rows.data.X.shape[0] if kept is None else kept.size
                members = None if clusters is None else row_findings.checked_clusters(clusters, given)
                state = state.revised(rows=self._findings(state, rows, outcomes, errors, members, kept))
        finally:
            rows.close()
        self._warn(state, 3)
        self._state, self._path = state, None
        return self

    def _checked_errors(self, clusters: Any) -> str:
        """Which errors are reported."""
        errors = one_of("errors", self.errors, ("auto", "posterior", "robust", "cluster"))
        if errors == "auto":
            is_quantile = getattr(self, "loss", None) == "quantile"
            errors = "cluster" if clusters is not None else "robust" if is_quantile else "posterior"
        if (errors == "cluster") != (clusters is not None):
            raise ValueError(f"errors='cluster' and clusters= belong together, got errors={self.errors!r}")
        return errors

    def _findings(
        self, state: Fitted, rows: InMemory, outcomes: list[Result], errors: str, clusters: Any, kept: Any
    ) -> RowFindings:
        """Leave rows out, and sum up what robust errors and the shapes of marginals need."""
        distinct = rows.rows
        with threads_for(rows.shape, None):
            left = row_findings.left_out(distinct, outcomes, flag("loo_refit", self.loo_refit))
            own, factor = self._without_themselves(state, distinct, left)
            reliable = np.all([one.is_reliable for one in left], axis=0)
            told = [row_findings.in_given_order(rows, a, kept) for a in (own, np.where(reliable, 0.0, 1.0))]
            weights = np.zeros(told[0].size)
            weights[slice(None) if kept is None else kept] = 1.0 if rows.data.weights is None else rows.data.weights
            densities = Densities(told[0], weights, np.flatnonzero(told[1] == 1.0))
            scatter = None
            if errors != "posterior":
                scatter = row_findings.scatters(rows, outcomes, clusters, kept)
            change = Change(*state.columns, state.design.intercept, state.design.effects)
            shapes = None if scatter is not None else row_findings.shapes_of(distinct, outcomes, change)
        return RowFindings(densities, factor, scatter, shapes)

    def _without_themselves(self, state: Fitted, rows: Rows, left: list[LeftOut]) -> tuple[FloatArray, float]:
        """Log densities of distinct rows without themselves, in units of the targets, and the factor of log odds."""
        raise NotImplementedError

    def _prepare_arrays(
        self, p: Parameters, targets: Any, X: Any, y: Any, sample_weight: Any, offset: Any
    ) -> tuple[Prepared, tuple[Any, ...]]:
        """Check arrays, and order their rows for the visits."""
        design, X, y, offset = self._first_rows(p, targets, X, y, sample_weight, offset)
        if p.formula is not None and targets.kind == "reals" and targets.finds_scale:
            design.terms.require_repeats(X)
        targets, data, totals = targets.with_intercept(design.intercept).read(X, y, sample_weight, offset)
        sums = ColumnSums.of(data.X, data.weights) if design.needs_sums or targets.is_linear else None
        columns = design.columns(sums)
        # In the space of the rows coefficients are independent: terms have no fewer rows than columns in that sense.
        width, is_plain = design.width + design.intercept, p.formula is None
        if p.covariance == "rows" and not is_plain:
            raise ValueError("covariance='rows' is for independent coefficients, not for a formula: leave it at 'auto'")
        joint = targets.joint(data.X.shape[0] if is_plain else max(data.X.shape[0], width), width, p.covariance, False)
        if joint is not None:
            targets, data = targets.of_joint(data)
        units = None if sums is None else columns
        rows = Rows.arrange(data.X, data.targets, data.weights, design.intercept, data.offset, units)
        coupled = None if p.formula is None else design.coupled()
        most_rows = MOST_ROWS if is_plain else 0
        return InMemory(data, rows, most_rows=most_rows, coupled=coupled), (
            design,
            targets,
            columns,
            sums,
            totals,
            joint,
        )

    def _first_rows(
        self, p: Parameters, targets: Any, X: Any, y: Any, sample_weight: Any, offset: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Learn the design from the first rows: it comes with the matrix, targets and offsets."""
        numeric = targets.kind != "signs"
        if p.formula is None:
            first = FirstRows.of(self, X, y, numeric)
            return ColumnDesign.of(p, first.features, first.names, first.levels), first.matrix, first.targets, offset
        design, rows = TermDesign.learn(p, X, sample_weight, targets.kind == "reals")
        return design, rows, design.checked_targets(self, rows, y, numeric), design.offset(X, offset)

    def _prepare_frame(self, p: Parameters, targets: Any, source: Any) -> tuple[Prepared, tuple[Any, ...]]:
        """Read the columns of a table into memory, as terms need them."""
        if not hasattr(source, "cavity_frames"):
            raise ValueError("a formula or terms need rows in memory or a Table: compute the collection first")
        blocks = list(source.cavity_frames(targets.kind == "signs"))
        frame = {name: np.concatenate([block.rows[name] for block in blocks]) for name in blocks[0].rows}
        y, weights, offset = (
            None if getattr(blocks[0], role) is None else np.concatenate([getattr(block, role) for block in blocks])
            for role in ("target", "weight", "offset")
        )
        formula: Any = p.formula
        y = formula.targets(frame) if y is None else y
        rows, (design, *known) = self._prepare_arrays(p, targets, frame, y, weights, offset)
        source.cavity_check(design.terms.variables)
        roles = source.target or design.target, source.weight, source.offset
        done = Preprocessing((), np.zeros(0), (), *roles)
        return rows, (replace(design, preprocessing=done.plain()), *known)

    def _prepare_source(self, p: Parameters, targets: Any, source: Source) -> tuple[Prepared, tuple[Any, ...]]:
        """Prepare the rows of a table or a Dask collection, by their summary."""
        summary = source.cavity_summary("numbers" if targets.kind != "signs" else "classes")
        try:
            names = None if summary.names is None else np.asarray(summary.names, dtype=object)
            levels = {name: list(known) for name, known in summary.categories.items()}
            design = ColumnDesign.of(p, summary.features, names, levels, summary.preprocessing)
            targets, coding, totals = targets.adopt(summary)
            sums = (
                summary.sums.wider(design.width - summary.sums.mean.size)
                if design.needs_sums or targets.is_linear
                else None
            )
            columns, width = design.columns(sums), design.width + design.intercept
            joint = targets.joint(int(summary.weight), width, p.covariance, stream=False)
            if joint is not None:
                targets, coding = targets.of_joint_coding(coding, summary)
            rows = source.cavity_prepare(coding, design.intercept, columns)
            return rows, (design, targets, columns, sums, totals, joint)
        except BaseException:
            getattr(source, "cavity_discard", lambda: None)()
            raise

    def _learn(
        self,
        p: Parameters,
        rows: Prepared,
        checkpoint: Checkpoints | None,
        design: Any,
        targets: Any,
        columns: Columns,
        sums: ColumnSums | None,
        totals: Totals,
        joint: tuple[Any, Plan] | None,
    ) -> tuple[Fitted, list[Result]]:
        """Plan, run EP, and gather what it found."""
        loss, analysis = targets.loss, None
        if joint is None:
            plan, analysis = plan_fit(rows, p.covariance)
            if p.formula is not None and plan.covariance == "diagonal":
                raise ValueError(f"terms need all correlations, but the plan for these rows is a {plan}")
        else:
            loss, plan = joint
        sizes = np.ones(design.width) if sums is None else sums.sizes(columns)
        prior, groups = targets.prior(design, columns, sizes, loss, targets.prior_units(totals, stream=False))
        least = targets.least_scale(totals) if targets.finds_scale else 0.0
        free = Hyperparameters(groups, targets.finds_scale, least)
        outcomes: list[Result] = rows.run(Problem(loss, prior, free, columns, plan, analysis), p, checkpoint)
        traces, last = tuple(o.trace for o in outcomes), outcomes[0]
        with threads_for(rows.shape, analysis):
            if targets.kind == "counts":
                totals = totals.plus(streams.constants_of(rows, last.loss))
            noise = (
                targets.noise_of_fit(last.loss, last.sites, totals, last.noise) if targets.finds_scale else (0.0, 0.0)
            )
            state = Fitted(
                design,
                targets,
                last.loss,
                columns,
                sums,
                tuple(o.sites for o in outcomes),
                tuple(o.prior for o in outcomes),
                tuple(groups),
                totals,
                plan if len(outcomes) == 1 else of_each(plan, len(outcomes)),
                next((o.status for o in outcomes if not o.status.is_success), last.status),
                traces[0] if len(traces) == 1 else traces,
                max(len(trace.changes) for trace in traces),
                noise,
                # From files, the posterior of a sparse precision is factorised again: to the same bits.
                found=None if plan.covariance == "sparse" else tuple(o.posterior for o in outcomes),
            )
            state.check_finite()
        return state, outcomes

    def _checkpoint(self, path: str | os.PathLike[str], every: float, digest: str) -> Checkpoint:
        """Open the checkpoint of a fit to data of this digest."""
        parameters = sorted((name, value) for name, value in self.get_params().items() if name != "verbose")
        told = {f"parameter {name}": described(value) for name, value in parameters}
        return Checkpoint(path, every, {"model": type(self).__name__, **told, "data": digest})

    def _warn(self, state: Fitted, level: int) -> None:
        """Warn of a new plan's defect, and where EP had trouble."""
        plan = state.plan
        is_new = self._state is None or plan is not self._state.plan
        if plan.covariance == "diagonal" and plan.chosen and is_new:
            text = (
                "standard deviations are conditional on the other coefficients, and so too small where columns are "
                f"correlated: {plan.reason}. Use fewer rows or columns; covariance='diagonal' accepts this without a "
                "warning"
            )
            warnings.warn(text, ConditionalDeviationsWarning, stacklevel=level)
        if not state.status.is_success:
            advice = _ADVICE.get(state.status, state.status.value)
            warnings.warn(f"EP ended with trouble: {advice}", ConvergenceWarning, stacklevel=level)

    # Streams.

    def _took_row(self, X: Any, y: Any) -> bool:
        """Whether a single row was taken in by the short path."""
        if self._path is None or self._state is None:
            return False
        path, parameters = self._path
        if not all(getattr(self, name) is value for name, value in parameters):
            return False
        state = path.take(self._state, X, y)
        if state is None:
            return False
        self._state = state
        return True

    def _take(
        self,
        p: Parameters,
        targets: Any,
        X: Any,
        y: Any,
        sample_weight: Any,
        forget: float,
        offset: Any,
        halflife: float | None,
    ) -> None:
        """Take the rows of a call into what is known; nothing changes if all of them have weight zero."""
        before, numeric = self._state, targets.kind != "signs"
        told = {name: described(value) for name, value in self.get_params().items() if name not in _MAY_CHANGE}
        share, weights = forgetting(forget, halflife, sample_weight, X)
        y = p.formula.targets(X) if y is None and p.formula is not None else y
        try:
            if before is None:
                design, X, y, offset = self._first_rows(p, targets, X, y, weights, offset)
                targets, data, totals = targets.with_intercept(design.intercept).read(X, y, weights, offset)
                state = streams.begin(p, design, targets, data, totals, told)
            else:
                _refuse_other(before.stream.parameters, told)
                design = before.design
                if not (design.is_plain(X) and targets.can_read(y, X.shape[0])):
                    offset = design.offset(X, offset) if design.offsets else offset
                    X, y = design.rows(self, X, y, numeric)
                targets = targets.with_intercept(design.intercept)
                targets, data, totals = targets.read(X, y, weights, offset)
                state = before.revised(design=design.with_parameters(p), targets=targets)
                state = streams.continued(state, p, data, totals, share)
        except NoWeightError:
            if before is None:
                raise
            return
        if share == 0.0 and not streams.sums_suffice(state):
            state = streams.note_order(state, data)
        if state.is_joint:
            targets, data = state.targets.of_joint(data)
            state = state.revised(targets=targets)
        try:
            state = streams.take(state, data)
            if not streams.sums_suffice(state):
                state.check_finite()
            self._warn(state, 4)
        except BaseException:
            if before is not None and before.live is not None:
                before.live.undo()
            raise
        if state.live is not None:
            state.live.commit()
        path = streams.path_of(state, data)
        parameters = [(name, getattr(self, name)) for name in self.get_params(deep=False)]
        self._state, self._path = state, None if path is None else (path, parameters)

    def merge(self, other: Self) -> Self:
        """Combine with a model trained on other rows.

        The information from the rows of both models is added, in the units of the data, and the prior is counted once.
        Estimated prior variances and noise scales are found again from both. Both models remain unchanged.

        Parameters
        ----------
        other : estimator of the same class
            The other model, fitted with the same features, loss, covariance and given prior.

        Returns
        -------
        Self
            A new model that combines both.

        Raises
        ------
        ValueError
            If the models differ in class, features, loss, covariance or given prior, or if no proper posterior results.
        """
        if type(other) is not type(self):
            raise ValueError(f"only another {type(self).__name__} can be merged, got {type(other).__name__}")
        if self._state is None or other._state is None:
            raise NotFittedError("both models must be fitted before they are merged")
        streams.check_mergeable(self._fitted, other._fitted)
        result = type(self)(**self.get_params(deep=False))
        result._state = streams.merged(self._fitted, other._fitted)
        return result

    # Prediction.

    def _rows(self, X: Any, offset: Any = None, exclude: Sequence[str] = ()) -> tuple[Fitted, Any, Any]:
        """Return the state, rows checked and encoded for it, and their offsets, without the effects of some terms."""
        fitted = self._fitted
        design = fitted.design
        return fitted, design.matrix(self, X, exclude), design.offset(X, offset) if design.offsets else offset

    def blocks(self, table: Any) -> Iterator[Any]:
        """Blocks of a table, encoded for this model, in order.

        Parameters
        ----------
        table : Table
            A table with the columns that the model was fitted to.
        """
        design = self._present.design
        if isinstance(design, TermDesign):
            return table.cavity_frames(is_classifier(self))
        if design.preprocessing is not None:
            done = Preprocessing.of(design.preprocessing)
        elif design.feature_names is not None:  # fitted to a DataFrame, which has the same columns
            numbers = tuple(name for name in design.feature_names if name not in design.levels)
            done = Preprocessing(numbers, np.zeros(len(numbers)))
        else:
            raise ValueError(
                "this model was fitted to arrays without names of columns: pass arrays to it, or fit a model to a table"
            )
        return table.cavity_blocks(done, design.levels, is_classifier(self))

    # The exact posterior.

    def check(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        draws: int = 4000,
        random_state: int | None = 0,
    ) -> exact.PosteriorCheck:
        """Check whether the posterior is right, by weighted draws: seconds, not minutes.

        Draws from EP's posterior are weighted by the exact one, given the hyperparameters that were found.

        Parameters
        ----------
        X, y, sample_weight, offset
            The rows that the model was fitted to.
        draws : int, default=4000
            Number of draws.
        random_state : int or None, default=0
            Seed of the draws.

        Returns
        -------
        PosteriorCheck
            What was found; ``print`` tells it in words.
        """
        fitted, data = self._data(X, y, sample_weight, offset)
        rng = np.random.default_rng(random_state)
        return exact.check(fitted, data, whole_number("draws", draws, least=100), rng, self._coefficient_names())

    def sample(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        draws: int = 1000,
        max_seconds: float = 60.0,
        random_state: int | None = 0,
    ) -> exact.ExactDraws:
        """Draw from the exact posterior, given the hyperparameters that were found.

        Elliptical slice sampling, by many chains that start from EP's posterior. There is nothing to tune, and losses
        with kinks are sampled as smooth ones are.

        Parameters
        ----------
        X, y, sample_weight, offset
            The rows that the model was fitted to.
        draws : int, default=1000
            Number of effective draws of every coefficient.
        max_seconds : float, default=60.0
            When to stop, with a warning, although there are fewer.
        random_state : int or None, default=0
            Seed of the draws.

        Returns
        -------
        ExactDraws
            The draws, with their effective number and R-hat.
        """
        fitted, data = self._data(X, y, sample_weight, offset)
        number, seconds = whole_number("draws", draws, least=1), nonnegative_number("max_seconds", max_seconds)
        return exact.sample(
            fitted, data, number, seconds, np.random.default_rng(random_state), self._coefficient_names()
        )

    def _data(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> tuple[Fitted, Data]:
        """Check and encode rows for the state."""
        fitted = self._fitted
        design = fitted.design
        offset = design.offset(X, offset) if design.offsets else offset
        matrix, y = design.rows(self, X, y, fitted.targets.kind != "signs")
        return fitted, fitted.targets.read(matrix, y, sample_weight, offset)[1]

    def _coefficient_names(self) -> tuple[str, ...]:
        """Names of the coefficients, the intercept last, those of one predictor after the other."""
        fitted = self._fitted
        names = [*fitted.design.names, *(["intercept"] if fitted.design.intercept else [])]
        groups = fitted.targets.names(fitted.loss)
        return tuple(names if groups is None else [f"{group} {name}" for group in groups for name in names])

    # Reports.

    def summary(self, level: float = 0.95, levels: bool = False, top: int | None = None) -> Any:
        """Table of coefficients with means, standard deviations, intervals and the probability of being positive.

        For the logistic loss, counts and positive targets, the table also contains the exponentials of the mean and the
        interval: the factor by which the odds, or the mean, change when a feature increases by one. Effects of the
        levels of a text column are relative to their mean, which is part of the intercept. Prior variances that were
        found follow with standard errors and intervals, in squared units of the coefficients, or of those of
        standardised columns where these are. If there are several linear predictors, the first index names the class,
        or ``"mean"`` and ``"log scale"``.

        With a formula or terms, the table has blocks: ``"fixed"`` coefficients, ``"smooths"`` with their effective
        degrees of freedom, and ``"components"``, standard deviations and correlations of effects and the scale of the
        noise, with standard errors and intervals.

        Parameters
        ----------
        level : float, default=0.95
            Posterior probability of the intervals.
        levels : bool, default=False
            Whether a model with terms has a further block ``"levels"`` with the effects of all levels.
        top : int or None, default=None
            Show this many coefficients only, those that are largest relative to their standard deviation; of a model
            without terms.

        Returns
        -------
        pandas.DataFrame or str
            A DataFrame if pandas is installed, text otherwise.
        """
        fitted = self._fitted
        if isinstance(fitted.design, TermDesign):
            return term_reports.summary(fitted, level, levels)
        return reports.summary(fitted, level, None if top is None else whole_number("top", top, least=1))

    def effects(self, name: str, level: float = 0.95) -> Any:
        """Table of the effects of the levels of a group, or of the regions of a map, with intervals.

        Parameters
        ----------
        name : str
            The group, such as ``"subject"``, or the term, such as ``"(days | subject)"``.
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame or str
            One row per effect and level, in units of the linear predictor.

        Examples
        --------
        >>> import pandas as pd
        >>> from cavity import EPRegressor
        >>> frame = pd.DataFrame({"g": list("aabbcc") * 4, "y": [1.0, 2.0, 4.0, 5.0, 8.0, 9.0] * 4})
        >>> EPRegressor(formula="y ~ (1 | g)").fit(frame).effects("g")["mean"].round(1).tolist()
        [-3.3, -0.3, 3.7]
        """
        return term_reports.effects(self._fitted, name, level)

    def partial_effect(self, name: str, grid: Any = None, level: float = 0.95) -> Any:
        """Effect of one term along a grid, its mean over the data subtracted, with intervals of the mean.

        Parameters
        ----------
        name : str
            The term, such as ``"s(bmi)"``, or the column that it reads, such as ``"bmi"``.
        grid : array or DataFrame, optional
            Values of the column, or a table where the term reads several. By default, a curve is shown over the range
            of the data.
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame
            The grid, and means, standard deviations and intervals in units of the linear predictor.
        """
        return term_reports.partial_effect(self._fitted, name, grid, level)

    @property
    def components_(self) -> dict[str, Any]:
        """Standard deviations and correlations of the effects of all terms, and the scale of the noise, as found."""
        return term_reports.components(self._fitted)

    def plot_terms(self, level: float = 0.95, top: int = 40) -> Any:
        """Plot the curves of all terms with bands, and the effects of levels in their order. Needs matplotlib.

        Parameters
        ----------
        level : float, default=0.95
            Posterior probability of bands and intervals.
        top : int, default=40
            Maximum number of levels: the lowest and the highest.

        Returns
        -------
        ndarray of matplotlib Axes
            One per term, with ``shape (n_lines, 3)``.
        """
        return term_reports.plot_terms(self._fitted, level, top)

    def summary_columns(self, level: float = 0.95) -> tuple[list[Any], dict[str, FloatArray]]:
        """Labels and columns of `summary`, for those who do without pandas.

        Parameters
        ----------
        level : float, default=0.95
            Posterior probability of the intervals.
        top : int or None, default=None
            Show this many coefficients only, those that are largest relative to their standard deviation.

        Returns
        -------
        tuple of list and dict
            Labels of the rows, and columns of numbers by their names.
        """
        fitted = self._fitted
        own = term_reports if isinstance(fitted.design, TermDesign) else reports
        return own.summary_columns(fitted, level)

    def contrast(self, *weights: Any, level: float = 0.95) -> Any:
        """Table of linear combinations of coefficients, from their joint posterior.

        Parameters
        ----------
        *weights
            Each is a dict of coefficient names and factors, such as ``{"age": 1, "height": -1}`` for a difference, or
            an array of one factor per coefficient in the order of `summary`, with the intercept first. With several
            classes, use pairs of class and feature: ``{("dog", "age"): 1, ("cat", "age"): -1}``.
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame or str
            As in `summary`, with one combination per row, for every linear predictor if there are several.
        """
        return reports.contrast(self._fitted, weights, level)

    def to_arviz(
        self, X: Any = None, y: Any = None, n: int = 1000, random_state: Any = None, offset: Any = None
    ) -> Any:
        """Convert to ArviZ, for leave-one-out estimates, predictive checks and plots.

        Needs arviz (``pip install 'arviz<1'``).

        Parameters
        ----------
        X, y, offset : optional
            Rows, their labels or targets, and offsets. With ``X``, draws of new targets for these rows are added. With
            ``y`` as well, the log likelihood of every row for every draw, and the targets, are added.
        n : int, default=1000
            Number of draws.
        random_state : int, RandomState or None, default=None
            Seed of the draws.

        Returns
        -------
        arviz.InferenceData
            Group ``posterior`` and, if rows are given, ``posterior_predictive``, ``log_likelihood`` and
            ``observed_data``. Labels are indices of ``classes_``.
        """
        return reports.inference_data(self._fitted, X, y, n, random_state, partial(self._drawn, offset))

    def _drawn(self, offset: Any, X: Any, y: Any, n: int, seed: int, rng: Any) -> tuple[Any, Any, Any]:
        """Draw new targets for draws of the coefficients; log densities of those that were observed, and these."""
        raise NotImplementedError

    def plot_coefficients(self, ax: Any = None, top: int = 20, level: float = 0.95) -> Any:
        """Plot the coefficients that are largest relative to their standard deviation, with intervals.

        Where columns are in units of their own (`prior_units_`), coefficients are plotted per unit, so that they can be
        compared, and without the intercept.

        Needs matplotlib (the extra ``plot``).

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on. By default a new figure is created.
        top : int, default=20
            Maximum number of coefficients.
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        matplotlib Axes
            The axes of the plot.
        """
        return reports.plot_coefficients(self._fitted, ax, top, level)

    def plot_trace(self, ax: Any = None) -> Any:
        """Plot how much every loop of `fit` changed the posterior. Needs matplotlib.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on. By default a new figure is created.

        Returns
        -------
        matplotlib Axes
            The axes of the plot.
        """
        return reports.plot_trace(self._fitted, self.tol, ax)


def _existing(name: str, value: Any) -> Any:
    """Return an attribute that not all models have."""
    if value is None:
        raise AttributeError(f"this model has no {name}")
    return value


def _refuse_other(before: Mapping[str, str] | None, now: Mapping[str, str]) -> None:
    """Refuse parameters that changed in the middle of a stream; what began with a fit may change."""
    for name in (before or {}).keys() & now.keys():
        if before is not None and before[name] != now[name]:
            raise ValueError(
                f"{name} was {before[name]} in the first call of this stream and is {now[name]} now: what rows "
                "said cannot be undone. Set it back, or start with a new model"
            )
