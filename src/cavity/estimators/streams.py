"""Streams: rows that come in one call after the other, and merging of models."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.ep.driver import Diagnostics
from cavity.ep.hyperparameters import (
    Group,
    Hyperparameters,
    NormalRows,
    hyperparameters_of,
    maximise_evidence,
    maximise_normal_evidence,
    with_hyperparameters,
)
from cavity.ep.online import Update, retire, update, update_row
from cavity.ep.posteriors import DenseNatural, DiagonalNatural, Gaussian, NaturalParameters
from cavity.ep.result import Refusal, Status, Trace
from cavity.ep.wide import RowsNatural
from cavity.estimators.fitted import Fitted, StreamState
from cavity.estimators.parameters import (
    LARGEST_NUMBER,
    LARGEST_TARGET,
    Parameters,
    Plan,
    of_each,
    plan_stream,
    threads_for,
)
from cavity.estimators.rows import Data, KeptRows, Totals, with_intercept
from cavity.estimators.runs import BATCH_SIZE
from cavity.estimators.term_design import TermDesign
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows, dense_rows
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.losses import Loss, Squared
from cavity.losses.noise import log_normalizer, with_scale
from cavity.schemes import ExactProjection
from cavity.terms.prior import Prior, StructuredPrior

# Growth of the number of rows seen after which prior and noise follow them.
GROWTH = 1.02


class ProductStreams:
    """Products of Gaussians that take in rows by compiled code, one for every linear predictor.

    A call changes all of them or none: `take` puts back what it changed if anything is raised, and `undo` does so
    later, until `commit`.
    """

    def __init__(self, loss: Loss, posteriors: Sequence[Any], priors: Sequence[Any]) -> None:
        # Numba is imported when a product of Gaussians is streamed.
        modules = ("fit", "compiled", "product_streams")
        fitting, linear, stream = (import_module(f"cavity.ep.{name}") for name in modules)
        options = fitting.make_options(1, max_iter=1, sites="none")
        reason = linear.why_not(loss, ExactProjection(), options)
        if reason:
            raise ValueError(
                f"partial_fit with a diagonal covariance needs a compiled form of the loss: {reason}; fit does not"
            )
        self._priors, self._codes = tuple(priors), linear.REFUSALS
        self._saved: list[tuple[Any, Any]] = []
        pairs = zip(posteriors, priors, strict=True)
        self._streams = [stream.Stream(loss, ExactProjection(), q, prior.precision) for q, prior in pairs]

    def natural(self) -> tuple[DiagonalNatural, ...]:
        """Natural parameters of the sites, apart from the priors."""
        return tuple(DiagonalNatural(s.posterior / q) for s, q in zip(self._streams, self._priors, strict=True))

    def take(self, X: Any, data: Data) -> tuple[Counter[Refusal], int]:
        """Take in rows ``X``; say what was refused, and how many mini-batches there were."""
        refused: Counter[Refusal] = Counter()
        updates = 0
        self._saved = []
        try:
            for stream, t in zip(self._streams, data.targets, strict=True):
                outcomes = stream.take(X, t, data.weights, BATCH_SIZE)
                self._saved.append((stream, stream.before))
                updates += outcomes.size
                if outcomes.any():
                    refused.update(self._codes[int(o)] for o in outcomes if o in self._codes)
        except BaseException:
            self.undo()
            raise
        return refused, updates

    def take_row(self, X: Any, target: FloatArray) -> bool:
        """Take one row into the only stream; False, and nothing changed, where it is refused."""
        stream = self._streams[0]
        if stream.take(X, target, None, BATCH_SIZE)[0] == 0 and math.isfinite(stream.total()):
            return True
        stream.restore(stream.before)
        return False

    def undo(self) -> None:
        """Put back what the last call changed."""
        for stream, saved in self._saved:
            stream.restore(saved)
        self.commit()

    def commit(self) -> None:
        """Keep what the last call changed."""
        self._saved = []


class RowPath:
    """Takes single rows of a stream with fewer checks, to the same numbers: 100 µs per row is the aim.

    A call that took one row opens a path. It serves while nothing but rows changes: rows and targets of the same form,
    and a prior that need not be found again yet. Otherwise it declines, and the row is taken as any other.
    """

    def __init__(self, fitted: Fitted) -> None:
        design = fitted.design
        self._shape = (1, design.features)
        self._row = np.ones((1, design.width + design.intercept))
        self._factorised, self._sums = fitted.plan.covariance == "diagonal", sums_suffice(fitted)
        classes = getattr(fitted.targets, "classes", None)
        self._signs = None if classes is None else dict(zip(classes.tolist(), (-1.0, 1.0), strict=True))

    def take(self, fitted: Fitted, X: Any, y: Any) -> Fitted | None:
        """Take in a row; None where the path declines."""
        if not (
            type(X) is np.ndarray
            and X.shape == self._shape
            and X.dtype == np.float64
            and fitted.status.is_success
            and self._may_go_on(fitted)
            and (not self._factorised or fitted.live is not None)
        ):
            return None
        target = self._target(fitted, y)
        size = float(X[0] @ X[0])
        if target is None or not size < LARGEST_NUMBER:
            return None
        self._row[0, : self._shape[1]] = X[0]
        fitted.columns.standardise(self._row)
        summed = 0.0 if self._signs is not None else target
        found: dict[str, Any]
        if self._factorised:
            if not fitted.live.take_row(self._row, np.array([target])):
                return None
            found = {"live": fitted.live}
        elif self._sums:
            said = DenseNatural.of_normal_rows(self._row, np.array([target]), None, fitted.scale)
            known: Any = fitted.sites[0].plus(said)
            found = {"sites": (known,), "stream": fitted.stream._replace(is_behind=True)}
        else:
            before: Any = fitted.sites[0], fitted.posteriors[0]
            known, posterior, refused = update_row(fitted.loss, self._row[0], target, *before)
            if refused is not None or not np.isfinite(posterior.mean.sum() + posterior.log_mass):
                return None
            data, stream, kept = Data(X, np.array([[target]]), None), fitted.stream, fitted.stream.kept
            order = fitted.targets.order(stream.order, data.targets)
            if order.is_sorted and not stream.order.is_sorted:  # which is told on the other way
                return None
            kept = None if kept is None else kept.plus(data)
            stream = stream._replace(kept=kept, order=order, is_behind=True)
            found = {"sites": (known,), "found": (posterior,), "stream": stream}
        if fitted.sums is not None and not self._factorised:
            found["sums"] = fitted.sums.plus(ColumnSums.of_row(X[0]))
        trace = fitted.trace
        return fitted.revised(
            **found,
            totals=fitted.totals.plus(Totals(1.0, summed, summed * summed)),
            trace=Trace(trace.updates + 1, (), (), trace.refusals, trace.dampings),
        )

    def _may_go_on(self, fitted: Fitted) -> bool:
        """Whether prior and noise need not be found again with the next row."""
        kept = fitted.stream.kept
        if self._factorised or self._sums or kept is None:
            return bool(fitted.totals.rows + 1.0 < GROWTH * (fitted.stream.rows_before or 0.0))
        return bool(kept.size + 1.0 < rows_to_fit(fitted, kept))

    def _target(self, fitted: Fitted, y: Any) -> float | None:
        """Sign of a known label, or a target in the model's unit; None for anything else."""
        if not (y.shape == (1,) if type(y) is np.ndarray else type(y) is list and len(y) == 1):
            return None
        value = y[0].item() if isinstance(y[0], np.generic) else y[0]
        if self._signs is not None:
            return self._signs.get(value) if type(value) in (int, str, bool, float) else None
        if type(value) not in (int, float) or not abs(value) <= LARGEST_TARGET:
            return None
        return float((value - fitted.targets.offset) / fitted.targets.unit)


