"""Adding to what is known: rows that come in one call after the other, and another model."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError

from cavity.ep.hyperparameters import Group, Hyperparameters, maximise_evidence, variances_of, with_variances
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge, Gaussian, Knowledge
from cavity.ep.result import Ledger, Refusal, Trace
from cavity.estimators._base import LinearEP
from cavity.estimators._design import Data, FirstRows, Totals, forgetting, with_intercept
from cavity.estimators._parameters import Parameters
from cavity.estimators._plan import Plan, of_each, plan_stream
from cavity.estimators._posteriors import working
from cavity.estimators._runs import Taken, take_rows
from cavity.estimators._streams import GROWTH, ProductStreams, RowPath, opens, take_into
from cavity.estimators._threads import threads_for
from cavity.factors.arranged import Rows
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import dense_rows
from cavity.gaussians.factorial import FactorialGaussian, ImproperError

# Rows per coefficient up to which the first rows of a stream are kept: fewer are often separable, or leave no noise,
# and suggest variances that are far off; sites that were fitted under these would stay.
ROWS_PER_COEFFICIENT = 10


class StreamingEP(LinearEP):
    """Adds what the rows of a call, or another model, say to what is known, and lets prior and noise follow."""

    # The first rows of a stream, while they are kept.
    _first_rows: FirstRows | None = None

    def _take(self, X: Any, y: Any, sample_weight: Any, forget: float, offset: Any, halflife: float | None) -> None:
        """Check the rows of a call, and take them into what is known."""
        first = not self.__sklearn_is_fitted__()
        if first:
            self._check_parameters()
        share, weights = forgetting(forget, halflife, sample_weight, X)
        data, totals = self._read(X, y, weights, offset, reset=first, stream=True)
        p = Parameters.of(self, data.X.shape[1])
        self._prepare_stream(p, data, totals, share)
        if self._is_joint:
            data = data._replace(targets=self._joint_targets(data, first))
        again = self._first_rows_again(data)
        if again is not None:
            self._measure(lambda: ColumnSums.of(again.X, again.weights))
        data = again or data
        data = data._replace(X=self._columns.standardised(data.X))
        X, targets, weights, offset = data
        factorised, columns = self.plan_.covariance == "diagonal", X.shape[1] + int(p.intercept)
        with nullcontext() if factorised else threads_for((X.shape[0], columns)):
            if factorised:
                if offset is not None:
                    raise ValueError("a diagonal covariance takes no offset: use fewer columns, or covariance='full'")
                streams = self.__dict__.get("_streams") or ProductStreams(
                    self._loss, self._whole_posteriors(), self._priors
                )
                noise = self._noise_under(self._whole_posteriors()[0], data)
                self._revise(_streams=streams)
                self._note_refusals(*streams.take(with_intercept(X) if p.intercept else X, data))
                self._note_noise(noise)
            elif again is None and X.shape[0] == 1 and weights is None and not self._is_joint and offset is None:
                x = dense_rows(X, p.intercept)[0]
                parts: Any = zip(targets[:, 0], self._knowledge, self._whole_posteriors(), strict=True)
                self._note_noise(self._noise_under(self._whole_posteriors()[0], data))
                known, posteriors, refusals = zip(*(take_into(self._loss, x, *part) for part in parts), strict=True)
                refused = Counter(why for why in refusals if why is not None)
                self._keep_taken(Taken(known, self._priors, self._loss, refused, len(known), posteriors))
            else:
                rows, free, groups = (
                    Rows.arrange(X, targets, weights, p.intercept, offset),
                    Hyperparameters(),
                    self._free,
                )
                if again:
                    self._begin(p, len(targets))
                else:
                    self._note_noise(self._noise_under(self._whole_posteriors()[0], data))
                large = not self._sums_say_all and totals.rows > 0.2 * self._totals.rows
                if again or large:  # hyperparameters are found with the sites, as in fit
                    groups, self._rows_at_revision = self._stream_prior(p)[1], self._totals.rows
                    free = Hyperparameters(groups, again is not None and self._finds_scale, self._least_scale())
                taken = take_rows(self._loss, rows, self._knowledge, self._priors, free)
                self._keep_taken(taken)
                self._free = groups
                if again:
                    self._set_noise(taken.noise)
            self._follow(p, data, again is not None)
            self._check_finite()
        if X.shape[0] == 1 and weights is None and self._first_rows is None and opens(self):
            self._path = RowPath(self)

    def _first_rows_again(self, data: Data) -> Data | None:
        """Keep the first rows of a stream; give all of them, to be fitted together, whenever they have doubled.

        Few rows say little of the prior variance, and often are separable; what is found from them then is far from
        what more rows would say, and sites that were fitted under it stay. Ten rows per coefficient suffice.
        """
        if self._first_rows is None:
            return None
        rows = self._first_rows.plus(data)
        enough = rows.size >= ROWS_PER_COEFFICIENT * self._priors[0].dim
        again = enough or rows.size >= 2 * rows.fitted
        kept = FirstRows((rows.joined(),), rows.size) if again else rows
        self._first_rows = None if enough else kept
        return kept.parts[0] if again else None

    def _begin(self, p: Parameters, count: int) -> None:
        """Begin with the prior of so many linear predictors, as if no row had been seen."""
        prior = self._stream_prior(p)[0]
        self._revise(_knowledge=(DenseKnowledge.nothing(prior.dim),) * count, _priors=(prior,) * count)

    def _took_row(self, X: Any, y: Any, *choices: Any) -> bool:
        """Whether a single row was taken in by the short path, which knows no choices."""
        path = self.__dict__.get("_path")
        return path is not None and all(choice is None for choice in choices) and path.take(self, X, y)

    def _prepare_stream(self, p: Parameters, data: Data, totals: Totals, forget: float) -> None:
        """Plan a call of a stream; begin with the prior, or forget a share of what is known."""
        first, columns = not self.__sklearn_is_fitted__(), p.prior_mean.size + int(p.intercept)
        if first:
            self._measure(lambda: ColumnSums.of(data.X, data.weights))
            joint = self._joint(data.X.shape[0], columns, p.covariance, stream=True)
            loss, plan = joint or (self._make_loss(), plan_stream(columns, p.covariance))
            kind = DenseKnowledge if plan.covariance == "full" else DiagonalKnowledge
            count = 1 if joint else len(data.targets)
            nothing = kind.nothing(columns * getattr(loss, "predictors", 1))
            self._revise(_knowledge=(nothing,) * count, _totals=totals, _loss=loss)
            self._revise(_intercept=p.intercept, plan_=of_each(plan, count), n_iter_=1, _rows_at_revision=0.0)
            prior, self._free = self._stream_prior(p)
            self._priors = (prior,) * count
            self._first_rows = FirstRows() if plan.covariance == "full" and not self._sums_say_all else None
            return
        plan = plan_stream(columns, p.covariance, self.plan_)
        if p.intercept != self._intercept:
            raise ValueError("fit_intercept must not change in the middle of a stream; start with a new model")
        if plan is not self.plan_:
            parts = zip(self._knowledge, self._priors, self._whole_posteriors(), strict=True)
            self._revise(_knowledge=tuple(_without_sparse(plan, *part) for part in parts), plan_=plan)
        if forget:
            self._forget(1.0 - forget)
        self._totals = self._totals.plus(totals)
        if self._sums is not None and plan.covariance == "full":
            self._sums = self._sums.plus(ColumnSums.of(data.X, data.weights))
        self.__dict__.setdefault("_rows_at_revision", self._totals.rows)

    def _keep_taken(self, taken: Taken) -> None:
        self._revise(_knowledge=taken.knowledge, _priors=taken.priors, _loss=taken.loss)
        if taken.posteriors is not None:
            self._posteriors = taken.posteriors
        self._note_refusals(taken.refused, taken.updates)

    @property
    def _sums_say_all(self) -> bool:
        """Whether what is known and sums over rows determine all hyperparameters, whatever rows came first."""
        return False

    def _note_noise(self, noise: Any) -> None:
        """Add what rows say of the noise scale; a classifier has none."""

    def _set_noise(self, noise: Any) -> None:
        """Replace what rows say of the noise scale by what all of them say together."""

    def _noise_under(self, posterior: Gaussian, data: Data) -> Any:
        """Ask standardised rows about the noise scale, under the posterior before them."""
        return None

    def _forget(self, keep: float) -> None:
        """Keep a share of what is known beyond the prior."""
        self._revise(_knowledge=tuple(k.times(keep) for k in self._known()), _totals=self._totals.times(keep))
        if self._sums is not None:
            self._sums = self._sums.times(keep)
        if "_rows_at_revision" in self.__dict__:
            self._rows_at_revision *= keep
        if self._first_rows is not None:
            self._first_rows = self._first_rows.times(keep)

    def _prior_units(self) -> tuple[float, float]:
        """Give the unit of the coefficients and the centre of the intercept's prior."""
        return 1.0, 0.0

    def _stream_prior(self, p: Parameters) -> tuple[FactorialGaussian, tuple[Group, ...]]:
        """Prior with variances to start from where none are given, and which of them are to be found."""
        return self._prior_and_groups(p, getattr(self._loss, "predictors", 1), self._prior_units())

    def _follow(self, p: Parameters, data: Data, all_rows: bool) -> None:
        """Let units and prior follow what is known, whenever the rows seen have grown by a twentieth.

        ``data`` are the rows that were taken in, and ``all_rows`` says whether these are all that were seen: their
        prior was found with their sites.
        """
        if self._totals.rows < GROWTH * self._rows_at_revision:
            return
        self._rows_at_revision = self._totals.rows
        if not all_rows and self.plan_.covariance == "full":
            self._change_columns(p.columns(self._sums))
        prior, groups = self._stream_prior(p)
        found = []
        for known, before in zip(self._known(), self._priors, strict=True):
            start = prior if self._sums_say_all else with_variances(prior, groups, variances_of(before, groups))
            posterior = working(known, start)
            if groups:
                self._find_variances(posterior, groups)
            found.append(posterior.prior)
        self._revise(_knowledge=self._known(), _priors=tuple(found), _free=groups)

    def _find_variances(self, posterior: Any, groups: tuple[Group, ...]) -> None:
        """Move the prior variances to where the evidence has its maximum, with the sites as they are."""
        maximise_evidence(posterior, groups)

    def _change_columns(self, columns: Columns) -> None:
        """Keep what is known for columns with other centres and units; priors keep their variances."""
        before, self._columns = self._columns, columns
        self._revise(_knowledge=tuple(of_columns(k, before, columns, self._intercept) for k in self._known()))

    def _note_refusals(self, refused: Counter[Refusal], updates: int) -> None:
        """Add to the trace of the stream, which has no loops, or begin one."""
        ledger = Ledger()
        for why, times in refused.items():
            ledger.refuse(-1, why, times)
        self.status_ = ledger.status(single_pass=True, converged=False)
        before = self.__dict__.get("trace_")
        if not isinstance(before, Trace) or before.changes:  # nothing yet, or the trace of a fit
            before = Trace(0, (), (), Counter(), Counter())
        counts = before.refusals + Counter({(-1, why): times for why, times in refused.items()})
        self.trace_ = Trace(before.updates + updates, (), (), counts, Counter())

    # Merging.

    def merge(self, other: Self) -> Self:
        """Combine with a model trained on other rows.

        The information from the rows of both models is added, and the prior is counted once. An estimated prior
        variance is the average of both, weighted by rows. Both models remain unchanged.

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
        self._check_mergeable(other)
        result = copy.copy(self)
        for name in ("_rows_at_revision", "_first_rows"):
            result.__dict__.pop(name, None)
        p, result._sums = Parameters.of(self, self._width), sums_of_both(self._sums, other._sums)
        result._columns = p.columns(result._sums)
        result._absorb(self, other)
        result._free = result._stream_prior(p)[1]
        try:
            result._whole_posteriors()
        except ImproperError as error:
            raise ValueError("the product of the two models is not proper: one of them knows too little") from error
        return result

    def _absorb(self, one: Self, other: Self) -> None:
        """Become what two models know together."""
        both = zip(one._in_columns_of(self), other._in_columns_of(self), strict=True)
        self._knowledge = tuple(a.plus(b) for a, b in both)
        self._totals = one._totals.plus(other._totals)
        share = one._totals.rows / max(self._totals.rows, np.finfo(np.float64).tiny)
        self._priors = tuple(pooled_prior(a, b, share) for a, b in zip(one._priors, other._priors, strict=True))

    def _in_columns_of(self, other: Self) -> list[Any]:
        """Give what is known for columns with the centres and units that another model has."""
        return [of_columns(known, self._columns, other._columns, self._intercept) for known in self._known()]

    def _check_mergeable(self, other: Self) -> None:
        if type(other) is not type(self):
            raise ValueError(f"only another {type(self).__name__} can be merged, got {type(other).__name__}")
        if not (self.__sklearn_is_fitted__() and other.__sklearn_is_fitted__()):
            raise NotFittedError("both models must be fitted before they are merged")
        if other.n_features_in_ != self.n_features_in_ or other._intercept != self._intercept:
            raise ValueError(
                f"the models must have the same columns, got {self.n_features_in_} and {other.n_features_in_} features "
                f"with fit_intercept {self._intercept} and {other._intercept}"
            )
        if not self._same_loss(other):
            raise ValueError(f"the models have different losses, {self._loss} and {other._loss}")
        if type(self._known()[0]) is not type(other._known()[0]):
            raise ValueError(
                f"the models keep different posteriors, {self.plan_.covariance} and {other.plan_.covariance}: give "
                "both the same covariance"
            )
        if vars(self).get("categories_") != vars(other).get("categories_"):
            raise ValueError(
                "the models know different levels: give columns of categories a type that names all levels"
            )
        if not Parameters.of(self, self._width).same_prior(Parameters.of(other, other._width)):
            raise ValueError(
                "the models have different priors: give both the same prior_variance, prior_mean and "
                "intercept_prior_variance"
            )

    def _same_loss(self, other: Self) -> bool:
        return type(other._loss) is type(self._loss) and other._loss == self._loss


def _without_sparse(plan: Plan, known: Any, prior: FactorialGaussian, posterior: Gaussian) -> Knowledge:
    """Turn what a fit with a sparse precision knows into a form that takes rows one call after the other."""
    if plan.covariance == "full":
        upper = known.information.toarray()
        return DenseKnowledge(upper + np.triu(upper, 1).T, known.shift, known.log_scale)
    marginal = FactorialGaussian.from_moments(posterior.mean, posterior.variance, posterior.log_mass)
    return DiagonalKnowledge(marginal / prior)


def of_columns(known: Any, before: Columns, after: Columns, intercept: bool) -> Any:
    """Say the same of coefficients for columns with other centres and units."""
    if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        return known
    change = after.matrix(before, intercept).T
    if isinstance(known, DiagonalKnowledge):
        return known.changed(np.diagonal(change), change[:-1, -1] if intercept else np.zeros(0))
    count = known.shift.size // len(change)
    return known.of_columns(change if count == 1 else np.kron(np.eye(count), change))


def sums_of_both(a: ColumnSums | None, b: ColumnSums | None) -> ColumnSums | None:
    return None if a is None or b is None else a.plus(b)


def pooled_prior(a: FactorialGaussian, b: FactorialGaussian, share: float) -> FactorialGaussian:
    """Prior between two, by the share of the first: means, and variances on a logarithmic scale."""
    if a == b:
        return a
    mean = share * a.mean + (1.0 - share) * b.mean
    return FactorialGaussian.from_moments(mean, a.variance**share * b.variance ** (1.0 - share))
