r"""Losses of a linear predictor: value, slope and curvature in :math:`z = x^\top \theta`.

A loss is a ``NamedTuple`` with at least one field and the two methods of `Loss`. Write them with arithmetic and NumPy
functions, and multiply by comparisons instead of using ``if``, so that the same code works for arrays and, compiled,
for scalars. `cavity.testing.check_loss` checks your own loss.

A loss can have further, optional members (`Offers`). The most useful one is a method ``pieces(y)`` of a piecewise
linear loss, which allows exact integrals. It returns triples ``(end, slope, offset)`` from left to right: the loss is
``offset + slope * z`` for ``z`` between the previous end and ``end``, and the last end is infinity. The method must
work for a number ``y`` and for an array, without ``if``; parts that do not depend on ``y`` can be floats.

`cavity.losses.joint` contains losses of several linear predictors. `cavity.losses.noise` describes the noise of targets
that a loss stands for, from its method ``noise``.
"""

from cavity.losses.counts import Gamma, NegativeBinomial, Poisson
from cavity.losses.protocol import Loss as Loss
from cavity.losses.protocol import Offers as Offers
from cavity.losses.protocol import Piece as Piece
from cavity.losses.protocol import offers as offers
from cavity.losses.reals import Absolute, Huber, Quantile, Squared
from cavity.losses.signs import Hinge, Logistic, QuasiZeroOne

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