def path_of(fitted: Fitted, data: Data) -> RowPath | None:
    """Path for the rows to come after a single one; None where they cannot be taken in by one."""
    is_open = (
        data.X.shape[0] == 1
        and data.weights is None
        and not fitted.is_joint
        and len(fitted.sites) == 1
        and not fitted.design.levels
        and fitted.design.feature_names is None
        and fitted.targets.kind in ("reals", "signs")
        and not (fitted.targets.finds_scale and fitted.plan.covariance == "diagonal")
        and getattr(fitted.targets, "class_weight", None) is None
    )
    return RowPath(fitted) if is_open else None


# Rows per coefficient that are always kept, and fitted together with as many others: fewer are often separable, or
# leave no noise, and suggest variances that are far off. With 10, counts whose first rows have an outlier ended a
# standard deviation or more from a fit; memory grows in proportion, to 60 times that of the posterior.
ROWS_PER_COEFFICIENT = 30
# The last rows of a stream are kept and fitted together as long as they hold at most so many numbers, two megabytes:
# until then the posterior is that of a fit. Beyond, half of them go.
KEPT_NUMBERS = 2**18


class SortedStreamWarning(UserWarning):
    """The rows of a stream come sorted by their labels or targets."""


def sums_suffice(fitted: Fitted) -> bool:
    """Whether the sites and sums over rows determine all hyperparameters, whatever rows came first.

    So they do for the squared loss with all correlations.
    """
    return isinstance(fitted.loss, Squared) and isinstance(fitted.sites[0], DenseNatural)


