"""One partition of the rows: what it does in a round of EP, as functions of values.

A round starts from the posterior of all rows. The partition sweeps its own blocks against its own copy of it and gives
its new sites and their sums; it knows nothing of the others. What rows say travels as one row of numbers: the lower
triangle of a matrix, or its entries on a pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.acceleration import DEPTH
from cavity.ep.blocks import Blocks
from cavity.ep.driver import Diagnostics, Options
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.natural import DenseNatural
from cavity.ep.posteriors import DensePosterior, JointPosterior, SparsePosterior, equal_parts
from cavity.ep.result import Refusal
from cavity.ep.sites import RowSites, propose
from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.losses import Loss

FloatArray = NDArray[np.float64]

# Times that every row is fitted again against a fixed posterior when its site is re-derived: rows forget where they
# began by half per time or faster.
_REDERIVATIONS = 20
_PRICED_AT_ONCE = 1 << 20  # numbers of rows and predictors: 8 MB


class Message(NamedTuple):
    """What every partition is told before a round.

    Parameters
    ----------
    loss, prior
        As they are in this round.
    information, shift
        What all rows say, apart from the prior.
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
        Whether rows are asked about the noise scale.
    analysis
        Pattern of a sparse precision matrix; None for a full covariance.
    """

    loss: Loss
    prior: FactorialGaussian
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

    def mixed(self, mix: Sequence[float], factors: tuple[float, float] = (1.0, 1.0)) -> Values:
        """Combine the start and the proposals, by these coefficients; multiply precisions and shifts by factors."""
        total: Values | None = None
        for c, values in zip(mix, (self.start, *self.proposed), strict=False):
            if values is not None and c:
                each = [c * factor for factor in factors * 2]
                scaled = values if each == [1.0] * 4 else Values(*(f * a for f, a in zip(each, values, strict=True)))
                total = scaled if total is None else Values(*(a + b for a, b in zip(total, scaled, strict=True)))
        return Values(*(np.zeros_like(array) for array in self.proposed[0])) if total is None else total


class Sums(NamedTuple):
    """What a partition tells of a round; sums of several partitions are added up by `plus`.

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
    rederived
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
    rederived: int
    refusals: Counter[Refusal]

    def plus(self, other: Sums) -> Sums:
        """Add those of other partitions."""
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in self._fields})


def sweep(
    rows: Rows, sites: PartSites | None, message: Message, mix: Sequence[float] = (0.0, 1.0)
) -> tuple[PartSites, Sums]:
    """Visit all rows of a partition once, from the combination ``mix`` of what the last rounds gave.

    Without sites, where rows were visited before, these are first derived from the posterior.
    """
    own = _Own(rows, message)
    start = own.begin(sites, mix)
    work, diagnostics = own.work, Diagnostics()
    flat, shift = work.flat, work.shift
    if own.blocks.is_normal:
        own.blocks.take_normal(diagnostics)
    else:
        for part in own.parts(message.first):
            own.blocks.visit(part, message.first or message.step is not None, diagnostics)
    new = Values(
        own.sites.precision,
        own.sites.shift,
        start.information + work.flat - flat,
        start.total_shift + work.shift - shift,
    )
    # Only rounds that all do the same can be combined.
    damped = message.step is None
    earlier = () if sites is None or damped or message.factors != (1.0, 1.0) else sites.proposed[:DEPTH]
    kept = PartSites(start if damped and not message.first else None, (new, *earlier), own.damping())
    trace = diagnostics.trace()
    refusals: Counter[Refusal] = Counter()
    for (_, why), count in trace.refusals.items():
        refusals[why] += count
    return kept, Sums(
        new.information,
        new.total_shift,
        own.blocks.noise,
        updates=trace.updates,
        dampings=sum(trace.dampings.values()),
        held_back=int(own.blocks.held_back),
        rederived=int(sites is None and not message.first),
        refusals=refusals,
    )


def log_scale(rows: Rows, sites: PartSites | None, message: Message, mix: Sequence[float] = (0.0, 1.0)) -> float:
    """Logarithm of the scale of all sites of a partition under the posterior, for the evidence."""
    own = _Own(rows, message)
    own.begin(sites, mix)
    return own.blocks.log_scale() if rows.order.size else 0.0


