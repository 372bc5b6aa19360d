"""Any loss: Gauss-Hermite rules about the peak of the product, and panels where no two of them agree.

Panels have Gauss-Legendre rules. They are cut at the peak, where the loss begins to bend, and where the product ends,
and are halved until a panel and its halves agree: all panels of all rows at once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.losses import Loss
from cavity.moments._values import Rows, Tilts, slices
from cavity.moments.constants import (
    AGREEMENT,
    BEND_HIGH,
    BEND_LOW,
    DOUBLINGS,
    FALL,
    HALVINGS,
    NEWTON_STEPS,
    PANEL_NODES,
    PANEL_WEIGHTS,
    PEAK_GAIN,
    ROOT_2PI,
    SEARCH_STEPS,
)


class Rule(NamedTuple):
    """Nodes t of shape ``(k, 1)``, their powers 1, t and t² of shape ``(k, 3)``, weights times these of ``(3, k)``."""

    nodes: FloatArray
    powers: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, nodes: FloatArray, weights: FloatArray) -> Rule:
        """Build a rule for functions that hold their weights themselves."""
        powers = nodes[:, None] ** np.arange(3)
        return cls(nodes[:, None], powers, weights * powers.T)


class Products(NamedTuple):
    """Gaussians times factors, seen from near their peaks: z is ``peak`` plus ``width`` times x."""

    loss: Loss
    rows: Rows
    peak: FloatArray
    width: FloatArray
    cost: FloatArray  # of the rows near their peaks, for reference

    def at(self, chosen: Any) -> Products:
        """Return those of some rows."""
        return Products(self.loss, self.rows.at(chosen), self.peak[chosen], self.width[chosen], self.cost[chosen])

    def fall(self, x: FloatArray) -> FloatArray:
        """How far the logarithms fall from the peaks to x, of shape ``(n,)`` or ``(nodes, n)``."""
        y, mean, variance, power = self.rows
        t = self.width * x
        cost = power * (self.loss.value(y, self.peak + t) - self.cost)
        result: FloatArray = cost + t * (0.5 * t + (self.peak - mean)) / variance
        return result

    def slope(self, x: FloatArray) -> FloatArray:
        """Slopes of the factors' part of the fall."""
        slope = self.loss.derivatives(self.rows.y, self.peak + self.width * x)[1]
        result: FloatArray = self.rows.power * self.width * slope
        return result

    def integrals(self, rule: Rule, center: Any = 0.0, half: Any = 1.0) -> FloatArray:
        """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``.

        The rule is moved to a center and stretched by half a length, numbers or of shape ``(n,)``.
        """
        y, mean, variance, power = self.rows
        start, wide, distance = self.width * center, self.width * half, self.peak - mean
        gaussian = np.stack([start * (0.5 * start + distance), wide * (start + distance), 0.5 * wide * wide]) / variance
        base, result = self.peak + start, np.empty((3, y.size))
        for some in slices(y.size, rule.nodes.size):
            z = rule.nodes * wide[some]
            z += base[some]
            f = self.cost[some] - self.loss.value(y[some], z)
            f *= power[some]
            f -= rule.powers @ gaussian[:, some]
            np.exp(f, out=f)
            np.matmul(rule.weights, f, out=result[:, some])
        mass, one, two = result
        one *= half
        two *= half * half
        two += center * (center * mass + 2.0 * one)
        one += center * mass
        result *= half
        return result

    def tilts(self, moments: FloatArray) -> Tilts:
        """Turn these integrals into what was asked for."""
        mass, mean, variance = central(moments)
        std, distance = np.sqrt(self.rows.variance), self.peak - self.rows.mean
        log_mass = np.log(mass * self.width / (std * ROOT_2PI)) - self.rows.power * self.cost
        return Tilts(
            log_mass - 0.5 * distance * distance / self.rows.variance,
            (distance + self.width * mean) / std,
            self.width * self.width * variance / self.rows.variance,
        )


def find_peaks(loss: Loss, rows: Rows) -> Products:
    """Search the peaks by Newton's method, held within brackets; trouble ends in NaN."""
    n, all_rows = rows.mean.size, rows
    peak, width, cost = np.empty(n), np.empty(n), np.empty(n)
    places = np.arange(n)
    z, low, high = rows.mean, np.full(n, -np.inf), np.full(n, np.inf)
    reach, last = 8.0 * np.sqrt(rows.variance), np.full(n, np.inf)
    for _ in range(NEWTON_STEPS):
        value, slope, second = loss.derivatives(rows.y, z)
        gradient = rows.power * slope + (z - rows.mean) / rows.variance
        curvature = 1.0 / rows.variance + rows.power * np.maximum(second, 0.0)
        step = -gradient / curvature
        near = ~(-gradient * step > PEAK_GAIN)
        low, high = np.where(gradient < 0.0, z, low), np.where(gradient < 0.0, high, z)
        at_kink = np.abs(gradient) * (high - low) <= PEAK_GAIN
        there = z + step
        halved = ~((low < there) & (there < high)) | (np.abs(step) > 0.5 * last)
        there = np.where(halved, 0.5 * (low + high), there)
        there = np.minimum(np.maximum(there, z - reach), z + reach)
        there = np.where(near, z + step, np.where(at_kink, z, there))
        peak[places], width[places], cost[places] = there, 1.0 / np.sqrt(curvature), value
        left = np.flatnonzero(~(near | at_kink))
        if not left.size:
            break
        rows, places = rows.at(left), places[left]
        reach, last, z = 2.0 * reach[left], np.abs(there - z)[left], there[left]
        low, high = low[left], high[left]
    return Products(loss, all_rows, peak, width, cost)


def by_rules(products: Products, order: int) -> tuple[FloatArray, IndexArray]:
    """Integrate by Gauss-Hermite rules of doubling order; moments, and the places where no two agreed."""
    before = products.integrals(_hermite(order))
    result, left = np.empty_like(before), np.arange(before.shape[1])
    for doubling in range(1, DOUBLINGS + 1):
        after = products.integrals(_hermite(order * 2**doubling))
        result[:, left] = after
        (mass, mean, variance), (old_mass, old_mean, old_variance) = central(after), central(before)
        agree = np.abs(mass - old_mass) <= AGREEMENT * mass
        agree &= np.abs(variance - old_variance) <= AGREEMENT * variance
        agree &= np.abs(mean - old_mean) <= AGREEMENT * np.sqrt(variance)
        remaining = np.flatnonzero(~agree)
        left, products, before = left[remaining], products.at(remaining), after[:, remaining]
        if not left.size:
            break
    return result, left


def central(moments: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mass, mean and variance; NaN where there is no mass."""
    mass = np.where(moments[0] > 0.0, moments[0], np.nan)
    mean = moments[1] / mass
    return mass, mean, moments[2] / mass - mean * mean


@cache
def _hermite(order: int) -> Rule:
    """Nodes, and weights for functions that hold the Gaussian themselves."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return Rule.of(x, w * np.exp(0.5 * x * x))


def by_panels(products: Products) -> FloatArray:
    """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``."""
    n, rule = products.peak.size, Rule.of(PANEL_NODES, PANEL_WEIGHTS)
    row, a, b = _first_panels(products)
    whole = products.at(row).integrals(rule, 0.5 * (a + b), 0.5 * (b - a))
    total, halved = _by_row(row, whole, n), np.zeros(n, dtype=np.intp)
    while row.size:
        middle, quarter, chosen = 0.5 * (a + b), 0.25 * (b - a), products.at(row)
        lower = chosen.integrals(rule, middle - quarter, quarter)
        upper = chosen.integrals(rule, middle + quarter, quarter)
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
