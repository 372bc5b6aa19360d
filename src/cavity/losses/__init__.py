r"""Losses of a linear predictor: value, slope and curvature in :math:`z = x^\top \theta`.

A loss is a ``NamedTuple`` with at least one field and two methods, written with arithmetic and numpy functions,
comparisons used as factors and no ``if``, so that the same lines serve arrays here and scalars in compiled code.
`cavity.testing.check_loss` checks whether a loss of your own keeps the contract.

A loss may offer more, each of which has a default (`Offers`). Above all, one that is linear in pieces may say so by a
method ``pieces(y)``: exact integrals follow. It returns triples ``(end, slope, offset)`` from left to right, of which
the last ends at infinity: the loss is ``offset + slope * z`` for ``z`` up to ``end`` and beyond the end before. It is
written for a number ``y`` and for an array, without ``if``; what does not depend on ``y`` may be a float in both.

`cavity.losses.joint` has losses of several linear predictors.
"""

from cavity.losses._counts import Gamma, NegativeBinomial, Poisson
from cavity.losses._protocol import Loss as Loss
from cavity.losses._protocol import Offers as Offers
from cavity.losses._protocol import Piece as Piece
from cavity.losses._protocol import offers as offers
from cavity.losses._reals import Absolute, Huber, Quantile, Squared
from cavity.losses._signs import Hinge, Logistic, QuasiZeroOne

__all__ = [
    "Absolute",
    "Gamma",
    "Hinge",
    "Huber",
    "Logistic",
    "NegativeBinomial",
    "Poisson",
    "Quantile",
    "QuasiZeroOne",
    "Squared",
]
