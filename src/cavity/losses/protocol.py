"""What is asked of a loss, and what it may offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

Piece: TypeAlias = tuple[Any, Any, Any]


class Loss(Protocol):
    """Interface of a loss. ``y`` and ``z`` are arrays that broadcast, or two numbers."""

    @property
    def targets(self) -> str:
        """Kind of the targets.

        ``"signs"`` (-1 and +1), ``"reals"``, ``"counts"`` (reals of zero or more) or ``"positives"`` (above zero).
        """

    def value(self, y: Any, z: Any) -> Any:
        """Loss of a prediction. It must not overflow for a finite ``z``.

        Parameters
        ----------
        y
            Target.
        z
            Linear predictor.
        """

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        """Value, first and second derivative with respect to ``z``; at a kink, the average of both sides.

        Parameters
        ----------
        y, z
            As in `value`.
        """


class Offers(NamedTuple):
    """Optional members of a loss; the defaults are those of a loss without them.

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
    noise
        The method of that name: takes a power of the likelihood, and returns the noise of targets that the loss stands
        for (`cavity.losses.noise`).
    """

    pieces: Callable[[Any], tuple[Piece, ...]] | None = None
    logistic: float | None = None
    squared: float | None = None
    smooth: bool = True
    noise: Callable[[float], Any] | None = None


def offers(loss: object) -> Offers:
    """Find the optional members of a loss, or of the instances of a class.

    Parameters
    ----------
    loss
        A loss, or its class.
    """
    pieces = getattr(loss, "pieces", None)
    logistic, squared = getattr(loss, "as_logistic", None), getattr(loss, "as_squared", None)
    noise = getattr(loss, "noise", None)
    is_smooth = getattr(loss, "is_smooth", pieces is None)
    return Offers(pieces, logistic, squared, is_smooth, noise if callable(noise) else None)
