"""A single pass of exact projection over sparse rows that keeps no site.

Rows change the posterior as they come, on the records themselves: mean, variance, nothing, and the place in the batch
at hand, one cache line a coordinate. The posterior before a batch is noted at the first touch; only a batch that does
not go smoothly looks at it again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import entry, kernel
from cavity.kernels._moments import tilt
from cavity.kernels._single import ENTRIES_AHEAD, ONE
from cavity.kernels._sweep import ACCEPTED, DAMPED, IMPROPER_POSTERIOR, NONFINITE
from cavity.kernels._tricks import prefetch
from cavity.schemes.constants import PRECISION_ROUNDING, UPDATE_HALVINGS


class Moments(NamedTuple):
    """The posterior. ``records[j]`` holds mean, variance, nothing and, read as a whole number in ``places``, a place.

    Places are counted from ``cursor[0]``. ``log_mass[0]`` is the logarithm of the integral.
    """

    records: Any
    places: Any
    prior_precision: Any
    cursor: Any
    log_mass: Any


class Notes(NamedTuple):
    """Over the touched coordinates, with room for one more: number, mean and variance before."""

    coordinate: Any
    before: Any


def moments_and_notes(shift: Any, precision: Any, log_mass: float, width: int) -> tuple[Moments, Notes]:
    """Allocate for batches of at most so many touched coordinates."""
    records = np.empty((shift.size, 4))
    entry(begin)(records, shift, precision)
    # Places begin at one: zero, which the records hold, stands for never seen.
    cursor = np.ones(1, dtype=np.uint64)
    moments = Moments(records, records.view(np.uint64), precision, cursor, np.array([log_mass]))
    return moments, Notes(np.zeros(width + 1, dtype=np.uint32), np.zeros((width + 1, 2)))


def begin(records: Any, shift: Any, precision: Any) -> None:
    """Write the records in one go: they may be large."""
    for j in range(shift.size):
        variance = 1.0 / precision[j]
        records[j, 0] = shift[j] * variance
        records[j, 1] = variance
        records[j, 2] = 0.0
        records[j, 3] = 0.0


def read_moments(moments: Moments) -> tuple[Any, Any]:
    """Shift and precision of every coordinate, in arrays that cannot be written."""
    size = moments.prior_precision.size
    shift, precision = np.empty(size), np.empty(size)
    entry(end)(moments.records, shift, precision)
    shift.flags.writeable = precision.flags.writeable = False
    return shift, precision


def end(records: Any, shift: Any, precision: Any) -> None:
    """Read the records in one go."""
    for j in range(shift.size):
        precision[j] = 1.0 / records[j, 1]
        shift[j] = records[j, 0] * precision[j]


def single_exact(
    loss: Any, rules: Any, batches: Any, moments: Any, order: Any, options: Any, outcomes: Any, notes: Any
) -> None:
    """Take in the rows of every batch one after the other."""
    data, targets, weights, cuts = batches
    starts = data.starts
    for visit in range(order.size):
        k = order[visit]
        last = np.uint64(starts[cuts[k + 1]])
        size, gained, rough = np.uint64(0), 0.0, 0.0
        for i in range(cuts[k], cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                y, b = targets[i], options.beta * weight
                first, stop = np.uint64(starts[i]), np.uint64(starts[i + 1])
                m, v, size = project(moments, data, first, stop, last, size, notes)
                if v == 0.0:
                    gained -= b * loss.value(y, m)
                else:
                    log_mass, shift, ratio = tilt(loss, y, m, v, b, rules)
                    gained += log_mass
                    gain, bend = shift / math.sqrt(v), (ratio - 1.0) / v
                    rough += absorb(moments.records, data, first, stop, gain, bend, min(ratio, 1.0))
                    rough += ratio > 1.0
        moments.cursor[0] += size
        if rough == 0.0 and np.isfinite(gained) and options.damping == 1.0:
            moments.log_mass[0] += gained
            outcomes[visit] = ACCEPTED
        else:
            outcomes[visit] = add_site(moments, notes, size, gained, options.damping)


@kernel
def project(moments: Any, data: Any, first: int, stop: int, last: int, size: Any, notes: Any) -> Any:
    """Mean and variance of a row's predictor; how many coordinates the batch touches so far, each noted."""
    records, places, base = moments.records, moments.places, moments.cursor[0]
    m = v = 0.0
    for e in range(first, stop):
        prefetch(records, (np.uint32(data.indices[min(e + ENTRIES_AHEAD, last - ONE)]), 0))
        j, x = np.uint32(data.indices[e]), np.float64(data.data[e])
        m += x * records[j, 0]
        v += x * x * records[j, 1]
        place = min(places[j, 3] - base, size)
        places[j, 3] = base + place
        notes.coordinate[size] = j
        new = np.uint64(place == size)
        if new:
            notes.before[size, 0] = records[j, 0]
            notes.before[size, 1] = records[j, 1]
        size += new
    return m, v, size


