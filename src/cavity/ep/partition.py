"""One partition of the rows: what it does in a round of EP, as functions of values.

A round starts from the posterior of all rows. The partition sweeps its own blocks against its own copy of it and gives
its new sites and their sums; it knows nothing of the others. What rows say travels as one row of numbers: the lower
triangle of a matrix, or its entries on a pattern.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.blocks import Blocks, sites_in_memory
from cavity.ep.dense import DenseWork, equal_parts
from cavity.ep.joint import JointWork
from cavity.ep.knowledge import DenseKnowledge
from cavity.ep.options import Options
from cavity.ep.result import Ledger, Refusal
from cavity.ep.roles import Fixed
from cavity.ep.sparse import SparseWork
from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.losses import Loss
from cavity.noise import scale_terms

FloatArray = NDArray[np.float64]

# Times that every row is fitted again against a fixed posterior when its site is re-derived: rows forget where they
# began by half per time or faster.
_REDERIVATIONS = 20


_PRICED_AT_ONCE = 1 << 20  # numbers of rows and predictors: 8 MB
# Fields of `RowSites` that are kept from round to round.
_STORED = ("precision", "shift", "step", "turn_precision", "turn_shift")


class Message(NamedTuple):
    """What every partition is told before a round.

    Parameters
    ----------
    loss, prior
        As they are in this round.
    information, shift
        What all rows say, apart from the prior.
    beta, power, ceiling
        Inverse temperature, power of Power EP, and largest step of any row.
    factors
        By which precisions and shifts of all sites are multiplied first, since noise scale or prior have changed.
    first
        Whether no row was visited before.
    predictor
        Which row of the targets is meant.
    scale
        Whether sums for the noise scale are wanted.
    analysis
        Pattern of a sparse precision matrix; None for a full covariance.
    """

    loss: Loss
    prior: FactorialGaussian
    information: FloatArray
    shift: FloatArray
    beta: float = 1.0
    power: float = 1.0
    ceiling: float = 1.0
    factors: tuple[float, float] = (1.0, 1.0)
    first: bool = False
    predictor: int = 0
    scale: bool = False
    analysis: Analysis | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PartSites:
    """Sites of the rows of a partition, what their damping remembers, and their sums.

    What is remembered only is kept in single precision.
    """

    precision: FloatArray
    shift: FloatArray
    step: NDArray[np.float32]
    turn_precision: NDArray[np.float32]
    turn_shift: NDArray[np.float32]
    information: FloatArray
    total_shift: FloatArray

    def towards(self, before: PartSites | None, share: float, factors: tuple[float, float]) -> PartSites:
        """Go only a share of the way from the sites before, or from none; then multiply precisions and shifts."""
        if share == 1.0 and factors == (1.0, 1.0):
            return self
        changed: dict[str, Any] = {}
        for name, factor in zip(("precision", "shift", "information", "total_shift"), factors * 2, strict=True):
            old = 0.0 if before is None else (1.0 - share) * getattr(before, name)
            changed[name] = factor * (share * getattr(self, name) + old)
        if factors != (1.0, 1.0):  # directions before cannot be compared with those after
            changed |= {name: np.zeros_like(getattr(self, name)) for name in ("turn_precision", "turn_shift")}
        return replace(self, **changed)


class Sums(NamedTuple):
    """What a partition tells of a round; sums of several partitions are added up by `plus`.

    Parameters
    ----------
    information, shift
        Sums of the new sites.
    farthest
        The farthest that one block moved each mean.
    residual
        Sum of the slopes that rows still asked for, as if none was damped.
    terms
        For the noise scale, `cavity.noise.scale_terms`.
    rows, steps, updates, dampings
        Number of rows, sum of their steps, visits, and how often a block was damped further.
    held_back
        Blocks that were shortened.
    rederived
        Partitions whose sites were lost and derived from the posterior.
    refusals
        Refused rows by reason.
    """

    information: FloatArray
    shift: FloatArray
    farthest: FloatArray
    residual: FloatArray
    terms: FloatArray
    rows: int
    steps: float
    updates: int
    dampings: int
    held_back: int
    rederived: int
    refusals: Counter[Refusal]

    def plus(self, other: Sums) -> Sums:
        """Add those of other partitions."""
        added = {name: getattr(self, name) + getattr(other, name) for name in self._fields}
        return Sums(**{**added, "farthest": np.maximum(self.farthest, other.farthest)})


def sweep(
    rows: Rows, sites: PartSites | None, message: Message, share: float = 1.0, before: PartSites | None = None
) -> tuple[PartSites, Sums]:
    """Visit all rows of a partition once.

    Without sites, where rows were visited before, these are first derived from the posterior. Of the change of the last
    round, from the sites ``before``, only a share was accepted.
    """
    own = _Own(rows, message)
    information, shift = own.begin(sites, share, before)
    work, ledger = own.work, Ledger()
    start = work.flat, work.shift
    farthest, residual = np.zeros(work.mean.size), np.zeros(work.mean.size)
    for part in own.parts(message.first):
        here = work.mean
        own.blocks.visit(part, message.first, ledger)
        farthest = np.maximum(farthest, np.abs(work.mean - here))
        residual += work.sum_of_shifts(part, own.sites.turn_shift[part])
    new = own.stored(information + work.flat - start[0], shift + work.shift - start[1])
    refusals: Counter[Refusal] = Counter()
    trace, steps = ledger.trace(), own.sites.step
    for (_, why), count in trace.refusals.items():
        refusals[why] += count
    return new, Sums(
        new.information,
        new.total_shift,
        farthest,
        residual,
        own.terms() if message.scale else np.zeros(0),
        rows=steps.size,
        steps=float(np.sum(steps)),
        updates=trace.updates,
        dampings=sum(trace.dampings.values()),
        held_back=int(own.blocks.held_back),
        rederived=int(sites is None and not message.first),
        refusals=refusals,
    )


def log_scale(
    rows: Rows, sites: PartSites | None, message: Message, share: float = 1.0, before: PartSites | None = None
) -> float:
    """Logarithm of the scale of all sites of a partition under the posterior, for the evidence."""
    own = _Own(rows, message)
    own.begin(sites, share, before)
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


def _work_for(rows: Rows, message: Message) -> DenseWork | SparseWork:
    """Copy of the posterior of all rows, for these."""
    if message.analysis is not None:
        work = SparseWork(rows, message.analysis, message.prior)
        if not work.replace(message.information, message.shift):
            raise ImproperError("prior and what is known must make a proper posterior")
        return work
    kind = DenseWork if message.prior.dim == rows.shape[1] else JointWork
    return kind(rows, message.prior, DenseKnowledge.of_flat(message.information, message.shift), kept=False)


class _Own:
    """Rows of a partition with working arrays of their sites, and its copy of the posterior."""

    def __init__(self, rows: Rows, message: Message) -> None:
        self.rows, self.message, self.work = rows, message, _work_for(rows, message)
        self.sites = sites_in_memory(rows, getattr(message.loss, "predictors", None))
        self.sites.ceiling = message.ceiling
        options = Options(power=message.power)
        self.blocks = Blocks(message.loss, rows, self.work, options, message.predictor, Fixed(), self.sites)
        self.blocks.beta = message.beta

    def parts(self, first: bool) -> list[slice]:
        """Blocks of rows, if there are any."""
        return self.work.parts(first) if self.rows.order.size else []

    def begin(self, sites: PartSites | None, share: float, before: PartSites | None) -> tuple[FloatArray, FloatArray]:
        """Write sites into the working arrays, or derive them where they were lost; their sums."""
        if sites is not None:
            sites = sites.towards(before, share, self.message.factors)
            for name in _STORED:
                getattr(self.sites, name)[:] = getattr(sites, name)
            return sites.information, sites.total_shift
        if not self.message.first:
            self._rederive()
        return self._totals()

    def stored(self, information: FloatArray, shift: FloatArray) -> PartSites:
        """Give the sites to keep until the next round, with their sums."""
        own = self.sites
        step, turn, other = (np.asarray(a, dtype=np.float32) for a in (own.step, own.turn_precision, own.turn_shift))
        return PartSites(own.precision, own.shift, step, turn, other, information, shift)

    def terms(self) -> FloatArray:
        """Sum up what rows say of the noise scale."""
        own, blocks = self.sites, self.blocks
        means, weights = own.mean + own.offset, self.rows.weights
        return scale_terms(blocks.loss, blocks.targets, means, own.variance, weights, beta=blocks.beta)

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
                revision, step = blocks.fitting.propose(
                    message.loss, targets, weights, sites, beta=message.beta, power=message.power, fresh=k == 0
                )
                sites.accept(revision, step)
                if sites.precision.ndim == 1:
                    # A site is a part of the posterior: its precision stays below that of its predictor.
                    most = 0.99 / np.where(sites.variance > 0.0, sites.variance, np.inf)
                    sites.precision[:] = np.minimum(sites.precision, most)
            sites.turn_precision[:], sites.turn_shift[:], sites.step[:] = 0.0, 0.0, 1.0

    def _totals(self) -> tuple[FloatArray, FloatArray]:
        """Sum up the sites of all rows."""
        sites, work = self.sites, self.work
        information, shift = np.zeros_like(self.message.information), np.zeros_like(self.message.shift)
        if np.any(sites.precision) or np.any(sites.shift):
            for part in self.parts(False):
                information += work.flat_of_sites(part, sites.precision[part])
                shift += work.sum_of_shifts(part, sites.shift[part])
        return information, shift


__all__ = ["Message", "PartSites", "Sums", "costs", "log_scale", "sweep"]
