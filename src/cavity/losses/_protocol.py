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
        """Loss of a prediction; never overflows where that is finite.

        Parameters
        ----------
        y
            Target.
        z
            Linear predictor.
        """

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature in the predictor; at a kink the half sum of both sides.

        Parameters
        ----------
        y, z
            As in `value`.
        """


class Offers(NamedTuple):
    """What a loss can do besides, by members of its own; the defaults are those of a loss without them.

    Parameters
    ----------
    pieces
        The method of that name.
    logistic
        The property ``as_logistic``: the field ``sharpness`` of a loss that is `Logistic`.
    squared
        The property ``as_squared``: the field ``scale`` of a loss that is `Squared`.
    smooth
        The property ``is_smooth``, or no pieces: whether Newton's method applies to the loss itself.
    """

    pieces: Callable[[Any], tuple[Piece, ...]] | None = None
    logistic: float | None = None
    squared: float | None = None
    smooth: bool = True


def offers(loss: object) -> Offers:
    """Read what a loss offers; of a class, which of it its instances will have.

    Parameters
    ----------
    loss
        A loss, or its class.
    """
    pieces = getattr(loss, "pieces", None)
    logistic, squared = getattr(loss, "as_logistic", None), getattr(loss, "as_squared", None)
    return Offers(pieces, logistic, squared, getattr(loss, "is_smooth", pieces is None))
