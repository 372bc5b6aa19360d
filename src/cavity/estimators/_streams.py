"""Rows of a stream: one row into a full covariance, rows into products of Gaussians, and a short path for one row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.natural import DenseNatural, DiagonalNatural
from cavity.ep.result import Refusal, Trace
from cavity.estimators._design import Data, Totals
from cavity.estimators._parameters import LARGEST_NUMBER, LARGEST_TARGET
from cavity.estimators._runs import BATCH_SIZE
from cavity.factors.columns import ColumnSums
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.moments import tilts
from cavity.schemes import ExactProjection

FloatArray = NDArray[np.float64]

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
