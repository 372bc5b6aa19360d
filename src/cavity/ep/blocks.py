r"""EP by blocks of rows, with all correlations.

A loop visits blocks of rows in turn. All rows of a block are revised at once against the same posterior, each with a
step of its own; then the posterior takes over the block and the next one follows. It starts at the prior. In the first
loop a block holds no more rows than were visited before it (`Work.parts`), so that no block can claim more than what is
already known: that is what makes it converge from a wide prior without any search for a mode.

Prior variance and noise scale, where they are free, are revised after every loop (`Adaptation`) and converge with
the posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavity.ep.knowledge import Gaussian, Knowledge
from cavity.ep.result import Ledger, Refusal, Status, Trace
from cavity.ep.row_sites import RowSites, log_scale, propose
from cavity.factors.arranged import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# How often the step of a block is shortened until the posterior is proper and near, before the block is refused.
_SHORTENINGS = 8
# A block may move the predictors of its rows by so many of their standard deviations: beyond, what the rows said of
# their surroundings has no meaning. With narrow priors losses of straight pieces overshoot without such a bound.
# The bound shortens a step to this share at most, so that sites which are far too narrow can widen.
_FARTHEST, _CAUTION, _LEAST_SHARE = 5.0, 0.8, 0.1
# Largest convergence rate that is believed when the distance still to go is estimated from two changes.
_SLOWEST_RATE = 0.9

# From this loop on the largest step of all rows is lowered by the first factor after a change larger than an earlier
# one, down to the last number, and raised by the second otherwise. Convex costs hardly need it; of the others it
# decides whether they come to rest.
_PATIENCE, _LOWER, _RAISE, _LEAST_CEILING = 5, 0.8, 1.1, 0.02


class Work(Protocol):
    """The posterior while EP works on it: what a backend for full or sparse precision offers."""

    prior: FactorialGaussian
    mean: FloatArray

    def knowledge(self, log_scale: float) -> Knowledge:
        """Give what the rows say, apart from the prior, with this scale of the sites."""

    def parts(self, first: bool) -> Sequence[slice]:
        """Blocks of rows of the first loop, or of a later one."""

    def predictors(self, part: slice) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors of a block."""

    def add(self, part: slice, precisions: FloatArray, shifts: FloatArray, farthest: float) -> float:
        """Add to the sites of a block and return one; or change nothing and return the share that may be added.

        The posterior must be proper, and no predictor of the block may move by more than ``farthest`` of its standard
        deviations before.
        """

    def scale(self, factor: float) -> bool:
        """Multiply all sites by a factor; False, and nothing changed, if the posterior would be improper."""

    def set_prior(self, prior: FactorialGaussian) -> bool:
        """Exchange the prior; False, and nothing changed, if the posterior would be improper."""

    def variance(self) -> FloatArray:
        """Posterior variances of the coefficients."""


class Adaptation(Protocol):
    """What is revised after every loop, beside the sites."""

    def prior(
        self, prior: FactorialGaussian, mean: FloatArray, variance: FloatArray, loop: int, change: float
    ) -> FactorialGaussian:
        """Prior for the next loop, given posterior means and variances of the coefficients and the loop's change."""

    def loss(self, loss: Loss, targets: FloatArray, weights: FloatArray, sites: RowSites) -> Loss:
        """Loss for the next loop; only its field ``scale`` may differ."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Nothing is revised."""

    def prior(
        self, prior: FactorialGaussian, mean: FloatArray, variance: FloatArray, loop: int, change: float
    ) -> FactorialGaussian:
        """Keep the prior."""
        return prior

    def loss(self, loss: Loss, targets: FloatArray, weights: FloatArray, sites: RowSites) -> Loss:
        """Keep the loss."""
        return loss


