"""What EP by blocks asks of its parts: the posterior, the sites of all rows, and what adapts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.ep.knowledge import Knowledge
from cavity.ep.row_sites import RowSites
from cavity.ep.snapshots import State
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

FloatArray = NDArray[np.float64]


class Posterior(Protocol):
    """The posterior that prior and sites make."""

    prior: FactorialGaussian
    mean: FloatArray

    def knowledge(self, log_scale: float) -> Knowledge:
        """Give what the rows say, apart from the prior, with this scale of the sites."""

    def scale(self, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors, and exchange the prior if one is given.

        False, and nothing changed, if the posterior would be improper.
        """

    def set_prior(self, prior: FactorialGaussian) -> bool:
        """Exchange the prior; False, and nothing changed, if the posterior would be improper."""

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""

    def snapshot(self) -> dict[str, Any]:
        """Give the state between two blocks."""

    def restore(self, state: State) -> None:
        """Return to such a state."""


class Work(Posterior, Protocol):
    """The posterior while EP visits blocks of rows: what a backend for full or sparse precision offers."""

    def parts(self, first: bool) -> Sequence[slice]:
        """Blocks of rows of the first loop, or of a later one."""

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block."""

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a block and return one; or change nothing and return the share that may be added.

        The posterior must be proper, and no predictor of the block may move by more than ``farthest`` of its standard
        deviations, before or after, whichever is larger.
        """


class Sites(Protocol):
    """Sites of all rows, in memory or elsewhere."""

    ceiling: float

    @property
    def average_step(self) -> float:
        """Average of the steps that rows took in the last loop."""

    def part(self, part: slice) -> RowSites:
        """Give the sites of some rows, to be changed and put back."""

    def put(self, part: slice, sites: RowSites, loss: Loss, targets: FloatArray, weights: FloatArray) -> None:
        """Put them back, with targets and weights of all rows."""

    def next_loss(self, adaptation: Any, loss: Loss, targets: FloatArray, weights: FloatArray) -> Loss:
        """Ask what the loss of the next loop should be, by the predictors of the loop that ended."""

    def scale_by(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors, and forget in which direction they went."""

    def arrays(self) -> dict[str, Any]:
        """Give what all rows have as part of a snapshot."""

    def set_arrays(self, arrays: State) -> None:
        """Return to such a snapshot."""


class Adaptation(Protocol):
    """What is revised after every loop, beside the sites."""

    @property
    def is_done(self) -> bool:
        """Whether the prior will not change any more."""

    def revise(self, posterior: Posterior, parts: int) -> None:
        """Revise the prior after one of so many parts of a loop."""

    def end_loop(self, posterior: Posterior, variance: FloatArray, loop: int, change: float) -> float:
        """Give the logarithm by which prior and posterior variances are to be stretched before the next loop.

        ``variance`` are posterior variances of the coefficients, ``change`` is that of the posterior in this loop.
        """

    def stretched(self, prior: FactorialGaussian, factor: float) -> FactorialGaussian:
        """Prior whose variances, those that are to be found, are multiplied by a factor."""

    def loss(self, loss: Loss, targets: FloatArray, weights: FloatArray, sites: RowSites) -> Loss:
        """Loss for the next loop; only its field ``scale`` may differ."""

    def loss_of_terms(self, loss: Loss, terms: FloatArray, unit: float) -> Loss:
        """Do the same from sums over all rows, where these are not kept in memory."""

    def snapshot(self) -> dict[str, Any]:
        """Give the state between two loops."""

    def restore(self, state: State) -> None:
        """Return to such a state."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Nothing is revised."""

    is_done: ClassVar[bool] = True

    def revise(self, posterior: Posterior, parts: int) -> None:
        """Keep the prior."""

    def end_loop(self, posterior: Posterior, variance: FloatArray, loop: int, change: float) -> float:
        """Keep the prior."""
        return 0.0

    def stretched(self, prior: FactorialGaussian, factor: float) -> FactorialGaussian:
        """Keep the prior."""
        return prior

    def loss(self, loss: Loss, targets: FloatArray, weights: FloatArray, sites: RowSites) -> Loss:
        """Keep the loss."""
        return loss

    def loss_of_terms(self, loss: Loss, terms: FloatArray, unit: float) -> Loss:
        """Keep the loss."""
        return loss

    def snapshot(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing to return to."""
