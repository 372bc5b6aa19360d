r"""Descent to the next minimum without derivatives, by stars that turn and shrink.

Costs at the ends of a star and, in few dimensions, at its corners give slopes and curvatures at the scale of the star:
what is smaller is smoothed over. A Newton step follows. The arms of the next star are the principal directions of the
curvature, as long as the cost rises by the same amount along all of them: a posterior with its correlations, narrowed
from round to round.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cavity._types import FloatArray

Price = Callable[[FloatArray], FloatArray]

_LONGEST_STEP = 8.0  # in arms of the star: how far its differences are trusted


def polish(price: Price, point: FloatArray, cost: float, scale: FloatArray, tol: float, rounds: int) -> bool:
    """Lower the cost until no star gains a share ``tol`` of it; whether that was reached. ``price`` keeps the best.

    A round that gains less than a quarter of the squared radius shrinks the star; one that took the longest step widens
    it. Rounds without gain end the search: 4 once the star is small against the cost, 12 in any case.
    """
    arms, radius, without_gain = np.diag(scale), np.sqrt(point.size), 0
    for _ in range(rounds):
        ends = np.concatenate([radius * arms, -radius * arms])
        star = price(point + ends)
        model = _model(price, point, cost, radius * arms, star)
        moves = ends
        if model is not None:
            step, curvature, vectors = model
            shares = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 2.0])  # of the Newton step, tried together
            moves = np.concatenate([ends, shares[:, None] * (step @ (radius * arms))])
            star = np.concatenate([star, price(point + moves[len(ends) :])])
            size = np.clip(np.abs(curvature) / radius**2, 0.02, 50.0)  # what a round may change along an arm
            arms = (vectors / np.sqrt(size)).T @ arms
        best = int(np.argmin(star))
        gain = cost - float(star[best])
        if gain > 0.0:
            point, cost = point + moves[best], float(star[best])
        without_gain = 0 if gain > tol * abs(cost) else without_gain + 1
        if without_gain or gain < 0.25 * radius**2:
            radius *= 0.5
        elif best >= len(ends) and np.max(np.abs(step)) >= 0.99 * _LONGEST_STEP:
            radius *= 4.0
        small = radius**2 <= tol * abs(cost)
        if without_gain >= (4 if small else 12):
            return True
    return False


def _model(
    price: Price, point: FloatArray, cost: float, arms: FloatArray, star: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Newton's step, curvatures and principal directions, in units of the arms; None where an end is not finite.

    The step goes against curvatures below zero too, and is cut to a length that can be trusted.
    """
    d = point.size
    up, down = star[:d], star[d:]
    if not np.all(np.isfinite(star)):
        return None
    matrix = np.diag(up + down - 2.0 * cost)
    if 1 < d <= 64:  # mixed differences cost O(d^2) evaluations
        i, j = np.triu_indices(d, 1)
        corners = arms[i] + arms[j]
        both = price(np.concatenate([point + corners, point - corners])).reshape(2, -1).sum(axis=0)
        mixed = 0.5 * (both - up[i] - down[i] - up[j] - down[j] + 2.0 * cost)
        matrix[i, j] = matrix[j, i] = np.where(np.isfinite(mixed), mixed, 0.0)
    curvature, vectors = np.linalg.eigh(matrix)
    size = np.maximum(np.abs(curvature), 1e-9 * np.max(np.abs(curvature)) + np.finfo(float).tiny)
    step = -vectors @ ((vectors.T @ (0.5 * (up - down))) / size)
    length = float(np.max(np.abs(step)))
    step = step * min(1.0, _LONGEST_STEP / length) if 0.0 < length < np.inf else np.zeros_like(step)
    return step, curvature, vectors
