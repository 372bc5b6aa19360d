"""Labels as targets: classes and their weights, signs of two classes or the order of many, and the losses for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cavity import losses
from cavity._checks import as_float, one_of, shown
from cavity._types import FloatArray
from cavity.ep.hyperparameters import Group
from cavity.estimators.parameters import Plan, plan_joint
from cavity.estimators.posterior import RATE, mixing, turned
from cavity.estimators.rows import Data, Order, Totals, checked_offset, rows_of_weight
from cavity.estimators.runs import Coding, Summary, signs_of
from cavity.factors.columns import Columns
from cavity.losses import Loss
from cavity.losses.joint import Softmax
from cavity.terms.prior import Prior

if TYPE_CHECKING:
    from cavity.estimators.fitted import Fitted

# Losses that have a name; all are symmetric in the two classes.
LOSSES: dict[str, type] = {"logistic": losses.Logistic, "hinge": losses.Hinge, "quasi01": losses.QuasiZeroOne}
# Variance that coefficients give to the linear predictor where the search for their prior variance starts.
_FIRST_SPREAD = 5.0


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


def check_count(classes: Any) -> Any:
    """Refuse a single class, in scikit-learn's words."""
    if classes.size < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {classes.size} class")
    return classes


def ranks_of_classes(X: Any, codes: Any, weights: Any, count: int) -> tuple[int, ...]:
    """Place of every class in an order that follows from its rows: by their weight, then by the sums of columns."""
    w = np.ones(codes.size) if weights is None else weights
    totals = np.bincount(codes, w, count)
    belongs = np.asarray(codes == np.arange(count)[:, None], dtype=np.float64) * w
    sums = np.asarray(belongs @ X)
    order = np.lexsort((*sums.T[::-1], totals))
    return tuple(int(rank) for rank in np.argsort(order))