def has_grown(fitted: Fitted) -> bool:
    """Whether more rows were seen, by a share of them, than when prior and noise were last found."""
    return fitted.totals.rows >= GROWTH * (fitted.stream.rows_before or 0.0)


def begin(p: Parameters, design: Any, targets: Any, data: Data, totals: Totals, parameters: dict[str, str]) -> Fitted:
    """State of a stream before its first rows, which decide on its plan and on the units of columns and targets."""
    columns = design.width + design.intercept
    sums = ColumnSums.of(data.X, data.weights) if design.needs_sums or targets.is_linear else None
    loss, plan = targets.joint(data.X.shape[0], columns, p.covariance, stream=True) or (
        targets.loss,
        plan_stream(columns, p.covariance),
    )
    kind = DenseNatural if plan.covariance == "full" else DiagonalNatural
    count = 1 if hasattr(loss, "predictors") else len(data.targets)
    nothing: NaturalParameters = kind.zero(columns * getattr(loss, "predictors", 1))
    fitted = Fitted(
        design,
        targets,
        loss,
        design.columns(sums),
        sums,
        (nothing,) * count,
        (),
        (),
        totals,
        plan if count == 1 else of_each(plan, count),
        Status.SINGLE_PASS,
        None,
        1,
        stream=StreamState(parameters, rows_before=0.0),
    )
    prior, groups = prior_of(fitted)
    if isinstance(prior, StructuredPrior) and plan.covariance == "diagonal":
        raise ValueError(f"these terms need all correlations, but the plan for this stream is a {plan}; use fit")
    fitted = fitted.revised(priors=(prior,) * count, groups=groups)
    return _with_nothing_kept(fitted, Totals(), (0.0, 0.0))


def continued(fitted: Fitted, p: Parameters, data: Data, totals: Totals, forget: float) -> Fitted:
    """State of a stream before the rows of a later call: forget a share of what is known, and add up the sums."""
    plan = plan_stream(fitted.design.width + fitted.design.intercept, p.covariance, fitted.plan)
    if plan is not fitted.plan:
        parts = zip(fitted.natural, fitted.priors, fitted.posteriors, strict=True)
        fitted = fitted.revised(sites=tuple(_without_sparse(plan, *part) for part in parts), plan=plan)
    if fitted.stream.kept is None:  # after a fit or a merge
        fitted = _with_nothing_kept(fitted, fitted.totals, fitted.noise)
    if forget:
        fitted = _forget(fitted, 1.0 - forget)
    fitted = fitted.revised(totals=fitted.totals.plus(totals))
    if fitted.sums is not None and plan.covariance == "full":
        fitted = fitted.revised(sums=fitted.sums.plus(ColumnSums.of(data.X, data.weights)))
    if fitted.stream.rows_before is None:
        fitted = fitted.revised(stream=fitted.stream._replace(rows_before=fitted.totals.rows))
    return fitted


