"""One row per call, for streams in which time counts: the same numbers as the usual way, with less to look at.

A path is opened by a call that took one row the usual way, and serves while nothing but rows changes: the same
parameters, rows and targets of the same form, and a prior that need not follow yet. Else it declines, and the usual way
takes the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.result import Trace
from cavity.estimators._parameters import LARGEST_NUMBER, LARGEST_TARGET
from cavity.estimators._streams import take_into

FloatArray = NDArray[np.float64]

# How much the rows seen may grow before the prior follows.
GROWTH = 1.05


class RowPath:
    """What does not change from row to row: parameters, the place for a row, and what labels stand for."""

    def __init__(self, model: Any) -> None:
        self._parameters = [(name, model.__dict__[name]) for name in model.get_params(deep=False)]
        self._shape = (1, model.n_features_in_)
        width = model._width + int(model._intercept)
        self._row = np.ones((1, width))
        self._factorised = model.plan_.covariance == "diagonal"
        classes = getattr(model, "classes_", None)
        self._signs = None if classes is None else dict(zip(classes.tolist(), (-1.0, 1.0), strict=True))

    def take(self, model: Any, X: Any, y: Any) -> bool:
        """Take in a row; False, and nothing changed, where the usual way must."""
        state = model.__dict__
        if not (
            type(X) is np.ndarray
            and X.shape == self._shape
            and X.dtype == np.float64
            and state["_totals"].rows + 1.0 < GROWTH * state["_rows_at_revision"]
            and all(state[name] is value for name, value in self._parameters)
            and (not self._factorised or "_streams" in state)
        ):
            return False
        target = self._target(model, y)
        size = float(X[0] @ X[0])
        if target is None or not size < LARGEST_NUMBER:
            return False
        self._row[0, : self._shape[1]] = X[0]
        totals = state["_totals"].plus_row(size, 0.0 if self._signs is not None else target)
        if self._factorised:
            if not state["_streams"].take_row(self._row, np.array([target])):
                return False
            for name in ("_posteriors", "_marginals"):
                state.pop(name, None)
            state.update(_totals=totals)
        else:
            posterior = model._whole_posteriors()[0]
            known, posterior, refused = take_into(model._loss, self._row[0], target, state["_knowledge"][0], posterior)
            if refused is not None or not np.isfinite(posterior.mean.sum() + posterior.log_mass):
                return False
            state.update(_knowledge=(known,), _posteriors=(posterior,), _totals=totals)
        trace, updates = state["trace_"], state["_updates"] + 1
        state.update(_updates=updates, trace_=Trace(updates, (), (), trace.refusals, trace.dampings))
        return True

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
    """Whether single rows of a model can be taken in this way."""
    return (
        not model._is_joint
        and len(model._knowledge) == 1
        and "categories_" not in model.__dict__
        and "feature_names_in_" not in model.__dict__
        and model.status_.is_success
        and getattr(model, "_kind", "reals") == "reals"
        and not model._finds_scale
        and getattr(model, "class_weight", None) is None
        and (not hasattr(model, "y_scale_") or not model.normalize_y)
    )
