"""The loop of EP, one for every backend.

The driver owns the temperature, the damping, the record of refused updates, when to stop, going back to an earlier loop
and the result. A backend owns the sites and the posterior: it visits every factor once when asked to (`Backend.sweep`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.ep.guard import Guard
from cavity.ep.options import Options
from cavity.ep.result import FactorError, Ledger, Refusal, Result, Status
from cavity.ep.snapshots import State
from cavity.gaussians.factorial import FactorialGaussian

FloatArray = NDArray[np.float64]
Cost = Callable[[FloatArray], float]


class Step(NamedTuple):
    """What a backend needs for one sweep: the loop's number, its damping, and tries for an improper cavity."""

    loop: int
    damping: float
    retries: int


class Change(NamedTuple):
    """What a sweep did, in standard deviations of the mean or logarithms of the variance; the larger of the two.

    ``remaining`` estimates what all later loops together will change. NaN after a single pass.
    """

    last: float
    remaining: float


class Backend(Protocol):
    """Sites and posterior of a run. Every method leaves them whole."""

    @property
    def prior(self) -> FactorialGaussian:
        """The prior, which blocks may change from loop to loop."""

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""

    def begin_loop(self, loop: int, beta: float, ledger: Ledger) -> None:
        """Rescale the sites to the loop's inverse temperature, and remove the rounding errors of the last loop."""

    def sweep(self, step: Step, ledger: Ledger) -> Change:
        """Visit every factor once; `Failure` if one raises, after its own visit was undone."""

    def snapshot(self) -> dict[str, Any]:
        """Give the state between two loops."""

    def restore(self, state: State) -> None:
        """Return to such a state."""

    def finish(self, ledger: Ledger) -> None:
        """Remove rounding errors, once all loops are done."""

    def result(self, status: Status, ledger: Ledger) -> Result:
        """Give posterior and sites as values."""


class Failure(Exception):  # noqa: N818  (never reaches a user)
    """A factor raised an error; ``factor`` is its index, -1 where all were asked at once."""

    def __init__(self, factor: int, error: Exception) -> None:
        super().__init__(str(error))
        self.factor, self.error = factor, error


class Run:
    """A run in progress."""

    def __init__(self, backend: Backend, options: Options, cost: Cost | None) -> None:
        self.backend, self.options, self.ledger = backend, options, Ledger()
        self.guard = Guard(None if options.single_pass or not options.safeguards else cost, options.damping)

    @property
    def has_converged(self) -> bool:
        """Whether what is still to come is below the tolerance, at the final temperature."""
        return self.ledger.has_converged(self.options.tol) and self.options.is_final(self.ledger.loops)

    def loop(self) -> None:
        """Visit every factor once."""
        number, backend, guard = self.ledger.loops, self.backend, self.guard
        beta = self.options.temperature.beta(number)
        self.ledger.begin_loop(beta)
        backend.begin_loop(number, beta, self.ledger)
        if guard.is_on:
            guard.begin_loop(beta, backend.prior.mean, backend.mean, backend.snapshot)
        retries = guard.retries if self.options.safeguards else 0
        change = backend.sweep(Step(number, guard.damping, retries), self.ledger)
        if guard.is_on:
            change = Change(change.last, change.remaining / guard.relative_damping)
            guard.end_loop(change.last, backend.mean, backend.snapshot)
        self.ledger.end_loop(*change)

    def finish(self) -> Result:
        """Return to the best loop if the last one is worse than the prior mean, and give the result."""
        if self.guard.is_worse_than_prior:
            self.backend.restore(self.guard.best)
            self.ledger.refuse(-1, Refusal.DIVERGED)
        self.backend.finish(self.ledger)
        return self.result()

    def result(self) -> Result:
        """Everything so far as a value."""
        status = self.ledger.status(self.options.single_pass, self.has_converged)
        return self.backend.result(status, self.ledger)

    def snapshot(self) -> dict[str, Any]:
        """Everything between two loops, to go on from: numbers and arrays by name."""
        return {**self.backend.snapshot(), **self.ledger.snapshot(), **self.guard.snapshot()}

    def restore(self, state: State) -> None:
        """Go on from such a snapshot, of the same factors and options."""
        self.backend.restore(state)
        self.ledger.restore(state)
        self.guard.restore(state)


def run(
    backend: Backend,
    options: Options,
    *,
    cost: Cost | None = None,
    after_loop: Callable[[Run], object] | None = None,
    state: State | None = None,
) -> Result:
    """Run EP from where the backend stands, or from a snapshot, until it converges or its loops are used up.

    ``cost`` is what safeguards compare loops by: inverse temperature times all costs at a point, and the prior's term.
    """
    going = Run(backend, options, cost)
    try:
        if state is not None:
            going.restore(state)
        while going.ledger.loops < options.max_iter and not (going.ledger.loops and going.has_converged):
            going.loop()
            if after_loop is not None:
                after_loop(going)
        final = {} if options.single_pass else going.snapshot()
        return replace(going.finish(), state=final)
    except Failure as failure:
        raise FactorError(failure.factor, going.result(), failure.error) from failure.error
