"""The schemes of `cavity.schemes` on rows of a linear model: fit a site in the presence of a cavity, in scratch memory.

``fit`` reads the cavity from ``work.mean`` and ``work.precision``, writes ``work.fit_shift`` and
``work.fit_precision``, and returns the site's log scale. ``size`` is the number of local coordinates, ``dim`` how many
of them the batch touches. Every decision is that of the plain scheme, in the same order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cavity.kernels.bridge import kernel, open_method
from cavity.kernels.moments import Rules, tilt
from cavity.kernels.rows import absorb, predict, project, pull, pull_squares, taylor
from cavity.kernels.speed import exponential, star
from cavity.schemes.constants import (
    ARMIJO,
    HALVINGS,
    LEAST_SQUARE,
    LEAST_VARIANCE,
    RESERVED_STARS,
    RETREAT,
    ROUNDING,
    SAME_ARM,
    SHORTEST_ARM,
)


class QuickLaplace(NamedTuple):
    """Expansion at the cavity mean."""

    by_slope: bool

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        out = (work.fit_shift[:size], work.fit_precision[:size])
        value = taylor(rows, loss, self.by_slope, targets, weights, work.mean[:size], out)
        return expand(value, work.mean[:size], out[0], out[1], beta)


@kernel
def expand(value: float, point: Any, slope: Any, curvature: Any, beta: float) -> float:
    """Turn slope and curvature at a point into shift and precision, in place; return the log scale."""
    total = value
    for j in range(point.size):
        g, c, t = slope[j], curvature[j], point[j]
        total += (0.5 * c * t - g) * t
        slope[j] = beta * (c * t - g)
        curvature[j] = beta * c
    return -beta * total


class Laplace(NamedTuple):
    """Expansion at the peak of cavity times factor."""

    by_slope: bool
    tol: float
    max_steps: int

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        """Find the peak by Newton's method and a line search, then expand there."""
        point = work.step[:size]
        for j in range(size):
            point[j] = work.mean[j]
        out = (work.fit_shift[:size], work.fit_precision[:size])
        mean, precision, touched = work.mean[:size], work.precision[:size], work.touched[:size]
        direction, there_point = work.up[:size], work.down[:size]
        here = there = start = objective(loss, rows, targets, weights, beta, point, size, work)
        value = row_derivatives(loss, rows, targets, weights, self.by_slope, point, out, work)
        for _ in range(self.max_steps):
            gradient = work.buffer[:size]
            for j in range(size):
                gradient[j] = beta * out[0][j] + precision[j] * (point[j] - mean[j])
            newton_direction(rows, weights, beta, gradient, precision, direction, work)
            descent = 0.0
            for j in range(size):
                descent += gradient[j] * direction[j]
            if not descent < 0.0:
                break
            length, accepted = 1.0, False
            for _ in range(HALVINGS):
                for j in range(size):
                    there_point[j] = point[j] + length * direction[j]
                there = objective(loss, rows, targets, weights, beta, there_point, size, work)
                if there <= here + ARMIJO * length * descent + ROUNDING * abs(here):
                    accepted = True
                    break
                length *= 0.5
            if not accepted:
                break
            here = there
            moved = total = 0.0
            for j in range(size):
                if touched[j]:
                    moved += length * direction[j] * length * direction[j]
                    total += there_point[j] * there_point[j]
                point[j] = there_point[j]
            value = row_derivatives(loss, rows, targets, weights, self.by_slope, point, out, work)
            if np.sqrt(moved) <= self.tol * np.sqrt(total):
                break
        if here > start:
            for j in range(size):
                point[j] = mean[j]
            value = row_derivatives(loss, rows, targets, weights, self.by_slope, point, out, work)
        return expand(value, point, out[0], out[1], beta)


@kernel
def objective(loss: Any, rows: Any, targets: Any, weights: Any, beta: float, point: Any, size: int, work: Any) -> float:
    """Beta times the cost, plus the cavity's term."""
    predict(rows, point, weights, work.z)
    cost = 0.0
    for i in range(targets.size):
        if weights[i] > 0.0:
            cost += weights[i] * loss.value(targets[i], work.z[i])
    distance = 0.0
    for j in range(size):
        offset = point[j] - work.mean[j]
        distance += work.precision[j] * offset * offset
    return beta * cost + 0.5 * distance


