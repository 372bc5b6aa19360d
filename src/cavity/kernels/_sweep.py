"""One loop of EP over all mini-batches of a linear model, in one call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import kernel, open_method
from cavity.kernels._rows import DenseRows, SparseRows
from cavity.schemes.constants import NEGLIGIBLE, PRECISION_ROUNDING, SITE_FLOOR, UPDATE_HALVINGS

# Outcomes of a visit; positive ones are refusals.
ACCEPTED, DAMPED = 0, -1
IMPROPER_CAVITY, NONFINITE, NEGATIVE, IMPROPER_POSTERIOR = 1, 2, 3, 4

# Policies on negative precisions.
KEEP, FLOOR, SKIP = 0, 1, 2


class Options(NamedTuple):
    """Numbers of a loop."""

    beta: float
    power: float
    damping: float
    negative: int
    retries: int  # how often an improper cavity is tried again with half as much of the site removed


class State(NamedTuple):
    """The posterior. ``records[j]`` holds its shift and precision, the precision of the prior, and a place.

    ``places`` are the same records read as whole numbers: the fourth says where a coordinate stands in the batch at
    hand, counted from ``cursor[0]``. ``scale[0]`` is the log scale.
    """

    records: Any
    places: Any
    scale: Any
    cursor: Any


class DenseData(NamedTuple):
    """A C-ordered matrix."""

    entries: Any

    def open(self, first: int, last: int, weights: Any, state: Any, work: Any) -> tuple[Any, int]:
        """Rows of a batch; every coordinate is local, and those without a non-zero are marked."""
        X = self.entries[first:last]
        mark_touched(X, weights, work.touched)
        return DenseRows(X), X.shape[1]


class SparseData(NamedTuple):
    """A CSR matrix without stored zeros."""

    data: Any
    indices: Any
    starts: Any

    def open(self, first: int, last: int, weights: Any, state: Any, work: Any) -> tuple[Any, Any]:
        """Rows of a batch; coordinates are numbered as they first appear. No branches but for idle rows.

        The place of a coordinate that the batch has not seen lies below the base, and wraps around to a large number.
        """
        base, size = state.cursor[0], np.uint64(0)
        begin, end = np.uint64(self.starts[first]), np.uint64(self.starts[last])
        places, coordinate, local = state.places, work.coordinate, work.local
        for i in range(first, last):
            if weights[i - first] > 0.0:
                for e in range(np.uint64(self.starts[i]), np.uint64(self.starts[i + 1])):
                    j = np.uint32(self.indices[e])
                    place = min(places[j, 3] - base, size)
                    places[j, 3] = base + place
                    coordinate[size] = j
                    local[e - begin] = place
                    size += np.uint64(place == size)
        state.cursor[0] = base + size
        return SparseRows(self.data[begin:end], local[: end - begin], self.starts[first : last + 1]), np.int64(size)


@kernel
def mark_touched(X: Any, weights: Any, touched: Any) -> None:
    """Mark the columns with a non-zero in a row of positive weight; the first row is usually enough."""
    n, d = X.shape
    missing = 0
    for j in range(d):
        touched[j] = n > 0 and weights[0] > 0.0 and X[0, j] != 0.0
        missing += not touched[j]
    i = 1
    while missing and i < n:
        if weights[i] > 0.0:
            for j in range(d):
                if not touched[j] and X[i, j] != 0.0:
                    touched[j] = True
                    missing -= 1
        i += 1


def sweep(loss: Any, scheme: Any, batches: Any, state: Any, store: Any, route: Any, options: Any, work: Any) -> None:
    """Visit the batches, which are data, targets, weights and cuts: batch k has the rows cuts[k] to cuts[k + 1].

    The route is the order of the visits, the batch visited after each, and an array for their outcomes.
    """
    data, targets, weights, cuts = batches
    order, following, outcomes = route
    for visit in range(order.size):
        k = order[visit]
        first, last = cuts[k], cuts[k + 1]
        w = weights[first:last] if weights.size else work.ones[: last - first]
        rows, size = data.open(first, last, w, state, work)
        old_scale = store.load(k, size, work)
        outcome, share = IMPROPER_CAVITY, 1.0
        proper, tries = form_cavity(size, options.power, state.records, work), 0
        while not proper and tries < options.retries:
            tries += 1
            share *= 0.5
            proper = form_cavity(size, share * options.power, state.records, work)
        if proper:
            power = share * options.power
            log_scale = scheme.fit(loss, rows, targets[first:last], w, power * options.beta, size, work)
            outcome = propose(size, options, power, log_scale, old_scale, work)
        if outcome == ACCEPTED:
            outcome = accept(store, (k, following[visit]), size, options, share, old_scale, state, work)
        outcomes[visit] = outcome


@kernel
def form_cavity(size: int, power: float, records: Any, work: Any) -> bool:
    """Take a power of the site out of the posterior; whether what is left is proper.

    Zero times a number is zero if that is finite, and NaN if not.
    """
    for j in range(size):
        c = work.coordinate[j]
        work.post_shift[j] = records[c, 0]
        work.post_precision[j] = records[c, 1]
        work.prior_precision[j] = records[c, 2]
        if not work.touched[j]:
            work.site_shift[j] = work.site_precision[j] = 0.0
        p = records[c, 1] - power * work.site_precision[j]
        r = records[c, 0] - power * work.site_shift[j]
        if not (p > PRECISION_ROUNDING * abs(records[c, 1]) and 0.0 * p + 0.0 * r == 0.0):
            return False
        work.precision[j] = p
        work.mean[j] = r / p
    return True


@kernel
def propose(size: int, options: Any, power: float, log_scale: float, old_scale: float, work: Any) -> int:
    """Put the quotient of the fitted and the old site in the place of the fitted one, or say why not."""
    scale, negative = 1.0 / power, False
    log_scale *= scale
    for j in range(size):
        r, p = scale * work.fit_shift[j], scale * work.fit_precision[j]
        if 0.0 * p + 0.0 * r != 0.0:
            return NONFINITE
        negative = negative or p < -NEGLIGIBLE * work.precision[j]
        if options.negative == FLOOR and p < SITE_FLOOR and work.touched[j]:
            log_scale += 0.5 * (SITE_FLOOR - p) * work.mean[j] * work.mean[j]
            p = SITE_FLOOR
        work.fit_shift[j] = r - work.site_shift[j]
        work.fit_precision[j] = p - work.site_precision[j]
    work.change_scale[0] = log_scale - old_scale
    if 0.0 * log_scale != 0.0:
        return NONFINITE
    return NEGATIVE if negative and options.negative == SKIP else ACCEPTED


@kernel
def accept(
    store: Any, visit: Any, size: int, options: Any, most: float, old_scale: float, state: Any, work: Any
) -> int:
    """Make the change, halved as often as posterior and next cavity need; or leave all as it was, by none of it."""
    k, following = visit
    records, share, change = state.records, most * options.damping, work.change_scale[0]
    for halving in range(UPDATE_HALVINGS + 2):
        is_refused = halving > UPDATE_HALVINGS
        share = 0.0 if is_refused else share
        proper = 0.0 * (state.scale[0] + share * change) == 0.0
        for j in range(size):
            p = work.post_precision[j] + share * work.fit_precision[j]
            r = work.post_shift[j] + share * work.fit_shift[j]
            if not (p > PRECISION_ROUNDING * work.prior_precision[j] and 0.0 * p + 0.0 * r == 0.0):
                proper = False
                break
        if proper or is_refused:
            for j in range(size):
                c = work.coordinate[j]
                records[c, 0] = work.post_shift[j] + share * work.fit_shift[j]
                records[c, 1] = work.post_precision[j] + share * work.fit_precision[j]
            store.write(k, size, share, (old_scale, change), work)
            if not is_refused and store.next_is_proper(following, options.power, records):
                state.scale[0] += share * change
                return DAMPED if halving else ACCEPTED
        share *= 0.5
    return IMPROPER_POSTERIOR


def survey(data: Any, weights: Any, cuts: Any, state: Any, starts: Any, touches: Any, work: Any) -> None:
    """Count local coordinates of every batch, summed up, into ``starts``; and for every coordinate its batches."""
    for k in range(starts.size - 1):
        first, last = cuts[k], cuts[k + 1]
        w = weights[first:last] if weights.size else work.ones[: last - first]
        _, size = data.open(first, last, w, state, work)
        starts[k + 1] = starts[k] + size
        for j in range(size):
            touches[work.coordinate[j]] += work.touched[j]


def list_supports(data: Any, weights: Any, cuts: Any, state: Any, starts: Any, support: Any, work: Any) -> None:
    """Write the coordinates of every batch into ``support``."""
    for k in range(starts.size - 1):
        first, last = cuts[k], cuts[k + 1]
        w = weights[first:last] if weights.size else work.ones[: last - first]
        _, size = data.open(first, last, w, state, work)
        for j in range(size):
            support[starts[k] + j] = work.coordinate[j]


open_method("open", 5)
