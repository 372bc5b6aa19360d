"""Streams: rows that come in one call after the other, and merging of models."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError

from cavity._types import FloatArray
from cavity.ep.driver import Diagnostics
from cavity.ep.hyperparameters import (
    Group,
    Hyperparameters,
    hyperparameters_of,
    maximise_evidence,
    with_hyperparameters,
)
from cavity.ep.posteriors import DenseNatural, DiagonalNatural, Gaussian, NaturalParameters
from cavity.ep.result import Refusal, Status, Trace
from cavity.estimators.base import LinearEP, _described
from cavity.estimators.parameters import (
    LARGEST_NUMBER,
    LARGEST_TARGET,
    Parameters,
    Plan,
    of_each,
    plan_stream,
    threads_for,
)
from cavity.estimators.rows import Data, KeptRows, Order, Totals, forgetting, with_intercept
from cavity.estimators.runs import BATCH_SIZE, Taken, take_rows
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows, dense_rows
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.losses import Loss
from cavity.losses.noise import with_scale
from cavity.moments import tilts
from cavity.schemes import ExactProjection

# Growth of the number of rows seen after which prior and noise follow them.
GROWTH = 1.02


def scale_of(loss: Loss) -> float:
    """Noise scale of a loss; one where it has none."""
    return float(getattr(loss, "scale", 1.0))


def take_into(
    loss: Loss, x: FloatArray, target: float, known: DenseNatural, posterior: DenseGaussian
) -> tuple[DenseNatural, DenseGaussian, Refusal | None]:
    r"""Take one row into a full covariance, in :math:`O(d^2)`.

    The posterior before is the row's cavity, so its site is found in one step. With :math:`u = S^\top x` the root of
    the covariance is revised by :math:`S' = S (I - a u u^\top)`, :math:`(1 - a u^\top u)^2 = 1/(1 + T u^\top u)`.
    """
    u = x @ posterior.root
    m, v = float(x @ posterior.mean), float(u @ u)
    tilt = tilts(loss, np.array([target]), np.array([m]), np.array([v]))
    log_mass, moved, ratio = float(tilt.log_mass[0]), float(tilt.shift[0]), float(tilt.ratio[0])
    if not (math.isfinite(log_mass + moved + ratio) and ratio > 0.0):
        return known, posterior, Refusal.NONFINITE
    precision = (1.0 / ratio - 1.0) / v if v > 0.0 else 0.0
    shift = m * precision + (moved / (ratio * math.sqrt(v)) if v > 0.0 else 0.0)
    grown = 1.0 + precision * v
    if not (math.isfinite(precision + shift) and grown > 0.0):
        return known, posterior, Refusal.NONFINITE if grown > 0.0 else Refusal.IMPROPER_POSTERIOR
    gain = (shift - precision * m) / grown
    # The integral of the posterior before times the site without its scale, from its height at the mean before.
    site = (shift - 0.5 * precision * m) * m + 0.5 * gain * gain * grown * v - 0.5 * math.log(grown)
    total = DenseNatural(
        known.information + precision * (x[:, None] * x), known.shift + shift * x, known.log_scale + log_mass - site
    )
    along = posterior.root @ u
    mean = posterior.mean + gain * along
    shrink = (1.0 - 1.0 / math.sqrt(grown)) / v if v > 0.0 else 0.0
    root = posterior.root - along[:, None] * (shrink * u)
    return total, DenseGaussian(mean, root, posterior.log_mass + log_mass), None


class ProductStreams:
    """Products of Gaussians that take in rows by compiled code, one for every linear predictor.

    A call changes all of them or none: `take` puts back what it changed if anything is raised, and `undo` does so
    later, until `commit`.
    """

    def __init__(self, loss: Loss, posteriors: Sequence[Any], priors: Sequence[FactorialGaussian]) -> None:
        # Numba is imported when a product of Gaussians is streamed.
        fitting, linear, stream = (import_module(f"cavity.ep.{name}") for name in ("fit", "compiled", "online"))
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

    def knowledge(self) -> tuple[DiagonalNatural, ...]:
        """Give what the rows say, apart from the priors."""
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

    A call that took one row opens a path. It serves while nothing but rows changes: the same parameters, rows and
    targets of the same form, and a prior that need not be found again yet. Otherwise it declines, and the row is taken
    as any other.
    """

    def __init__(self, model: Any) -> None:
        self._parameters = [(name, model.__dict__[name]) for name in model.get_params(deep=False)]
        self._shape = (1, model.n_features_in_)
        width = model._width + int(model._intercept)
        self._row = np.ones((1, width))
        self._factorised, self._sums = model.plan_.covariance == "diagonal", model._sums_say_all
        classes = getattr(model, "classes_", None)
        self._signs = None if classes is None else dict(zip(classes.tolist(), (-1.0, 1.0), strict=True))

    def take(self, model: Any, X: Any, y: Any) -> bool:
        """Take in a row; False, and nothing changed, where the path declines."""
        state = model.__dict__
        if not (
            type(X) is np.ndarray
            and X.shape == self._shape
            and X.dtype == np.float64
            and all(state[name] is value for name, value in self._parameters)
            and self._may_go_on(model)
            and (not self._factorised or "_streams" in state)
        ):
            return False
        target = self._target(model, y)
        size = float(X[0] @ X[0])
        if target is None or not size < LARGEST_NUMBER:
            return False
        self._row[0, : self._shape[1]] = X[0]
        state["_columns"].standardise(self._row)
        summed = 0.0 if self._signs is not None else target
        totals = state["_totals"].plus(Totals(1.0, summed, summed * summed))
        if self._factorised:
            if not state["_streams"].take_row(self._row, np.array([target])):
                return False
            state.pop("_posteriors", None)
        elif self._sums:
            said = DenseNatural.of_normal_rows(self._row, np.array([target]), None, scale_of(model._loss))
            state.pop("_posteriors", None)
            state.update(_knowledge=(state["_knowledge"][0].plus(said),), _unsettled=True)
        else:
            posterior = model._present_posteriors()[0]
            known, posterior, refused = take_into(model._loss, self._row[0], target, state["_knowledge"][0], posterior)
            if refused is not None or not np.isfinite(posterior.mean.sum() + posterior.log_mass):
                return False
            data = Data(X, np.array([[target]]), None)
            order = model._order_with(data.targets)
            state.update(_knowledge=(known,), _posteriors=(posterior,), _kept=state["_kept"].plus(data), _order=order)
            state["_unsettled"] = True
        if state["_sums"] is not None and not self._factorised:
            state["_sums"] = state["_sums"].plus(ColumnSums.of_row(X[0]))
        state.update(_totals=totals, _derived={})
        trace = state["trace_"]
        state["trace_"] = Trace(trace.updates + 1, (), (), trace.refusals, trace.dampings)
        return True

    def _may_go_on(self, model: Any) -> bool:
        """Whether prior and noise need not be found again with the next row."""
        if self._factorised or self._sums:
            return bool(model._totals.rows + 1.0 < GROWTH * model._rows_at_revision)
        return bool(model._kept.size + 1.0 < model._rows_to_fit(model._kept))

    def _target(self, model: Any, y: Any) -> float | None:
        """Sign of a known label, or a target in the model's unit; None for anything else."""
        if not (y.shape == (1,) if type(y) is np.ndarray else type(y) is list and len(y) == 1):
            return None
        value = y[0].item() if isinstance(y[0], np.generic) else y[0]
        if self._signs is not None:
            return self._signs.get(value) if type(value) in (int, str, bool, float) else None
        if type(value) not in (int, float) or not abs(value) <= LARGEST_TARGET:
            return None
        return float((value - model.y_offset_) / model.y_scale_)