@kernel
def row_derivatives(
    loss: Any, rows: Any, targets: Any, weights: Any, by_slope: bool, point: Any, out: Any, work: Any
) -> float:
    """Cost, gradient and curvature at a point; the curvature of every row stays in ``work.second``."""
    predict(rows, point, weights, work.z)
    total = 0.0
    for i in range(targets.size):
        if weights[i] > 0.0:
            value, slope, second = loss.derivatives(targets[i], work.z[i])
            total += weights[i] * value
            work.slope[i] = weights[i] * slope
            work.second[i] = weights[i] * (abs(slope) if by_slope else second)
    pull(rows, work.slope, weights, out[0])
    pull_squares(rows, work.second, weights, out[1])
    return total


@kernel
def newton_direction(
    rows: Any, weights: Any, beta: float, gradient: Any, precision: Any, direction: Any, work: Any
) -> None:
    """Solve (diag(p) + beta X' diag(c) X) x = -g by conjugate gradients, to rounding.

    Negative curvatures count as zero. With the batch weak against the cavity, the usual case, a few products do.
    """
    size = direction.size
    residual, search, product, scale = (
        work.conjugate[0][:size],
        work.conjugate[1][:size],
        work.conjugate[2][:size],
        work.conjugate[3][:size],
    )
    for i in range(work.second.size):
        work.slope[i] = max(beta * work.second[i], 0.0)
    pull_squares(rows, work.slope, weights, scale)
    first = 0.0
    for j in range(size):
        scale[j] += precision[j]
        direction[j] = 0.0
        residual[j] = -gradient[j]
        search[j] = residual[j] / scale[j]
        first += residual[j] * search[j]
    rho = first
    for _ in range(4 * size + 20):
        if not rho > 1e-13 * 1e-13 * first:  # squares of residuals, that of the last at its rounding error
            break
        predict(rows, search, weights, work.z)
        for i in range(weights.size):
            work.z[i] *= work.slope[i]
        pull(rows, work.z, weights, product)
        bend = 0.0
        for j in range(size):
            product[j] += precision[j] * search[j]
            bend += search[j] * product[j]
        if not bend > 0.0:
            break
        length, after = rho / bend, 0.0
        for j in range(size):
            direction[j] += length * search[j]
            residual[j] -= length * product[j]
            after += residual[j] * residual[j] / scale[j]
        for j in range(size):
            search[j] = residual[j] / scale[j] + (after / rho) * search[j]
        rho = after


class VariationalQuadrature(NamedTuple):
    """Interpolation of the cost on the star."""

    spread: float  # zero for the paper's, which depends on the dimension

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        mean, precision = work.mean[:size], work.precision[:size]
        steps = work.site_steps[:size]
        gamma = spread_of(self.spread, work.touched[:size])
        for j in range(size):
            steps[j] = gamma / np.sqrt(precision[j])
        total = star(rows, loss, targets, weights, mean, steps, work)
        shift, width, up, down = work.fit_shift[:size], work.fit_precision[:size], work.up[:size], work.down[:size]
        for j in range(size):
            inverse = 1.0 / steps[j]
            slope = 0.5 * (up[j] - down[j]) * inverse
            curvature = (up[j] + down[j]) * (inverse * inverse)
            total += (0.5 * curvature * mean[j] - slope) * mean[j]
            shift[j] = beta * (curvature * mean[j] - slope)
            width[j] = beta * curvature
        return -beta * total


@kernel
def spread_of(spread: float, touched: Any) -> float:
    """Spread of the star: as given, or the square root of d + 1/2 with d the number of touched coordinates."""
    if spread > 0.0:
        return spread
    dim = 0
    for j in range(touched.size):
        dim += touched[j]
    return np.sqrt(dim + 0.5) if spread == 0.0 else np.sqrt(np.float64(max(dim, 1)))


