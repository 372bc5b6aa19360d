"""How the classifier and the regressor learn: from all rows at once, or as rows come. Check, plan, run, keep."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from cavity._checks import as_float, shown
from cavity.ep.adaptation import Adaptive, revised_variance
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge, Knowledge
from cavity.ep.result import Ledger, Refusal, Result, Trace
from cavity.estimators._design import with_intercept
from cavity.estimators._parameters import LARGEST_ENTRY, LARGEST_WEIGHT, Parameters
from cavity.estimators._plan import Plan, plan_fit, plan_stream
from cavity.estimators._posteriors import Posteriors
from cavity.estimators._runs import add_rows, run_blocks, run_product
from cavity.estimators._streams import ProductStreams, one_row
from cavity.estimators._totals import Totals
from cavity.factors import canonical
from cavity.factors.arranged import Rows
from cavity.factors.rows import dense_rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

_KINDS = (np.float64, np.float32)
# A stream revises the prior variance when it has seen this share more rows than at the last revision.
_MORE_ROWS = 0.05
# Share of all rows seen from which on those of one call find the prior variance together with their sites.
_LARGE_SHARE = 0.2
# Steps of such a revision, at most, and the change of the variance's logarithm that ends it.
_REVISIONS, _SMALL_REVISION = 10, 0.02

_CONDITIONAL = (
    "deviations are conditional on the other coefficients, and too small where columns are correlated: the posterior "
    "is a {}; take fewer columns, covariance='full' if you can wait, or say covariance='diagonal' if you want just that"
)


class ConditionalDeviationsWarning(UserWarning):
    """The posterior is a product of Gaussians, whose deviations are conditional on the other coefficients."""


class LinearEP(Posteriors):
    """Base of the estimators, which document the parameters."""

    # Declared for the reader: subclasses set them in their constructors.
    loss: Any
    scheme: Any
    batch_size: int
    max_iter: int
    tol: float
    prior_variance: Any
    prior_mean: Any
    covariance: str
    fit_intercept: bool
    intercept_prior_variance: float
    beta: float
    random_state: Any
    verbose: Any

    # Prior variance of the predictor of an average row under which a prior variance is called typical.
    _typical_spread = 5.0

    def _check_X(self, X: Any, **options: Any) -> Any:  # noqa: N802
        if sparse.issparse(X) and X.format == "csr":
            X = canonical(X)  # before anything in compiled code walks along its indices
        checked = validate_data(self, X, accept_sparse="csr", dtype=_KINDS, order="C", **options)
        rows = checked[0] if isinstance(checked, tuple) else checked
        entries = rows.data if sparse.issparse(rows) else rows
        if entries.size and max(float(np.max(entries)), -float(np.min(entries))) > LARGEST_ENTRY:
            raise ValueError(f"X must hold numbers of at most {LARGEST_ENTRY:g} in size; scale its columns")
        if not sparse.issparse(rows):
            return checked
        rows = canonical(rows)
        return (rows, checked[1]) if isinstance(checked, tuple) else rows

    # Fitting.

    def _learn(
        self, X: Any, targets: FloatArray, weights: FloatArray | None, loss: Loss, totals: Totals, find_scale: bool
    ) -> None:
        """Fit one posterior for every row of ``targets`` to checked data, and keep them."""
        p = Parameters.of(self, X.shape[1])
        typical = totals.typical_variance(self._typical_spread)
        prior = p.prior(typical)
        adaptation = Adaptive(p.free, typical, find_scale, p.beta)
        rows = Rows.arrange(X, targets, weights, p.intercept)
        plan, analysis = plan_fit(rows, p.covariance)
        if plan.covariance == "diagonal":
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            design = with_intercept(X) if p.intercept else X
            outcomes = run_product(loss, design, targets, weights, prior, p, adaptation, seed)
        else:
            outcomes = run_blocks(loss, rows, prior, p, adaptation, analysis)
        self._keep(plan, p, outcomes, totals)

    def _keep(self, plan: Plan, parameters: Parameters, outcomes: Sequence[Result], totals: Totals) -> None:
        """Keep what a fit found."""
        self._forget_all()
        self._intercept = parameters.intercept
        self._knowledge: tuple[Knowledge, ...] = tuple(o.sites for o in outcomes)
        self._priors: tuple[FactorialGaussian, ...] = tuple(o.prior for o in outcomes)
        self._loss, self._totals, self.plan_ = outcomes[0].loss, totals, plan
        self._fitted_beta = parameters.beta
        self.n_iter_ = max(len(o.trace.changes) for o in outcomes)
        traces = tuple(o.trace for o in outcomes)
        self.trace_ = traces[0] if len(traces) == 1 else traces
        self.status_ = next((o.status for o in outcomes if not o.status.is_success), outcomes[0].status)
        self._posteriors = tuple(o.posterior for o in outcomes)
        self._check_finite()

    # Streams.

    def _begin_stream(self, X: Any, count: int, loss: Loss) -> None:
        """Know nothing beyond the prior, before any row."""
        p = Parameters.of(self, X.shape[1])
        columns = X.shape[1] + int(p.intercept)
        plan = plan_stream(columns, p.covariance)
        nothing = DenseKnowledge.nothing(columns) if plan.covariance == "full" else DiagonalKnowledge.nothing(columns)
        self._forget_all()
        self._intercept, self._fitted_beta, self.plan_ = p.intercept, p.beta, plan
        self._totals, self._loss = Totals(), loss
        self._knowledge, self._priors = (nothing,) * count, (p.prior(1.0),) * count
        self.n_iter_ = 1

    def _take(self, X: Any, targets: FloatArray, weights: FloatArray | None, forget: float, totals: Totals) -> None:
        """Take checked rows of positive weight into what is known. ``totals`` are those of the rows."""
        p = Parameters.of(self, X.shape[1])
        if p.intercept != self._intercept:
            raise ValueError("fit_intercept must not change in the middle of a stream; start with a new model")
        if self.plan_.covariance == "sparse":
            self._leave_sparse()
        if forget:
            self._forget(1.0 - forget)
        begins = not self._totals.rows
        self._totals = self._totals.plus(totals)
        if begins:
            self._priors = self._stream_priors(p, None)
        if "_rows_at_revision" not in self.__dict__:
            self._rows_at_revision = 0.0 if begins else self._totals.rows
        if self.plan_.covariance == "diagonal":
            self._take_product(X, targets, weights, p)
        elif X.shape[0] == 1 and weights is None:
            self._take_one(dense_rows(X, p.intercept)[0], targets[:, 0], p.beta)
        else:
            rows, free = Rows.arrange(X, targets, weights, p.intercept), None
            if totals.rows > _LARGE_SHARE * self._totals.rows:
                free, self._rows_at_revision = p.free, self._totals.rows  # found with the sites, as in fit
            typical = self._totals.typical_variance(self._typical_spread) * self._prior_units()[0] ** 2
            adaptation = Adaptive(free, typical, begins and self._finds_scale(), p.beta)
            self._keep_stream(add_rows(self._loss, rows, self._knowledge, self._priors, adaptation))  # type: ignore[arg-type]
        self._follow(p, X, targets, weights)
        self._check_finite()

    def _check_finite(self) -> None:
        """Refuse a posterior that numbers cannot hold; what was before is then kept."""
        for posterior in self.posterior_:
            mean, variance = posterior.mean, posterior.variance
            if not (np.all(np.isfinite(mean)) and np.all((variance > 0.0) & (variance < np.inf))):
                raise ValueError(
                    "the posterior is beyond what numbers can hold: bring columns and targets to ordinary sizes, or "
                    "narrow the prior"
                )
        if not np.isfinite(self.log_evidence_):
            raise ValueError(
                "the evidence is beyond what numbers can hold: bring columns and targets to ordinary sizes"
            )

    def _finds_scale(self) -> bool:
        """Whether the scale of the noise is to be found."""
        return False

    def _keep_stream(self, outcomes: Sequence[Result]) -> None:
        self.__dict__.pop("_posteriors", None)
        self._knowledge, self._priors = tuple(o.sites for o in outcomes), tuple(o.prior for o in outcomes)
        self._loss = outcomes[0].loss
        refused: Counter[Refusal] = Counter()
        for outcome in outcomes:
            for (_, why), count in outcome.trace.refusals.items():
                refused[why] += count
        self._note_refusals(refused, sum(o.trace.updates for o in outcomes))

    def _take_one(self, x: FloatArray, targets: FloatArray, beta: float) -> None:
        """Take one row into full covariances."""
        refused: Counter[Refusal] = Counter()
        known, posteriors = [], []
        for k, (before, posterior) in enumerate(zip(self._knowledge, self.posterior_, strict=True)):
            after, revised, why = one_row(self._loss, x, targets[k], beta, before, posterior)  # type: ignore[arg-type]
            known.append(after)
            posteriors.append(revised)
            if why is not None:
                refused[why] += 1
        self._knowledge, self._posteriors = tuple(known), tuple(posteriors)
        self._note_refusals(refused, len(known))

    def _take_product(self, X: Any, targets: FloatArray, weights: FloatArray | None, p: Parameters) -> None:
        """Take rows into products of Gaussians, a mini-batch at a time."""
        streams = self.__dict__.get("_streams")
        if streams is None or not streams.serves(self._priors):
            posteriors = [k.posterior(q) for k, q in zip(self._known(), self._priors, strict=True)]
            streams = ProductStreams(self._loss, p, posteriors, self._priors)
        self.__dict__.pop("_posteriors", None)
        self._streams = streams
        refused, updates = streams.take(with_intercept(X) if p.intercept else X, targets, weights, p.batch_size)
        self._note_refusals(refused, updates)

    def _leave_sparse(self) -> None:
        """Go on from a fit with a sparse precision in a form that takes rows one call after the other."""
        self.plan_ = plan_stream(self._priors[0].dim, "auto")
        known: list[Knowledge] = []
        for k, prior, posterior in zip(self._knowledge, self._priors, self.posterior_, strict=True):
            if self.plan_.covariance == "full":
                upper = k.information.toarray()  # type: ignore[attr-defined]
                known.append(DenseKnowledge(upper + np.triu(upper, 1).T, k.shift, k.log_scale))  # type: ignore[attr-defined]
            else:
                marginal = FactorialGaussian.from_moments(posterior.mean, posterior.variance, posterior.log_mass)
                known.append(DiagonalKnowledge(marginal / prior))
        self.__dict__.pop("_posteriors", None)
        self._knowledge = tuple(known)

    def _forget(self, keep: float) -> None:
        """Keep a share of what is known beyond the prior."""
        self._knowledge = tuple(k.times(keep) for k in self._known())
        self._totals = self._totals.times(keep)
        if "_rows_at_revision" in self.__dict__:
            self._rows_at_revision *= keep
        for name in ("_posteriors", "_streams"):
            self.__dict__.pop(name, None)

    def _stream_priors(self, p: Parameters, found: Sequence[float] | None) -> tuple[FactorialGaussian, ...]:
        """Priors of a stream: of the variances found, or of one that is typical of the rows seen."""
        unit, center = self._prior_units()
        typical = self._totals.typical_variance(self._typical_spread) * unit**2
        variances = [typical] * len(self._priors) if found is None else found
        return tuple(p.prior(v, unit, center) for v in variances)

    def _prior_units(self) -> tuple[float, float]:
        """Give the unit of the coefficients and the centre of the intercept's prior."""
        return 1.0, 0.0

    def _follow(self, p: Parameters, X: Any, targets: FloatArray, weights: FloatArray | None) -> None:
        """Let the prior follow what is known, whenever the rows seen have grown by a share."""
        if self._totals.rows < (1.0 + _MORE_ROWS) * self._rows_at_revision:
            return
        self._rows_at_revision = self._totals.rows
        if p.free is None:
            if self._prior_units() != (1.0, 0.0):
                self._set_priors(self._stream_priors(p, None))
            return
        typical = self._totals.typical_variance(self._typical_spread) * self._prior_units()[0] ** 2
        for _ in range(_REVISIONS):
            found, moved = [], 0.0
            for posterior, prior in zip(self.posterior_, self._priors, strict=True):
                before, deviations = float(prior.variance[p.free][0]), (posterior.mean - prior.mean)[p.free]
                new = revised_variance(before, deviations, posterior.variance[p.free], typical, cautious=False)
                moved = max(moved, abs(float(np.log(new / before))))
                found.append(new)
            self._set_priors(self._stream_priors(p, found))
            if moved < _SMALL_REVISION:
                break

    def _set_priors(self, priors: tuple[FactorialGaussian, ...]) -> None:
        """Exchange the priors and keep what the rows say."""
        self._knowledge, self._priors = self._known(), priors
        for name in ("_posteriors", "_streams"):
            self.__dict__.pop(name, None)

    def _note_refusals(self, refused: Counter[Refusal], updates: int) -> None:
        before: Counter[Refusal] = self.__dict__.get("_refused") or Counter()
        self._refused, self._updates = before + refused, self.__dict__.get("_updates", 0) + updates
        ledger = Ledger()
        for why, times in refused.items():
            ledger.refuse(-1, why, times)
        self.status_ = ledger.status(single_pass=True, converged=False)
        self.trace_ = Trace(self._updates, (), (), Counter({(-1, w): c for w, c in self._refused.items()}), Counter())

    def _atomically(self, change: Callable[[], None]) -> Self:
        """Make a change whole or not at all; warn of a new plan's defect, and where EP had trouble."""
        before, streams = dict(self.__dict__), self.__dict__.get("_streams")
        try:
            change()
            plan = self.plan_
            if plan.covariance == "diagonal" and plan.chosen and plan is not before.get("plan_"):
                warnings.warn(_CONDITIONAL.format(plan), ConditionalDeviationsWarning, stacklevel=3)
            if not self.status_.is_success:
                warnings.warn(f"EP ended with trouble: {self.status_.value}", ConvergenceWarning, stacklevel=3)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            if streams is not None:
                streams.undo()
            raise
        if "_streams" in self.__dict__:
            self._streams.commit()
        return self

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
            and float(np.max(np.abs(X))) <= LARGEST_ENTRY
        )


def checked_weights(weights: ArrayLike | None, X: Any) -> FloatArray | None:
    """Weights as an array, or None where there are none."""
    if weights is None:
        return None
    checked: FloatArray = _check_sample_weight(weights, X, dtype=np.float64, ensure_non_negative=True)
    if np.any(checked > LARGEST_WEIGHT):
        raise ValueError(f"sample_weight must be at most {LARGEST_WEIGHT:g}, got {np.max(checked):g}")
    return checked


def checked_share(forget: Any) -> float:
    """Check the share of what was learned that is given up."""
    share = as_float(forget)
    if not 0.0 <= share < 1.0:
        raise ValueError(
            f"forget must lie in [0, 1), the share of what was learned that is given up, got {shown(forget)}"
        )
    return share


__all__ = ["ConditionalDeviationsWarning", "LinearEP", "checked_share", "checked_weights"]
