"""Labels: how they are read, weighted and turned into signs or class numbers, and what loss they have."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cavity import losses
from cavity._checks import as_float, shown
from cavity.estimators._design import Data, Order, Totals, checked_offset, rows_of_weight
from cavity.estimators._joint import turned
from cavity.estimators._plan import Plan, plan_joint
from cavity.estimators._sources import Coding, Summary, signs_of
from cavity.estimators._streaming import StreamingEP
from cavity.losses import Loss
from cavity.losses.joint import Softmax

FloatArray = NDArray[np.float64]


def classes_and_codes(y: Any) -> tuple[Any, Any]:
    """Labels in order, and which of them every row has; two whole numbers are found without sorting."""
    if y.dtype.kind in "iubf" and y.size:
        low, high = np.min(y), np.max(y)
        upper = y == high
        whole = low != high and float(low).is_integer() and float(high).is_integer()
        if whole and np.count_nonzero(upper) + np.count_nonzero(y == low) == y.size:
            return np.array([low, high], dtype=y.dtype), upper.view(np.int8)
    try:
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"y must hold labels of one kind, numbers or strings: {error}") from error
    return classes, codes


def codes_of(y: Any, classes: Any, rows: int) -> Any:
    """Which of known classes every row has."""
    labels = y if type(y) is np.ndarray and y.ndim == 1 else column_or_1d(y, warn=True)
    if labels.shape[0] != rows:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: [{rows}, {labels.shape[0]}]")
    known = classes.tolist()
    if classes.size == 2:
        upper = labels == classes[1]
        if np.all(upper | (labels == classes[0])):
            return upper.view(np.int8)
    elif all(one in known for one in labels) if labels.dtype == object else np.all(np.isin(labels, classes)):
        return np.searchsorted(classes, labels)
    unknown = sorted({repr(label) for label in labels.tolist()} - {repr(label) for label in known})
    raise ValueError(f"y holds labels that were not among the classes {classes}: {', '.join(unknown[:10])}")


def by_row(values: FloatArray) -> FloatArray:
    """One number per row for one linear predictor, a column per class for more."""
    return values[0] if len(values) == 1 else values.T


def normalised(logs: FloatArray) -> FloatArray:
    """Log probabilities of two classes, or of many from each against the rest; ``logs`` are those of both signs."""
    negative, positive = logs
    if len(positive) == 1:
        return np.column_stack([negative[0], positive[0]])
    return np.asarray(log_softmax(positive, axis=0).T)


def check_count(classes: Any) -> Any:
    """Refuse a single class, in scikit-learn's words."""
    if classes.size < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {classes.size} class")
    return classes


def ranks_of_classes(X: Any, codes: Any, weights: Any, count: int) -> list[int]:
    """Place of every class in an order that follows from its rows: by their weight, then by the sums of columns."""
    w = np.ones(codes.size) if weights is None else weights
    totals = np.bincount(codes, w, count)
    belongs = np.asarray(codes == np.arange(count)[:, None], dtype=np.float64) * w
    sums = np.asarray(belongs @ X)
    order = np.lexsort((*sums.T[::-1], totals))
    return [int(rank) for rank in np.argsort(order)]


# Losses that have a name; all are symmetric in the two classes.
LOSSES: dict[str, type] = {"logistic": losses.Logistic, "hinge": losses.Hinge, "quasi01": losses.QuasiZeroOne}


class LabelledRows(StreamingEP):
    """Base of the classifier."""

    loss: Any
    class_weight: Any
    classes_: Any
    # Place of every class among the predictors of a softmax.
    _class_ranks: list[int]

    def _check_classes(self, classes: Any) -> None:
        """Check the classes of a call of `partial_fit`, and keep those of the first."""
        first = not self.__sklearn_is_fitted__()
        if first:
            self._check_parameters()
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight {self.class_weight!r} is not supported for partial_fit; to use it, compute the weights "
                "with compute_class_weight and pass them as class_weight"
            )
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if first:
            self.classes_ = check_count(np.unique(column_or_1d(classes)))
        elif classes is not None and not np.array_equal(np.unique(column_or_1d(classes)), self.classes_):
            raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit, {self.classes_!r}")

    def _read(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None, reset: bool = True, stream: bool = False
    ) -> tuple[Data, Totals]:
        """Check rows, labels, weights and offsets; a stream has its classes before."""
        if reset or not self._is_plain(X):
            X, y = self._check_X(X, y=y, reset=reset)
        if stream:
            codes = self._codes(y, X.shape[0])
        else:
            self.classes_, codes = classes_and_codes(y)
            check_count(self.classes_)
        known = checked_offset(offset, X.shape[0])
        self._refuse_offset(known)
        labels = codes if known is None else np.stack([codes, known])
        by_class = None if self.class_weight is None else self._weights_by_class(codes)[codes]
        X, labels, weights = rows_of_weight(X, labels, sample_weight, by_class)
        codes, known = (labels, None) if known is None else (labels[0], labels[1])
        return Data(X, signs_of(codes, self.classes_.size), weights, known), Totals.of(X.shape[0], weights)

    def _codes(self, y: Any, rows: int) -> Any:
        """Which of the classes every row has."""
        return codes_of(y, self.classes_, rows)

    def _refuse_offset(self, offset: Any) -> None:
        if offset is not None and self.classes_.size > 2:
            raise ValueError(f"offset is for two classes only, got {self.classes_.size}")

    def _joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        """Softmax over more than two classes, where that is not too wide."""
        loss = self._make_loss()
        if self.classes_.size == 2 or not (isinstance(loss, losses.Logistic) and loss.sharpness == 1.0):
            return None
        plan = plan_joint(rows, columns, self.classes_.size - 1, covariance, stream)
        return None if plan is None else (Softmax(int(self.classes_.size)), plan)

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
        totals = Totals(weight * summary.weight)
        return Coding(int(counts.size), class_weights=each), totals

    def _joint_coding(self, coding: Coding, summary: Summary) -> Coding:
        """Count classes by their rows, so that permuting the labels permutes the answer."""
        counts: Any = summary.class_counts
        order = np.lexsort((np.arange(counts.size), counts))
        self._class_ranks = [int(rank) for rank in np.argsort(order)]
        return coding._replace(ranks=tuple(self._class_ranks))

    def _joint_targets(self, data: Data, first: bool) -> FloatArray:
        """Numbers of the classes, counted in an order that does not depend on the names of the classes.

        Then permuting the labels permutes the answer, to the last digit.
        """
        codes = np.argmax(data.targets, axis=0)
        if first:
            self._class_ranks = ranks_of_classes(data.X, codes, data.weights, self.classes_.size)
        return np.asarray(self._class_ranks, dtype=np.float64)[codes][None]

    def _order_with(self, targets: FloatArray) -> Order:
        numbers = (targets[0] > 0.0).astype(np.intp) if len(targets) == 1 else np.argmax(targets, axis=0)
        return self._order.plus(numbers, self.classes_.size)

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
