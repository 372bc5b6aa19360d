"""One loop of EP over all mini-batches of a linear model, in one call: arrays and NamedTuples in, arrays out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.factors import check_compressed
from cavity.gaussians.factorial import PRECISION_ROUNDING, SITE_FLOOR
from cavity.kernels.bridge import kernel
from cavity.schemes.constants import UPDATE_HALVINGS

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


# Whose sites are kept: none, one per batch, one for all.
NONE, OWN, TIED = 0, 1, 2


class Store(NamedTuple):
    """Sites in flat arrays.

    ``starts[k]`` is where the coordinates of batch ``k`` begin in ``support``; an empty support means that every batch
    has all coordinates. Own sites lie along ``support``; the tied one along the coordinates, and ``touches`` counts the
    batches that touch each.
    """

    mode: int
    starts: Any
    support: Any
    shifts: Any
    precisions: Any
    scales: Any
    touches: Any


class Work(NamedTuple):
    """Arrays over the coordinates that a mini-batch touches, and arrays over its rows."""

    coordinate: Any  # global number of every local coordinate, and room for one more
    touched: Any  # whether a local coordinate has a non-zero in the batch
    local: Any  # local coordinate of every stored entry (sparse rows only)
    change_scale: Any  # change of the log scale, one number
    conjugate: Any
    post_shift: Any
    post_precision: Any
    prior_precision: Any
    site_shift: Any
    site_precision: Any
    mean: Any
    precision: Any  # of the cavity
    fit_shift: Any
    fit_precision: Any
    up: Any
    down: Any
    step: Any
    site_steps: Any
    buffer: Any
    ones: Any  # weights of rows that have none
    z: Any
    slope: Any
    second: Any


def work_for(width: int, batch: int, entries: int) -> Work:
    """Allocate for at most so many coordinates, rows and stored entries per batch."""
    rows = np.zeros((4, batch))
    rows[0] = 1.0
    return Work(
        np.arange(width + 1, dtype=np.uint32),
        np.ones(width, dtype=np.bool_),
        np.zeros(entries, dtype=np.uint32),
        np.zeros(1),
        np.zeros((4, width)),
        *np.zeros((14, width)),
        *rows,
    )


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
        old_scale = load_site(store, k, size, work)
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
def load_site(store: Any, k: int, size: int, work: Any) -> float:
    """Copy the site of batch ``k``; return its log scale."""
    if store.mode == NONE:
        return 0.0  # the scratch memory of a site is zero from the start, and nothing else writes to it
    is_own, first = store.mode == OWN, store.starts[k]
    for j in range(size):
        place = first + j if is_own else np.int64(work.coordinate[j])
        work.site_shift[j] = store.shifts[place]
        work.site_precision[j] = store.precisions[place]
    return store.scales[k if is_own else 0]


@kernel
def form_cavity(size: int, power: float, records: Any, work: Any) -> bool:
    """Take a power of the site out of the posterior; whether what is left is proper.

    Zero times a number is zero if that is finite, and NaN if not.
    """
    improper = 0
    for j in range(size):
        c = work.coordinate[j]
        work.post_shift[j] = records[c, 0]
        work.post_precision[j] = records[c, 1]
        work.prior_precision[j] = records[c, 2]
    for j in range(size):
        r, p = work.post_shift[j], work.post_precision[j]
        site_shift, site_precision = work.site_shift[j], work.site_precision[j]
        if not work.touched[j]:
            site_shift = site_precision = 0.0
        work.site_shift[j], work.site_precision[j] = site_shift, site_precision
        left, pull = p - power * site_precision, r - power * site_shift
        improper += not (left > PRECISION_ROUNDING * abs(p) and 0.0 * left + 0.0 * pull == 0.0)
        work.precision[j] = left
        work.mean[j] = pull / left
    return improper == 0


@kernel
def propose(size: int, options: Any, power: float, log_scale: float, old_scale: float, work: Any) -> int:
    """Put the quotient of the fitted and the old site in the place of the fitted one, or say why not."""
    scale, negative, finite = 1.0 / power, 0, 0.0
    log_scale *= scale
    for j in range(size):
        r, p = scale * work.fit_shift[j], scale * work.fit_precision[j]
        finite += 0.0 * p + 0.0 * r
        negative += p < -SITE_FLOOR * work.precision[j]
        if options.negative == FLOOR and p < SITE_FLOOR and work.touched[j]:
            log_scale += 0.5 * (SITE_FLOOR - p) * work.mean[j] * work.mean[j]
            p = SITE_FLOOR
        work.fit_shift[j] = r - work.site_shift[j]
        work.fit_precision[j] = p - work.site_precision[j]
    work.change_scale[0] = log_scale - old_scale
    if finite + 0.0 * log_scale != 0.0:
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
        improper = int(0.0 * (state.scale[0] + share * change) != 0.0)
        for j in range(size):
            p = work.post_precision[j] + share * work.fit_precision[j]
            r = work.post_shift[j] + share * work.fit_shift[j]
            improper += not (p > PRECISION_ROUNDING * work.prior_precision[j] and 0.0 * p + 0.0 * r == 0.0)
        if improper == 0 or is_refused:
            for j in range(size):
                c = work.coordinate[j]
                records[c, 0] = work.post_shift[j] + share * work.fit_shift[j]
                records[c, 1] = work.post_precision[j] + share * work.fit_precision[j]
            write_site(store, k, size, share, (old_scale, change), work)
            if not is_refused and next_is_proper(store, following, options.power, records):
                state.scale[0] += share * change
                return DAMPED if halving else ACCEPTED
        share *= 0.5
    return IMPROPER_POSTERIOR


@kernel
def write_site(store: Any, k: int, size: int, share: float, scales: Any, work: Any) -> None:
    """Write the site that was loaded and a share of the change, or one batch's part of that to a tied one.

    ``scales`` are the log scale that was loaded, and its change.
    """
    if store.mode == NONE:
        return
    is_own, first = store.mode == OWN, store.starts[k]
    for j in range(size):
        if is_own or work.touched[j]:
            place = first + j if is_own else np.int64(work.coordinate[j])
            part = share if is_own else share / store.touches[place]
            store.shifts[place] = work.site_shift[j] + part * work.fit_shift[j]
            store.precisions[place] = work.site_precision[j] + part * work.fit_precision[j]
    part = share if is_own else share / (store.starts.size - 1)
    store.scales[k if is_own else 0] = scales[0] + part * scales[1]


@kernel
def next_is_proper(store: Any, following: int, power: float, records: Any) -> bool:
    """Whether the posterior in ``records``, without the site of the batch visited next, is proper."""
    if store.mode == NONE:
        return True
    first = store.starts[following]
    for e in range(first, store.starts[following + 1]):
        j = store.support[e] if store.support.size else e - first
        place = e if store.mode == OWN else j
        if not cavity_is_proper(records[j], store.shifts[place], store.precisions[place], power):
            return False
    return True


@kernel
def cavity_is_proper(record: Any, shift: float, precision: float, power: float) -> bool:
    """Whether what is left of a coordinate's posterior exceeds its own rounding error."""
    left = record[1] - power * precision
    return np.isfinite(record[0] - power * shift) and left > PRECISION_ROUNDING * abs(record[1])