class GaussQuadrature(NamedTuple):
    """Moments by the precision-3 rule."""

    spread: float

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        mean, precision, touched = work.mean[:size], work.precision[:size], work.touched[:size]
        steps = work.site_steps[:size]
        gamma = spread_of(self.spread, touched)
        for j in range(size):
            steps[j] = gamma / np.sqrt(precision[j])
        value = star(rows, loss, targets, weights, mean, steps, work)
        up, down = work.up[:size], work.down[:size]
        shift, width = work.fit_shift[:size], work.fit_precision[:size]
        lowest, dim = 0.0, 0
        for j in range(size):
            if touched[j]:
                dim += 1
                lowest = min(lowest, up[j], down[j])
        decay(up, beta, lowest, touched)
        decay(down, beta, lowest, touched)
        arm = 0.5 / (gamma * gamma)
        mass = (1.0 - 2.0 * arm * dim) * np.exp(beta * lowest)
        for j in range(size):
            mass += arm * (up[j] + down[j])
        if not mass > 0.0:
            return np.nan
        log_scale = np.log(mass) - beta * (value + lowest)
        for j in range(size):
            m = arm * gamma / mass * (up[j] - down[j])
            square = arm * gamma * gamma / mass * (up[j] + down[j])
            v = square - m * m
            v = v if v > max(LEAST_VARIANCE * square, LEAST_SQUARE) else np.nan
            v = v if touched[j] else 1.0
            r = m / v * np.sqrt(precision[j])
            p = (1.0 / v - 1.0) * precision[j]
            log_scale -= 0.5 * m * m / v + (r + 0.5 * p * mean[j]) * mean[j]
            shift[j] = r + p * mean[j]
            width[j] = p
            up[j] = v
        return log_scale - 0.5 * sum_of_logs(up)


@kernel
def decay(costs: Any, beta: float, lowest: float, touched: Any) -> None:
    """Put exp(-beta (cost - lowest)) in the place of every cost, and zero where nothing is touched."""
    for j in range(costs.size):
        costs[j] = exponential(-beta * (costs[j] - lowest)) if touched[j] else 0.0


@kernel
def sum_of_logs(values: Any) -> float:
    """Sum of the logarithms, by one logarithm of a product as long as that stays in range."""
    total, product = 0.0, 1.0
    for j in range(values.size):
        product *= values[j]
        if not 1e-200 < product < 1e200:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


class RecentredQuadrature(NamedTuple):
    """Interpolation of the cost on a star about the peak of cavity times site."""

    spread: float
    tol: float
    max_stars: int

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        """Fit the star again and again until it stands where it wants to, or the stars are used up."""
        center, direction, wanted, longest = (
            work.conjugate[0][:size],
            work.conjugate[1][:size],
            work.conjugate[2][:size],
            work.conjugate[3][:size],
        )
        steps, slope, curvature = work.site_steps[:size], work.fit_shift[:size], work.fit_precision[:size]
        z, turn = work.z[: targets.size], work.slope[: targets.size]
        for j in range(size):
            center[j] = work.mean[j]
            steps[j] = longest[j] = self.spread / np.sqrt(work.precision[j])
        predict(rows, center, weights, z)
        value = 0.0
        for left in range(self.max_stars - 1, -1, -1):
            value = star(rows, loss, targets, weights, center, steps, work)
            wild, stuck = interpolate(value, self.spread, longest, work)
            if not np.isfinite(value) or stuck:
                break
            if wild:
                continue
            if left < RESERVED_STARS:
                break
            length, descent, same = propose_step(beta, self.spread, center, direction, wanted, longest, work)
            if same and length <= self.tol:
                break
            predict(rows, direction, weights, turn)
            here = (beta * value, length, descent, self.tol)
            share = search(loss, targets, weights, beta, here, center, direction, work)
            if same and share == 0.0:
                balance(beta, center, slope, curvature, work)
                break
            for j in range(size):
                center[j] += share * direction[j]
                steps[j] = wanted[j]
            for i in range(z.size):
                if weights[i] > 0.0:
                    z[i] += share * turn[i]
        return expand(value, center, slope, curvature, beta)


@kernel
def interpolate(value: float, spread: float, longest: Any, work: Any) -> tuple[bool, bool]:
    """Slopes and curvatures of the star; arms with a cost that is not finite are shortened, if they can be."""
    size = longest.size
    up, down, steps = work.up[:size], work.down[:size], work.site_steps[:size]
    slope, curvature = work.fit_shift[:size], work.fit_precision[:size]
    finite = 0.0
    for j in range(size):
        inverse = 1.0 / steps[j]
        second = up[j] + down[j]
        scale = max(abs(value), abs(value + up[j]), abs(value + down[j]))
        second = 0.0 if abs(second) <= ROUNDING * scale else second
        slope[j] = 0.5 * (up[j] - down[j]) * inverse if work.touched[j] else 0.0
        curvature[j] = second * (inverse * inverse) if work.touched[j] else 0.0
        finite += 0.0 * (slope[j] + curvature[j])
    if not np.isnan(finite):
        return False, False
    stuck = False
    for j in range(size):
        if not (np.isfinite(slope[j]) and np.isfinite(curvature[j])):
            shortest = SHORTEST_ARM * (spread / np.sqrt(work.precision[j]))
            stuck = stuck or steps[j] <= shortest
            steps[j] = longest[j] = max(RETREAT * steps[j], shortest)
    return True, stuck


