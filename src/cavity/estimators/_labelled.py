"""Rows with labels: how labels are read, weighted and told apart, and what loss they have."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import compute_class_weight

from cavity import losses
from cavity._checks import as_float, shown
from cavity.ep.result import Result
from cavity.estimators._design import Data, SumsTargets, checked_offset, rows_of_weight
from cavity.estimators._joint import turned
from cavity.estimators._labels import (
    check_count,
    classes_and_codes,
    codes_of,
    ranks_of_classes,
    signs_of,
)
from cavity.estimators._parameters import Parameters
from cavity.estimators._plan import Plan, plan_joint
from cavity.estimators._sources import Coding, Summary
from cavity.estimators._streaming import StreamingEP
from cavity.estimators._totals import Totals
from cavity.losses import Loss
from cavity.losses.joint import Softmax

FloatArray = NDArray[np.float64]

# Losses that have a name; all are symmetric in the two classes.
LOSSES: dict[str, type] = {"logistic": losses.Logistic, "hinge": losses.Hinge, "quasi01": losses.QuasiZeroOne}


class LabelledRows(StreamingEP):
    """Base of the classifier."""

    loss: Any
    class_weight: Any
    classes_: Any
    # Place of every class among the predictors of a softmax.
    _class_ranks: list[int]

    def _read(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None, reset: bool = True, classes: Any = None
    ) -> tuple[Data, Totals]:
        """Check rows, labels, weights and offsets; the classes are those of the labels, unless given."""
        if reset or not self._is_plain(X):
            X, y = self._check_X(X, y=y, reset=reset)
        if classes is None:
            self.classes_, codes = classes_and_codes(y)
            check_count(self.classes_)
        else:
            codes = codes_of(y, classes, X.shape[0])
        known = checked_offset(offset, X.shape[0])
        self._refuse_offset(known)
        labels = codes if known is None else np.stack([codes, known])
        X, labels, weights = rows_of_weight(X, labels, sample_weight, self._class_weights(codes))
        codes, known = (labels, None) if known is None else (labels[0], labels[1])
        return Data(X, signs_of(codes, self.classes_.size), weights, known), Totals.of(X, weights)

    def _refuse_offset(self, offset: Any) -> None:
        if offset is not None and self.classes_.size > 2:
            raise ValueError(f"offset is for two classes, whose log odds it is part of; there are {self.classes_.size}")

    def _joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        """Softmax over more than two classes, where that is not too wide."""
        loss = self._make_loss()
        if self.classes_.size == 2 or not (isinstance(loss, losses.Logistic) and loss.sharpness == 1.0):
            return None
        plan = plan_joint(rows, columns, self.classes_.size - 1, covariance, stream)
        return None if plan is None else (Softmax(int(self.classes_.size)), plan)

    def _keep(self, plan: Plan, intercept: bool, outcomes: Sequence[Result], rows: SumsTargets, totals: Totals) -> None:
        super()._keep(_of_each(plan, len(outcomes)), intercept, outcomes, rows, totals)

    def _adopt_targets(self, summary: Summary) -> tuple[Coding, Totals]:
        """Take over the classes of a source, and the weights that they have."""
        if summary.classes is None or summary.class_counts is None:
            raise ValueError("targets must be labels")
        self.classes_ = check_count(summary.classes)
        if summary.has_offset:
            self._refuse_offset(summary)
        counts = summary.class_counts
        each = None if self.class_weight is None else self._weights_by_class(np.arange(counts.size))
        if each is not None and isinstance(self.class_weight, str):
            each = np.sum(counts) / (counts.size * counts)  # balanced, as scikit-learn has it
        weight = 1.0 if each is None else float(each @ counts / np.sum(counts))
        totals = Totals(weight * summary.weight, weight * summary.sizes)
        return Coding(int(counts.size), class_weights=each), totals

    def _joint_coding(self, coding: Coding, summary: Summary) -> Coding:
        """Count classes by their rows, so that permuting the labels permutes the answer."""
        counts: Any = summary.class_counts
        order = np.lexsort((np.arange(counts.size), counts))
        self._class_ranks = [int(rank) for rank in np.argsort(order)]
        return coding._replace(ranks=tuple(self._class_ranks))

    def _prepare_stream(self, p: Parameters, data: Data, totals: Totals, forget: float) -> None:
        first = not self.__sklearn_is_fitted__()
        super()._prepare_stream(p, data, totals, forget)
        if first:
            self.plan_ = _of_each(self.plan_, len(self._knowledge))

    def _joint_targets(self, data: Data, first: bool) -> FloatArray:
        """Numbers of the classes, counted in an order that does not depend on the names of the classes.

        Then permuting the labels permutes the answer, to the last digit.
        """
        codes = np.argmax(data.targets, axis=0)
        if first:
            self._class_ranks = ranks_of_classes(data.X, codes, data.weights, self.classes_.size)
        return np.asarray(self._class_ranks, dtype=np.float64)[codes][None]

    def _mixing(self) -> FloatArray:
        return super()._mixing()[self._class_ranks]

    def _make_loss(self) -> Loss:
        balanced = isinstance(self.class_weight, str) and self.class_weight == "balanced"
        if not (self.class_weight is None or balanced or isinstance(self.class_weight, Mapping)):
            raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {shown(self.class_weight)}")
        loss: Any = self.loss
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise ValueError(f"loss must be one of {', '.join(map(repr, LOSSES))} or a loss object, got {loss!r}")
            loss = LOSSES[loss]()
        elif isinstance(loss, type) or getattr(loss, "targets", None) != "signs":
            raise ValueError(f"loss must be made for the labels -1 and +1 (targets 'signs'), got {loss!r}")
        made: Loss = loss
        return made

    def _class_weights(self, codes: Any) -> FloatArray | None:
        """Weight of every row's class."""
        if self.class_weight is None:
            return None
        return self._weights_by_class(codes)[codes]

    def _weights_by_class(self, codes: Any) -> FloatArray:
        """Weight of every class, given the classes of rows."""
        given = self.class_weight if isinstance(self.class_weight, str) else dict(self.class_weight)
        if not isinstance(given, str) and not all(0.0 <= as_float(w) < np.inf for w in given.values()):
            raise ValueError(f"class_weight must hold finite numbers that are not negative, got {shown(given)}")
        each = compute_class_weight(given, classes=self.classes_, y=self.classes_[codes])
        return np.asarray(each, dtype=np.float64)

    def _check_own_state(self) -> None:
        classes = vars(self).get("classes_")
        count = classes.size if isinstance(classes, np.ndarray) and classes.ndim == 1 else 0
        joint, ranks = isinstance(self._loss, Softmax), vars(self).get("_class_ranks")
        fits = len(self._knowledge) == (1 if count == 2 or joint else count)
        if isinstance(self._loss, Softmax):
            fits &= self._loss.predictors == count - 1 and sorted(ranks or []) == list(range(count))
        if count < 2 or not fits or not (joint or self._loss.targets == "signs"):
            raise ValueError("the model is not consistent: its classes do not fit its posteriors and its loss")

    def _check_mergeable(self, other: Self) -> None:
        super()._check_mergeable(other)
        if not np.array_equal(other.classes_, self.classes_):
            raise ValueError(f"the models have different classes, {self.classes_} and {other.classes_}")

    def _absorb(self, one: Self, other: Self) -> None:
        if one._is_joint and one._class_ranks != other._class_ranks:
            rotation = one._mixing().T @ other._mixing()
            other = copy.copy(other)
            known: Any = other._known()[0]
            other._revise(_knowledge=(turned(known, rotation),))
        super()._absorb(one, other)


def _of_each(plan: Plan, posteriors: int) -> Plan:
    """Say so where every class has a posterior of its own."""
    if posteriors == 1:
        return plan
    return replace(plan, reason=f"{plan.reason}; one posterior for each of {posteriors} classes against the rest")
