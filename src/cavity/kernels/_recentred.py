"""Recentred variational quadrature on linear factors, all in scratch memory.

A star needs the predictors at its centre only. A line search needs those of its direction too, and a trial is then one
loss per row. Every decision is that of the plain scheme, in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import kernel
from cavity.kernels._schemes import expand
from cavity.schemes.constants import ARMIJO, HALVINGS, RESERVED_STARS, RETREAT, ROUNDING, SAME_ARM, SHORTEST_ARM


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
        rows.predict(center, weights, z)
        value = 0.0
        for left in range(self.max_stars - 1, -1, -1):
            value = rows.star(loss, targets, weights, center, steps, work)
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
            rows.predict(direction, weights, turn)
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
