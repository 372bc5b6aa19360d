r"""EP over partitions of the rows that do not see each other: a backend of the driver.

In a round every partition visits its own blocks of rows against its own copy of the posterior, and returns its new
sites and their sums; the sums of all partitions make the next posterior. In the first round partitions come in waves,
as the blocks of `cavity.ep.blocks`: a wave has no more partitions than all before it, and starts from what is known by
then. Where the partitions are, in this process or on a cluster, is the business of `Partitions`. What travels is one
row of numbers: the lower triangle of a matrix, or its entries on a pattern.

Where a few rows of each partition say the same, as rows of a rare level that are all of one class, together they
overshoot, and plain rounds must be damped until they hardly move: with 48 such rows among 1,600, in 16 partitions, they
stop 0.03 to 0.14 standard deviations from the limit after 10 to 24 rounds, where Anderson's method takes 10 to 14 and
stops within 0.002. With :math:`f_k` the move of the posterior in round k, the combination of the last rounds whose move
would be the smallest,

.. math:: \min_\gamma \Big\lVert f_k - \sum_j \gamma_j (f_{j+1} - f_j) \Big\rVert,

is taken of the sites that they proposed (Walker and Ni, "Anderson acceleration for fixed-point iterations", SIAM
Journal on Numerical Analysis 49, 2011). Natural parameters of sites add up, so partitions combine theirs by the same
coefficients. It needs rounds that all do the same: rows have one constant step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity._types import FloatArray
from cavity.ep.blocks import Blocks, LinearBackend, RowSites, change_between, propose
from cavity.ep.driver import Change, Diagnostics, Options, Run, State, Step
from cavity.ep.driver import run as run_backend
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.posteriors import DenseNatural, DensePosterior, JointPosterior, SparsePosterior, row_blocks
from cavity.ep.result import Refusal, Result
from cavity.factors.rows import Rows
from cavity.gaussians import Analysis
from cavity.losses import Loss
from cavity.terms.prior import Prior

# Coefficients of the sites at the start of the last round and of those proposed by the last rounds, the last one first;
# their sum is where the next round starts.
Mix = Sequence[float]

# Times that every row is fitted again against a fixed posterior when its site is derived from it: rows forget where
# they began by half per time or faster.
_DERIVATIONS = 20
# Shares of a round that are tried; the most standard deviations by which several partitions together may move a
# coefficient, as much as the predictors of a block, and the share below which that no longer shortens a round.
_SHARES, _FARTHEST, _LEAST_SHARE = tuple(0.5**k for k in range(60)), 5.0, 0.1
# Earlier rounds that are combined with the last, chosen on Census income in 16 partitions: more save at most a round.
_DEPTH = 3
# Step of all rows, chosen on the data sets of the paper: half of it takes about the same rounds, twice as much can fail
# to converge where rows are sorted by label.
_STEP = 0.5
# Move of a round, in standard deviations, above which rows have steps of their own and rounds are not combined.
_NEAR = 1.0
# Largest rate at which moves are believed to fall from round to round, as in `cavity.ep.blocks`.
_LARGEST_RATE = 0.9
# Differences of moves that are linear combinations of others but for this share count as such.
_DEPENDENT = 1e-3


class Message(NamedTuple):
    """What every partition is told before a round.

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
    first
        Whether no row was visited before.
    step
        Step of all rows; None where every row has its own, by how it moved before.
    predictor
        Which row of the targets is meant.
    scale
        Whether the slope of the evidence in the noise scale is asked for.
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
    first: bool = False
    step: float | None = None
    predictor: int = 0
    scale: bool = False
    analysis: Analysis | None = None


class Values(NamedTuple):
    """Natural parameters of the sites of all rows of a partition, and their sums."""

    precision: FloatArray
    shift: FloatArray
    information: FloatArray
    total_shift: FloatArray