def costs(rows: Rows, loss: Any, predictor: int, points: FloatArray) -> FloatArray:
    """Sum up the losses of all rows at several points, one per row of ``points``."""
    total, predictors = np.zeros(len(points)), getattr(loss, "predictors", None)
    width = rows.shape[1]
    turned = points.reshape(-1, width).T
    for part in equal_parts(rows.order.size, max(1, _PRICED_AT_ONCE // (width + turned.shape[1]))):
        z = np.asarray((rows.csr(part) if sparse.issparse(rows.X) else rows.block(part)) @ turned)
        if rows.offset is not None:
            z[:, :: predictors or 1] += rows.offset[part, None]
        if predictors is not None:
            z = z.reshape(len(z), len(points), predictors)
        with np.errstate(all="ignore"):
            total += rows.weights[part] @ loss.value(rows.targets[predictor, part, None], z)
    return total


def _work_for(rows: Rows, message: Message) -> DensePosterior | SparsePosterior:
    """Copy of the posterior of all rows, for these."""
    if message.analysis is not None:
        work = SparsePosterior(rows, message.analysis, message.prior)
        if not work.replace(message.information, message.shift):
            raise ImproperError("prior and what is known must make a proper posterior")
        return work
    kind = DensePosterior if message.prior.dim == rows.shape[1] else JointPosterior
    return kind(rows, message.prior, DenseNatural.of_flat(message.information, message.shift), kept=False)


class _Own:
    """Rows of a partition with working arrays of their sites, and its copy of the posterior."""

    def __init__(self, rows: Rows, message: Message) -> None:
        self.rows, self.message, self.work = rows, message, _work_for(rows, message)
        self.sites = RowSites.uniform(rows.shape[0], getattr(message.loss, "predictors", None), rows.offset)
        self.sites.max_step = message.max_step
        options = Options(power=message.power)
        free = Hyperparameters(scale=message.scale)
        self.blocks = Blocks(message.loss, rows, self.work, options, message.predictor, free, self.sites)
        self.blocks.beta = message.beta

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows, if there are any."""
        return self.work.parts(first) if self.rows.order.size else []

    def begin(self, sites: PartSites | None, mix: Sequence[float]) -> Values:
        """Write sites into the working arrays, or derive them where they were lost; give them with their sums."""
        own, message = self.sites, self.message
        if sites is None:
            if not message.first:
                self._rederive()
            return Values(own.precision.copy(), own.shift.copy(), *self._totals())
        start = sites.mixed(mix, message.factors)
        own.precision[:], own.shift[:] = start.precision, start.shift
        if message.step is not None:
            own.step[:] = message.step
        elif sites.damping is not None:
            own.step[:] = sites.damping[0]
            if message.factors == (1.0, 1.0):  # directions before a change of scale cannot be compared
                own.last_precision[:], own.last_slope[:] = sites.damping[1:]
        return start

    def damping(self) -> tuple[NDArray[np.float32], ...] | None:
        """Give what rows with steps of their own remember."""
        if self.message.step is not None:
            return None
        remembered = self.sites.step, self.sites.last_precision, self.sites.last_slope
        return tuple(array.astype(np.float32) for array in remembered)

    def _rederive(self) -> None:
        """Fit the sites of all rows to the posterior as it stands, which does not change.

        At a fixed point of EP the posterior decides on the site of every row alone: its cavity, times its factor, must
        have the moments of the posterior.
        """
        message, blocks = self.message, self.blocks
        for part in self.parts(False):
            sites, targets, weights = self.sites.part(part), blocks.targets[part], self.rows.weights[part]
            sites.mean[:], sites.variance[:] = self.work.predictors(part)
            for k in range(_REDERIVATIONS):
                revision, step = propose(
                    message.loss, targets, weights, sites, beta=message.beta, power=message.power, fresh=k == 0
                )
                sites.accept(revision, step)
                if sites.precision.ndim == 1:
                    # A site is a part of the posterior: its precision stays below that of its predictor.
                    most = 0.99 / np.where(sites.variance > 0.0, sites.variance, np.inf)
                    sites.precision[:] = np.minimum(sites.precision, most)
            sites.last_precision[:], sites.last_slope[:], sites.step[:] = 0.0, 0.0, 1.0

    def _totals(self) -> tuple[FloatArray, FloatArray]:
        """Sum up the sites of all rows."""
        sites, work = self.sites, self.work
        information, shift = np.zeros_like(self.message.information), np.zeros_like(self.message.shift)
        if np.any(sites.precision) or np.any(sites.shift):
            for part in self.parts(False):
                information += work.flat_of_sites(part, sites.precision[part])
                shift += work.sum_of_shifts(part, sites.shift[part])
        return information, shift


__all__ = ["Message", "PartSites", "Sums", "Values", "costs", "log_scale", "sweep"]
