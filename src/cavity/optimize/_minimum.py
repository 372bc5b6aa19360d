"""What a minimisation returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from cavity._types import FloatArray
from cavity.ep.result import RunError
from cavity.gaussians.factorial import FactorialGaussian


class Ending(Enum):
    """How a minimisation ended; the value says what to do about it."""

    CONVERGED = "converged: the last attempts lowered the cost by less than tol"
    STILL_FALLING = "the cost was still falling after the last loop: raise max_iter, or start from here"
    UNBOUNDED = (
        "the cost falls without end, or to minus infinity: the point is the lowest finite one met; bound the cost "
        "from below or narrow the prior"
    )
    NONFINITE = (
        "some costs met after the lowest point were NaN or infinite, so that it may not be a minimum: look at the "
        "costs around it"
    )

    @property
    def is_success(self) -> bool:
        """Whether a minimum was found."""
        return self is Ending.CONVERGED


@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    r"""The lowest point seen.

    Attributes
    ----------
    point
        The place, of shape ``(dim,)``.
    cost
        All factor costs there and the prior's, :math:`\sum_k u_k(\theta) + \tfrac12 \sum_i (\theta_i - m_i)^2 / v_i`,
        at inverse temperature one whatever the schedule.
    posterior
        The factorial Gaussian of the last loop, at the last inverse temperature.
    costs, betas
        Cost of the point that every loop ended at, and its inverse temperature; the first is that of the prior mean.
    status
        How it ended.
    evaluations
        How often a factor was asked for its cost at a point, all factors and points counted; in compiled EP, a fit to a
        factor counts as one.
    """

    point: FloatArray
    cost: float
    posterior: FactorialGaussian
    costs: tuple[float, ...]
    betas: tuple[float, ...]
    status: Ending
    evaluations: int

    @property
    def spread(self) -> FloatArray:
        """How far every coordinate alone may go before the cost rises by about one half."""
        return np.asarray(np.sqrt(self.betas[-1]) * self.posterior.std)

    def raise_for_status(self) -> Minimum:
        """Raise `RunError` unless a minimum was found; return this otherwise."""
        if not self.status.is_success:
            raise RunError(str(self))
        return self

    def __str__(self) -> str:
        loops = len(self.betas) - 1
        return f"{self.status.value}\ncost {self.cost:.6g} after {loops} loops and {self.evaluations} evaluations"