def _with_nothing_kept(fitted: Fitted, totals: Totals, noise: tuple[float, float]) -> Fitted:
    """Keep no rows, after what is known now, of which these are the sums."""
    if fitted.plan.covariance != "full" or sums_suffice(fitted):
        return fitted
    kept = KeptRows(fitted.sites, fitted.columns, totals, noise, fitted.scale, fitted.trace)
    return fitted.revised(stream=fitted.stream._replace(kept=kept))


def _forget(fitted: Fitted, keep: float) -> Fitted:
    """Keep a share of what is known beyond the prior."""
    stream, sums = fitted.stream, fitted.sums
    if stream.rows_before is not None:
        stream = stream._replace(rows_before=keep * stream.rows_before)
    if stream.kept is not None:
        stream = stream._replace(kept=stream.kept.times(keep))
    return fitted.revised(
        sites=tuple(known.times(keep) for known in fitted.natural),
        live=None,
        totals=fitted.totals.times(keep),
        sums=None if sums is None else sums.times(keep),
        noise=(keep * fitted.noise[0], keep * fitted.noise[1]),
        stream=stream,
    )


def note_order(fitted: Fitted, data: Data) -> Fitted:
    """Warn, once in a stream, where labels or targets come sorted."""
    before = fitted.stream.order
    order = fitted.targets.order(before, data.targets)
    if order.is_sorted and not before.is_sorted:
        warnings.warn(
            "the rows of this stream come sorted by their labels or targets (one class per call, say): each row is "
            "seen once, so that the posterior depends on the order. Shuffle the rows before they are cut into "
            "calls, or use fit",
            SortedStreamWarning,
            stacklevel=4,
        )
    return fitted.revised(stream=fitted.stream._replace(order=order))


def take(fitted: Fitted, data: Data) -> Fitted:
    """Take rows into what is known, and let prior and noise follow.

    There are three ways. Of the squared loss sums over all rows say everything, at any time (`_take_sums`). Of other
    losses the last rows are kept, and fitted together with what was known before (`_take_kept`, `cavity.ep.online`).
    Products of Gaussians take rows once (`_take_products`).
    """
    if fitted.plan.covariance == "diagonal":
        return _take_products(fitted, data)
    with threads_for((data.X.shape[0], fitted.design.width + fitted.design.intercept)):
        return _take_sums(fitted, data) if sums_suffice(fitted) else _take_kept(fitted, data)


def settled(fitted: Fitted) -> Fitted:
    """Find prior and noise of the last rows of a stream, if that was left until someone asks."""
    if not fitted.stream.is_behind:
        return fitted
    found = _settle_sums(fitted) if sums_suffice(fitted) else _settle_kept(fitted)
    return found.revised(stream=found.stream._replace(is_behind=False))


def prior_of(fitted: Fitted) -> tuple[Prior, tuple[Group, ...]]:
    """Prior with variances to start from where none are given, and groups whose variances are to be found."""
    units = fitted.targets.prior_units(fitted.totals)
    return fitted.targets.prior(fitted.design, fitted.columns, sizes_of(fitted), fitted.loss, units)


def sizes_of(fitted: Fitted) -> FloatArray:
    """Mean squares of the columns in their units; one where variances are given and nobody has looked."""
    return np.ones(fitted.design.width) if fitted.sums is None else fitted.sums.sizes(fitted.columns)


def constants_of(rows: Any, loss: Loss) -> Totals:
    """Sum up what densities of counts are divided by: it depends on the dispersion and on every count."""
    return Totals(constants=rows.sum_over_targets(lambda t: log_normalizer(loss, t)))


def _with_constants(fitted: Fitted, data: Data) -> Fitted:
    if fitted.targets.kind != "counts":
        return fitted
    return fitted.revised(totals=fitted.totals.plus(constants_of(data, fitted.loss)))


# The squared loss.