@kernel
def propose_step(
    beta: float, spread: float, center: Any, direction: Any, wanted: Any, longest: Any, work: Any
) -> tuple[float, float, bool]:
    """Step to the peak of cavity times fit: its length in widths, its descent, and whether the arms stay."""
    slope, curvature, steps = work.fit_shift, work.fit_precision, work.site_steps
    length, descent, changed = 0.0, 0.0, 0
    for j in range(center.size):
        p = work.precision[j]
        pull = beta * slope[j] + p * (center[j] - work.mean[j])
        width = beta * max(curvature[j], 0.0) + p
        root = np.sqrt(width)
        direction[j] = -pull / width
        wanted[j] = min(max(spread / root, SHORTEST_ARM * (spread / np.sqrt(p))), longest[j])
        length = max(length, abs(direction[j]) * root)
        descent += pull * direction[j]
        changed += not abs(wanted[j] - steps[j]) <= SAME_ARM * steps[j]
    return length, descent, changed == 0


@kernel
def search(
    loss: Any, targets: Any, weights: Any, beta: float, here: Any, center: Any, direction: Any, work: Any
) -> float:
    """Share of a step by which cavity times factor rises; zero where none of more than the tolerance does."""
    cost_here, length, descent, tol = here
    level = cost_here + half_distance(0.0, center, direction, work)
    share = 1.0
    for _ in range(HALVINGS):
        if not share * length > tol:
            break
        cost = 0.0
        for i in range(targets.size):
            if weights[i] > 0.0:
                cost += weights[i] * loss.value(targets[i], work.z[i] + share * work.slope[i])
        there = beta * cost + half_distance(share, center, direction, work)
        if -np.inf < there <= level + ARMIJO * share * descent:
            return share
        share *= 0.5
    return 0.0


@kernel
def half_distance(share: float, center: Any, direction: Any, work: Any) -> float:
    """Cavity's term of the objective a share of a step away."""
    total = 0.0
    for j in range(center.size):
        offset = center[j] + share * direction[j] - work.mean[j]
        total += work.precision[j] * offset * offset
    return 0.5 * total


@kernel
def balance(beta: float, center: Any, slope: Any, curvature: Any, work: Any) -> None:
    """At a kink of a convex cost, take the slope that balances the cavity."""
    for j in range(center.size):
        if curvature[j] < 0.0:
            return
    for j in range(center.size):
        slope[j] = -work.precision[j] * (center[j] - work.mean[j]) / beta


class ExactProjection(NamedTuple):
    """Moments of cavity times factor, row by row."""

    rules: Rules

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        """Take the rows in one after the other, then divide by the cavity."""
        mean, variance, ratios = work.up[:size], work.down[:size], work.buffer[:size]
        log_scale = 0.0
        for j in range(size):
            mean[j] = work.mean[j]
            variance[j] = 1.0 / work.precision[j]
        for i in range(targets.size):
            if weights[i] > 0.0:
                y, b = targets[i], beta * weights[i]
                m, v = project(rows, i, mean, variance)
                if v == 0.0:
                    log_scale -= b * loss.value(y, m)
                else:
                    log_mass, shift, ratio = tilt(loss, y, m, v, b, self.rules)
                    log_scale += log_mass
                    absorb(rows, i, shift / math.sqrt(v), (ratio - 1.0) / v, min(ratio, 1.0), mean, variance)
        for j in range(size):
            m, p, touched = work.mean[j], work.precision[j], work.touched[j]
            inverse, step = 1.0 / variance[j], mean[j] - m
            precision = inverse - p if touched else 0.0
            shift = mean[j] * inverse - m * p if touched else 0.0
            log_scale -= 0.5 * step * step * inverse + (shift - 0.5 * precision * m) * m
            ratios[j] = variance[j] * p if touched else 1.0
            work.fit_shift[j] = shift
            work.fit_precision[j] = precision
        return log_scale - 0.5 * sum_of_logs(ratios)


open_method("fit", 7)