class PartSites(NamedTuple):
    """What a partition keeps from round to round.

    Parameters
    ----------
    start
        Sites at the start of the last round; None where there were none, or where all rows have the same step.
    proposed
        Sites that the last rounds ended with, the last one first.
    damping
        Steps and last changes of the rows, in single precision; None where all rows have the same step.
    """

    start: Values | None
    proposed: tuple[Values, ...]
    damping: tuple[NDArray[np.float32], ...] | None

    def mixed(self, mix: Mix, factors: tuple[float, float] = (1.0, 1.0)) -> Values:
        """Combine the start and the proposals by these coefficients; multiply precisions and shifts by factors."""
        total: Values | None = None
        for c, values in zip(mix, (self.start, *self.proposed), strict=False):
            if values is not None and c:
                each = [c * factor for factor in factors * 2]
                scaled = values if each == [1.0] * 4 else Values(*(f * a for f, a in zip(each, values, strict=True)))
                total = scaled if total is None else Values(*(a + b for a, b in zip(total, scaled, strict=True)))
        return Values(*(np.zeros_like(array) for array in self.proposed[0])) if total is None else total


class Sums(NamedTuple):
    """What partitions return of a round beside their sites; added up by `plus`.

    Parameters
    ----------
    information, shift
        Sums of the new sites.
    noise
        What the rows say of the noise scale, `LinearBackend.noise`.
    updates, dampings
        Visits, and how often a block was damped further.
    held_back
        Blocks that were shortened.
    derived
        Partitions whose sites were lost and derived from the posterior.
    refusals
        Refused rows by reason.
    """

    information: FloatArray
    shift: FloatArray
    noise: FloatArray
    updates: int
    dampings: int
    held_back: int
    derived: int
    refusals: Counter[Refusal]

    def plus(self, other: Sums) -> Sums:
        """Add those of other partitions."""
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in self._fields})


def sweep(rows: Rows, sites: PartSites | None, message: Message, mix: Mix = (0.0, 1.0)) -> tuple[PartSites, Sums]:
    """Visit all rows of a partition once, from the combination ``mix`` of its sites.

    Without sites, where rows were visited before, these are first derived from the posterior.
    """
    part = _Partition(rows, message)
    start = part.begin(sites, mix)
    work, blocks, diagnostics = part.work, part.blocks, Diagnostics()
    flat, shift = work.flat, work.shift
    if blocks.is_normal:
        blocks.take_normal(diagnostics)
    else:
        for block in part.parts(message.first):
            blocks.visit(block, message.first or message.step is not None, diagnostics)
    own = part.sites
    work = blocks.posterior
    sums = start.information + work.flat - flat, start.total_shift + work.shift - shift
    new = Values(own.precision, own.shift, *sums)
    # Only rounds that all do the same can be combined.
    damped = message.step is None
    earlier = () if sites is None or damped or message.factors != (1.0, 1.0) else sites.proposed[:_DEPTH]
    memory = (own.step, own.last_precision, own.last_slope)
    kept = PartSites(
        start if damped and not message.first else None,
        (new, *earlier),
        tuple(array.astype(np.float32) for array in memory) if damped else None,
    )
    trace, refusals = diagnostics.trace(), Counter[Refusal]()
    for (_, why), count in trace.refusals.items():
        refusals[why] += count
    return kept, Sums(
        *sums,
        blocks.noise,
        updates=trace.updates,
        dampings=sum(trace.dampings.values()),
        held_back=int(blocks.held_back),
        derived=int(sites is None and not message.first),
        refusals=refusals,
    )


def log_scale(rows: Rows, sites: PartSites | None, message: Message, mix: Mix = (0.0, 1.0)) -> float:
    """Logarithm of the scale of all sites of a partition under the posterior, for the evidence."""
    part = _Partition(rows, message)
    part.begin(sites, mix)
    return part.blocks.log_scale() if rows.order.size else 0.0