def _take_sums(fitted: Fitted, data: Data) -> Fitted:
    """Add rows to the sums; prior and noise are found when they are asked for."""
    grown = has_grown(fitted)
    if grown:  # sums around other centres would lose digits
        fitted = in_columns(fitted, fitted.design.columns(fitted.sums))
    rows = dense_rows(fitted.columns.standardised(data.X), fitted.design.intercept)
    targets = data.targets[0] if data.offset is None else data.targets[0] - data.offset
    said = DenseNatural.of_normal_rows(rows, targets, data.weights, fitted.scale)
    known: Any = fitted.sites[0].plus(said)
    if not np.isfinite(known.information.sum() + known.shift.sum() + known.log_scale):
        raise ValueError(
            "sums of squares are beyond what numbers can hold: bring columns and targets to ordinary sizes"
        )
    before = fitted.totals.rows if grown else fitted.stream.rows_before
    fitted = fitted.revised(sites=(known,), stream=fitted.stream._replace(rows_before=before, is_behind=True))
    return _with_trace(fitted, Counter(), 1)


def _settle_sums(fitted: Fitted) -> Fitted:
    """Find prior variances, noise scale and units of columns, from the sums alone."""
    targets, totals, design = fitted.targets, fitted.totals, fitted.design
    fitted = in_columns(fitted, design.columns(fitted.sums))
    known: Any = fitted.sites[0]
    (prior, groups), scale = prior_of(fitted), fitted.scale
    free = Hyperparameters(groups, targets.finds_scale)
    known = _with_rounding(known, prior)
    if free:
        first = (totals.spread_around(design.intercept) or 1.0) if targets.finds_scale else scale
        rows = NormalRows(totals.rows, totals.squares, first, targets.least_scale(totals))
        posterior = known.times((scale / first) ** 2).working(prior)
        maximise_normal_evidence(posterior, free, rows)
        known, prior, scale = known.times((scale / rows.scale) ** 2), posterior.prior, rows.scale
    known = _with_rounding(known, prior)
    stream = fitted.stream._replace(rows_before=totals.rows)
    return fitted.revised(
        sites=(known,), priors=(prior,), groups=groups, loss=with_scale(fitted.loss, scale), stream=stream
    )


def _with_rounding(known: DenseNatural, prior: Prior) -> DenseNatural:
    """Natural parameters plus what rounding may have taken from them, where they hide the prior by that."""
    size = known.information.shape[0]
    rounding = size * np.finfo(np.float64).eps * float(np.max(np.diagonal(known.information)))
    found = known
    for _ in range(8):
        try:
            found.working(prior)
            break
        except ImproperError:
            found = replace(known, information=known.information + rounding * np.eye(size))
            rounding *= 10.0
    return found


# Other losses with a full covariance.


def _take_kept(fitted: Fitted, data: Data) -> Fitted:
    """Keep the rows of a call; fit all that are kept where these are many more than the last time."""
    before: Any = fitted.stream.kept
    kept = before.plus(data)
    if kept.size >= rows_to_fit(fitted, kept):
        return _fit_kept(fitted, kept)
    X, found = fitted.columns.standardised(data.X), None
    if X.shape[0] == 1 and data.weights is None and not fitted.is_joint and data.offset is None:
        x = dense_rows(X, fitted.design.intercept)[0]
        parts: Any = zip(data.targets[:, 0], fitted.sites, fitted.posteriors, strict=True)
        sites, found, refusals = zip(*(update_row(fitted.loss, x, *part) for part in parts), strict=True)
        refused = Counter(why for why in refusals if why is not None)
        if refused:  # under hyperparameters of too few rows, or whatever these are
            other = _fit_kept(fitted, kept)
            if other.status.is_success:
                return other
            kept = before._replace(trace=_longer(before.trace, refused, len(sites)))
        outcome = Update(sites, fitted.priors, fitted.loss, refused, len(sites), _status_of(refused))
    else:
        rows = Rows.arrange(X, data.targets, data.weights, fitted.design.intercept, data.offset)
        outcome = update(fitted.loss, rows, fitted.sites, fitted.priors, Hyperparameters())
    fitted = _with_taken(fitted, outcome).revised(found=found)
    fitted = _with_constants(fitted, data)
    return fitted.revised(stream=fitted.stream._replace(kept=kept, is_behind=True))


