"""Terms of the cost: what a scheme may ask of a factor, and factors of any Python callable."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cavity._checks import flag, one_of, positive_number, shown, whole_number
from cavity._types import FloatArray, IndexArray

Curvature = Literal["exact", "slope"]


class Derivatives(NamedTuple):
    """Cost at a point and its derivatives.

    Parameters
    ----------
    value
        The cost.
    gradient
        Its gradient.
    curvature
        The diagonal of its second derivatives.
    """

    value: float
    gradient: FloatArray
    curvature: FloatArray


class StarCosts(NamedTuple):
    """Cost at the nodes of a star.

    Parameters
    ----------
    center
        Cost at the centre.
    up, down
        Cost at a step up, and down, along every axis.
    """

    center: float
    up: FloatArray
    down: FloatArray


class Factor(Protocol):
    r"""One term :math:`u_k(\theta)` of the cost; its factor of the density is :math:`e^{-\beta u_k}`.

    A factor that touches only some coordinates names them in ``coordinates``, and every point it is given
    then has just those, in that order; all others integrate out of its moments.
    """

    @property
    def dim(self) -> int:
        """Number of coordinates of the whole problem."""

    @property
    def coordinates(self) -> IndexArray | None:
        """Sorted coordinates that matter to the cost, or None for all of them."""

    @property
    def has_slope(self) -> bool:
        """Whether ``curvature="slope"`` has a meaning."""

    def cost(self, points: FloatArray) -> FloatArray:
        """Cost at several points, of shape ``(n,)``.

        Parameters
        ----------
        points
            Places of shape ``(n, d)``.
        """

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        """Value, gradient and curvature at one point.

        Parameters
        ----------
        point
            The place, of shape ``(d,)``.
        curvature
            ``"exact"``, or where `has_slope` also ``"slope"``: the size of the loss's slope in place of its second
            derivative.
        """

    def hessian(self, point: FloatArray, curvature: Curvature = "exact") -> FloatArray:
        """Matrix of second derivatives at one point.

        Parameters
        ----------
        point, curvature
            As in `derivatives`.
        """

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        """Cost at the centre and at a step up and down along every axis.

        Parameters
        ----------
        center
            The place in the middle, of shape ``(d,)``.
        steps
            Length of the step along every axis.
        """

    def newton_direction(
        self, point: FloatArray, gradient: FloatArray, precision: FloatArray, beta: float, curvature: Curvature
    ) -> FloatArray:
        r"""Solve :math:`(\mathrm{diag}(p) + \beta \nabla\nabla^\top u(\theta))\, x = -g` for a descent direction.

        Where the matrix is not positive definite, its non-negative part or diagonal stands in for it.

        Parameters
        ----------
        point
            The place :math:`\theta`.
        gradient
            The gradient :math:`g` of all that is minimised.
        precision
            The precisions :math:`p` of the cavity.
        beta
            Inverse temperature.
        curvature
            As in `derivatives`.
        """


@dataclass(frozen=True, slots=True)
class CostFactor:
    r"""A factor :math:`e^{-\beta u}` of any cost :math:`u`, smooth or not.

    Schemes that use nodes need :math:`2d + 1` calls per visit. Only the two Laplace schemes need derivatives. They come
    from the given functions, from JAX if requested, or from central differences, with a relative error near 1e-10 for
    the gradient and 1e-8 for the curvature of a cost near one. `Laplace` needs :math:`O(d^2)` calls per step.

    Parameters
    ----------
    cost_function
        Function of one point of shape ``(d,)``, or of points ``(n, d)`` with ``vectorized=True``.
    dim
        Number of coordinates of the whole problem.
    gradient, curvature
        Functions of one point that return the gradient, and the diagonal of the second derivatives.
    coordinates
        Coordinates that the cost depends on. The function is then called with only these, in increasing order.
    vectorized
        Whether the function accepts many points at once.
    workers
        Number of threads among which the points of a star or a rule are divided, or an executor of
        `concurrent.futures`, such as a ``ProcessPoolExecutor``, for expensive functions of one point.
    differentiate
        ``"differences"``, or ``"jax"`` for automatic differentiation of a cost written with ``jax.numpy``.
    step
        Step of the differences, relative to ``max(1, |point|)``. None uses the defaults.

    Examples
    --------
    >>> factor = CostFactor(lambda t: float(np.abs(t).sum()), dim=2)
    >>> factor.star(np.zeros(2), np.ones(2)).up
    array([1., 1.])
    """

    cost_function: Callable[..., Any]
    dim: int
    gradient: Callable[[FloatArray], ArrayLike] | None = None
    curvature: Callable[[FloatArray], ArrayLike] | None = None
    coordinates: IndexArray | None = None
    vectorized: bool = False
    differentiate: Literal["differences", "jax"] = "differences"
    step: float | None = None
    workers: int | Executor | None = field(default=None, compare=False)
    _evaluate: Callable[[FloatArray], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.cost_function):
            raise ValueError(f"cost must be a function of a point, got {shown(self.cost_function)}")
        for name, function in (("gradient", self.gradient), ("curvature", self.curvature)):
            if function is not None and not callable(function):
                raise ValueError(f"{name} must be a function of a point, or None, got {shown(function)}")
        object.__setattr__(self, "dim", whole_number("dim", self.dim, least=1))
        object.__setattr__(self, "vectorized", flag("vectorized", self.vectorized))
        if self.step is not None:
            object.__setattr__(self, "step", positive_number("step", self.step))
        if self.coordinates is not None:
            object.__setattr__(self, "coordinates", _checked_coordinates(self.coordinates, self.dim))
        if self.workers is not None and not isinstance(self.workers, Executor):
            pool = ThreadPoolExecutor(whole_number("workers", self.workers, least=1), "cavity")
            object.__setattr__(self, "workers", pool)
        if self.workers is not None and self.vectorized:
            raise ValueError("workers divide single points among them: leave workers out, or vectorized=False")
        one_of("differentiate", self.differentiate, ("differences", "jax"))
        object.__setattr__(self, "_evaluate", self.cost_function)
        if self.differentiate == "jax":
            evaluate, gradient, curvature = _in_jax(self.cost_function, self.vectorized)
            object.__setattr__(self, "_evaluate", evaluate)
            object.__setattr__(self, "gradient", self.gradient or gradient)
            object.__setattr__(self, "curvature", self.curvature or curvature)

    @property
    def has_slope(self) -> bool:
        """No: only a loss has a slope."""
        return False

    def cost(self, points: FloatArray) -> FloatArray:
        """Cost at points, one call each unless vectorised."""
        if self.vectorized:
            values = self._real(self._evaluate(points))
        else:
            every: Any = map if self.workers is None else cast("Executor", self.workers).map
            values = np.array([self._scalar(value) for value in every(self._evaluate, points)], dtype=np.float64)
        if values.shape != (len(points),):
            raise ValueError(
                f"a vectorized cost must return one number per point, shape ({len(points)},), got {values.shape}"
            )
        return values

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        """Value, gradient and curvature, given or by differences; slopes cannot stand in for the curvature."""
        if curvature != "exact":
            raise ValueError(
                f"curvature={curvature!r} needs a LinearFactor, whose loss has a slope; use curvature='exact' here"
            )
        value = float(self.cost(point[None])[0])
        if self.gradient is None:
            star = self.star(point, self._steps(point, order=1))
            gradient = (star.up - star.down) / (2.0 * self._steps(point, order=1))
        else:
            gradient = self._vector(self.gradient(point), point, "gradient")
        if self.curvature is None:
            steps = self._steps(point, order=2)
            star = self.star(point, steps)
            second = (star.up - 2.0 * star.center + star.down) / steps**2
        else:
            second = self._vector(self.curvature(point), point, "curvature")
        return Derivatives(value, gradient, second)

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        """Call the cost at 2 d + 1 points."""
        d, arms = center.size, np.diag(steps)
        values = self.cost(np.concatenate([center[None], center + arms, center - arms]))
        return StarCosts(float(values[0]), values[1 : d + 1], values[d + 1 :])

    def newton_direction(
        self, point: FloatArray, gradient: FloatArray, precision: FloatArray, beta: float, curvature: Curvature
    ) -> FloatArray:
        """Solve with the full matrix of second derivatives, by differences of the gradient."""
        second = self.hessian(point, curvature)
        try:
            direction: FloatArray = -cho_solve(cho_factor(beta * second + np.diag(precision)), gradient)
        except (LinAlgError, ValueError):  # not positive definite, or not finite
            direction = -gradient / (precision + beta * np.maximum(np.diag(second), 0.0))
        return direction

    def hessian(self, point: FloatArray, curvature: Curvature = "exact") -> FloatArray:
        """Second derivatives by differences, of the gradient where it is known."""
        matrix = self._mixed_differences(point)
        np.fill_diagonal(matrix, self.derivatives(point, curvature).curvature)
        return matrix

    def _mixed_differences(self, point: FloatArray) -> FloatArray:
        """Second derivatives off the diagonal; the diagonal itself is of no use."""
        d = point.size
        steps = self._steps(point, order=1 if self.gradient else 2)
        arms = np.diag(steps)
        if self.gradient is not None:
            ends = [self._vector(self.gradient(point + a), point, "gradient") for a in (*arms, *-arms)]
            matrix = (np.array(ends[:d]) - np.array(ends[d:])) / (2.0 * steps[:, None])
            return np.asarray(0.5 * (matrix + matrix.T))
        matrix = np.zeros((d, d))
        i, j = np.triu_indices(d, 1)
        plus, minus = arms[i] + arms[j], arms[i] - arms[j]
        corners = self.cost(np.concatenate([point + plus, point - plus, point + minus, point - minus]))
        pp, mm, pm, mp = corners.reshape(4, -1)
        matrix[i, j] = matrix[j, i] = (pp + mm - pm - mp) / (4.0 * steps[i] * steps[j])
        return matrix

    def _steps(self, point: FloatArray, order: int) -> FloatArray:
        relative = self.step if self.step is not None else float(np.finfo(float).eps) ** (1.0 / (order + 2))
        return np.asarray(relative * np.maximum(1.0, np.abs(point)))

    @staticmethod
    def _real(value: Any) -> FloatArray:
        array = np.asarray(value)
        if np.iscomplexobj(array):
            raise ValueError("cost must return real numbers, got complex ones; take their real part or their size")
        return array.astype(np.float64, copy=False)

    @staticmethod
    def _scalar(value: Any) -> float:
        array = CostFactor._real(value)
        if array.size != 1:
            raise ValueError(
                f"cost must return one number for a point, got shape {array.shape}; "
                "sum over its parts, or pass vectorized=True if it takes many points"
            )
        return float(array.reshape(()))

    @staticmethod
    def _vector(value: ArrayLike, point: FloatArray, name: str) -> FloatArray:
        array = np.asarray(value, dtype=np.float64)
        if array.shape != point.shape:
            raise ValueError(f"{name} must return shape {point.shape}, got {array.shape}")
        return array


def _checked_coordinates(coordinates: ArrayLike, dim: int) -> IndexArray:
    try:
        array = np.asarray(coordinates)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"coordinates must be increasing whole numbers, got {shown(coordinates)}") from error
    array = array.astype(np.intp) if array.size == 0 else array
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or np.any(np.diff(array) <= 0):
        raise ValueError(f"coordinates must be increasing whole numbers, got {shown(coordinates)}")
    if array.size and (array[0] < 0 or array[-1] >= dim):
        raise ValueError(f"coordinates must lie in 0..{dim - 1}, got {array[0]}..{array[-1]}")
    return array.astype(np.intp)


def _in_jax(cost: Callable[..., Any], vectorized: bool) -> tuple[Callable[[FloatArray], FloatArray], ...]:
    """Cost, gradient and diagonal of the Hessian in double precision, by JAX."""
    try:
        jax = import_module("jax")
    except ImportError as error:
        raise ImportError(
            "differentiate='jax' needs JAX: pip install jax, or leave it out for finite differences"
        ) from error

    def scalar(point: Any) -> Any:
        value = cost(point[None])[0] if vectorized else cost(point)
        return jax.numpy.reshape(value, ())

    gradient, hessian = jax.jit(jax.grad(scalar)), jax.jit(jax.hessian(scalar))

    def in_double(function: Callable[[Any], Any], point: FloatArray) -> FloatArray:
        with jax.enable_x64(True):
            return np.asarray(function(jax.numpy.asarray(point)), dtype=np.float64)

    return (
        lambda points: in_double(cost, points),
        lambda point: in_double(gradient, point),
        lambda point: np.diag(in_double(hessian, point)),
    )
