"""Rows of a fit: checked arrays, sums over them, and the rows that a stream keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import gammaln, rel_entr
from sklearn.utils.validation import _check_sample_weight

from cavity._checks import number_between, positive_number, shown
from cavity._types import FloatArray
from cavity.estimators.columns import EncodedRows
from cavity.estimators.parameters import LARGEST_NUMBER
from cavity.factors.columns import Columns

# Weight below which forgetting takes no row: as good as none, and still positive.
LEAST_WEIGHT = 1e-12


class NoWeightError(ValueError):
    """No row of a call has a positive weight."""


class Data(NamedTuple):
    """Rows of positive weight: matrix, targets ``(predictors, rows)``, weights unless all are one, offsets if any."""

    X: Any
    targets: Any
    weights: Any
    offset: Any = None

    def sum_over_targets(self, function: Callable[[Any], Any]) -> float:
        """Weighted sum of a function of the first targets."""
        values = function(self.targets[0])
        return float(np.sum(values) if self.weights is None else self.weights @ values)


class KeptRows(NamedTuple):
    """The last rows of a stream, which are fitted together, and what was known before them.

    Parameters
    ----------
    known, columns
        Products of the sites of all rows before, for columns with these centres and units.
    totals
        Sums over the rows before.
    noise
        What they say of the logarithm of the noise scale: information and shift.
    scale
        Noise scale of ``known``.
    trace
        What happened with the rows before.
    parts
        The rows, a part per call.
    fitted
        How many of them were last fitted together.
    wait
        After how many further rows they are fitted again when someone looks at the model.
    """

    known: tuple[Any, ...]
    columns: Columns
    totals: Totals
    noise: tuple[float, float]
    scale: float
    trace: Any
    parts: tuple[Data, ...] = ()
    fitted: int = 0
    wait: int = 0

    @property
    def size(self) -> int:
        """Number of rows."""
        return sum(part.X.shape[0] for part in self.parts)

    def plus(self, data: Data) -> KeptRows:
        """Add copies of rows: whoever gave them may write the next ones into the same arrays.

        Parts are joined such that each has more than twice the rows of the next: there are few of them.
        """
        parts = [*self.parts, Data(*(None if a is None else a.copy() for a in data))]
        while len(parts) > 1 and parts[-2].X.shape[0] <= 2 * parts[-1].X.shape[0]:
            parts[-2:] = [_joined(parts[-2:])]
        return self._replace(parts=tuple(parts))

    def times(self, keep: float) -> KeptRows:
        """Multiply the weights of all rows by a number; those of kept rows stay positive."""
        ones = (np.ones(part.X.shape[0]) if part.weights is None else part.weights for part in self.parts)
        lower = (np.maximum(keep * weights, LEAST_WEIGHT) for weights in ones)
        parts = zip(self.parts, lower, strict=True)
        return self._replace(
            known=tuple(one.times(keep) for one in self.known),
            totals=self.totals.times(keep),
            noise=(keep * self.noise[0], keep * self.noise[1]),
            parts=tuple(part._replace(weights=weights) for part, weights in parts),
        )

    def joined(self) -> Data:
        """All rows in one."""
        return self.parts[0] if len(self.parts) == 1 else _joined(self.parts)


# Odds against rows in random order, on a logarithmic scale, from which on they count as sorted: a million to one.
_SORTED = math.log(1e6)


class Order(NamedTuple):
    """How much the labels or targets of a stream look sorted.

    Where every call lies beyond all rows before it, ``up`` or ``down`` are minus the logarithms of the probability that
    rows in random order would do so; ties are no evidence. Labels of classes, given by their numbers, are sorted as
    well where they hardly ever change from one row to the next.
    """

    rows: int = 0
    least: float = math.inf
    largest: float = -math.inf
    at_least: int = 0
    at_largest: int = 0
    up: float = 0.0
    down: float = 0.0
    counts: tuple[int, ...] = ()
    changes: int = 0
    last: float = -math.inf

    @property
    def is_sorted(self) -> bool:
        """Whether rows in random order would hardly come like this."""
        return max(self.up, self.down, self._steadiness) > _SORTED

    def plus(self, values: Any, classes: int = 0) -> Order:
        """Add the rows of a call; what was found sorted stays so."""
        if self.is_sorted:
            return self
        least, largest = min(self.least, float(np.min(values))), max(self.largest, float(np.max(values)))
        counts = np.zeros(classes, dtype=np.int64)
        if classes:
            counts = np.bincount(values.astype(np.intp), minlength=classes) + np.array(self.counts or counts)
        changes = int(np.count_nonzero(np.diff(values))) + int(self.rows > 0 and self.last != values[0])
        return Order(
            self.rows + len(values),
            least,
            largest,
            self.at_least * (least == self.least) + int(np.count_nonzero(values == least)),
            self.at_largest * (largest == self.largest) + int(np.count_nonzero(values == largest)),
            self._beyond(values, self.largest, self.at_largest, self.up),
            self._beyond(-values, -self.least, self.at_least, self.down),
            tuple(int(count) for count in counts),
            self.changes + changes,
            float(values[-1]),
        )

    @property
    def _steadiness(self) -> float:
        """Minus the logarithm of a bound of the probability of so few changes of labels (Chernoff's)."""
        pairs = self.rows - 1
        expected = 1.0 - sum((count / self.rows) ** 2 for count in self.counts) if self.counts else 0.0
        share = self.changes / pairs if pairs > 0 else 1.0
        return pairs * float(rel_entr(share, expected) + rel_entr(1.0 - share, 1.0 - expected)) * (share < expected)

    def _beyond(self, values: Any, top: float, at_top: int, before: float) -> float:
        if not self.rows or np.min(values) < top:
            return 0.0
        n, m, above = self.rows, len(values), int(np.count_nonzero(values > top))
        later = _log_choices(n + m, above) - _log_choices(m, above)  # all that are above come in this call
        earlier = _log_choices(n + m, n - at_top) - _log_choices(n, n - at_top)  # all that are below came before
        return before + max(later, earlier)


def _log_choices(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _joined(parts: Sequence[Data]) -> Data:
    """All rows of several parts."""
    matrices, targets, weights, offsets = zip(*parts, strict=True)
    if any(sparse.issparse(X) for X in matrices):
        X = sparse.csr_array(sparse.vstack([sparse.csr_array(X) for X in matrices], format="csr"))
    else:
        X = np.vstack(matrices)
    sizes = [part.X.shape[0] for part in parts]
    return Data(X, np.concatenate(targets, axis=-1), _filled(weights, sizes, 1.0), _filled(offsets, sizes, 0.0))


def _filled(parts: Sequence[Any], sizes: Sequence[int], missing: float) -> Any:
    """Numbers of all rows, where those of some parts may be missing; None if all are."""
    if all(part is None for part in parts):
        return None
    return np.concatenate([np.full(n, missing) if a is None else a for a, n in zip(parts, sizes, strict=True)])


def with_intercept(X: Any) -> Any:
    """Append a column of ones."""
    n, d = X.shape
    if not sparse.issparse(X):
        rows = np.ones((n, d + 1), dtype=X.dtype)
        rows[:, :d] = X
        return rows
    ends = X.indptr[1:]
    data, indices = np.insert(X.data, ends, 1.0), np.insert(X.indices, ends, d)
    starts = X.indptr + np.arange(n + 1, dtype=X.indptr.dtype)
    return sparse.csr_array((data, indices, starts), shape=(n, d + 1))


def rows_of_weight(X: Any, targets: Any, sample_weight: ArrayLike | None, factors: Any = None) -> tuple[Any, Any, Any]:
    """Check the weights, times factors of their own if there are any, and drop the rows of weight zero.

    Such rows count as absent, also where mini-batches are cut. Without weights the third value is None.
    """
    weights = factors
    given = np.asarray(sample_weight, dtype=np.float64)
    if given.shape == (X.shape[0],) and not np.any(given):
        weights = given  # refused below: scikit-learn has other words for zeros
    elif sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if np.any(weights > LARGEST_NUMBER):
            raise ValueError(f"sample_weight must be at most {LARGEST_NUMBER:g}, got {np.max(weights):g}")
        weights = weights if factors is None else weights * factors
    if weights is None or np.all(weights > 0.0):
        return X, targets, weights
    kept = weights > 0.0
    if not np.any(kept):
        raise NoWeightError(
            "sample_weight must be positive for at least one row of a fit, and of the first call of partial_fit, got "
            "zeros only: give rows of positive weight"
        )
    return X[kept], targets[..., kept], weights[kept]


def checked_offset(offset: ArrayLike, rows: int) -> FloatArray:
    """Check known parts of the linear predictors, one per row."""
    try:
        found = np.asarray(offset, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    if found.shape != (rows,) or not np.all(np.abs(found) <= LARGEST_NUMBER):
        raise ValueError(f"offset must hold one finite number for each of {rows} rows, got {shown(offset)}")
    return found


def forgetting(forget: Any, halflife: Any, sample_weight: ArrayLike | None, X: Any) -> tuple[float, Any]:
    """Give the share of what is known that a call gives up, and the weights of its rows.

    With a half-life H, in rows, every row multiplies what was said before by :math:`2^{-1/H}`, rows of the same call
    included: these have weights that fall from the last one to the first.
    """
    share = number_between("forget", forget, 0.0, 1.0, "[)")
    if halflife is None:
        return share, sample_weight
    if share:
        raise ValueError("forget and halflife exclude each other: give one of them")
    X = X.matrix if isinstance(X, EncodedRows) else X
    rows = np.shape(X)[0]
    rate = np.log(2.0) / positive_number("halflife", halflife)
    if rows <= 1:
        return float(-np.expm1(-rate * rows)), sample_weight
    falling = np.exp(-rate * np.arange(rows - 1.0, -1.0, -1.0))
    given = np.asarray(1.0 if sample_weight is None else sample_weight, dtype=np.float64)
    if given.shape not in ((), (rows,)):
        return share, sample_weight  # refused with the rows
    return min(float(-np.expm1(-rate * rows)), 1.0 - 1e-12), np.maximum(falling, LEAST_WEIGHT) * given


def squared(X: Any) -> Any:
    """Entries squared, dense or sparse."""
    return X.power(2) if sparse.issparse(X) else np.square(X)


class Totals(NamedTuple):
    """Weighted sums, with weight w per row: of w, w t, w t² and, for counts, the logarithms of normalisers.

    The targets t are logarithms where targets are positive.
    """

    rows: float = 0.0
    targets: float = 0.0
    squares: float = 0.0
    constants: float = 0.0

    @classmethod
    def of(cls, rows: int, weights: FloatArray | None, targets: FloatArray | None = None) -> Totals:
        """Sum over rows."""
        w = np.ones(rows) if weights is None else weights
        t = np.zeros(rows) if targets is None else targets
        return cls(float(np.sum(w)), float(w @ t), float(w @ (t * t)))

    def plus(self, other: Totals) -> Totals:
        """Add the sums over other rows."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Totals:
        """Keep a share of them."""
        return Totals(*(factor * a for a in self))

    @property
    def mean(self) -> float:
        """Mean of the targets."""
        return self.targets / self.rows if self.rows else 0.0

    def spread_around(self, mean: bool) -> float:
        """Return the standard deviation of the targets around their mean, or around zero."""
        return self.spread if mean or not self.rows else float(np.sqrt(self.squares / self.rows))

    @property
    def spread(self) -> float:
        """Standard deviation of the targets; zero where rounding leaves nothing of it."""
        if not self.rows:
            return 0.0
        variance = self.squares / self.rows - self.mean * self.mean
        return float(np.sqrt(variance)) if variance > 1e-12 * self.squares / self.rows else 0.0


def coarse(number: float, unit: float | None = None) -> float:
    """Round to a billionth of a unit, or of the number itself.

    Sums over weighted and over repeated rows, which round differently, then agree to the last bit.
    """
    if unit is None:
        unit = math.ldexp(1.0, math.frexp(number)[1])
    bits = 30  # a billionth: far above the rounding of sums and far below what matters
    return unit * math.ldexp(round(math.ldexp(number / unit, bits)), -bits)