@kernel
def absorb(records: Any, data: Any, first: int, stop: int, gain: float, bend: float, least: float) -> float:
    """Let means and variances follow a row; zero unless one of them is no number any more, or no width."""
    rough = 0.0
    for e in range(first, stop):
        j = np.uint32(data.indices[e])
        s = records[j, 1]
        covariance = s * data.data[e]
        mean = records[j, 0] + covariance * gain
        s, floor = s + covariance * covariance * bend, least * s
        s = floor if s < floor else s
        records[j, 0] = mean
        records[j, 1] = s
        rough += 0.0 * mean + 0.0 * s + (not s > 1e-300)  # the precision of a smaller variance overflows
    return rough


@kernel
def add_site(moments: Any, notes: Any, size: int, gained: float, damping: float) -> int:
    """Take in a share of the batch that leaves the posterior proper, or nothing; say what came of it."""
    records, share = moments.records, damping
    site_scale, finite = gained, 0.0
    for place in range(size):
        c = notes.coordinate[place]
        m0, s0, m1, s1 = notes.before[place, 0], notes.before[place, 1], records[c, 0], records[c, 1]
        site_scale -= height(m1, s1) - height(m0, s0)
        finite += 0.0 * (1.0 / s1) + 0.0 * (m1 / s1)
    if np.isnan(finite + 0.0 * site_scale):
        put_back(records, notes, size)
        return NONFINITE
    for halving in range(UPDATE_HALVINGS + 1):
        improper = 0
        for place in range(size):
            c = notes.coordinate[place]
            before, after = 1.0 / notes.before[place, 1], 1.0 / records[c, 1]
            p = before + share * (after - before)
            improper += not p > PRECISION_ROUNDING * moments.prior_precision[c]
        if not improper:
            moments.log_mass[0] += share * site_scale + blend(records, notes, size, share)
            return DAMPED if halving else ACCEPTED
        share *= 0.5
    put_back(records, notes, size)
    return IMPROPER_POSTERIOR


@kernel
def blend(records: Any, notes: Any, size: int, share: float) -> float:
    """Go a share of the distance from the posterior before to the one after; return how much higher it then rises."""
    rise = 0.0
    for place in range(size):
        c = notes.coordinate[place]
        m0, s0, m1, s1 = notes.before[place, 0], notes.before[place, 1], records[c, 0], records[c, 1]
        if share < 1.0:
            p = 1.0 / s0 + share * (1.0 / s1 - 1.0 / s0)
            m1, s1 = (m0 / s0 + share * (m1 / s1 - m0 / s0)) / p, 1.0 / p
            records[c, 0] = m1
            records[c, 1] = s1
        rise += height(m1, s1) - height(m0, s0)
    return rise


@kernel
def height(m: float, s: float) -> float:
    """Logarithm of the integral of a coordinate's Gaussian that is one at the origin, but for a constant."""
    return 0.5 * (m * m / s + np.log(s))


@kernel
def put_back(records: Any, notes: Any, size: int) -> None:
    """Restore the posterior of the touched coordinates."""
    for place in range(size):
        c = notes.coordinate[place]
        records[c, 0] = notes.before[place, 0]
        records[c, 1] = notes.before[place, 1]
