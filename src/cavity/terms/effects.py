"""Effects of the levels of a column: intercepts and slopes per level, and effects with a known covariance."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.sparse import SparsePrecision
from cavity.terms.frames import codes, length, level_text, nearest, places_of
from cavity.terms.linear import LearnedLinear, Linear
from cavity.terms.protocol import Part, scattered
from cavity.terms.structures import Correlated, Scaled

# Smallest share of the mean square of a slope that the other effects of its group must leave unexplained.
_COLLINEAR = 1e-10
# Entries of an inverse covariance matrix below this share of the geometric mean of their diagonal are zeros.
_NOTHING = 1e-12
UNSEEN = "(unseen)"


@dataclass(frozen=True)
class Effects:
    r"""Random effects: one intercept, and slopes of columns, per level of a group, with a variance that is found.

    .. math:: u_i = w_i^\top b_{g(i)}, \qquad b_g \sim N(0, \Sigma),

    where u is their part of the linear predictor, and w has a one and the values of the slopes. New levels have effects
    of their own from the same distribution.

    Parameters
    ----------
    by
        Column of the groups, or several, whose combinations are the groups.
    slopes
        Columns, or expressions as in `Linear`, whose coefficients differ between groups.
    intercept
        Whether groups have intercepts.
    correlated
        Whether the effects of a group may be correlated.

    Examples
    --------
    >>> frame = {"g": np.array(["a", "a", "b"]), "x": np.array([0.0, 1.0, 2.0])}
    >>> Effects("g", "x").learn(frame, np.ones(3)).names[:2]
    ['(1 | g)[a]', '(x | g)[a]']
    """

    by: str | tuple[str, ...]
    slopes: str | tuple[str | tuple[str, ...], ...] | None = None
    intercept: bool = True
    correlated: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.by, str):
            object.__setattr__(self, "by", (self.by,))
        slopes = (self.slopes,) if isinstance(self.slopes, str) else tuple(self.slopes or ())
        object.__setattr__(self, "slopes", slopes)
        if not slopes and not self.intercept:
            raise ValueError(f"effects of {':'.join(self.by)!r} need an intercept or slopes")

    def linear(self, frame: Any) -> tuple[str, ...]:
        """None."""
        return ()

    def learn(self, frame: Any, weights: FloatArray) -> LearnedEffects:
        """Learn levels, and the mean products of what their effects are multiplied by."""
        where = self.label
        levels = tuple(_groups(frame, self.by, where)[1])
        if not levels:
            raise ValueError(f"{where} has no levels: it needs at least one row")
        slopes = Linear(self.slopes, intercept=self.intercept).learn(frame, weights)  # type: ignore[arg-type]
        learned = LearnedEffects(tuple(self.by), slopes, self.intercept, self.correlated, levels, np.eye(1), where)
        values = learned.values(frame)
        moments = values.T @ (weights[:, None] * values) / np.sum(weights)
        scale = np.sqrt(np.diagonal(moments))
        if not np.all(scale > 0.0):
            raise ValueError(f"{where}: {learned.effects[int(np.argmin(scale))]!r} is zero in all rows")
        if self.correlated and np.linalg.eigvalsh(moments / np.outer(scale, scale))[0] < _COLLINEAR:
            raise ValueError(
                f"{where}: the effects {', '.join(learned.effects)} are collinear; leave out a slope that is constant, "
                "or a combination of the others"
            )
        if self.intercept and self.slopes:
            still = _still(learned, frame, values)
            if still:
                warnings.warn(
                    f"{where}: within no level is there any variation of {' and '.join(still)}, so that intercepts and "
                    "slopes are told apart by differences between levels alone",
                    UserWarning,
                    stacklevel=2,
                )
        return replace(learned, moments=moments)

    @property
    def label(self) -> str:
        """The term as formulas write it."""
        texts = [one if isinstance(one, str) else ":".join(one) for one in self.slopes or ()]
        left = " + ".join(([] if self.intercept and texts else ["1" if self.intercept else "0"]) + texts)
        return f"({left} {'|' if self.correlated or not texts else '||'} {':'.join(self.by)})"


@dataclass(frozen=True, eq=False)
class LearnedEffects:
    """Levels of `Effects`, and the mean of the products of what they are multiplied by.

    Coefficients of correlated effects are ordered by levels, others by effects; the last level is for unseen ones.
    """

    by: tuple[str, ...]
    slopes: LearnedLinear
    intercept: bool
    correlated: bool
    levels: tuple[str, ...]
    moments: FloatArray
    label: str

    shown = "levels"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        return (*self.by, *self.slopes.variables)

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of the effects of a level."""
        return (*(["1"] if self.intercept else []), *self.slopes.names)

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        group, levels, effects = ":".join(self.by), (*self.levels, UNSEEN), self.effects
        if self.correlated:
            return [f"({effect} | {group})[{level}]" for level in levels for effect in effects]
        return [f"({effect} | {group})[{level}]" for effect in effects for level in levels]

    @property
    def parts(self) -> tuple[Part, ...]:
        """One structure, or one variance per effect."""
        levels, group, effects = len(self.levels) + 1, ":".join(self.by), self.effects
        if self.correlated and len(effects) > 1:
            structure = Correlated(effects, levels, self.moments)
            return (Part(f"{' + '.join(effects)} | {group}", structure.width, structure),)
        sizes = np.diagonal(self.moments)
        return tuple(
            Part(f"{effect} | {group}", levels, size=float(size)) for effect, size in zip(effects, sizes, strict=True)
        )

    def values(self, frame: Any) -> FloatArray:
        """Numbers that the effects of a level are multiplied by."""
        slopes = self.slopes.columns(frame)
        slopes = slopes.toarray() if sparse.issparse(slopes) else slopes
        return np.column_stack([np.ones((length(frame), int(self.intercept))), slopes])

    def places(self, frame: Any) -> IndexArray:
        """Place of every row's level, that of the unseen ones included."""
        own, levels = _groups(frame, self.by, self.label)
        return places_of(levels, self.levels)[own]

    def columns(self, frame: Any) -> sparse.csr_array:
        """One entry per row and effect."""
        values, place, levels = self.values(frame), self.places(frame)[:, None], len(self.levels) + 1
        k = values.shape[1]
        where = place * k + np.arange(k) if self.correlated else np.arange(k) * levels + place
        return scattered(values, where, levels * k)


