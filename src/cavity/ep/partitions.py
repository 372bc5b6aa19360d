"""EP over partitions of the rows that do not see each other: a backend of the driver.

In a round every partition sweeps its own blocks against its own copy of the posterior (`cavity.ep.partition`); the sums
of their new sites make the next posterior. In the first round partitions come in waves, as the blocks of
`cavity.ep.blocks`: a wave has no more partitions than all before it, and starts from what is known by then. Where the
partitions are, in this process or on a cluster, is the business of `Partitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.acceleration import DEPTH, Acceleration
from cavity.ep.blocks import LinearBackend, change_between
from cavity.ep.driver import Change, Diagnostics, Options, Run, State, Step
from cavity.ep.driver import run as run_backend
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.natural import DenseNatural
from cavity.ep.partition import Message, Sums
from cavity.ep.posteriors import DensePosterior, SparsePosterior, doubling_parts
from cavity.ep.result import Refusal, Result
from cavity.gaussians import Analysis
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# Shares of a round that are tried, and standard deviations of a coefficient beyond which a move of several partitions
# together is looked at before it is taken: the most that the predictors of a block may move.
_SHARES, _FAR = tuple(0.5**k for k in range(60)), 5.0


class Partitions(Protocol):
    """Partitions of the rows, with their sites."""

    @property
    def count(self) -> int:
        """Number of partitions."""

    @property
    def analysis(self) -> Analysis | None:
        """Pattern of a sparse precision matrix for the rows of all; None for a full covariance."""

    def sweep(self, message: Message, chosen: Sequence[int]) -> Sums:
        """Let these partitions visit their rows; the sums of their proposed sites."""

    def accept(self, chosen: Sequence[int], mix: Sequence[float]) -> None:
        """Let the next sweep of these start from a combination of their last start and their last proposals."""

    def forget(self) -> None:
        """Drop all sites: the next sweep derives them from the posterior."""

    def costs(self, loss: Loss, predictor: int, points: FloatArray, last: int) -> FloatArray:
        """Sum up the losses of all rows of the partitions up to the last at several points."""

    def log_scale(self, message: Message) -> float:
        """Sum up the logarithms of the scales of all sites."""


def run(
    loss: Loss,
    prior: FactorialGaussian,
    partitions: Partitions,
    options: Options,
    *,
    predictor: int = 0,
    hyperparameters: Hyperparameters | None = None,
    center: float = 0.0,
    state: State | None = None,
    after_loop: Callable[[Run], object] | None = None,
) -> Result:
    """Revise the sites of all partitions until the posterior has converged.

    Parameters
    ----------
    loss, prior
        Loss of every row, and prior of all coefficients.
    partitions
        The rows.
    options
        When to stop.
    predictor
        Which row of the targets is meant.
    hyperparameters
        Prior variances and noise scale that are to be found.
    center
        Weighted mean of the targets.
    state
        `Result.state` of an earlier run with the same rows, in whatever partitions, to continue it. Sites are derived
        from its posterior.
    after_loop
        Called after every round.
    """
    backend = Partitioned(loss, prior, partitions, options, predictor, hyperparameters or Hyperparameters(), center)
    return run_backend(backend, options, after_loop=after_loop, state=state)


class _NoRows(NamedTuple):
    """The posterior of the client has no rows of its own."""

    shape: tuple[int, int]
    csr_at_once: int = 1

    def csr(self, part: slice) -> Any:
        """Give no rows."""
        return sparse.csr_array((0, self.shape[1]))


def _posterior_of(prior: FactorialGaussian, analysis: Analysis | None) -> DensePosterior | SparsePosterior:
    if analysis is None:
        return DensePosterior(None, prior, DenseNatural.zero(prior.dim))
    return SparsePosterior(_NoRows((0, prior.dim)), analysis, prior)


class Partitioned(LinearBackend):
    """The posterior of all partitions."""

    posterior: DensePosterior | SparsePosterior

    def __init__(
        self,
        loss: Loss,
        prior: FactorialGaussian,
        partitions: Partitions,
        options: Options,
        predictor: int,
        hyperparameters: Hyperparameters,
        center: float,
    ) -> None:
        posterior = _posterior_of(prior, partitions.analysis)
        super().__init__(loss, posterior, options, hyperparameters)
        self.acceleration, self.setting = Acceleration(), (self.prior, loss, self.beta)
        self.proposed: list[tuple[FloatArray, FloatArray]] = []
        self.partitions, self.predictor, self._center, self.factors = partitions, predictor, center, (1.0, 1.0)

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Let all partitions visit their rows once."""
        first, posterior = step.loop == 0, self.posterior
        mean, variance = posterior.mean, posterior.variance()
        every = range(self.partitions.count)
        waved = first and not self.is_normal
        waves = [every[wave] for wave in doubling_parts(len(every), 1)] if waved else [every]
        total, whole = None, True
        for chosen in waves:
            sums = self.partitions.sweep(self._message(first), chosen)
            whole &= self._take(sums, chosen, first, diagnostics)
            total = sums if total is None else total.plus(sums)
        assert total is not None
        self.factors, self.noise = (1.0, 1.0), total.noise
        self._note(total, diagnostics)
        if self.is_normal:
            change = change_between(mean, variance, posterior.mean, posterior.variance())
            self.update_hyperparameters(diagnostics)
            return Change(change, 0.0)
        unfinished = bool(total.held_back or total.rederived) or not whole
        remaining = self._accelerated(mean, variance, unfinished)
        change = change_between(mean, variance, posterior.mean, posterior.variance())
        # Steps of rows that are all the same say nothing of how long they should be.
        self.remaining_change(step.loop, change, 0.0, 1.0, unfinished or self.acceleration.is_steady)
        return Change(change, max(change, remaining) if self.update_hyperparameters(diagnostics) else np.inf)

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors, at the next message."""
        self.factors = precisions * self.factors[0], shifts * self.factors[1]

    def center(self) -> float:
        """Give the weighted mean of the targets."""
        return self._center

    def log_scale(self) -> float:
        """Sum up the logarithms of the scales of all sites."""
        return self.partitions.log_scale(self._message(False))

    def restore(self, state: State) -> None:
        """Return to such a state; sites follow from the posterior."""
        super().restore(state)
        self.factors, self.acceleration = (1.0, 1.0), Acceleration()
        self.partitions.forget()

    def _message(self, first: bool) -> Message:
        return Message(
            self.loss,
            self.prior,
            self.posterior.flat,
            self.posterior.shift,
            self.beta,
            self.options.power,
            self.max_step,
            self.factors,
            first,
            self.acceleration.step,
            self.predictor,
            self.hyperparameters.scale,
            self.partitions.analysis,
        )

    def _take(self, sums: Sums, chosen: Sequence[int], first: bool, diagnostics: Diagnostics) -> bool:
        """Make the proposed sites the posterior, or as much of them as is good for it; whether that was all.

        Where the sites of a partition were lost, what it had said before is not known any more, and after rounds that
        are combined nobody keeps it: all sites are shortened towards nothing.
        """
        posterior, new = self.posterior, sums.information
        old, old_shift = posterior.flat, posterior.shift
        from_before = not sums.rederived and self.acceleration.step is None
        mean, spread = posterior.mean, np.sqrt(posterior.variance())

        def take(share: float) -> bool:
            kept = 1.0 if first else (1.0 - share) * from_before
            return posterior.replace(share * new + kept * old, share * sums.shift + kept * old_shift)

        share = next((s for s in _SHARES if take(s)), 0.0)
        if share and len(chosen) > 1 and not self.is_normal:
            moved = np.abs(posterior.mean - mean) / np.maximum(spread, np.sqrt(posterior.variance()))
            if np.max(moved, initial=0.0) > _FAR:
                share = self._cheapest(take, share, mean, chosen[-1])
        if share < 1.0:
            diagnostics.damp(-1)
        if not share:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)
        self.partitions.accept(chosen, ((1.0 - share) * from_before, share))
        return share == 1.0

    def _accelerated(self, mean: FloatArray, variance: FloatArray, unfinished: bool) -> float:
        """Combine a round with those before it, where all did the same; what is still to come."""
        posterior, setting = self.posterior, (self.prior, self.loss, self.beta)
        after = posterior.variance()
        if setting != self.setting:
            self.acceleration.forget()
        self.setting = setting
        move = (posterior.mean - mean) / np.sqrt(after), 0.5 * np.log(after / variance)
        found = self.acceleration.after(np.concatenate(move), not unfinished)
        count = found.coefficients.size
        self.proposed = [(posterior.flat, posterior.shift), *self.proposed[:DEPTH]]
        if count > 1:
            flats, shifts = zip(*self.proposed[:count], strict=True)
            flat, shift = (np.tensordot(found.coefficients, sums, 1) for sums in (flats, shifts))
            if not posterior.replace(flat, shift):
                self.acceleration.forget()
                return np.inf
            self.partitions.accept(range(self.partitions.count), (0.0, *found.coefficients))
        return found.remaining

    def _cheapest(self, take: Callable[[float], bool], most: float, before: FloatArray, last: int) -> float:
        """Take the largest share of a long move that lowers the cost at the mean about as far as any.

        Each partition moves as if it were alone. Where all rows of some are of one class, and the posterior is far from
        them, all of them push it as far as each could.
        """
        shares, points = [s for s in _SHARES[:8] if s <= most], [before]
        for share in shares:
            points.append(self.mean if take(share) else np.full_like(before, np.nan))
        losses = self.partitions.costs(self.loss, self.predictor, np.array(points), last)
        center, precision = self.prior.mean, self.prior.precision
        prices = self.beta * losses + 0.5 * np.array([precision @ (point - center) ** 2 for point in points])
        prices = np.where(np.isfinite(prices), prices, np.inf)
        good = np.min(prices[1:]) + 0.1 * max(prices[0] - np.min(prices[1:]), 0.0)
        share = next((s for s, price in zip(shares, prices[1:], strict=True) if price <= good), shares[-1])
        take(share)
        return share

    def _note(self, sums: Sums, diagnostics: Diagnostics) -> None:
        diagnostics.updates += sums.updates
        if sums.dampings:
            diagnostics.damp(-1, sums.dampings)
        for why, count in sums.refusals.items():
            diagnostics.reject(-1, why, count)


__all__ = ["Partitioned", "Partitions", "run"]
