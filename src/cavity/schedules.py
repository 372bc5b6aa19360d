"""Schedules: in which order factors are visited, and at which inverse temperature, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

IndexArray = NDArray[np.intp]

__all__ = ["Annealing", "Cyclic", "Given", "Shuffled", "Steps"]


@runtime_checkable
class Order(Protocol):
    """Which factors a loop visits, in which order."""

    def visits(self, count: int, loop: int) -> IndexArray:
        """Give the indices of the factors visited in this loop (0, 1, ...), out of ``count``."""


@runtime_checkable
class Temperature(Protocol):
    """Inverse temperature of every loop."""

    def beta(self, loop: int) -> float:
        """Inverse temperature of this loop (0, 1, ...)."""


@dataclass(frozen=True, slots=True)
class Cyclic:
    """All factors as they come.

    Examples
    --------
    >>> Cyclic().visits(3, loop=0)
    array([0, 1, 2])
    """

    start: int = 0

    def visits(self, count: int, loop: int) -> IndexArray:
        """Count from the start, around."""
        visits = np.arange(count, dtype=np.intp)
        return np.roll(visits, -self.start) if self.start else visits


@dataclass(frozen=True, slots=True)
class Shuffled:
    """All factors in a random order, drawn anew every loop, the same for the same seed.

    Examples
    --------
    >>> sorted(Shuffled(seed=1).visits(3, loop=0).tolist())
    [0, 1, 2]
    """

    seed: int = 0

    def visits(self, count: int, loop: int) -> IndexArray:
        """Draw a permutation from the seed and the number of the loop."""
        return np.random.default_rng([self.seed, loop]).permutation(count)


@dataclass(frozen=True, slots=True)
class Given:
    """The factors named, in that order, every loop; some may be left out or come twice.

    Examples
    --------
    >>> Given((2, 0)).visits(3, loop=4)
    array([2, 0])
    """

    indices: tuple[int, ...] = (0,)

    def visits(self, count: int, loop: int) -> IndexArray:
        """Return the indices, checked against the number of factors."""
        array = np.asarray(self.indices)
        if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"order must hold whole numbers, at least one, got {self.indices!r}")
        if array.min() < 0 or array.max() >= count:
            raise ValueError(f"order must hold indices in 0..{count - 1}, got {array.min()}..{array.max()}")
        return array.astype(np.intp)


@dataclass(frozen=True, slots=True)
class Steps:
    """One inverse temperature a loop; the last one holds from then on.

    Examples
    --------
    >>> [Steps((1.0, 2.0)).beta(loop) for loop in range(3)]
    [1.0, 2.0, 2.0]
    """

    values: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.values or not all(0.0 < v < np.inf for v in self.values):
            raise ValueError(f"beta must be positive and finite, got {self.values}")

    def beta(self, loop: int) -> float:
        """Return the value of the loop, or the last."""
        return float(self.values[min(loop, len(self.values) - 1)])


@dataclass(frozen=True, slots=True)
class Annealing:
    """Inverse temperature that grows by a constant ratio from ``first`` to ``last`` over ``loops`` loops.

    Examples
    --------
    >>> [round(Annealing(1.0, 100.0, loops=3).beta(loop), 6) for loop in range(4)]
    [1.0, 10.0, 100.0, 100.0]
    """

    first: float = 0.1
    last: float = 1.0
    loops: int = 10

    def __post_init__(self) -> None:
        if not (0.0 < self.first < np.inf and 0.0 < self.last < np.inf and self.loops >= 2):
            raise ValueError(
                "Annealing needs positive inverse temperatures and at least 2 loops, "
                f"got first={self.first}, last={self.last}, loops={self.loops}"
            )

    def beta(self, loop: int) -> float:
        """Interpolate on the logarithm."""
        share = min(loop / (self.loops - 1), 1.0)
        return float(self.first ** (1.0 - share) * self.last**share)


def resolve_order(order: str | Order | ArrayLike, seed: int = 0) -> Order:
    """Turn ``"cyclic"``, ``"shuffled"`` or indices into an order."""
    if isinstance(order, str):
        named: dict[str, Order] = {"cyclic": Cyclic(), "shuffled": Shuffled(seed)}
        if order not in named:
            raise ValueError(f"order must be 'cyclic', 'shuffled', indices or an order object, got {order!r}")
        return named[order]
    if isinstance(order, Order):
        return order
    return Given(tuple(np.asarray(order).tolist()))


def resolve_beta(beta: float | Sequence[float] | Temperature) -> Temperature:
    """Turn a number or one number a loop into a schedule."""
    if isinstance(beta, float | int):
        return Steps((float(beta),))
    if isinstance(beta, Temperature):
        return beta
    return Steps(tuple(float(b) for b in np.atleast_1d(np.asarray(beta, dtype=float))))
