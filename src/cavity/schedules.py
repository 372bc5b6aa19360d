"""Schedules: in which order factors are visited, and at which inverse temperature, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavity._checks import as_float, positive_number, shown, whole_number
from cavity._types import IndexArray

__all__ = ["Annealing", "Cyclic", "Given", "Shuffled", "Steps"]


@runtime_checkable
class Order(Protocol):
    """Which factors a loop visits, in which order."""

    def visits(self, count: int, loop: int) -> IndexArray:
        """Give the indices of the factors visited in a loop.

        Parameters
        ----------
        count
            Number of factors.
        loop
            Number of the loop: 0, 1, ...
        """


@runtime_checkable
class Temperature(Protocol):
    """Inverse temperature of every loop."""

    def beta(self, loop: int) -> float:
        """Inverse temperature of a loop.

        Parameters
        ----------
        loop
            Number of the loop: 0, 1, ...
        """


class FiniteTemperature(Temperature, Protocol):
    """A temperature that knows whether it still changes."""

    def is_final(self, loop: int, loops: int) -> bool:
        """Whether the inverse temperature of a loop holds for all later ones.

        Parameters
        ----------
        loop
            Number of the loop: 0, 1, ...
        loops
            Number of loops in all.
        """


@dataclass(frozen=True, slots=True)
class Cyclic:
    """All factors as they come.

    Parameters
    ----------
    start
        Index of the factor that comes first.

    Examples
    --------
    >>> Cyclic().visits(3, loop=0)
    array([0, 1, 2])
    """

    start: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", whole_number("start", self.start))

    def visits(self, count: int, loop: int) -> IndexArray:
        """Count from the start, around."""
        return np.roll(np.arange(count, dtype=np.intp), -self.start)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """All factors in a random order, drawn again in every loop, the same for the same seed.

    Parameters
    ----------
    seed
        Seed of the orders.

    Examples
    --------
    >>> sorted(Shuffled(seed=1).visits(3, loop=0).tolist())
    [0, 1, 2]
    """

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0))

    def visits(self, count: int, loop: int) -> IndexArray:
        """Draw a permutation from the seed and the number of the loop."""
        return np.random.default_rng([self.seed, loop]).permutation(count)


@dataclass(frozen=True, slots=True)
class Given:
    """The factors named, in that order, every loop; some may be left out or come twice.

    Parameters
    ----------
    indices
        Indices of the factors.

    Examples
    --------
    >>> Given((2, 0)).visits(3, loop=4)
    array([2, 0])
    """

    indices: tuple[int, ...] = (0,)

    def visits(self, count: int, loop: int) -> IndexArray:
        """Return the indices, checked against the number of factors."""
        return _checked_visits(self.indices, count)


@dataclass(frozen=True, slots=True)
class Steps:
    """One inverse temperature per loop; the last one holds from then on.

    Parameters
    ----------
    values
        The inverse temperatures.

    Examples
    --------
    >>> [Steps((1.0, 2.0)).beta(loop) for loop in range(3)]
    [1.0, 2.0, 2.0]
    """

    values: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        given: Any = self.values
        values = tuple(given) if np.iterable(given) and not isinstance(given, str) else ()
        if not values:
            raise ValueError(f"beta must be a number, one number per loop, or a schedule, got {shown(given)}")
        object.__setattr__(self, "values", tuple(positive_number("beta", value) for value in values))

    def beta(self, loop: int) -> float:
        """Return the value of the loop, or the last."""
        return self.values[min(loop, len(self.values) - 1)]

    def is_final(self, loop: int, loops: int) -> bool:
        """Look at the values that are left."""
        return len(set(self.values[loop:loops])) <= 1


@dataclass(frozen=True, slots=True)
class Annealing:
    """Inverse temperature that changes by a constant ratio from loop to loop.

    Parameters
    ----------
    first, last
        Inverse temperature of the first loop, and of the last and all that follow.
    loops
        Number of loops from first to last.

    Examples
    --------
    >>> [round(Annealing(1.0, 100.0, loops=3).beta(loop), 6) for loop in range(4)]
    [1.0, 10.0, 100.0, 100.0]
    """

    first: float = 0.1
    last: float = 1.0
    loops: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", positive_number("first", self.first))
        object.__setattr__(self, "last", positive_number("last", self.last))
        object.__setattr__(self, "loops", whole_number("loops", self.loops, least=2))

    def beta(self, loop: int) -> float:
        """Interpolate on the logarithm."""
        share = min(loop / (self.loops - 1), 1.0)
        return float(self.first ** (1.0 - share) * self.last**share)

    def is_final(self, loop: int, loops: int) -> bool:
        """Look at the loops of the growth that are left."""
        return all(self.beta(later) == self.beta(loop) for later in range(loop + 1, min(loops, self.loops)))


@dataclass(frozen=True, slots=True)
class _CheckedOrder:
    """A user's order, whose every answer is checked: an index out of range must not reach compiled code."""

    order: Order

    def visits(self, count: int, loop: int) -> IndexArray:
        return _checked_visits(self.order.visits(count, loop), count)


@dataclass(frozen=True, slots=True)
class _CheckedTemperature:
    """A user's temperature, whose every answer is checked."""

    temperature: Temperature

    def beta(self, loop: int) -> float:
        return positive_number("beta", self.temperature.beta(loop))

    def is_final(self, loop: int, loops: int) -> bool:
        now = self.beta(loop)
        return all(self.beta(later) == now for later in range(loop + 1, loops))


def resolve_order(order: str | Order | ArrayLike, seed: int = 0) -> Order:
    """Turn ``"cyclic"``, ``"shuffled"`` or indices into an order."""
    named: dict[str, Order] = {"cyclic": Cyclic(), "shuffled": Shuffled(seed)}
    if isinstance(order, str) and order in named:
        return named[order]
    if isinstance(order, Cyclic | Shuffled | Given | _CheckedOrder):
        return order
    if isinstance(order, Order):
        return _CheckedOrder(order)
    if isinstance(order, str) or not np.iterable(order):
        raise ValueError(f"order must be 'cyclic', 'shuffled', indices or an order object, got {shown(order)}")
    return Given(tuple(_array(order).tolist()))


def resolve_beta(beta: float | Sequence[float] | Temperature) -> FiniteTemperature:
    """Turn a number or one number per loop into a schedule."""
    if isinstance(beta, Steps | Annealing | _CheckedTemperature):
        return beta
    if isinstance(beta, Temperature):
        return _CheckedTemperature(beta)
    return Steps(beta if np.isnan(as_float(beta)) else (beta,))  # type: ignore[arg-type]


def _checked_visits(indices: Any, count: int) -> IndexArray:
    """Check indices of factors against their number."""
    array = _array(indices)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"order must hold whole numbers, at least one, got {shown(indices)}")
    if array.min() < 0 or array.max() >= count:
        raise ValueError(f"order must hold indices in 0..{count - 1}, got {array.min()}..{array.max()}")
    return array.astype(np.intp)


def _array(indices: Any) -> NDArray[Any]:
    """Make an array of what should be indices."""
    try:
        return np.asarray(indices)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"order must hold whole numbers, at least one, got {shown(indices)}") from error