def most_kept(fitted: Fitted) -> int:
    """Return the number of rows after which half of them go."""
    few, width = ROWS_PER_COEFFICIENT * fitted.priors[0].dim, fitted.design.width + fitted.design.intercept
    return 2 * max(few, KEPT_NUMBERS // (2 * width))


def rows_to_fit(fitted: Fitted, kept: KeptRows) -> float:
    """At how many kept rows they are fitted again: twice as many as before, or as many as are kept at most."""
    return min(most_kept(fitted), max(2 * kept.fitted, (GROWTH - 1.0) * kept.totals.rows))


def _settle_kept(fitted: Fitted) -> Fitted:
    """Fit the rows that are kept once more if some of them were only added since.

    Who looks once has the posterior of a fit. For who looks after every row, fits become rare: until their number
    has doubled and rows are fitted anyway, each time waits for twice as many new rows as the time before.
    """
    kept: Any = fitted.stream.kept
    new = kept.size - kept.fitted
    if new >= max(kept.wait, (GROWTH - 1.0) * max(kept.fitted, kept.totals.rows)):
        fitted = _fit_kept(fitted, kept)
        now: Any = fitted.stream.kept
        if now.fitted:
            fitted = fitted.revised(stream=fitted.stream._replace(kept=now._replace(wait=2 * new)))
    return fitted


def _fit_kept(fitted: Fitted, kept: KeptRows) -> Fitted:
    """Fit all rows that are kept, with prior and noise, to what was known before them."""
    data, size, is_first = kept.joined(), kept.size, not kept.totals.rows
    design, targets = fitted.design, fitted.targets
    if is_first:
        targets, data, totals = targets.normalised_again(data)
        fitted = fitted.revised(targets=targets, totals=fitted.totals if totals is None else totals)
    for columns in (design.columns(fitted.sums), kept.columns):
        fitted = fitted.revised(columns=columns)
        prior, groups = prior_of(fitted)
        starts = [prior] * len(kept.known)
        known = tuple(of_columns(one, kept.columns, columns, design.intercept) for one in kept.known)
        try:
            for one, start in zip(known, starts, strict=True):
                one.posterior(start)
            break
        except ImproperError:  # sites of negative precision that other units leave without enough of a prior
            if columns is kept.columns:
                raise
    least = targets.least_scale(fitted.totals) if targets.finds_scale else 0.0
    free = Hyperparameters(groups, targets.finds_scale, least, past=kept.noise)
    units = None if fitted.sums is None else columns
    rows = Rows.arrange(data.X, data.targets, data.weights, design.intercept, data.offset, units)
    loss = targets.loss if is_first and not fitted.is_joint else fitted.loss
    if targets.finds_scale and not is_first:  # what was known before holds at the scale that was found then
        loss = with_scale(loss, kept.scale)
    outcome = update(loss, rows, known, starts, free)
    fitted = _with_taken(fitted.revised(trace=kept.trace), outcome)  # these rows were visited before
    fitted = fitted.revised(groups=groups, totals=fitted.totals._replace(constants=kept.totals.constants))
    kept = kept._replace(known=known, columns=columns)
    if targets.finds_scale:
        fitted, kept = targets.with_noise_of_kept(fitted, kept, outcome.results[0].noise)
    fitted = _with_constants(fitted, data)
    kept = kept._replace(parts=(data,), fitted=size, wait=0)
    if size >= most_kept(fitted):
        kept = _retired(fitted, kept, rows, outcome.results, [_wider(one, prior, groups) for one in fitted.priors])
    return fitted.revised(stream=fitted.stream._replace(kept=kept, is_behind=False))


def _wider(found: Prior, start: Prior, groups: Sequence[Group]) -> Prior:
    """Prior with the larger of the variances that were found and those to start from."""
    if any(group.block is not None for group in groups):  # of structures nobody knows which are wider
        return start
    psi = np.maximum(hyperparameters_of(found, groups), hyperparameters_of(start, groups))
    wider: Prior = with_hyperparameters(found, groups, psi)
    return wider


def _retired(fitted: Fitted, kept: KeptRows, rows: Rows, results: Any, priors: Sequence[Prior]) -> KeptRows:
    """Let half of the rows go, with what they say."""
    found = retire(rows, results, kept.known, priors, most_kept(fitted) // 2)
    stay, gone = (
        Data(
            rows.X[rows.order[places]],
            rows.targets[:, places],
            rows.weights[places],
            None if rows.offset is None else rows.offset[places],
        )
        for places in (found.kept, found.gone)
    )
    totals = kept.totals.plus(fitted.targets.totals_of(gone))
    if fitted.targets.kind == "counts":
        totals = totals.plus(constants_of(gone, fitted.loss))
    noise = kept.noise[0] + found.noise[0], kept.noise[1] + found.noise[1]
    return kept._replace(
        known=found.known, totals=totals, noise=noise, trace=fitted.trace, parts=(stay,), fitted=found.kept.size
    )


def _with_taken(fitted: Fitted, outcome: Update) -> Fitted:
    fitted = fitted.revised(sites=outcome.sites, priors=outcome.priors, loss=outcome.loss)
    return _with_trace(fitted, outcome.refused, outcome.updates).revised(status=outcome.status)


# Products of Gaussians.


def _take_products(fitted: Fitted, data: Data) -> Fitted:
    """Take rows into products of Gaussians, a few at a time, and let prior and noise follow."""
    if data.offset is not None:
        raise ValueError("a diagonal covariance takes no offset: use fewer columns, or covariance='full'")
    data = data._replace(X=fitted.columns.standardised(data.X))
    if fitted.targets.finds_scale:
        fitted = fitted.targets.with_noise_of(fitted, data)
    live = fitted.live or ProductStreams(fitted.loss, fitted.posteriors, fitted.priors)
    refused, updates = live.take(with_intercept(data.X) if fitted.design.intercept else data.X, data)
    fitted = _with_trace(fitted.revised(live=live), refused, updates)
    fitted = _with_constants(fitted, data)
    return with_variances_found(fitted) if has_grown(fitted) else fitted


def with_variances_found(fitted: Fitted) -> Fitted:
    """Move the prior variances to where the evidence has its maximum with the sites as they are."""
    known, (prior, groups) = fitted.natural, prior_of(fitted)
    found = []
    for one, before in zip(known, fitted.priors, strict=True):
        posterior = one.working(with_hyperparameters(prior, groups, hyperparameters_of(before, groups)))
        if groups:
            maximise_evidence(posterior, groups)
        found.append(posterior.prior)
    stream = fitted.stream._replace(rows_before=fitted.totals.rows)
    return fitted.revised(sites=known, live=None, priors=tuple(found), groups=groups, stream=stream)


# What all of them need.


def in_columns(fitted: Fitted, columns: Columns) -> Fitted:
    """Keep what is known for columns with other centres and units; priors keep their variances."""
    known = fitted.natural, fitted.columns, columns, fitted.design.intercept
    sites = tuple(of_columns(one, *known[1:]) for one in known[0])
    return fitted.revised(sites=sites, live=None, columns=columns)


def _status_of(refused: Counter[Refusal]) -> Status:
    """How taking in rows once went."""
    diagnostics = Diagnostics()
    for why, times in refused.items():
        diagnostics.reject(-1, why, times)
    return diagnostics.status(single_pass=True, converged=False)


def _with_trace(fitted: Fitted, refused: Counter[Refusal], updates: int) -> Fitted:
    """Add to the trace of the stream, which has no loops, or begin one."""
    return fitted.revised(status=_status_of(refused), trace=_longer(fitted.trace, refused, updates))


def merged(one: Fitted, other: Fitted) -> Fitted:
    """Join what two models know of other rows; prior variances and noise scale that were found are found again."""
    targets, sums = one.targets, None if one.sums is None or other.sums is None else one.sums.plus(other.sums)
    columns = one.design.columns(sums)
    one, other = in_columns(one, columns), targets.moved(in_columns(other, columns), one)
    if targets.finds_scale:
        one, other = targets.pooled(one, other)
    totals = one.totals.plus(other.totals)
    share = one.totals.rows / max(totals.rows, np.finfo(np.float64).tiny)
    pairs = zip(one.sites, other.sites, strict=True)
    found = one.revised(
        sums=sums,
        sites=tuple(a.plus(b) for a, b in pairs),
        totals=totals,
        priors=tuple(pooled_prior(a, b, share) for a, b in zip(one.priors, other.priors, strict=True)),
        stream=StreamState(one.stream.parameters),
    )
    try:
        found = _settle_sums(found) if sums_suffice(found) else with_variances_found(found)
        return found.revised(found=found.posteriors)
    except ImproperError as error:
        raise ValueError("the product of the two models is not proper: one of them knows too little") from error


def check_mergeable(one: Fitted, other: Fitted) -> None:
    """Refuse models of other columns, losses, posteriors or priors."""
    a, b = one.design, other.design
    if a.features != b.features or a.intercept != b.intercept:
        raise ValueError(
            f"the models must have the same columns, got {a.features} and {b.features} features "
            f"with fit_intercept {a.intercept} and {b.intercept}"
        )
    if not np.array_equal(a.feature_names, b.feature_names):
        raise ValueError(
            "the models must name the same columns in the same order, got "
            f"{_listed(a.feature_names)} and {_listed(b.feature_names)}: fit both to data with the same columns"
        )
    one.targets.check_mergeable(one, other)
    if type(one.sites[0]) is not type(other.sites[0]):
        raise ValueError(
            f"the models keep different posteriors, {one.plan.covariance} and {other.plan.covariance}: give "
            "both the same covariance"
        )
    if a.levels != b.levels:
        raise ValueError("the models know different levels: give columns of categories a type that names all levels")
    if isinstance(a, TermDesign) and not a.same_prior(b):
        raise ValueError("the models have different terms, levels or knots: give them data with the same ones")
    if not a.same_prior(b):
        raise ValueError(
            "the models have different priors: give both the same prior_variance, prior_mean and "
            "intercept_prior_variance"
        )


def _listed(names: Any) -> str:
    """First names of columns, as text."""
    if names is None:
        return "no names"
    return ", ".join(str(name) for name in names[:6]) + (", ..." if len(names) > 6 else "")


def _longer(before: Any, refused: Counter[Refusal], updates: int) -> Trace:
    """Trace of a stream after some more updates, of which some were refused."""
    if not isinstance(before, Trace) or before.changes:  # nothing yet, or the trace of a fit
        before = Trace(0, (), (), Counter(), Counter())
    counts = before.refusals + Counter({(-1, why): times for why, times in refused.items()})
    return Trace(before.updates + updates, (), (), counts, Counter())


def _without_sparse(plan: Plan, known: Any, prior: Any, posterior: Gaussian) -> NaturalParameters:
    """Turn what a fit with a sparse precision knows into a form that takes rows one call after the other."""
    if plan.covariance == "full":
        if isinstance(known, RowsNatural):
            return known.dense()
        upper = known.information.toarray()
        return DenseNatural(upper + np.triu(upper, 1).T, known.shift, known.log_scale)
    marginal = FactorialGaussian.from_moments(posterior.mean, posterior.variance, posterior.log_mass)
    return DiagonalNatural(marginal / prior)


def of_columns(known: Any, before: Columns, after: Columns, intercept: bool) -> Any:
    """Say the same of coefficients for columns with other centres and units."""
    if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        return known
    if isinstance(known, RowsNatural):
        return known.in_columns(*after)
    change = after.matrix(before, intercept).T
    if isinstance(known, DiagonalNatural):
        return known.changed(np.diagonal(change), change[:-1, -1] if intercept else np.zeros(0))
    count = known.shift.size // len(change)
    return known.of_columns(change if count == 1 else np.kron(np.eye(count), change))


def pooled_prior(a: Any, b: Any, share: float) -> Any:
    """Prior between two, by the share of the first: means, and variances on a logarithmic scale."""
    if isinstance(a, StructuredPrior):
        pairs = zip(a.blocks, b.blocks, strict=True)
        psi = [share * one.psi + (1.0 - share) * other.psi for one, other in pairs]
        return a.at(pooled_prior(a.independent, b.independent, share), psi)
    if a == b:
        return a
    mean = share * a.mean + (1.0 - share) * b.mean
    return FactorialGaussian.from_moments(mean, a.variance**share * b.variance ** (1.0 - share))
