r"""EP over partitions of the rows: a backend of the driver whose iterations are rounds of pure functions.

In a round every partition updates the sites of its rows against the same posterior, and returns the new sites and their
sums; the sums over all partitions make the next posterior. So a round does not depend on how the rows are divided.
Where the partitions are, in this process or on a cluster, is left to `Partitions`. A round sends each of them
one posterior, and takes back the sums: the lower triangle of a matrix, or its entries on a pattern, and a vector.

Rows that agree, such as those of a rare level, overshoot together, and damped rounds of them hardly move. Once moves
are short, all rows have the same step and Anderson's method extrapolates: with :math:`f_k` the move of the posterior in
round k, the combination of the last rounds whose move would be the smallest,

.. math:: \min_\gamma \Big\lVert f_k - \sum_j \gamma_j (f_{j+1} - f_j) \Big\rVert,

is taken of their sites (Walker and Ni, "Anderson acceleration for fixed-point iterations", SIAM Journal on Numerical
Analysis 49, 2011). Natural parameters of sites add up, so partitions combine theirs by the same coefficients. With 48
such rows among 1,600 a fit takes 13 rounds instead of 27 to 48.

The first iteration takes several rounds, since it starts from the prior: each visits a share of the rows of every
partition, no more than all rounds before it, as the blocks of `cavity.ep.blocks`.

Sites that are lost with a worker are derived again from the posterior. At a fixed point of EP the posterior decides on
the site of every row alone: its cavity, times its factor, must have the moments of the posterior.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from cavity._types import FloatArray
from cavity.ep.blocks import LinearBackend, RowSites, propose
from cavity.ep.blocks import log_scale as log_scale_of_sites
from cavity.ep.driver import Change, Diagnostics, Options, Run, State, Step
from cavity.ep.driver import run as run_backend
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.posteriors import DenseNatural, DensePosterior, JointPosterior, RowPosterior, SparsePosterior, row_blocks
from cavity.ep.result import Refusal, Result
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis
from cavity.losses import Loss, offers
from cavity.terms.prior import Prior

# Times that every row is fitted against a fixed posterior when its site is derived from it: the distance from the fixed
# point falls by half per time or faster.
_DERIVATIONS = 20
# Shares of a round that are tried; the most standard deviations by which a round may move a coefficient, as much as the
# predictors of a block, and the share below which that no longer shortens a round.
_SHARES, _FARTHEST, _LEAST_SHARE = tuple(0.5**k for k in range(60)), 5.0, 0.1
# Earlier rounds that are combined with the last.
_DEPTH = 3
# Step of all rows in rounds that are combined.
_STEP = 0.5
# Move of a round, in standard deviations, above which rows have steps of their own and rounds are not combined.
_NEAR = 1.0
# Largest rate at which moves are believed to fall from round to round, as in `cavity.ep.blocks`.
_LARGEST_RATE = 0.9
# Differences of moves that are linear combinations of others up to this share count as such.
_DEPENDENT = 1e-3
# Rows of the first round, at least: as many as in the first block in memory.
_FIRST_ROWS = 50


_AFTER = (0.0, 1.0)  # the sites as the last round left them


class Message(NamedTuple):
    """What every partition receives in a round.

    Parameters
    ----------
    loss, prior
        As they are in this round.
    information, shift
        Sums of the sites of all rows: with the prior, the posterior.
    beta, power, max_step
        Inverse temperature, power of Power EP, and largest step of any row.
    factors
        By which precisions and shifts of all sites are multiplied first, since noise scale or prior have changed.
    mix
        Coefficients of the sites before the last round, and of those after it and after the rounds before that, the
        last one first: this round starts at their sum.
    step
        Step of all rows; None where every row has its own.
    wave
        In the first iteration, which rows are visited, as shares of those of every partition: rows before them were
        visited, others were not. None in later ones, which visit all.
    predictor
        Row of the targets.
    scale
        Whether derivatives of the evidence in the noise scale are needed.
    analysis
        Pattern of a sparse precision matrix; None for a full covariance.
    """

    loss: Loss
    prior: Prior
    information: FloatArray
    shift: FloatArray
    beta: float = 1.0
    power: float = 1.0
    max_step: float = 1.0
    factors: tuple[float, float] = (1.0, 1.0)
    mix: tuple[float, ...] = _AFTER
    step: float | None = None
    wave: tuple[float, float] | None = None
    predictor: int = 0
    scale: bool = False
    analysis: Analysis | None = None

    def visited(self, rows: int) -> tuple[int, int]:
        """How many rows of a partition were visited before this round, and after it."""
        begin, end = (1.0, 1.0) if self.wave is None else self.wave
        return int(begin * rows), int(end * rows)


class PartSites(NamedTuple):
    """Sites after a round, with precisions and shifts before it, and after the last rounds, this one first."""

    sites: RowSites
    before: tuple[FloatArray, FloatArray]
    after: tuple[tuple[FloatArray, FloatArray], ...]

    def mixed(self, mix: tuple[float, ...], factors: tuple[float, float] = (1.0, 1.0)) -> RowSites:
        """Combine the sites of these rounds by coefficients, and multiply precisions and shifts by factors."""
        sites = deepcopy(self.sites)
        if mix != _AFTER:
            for k, name in enumerate(("precision", "shift")):
                parts = zip(mix, (self.before, *self.after), strict=False)
                getattr(sites, name)[:] = sum(c * each[k] for c, each in parts if c)
        if factors != (1.0, 1.0):
            sites.precision[:] *= factors[0]
            sites.shift[:] *= factors[1]
            sites.last_precision[:] = sites.last_slope[:] = (
                0.0  # directions before a change of scale cannot be compared
            )
        return sites


class Sums(NamedTuple):
    """What partitions return of a round beside their sites; added up by `plus`.

    Parameters
    ----------
    information, shift
        Sums of the new sites.
    noise
        As `LinearBackend.noise`.
    rows, steps
        Number of rows visited, and the sum of their step sizes.
    slope
        Change of the slope of all sites at the posterior mean if every row took a full step.
    derived
        Partitions whose sites were derived from the posterior.
    rejected
        Rejected rows by reason.
    """

    information: FloatArray
    shift: FloatArray
    noise: FloatArray
    rows: int
    steps: float
    slope: FloatArray
    derived: int
    rejected: Counter[Refusal]

    def plus(self, other: Sums) -> Sums:
        """Add those of other partitions."""
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in self._fields})


def sweep(rows: Rows, last: PartSites | None, message: Message) -> tuple[PartSites, Sums]:
    """Update the sites of the rows of a partition that a round visits.

    Without ``last``, what an earlier round returned, the sites of rows that were visited before are derived.
    """
    work, loss = _posterior(rows, message), message.loss
    sites = _sites_of(rows, last, message, work)
    before = sites.precision.copy(), sites.shift.copy()
    if message.step is not None:
        sites.step[:] = message.step
    known, end = message.visited(rows.order.size)
    begin = 0 if message.wave is None else known
    information, shift, slope = (np.zeros_like(a) for a in (message.information, message.shift, message.shift))
    rejected, noise = Counter[Refusal](), np.zeros(2)
    normal = offers(loss).squared is not None and message.power == 1.0
    for part in _parts(work, rows, end):
        if part.stop > begin:
            visited = slice(max(part.start, begin), part.stop)
            own, targets, weights = sites.part(visited), rows.targets[message.predictor][visited], rows.weights[visited]
            if normal:  # these sites do not depend on the cavities
                own.precision[:] = message.beta * weights / loss.as_squared**2  # type: ignore[attr-defined]
                own.shift[:] = own.precision * (targets - own.offset)
                noise += float(np.sum(weights)), float(weights @ (targets - own.offset) ** 2)
            else:
                own.mean[:], own.variance[:] = work.predictors(visited)
                changes = propose(
                    loss,
                    targets,
                    weights,
                    own,
                    beta=message.beta,
                    power=message.power,
                    fresh=message.wave is not None or message.step is not None,
                    noise=message.scale,
                )
                own.precision[:] += changes.precision
                own.shift[:] += changes.shift
                noise += 0.0 if changes.noise is None else changes.noise
                rejected[Refusal.IMPROPER_CAVITY] += int(np.sum(changes.improper))
                rejected[Refusal.NONFINITE] += int(np.sum(changes.nonfinite))
                slope += work.sum_of_shifts(visited, own.last_slope)
        information += work.flat_of_sites(part, sites.precision[part])
        shift += work.sum_of_shifts(part, sites.shift[part])
    steps, derived = float(np.sum(sites.step[begin:end])), int(last is None and known > 0)
    # Rounds are combined where all do the same.
    earlier = () if last is None or message.step is None or message.factors != (1.0, 1.0) else last.after[:_DEPTH]
    after = (sites.precision, sites.shift), *earlier
    sums = Sums(information, shift, noise, end - begin, steps, slope, derived, +rejected)
    return PartSites(sites, before, after), sums


def log_scale(rows: Rows, last: PartSites | None, message: Message) -> float:
    """Sum of the logarithms of the scales of all sites of a partition under the posterior, for the evidence."""
    work, total = _posterior(rows, message), 0.0
    sites = _sites_of(rows, last, message, work)
    for part in _parts(work, rows, rows.order.size):
        own = sites.part(part)
        own.mean[:], own.variance[:] = work.predictors(part)
        targets, weights = rows.targets[message.predictor][part], rows.weights[part]
        total += log_scale_of_sites(message.loss, targets, weights, own, beta=message.beta, power=message.power)
    return total


def _posterior(rows: Rows, message: Message) -> RowPosterior:
    """Posterior of a message, for the rows of a partition."""
    if message.analysis is not None:
        return SparsePosterior(rows, message.analysis, message.prior, start=(message.information, message.shift))
    kind = DensePosterior if message.prior.dim == rows.shape[1] else JointPosterior
    return kind(rows, message.prior, DenseNatural.of_flat(message.information, message.shift), kept=False)


def _parts(work: RowPosterior, rows: Rows, end: int) -> list[slice]:
    """Blocks of the first rows."""
    blocks = work.parts(False) if rows.order.size else []
    return [slice(block.start, min(block.stop, end)) for block in blocks if block.start < end]


def _sites_of(rows: Rows, last: PartSites | None, message: Message, work: Any) -> RowSites:
    """Sites with which a round starts, in arrays of their own."""
    if last is not None:
        sites = last.mixed(message.mix, message.factors)
        sites.max_step = message.max_step
        return sites
    sites = RowSites.uniform(rows.shape[0], getattr(message.loss, "predictors", None), rows.offset)
    sites.max_step = message.max_step
    for part in _parts(work, rows, message.visited(rows.order.size)[0]):
        own, targets, weights = sites.part(part), rows.targets[message.predictor][part], rows.weights[part]
        own.mean[:], own.variance[:] = work.predictors(part)
        for k in range(_DERIVATIONS):
            changes = propose(message.loss, targets, weights, own, beta=message.beta, power=message.power, fresh=k == 0)
            own.precision[:] += changes.precision
            own.shift[:] += changes.shift
            if own.precision.ndim == 1:
                # A site is a part of the posterior: its precision stays below that of its predictor.
                most = 0.99 / np.where(own.variance > 0.0, own.variance, np.inf)
                own.precision[:] = np.minimum(own.precision, most)
        own.last_precision[:], own.last_slope[:], own.step[:] = 0.0, 0.0, 1.0
    return sites


class Partitions(Protocol):
    """Partitions of the rows, with their sites, wherever they are."""

    @property
    def rows(self) -> int:
        """Number of rows of all."""

    @property
    def analysis(self) -> Analysis | None:
        """Pattern of a sparse precision matrix for the rows of all; None for a full covariance."""

    def sweep(self, message: Message) -> Sums:
        """Let all partitions update their sites, which they keep, and return the sums of all."""

    def log_scale(self, message: Message) -> float:
        """Sum up the logarithms of the scales of all sites."""

    def forget(self) -> None:
        """Drop all sites: they are derived from the posterior of the next message."""


class Acceleration:
    """Posteriors after the last rounds and their moves, while these all do the same: Anderson's method."""

    def __init__(self) -> None:
        self.is_steady, self._moves = False, np.empty((0, 0))
        self._posteriors: list[tuple[FloatArray, FloatArray]] = []

    @property
    def step(self) -> float | None:
        """Step of all rows in the next round; None where every row has its own."""
        return _STEP if self.is_steady else None

    def forget(self) -> None:
        """Start over: the next round differs from the last ones."""
        self._moves = np.empty((0, 0))

    def after(self, move: FloatArray, posterior: tuple[FloatArray, FloatArray], comparable: bool) -> FloatArray:
        """End a round that moved the posterior to this one by ``move``, in deviations and their logarithms.

        ``comparable`` says whether it was a whole one. Returns coefficients of the last rounds, the last one first.
        """
        was_steady = self.is_steady
        self._posteriors = [posterior, *self._posteriors[:_DEPTH]]
        self.is_steady = comparable and bool(np.all(np.abs(move) < _NEAR))
        if not (self.is_steady and was_steady):
            self.forget()
            return np.ones(1)
        # Two numbers per coefficient tell no more combinations apart than there are coefficients.
        earlier = self._moves.reshape(-1, move.size)[: min(_DEPTH, move.size // 2)]
        self._moves = np.vstack([move, earlier])
        differences = (self._moves[:-1] - self._moves[1:]).T
        weights = np.linalg.lstsq(differences, move, rcond=_DEPENDENT)[0] if len(earlier) else np.empty(0)
        return -np.diff(np.concatenate([[1.0], weights, [0.0]]))

    def combined(self, coefficients: FloatArray) -> list[FloatArray]:
        """Combine the posteriors after these rounds: sums of precisions, and of shifts."""
        parts = zip(*self._posteriors[: coefficients.size], strict=True)
        return [np.tensordot(coefficients, np.array(part), 1) for part in parts]

    def left(self, coefficients: FloatArray) -> float:
        """Largest move that the combination leaves, if moves fall by a tenth per round from there."""
        if coefficients.size < 2:
            return np.inf
        return float(np.max(np.abs(coefficients @ self._moves))) / (1.0 - _LARGEST_RATE)


def run(
    loss: Loss,
    prior: Prior,
    partitions: Partitions,
    options: Options,
    *,
    predictor: int = 0,
    hyperparameters: Hyperparameters | None = None,
    center: float = 0.0,
    state: State | None = None,
    after_loop: Callable[[Run], object] | None = None,
) -> Result:
    """Update the sites of all partitions until the posterior has converged.

    Parameters
    ----------
    loss, prior
        Loss of every row, and prior of all coefficients.
    partitions
        The rows.
    options
        When to stop.
    predictor
        Row of the targets.
    hyperparameters
        Prior variances and noise scale that are estimated.
    center
        Weighted mean of the targets.
    state
        `Result.state` of a run with the same rows, in whatever partitions, to continue; sites are derived from its
        posterior.
    after_loop
        Called after every iteration.
    """
    posterior: RowPosterior
    if partitions.analysis is None:
        posterior = DensePosterior(None, prior, DenseNatural.zero(prior.dim))
    else:
        posterior = SparsePosterior(_NoRows((0, prior.dim)), partitions.analysis, prior)
    free = hyperparameters or Hyperparameters()
    backend = Partitioned(loss, posterior, options, free, partitions, predictor, center)
    return run_backend(backend, options, after_loop=after_loop, state=state)


class _NoRows(NamedTuple):
    """The posterior of the client has no rows of its own."""

    shape: tuple[int, int]
    csr_at_once: int = 1

    def csr(self, part: slice) -> Any:
        """Return no rows."""
        return sparse.csr_array((0, self.shape[1]))


@dataclass(eq=False)
class Partitioned(LinearBackend):
    """The posterior of all partitions; ``mean_target`` is the weighted mean of the row ``predictor`` of the targets.

    ``factors`` and ``mix`` are those of the next message, ``setting`` that in which moves of rounds can be compared.
    """

    partitions: Partitions
    predictor: int
    mean_target: float
    factors: tuple[float, float] = field(init=False, default=(1.0, 1.0))
    mix: tuple[float, ...] = field(init=False, default=_AFTER)
    acceleration: Acceleration = field(init=False, default_factory=lambda: Acceleration())
    setting: tuple[Any, ...] = field(init=False, default=())

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Let all partitions update the sites of their rows once."""
        mean, variance, was_steady = self.posterior.mean, self.posterior.variance(), self.acceleration.is_steady
        rows, waves = self.partitions.rows, list[tuple[float, float] | None]([None])
        if step.loop == 0 and not self.is_normal:
            parts = row_blocks(rows, max(_FIRST_ROWS, mean.size), doubling=True)
            waves = [(part.start / rows, part.stop / rows) for part in parts]
        self.noise, is_whole, steps = np.zeros(2), True, 0.0
        for wave in waves:
            sums = self.partitions.sweep(self._message(wave))
            self.factors = (1.0, 1.0)
            is_whole &= self._take(sums, diagnostics) and not sums.derived
            self.noise, steps = self.noise + sums.noise, steps + sums.steps
            diagnostics.updates += sums.rows
            for why, count in sums.rejected.items():
                diagnostics.reject(-1, why, count)
        extrapolated = np.inf if self.is_normal else self._accelerate(mean, variance, is_whole)
        # Rows that agree overshoot together: short steps, or a combination that happens to move nothing, hide how far
        # full steps would move the mean.
        after, full = self.posterior.variance(), np.abs(self.posterior.solve(sums.slope))
        is_steady = was_steady and self.acceleration.is_steady
        change = self.change_since(
            step.loop,
            mean,
            variance,
            moves=full,
            average_step=steps / rows,
            held_back=self.is_normal or is_steady or not is_whole,
        )
        is_found = self.update_hyperparameters(diagnostics)
        if self.is_normal:
            return change._replace(remaining=0.0)
        if is_steady:
            pending = float(np.max(full / np.sqrt(after), initial=0.0))
            change = change._replace(remaining=max(change.last, extrapolated, pending))
        return change if is_found else change._replace(remaining=np.inf)

    def _message(self, wave: tuple[float, float] | None = None) -> Message:
        return Message(
            self.loss,
            self.prior,
            self.posterior.flat,
            self.posterior.shift,
            self.beta,
            self.options.power,
            self.max_step,
            self.factors,
            self.mix,
            self.acceleration.step,
            wave,
            self.predictor,
            self.hyperparameters.scale,
            self.partitions.analysis,
        )

    def _take(self, sums: Sums, diagnostics: Diagnostics) -> bool:
        """Make the new sites the posterior, or as large a share of the round as is good for it; whether it was whole.

        Where sites were derived, those before the round are not the ones that the posterior had: all are then shortened
        towards nothing.
        """
        posterior, old, old_shift = self.posterior, self.posterior.flat, self.posterior.shift
        mean, spread = posterior.mean, np.sqrt(posterior.variance())
        taken, before = 0.0, 0.0 if sums.derived else 1.0
        for share in _SHARES:
            kept = (1.0 - share) * before
            if posterior.replace(share * sums.information + kept * old, share * sums.shift + kept * old_shift):
                taken = share
                moved = np.abs(posterior.mean - mean) / np.maximum(spread, np.sqrt(posterior.variance()))
                if self.is_normal or np.max(moved, initial=0.0) <= _FARTHEST or share < _LEAST_SHARE:
                    break
        if taken < 1.0:
            diagnostics.damp(-1)
        if not taken:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)
        self.mix = (1.0 - taken) * before, taken
        return taken == 1.0

    def _accelerate(self, mean: FloatArray, variance: FloatArray, is_whole: bool) -> float:
        """Combine a round with those before it, where all did the same; return what is still to come."""
        posterior, after, setting = self.posterior, self.posterior.variance(), (self.prior, self.loss, self.beta)
        if setting != self.setting:
            self.acceleration.forget()
        self.setting = setting
        move = np.concatenate([(posterior.mean - mean) / np.sqrt(after), 0.5 * np.log(after / variance)])
        coefficients = self.acceleration.after(move, (posterior.flat, posterior.shift), is_whole)
        if coefficients.size > 1:
            if not posterior.replace(*self.acceleration.combined(coefficients)):
                self.acceleration.forget()
                return np.inf
            self.mix = (0.0, *coefficients)
        return self.acceleration.left(coefficients)

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors, at the next message."""
        self.factors = precisions * self.factors[0], shifts * self.factors[1]

    def center(self) -> float:
        """Weighted mean of the targets."""
        return self.mean_target

    def log_scale(self) -> float:
        """Sum up the logarithms of the scales of all sites."""
        return self.partitions.log_scale(self._message())

    def restore(self, state: State) -> None:
        """Return to such a state; sites are derived from the posterior."""
        super().restore(state)
        self.factors, self.mix, self.acceleration = (1.0, 1.0), _AFTER, Acceleration()
        self.partitions.forget()


__all__ = ["Message", "PartSites", "Partitioned", "Partitions", "Sums", "log_scale", "run", "sweep"]
