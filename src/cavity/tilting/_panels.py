"""Gauss-Legendre rules on panels, halved until a panel and its halves agree, for rows that no single rule serves.

All panels of all rows are halved at once. They are cut at the peak, where the loss begins to bend, and where the
product ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cavity.tilting._integrals import AGREEMENT, Products
from cavity.tilting._values import FloatArray, IndexArray

# Beyond a fall of the logarithm by this, nothing counts.
_REACH = 28.0
# A loss begins to bend where the change of its slope, times the distance, is between these.
_BEND = 1e-6, 1e-3
_SEARCH_STEPS = 80
# Panels of a row that may be halved.
_HALVINGS = 200
_NODES, _WEIGHTS = (a[:, None] for a in np.polynomial.legendre.leggauss(16))
# So many panels are computed at once: memory stays bounded, and within the caches.
_AT_ONCE = 1024


class _Panels(NamedTuple):
    """Panels from a to b, the row of each, and its integrals, of shape ``(3, panels)``."""

    row: IndexArray
    a: FloatArray
    b: FloatArray
    moments: FloatArray

    def at(self, chosen: IndexArray) -> _Panels:
        return _Panels(self.row[chosen], self.a[chosen], self.b[chosen], self.moments[:, chosen])


def by_panels(products: Products) -> FloatArray:
    """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``."""
    n = products.peak.size
    panels = _first_panels(products)
    total = _by_row(panels.row, panels.moments, n)
    halved = np.zeros(n, dtype=np.intp)
    while panels.row.size:
        middle = 0.5 * (panels.a + panels.b)
        lower = _computed(products, panels.row, panels.a, middle)
        upper = _computed(products, panels.row, middle, panels.b)
        change = lower.moments + upper.moments - panels.moments
        total += _by_row(panels.row, change, n)
        halved += np.bincount(panels.row, minlength=n)
        mass, _, second = total[:, panels.row]
        agree = (np.abs(change[0]) <= AGREEMENT * mass) & (np.abs(change[2]) <= AGREEMENT * second)
        left = np.flatnonzero(~agree & (mass > 0.0) & (halved < _HALVINGS)[panels.row])
        lower, upper = lower.at(left), upper.at(left)
        panels = _Panels(
            np.concatenate([lower.row, upper.row]),
            np.concatenate([lower.a, upper.a]),
            np.concatenate([lower.b, upper.b]),
            np.concatenate([lower.moments, upper.moments], axis=1),
        )
    return total


def _first_panels(products: Products) -> _Panels:
    """Cut every row's product."""
    n = products.peak.size
    left, right = _reach(products, -8.0), _reach(products, 8.0)
    bends = _bend(products, left, right), _bend(products, right, left)
    cuts = np.sort(np.stack([left, right, np.zeros(n), *bends]), axis=0)
    part, row = np.nonzero(cuts[:-1] < cuts[1:])
    return _computed(products, row, cuts[part, row], cuts[part + 1, row])


def _computed(products: Products, row: IndexArray, a: FloatArray, b: FloatArray) -> _Panels:
    """Integrate over panels, some at a time."""
    half, middle = 0.5 * (b - a), 0.5 * (a + b)
    moments = np.empty((3, row.size))
    for start in range(0, row.size, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        x = middle[some] + half[some] * _NODES
        moments[:, some] = products.at(row[some]).moments(x, half[some] * _WEIGHTS)
    return _Panels(row, a, b, moments)


def _by_row(row: IndexArray, moments: FloatArray, n: int) -> FloatArray:
    """Sum the integrals of every row's panels."""
    return np.stack([np.bincount(row, weights=moment, minlength=n) for moment in moments])


def _reach(products: Products, first: float) -> FloatArray:
    """Find where the products end: go out by doubling, come back by halving, until falls are once to twice enough."""
    n = products.peak.size
    x, inner = np.full(n, first), np.zeros(n)
    fall = products.fall(x)
    for _ in range(_SEARCH_STEPS):
        short = np.flatnonzero(fall < _REACH)
        if not short.size:
            break
        inner[short] = x[short]
        x[short] *= 2.0
        fall[short] = products.at(short).fall(x[short])
    for _ in range(_SEARCH_STEPS):
        wide = np.flatnonzero(fall > 2.0 * _REACH)
        if not wide.size:
            break
        middle = 0.5 * (inner[wide] + x[wide])
        there = products.at(wide).fall(middle)
        is_short = there < _REACH
        inner[wide] = np.where(is_short, middle, inner[wide])
        x[wide] = np.where(is_short, x[wide], middle)
        fall[wide] = np.where(is_short, fall[wide], there)
    return x


def _bend(products: Products, end: FloatArray, other: FloatArray) -> FloatArray:
    """Find where, coming from one end, the losses begin to bend: by halving, to within a bend hardly seen."""
    low, high = _BEND
    near, far, slope = end.copy(), other.copy(), products.slope(end)
    near_slope, far_slope = slope.copy(), products.slope(other)
    is_bent = np.abs(far_slope - slope) * np.abs(other - end) > high
    result = np.where(is_bent, near, other)
    left = np.flatnonzero(is_bent)
    for _ in range(_SEARCH_STEPS):
        if not left.size:
            break
        middle = 0.5 * (near[left] + far[left])
        here = products.at(left).slope(middle)
        bend = np.abs(here - slope[left]) * np.abs(middle - end[left])
        is_near = bend < low
        near[left], far[left] = np.where(is_near, middle, near[left]), np.where(is_near, far[left], middle)
        near_slope[left] = np.where(is_near, here, near_slope[left])
        far_slope[left] = np.where(is_near, far_slope[left], here)
        is_found = (low <= bend) & (bend <= high)
        result[left] = np.where(is_found, middle, near[left])
        at_kink = ~(np.abs(far_slope - near_slope)[left] * np.abs(far - near)[left] > low)
        left = left[~(is_found | at_kink)]
    return result
