"""Gauss-Legendre rules on panels, for rows that no single rule serves.

Panels are cut at the peak, where the loss begins to bend, and where the product ends, and are halved until a panel and
its halves agree: all panels of all rows at once.
"""

from __future__ import annotations

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.moments._integrals import Products, Rule
from cavity.moments.constants import (
    AGREEMENT,
    BEND_HIGH,
    BEND_LOW,
    FALL,
    HALVINGS,
    PANEL_NODES,
    PANEL_WEIGHTS,
    SEARCH_STEPS,
)

# Of every panel; the weights of 1, t and t² are computed once.
_RULE = Rule.of(PANEL_NODES, PANEL_WEIGHTS)


def by_panels(products: Products) -> FloatArray:
    """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``."""
    n = products.peak.size
    row, a, b = _first_panels(products)
    whole = products.at(row).integrals(_RULE, 0.5 * (a + b), 0.5 * (b - a))
    total, halved = _by_row(row, whole, n), np.zeros(n, dtype=np.intp)
    while row.size:
        middle, quarter, chosen = 0.5 * (a + b), 0.25 * (b - a), products.at(row)
        lower = chosen.integrals(_RULE, middle - quarter, quarter)
        upper = chosen.integrals(_RULE, middle + quarter, quarter)
        change = lower + upper - whole
        total += _by_row(row, change, n)
        halved += np.bincount(row, minlength=n)
        mass, second = total[0, row], total[2, row]
        agree = (np.abs(change[0]) <= AGREEMENT * mass) & (np.abs(change[2]) <= AGREEMENT * second)
        left = np.flatnonzero(~agree & (mass > 0.0) & (halved < HALVINGS)[row])
        row, a, b, middle = row[left], a[left], b[left], middle[left]
        row, a, b = np.concatenate([row, row]), np.concatenate([a, middle]), np.concatenate([middle, b])
        whole = np.concatenate([lower[:, left], upper[:, left]], axis=1)
    return total


def _first_panels(products: Products) -> tuple[IndexArray, FloatArray, FloatArray]:
    """Cut every row's product: the row of each panel, and its ends."""
    left, right = reach(products, -8.0), reach(products, 8.0)
    bends = bend(products, left, right), bend(products, right, left)
    cuts = np.sort(np.stack([left, right, np.zeros(left.size), *bends]), axis=0)
    part, row = np.nonzero(cuts[:-1] < cuts[1:])
    return row, cuts[part, row], cuts[part + 1, row]


def _by_row(row: IndexArray, moments: FloatArray, n: int) -> FloatArray:
    """Sum the integrals of every row's panels."""
    return np.stack([np.bincount(row, weights=moment, minlength=n) for moment in moments])


def reach(products: Products, first: float) -> FloatArray:
    """Find where the products end: go out by doubling, come back by halving, until falls are once to twice enough."""
    n = products.peak.size
    x, inner = np.full(n, first), np.zeros(n)
    fall = products.fall(x)
    for _ in range(SEARCH_STEPS):
        short = np.flatnonzero(fall < FALL)
        if not short.size:
            break
        inner[short] = x[short]
        x[short] *= 2.0
        fall[short] = products.at(short).fall(x[short])
    for _ in range(SEARCH_STEPS):
        wide = np.flatnonzero(fall > 2.0 * FALL)
        if not wide.size:
            break
        middle = 0.5 * (inner[wide] + x[wide])
        there = products.at(wide).fall(middle)
        is_short = there < FALL
        inner[wide] = np.where(is_short, middle, inner[wide])
        x[wide] = np.where(is_short, x[wide], middle)
        fall[wide] = np.where(is_short, fall[wide], there)
    return x


def bend(products: Products, end: FloatArray, other: FloatArray) -> FloatArray:
    """Find where, coming from one end, the losses begin to bend: by halving, to within a bend hardly seen."""
    slope, far_slope = products.slope(end), products.slope(other)
    result, places = other.copy(), np.arange(end.size)
    near, far, near_slope, is_left = end, other, slope, np.abs(far_slope - slope) * np.abs(other - end) > BEND_HIGH
    for _ in range(SEARCH_STEPS):
        left = np.flatnonzero(is_left)
        if not left.size:
            break
        if left.size < is_left.size:
            products, places, end, slope = products.at(left), places[left], end[left], slope[left]
            near, far, near_slope, far_slope = near[left], far[left], near_slope[left], far_slope[left]
        middle = 0.5 * (near + far)
        here = products.slope(middle)
        change = np.abs(here - slope) * np.abs(middle - end)
        is_near, is_found = change < BEND_LOW, (change >= BEND_LOW) & (change <= BEND_HIGH)
        near, far = np.where(is_near, middle, near), np.where(is_near, far, middle)
        near_slope, far_slope = np.where(is_near, here, near_slope), np.where(is_near, far_slope, here)
        result[places] = np.where(is_found, middle, near)
        is_left = ~is_found & (np.abs(far_slope - near_slope) * np.abs(far - near) > BEND_LOW)  # else a kink
    return result