def survey(data: Any, weights: Any, cuts: Any, state: Any, starts: Any, support: Any, touches: Any, work: Any) -> None:
    """Write where the local coordinates of every batch start, which they are, and how many batches touch each.

    Coordinates are listed for sparse rows only, which have a place for each in ``support``.
    """
    for k in range(starts.size - 1):
        first, last = cuts[k], cuts[k + 1]
        w = weights[first:last] if weights.size else work.ones[: last - first]
        _, size = data.open(first, last, w, state, work)
        starts[k + 1] = starts[k] + size
        for j in range(size):
            touches[work.coordinate[j]] += work.touched[j]
            if support.size:
                support[starts[k] + j] = work.coordinate[j]


def check_rows(X: Any, targets: NDArray[Any], weights: NDArray[Any], dim: int) -> None:
    """Check sizes and indices of rows, with their targets and weights (or none): a kernel would not notice.

    Dense rows cost nothing, sparse ones a pass over their indices.
    """
    rows, columns = X.shape
    if columns != dim or dim >= 2**32:  # kernels hold coordinates in 32 bits
        raise ValueError(f"X must have a column for each of the {dim} coordinates of the posterior, got {columns}")
    if targets.shape != (rows,) or weights.shape not in ((0,), (rows,)):
        raise ValueError(f"{rows} rows need as many targets and weights, got {targets.size} and {weights.size}")
    if sparse.issparse(X):
        if X.format != "csr":
            raise ValueError(f"sparse rows must be in CSR form, got {X.format}; call X.tocsr()")
        check_compressed(X.data, X.indices, X.indptr, rows, columns)
