"""How the classifier and the regressor learn: from all rows at once, or as rows come. Check, plan, run, keep."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cavity.ep.adaptation import Adaptive, Group, revised_variances, variances_of, with_variances
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge, Gaussian, Knowledge
from cavity.ep.result import Ledger, Refusal, Result, Trace
from cavity.estimators._design import Data, with_intercept
from cavity.estimators._merging import Mergeable
from cavity.estimators._parameters import LARGEST_NUMBER, Parameters
from cavity.estimators._plan import Plan, plan_fit, plan_stream
from cavity.estimators._posteriors import OF_STREAMS, TRANSIENT
from cavity.estimators._runs import Taken, run_blocks, run_products, take_rows
from cavity.estimators._streams import ProductStreams, take_row
from cavity.estimators._threads import threads_for
from cavity.estimators._totals import Totals
from cavity.factors import canonical
from cavity.factors.arranged import Rows
from cavity.factors.rows import dense_rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# Types of the entries of X that are kept as they are.
_KINDS = (np.float64, np.float32)


class ConditionalDeviationsWarning(UserWarning):
    """The posterior is a product of Gaussians, whose deviations are conditional on the other coefficients."""


class LinearEP(Mergeable):
    """Base of the estimators, which document the parameters and say how labels or targets are read."""

    # Declared for the reader: subclasses set them in their constructors.
    random_state: Any

    # Prior variance of the predictor of an average row under which a prior variance is called typical.
    _typical_spread = 5.0
    # Whether the scale of the noise is to be found.
    _finds_scale: Any = False

    def _make_loss(self) -> Loss:
        """Check the parameters that the other estimator does not have, and give the loss."""
        raise NotImplementedError

    def _read(self, X: Any, y: Any, sample_weight: Any, reset: bool = True) -> tuple[Data, Totals]:
        """Check rows, labels or targets, and weights."""
        raise NotImplementedError

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the posterior to data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows; CSR is used as it is.
        y : array-like of shape (n_samples,)
            Labels of a classifier, targets of a regressor.
        sample_weight : array-like of shape (n_samples,), optional
            A row of weight w counts as w equal rows; weight 0 as absent.

        Returns
        -------
        Self
            The fitted estimator.
        """
        with self._whole_or_not_at_all():
            self._check_parameters()
            data, totals = self._read(X, y, sample_weight)
            p, loss = Parameters.of(self, data.X.shape[1]), self._make_loss()
            rows = Rows.arrange(*data, p.intercept)
            plan, analysis = plan_fit(rows, p.covariance)
            typical = totals.typical_variance(self._typical_spread)
            adaptation = Adaptive(p.groups(typical), self._finds_scale)
            with threads_for(rows.shape):
                if plan.covariance == "diagonal":
                    seed = int(check_random_state(self.random_state).randint(2**31 - 1))
                    outcomes = run_products(loss, data, p.prior(typical), p, adaptation, seed)
                else:
                    outcomes = run_blocks(loss, rows, p.prior(typical), p, adaptation, analysis)
                self._keep(plan, p.intercept, outcomes, data, totals)
        return self

    def _check_parameters(self) -> None:
        """Check all parameters before the data are looked at."""
        Parameters.of(self)
        self._make_loss()

    def _keep(self, plan: Plan, intercept: bool, outcomes: Sequence[Result], data: Data, totals: Totals) -> None:
        """Keep what a fit found in data of which these are the sums."""
        for name in OF_STREAMS:
            self.__dict__.pop(name, None)
        traces = tuple(o.trace for o in outcomes)
        self._revise(
            _knowledge=tuple(o.sites for o in outcomes),
            _priors=tuple(o.prior for o in outcomes),
            _posteriors=tuple(o.posterior for o in outcomes),
            _loss=outcomes[0].loss,
            _intercept=intercept,
            _totals=totals,
            plan_=plan,
            n_iter_=max(len(trace.changes) for trace in traces),
            trace_=traces[0] if len(traces) == 1 else traces,
            status_=next((o.status for o in outcomes if not o.status.is_success), outcomes[0].status),
        )
        self._check_finite()

    def _revise(self, **parts: Any) -> None:
        """Set parts of the model, and drop what was derived from the ones before."""
        for name in TRANSIENT:
            self.__dict__.pop(name, None)
        self.__dict__.update(parts)

    def _check_finite(self) -> None:
        """Refuse a posterior that numbers cannot hold; what was before is then kept."""
        what = "evidence"
        for posterior in self.posterior_:
            mean, variance = posterior.mean, posterior.variance
            if not (np.all(np.isfinite(mean)) and np.all((variance > 0.0) & (variance < np.inf))):
                what = "posterior"
        if what == "posterior" or not np.isfinite(self.log_evidence_):
            raise ValueError(
                f"the {what} is beyond what numbers can hold: bring columns and targets to ordinary sizes, or narrow "
                "the prior"
            )

    # Streams.

    def _take(self, data: Data, totals: Totals, forget: float) -> None:
        """Take checked rows of positive weight into what is known; ``totals`` are theirs."""
        X, targets, weights = data
        p, first = Parameters.of(self, X.shape[1]), not self.__sklearn_is_fitted__()
        self._prepare_stream(p, len(targets), totals, forget)
        factorised, columns = self.plan_.covariance == "diagonal", X.shape[1] + int(p.intercept)
        with nullcontext() if factorised else threads_for((X.shape[0], columns)):
            if factorised:
                streams = self.__dict__.get("_streams") or ProductStreams(self._loss, self.posterior_, self._priors)
                self._revise(_streams=streams)
                self._note_refusals(*streams.take(with_intercept(X) if p.intercept else X, data))
            elif X.shape[0] == 1 and weights is None:
                x = dense_rows(X, p.intercept)[0]
                self._keep_taken(take_row(self._loss, x, targets[:, 0], self._knowledge, self._priors, self.posterior_))
            else:
                rows = Rows.arrange(X, targets, weights, p.intercept)
                groups: tuple[Group, ...] = ()
                if totals.rows > 0.2 * self._totals.rows:  # a large share: found with the sites, as in fit
                    groups, self._rows_at_revision = p.groups(self._typical_variance()), self._totals.rows
                adaptation = Adaptive(groups, first and self._finds_scale)
                self._keep_taken(take_rows(self._loss, rows, self._knowledge, self._priors, adaptation))
            self._follow(p, data)
            self._check_finite()

    def _prepare_stream(self, p: Parameters, count: int, totals: Totals, forget: float) -> None:
        """Plan a call of a stream; begin with the prior, or forget a share of what is known."""
        first, features = not self.__sklearn_is_fitted__(), p.prior_mean.size
        plan = plan_stream(features + int(p.intercept), p.covariance, None if first else self.plan_)
        if first:
            kind = DenseKnowledge if plan.covariance == "full" else DiagonalKnowledge
            nothing = kind.nothing(features + int(p.intercept))
            self._revise(_knowledge=(nothing,) * count, _totals=totals, _loss=self._make_loss())
            self._revise(_intercept=p.intercept, plan_=plan, n_iter_=1, _rows_at_revision=0.0)
            self._priors = self._stream_priors(p, [[]] * count)
            return
        if p.intercept != self._intercept:
            raise ValueError("fit_intercept must not change in the middle of a stream; start with a new model")
        if plan is not self.plan_:
            parts = zip(self._knowledge, self._priors, self.posterior_, strict=True)
            self._revise(_knowledge=tuple(_without_sparse(plan, *part) for part in parts), plan_=plan)
        if forget:
            self._forget(1.0 - forget)
        self._totals = self._totals.plus(totals)
        self.__dict__.setdefault("_rows_at_revision", self._totals.rows)

    def _keep_taken(self, taken: Taken) -> None:
        self._revise(_knowledge=taken.knowledge, _priors=taken.priors, _loss=taken.loss)
        if taken.posteriors is not None:
            self._posteriors = taken.posteriors
        self._note_refusals(taken.refused, taken.updates)

    def _forget(self, keep: float) -> None:
        """Keep a share of what is known beyond the prior."""
        self._revise(_knowledge=tuple(k.times(keep) for k in self._known()), _totals=self._totals.times(keep))
        if "_rows_at_revision" in self.__dict__:
            self._rows_at_revision *= keep

    def _prior_units(self) -> tuple[float, float]:
        """Give the unit of the coefficients and the centre of the intercept's prior."""
        return 1.0, 0.0

    def _typical_variance(self) -> float:
        """Variance that is typical of the rows seen."""
        return self._totals.typical_variance(self._typical_spread) * self._prior_units()[0] ** 2

    def _stream_priors(self, p: Parameters, variances: Sequence[Any]) -> tuple[FactorialGaussian, ...]:
        """Priors of these variances per group, where they are not given; of typical ones where nothing is known."""
        typical = self._typical_variance()
        prior, groups = p.prior(typical, *self._prior_units()), p.groups(typical)
        return tuple(with_variances(prior, groups[: len(v)], v) for v in variances)

    def _follow(self, p: Parameters, data: Data) -> None:
        """Let the prior follow what is known, whenever the rows seen have grown by a twentieth.

        At most ten steps, until one changes no variance by more than 2 percent.
        """
        if self._totals.rows < 1.05 * self._rows_at_revision:
            return
        self._rows_at_revision = self._totals.rows
        groups = p.groups(self._typical_variance())
        if self._prior_units() != (1.0, 0.0):
            found = [variances_of(prior, groups) for prior in self._priors]
            self._revise(_knowledge=self._known(), _priors=self._stream_priors(p, found))
        for _ in range(10 if groups else 0):
            before = [variances_of(prior, groups) for prior in self._priors]
            pairs = zip(self._priors, self.posterior_, strict=True)
            found = [revised_variances(prior, q.mean, q.variance, groups, cautious=False) for prior, q in pairs]
            self._revise(_knowledge=self._known(), _priors=self._stream_priors(p, found))
            if np.max(np.abs(np.log(np.divide(found, before)))) < 0.02:
                break

    def _note_refusals(self, refused: Counter[Refusal], updates: int) -> None:
        self._refused: Counter[Refusal] = self.__dict__.get("_refused", Counter()) + refused
        self._updates: int = self.__dict__.get("_updates", 0) + updates
        ledger = Ledger()
        for why, times in refused.items():
            ledger.refuse(-1, why, times)
        self.status_ = ledger.status(single_pass=True, converged=False)
        self.trace_ = Trace(self._updates, (), (), Counter({(-1, w): c for w, c in self._refused.items()}), Counter())

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """Undo a change that raises; warn of a new plan's defect, and where EP had trouble."""
        before, streams = dict(self.__dict__), self.__dict__.get("_streams")
        try:
            yield
            plan = self.plan_
            if plan.covariance == "diagonal" and plan.chosen and plan is not before.get("plan_"):
                text = (
                    "deviations are conditional on the other coefficients, and too small where columns are correlated: "
                    f"the posterior is a {plan}; take fewer columns, covariance='full' if you can wait, or say "
                    "covariance='diagonal' if you want just that"
                )
                warnings.warn(text, ConditionalDeviationsWarning, stacklevel=4)
            if not self.status_.is_success:
                warnings.warn(f"EP ended with trouble: {self.status_.value}", ConvergenceWarning, stacklevel=4)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            if streams is not None:
                streams.undo()
            raise
        if "_streams" in self.__dict__:
            self._streams.commit()

    # Rows.

    def _check_X(self, X: Any, **options: Any) -> Any:  # noqa: N802
        if sparse.issparse(X) and X.format == "csr":
            X = canonical(X)  # before anything in compiled code walks along its indices
        checked = validate_data(self, X, accept_sparse="csr", dtype=_KINDS, order="C", **options)
        rows, *y = checked if isinstance(checked, tuple) else (checked,)
        entries = rows.data if sparse.issparse(rows) else rows
        if entries.size and max(float(np.max(entries)), -float(np.min(entries))) > LARGEST_NUMBER:
            raise ValueError(f"X must hold numbers of at most {LARGEST_NUMBER:g} in size; scale its columns")
        rows = canonical(rows) if sparse.issparse(rows) else rows
        return (rows, *y) if y else rows

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
            and float(np.max(np.abs(X))) <= LARGEST_NUMBER
        )


def _without_sparse(plan: Plan, known: Any, prior: FactorialGaussian, posterior: Gaussian) -> Knowledge:
    """Turn what a fit with a sparse precision knows into a form that takes rows one call after the other."""
    if plan.covariance == "full":
        upper = known.information.toarray()
        return DenseKnowledge(upper + np.triu(upper, 1).T, known.shift, known.log_scale)
    marginal = FactorialGaussian.from_moments(posterior.mean, posterior.variance, posterior.log_mass)
    return DiagonalKnowledge(marginal / prior)


__all__ = ["ConditionalDeviationsWarning", "LinearEP"]