@dataclass(frozen=True, eq=False)
class Labels:
    """How labels become targets of a loss.

    Parameters
    ----------
    loss
        The loss of a label.
    class_weight
        Weights of the classes, as asked for.
    classes
        The labels in order; None before any were seen.
    ranks
        Place of every class among the predictors of a softmax, in an order that follows from the rows: permuting the
        labels then permutes the answer, to the last digit.
    """

    loss: Loss
    class_weight: Any = None
    classes: Any = None
    ranks: tuple[int, ...] | None = None

    kind = "signs"
    what = "class"  # what there are several linear predictors for
    unit, offset = 1.0, 0.0
    finds_scale, is_linear, is_single = False, False, False

    @classmethod
    def of(cls, model: Any, before: Labels | None = None) -> Labels:
        """Check the parameters of a classifier that only it has; classes are those of before, if there are any."""
        weight, loss = model.class_weight, model.loss
        balanced = isinstance(weight, str) and weight == "balanced"
        if not (weight is None or balanced or isinstance(weight, Mapping)):
            raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {shown(weight)}")
        if model.calibration is not None:
            one_of("calibration", model.calibration, ("loo",))
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise ValueError(f"loss must be one of {', '.join(map(repr, LOSSES))} or a loss object, got {loss!r}")
            loss = LOSSES[loss]()
        elif isinstance(loss, type) or getattr(loss, "targets", None) != "signs":
            raise ValueError(f"loss must be made for the labels -1 and +1 (targets 'signs'), got {loss!r}")
        return cls(loss, weight) if before is None else replace(before, loss=loss, class_weight=weight)

    def with_classes(self, classes: Any) -> Labels:
        """Labels with the classes that a call of `partial_fit` names, which the first call must."""
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight {self.class_weight!r} is not supported for partial_fit; to use it, compute the weights "
                "with compute_class_weight and pass them as class_weight"
            )
        if self.classes is None:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            return replace(self, classes=check_count(np.unique(column_or_1d(classes))))
        if classes is not None and not np.array_equal(np.unique(column_or_1d(classes)), self.classes):
            raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit, {self.classes!r}")
        return self

    def with_intercept(self, intercept: bool) -> Labels:
        """Labels have no offset that an intercept would take."""
        return self

    # Reading.

    def can_read(self, y: Any, rows: int) -> bool:
        """Whether targets need no other check than that of `read`."""
        return True

    def read(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> tuple[Labels, Data, Totals]:
        """Check labels, weights and offsets; without classes from before, the labels are all there are."""
        targets = self
        if self.classes is None:
            classes, codes = classes_and_codes(y)
            targets = replace(self, classes=check_count(classes))
        else:
            codes = codes_of(y, self.classes, X.shape[0])
        known = None
        if offset is not None:
            known = checked_offset(offset, X.shape[0])
            targets.refuse_offset(known)
        labels = codes if known is None else np.stack([codes, known])
        by_class = None if self.class_weight is None else targets._weights_by_class(codes)[codes]
        X, labels, weights = rows_of_weight(X, labels, sample_weight, by_class)
        codes, known = (labels, None) if known is None else (labels[0], labels[1])
        return (
            targets,
            Data(X, signs_of(codes, targets.classes.size), weights, known),
            Totals.of(X.shape[0], weights),
        )

    def adopt(self, summary: Summary) -> tuple[Labels, Coding, Totals]:
        """Take over the classes of a source, and the weights that they have."""
        if summary.classes is None or summary.class_counts is None:
            raise ValueError("targets must be labels")
        targets, counts = replace(self, classes=check_count(summary.classes)), summary.class_counts
        if summary.has_offset:
            targets.refuse_offset(summary)
        each = None if self.class_weight is None else targets._weights_by_class(np.arange(counts.size))
        if each is not None and isinstance(self.class_weight, str):
            each = np.sum(counts) / (counts.size * counts)  # balanced, as scikit-learn has it
        weight = 1.0 if each is None else float(each @ counts / np.sum(counts))
        return targets, Coding(int(counts.size), class_weights=each), Totals(weight * summary.weight)

    def refuse_offset(self, offset: Any) -> None:
        """Refuse a known part of the linear predictor where there are several."""
        if offset is not None and self.classes.size > 2:
            raise ValueError(f"offset is for two classes only, got {self.classes.size}")

    def _weights_by_class(self, codes: Any) -> FloatArray:
        """Weight of every class, given the classes of rows."""
        given = self.class_weight if isinstance(self.class_weight, str) else dict(self.class_weight)
        if not isinstance(given, str) and not all(0.0 <= as_float(w) < np.inf for w in given.values()):
            raise ValueError(f"class_weight must hold finite numbers that are not negative, got {shown(given)}")
        each = compute_class_weight(given, classes=self.classes, y=self.classes[codes])
        return np.asarray(each, dtype=np.float64)

    # Several classes.

    def joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        """Softmax over more than two classes and its plan, where that is not too wide."""
        if self.classes.size == 2 or not (isinstance(self.loss, losses.Logistic) and self.loss.sharpness == 1.0):
            return None
        plan = plan_joint(rows, columns, self.classes.size - 1, covariance, stream)
        return None if plan is None else (Softmax(int(self.classes.size)), plan)

    def of_joint(self, data: Data) -> tuple[Labels, Data]:
        """Give a softmax the numbers of the classes, in an order that follows from the first rows."""
        codes, targets = np.argmax(data.targets, axis=0), self
        if self.ranks is None:
            targets = replace(self, ranks=ranks_of_classes(data.X, codes, data.weights, self.classes.size))
        return targets, data._replace(targets=np.asarray(targets.ranks, dtype=np.float64)[codes][None])

    def of_joint_coding(self, coding: Coding, summary: Summary) -> tuple[Labels, Coding]:
        """Do the same for a source, by the rows that the classes have."""
        counts: Any = summary.class_counts
        order = np.lexsort((np.arange(counts.size), counts))
        targets = replace(self, ranks=tuple(int(rank) for rank in np.argsort(order)))
        return targets, coding._replace(ranks=targets.ranks)

    def mixing(self, loss: Any) -> FloatArray:
        """Matrix that gives the linear predictors of the classes, one per row, from those of a softmax."""
        return mixing(loss)[list(self.ranks or ())]

    def names(self, loss: Any) -> list[str] | None:
        """Names of the linear predictors, where there are several."""
        return None if self.classes.size == 2 else [str(c) for c in self.classes]

    # Prior and units.

    def prior(
        self, design: Any, columns: Columns, sizes: FloatArray, loss: Any, units: tuple[float, float] = (1.0, 0.0)
    ) -> tuple[Prior, tuple[Group, ...]]:
        """Prior of all coefficients of a posterior, and groups whose hyperparameters are to be found."""
        return design.prior(columns, sizes, _FIRST_SPREAD, RATE, *units, getattr(loss, "predictors", 1))

    def prior_units(self, totals: Totals, stream: bool = True) -> tuple[float, float]:
        """Return the unit of the coefficients, and the centre of the intercept's prior."""
        return 1.0, 0.0

    def units_of_predictors(self, loss: Any, count: int) -> list[tuple[float, float]]:
        """Return unit and offset of every linear predictor."""
        return [(1.0, 0.0)] * count

    def noise_found(self, fitted: Fitted) -> tuple[None, None]:
        """Labels have no noise scale."""
        return None, None

    # Streams.

    def order(self, before: Order, targets: FloatArray) -> Order:
        """Order of a stream with the rows of another call."""
        numbers = (targets[0] > 0.0).astype(np.intp) if len(targets) == 1 else np.argmax(targets, axis=0)
        return before.plus(numbers, self.classes.size)

    def totals_of(self, data: Data) -> Totals:
        """Add up rows of a stream."""
        return Totals.of(data.X.shape[0], data.weights)

    def normalised_again(self, data: Data) -> tuple[Labels, Data, Totals | None]:
        """Labels have no unit."""
        return self, data, None

    # Merging.

    def check_mergeable(self, one: Fitted, other: Fitted) -> None:
        """Refuse models of other classes or losses."""
        if not np.array_equal(one.targets.classes, other.targets.classes):
            raise ValueError(f"the models have different classes, {one.targets.classes} and {other.targets.classes}")
        if type(other.loss) is not type(one.loss) or other.loss != one.loss:
            raise ValueError(f"the models have different losses, {one.loss} and {other.loss}")

    def moved(self, other: Fitted, one: Fitted) -> Fitted:
        """Give another model the order of classes of this one."""
        if not one.is_joint or other.targets.ranks == self.ranks:
            return other
        rotation = self.mixing(one.loss).T @ other.targets.mixing(other.loss)
        known: Any = other.natural[0]
        return other.revised(sites=(turned(known, rotation),), targets=self)

    # Files.

    def fault(self, fitted: Fitted) -> str | None:
        """Name what does not fit together, if anything does not."""
        count = self.classes.size if isinstance(self.classes, np.ndarray) and self.classes.ndim == 1 else 0
        is_softmax = isinstance(fitted.loss, Softmax)
        fits = len(fitted.sites) == (1 if count == 2 or is_softmax else count)
        if isinstance(fitted.loss, Softmax):
            fits &= fitted.loss.predictors == count - 1 and sorted(self.ranks or []) == list(range(count))
        if count < 2 or not fits or not (is_softmax or fitted.loss.targets == "signs"):
            return "its classes do not fit its posteriors and its loss"
        return None