@dataclass(frozen=True, slots=True)
class Options:
    """How a run goes.

    Parameters
    ----------
    max_iter
        Loops at most.
    tol
        The run ends when no mean is estimated to move by more than this many standard deviations any more, and no
        variance by more than this share.
    beta
        Inverse temperature: the power of all factors.
    power
        Power of Power EP: how much of a row's factor is removed and fitted at a time.
    """

    max_iter: int = 100
    tol: float = 0.01
    beta: float = 1.0
    power: float = 1.0


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a run ended: what the rows say, apart from the prior, and the prior and the loss that it ended with."""

    knowledge: Any
    prior: FactorialGaussian
    loss: Loss
    status: Status
    trace: Trace

    @cached_property
    def posterior(self) -> Gaussian:
        """Prior times sites; its mass is the evidence."""
        posterior: Gaussian = self.knowledge.posterior(self.prior)
        return posterior

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return self.posterior.mean

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviations."""
        return np.sqrt(self.posterior.variance)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the integral of prior times sites."""
        return self.posterior.log_mass


def run(
    loss: Loss,
    rows: Rows,
    work: Work,
    options: Options,
    *,
    predictor: int = 0,
    adaptation: Adaptation | None = None,
    report: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Revise the sites of all rows until the posterior stands.

    Parameters
    ----------
    loss
        Loss of every row.
    rows
        Rows, targets and weights.
    work
        A backend that stands at the prior of these rows.
    options
        When to stop.
    predictor
        Which row of the targets is meant.
    adaptation
        What is revised after every loop beside the sites.
    report
        Called with the loop's number and its change.
    """
    state = _Run(loss, rows, work, options, predictor, Fixed() if adaptation is None else adaptation)
    for loop in range(options.max_iter):
        state.loop(loop)
        if report is not None:
            report(loop, state.change)
        if state.converged:
            break
        if loop + 1 < options.max_iter:
            state.adapt(loop)
    return state.result()