def _still(learned: LearnedEffects, frame: Any, values: FloatArray) -> list[str]:
    """Names of the slopes that are constant within every level."""
    order = np.argsort(learned.places(frame), kind="stable")
    place, values = learned.places(frame)[order], values[order]
    moves = np.any((values[1:] != values[:-1]) & (place[1:] == place[:-1])[:, None], axis=0)
    return [repr(name) for name, varies in zip(learned.effects[1:], moves[1:], strict=True) if not varies]


def _groups(frame: Any, by: Sequence[str], where: str) -> tuple[IndexArray, list[str]]:
    """Group of every row, and all groups: levels of a column, or those combinations of several that occur."""
    found = [codes(frame, name, where) for name in by]
    each, levels = found[0]
    for own, more in found[1:]:
        used, each = np.unique(each * len(more) + own, return_inverse=True)
        levels = [f"{levels[k // len(more)]}:{more[k % len(more)]}" for k in used]
    return each, levels


@dataclass(frozen=True, eq=False)
class Known:
    """Effects of levels with a known covariance times a variance that is found: pedigrees, phylogenies, kernels.

    Parameters
    ----------
    by
        Column of the levels.
    covariance, precision
        One of both: a matrix, dense or sparse, with one row per level.
    levels
        Names of its rows; a DataFrame has them as its index.

    Examples
    --------
    >>> term = Known("animal", covariance=np.array([[1.0, 0.5], [0.5, 1.0]]), levels=("dam", "calf"))
    >>> term.learn({"animal": ["calf", "calf"]}, np.ones(2)).names
    ['known(animal)[dam]', 'known(animal)[calf]']
    """

    by: str
    covariance: Any = None
    precision: Any = None
    levels: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if (self.covariance is None) == (self.precision is None):
            raise ValueError(f"known({self.by}) needs either a covariance or a precision matrix")

    def linear(self, frame: Any) -> tuple[str, ...]:
        """None."""
        return ()

    def learn(self, frame: Any, weights: FloatArray) -> LearnedKnown:
        """Invert the covariance, and learn how large it is on average over the rows."""
        where, matrix = f"known({self.by})", self.covariance if self.precision is None else self.precision
        levels = getattr(matrix, "index", None) if self.levels is None else self.levels
        if levels is None:
            raise ValueError(
                f"{where} needs levels=, the names of the rows of its matrix, or a DataFrame that has them as its index"
            )
        names = tuple(level_text(level) for level in levels)
        if not sparse.issparse(matrix):
            matrix = np.asarray(matrix, dtype=np.float64)
        shape = (len(names),) * 2
        if matrix.shape != shape or len(set(names)) < len(names):
            raise ValueError(
                f"{where} needs a square matrix with one row for each of {len(set(names))} levels, got {matrix.shape}"
            )
        if abs(matrix - matrix.T).max() > 1e-8 * abs(matrix).max():
            raise ValueError(f"{where}: its matrix is not symmetric")
        try:
            precision, variances = _inverted(matrix) if self.precision is None else (matrix, _inverse_diagonal(matrix))
        except LinAlgError:
            raise ValueError(f"{where}: its matrix is not positive definite; add a little to its diagonal") from None
        found = sparse.coo_array(sparse.triu(precision))
        left, right = (np.asarray(one, dtype=np.intp) for one in found.coords)
        learned = LearnedKnown(self.by, names, left, right, np.asarray(found.data, dtype=np.float64), 1.0)
        size = float(weights @ variances[learned.places(frame)] / np.sum(weights))
        return replace(learned, size=size)


