"""The paper's schemes on linear factors: fit a site in the presence of a cavity, all in scratch memory.

``fit`` reads the cavity from ``work.mean`` and ``work.precision``, writes ``work.fit_shift`` and
``work.fit_precision``, and returns the site's log scale. ``size`` is the number of local coordinates, ``dim`` how many
of them the batch touches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import kernel, open_method
from cavity.kernels._functions import exponential
from cavity.schemes.constants import ARMIJO, HALVINGS, LEAST_SQUARE, LEAST_VARIANCE, ROUNDING


class QuickLaplace(NamedTuple):
    """Expansion at the cavity mean."""

    by_slope: bool

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        out = (work.fit_shift[:size], work.fit_precision[:size])
        value = rows.taylor(loss, self.by_slope, targets, weights, work.mean[:size], out)
        return expand(value, work.mean[:size], out[0], out[1], beta)


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


class VariationalQuadrature(NamedTuple):
    """Interpolation of the cost on the star."""

    spread: float  # zero for the paper's, which depends on the dimension

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        mean, precision = work.mean[:size], work.precision[:size]
        steps = work.site_steps[:size]
        gamma = spread_of(self.spread, work.touched[:size])
        for j in range(size):
            steps[j] = gamma / np.sqrt(precision[j])
        total = rows.star(loss, targets, weights, mean, steps, work)
        shift, width, up, down = work.fit_shift[:size], work.fit_precision[:size], work.up[:size], work.down[:size]
        for j in range(size):
            inverse = 1.0 / steps[j]
            slope = 0.5 * (up[j] - down[j]) * inverse
            curvature = (up[j] + down[j]) * (inverse * inverse)
            total += (0.5 * curvature * mean[j] - slope) * mean[j]
            shift[j] = beta * (curvature * mean[j] - slope)
            width[j] = beta * curvature
        return -beta * total


class GaussQuadrature(NamedTuple):
    """Moments by the precision-3 rule."""

    spread: float

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        mean, precision, touched = work.mean[:size], work.precision[:size], work.touched[:size]
        steps = work.site_steps[:size]
        gamma = spread_of(self.spread, touched)
        for j in range(size):
            steps[j] = gamma / np.sqrt(precision[j])
        value = rows.star(loss, targets, weights, mean, steps, work)
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


@kernel
def spread_of(spread: float, touched: Any) -> float:
    """Spread of the star: as given, or the square root of d + 1/2 with d the number of touched coordinates."""
    if spread > 0.0:
        return spread
    dim = 0
    for j in range(touched.size):
        dim += touched[j]
    return np.sqrt(dim + 0.5) if spread == 0.0 else np.sqrt(np.float64(max(dim, 1)))


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


@kernel
def objective(loss: Any, rows: Any, targets: Any, weights: Any, beta: float, point: Any, size: int, work: Any) -> float:
    """Beta times the cost, plus the cavity's term."""
    rows.predict(point, weights, work.z)
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
    rows.predict(point, weights, work.z)
    total = 0.0
    for i in range(targets.size):
        if weights[i] > 0.0:
            value, slope, second = loss.derivatives(targets[i], work.z[i])
            total += weights[i] * value
            work.slope[i] = weights[i] * slope
            work.second[i] = weights[i] * (abs(slope) if by_slope else second)
    rows.pull(work.slope, weights, out[0])
    rows.pull_squares(work.second, weights, out[1])
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
    rows.pull_squares(work.slope, weights, scale)
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
        rows.predict(search, weights, work.z)
        for i in range(weights.size):
            work.z[i] *= work.slope[i]
        rows.pull(work.z, weights, product)
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


open_method("fit", 7)
