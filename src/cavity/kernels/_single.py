"""A single pass over sparse rows that keeps no site.

What every entry needs of its coordinate lies on one cache line, asked for ahead of its use: mean, precision, standard
deviation and the place in the batch at hand. The cavity is the posterior: a uniform site leaves nothing to remove.
Places and coordinates are unsigned: Numba looks at every signed number for a place counted from the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import entry, kernel
from cavity.kernels._four import weighted
from cavity.kernels._sweep import (
    ACCEPTED,
    DAMPED,
    FLOOR,
    IMPROPER_POSTERIOR,
    NEGATIVE,
    NONFINITE,
    SKIP,
)
from cavity.kernels._tricks import prefetch
from cavity.schemes.constants import NEGLIGIBLE, PRECISION_ROUNDING, SITE_FLOOR, UPDATE_HALVINGS


class Posterior(NamedTuple):
    """``records[j]`` holds mean, precision, standard deviation and, read as a whole number in ``places``, a place.

    Places are counted from ``cursor[0]``. ``scale[0]`` is the log scale.
    """

    records: Any
    places: Any
    prior_precision: Any
    cursor: Any
    scale: Any


class Scratch(NamedTuple):
    """Over the touched coordinates: number, standard deviation, two sums, posterior before. Over entries: place.

    The first two have room for one more coordinate. The sums are zero between batches.
    """

    coordinate: Any
    std: Any
    sums: Any
    before: Any
    local: Any
    z: Any


def posterior_and_scratch(
    shift: Any, precision: Any, log_scale: float, width: int, entries: int, rows: int
) -> tuple[Posterior, Scratch]:
    """Allocate for batches of at most so many touched coordinates, entries and rows."""
    records = np.empty((shift.size, 4))
    entry(begin)(records, shift, precision)
    # Places begin at one: zero, which the records hold, stands for never seen.
    cursor = np.ones(1, dtype=np.uint64)
    posterior = Posterior(records, records.view(np.uint64), precision, cursor, np.array([log_scale]))
    coordinate, local = np.zeros(width + 1, dtype=np.uint32), np.zeros(entries, dtype=np.uint32)
    return posterior, Scratch(coordinate, np.zeros(width + 1), *np.zeros((2, width, 2)), local, np.zeros(rows))


def read_posterior(posterior: Posterior) -> tuple[Any, Any]:
    """Shift and precision of every coordinate, in arrays that cannot be written."""
    size = posterior.prior_precision.size
    shift, precision = np.empty(size), np.empty(size)
    entry(end)(posterior.records, shift, precision)
    shift.flags.writeable = precision.flags.writeable = False
    return shift, precision


def begin(records: Any, shift: Any, precision: Any) -> None:
    for j in range(shift.size):
        variance = 1.0 / precision[j]
        records[j, 0] = shift[j] * variance
        records[j, 1] = precision[j]
        records[j, 2] = np.sqrt(variance)
        records[j, 3] = 0.0


def end(records: Any, shift: Any, precision: Any) -> None:
    for j in range(shift.size):
        shift[j] = records[j, 0] * records[j, 1]
        precision[j] = records[j, 1]


def single_taylor(
    loss: Any, by_slope: bool, batches: Any, posterior: Any, order: Any, options: Any, outcomes: Any, scratch: Any
) -> None:
    """Quick Laplace. The mean does not change during a batch, so a row is read once and used twice from the cache."""
    data, targets, weights, cuts = batches
    starts, values, local, sums = data.starts, data.data, scratch.local, scratch.sums
    for visit in range(order.size):
        k = order[visit]
        begin, end = np.uint64(starts[cuts[k]]), np.uint64(starts[cuts[k + 1]])
        size, total = np.uint64(0), 0.0
        for i in range(cuts[k], cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                first, last = np.uint64(starts[i]), np.uint64(starts[i + 1])
                z, size = predict(posterior, data, (first, last), (begin, end), size, False, scratch)
                value, slope, second = weighted(loss, by_slope, targets[i], weight, z)
                total += value
                for e in range(first, last):
                    j, x = local[e - begin], np.float64(values[e])
                    sums[j, 0] += slope * x
                    sums[j, 1] += second * x * x
        posterior.cursor[0] += size
        outcomes[visit] = add_site(posterior, scratch, size, total, options, 0.0)


def single_star(
    loss: Any, spread: float, batches: Any, posterior: Any, order: Any, options: Any, outcomes: Any, scratch: Any
) -> None:
    """Variational quadrature. The spread depends on how many coordinates a batch touches: count, then look."""
    data, targets, weights, cuts = batches
    starts, values, local, sums = data.starts, data.data, scratch.local, scratch.sums
    for visit in range(order.size):
        k = order[visit]
        begin, end = np.uint64(starts[cuts[k]]), np.uint64(starts[cuts[k + 1]])
        size, total = np.uint64(0), 0.0
        for i in range(cuts[k], cuts[k + 1]):
            if not weights.size or weights[i] > 0.0:
                first, last = np.uint64(starts[i]), np.uint64(starts[i + 1])
                z, size = predict(posterior, data, (first, last), (begin, end), size, True, scratch)
                scratch.z[i - cuts[k]] = z
        posterior.cursor[0] += size
        gamma = spread if spread > 0.0 else np.sqrt(size + 0.5 if spread == 0.0 else max(size, 1.0))
        for i in range(cuts[k], cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                y, z = targets[i], scratch.z[i - cuts[k]]
                here = loss.value(y, z)
                total += weight * here
                for e in range(np.uint64(starts[i]), np.uint64(starts[i + 1])):
                    j = local[e - begin]
                    t = gamma * values[e] * scratch.std[j]
                    sums[j, 0] += weight * (loss.value(y, z + t) - here)
                    sums[j, 1] += weight * (loss.value(y, z - t) - here)
        outcomes[visit] = add_site(posterior, scratch, size, total, options, 1.0 / gamma)


@kernel
def predict(posterior: Any, data: Any, row: Any, batch: Any, size: Any, star: bool, scratch: Any) -> tuple[float, int]:
    """Linear predictor of a row, and how many coordinates its batch touches so far.

    Every entry notes the place of its coordinate, a new one at the first touch; without a branch, hard to foresee.
    The place of a coordinate that this batch has not seen lies below the base, and wraps around to a large number.
    """
    records, places, base = posterior.records, posterior.places, posterior.cursor[0]
    z, begin, end = 0.0, batch[0], batch[1]
    for e in range(row[0], row[1]):
        ahead = min(e + np.uint64(64), end - np.uint64(1))  # whole numbers with a sign would make places signed
        prefetch(records, (np.uint32(data.indices[ahead]), 0))
        j = np.uint32(data.indices[e])
        z += data.data[e] * records[j, 0]
        place = min(places[j, 3] - base, size)
        places[j, 3] = base + place
        scratch.coordinate[size] = j
        if star:
            scratch.std[size] = records[j, 2]
        scratch.local[e - begin] = place
        size += np.uint64(place == size)
    return z, size


@kernel
def add_site(posterior: Any, scratch: Any, size: int, total: float, options: Any, narrow: float) -> int:
    """Turn ``sums`` into a site and take it in; undo that if it may not be. Clears the sums for the next batch.

    The sums are slopes and curvatures, or rises up and down a star: then ``narrow``, one over its spread, is not zero.
    """
    share, records = options.damping, posterior.records
    improper, negative, finite, log_scale = 0, 0, 0.0, -options.beta * total
    for place in range(size):
        prefetch(records, (scratch.coordinate[min(place + np.uint64(12), size)], 0))
        c = scratch.coordinate[place]
        m, p = records[c, 0], records[c, 1]
        scratch.before[place, 0] = m
        scratch.before[place, 1] = p
        r, q, scale, below = site(scratch, place, m, p, options, narrow)
        log_scale += scale
        negative += below
        finite += 0.0 * q + 0.0 * (m * p + share * r)
        if not p + share * q >= p:  # only a precision that shrinks needs a look at the prior
            improper += not p + share * q > PRECISION_ROUNDING * posterior.prior_precision[c]
        move(records, c, m, p, share * r, share * q, narrow)
    outcome, halving = ACCEPTED, 0
    if np.isnan(finite + 0.0 * log_scale):
        outcome = NONFINITE
    elif negative and options.negative == SKIP:
        outcome = NEGATIVE
    while outcome == ACCEPTED and (improper or not np.isfinite(posterior.scale[0] + share * log_scale)):
        if halving == UPDATE_HALVINGS:
            outcome = IMPROPER_POSTERIOR
            break
        halving += 1
        share *= 0.5
        improper = again(posterior, scratch, size, options, share, narrow)
    if outcome == ACCEPTED:
        posterior.scale[0] += share * log_scale
        outcome = DAMPED if halving else ACCEPTED
    else:
        undo(records, scratch, size, narrow)
    scratch.sums[:size] = 0.0
    return outcome


@kernel
def site(scratch: Any, place: int, m: float, p: float, options: Any, narrow: float) -> tuple[float, float, float, bool]:
    """Shift, precision and part in the log scale of a coordinate's site, and whether it is negative."""
    slope, curvature = scratch.sums[place, 0], scratch.sums[place, 1]
    if narrow > 0.0:
        inverse = scratch.std[place] * p * narrow  # of the step: divisions are slow
        slope, curvature = 0.5 * (slope - curvature) * inverse, (slope + curvature) * (inverse * inverse)
    scale = -options.beta * ((0.5 * curvature * m - slope) * m)
    q = options.beta * curvature
    below = q < -NEGLIGIBLE * p
    if options.negative == FLOOR and q < SITE_FLOOR:
        scale += 0.5 * (SITE_FLOOR - q) * m * m
        q = SITE_FLOOR
    return options.beta * (curvature * m - slope), q, scale, below