def _inverted(covariance: Any) -> tuple[Any, FloatArray]:
    """Invert a covariance matrix, tiny entries left out; and its diagonal."""
    full = covariance.toarray() if sparse.issparse(covariance) else covariance
    root = np.linalg.inv(np.linalg.cholesky(full))
    inverse = root.T @ root
    scale = np.sqrt(np.diagonal(inverse))
    inverse[np.abs(inverse) < _NOTHING * np.outer(scale, scale)] = 0.0
    return sparse.csr_array(inverse), np.diagonal(full).copy()


def _inverse_diagonal(precision: Any) -> FloatArray:
    """Variances of a precision matrix."""
    upper = sparse.csc_array(sparse.triu(sparse.csr_array(precision)))
    return SparsePrecision.of(upper, np.empty(0, dtype=np.intp)).variances()


@dataclass(frozen=True, eq=False)
class LearnedKnown:
    """Levels of `Known`, the upper triangle of their precision matrix, and their mean variance over the rows."""

    by: str
    levels: tuple[str, ...]
    left: IndexArray
    right: IndexArray
    values: FloatArray
    size: float = 1.0

    shown = "levels"

    @property
    def label(self) -> str:
        """The term as formulas write it."""
        return f"known({self.by})"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        return (self.by,)

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [f"{self.label}[{level}]" for level in self.levels]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """One structure."""
        n = len(self.levels)
        upper = sparse.csr_array((self.values, (self.left, self.right)), shape=(n, n))
        structure = Scaled(sparse.csr_array(upper + sparse.triu(upper, 1).T), n, self.size)
        return (Part(self.label, n, structure),)

    def places(self, frame: Any) -> IndexArray:
        """Place of every row's level."""
        own, each = codes(frame, self.by, self.label)
        place = places_of(each, self.levels)
        used = np.bincount(own, minlength=len(each)) > 0
        lacking = np.flatnonzero(used & (place == len(self.levels)))
        if lacking.size:
            text = each[lacking[0]]
            raise ValueError(
                f"{self.label}: {lacking.size} levels of the data are not in its matrix, such as {text!r}: "
                f"{nearest(text, self.levels)}"
            )
        return place[own]

    def columns(self, frame: Any) -> sparse.csr_array:
        """One entry per row."""
        return scattered(1.0, self.places(frame)[:, None], len(self.levels))
