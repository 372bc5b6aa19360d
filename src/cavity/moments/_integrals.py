"""Any loss: Gauss-Hermite rules about the peak of the product, panels where two of them do not agree."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.losses import Loss
from cavity.moments._values import Rows, Tilts, slices
from cavity.moments.constants import AGREEMENT, DOUBLINGS, NEWTON_STEPS, PEAK_GAIN, ROOT_2PI


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