def opens(model: Any) -> bool:
    """Whether single rows of a model can be taken in by a `RowPath`."""
    return (
        not model._is_joint
        and len(model._knowledge) == 1
        and "categories_" not in model.__dict__
        and "feature_names_in_" not in model.__dict__
        and model.status_.is_success
        and getattr(model, "_kind", "reals") == "reals"
        and not (model._finds_scale and model.plan_.covariance == "diagonal")
        and getattr(model, "class_weight", None) is None
    )


# Rows per coefficient that are fitted together at least: fewer are often separable, or leave no noise, and suggest
# variances that are far off.
ROWS_PER_COEFFICIENT = 10
# The first rows of a stream are kept as long as they hold at most so many numbers, two megabytes: until then the
# posterior is that of a fit.
KEPT_NUMBERS = 2**18
# Parameters that may change between two calls: the others say what the posterior is one of.
_MAY_CHANGE = ("verbose", "max_iter", "tol", "random_state", "class_weight", "covariance")


class SortedStreamWarning(UserWarning):
    """The rows of a stream come sorted by their labels or targets."""


class StreamingEP(LinearEP):
    """Adds what the rows of a call, or another model, say to what is known, and lets prior and noise follow.

    There are three ways. Of the squared loss sums over all rows say everything, at any time (`_take_sums`). Of other
    losses the last rows are kept until there are enough of them, and fitted together with what was known before
    (`_take_kept`). Products of Gaussians take rows once (`_take_products`).
    """

    # The last rows of a stream with a full covariance, and what was known before them.
    _kept: KeptRows | None = None
    # How far the targets seen look sorted.
    _order: Order = Order()
    # Whether rows were added since prior and noise were found.
    _unsettled: bool = False

    def _take(self, X: Any, y: Any, sample_weight: Any, forget: float, offset: Any, halflife: float | None) -> None:
        """Check the rows of a call, and take them into what is known."""
        first = not self.__sklearn_is_fitted__()
        if first:
            self._check_parameters()
        else:
            self._refuse_other_parameters()
        share, weights = forgetting(forget, halflife, sample_weight, X)
        data, totals = self._read(X, y, weights, offset, reset=first, stream=True)
        p = Parameters.of(self, data.X.shape[1])
        self._prepare_stream(p, data, totals, share)
        if share == 0.0 and not self._sums_say_all:
            self._note_order(data)
        if self._is_joint:
            data = data._replace(targets=self._joint_targets(data, first))
        columns = data.X.shape[1] + int(p.intercept)
        if self.plan_.covariance == "diagonal":
            self._take_products(p, data)
            self._check_finite()
            return
        with threads_for((data.X.shape[0], columns)):
            if self._sums_say_all:
                self._take_sums(p, data)
            else:
                self._take_kept(p, data)
                self._check_finite()
        if data.X.shape[0] == 1 and data.weights is None and opens(self):
            self._path = RowPath(self)

    def _prepare_stream(self, p: Parameters, data: Data, totals: Totals, forget: float) -> None:
        """Plan a call of a stream; begin with the prior, or forget a share of what is known; add up the sums."""
        first, columns = not self.__sklearn_is_fitted__(), p.prior_mean.size + int(p.intercept)
        if first:
            self._measure(lambda: ColumnSums.of(data.X, data.weights))
            joint = self._joint(data.X.shape[0], columns, p.covariance, stream=True)
            loss, plan = joint or (self._make_loss(), plan_stream(columns, p.covariance))
            kind = DenseNatural if plan.covariance == "full" else DiagonalNatural
            count = 1 if joint else len(data.targets)
            nothing = kind.zero(columns * getattr(loss, "predictors", 1))
            self._revise(_knowledge=(nothing,) * count, _totals=totals, _loss=loss)
            self._revise(_intercept=p.intercept, plan_=of_each(plan, count), n_iter_=1, _rows_at_revision=0.0)
            self._parameters = self._described_parameters()
            prior, self._free = self._stream_prior(p)
            self._priors = (prior,) * count
            if plan.covariance == "full" and not self._sums_say_all:
                self._kept = KeptRows(self._knowledge, self._columns, Totals(), (0.0, 0.0), scale_of(loss), None)
            return
        plan = plan_stream(columns, p.covariance, self.plan_)
        if plan is not self.plan_:
            parts = zip(self._known(), self._priors, self._whole_posteriors(), strict=True)
            self._revise(_knowledge=tuple(_without_sparse(plan, *part) for part in parts), plan_=plan)
        if self._kept is None and plan.covariance == "full" and not self._sums_say_all:  # after a fit or a merge
            self._kept = self._nothing_kept()
        if forget:
            self._forget(1.0 - forget)
        self._totals = self._totals.plus(totals)
        if self._sums is not None and plan.covariance == "full":
            self._sums = self._sums.plus(ColumnSums.of(data.X, data.weights))
        self.__dict__.setdefault("_rows_at_revision", self._totals.rows)

    @property
    def _has_grown(self) -> bool:
        """Whether more rows were seen, by a share of them, than when prior and noise were last found."""
        return self._totals.rows >= GROWTH * self._rows_at_revision

    def _described_parameters(self) -> dict[str, str]:
        """Parameters that must not change from one call to the next, by their content."""
        return {name: _described(value) for name, value in self.get_params().items() if name not in _MAY_CHANGE}

    def _refuse_other_parameters(self) -> None:
        before = vars(self).get("_parameters")
        if before is None:  # of a fit
            return
        now = self._described_parameters()
        for name in before.keys() & now.keys():
            if before[name] != now[name]:
                raise ValueError(
                    f"{name} was {before[name]} in the first call of this stream and is {now[name]} now: what rows "
                    "said cannot be undone. Set it back, or start with a new model"
                )

    def _order_with(self, targets: Any) -> Order:
        """Order of the stream with the rows of another call, whose targets are in the present unit."""
        raise NotImplementedError

    def _note_order(self, data: Data) -> None:
        """Warn, once in a stream, where labels or targets come sorted."""
        before = self._order
        self._order = self._order_with(data.targets)
        if self._order.is_sorted and not before.is_sorted:
            warnings.warn(
                "the rows of this stream come sorted by their labels or targets (one class per call, say): each row is "
                "seen once, so that the posterior depends on the order. Shuffle the rows before they are cut into "
                "calls, or use fit",
                SortedStreamWarning,
                stacklevel=6,
            )

    # The squared loss.

    @property
    def _sums_say_all(self) -> bool:
        """Whether what is known and sums over rows determine all hyperparameters, whatever rows came first."""
        return False

    def _take_sums(self, p: Parameters, data: Data) -> None:
        """Add rows to the sums; prior and noise are found when they are asked for, or have to be looked at again."""
        grown = self._has_grown
        if grown:  # sums around other centres would lose digits
            self._change_columns(p.columns(self._sums))
        rows = dense_rows(self._columns.standardised(data.X), p.intercept)
        targets = data.targets[0] if data.offset is None else data.targets[0] - data.offset
        said = DenseNatural.of_normal_rows(rows, targets, data.weights, scale_of(self._loss))
        self._revise(_knowledge=(self._knowledge[0].plus(said),), _unsettled=True)
        self._note_refusals(Counter(), 1)
        if grown:
            self._settled()
            self._check_finite()

    # Other losses with a full covariance.

    def _nothing_kept(self) -> KeptRows:
        """No rows, after what is known now."""
        noise = vars(self).get("_scales", (0.0, 0.0))
        trace = vars(self).get("trace_")
        return KeptRows(self._knowledge, self._columns, self._totals, noise, scale_of(self._loss), trace)

    def _take_kept(self, p: Parameters, data: Data) -> None:
        """Keep the rows of a call; fit all that are kept where these are many more than the last time."""
        kept: Any = self._kept
        kept = kept.plus(data)
        if kept.size >= self._rows_to_fit(kept):
            self._kept = kept
            self._fit_kept(p)
        else:
            X = self._columns.standardised(data.X)
            single = X.shape[0] == 1 and data.weights is None and not self._is_joint and data.offset is None
            if single:
                x = dense_rows(X, p.intercept)[0]
                parts: Any = zip(data.targets[:, 0], self._knowledge, self._present_posteriors(), strict=True)
                known, posteriors, refusals = zip(*(take_into(self._loss, x, *part) for part in parts), strict=True)
                refused = Counter(why for why in refusals if why is not None)
                if refused:  # under hyperparameters of too few rows, or whatever these are
                    other = object.__new__(type(self))
                    other.__dict__.update(self.__dict__, _kept=kept)
                    other._fit_kept(p)
                    if other.status_.is_success:
                        self.__dict__ = other.__dict__
                        return
                    kept = self._kept
                    kept = kept._replace(trace=_longer(kept.trace, refused, len(known)))
                taken = Taken(known, self._priors, self._loss, refused, len(known), posteriors)
            else:
                rows = Rows.arrange(X, data.targets, data.weights, p.intercept, data.offset)
                taken = take_rows(self._loss, rows, self._knowledge, self._priors, Hyperparameters())
            self._keep_taken(taken)
            self._kept, self._totals = kept, self._totals.plus(self._constants(data, self._loss))
            self._unsettled = True

    @property
    def _most_kept(self) -> int:
        """Number of rows that are kept at most."""
        few = ROWS_PER_COEFFICIENT * self._priors[0].dim
        is_first = self._kept is not None and not self._kept.totals.rows
        return max(few, KEPT_NUMBERS // (self._width + int(self._intercept))) if is_first else few

    def _rows_to_fit(self, kept: KeptRows) -> float:
        """At how many kept rows they are fitted again: twice as many as before, or as many as are kept at most."""
        return min(self._most_kept, max(2 * kept.fitted, (GROWTH - 1.0) * kept.totals.rows))

    def _settle(self) -> None:
        """Fit the rows that are kept once more if some of them were only added since.

        Who looks once has the posterior of a fit. For who looks after every row, fits become rare: until their number
        has doubled and rows are fitted anyway, each time waits for twice as many new rows as the time before.
        """
        kept: Any = self._kept
        new = kept.size - kept.fitted
        if new >= max(kept.wait, (GROWTH - 1.0) * max(kept.fitted, kept.totals.rows)):
            self._fit_kept(Parameters.of(self, self._width))
            now: Any = self._kept
            if now.fitted:
                self._kept = now._replace(wait=2 * new)

    def _fit_kept(self, p: Parameters) -> None:
        """Fit all rows that are kept, with prior and noise, to what was known before them."""
        kept: Any = self._kept
        data, size = kept.joined(), kept.size
        is_first = not kept.totals.rows
        if is_first:
            data = self._normalised_again(data)
        for columns in (p.columns(self._sums), kept.columns):
            self._columns = columns
            prior, groups = self._stream_prior(p)
            starts = [prior] * len(kept.known)
            if not is_first:
                before = [hyperparameters_of(one, self._free) for one in self._priors]
                starts = [with_hyperparameters(prior, groups, psi) for psi in before]
            known = tuple(of_columns(one, kept.columns, columns, p.intercept) for one in kept.known)
            try:
                for one, start in zip(known, starts, strict=True):
                    one.posterior(start)
                break
            except ImproperError:  # sites of negative precision that other units leave without enough of a prior
                if columns is kept.columns:
                    raise
        free = Hyperparameters(groups, self._finds_scale, self._least_scale(), past=kept.noise)
        units = None if self._sums is None else columns
        rows = Rows.arrange(data.X, data.targets, data.weights, p.intercept, data.offset, units)
        loss = self._first_loss() if is_first else self._loss
        if self._finds_scale and not is_first:  # what was known before holds at the scale that was found then
            loss = with_scale(loss, kept.scale)
        taken = take_rows(loss, rows, known, starts, free)
        self.trace_ = kept.trace  # these rows were visited before
        self._keep_taken(taken)
        self._free, self._totals = groups, self._totals._replace(constants=kept.totals.constants)
        self._follow_noise(kept, known, taken.noise)
        self._totals = self._totals.plus(self._constants(data, self._loss))
        is_full = size >= self._most_kept
        self._kept = self._nothing_kept() if is_full else kept._replace(parts=(data,), fitted=size, wait=0)
        self._unsettled = False

    def _normalised_again(self, data: Data) -> Data:
        """Give all rows of a stream so far in the unit of their targets."""
        return data

    def _first_loss(self) -> Loss:
        """Loss that the first rows of a stream are fitted with, before its scale is found."""
        return self._loss

    def _follow_noise(self, kept: KeptRows, known: tuple[Any, ...], noise: Any) -> None:
        """Let what was known before the kept rows follow the noise scale that was found with them."""

    # Products of Gaussians.

    def _take_products(self, p: Parameters, data: Data) -> None:
        """Take rows into products of Gaussians, a few at a time, and let prior and noise follow."""
        if data.offset is not None:
            raise ValueError("a diagonal covariance takes no offset: use fewer columns, or covariance='full'")
        data = data._replace(X=self._columns.standardised(data.X))
        self._note_noise(data)
        streams = self.__dict__.get("_streams") or ProductStreams(self._loss, self._present_posteriors(), self._priors)
        self._revise(_streams=streams)
        self._note_refusals(*streams.take(with_intercept(data.X) if p.intercept else data.X, data))
        self._totals = self._totals.plus(self._constants(data, self._loss))
        if self._has_grown:
            self._find_variances(p)
        if data.X.shape[0] == 1 and data.weights is None and opens(self):
            self._path = RowPath(self)

    def _note_noise(self, data: Data) -> None:
        """Let the noise scale follow standardised rows, before they are taken in; a classifier has none."""

    def _find_variances(self, p: Parameters) -> None:
        """Move the prior variances to where the evidence has its maximum with the sites as they are."""
        known, (prior, groups) = self._present_knowledge(), self._stream_prior(p)
        found = []
        for one, before in zip(known, self._priors, strict=True):
            posterior = one.working(with_hyperparameters(prior, groups, hyperparameters_of(before, groups)))
            if groups:
                maximise_evidence(posterior, groups)
            found.append(posterior.prior)
        self._revise(_knowledge=known, _priors=tuple(found), _free=groups, _rows_at_revision=self._totals.rows)

    # What all of them need.

    def _took_row(self, X: Any, y: Any, *choices: Any) -> bool:
        """Whether a single row was taken in by the short path, which knows no choices."""
        path = self.__dict__.get("_path")
        return path is not None and all(choice is None for choice in choices) and path.take(self, X, y)

    def _keep_taken(self, taken: Taken) -> None:
        self._revise(_knowledge=taken.knowledge, _priors=taken.priors, _loss=taken.loss)
        if taken.posteriors is not None:
            self._posteriors = taken.posteriors
        self._note_refusals(taken.refused, taken.updates, taken.status)

    def _forget(self, keep: float) -> None:
        """Keep a share of what is known beyond the prior."""
        known = self._present_knowledge()
        self._revise(_knowledge=tuple(k.times(keep) for k in known), _totals=self._totals.times(keep))
        if self._sums is not None:
            self._sums = self._sums.times(keep)
        if "_rows_at_revision" in self.__dict__:
            self._rows_at_revision *= keep
        if self._kept is not None:
            self._kept = self._kept.times(keep)

    def _prior_units(self) -> tuple[float, float]:
        """Give the unit of the coefficients and the centre of the intercept's prior."""
        return 1.0, 0.0

    def _stream_prior(self, p: Parameters) -> tuple[FactorialGaussian, tuple[Group, ...]]:
        """Prior with variances to start from where none are given, and which of them are to be found."""
        return self._prior_and_groups(p, getattr(self._loss, "predictors", 1), self._prior_units())

    def _change_columns(self, columns: Columns) -> None:
        """Keep what is known for columns with other centres and units; priors keep their variances."""
        before, self._columns = self._columns, columns
        self._revise(_knowledge=tuple(of_columns(k, before, columns, self._intercept) for k in self._knowledge))

    def _note_refusals(self, refused: Counter[Refusal], updates: int, status: Status | None = None) -> None:
        """Add to the trace of the stream, which has no loops, or begin one."""
        diagnostics = Diagnostics()
        for why, times in refused.items():
            diagnostics.reject(-1, why, times)
        self.status_ = diagnostics.status(single_pass=True, converged=False) if status is None else status
        self.trace_ = _longer(self.__dict__.get("trace_"), refused, updates)

    # Merging.

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
        self._check_mergeable(other)
        result = copy.copy(self)
        for name in ("_rows_at_revision", "_kept", "_order"):
            result.__dict__.pop(name, None)
        p, result._sums = Parameters.of(self, self._width), sums_of_both(self._sums, other._sums)
        result._columns = p.columns(result._sums)
        result._derived = {}
        result._absorb(self, other)
        try:
            if result._sums_say_all:
                result._settle()
            else:
                result._find_variances(p)
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
        named: Any = [getattr(one, "feature_names_in_", None) for one in (self, other)]
        if not np.array_equal(*named):
            raise ValueError(
                "the models must name the same columns in the same order, got "
                f"{_listed(named[0])} and {_listed(named[1])}: fit both to data with the same columns"
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


def _longer(before: Any, refused: Counter[Refusal], updates: int) -> Trace:
    """Trace of a stream after some more updates, of which some were refused."""
    if not isinstance(before, Trace) or before.changes:  # nothing yet, or the trace of a fit
        before = Trace(0, (), (), Counter(), Counter())
    counts = before.refusals + Counter({(-1, why): times for why, times in refused.items()})
    return Trace(before.updates + updates, (), (), counts, Counter())


def _listed(names: Any) -> str:
    """First names of columns, as text."""
    if names is None:
        return "no names"
    return ", ".join(str(name) for name in names[:6]) + (", ..." if len(names) > 6 else "")


def _without_sparse(plan: Plan, known: Any, prior: FactorialGaussian, posterior: Gaussian) -> NaturalParameters:
    """Turn what a fit with a sparse precision knows into a form that takes rows one call after the other."""
    if plan.covariance == "full":
        upper = known.information.toarray()
        return DenseNatural(upper + np.triu(upper, 1).T, known.shift, known.log_scale)
    marginal = FactorialGaussian.from_moments(posterior.mean, posterior.variance, posterior.log_mass)
    return DiagonalNatural(marginal / prior)


def of_columns(known: Any, before: Columns, after: Columns, intercept: bool) -> Any:
    """Say the same of coefficients for columns with other centres and units."""
    if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        return known
    change = after.matrix(before, intercept).T
    if isinstance(known, DiagonalNatural):
        return known.changed(np.diagonal(change), change[:-1, -1] if intercept else np.zeros(0))
    count = known.shift.size // len(change)
    return known.of_columns(change if count == 1 else np.kron(np.eye(count), change))


def sums_of_both(a: ColumnSums | None, b: ColumnSums | None) -> ColumnSums | None:
    """Add sums over the rows of two models; None where one has none."""
    return None if a is None or b is None else a.plus(b)


def pooled_prior(a: FactorialGaussian, b: FactorialGaussian, share: float) -> FactorialGaussian:
    """Prior between two, by the share of the first: means, and variances on a logarithmic scale."""
    if a == b:
        return a
    mean = share * a.mean + (1.0 - share) * b.mean
    return FactorialGaussian.from_moments(mean, a.variance**share * b.variance ** (1.0 - share))
