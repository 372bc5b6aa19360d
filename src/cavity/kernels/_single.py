"""A single pass over sparse rows that keeps no site.

What every entry needs of its coordinate, the posterior mean and the place in the batch at hand, lies in two narrow
arrays that stay in the cache; the rest is gathered once for every coordinate that a batch touches. The cavity is the
posterior: a uniform site leaves nothing to remove.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import kernel
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

_LAST_PLACE = 2**31 - 2


class Posterior(NamedTuple):
    """Mean and precision of every coordinate, its place counted from ``cursor[0]``, and the log scale."""

    mean: Any
    precision: Any
    place: Any
    prior_precision: Any
    cursor: Any
    scale: Any


class Scratch(NamedTuple):
    """Over the touched coordinates: number, two sums, step, change of shift and precision. Over entries: place."""

    coordinate: Any
    sums: Any
    step: Any
    change: Any
    local: Any
    z: Any


def posterior_and_scratch(
    mean: Any, precision: Any, log_scale: float, width: int, entries: int, rows: int
) -> tuple[Posterior, Scratch]:
    """Allocate for batches of at most so many touched coordinates, entries and rows."""
    d = mean.size
    place, cursor = np.full(d, -1, dtype=np.int32), np.zeros(1, dtype=np.int64)
    posterior = Posterior(mean.copy(), precision.copy(), place, precision, cursor, np.array([log_scale]))
    pairs = np.zeros((2, width, 2))
    coordinate, local = np.zeros(width + 1, dtype=np.int32), np.zeros(entries, dtype=np.int32)
    return posterior, Scratch(coordinate, pairs[0], np.zeros(width), pairs[1], local, np.zeros(rows))


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
    indices, starts, values, local, sums = data.indices, data.starts, data.data, scratch.local, scratch.sums
    for visit in range(order.size):
        k = order[visit]
        first, begin = cuts[k], starts[cuts[k]]
        base, size, total = next_base(posterior, scratch), 0, 0.0
        for i in range(first, cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                z = 0.0
                for e in range(starts[i], starts[i + 1]):
                    z += values[e] * posterior.mean[indices[e]]
                    size = touch(posterior.place, indices[e], base, size, e - begin, scratch)
                value, slope, second = weighted(loss, by_slope, targets[i], weight, z)
                total += value
                for e in range(starts[i], starts[i + 1]):
                    j, x = local[e - begin], np.float64(values[e])
                    sums[j, 0] += slope * x
                    sums[j, 1] += second * x * x
        posterior.cursor[0] = base + size
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
    indices, starts, values, local, sums = data.indices, data.starts, data.data, scratch.local, scratch.sums
    for visit in range(order.size):
        k = order[visit]
        first, begin = cuts[k], starts[cuts[k]]
        base, size, total = next_base(posterior, scratch), 0, 0.0
        for i in range(first, cuts[k + 1]):
            if not weights.size or weights[i] > 0.0:
                z = 0.0
                for e in range(starts[i], starts[i + 1]):
                    z += values[e] * posterior.mean[indices[e]]
                    size = touch(posterior.place, indices[e], base, size, e - begin, scratch)
                scratch.z[i - first] = z
        posterior.cursor[0] = base + size
        gamma = spread if spread > 0.0 else np.sqrt(size + 0.5 if spread == 0.0 else max(size, 1.0))
        for j in range(size):
            scratch.step[j] = gamma / np.sqrt(posterior.precision[scratch.coordinate[j]])
        for i in range(first, cuts[k + 1]):
            weight = weights[i] if weights.size else 1.0
            if weight > 0.0:
                y, z = targets[i], scratch.z[i - first]
                here = loss.value(y, z)
                total += weight * here
                for e in range(starts[i], starts[i + 1]):
                    j = local[e - begin]
                    t = values[e] * scratch.step[j]
                    sums[j, 0] += weight * (loss.value(y, z + t) - here)
                    sums[j, 1] += weight * (loss.value(y, z - t) - here)
        outcomes[visit] = settle(posterior, scratch, size, total, options, gamma)


@kernel
def next_base(posterior: Any, scratch: Any) -> int:
    """Where places of the next batch begin; from the start again when the whole numbers run out."""
    if posterior.cursor[0] > _LAST_PLACE - scratch.local.size:
        posterior.cursor[0] = 0
        for j in range(posterior.place.size):
            posterior.place[j] = -1
    return posterior.cursor[0]


@kernel
def touch(places: Any, j: int, base: int, size: int, entry: int, scratch: Any) -> int:
    """Note the place of an entry's coordinate, a new one at its first touch; no branch, which is hard to foresee."""
    place = places[j] - base
    place = size if place < 0 else place
    places[j] = base + place
    scratch.coordinate[size] = j
    scratch.local[entry] = place
    return size + (place == size)


@kernel
def settle(posterior: Any, scratch: Any, size: int, total: float, options: Any, gamma: float) -> int:
    """Turn ``sums`` into a site; accept it or not; clear the sums for the next batch.

    The sums are slopes and curvatures, or rises up and down a star if its spread ``gamma`` is not zero.
    """
    beta, share = options.beta, options.damping
    improper, negative, finite, added = 0, 0, 0.0, 0.0
    for place in range(size):
        c = scratch.coordinate[place]
        m, p = posterior.mean[c], posterior.precision[c]
        slope, curvature = scratch.sums[place, 0], scratch.sums[place, 1]
        if gamma > 0.0:
            inverse = scratch.step[place] * p / (gamma * gamma)  # of the step: what it saves is a division
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
        finite += 0.0 * q + 0.0 * (m * p + share * r)
        if not p + share * q >= p:  # only a precision that shrinks needs a look at the prior
            improper += not p + share * q > ROUNDING * posterior.prior_precision[c]
    log_scale = added - beta * total
    if np.isnan(finite + 0.0 * log_scale):
        return NONFINITE
    if negative and options.negative == SKIP:
        return NEGATIVE
    halving = 0
    while improper or not np.isfinite(posterior.scale[0] + share * log_scale):
        if halving == HALVINGS:
            return IMPROPER_POSTERIOR
        halving += 1
        share *= 0.5
        improper = 0
        for place in range(size):
            c = scratch.coordinate[place]
            p = posterior.precision[c] + share * scratch.change[place, 1]
            improper += not p > ROUNDING * posterior.prior_precision[c]
    posterior.scale[0] += share * log_scale
    for place in range(size):
        c = scratch.coordinate[place]
        p = posterior.precision[c]
        after = p + share * scratch.change[place, 1]
        posterior.mean[c] = (posterior.mean[c] * p + share * scratch.change[place, 0]) / after
        posterior.precision[c] = after
    return DAMPED if halving else ACCEPTED