class _Partition:
    """Rows of a partition with working arrays of their sites, and its copy of the posterior."""

    work: DensePosterior | SparsePosterior

    def __init__(self, rows: Rows, message: Message) -> None:
        self.rows, self.message = rows, message
        if message.analysis is not None:
            start = message.information, message.shift
            self.work = SparsePosterior(rows, message.analysis, message.prior, start=start)
        else:
            kind = DensePosterior if message.prior.dim == rows.shape[1] else JointPosterior
            known = DenseNatural.of_flat(message.information, message.shift)
            self.work = kind(rows, message.prior, known, kept=False)
        self.sites = RowSites.uniform(rows.shape[0], getattr(message.loss, "predictors", None), rows.offset)
        self.sites.max_step = message.max_step
        options, free = Options(power=message.power), Hyperparameters(scale=message.scale)
        self.blocks = Blocks(message.loss, self.work, options, free, rows, self.sites, message.predictor)
        self.blocks.beta = message.beta

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows, if there are any."""
        return self.work.parts(first) if self.rows.order.size else []

    def begin(self, sites: PartSites | None, mix: Mix) -> Values:
        """Write sites into the working arrays, or derive them where they were lost; return them with their sums."""
        own, message = self.sites, self.message
        if sites is None:
            information, shift = np.zeros_like(message.information), np.zeros_like(message.shift)
            if not message.first:
                self._derive()
                for part in self.parts(False):
                    information += self.work.flat_of_sites(part, own.precision[part])
                    shift += self.work.sum_of_shifts(part, own.shift[part])
            return Values(own.precision.copy(), own.shift.copy(), information, shift)
        start = sites.mixed(mix, message.factors)
        own.precision[:], own.shift[:] = start.precision, start.shift
        if message.step is not None:
            own.step[:] = message.step
        elif sites.damping is not None:
            own.step[:] = sites.damping[0]
            if message.factors == (1.0, 1.0):  # directions before a change of scale cannot be compared
                own.last_precision[:], own.last_slope[:] = sites.damping[1:]
        return start

    def _derive(self) -> None:
        """Fit the sites of all rows to the posterior as it stands, which does not change.

        At a fixed point of EP the posterior decides on the site of every row alone: its cavity, times its factor, must
        have the moments of the posterior.
        """
        message = self.message
        for part in self.parts(False):
            sites, targets, weights = (
                self.sites.part(part),
                self.rows.targets[message.predictor][part],
                self.rows.weights[part],
            )
            sites.mean[:], sites.variance[:] = self.work.predictors(part)
            for k in range(_DERIVATIONS):
                changes = propose(
                    message.loss, targets, weights, sites, beta=message.beta, power=message.power, fresh=k == 0
                )
                sites.precision[:] += changes.precision
                sites.shift[:] += changes.shift
                if sites.precision.ndim == 1:
                    # A site is a part of the posterior: its precision stays below that of its predictor.
                    most = 0.99 / np.where(sites.variance > 0.0, sites.variance, np.inf)
                    sites.precision[:] = np.minimum(sites.precision, most)
            sites.last_precision[:], sites.last_slope[:], sites.step[:] = 0.0, 0.0, 1.0


class Partitions(Protocol):
    """Partitions of the rows, with their sites, wherever they are."""

    @property
    def count(self) -> int:
        """Number of partitions."""

    @property
    def analysis(self) -> Analysis | None:
        """Pattern of a sparse precision matrix for the rows of all; None for a full covariance."""

    def sweep(self, message: Message, mixes: Mapping[int, Mix | None]) -> Sums:
        """Let some partitions visit their rows, each from a combination of its sites; return the sums of all.

        Where the combination is None, or sites are lost, these are derived from the posterior. Every partition keeps
        its new sites.
        """

    def log_scale(self, message: Message, mixes: Mapping[int, Mix | None]) -> float:
        """Sum up the logarithms of the scales of all sites."""


class Extrapolation(NamedTuple):
    """Coefficients of the proposals of the last rounds, the last one first, and what is to come that they leave out."""

    coefficients: FloatArray
    remaining: float


class Acceleration:
    """Moves of the posterior in the last rounds, while these all do the same: Anderson's method."""

    def __init__(self) -> None:
        self.is_steady, self._moves = False, np.empty((0, 0))

    @property
    def step(self) -> float | None:
        """Step of all rows in the next round; None where every row has its own."""
        return _STEP if self.is_steady else None

    def forget(self) -> None:
        """Start over: the next round differs from the last ones."""
        self._moves = np.empty((0, 0))

    def after(self, move: FloatArray, comparable: bool) -> Extrapolation:
        """End a round that moved the posterior by so much, in standard deviations and logarithms of these.

        ``comparable`` says whether it was a whole one.
        """
        nothing = Extrapolation(np.ones(1), np.inf)
        was_steady = self.is_steady
        self.is_steady = comparable and bool(np.all(np.abs(move) < _NEAR))
        if not (self.is_steady and was_steady):
            self.forget()
            return nothing
        # Two numbers per coefficient tell no more combinations apart than there are coefficients.
        earlier = self._moves.reshape(-1, move.size)[: min(_DEPTH, move.size // 2)]
        self._moves = np.vstack([move, earlier])
        if not earlier.size:
            return nothing
        differences = (self._moves[:-1] - self._moves[1:]).T
        weights = np.linalg.lstsq(differences, move, rcond=_DEPENDENT)[0]
        left = float(np.max(np.abs(move - differences @ weights)))
        coefficients = np.append(1.0, np.zeros(weights.size))
        coefficients[:-1] -= weights
        coefficients[1:] += weights
        return Extrapolation(coefficients, left / (1.0 - _LARGEST_RATE))


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
        Which row of the targets is meant.
    hyperparameters
        Prior variances and noise scale that are to be found.
    center
        Weighted mean of the targets.
    course
        What is called after every round, and where to continue from: `Result.state` of a run with the same rows, in
        whatever partitions. Sites are derived from its posterior.
    """
    backend = Partitioned(loss, prior, partitions, options, predictor, hyperparameters or Hyperparameters(), center)
    return run_backend(backend, options, after_loop=after_loop, state=state)


class _NoRows(NamedTuple):
    """The posterior of the client has no rows of its own."""

    shape: tuple[int, int]
    csr_at_once: int = 1

    def csr(self, part: slice) -> Any:
        """Return no rows."""
        return sparse.csr_array((0, self.shape[1]))


class Partitioned(LinearBackend):
    """The posterior of all partitions."""

    posterior: DensePosterior | SparsePosterior

    def __init__(
        self,
        loss: Loss,
        prior: Prior,
        partitions: Partitions,
        options: Options,
        predictor: int,
        hyperparameters: Hyperparameters,
        center: float,
    ) -> None:
        posterior: DensePosterior | SparsePosterior
        if partitions.analysis is None:
            posterior = DensePosterior(None, prior, DenseNatural.zero(prior.dim))
        else:
            posterior = SparsePosterior(_NoRows((0, prior.dim)), partitions.analysis, prior)
        super().__init__(loss, posterior, options, hyperparameters)
        self.partitions, self.predictor, self._center, self.factors = partitions, predictor, center, (1.0, 1.0)
        self.mixes: dict[int, Mix | None] = dict.fromkeys(range(partitions.count))
        # The last rounds: what they proposed, and the setting in which their moves can be compared.
        self.acceleration, self.setting = Acceleration(), (self.prior, loss, self.beta)
        self.proposed: list[tuple[FloatArray, FloatArray]] = []

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Let all partitions visit their rows once."""
        first, posterior, every = step.loop == 0, self.posterior, list(self.mixes)
        mean, variance = posterior.mean, posterior.variance()
        waves = row_blocks(len(every), 1, doubling=True) if first and not self.is_normal else [slice(None)]
        total, whole = None, True
        for wave in waves:
            chosen = {k: self.mixes[k] for k in every[wave]}
            sums = self.partitions.sweep(self._message(first), chosen)
            share, kept = self._take(sums, list(chosen), first, diagnostics)
            self.mixes.update(dict.fromkeys(chosen, (kept, share)))
            whole &= share == 1.0
            total = sums if total is None else total.plus(sums)
        assert total is not None
        self.factors, self.noise = (1.0, 1.0), total.noise
        diagnostics.updates += total.updates
        if total.dampings:
            diagnostics.damp(-1, total.dampings)
        for why, count in total.refusals.items():
            diagnostics.reject(-1, why, count)
        remaining, unfinished = 0.0, bool(total.held_back or total.derived) or not whole
        if not self.is_normal:
            remaining = self._accelerate(mean, variance, unfinished)
        change = change_between(mean, variance, posterior.mean, posterior.variance())
        if self.is_normal:
            self.update_hyperparameters(diagnostics)
            return Change(change, 0.0)
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
        return self.partitions.log_scale(self._message(False), self.mixes)

    def restore(self, state: State) -> None:
        """Return to such a state; sites follow from the posterior."""
        super().restore(state)
        self.factors, self.acceleration = (1.0, 1.0), Acceleration()
        self.mixes = dict.fromkeys(self.mixes)

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

    def _take(self, sums: Sums, chosen: list[int], first: bool, diagnostics: Diagnostics) -> tuple[float, float]:
        """Make the proposed sites the posterior, or as much of them as is good for it.

        Returns the shares of the proposed sites and of those before. Where the sites of a partition were lost, what it
        had said before is not known any more, and after rounds that are combined nobody keeps it: then all sites are
        shortened towards nothing.
        """
        posterior, new = self.posterior, sums.information
        old, old_shift = posterior.flat, posterior.shift
        from_before = not sums.derived and self.acceleration.step is None
        mean, spread = posterior.mean, np.sqrt(posterior.variance())
        # Each partition moves as if it were alone. Where all rows of some are of one class, and the posterior is far
        # from them, all of them push it as far as each could.
        is_bounded, taken = len(chosen) > 1 and (first or from_before) and not self.is_normal, 0.0
        for share in _SHARES:
            kept = 1.0 if first else (1.0 - share) * from_before
            if posterior.replace(share * new + kept * old, share * sums.shift + kept * old_shift):
                taken = share
                moved = np.abs(posterior.mean - mean) / np.maximum(spread, np.sqrt(posterior.variance()))
                if not is_bounded or np.max(moved, initial=0.0) <= _FARTHEST or share < _LEAST_SHARE:
                    break
        if taken < 1.0:
            diagnostics.damp(-1)
        if not taken:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)
        return taken, (1.0 - taken) * from_before

    def _accelerate(self, mean: FloatArray, variance: FloatArray, unfinished: bool) -> float:
        """Combine a round with those before it, where all did the same; return what is still to come."""
        posterior, setting = self.posterior, (self.prior, self.loss, self.beta)
        after = posterior.variance()
        if setting != self.setting:
            self.acceleration.forget()
        self.setting = setting
        move = (posterior.mean - mean) / np.sqrt(after), 0.5 * np.log(after / variance)
        found = self.acceleration.after(np.concatenate(move), not unfinished)
        count = found.coefficients.size
        self.proposed = [(posterior.flat, posterior.shift), *self.proposed[:_DEPTH]]
        if count > 1:
            flats, shifts = zip(*self.proposed[:count], strict=True)
            flat, shift = (np.tensordot(found.coefficients, sums, 1) for sums in (flats, shifts))
            if not posterior.replace(flat, shift):
                self.acceleration.forget()
                return np.inf
            self.mixes = dict.fromkeys(self.mixes, (0.0, *found.coefficients))
        return found.remaining


__all__ = [
    "Acceleration",
    "Message",
    "Mix",
    "PartSites",
    "Partitioned",
    "Partitions",
    "Sums",
    "log_scale",
    "run",
    "sweep",
]
