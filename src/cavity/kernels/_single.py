"""A single pass over sparse rows that keeps no site.

What every entry needs of its coordinate lies on one cache line, asked for ahead of its use: mean, precision, standard
deviation and the place in the batch at hand. The cavity is the posterior: a uniform site leaves nothing to remove.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import entry, kernel, prefetch
from cavity.kernels._four import weighted
from cavity.kernels._store import ROUNDING
from cavity.kernels._sweep import (
    ACCEPTED,
    DAMPED,
    FLOOR,
    FLOOR_AT,
    HALVINGS,
    IMPROPER_POSTERIOR,
    NEGATIVE,
    NEGLIGIBLE,
    NONFINITE,
    SKIP,
)

# Entries whose coordinates are asked for ahead of their use.
_AHEAD = 64


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
    """Over the touched coordinates: number, standard deviation, two sums, site, posterior before. Over entries: place.

    The first two have room for one more coordinate. The sums are zero between batches.
    """

    coordinate: Any
    std: Any
    sums: Any
    change: Any
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
    cursor = np.ones(1, dtype=np.int64)
    posterior = Posterior(records, records.view(np.int64), precision, cursor, np.array([log_scale]))
    coordinate, local = np.zeros(width + 1, dtype=np.int32), np.zeros(entries, dtype=np.int32)
    return posterior, Scratch(coordinate, np.zeros(width + 1), *np.zeros((3, width, 2)), local, np.zeros(rows))


def begin(records: Any, shift: Any, precision: Any) -> None:
    """Write the records in one go: they may be large."""
    for j in range(shift.size):
        variance = 1.0 / precision[j]
        records[j, 0] = shift[j] * variance
        records[j, 1] = precision[j]
        records[j, 2] = np.sqrt(variance)
        records[j, 3] = 0.0


def single_taylor(
    loss: Any,
    by_slope: bool,
    data: Any,
    targets: Any,
    weights: Any,
    cuts: Any,
    posterior: Any,
    order: Any,
    options: Any,
    outcomes: Any,
    scratch: Any,
) -> None:
    """Quick Laplace. The mean stands still during a batch, so a row is read once and used twice from near by."""
    starts, values, local, sums = data.starts, data.data, scratch.local, scratch.sums
    for visit in range(order.size):
        k = order[visit]
        begin, end = starts[cuts[k]], starts[cuts[k + 1]]
        size, total = 0, 0.0
        for i in range(cuts[k], cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                z, size = predict(posterior, data, starts[i], starts[i + 1], begin, end, size, scratch)
                value, slope, second = weighted(loss, by_slope, targets[i], weight, z)
                total += value
                for e in range(starts[i], starts[i + 1]):
                    j, x = local[e - begin], np.float64(values[e])
                    sums[j, 0] += slope * x
                    sums[j, 1] += second * x * x
        posterior.cursor[0] += size
        outcomes[visit] = settle(posterior, scratch, size, total, options, 0.0)


def single_star(
    loss: Any,
    spread: float,
    data: Any,
    targets: Any,
    weights: Any,
    cuts: Any,
    posterior: Any,
    order: Any,
    options: Any,
    outcomes: Any,
    scratch: Any,
) -> None:
    """Variational quadrature. The spread depends on how many coordinates a batch touches: count, then look."""
    starts, values, local, sums = data.starts, data.data, scratch.local, scratch.sums
    for visit in range(order.size):
        k = order[visit]
        first, begin, end = cuts[k], starts[cuts[k]], starts[cuts[k + 1]]
        size, total = 0, 0.0
        for i in range(first, cuts[k + 1]):
            if not weights.size or weights[i] > 0.0:
                z, size = predict(posterior, data, starts[i], starts[i + 1], begin, end, size, scratch)
                scratch.z[i - first] = z
        posterior.cursor[0] += size
        gamma = spread if spread > 0.0 else np.sqrt(size + 0.5 if spread == 0.0 else max(size, 1.0))
        for i in range(first, cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                y, z = targets[i], scratch.z[i - first]
                here = loss.value(y, z)
                total += weight * here
                for e in range(starts[i], starts[i + 1]):
                    j = local[e - begin]
                    t = gamma * values[e] * scratch.std[j]
                    sums[j, 0] += weight * (loss.value(y, z + t) - here)
                    sums[j, 1] += weight * (loss.value(y, z - t) - here)
        outcomes[visit] = settle(posterior, scratch, size, total, options, gamma)


@kernel
def predict(
    posterior: Any, data: Any, first: int, last: int, begin: int, end: int, size: int, scratch: Any
) -> tuple[float, int]:
    """Linear predictor of a row, and how many coordinates its batch touches so far.

    Every entry notes the place of its coordinate, a new one at the first touch; without a branch, hard to foresee.
    """
    records, places, base = posterior.records, posterior.places, posterior.cursor[0]
    z = 0.0
    for e in range(first, last):
        prefetch(records, (data.indices[min(e + _AHEAD, end - 1)], 0))
        j = data.indices[e]
        z += data.data[e] * records[j, 0]
        place = places[j, 3] - base
        place = size if place < 0 else place
        places[j, 3] = base + place
        scratch.coordinate[size] = j
        scratch.std[size] = records[j, 2]
        scratch.local[e - begin] = place
        size += place == size
    return z, size


@kernel
def settle(posterior: Any, scratch: Any, size: int, total: float, options: Any, gamma: float) -> int:
    """Turn ``sums`` into a site and take it in; undo that if it may not be. Clears the sums for the next batch.

    The sums are slopes and curvatures, or rises up and down a star if its spread ``gamma`` is not zero.
    """
    beta, share, records = options.beta, options.damping, posterior.records
    improper, negative, finite, added = 0, 0, 0.0, 0.0
    for place in range(size):
        c = scratch.coordinate[place]
        m, p = records[c, 0], records[c, 1]
        slope, curvature = scratch.sums[place, 0], scratch.sums[place, 1]
        if gamma > 0.0:
            inverse = scratch.std[place] * p / gamma  # of the step: what it saves is a division
            slope, curvature = 0.5 * (slope - curvature) * inverse, (slope + curvature) * (inverse * inverse)
        scratch.sums[place, 0] = 0.0
        scratch.sums[place, 1] = 0.0
        total += (0.5 * curvature * m - slope) * m
        r, q = beta * (curvature * m - slope), beta * curvature
        negative += q < -NEGLIGIBLE * p
        if options.negative == FLOOR and q < FLOOR_AT:
            added += 0.5 * (FLOOR_AT - q) * m * m
            q = FLOOR_AT
        scratch.change[place, 0] = r
        scratch.change[place, 1] = q
        scratch.before[place, 0] = m
        scratch.before[place, 1] = p
        finite += 0.0 * q + 0.0 * (m * p + share * r)
        if not p + share * q >= p:  # only a precision that shrinks needs a look at the prior
            improper += not p + share * q > ROUNDING * posterior.prior_precision[c]
        move(records, c, m, p, share * r, share * q, gamma)
    log_scale = added - beta * total
    if np.isnan(finite + 0.0 * log_scale):
        undo(records, scratch, size, gamma)
        return NONFINITE
    if negative and options.negative == SKIP:
        undo(records, scratch, size, gamma)
        return NEGATIVE
    halving = 0
    while improper or not np.isfinite(posterior.scale[0] + share * log_scale):
        if halving == HALVINGS:
            undo(records, scratch, size, gamma)
            return IMPROPER_POSTERIOR
        halving += 1
        share *= 0.5
        improper = 0
        for place in range(size):
            c, m, p = scratch.coordinate[place], scratch.before[place, 0], scratch.before[place, 1]
            r, q = scratch.change[place, 0], scratch.change[place, 1]
            improper += not p + share * q > ROUNDING * posterior.prior_precision[c]
            move(records, c, m, p, share * r, share * q, gamma)
    posterior.scale[0] += share * log_scale
    return DAMPED if halving else ACCEPTED


@kernel
def move(records: Any, c: int, m: float, p: float, r: float, q: float, gamma: float) -> None:
    """Multiply the posterior of a coordinate, mean m and precision p, by a site; no star, no standard deviation."""
    variance = 1.0 / (p + q)
    records[c, 0] = (m * p + r) * variance
    records[c, 1] = p + q
    if gamma > 0.0:
        records[c, 2] = np.sqrt(variance)


@kernel
def undo(records: Any, scratch: Any, size: int, gamma: float) -> None:
    """Put back the posterior of the touched coordinates."""
    for place in range(size):
        c = scratch.coordinate[place]
        records[c, 0] = scratch.before[place, 0]
        records[c, 1] = scratch.before[place, 1]
        if gamma > 0.0:
            records[c, 2] = scratch.std[place]