class _Run:
    """Sites and books of a run."""

    def __init__(
        self, loss: Loss, rows: Rows, work: Work, options: Options, predictor: int, adaptation: Adaptation
    ) -> None:
        self.loss, self.rows, self.work, self.options, self.adaptation = loss, rows, work, options, adaptation
        self.targets = rows.targets[predictor]
        self.sites, self.ledger = RowSites.start(self.targets.size), Ledger()
        self.change, self.remaining, self.moved = np.inf, np.inf, 0.0
        self.next_prior, self.next_loss = work.prior, loss
        self.least_change, self.shortest = np.inf, 1.0
        self.after: FloatArray = np.empty(0)

    def loop(self, number: int) -> None:
        """Visit every row once."""
        self.ledger.begin_loop(self.options.beta)
        self.shortest = 1.0
        mean, variance = self.work.mean, self.work.variance() if number == 0 else self.after
        for part in self.work.parts(number == 0):
            self._visit(part, fresh=number == 0)
        self.after = self.work.variance()
        shift = np.max(np.abs(self.work.mean - mean) / np.sqrt(self.after), initial=0.0)
        stretch = np.max(np.abs(np.log(self.after / variance)), initial=0.0)
        before, self.change = self.change, float(max(shift, stretch))
        self.ledger.end_loop(self.change)
        self._set_ceiling(number)
        # With changes that fall by a constant rate, the sum of those to come; steps below one hide a part of them.
        rate = min(self.change / before, _SLOWEST_RATE) if before > 0.0 else 0.0
        average_step = float(np.mean(self.sites.step)) if self.sites.step.size else 1.0
        self.remaining = self.change * max(1.0, rate / (1.0 - rate)) / (average_step * self.shortest)
        self._look_ahead(number)

    @property
    def converged(self) -> bool:
        """Whether what is still to come is below the tolerance, and nothing was refused in the last loop."""
        quiet = self.ledger.has_settled(np.inf) and self.moved < 2.0 * self.options.tol
        return quiet and self.remaining < self.options.tol

    def adapt(self, number: int) -> None:
        """Take over the prior and the noise scale that the last loop suggests."""
        if self.next_loss is not self.loss:
            factor = (self.loss.scale / self.next_loss.scale) ** 2  # type: ignore[attr-defined]
            if self.work.scale(factor):
                self.sites.scale_by(factor)
                self.loss = self.next_loss
        if self.next_prior is not self.work.prior:
            self.least_change = np.inf  # what follows the new prior is not a sign of trouble
            if not self.work.set_prior(self.next_prior):
                self.ledger.refuse(-1, Refusal.RESCALING)

    def result(self) -> Outcome:
        """Everything so far as a value."""
        knowledge = self.work.knowledge(self._log_scale())
        status = self.ledger.status(single_pass=self.options.max_iter == 1, settled=self.converged)
        return Outcome(knowledge, self.work.prior, self.loss, status, self.ledger.trace())

    def _log_scale(self) -> float:
        """Scale of all sites under the posterior as it stands: one more look at every row, for the evidence."""
        total, o = 0.0, self.options
        for part in self.work.parts(False):
            sites = self.sites.part(part)
            sites.mean[:], sites.variance[:] = self.work.predictors(part)
            weights = self.rows.weights[part]
            total += log_scale(self.loss, self.targets[part], weights, sites, beta=o.beta, power=o.power)
        return total

    def _set_ceiling(self, number: int) -> None:
        """Take smaller steps with all rows after a loop that changes more than an earlier one did, larger ones else."""
        if number >= _PATIENCE and self.change > self.options.tol:
            factor = _LOWER if self.change > self.least_change else _RAISE
            self.sites.ceiling = min(max(factor * self.sites.ceiling, _LEAST_CEILING), 1.0)
        if number > 0:
            self.least_change = min(self.least_change, self.change)

    def _look_ahead(self, number: int) -> None:
        """Ask what the prior and the loss of the next loop should be, and by how much they would move."""
        work, rows = self.work, self.rows
        self.next_prior = self.adaptation.prior(work.prior, work.mean, self.after, number, self.change)
        self.next_loss = self.adaptation.loss(self.loss, self.targets, rows.weights, self.sites)
        self.moved = 0.0
        if self.next_prior is not work.prior:
            self.moved = float(np.max(np.abs(np.log(self.next_prior.precision / work.prior.precision))))
        if self.next_loss is not self.loss:
            ratio = self.next_loss.scale / self.loss.scale  # type: ignore[attr-defined]
            self.moved = max(self.moved, 2.0 * abs(float(np.log(ratio))))

    def _visit(self, part: slice, fresh: bool) -> None:
        """Revise the rows of a block; halve their steps while the posterior would be improper."""
        sites = self.sites.part(part)
        sites.mean[:], sites.variance[:] = self.work.predictors(part)
        o = self.options
        revision, step = propose(
            self.loss, self.targets[part], self.rows.weights[part], sites, beta=o.beta, power=o.power, fresh=fresh
        )
        self.ledger.updates += step.size
        self._note(part, revision.improper, Refusal.IMPROPER_CAVITY)
        self._note(part, revision.nonfinite, Refusal.NONFINITE)
        shortened = 1.0
        for _ in range(_SHORTENINGS):
            farthest = _FARTHEST if shortened > _LEAST_SHARE else np.inf
            share = self.work.add(part, step * revision.precision, step * revision.shift, farthest)
            if share >= 1.0:
                sites.accept(revision, step)
                self.shortest = min(self.shortest, shortened)
                return
            factor = max(_CAUTION * share, _LEAST_SHARE) if farthest < np.inf else 0.5
            step, shortened = factor * step, factor * shortened
            self.ledger.damp(-1)
        self._note(part, np.ones(step.size, dtype=bool), Refusal.IMPROPER_POSTERIOR)

    def _note(self, part: slice, refused: NDArray[np.bool_], why: Refusal) -> None:
        for row in np.flatnonzero(refused):
            self.ledger.refuse(int(self.rows.order[part][row]), why)
