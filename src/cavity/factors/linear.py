"""Factors of linear models: rows, targets and a scalar loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cavity._checks import whole_number
from cavity._types import FloatArray, IndexArray
from cavity.factors.cost import Curvature, Derivatives, StarCosts
from cavity.factors.rows import checked_rows, dense_rows, squared, sum_shifted, touched, widened
from cavity.losses import Loss

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, init=False)
class LinearFactor:
    r"""A mini-batch of a linear model, :math:`u(\theta) = \sum_k w_k\, \ell(y_k, x_k^\top \theta)`.

    A step along axis i shifts the predictor of row k by a multiple of :math:`x_{ki}`, so a star of nodes needs one loss
    per entry of the rows: :math:`O(sd)` for dense rows, :math:`O(\mathrm{nnz})` for sparse rows. Dense and sparse rows
    give the same results.

    Parameters
    ----------
    loss
        A `Loss`.
    rows
        Array or sparse matrix ``(s, dim)``, finite.
    targets
        One target per row, as the loss requires.
    weights
        Non-negative weights; rows with weight zero are ignored.

    Examples
    --------
    >>> from cavity.losses import Hinge
    >>> factor = LinearFactor(Hinge(), [[1.0, 2.0], [0.0, 1.0]], [1.0, -1.0])
    >>> factor.cost(np.array([[0.0, 0.0], [1.0, 0.0]]))
    array([2., 1.])
    """

    loss: Loss
    dim: int
    coordinates: IndexArray | None
    targets: FloatArray
    weights: FloatArray
    _X: Any = field(repr=False)  # rows reduced to the coordinates

    def __init__(self, loss: Loss, rows: Any, targets: ArrayLike, weights: ArrayLike | None = None) -> None:
        X, y, w = checked_data(loss, rows, targets, weights)
        w = np.ones(X.shape[0]) if w is None else w
        if not np.all(w > 0.0):
            X, y, w = X[w > 0.0], y[w > 0.0], w[w > 0.0]
        reduced, coordinates = touched(X)
        _set(self, loss=loss, dim=int(X.shape[1]), coordinates=coordinates, targets=y, weights=w, _X=reduced)

    @classmethod
    def batches(
        cls, loss: Loss, X: Any, y: ArrayLike, batch_size: int = 10, weights: ArrayLike | None = None
    ) -> LinearBatches:
        """Split a data set into mini-batches of consecutive rows, without copying it. The last one may be shorter.

        Parameters
        ----------
        loss, X, y, batch_size, weights
            As in `cavity.factors.LinearBatches`.
        """
        return LinearBatches(loss, X, y, batch_size, weights)

    @property
    def rows(self) -> Any:
        """The rows in all coordinates, dense or CSR as they were given."""
        return widened(self._X, self.coordinates, self.dim)

    @property
    def has_slope(self) -> bool:
        """Yes: that of the loss."""
        return True

    def cost(self, points: FloatArray) -> FloatArray:
        """Weighted sum of the losses of all rows."""
        return np.asarray(self.loss.value(self.targets, points @ self._X.T) @ self.weights)

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        """Weighted sums over the rows."""
        value, slope, second = self._scalar_derivatives(point, curvature)
        return Derivatives(
            float(value @ self.weights),
            (self.weights * slope) @ self._X,
            (self.weights * second) @ squared(self._X),
        )

    def hessian(self, point: FloatArray, curvature: Curvature = "exact") -> FloatArray:
        """Weighted sum of the products of the rows with themselves."""
        A = dense_rows(self._X, False)
        return np.asarray((A.T * (self.weights * self._scalar_derivatives(point, curvature)[2])) @ A)

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        """One loss for every entry of the rows and direction."""
        z = (center[None] @ self._X.T)[0]
        here = np.asarray(self.loss.value(self.targets, z))
        total = float(here @ self.weights)

        def rise(row: Any, shift: FloatArray) -> FloatArray:
            there = self.loss.value(self.targets[row], z[row] + shift)
            return np.asarray(self.weights[row] * (there - here[row]))

        up, down = sum_shifted(self._X, rise, steps, -steps)
        return StarCosts(total, total + up, total + down)

    def newton_direction(
        self, point: FloatArray, gradient: FloatArray, precision: FloatArray, beta: float, curvature: Curvature
    ) -> FloatArray:
        """Solve a system of the smaller size of the rows, their number or their width."""
        second = self._scalar_derivatives(point, curvature)[2]
        root = np.sqrt(beta * self.weights * np.maximum(second, 0.0))
        A = root[:, None] * dense_rows(self._X, False)
        n, d = A.shape
        try:
            if d <= n:
                matrix = A.T @ A
                matrix[np.diag_indices(d)] += precision
                return np.asarray(-cho_solve(cho_factor(matrix), gradient))
            scaled = A / precision
            matrix = scaled @ A.T
            matrix[np.diag_indices(n)] += 1.0
            inner = cho_solve(cho_factor(matrix), scaled @ gradient)
            return np.asarray(scaled.T @ inner - gradient / precision)
        except (LinAlgError, ValueError):  # rounding, or not finite
            return np.asarray(-gradient / (precision + np.sum(A * A, axis=0)))

    def _scalar_derivatives(self, point: FloatArray, curvature: Curvature) -> tuple[FloatArray, FloatArray, FloatArray]:
        z = (point[None] @ self._X.T)[0]
        value, slope, second = self.loss.derivatives(self.targets, z)
        return value, slope, np.abs(slope) if curvature == "slope" else second


@dataclass(frozen=True, slots=True, init=False)
class LinearBatches(Sequence[LinearFactor]):
    """A data set as a sequence of mini-batch factors, each made from a view of the data when asked for.

    Batch ``k`` has the rows from ``cuts[k]`` to ``cuts[k + 1]``.

    Parameters
    ----------
    loss
        A `Loss`.
    X
        Array or sparse matrix ``(rows, dim)``, finite.
    y
        One target per row, as the loss requires.
    batch_size
        Rows per batch.
    weights
        One non-negative weight per row; all one by default.
    """

    loss: Loss
    X: Any
    targets: FloatArray
    weights: FloatArray | None
    cuts: NDArray[np.int64]

    def __init__(
        self, loss: Loss, X: Any, y: ArrayLike, batch_size: int = 10, weights: ArrayLike | None = None
    ) -> None:
        size = whole_number("batch_size", batch_size, least=1)
        rows, targets, w = checked_data(loss, X, y, weights)
        if targets.size == 0:
            raise ValueError("X must have at least one row, got none")
        _set(self, loss=loss, X=rows, targets=targets, weights=w, cuts=_cuts(targets.size, size))

    @classmethod
    def unchecked(
        cls, loss: Loss, X: Any, targets: FloatArray, batch_size: int, weights: FloatArray | None = None
    ) -> LinearBatches:
        """Cut data that were checked before.

        Parameters
        ----------
        loss, X, targets, batch_size, weights
            As of the class; rows are floats, dense or canonical CSR, and targets of the right kind.
        """
        X = X if sparse.issparse(X) else np.ascontiguousarray(X)
        cuts = _cuts(targets.size, whole_number("batch_size", batch_size, least=1))
        return _set(cls.__new__(cls), loss=loss, X=X, targets=targets, weights=weights, cuts=cuts)

    @classmethod
    def stack(cls, factors: Sequence[LinearFactor]) -> LinearBatches:
        """Gather factors of one loss and width into one data set, one batch per factor; copies their rows.

        Parameters
        ----------
        factors
            The factors, all of the same loss.
        """
        parts = [factor.rows for factor in factors]
        X = sparse.vstack(parts, format="csr") if any(map(sparse.issparse, parts)) else np.concatenate(parts)
        targets = np.concatenate([factor.targets for factor in factors])
        weights = np.concatenate([factor.weights for factor in factors])
        w = None if np.all(weights == 1.0) else weights
        cuts = np.cumsum([0, *(factor.targets.size for factor in factors)], dtype=np.int64)
        return _set(cls.__new__(cls), loss=factors[0].loss, X=X, targets=targets, weights=w, cuts=cuts)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.X.shape[1])

    def __len__(self) -> int:
        return self.cuts.size - 1

    @overload
    def __getitem__(self, index: int) -> LinearFactor: ...
    @overload
    def __getitem__(self, index: slice) -> list[LinearFactor]: ...
    def __getitem__(self, index: int | slice) -> LinearFactor | list[LinearFactor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        rows = slice(self.cuts[k], self.cuts[k + 1])
        weights = None if self.weights is None else self.weights[rows]
        return LinearFactor(self.loss, self.X[rows], self.targets[rows], weights)

    def cost(self, points: ArrayLike) -> FloatArray:
        """Total cost of all rows.

        Parameters
        ----------
        points
            Places ``(n, dim)``, or one place ``(dim,)``.
        """
        losses = self.losses(points)
        return np.asarray(np.sum(losses, axis=-1) if self.weights is None else losses @ self.weights)

    def losses(self, points: ArrayLike) -> FloatArray:
        """Loss of every row, without its weight; zero where the weight is zero.

        Parameters
        ----------
        points
            Places ``(n, dim)``, or one place ``(dim,)``.
        """
        t = np.asarray(points, dtype=np.float64)
        z = (self.X @ t.T).T if np.any(t) else np.zeros((*t.shape[:-1], self.targets.size))
        result: FloatArray
        if self.weights is None or np.all(self.weights > 0.0):
            result = self.loss.value(self.targets, z)
        else:  # the others are absent: their loss may be NaN, or raise
            kept, result = self.weights > 0.0, np.zeros(z.shape)
            result[..., kept] = self.loss.value(self.targets[kept], z[..., kept])
        return result


def _set(new: Made, **fields: Any) -> Made:
    """Fill in the fields of a new frozen object."""
    for name, value in fields.items():
        object.__setattr__(new, name, value)
    return new


def _cuts(rows: int, batch_size: int) -> NDArray[np.int64]:
    """Where batches of consecutive rows begin and the last one ends."""
    return np.append(np.arange(0, rows, batch_size, dtype=np.int64), rows)


def checked_data(
    loss: Loss, X: Any, y: ArrayLike, weights: ArrayLike | None
) -> tuple[Any, FloatArray, FloatArray | None]:
    """Check rows, targets and weights, and bring them to float arrays or canonical CSR; copies only if needed."""
    X = checked_rows(X)
    targets = np.asarray(y)
    if targets.shape != (X.shape[0],):
        raise ValueError(f"targets must be one number per row, shape ({X.shape[0]},), got {targets.shape}")
    if np.iscomplexobj(targets) or not (np.issubdtype(targets.dtype, np.number) or targets.dtype == bool):
        raise ValueError(f"targets must be numbers, got {targets.dtype}; encode the classes as -1 and +1")
    targets = targets.astype(np.float64, copy=False)
    if not np.all(np.isfinite(targets)):
        raise ValueError("targets must be finite, got NaN or infinity; drop these rows")
    if loss.targets == "signs" and not np.all(np.abs(targets) == 1.0):
        found = np.unique(targets)
        shown = ", ".join(f"{v:g}" for v in found[:4]) + (", ..." if found.size > 4 else "")
        remedy = (
            "map two classes with np.where(y == positive, 1, -1)" if found.size <= 2 else "take one against the rest"
        )
        raise ValueError(f"{type(loss).__name__} needs the labels -1 and +1, got {shown}; {remedy}")
    for kind, refused, need, other in (
        ("counts", targets < 0.0, "counts of zero or more", "real targets, such as Squared"),
        ("positives", targets <= 0.0, "targets above zero", "counts, such as Poisson"),
    ):
        if loss.targets == kind and np.any(refused):
            row = int(np.argmax(refused))
            got = f"got {targets[row]:g} in row {row}; drop these rows, or take a loss of {other}"
            raise ValueError(f"{type(loss).__name__} needs {need}, {got}")
    if weights is None:
        return X, targets, None
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != targets.shape:
        raise ValueError(f"weights must be one number per row, shape {targets.shape}, got {w.shape}")
    if not np.all((w >= 0.0) & np.isfinite(w)):
        raise ValueError("weights must be finite and not negative")
    return X, targets, w