@kernel
def again(posterior: Any, scratch: Any, size: int, options: Any, share: float, narrow: float) -> int:
    """Take in another share of the site; count the coordinates that it leaves improper."""
    improper = 0
    for place in range(size):
        c, m, p = scratch.coordinate[place], scratch.before[place, 0], scratch.before[place, 1]
        r, q, _, _ = site(scratch, place, m, p, options, narrow)
        improper += not p + share * q > PRECISION_ROUNDING * posterior.prior_precision[c]
        move(posterior.records, c, m, p, share * r, share * q, narrow)
    return improper


@kernel
def move(records: Any, c: int, m: float, p: float, r: float, q: float, narrow: float) -> None:
    """Multiply the posterior of a coordinate, mean m and precision p, by a site; no star, no standard deviation."""
    variance = 1.0 / (p + q)
    records[c, 0] = (m * p + r) * variance
    records[c, 1] = p + q
    if narrow > 0.0:
        records[c, 2] = np.sqrt(variance)


@kernel
def undo(records: Any, scratch: Any, size: int, narrow: float) -> None:
    for place in range(size):
        c = scratch.coordinate[place]
        records[c, 0] = scratch.before[place, 0]
        records[c, 1] = scratch.before[place, 1]
        if narrow > 0.0:
            records[c, 2] = scratch.std[place]
