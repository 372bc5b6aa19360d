"""What is asked of a loss, and what it may offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

Piece: TypeAlias = tuple[Any, Any, Any]


class Loss(Protocol):
    """What is asked of a loss. ``y`` and ``z`` are arrays that broadcast, or two numbers."""

    @property
    def targets(self) -> str:
        """Which targets are meant.

        ``"signs"`` (-1 and +1), ``"reals"``, ``"counts"`` (reals of zero or more) or ``"positives"`` (above zero).
        """

    def value(self, y: Any, z: Any) -> Any:
        """Loss of the prediction ``z`` where the target is ``y``; never overflows for finite ``z``."""

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature in ``z``; at a kink the half sum of both sides."""


class Offers(NamedTuple):
    """What a loss can do besides, by members of its own; the defaults are those of a loss without them."""

    pieces: Callable[[Any], tuple[Piece, ...]] | None = None  # the method of that name
    logistic: float | None = None  # the property as_logistic: the field sharpness of a loss that is `Logistic`
    squared: float | None = None  # the property as_squared: the field scale of a loss that is `Squared`
    smooth: bool = True  # the property is_smooth, or no pieces: whether Newton's method applies to the loss itself


def offers(loss: object) -> Offers:
    """Read what a loss offers; of a class, which of it its instances will have."""
    pieces = getattr(loss, "pieces", None)
    logistic, squared = getattr(loss, "as_logistic", None), getattr(loss, "as_squared", None)
    return Offers(pieces, logistic, squared, getattr(loss, "is_smooth", pieces is None))
