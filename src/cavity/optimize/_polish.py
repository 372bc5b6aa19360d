r"""Without derivatives down to the next minimum, by stars that turn and shrink.

Costs at the ends of a star and, in few dimensions, at its corners give slopes and curvatures at the scale of the star:
what is smaller is smoothed over. A Newton step follows. The arms of the next star are the principal directions of the
curvature, as long as the cost rises by the same amount along all of them: a posterior with its correlations, narrowed
from round to round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Price = Callable[[FloatArray], FloatArray]

# Most coordinates for which mixed second differences are taken.
_MIXED = 64
# Shares of the Newton step that are tried together, and the longest step in arms of the star.
_SHARES = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 2.0])
_LONGEST = 8.0
# How much an arm may change from round to round, in the cost's curvature along it.
_CHANGES = (0.02, 50.0)
# A round that gains less than this share of what its star smooths over makes the next one so much smaller.
_ENOUGH, _SMALLER = 0.25, 0.5
# A round that took the longest step makes the next one so much larger.
_LARGER = 4.0
# Rounds in vain, one after the other, that end it: once the star is small against the cost, and in any case.
_VAIN_ROUNDS, _MOST_VAIN_ROUNDS = 4, 12


class _Model(NamedTuple):
    """Slope and curvature in units of the arms."""

    slope: FloatArray
    curvature: FloatArray
    vectors: FloatArray

    @property
    def step(self) -> FloatArray:
        """Newton's step, against curvatures below zero too, cut to a length that can be trusted."""
        size = np.maximum(np.abs(self.curvature), 1e-9 * np.max(np.abs(self.curvature)) + np.finfo(float).tiny)
        step = -self.vectors @ ((self.vectors.T @ self.slope) / size)
        length = float(np.max(np.abs(step)))
        result: FloatArray = step * min(1.0, _LONGEST / length) if 0.0 < length < np.inf else np.zeros_like(step)
        return result


def polish(price: Price, point: FloatArray, cost: float, scale: FloatArray, tol: float, rounds: int) -> bool:
    """Lower the cost until no star gains a share ``tol`` of it; whether that was reached. ``price`` keeps the best."""
    arms, radius, vain = np.diag(scale), np.sqrt(point.size), 0
    for _ in range(rounds):
        ends = np.concatenate([radius * arms, -radius * arms])
        star = price(point + ends)
        model = _model(price, point, cost, radius * arms, star)
        moves = ends
        if model is not None:
            moves = np.concatenate([ends, _SHARES[:, None] * (model.step @ (radius * arms))])
            star = np.concatenate([star, price(point + moves[len(ends) :])])
            size = np.clip(np.abs(model.curvature) / radius**2, *_CHANGES)
            arms = (model.vectors / np.sqrt(size)).T @ arms
        best = int(np.argmin(star))
        gain = cost - float(star[best])
        if gain > 0.0:
            point, cost = point + moves[best], float(star[best])
        vain = 0 if gain > tol * abs(cost) else vain + 1
        if vain or gain < _ENOUGH * radius**2:
            radius *= _SMALLER
        elif best >= len(ends) and model is not None and np.max(np.abs(model.step)) >= 0.99 * _LONGEST:
            radius *= _LARGER
        small = radius**2 <= tol * abs(cost)
        if vain >= (_VAIN_ROUNDS if small else _MOST_VAIN_ROUNDS):
            return True
    return False


def _model(price: Price, point: FloatArray, cost: float, arms: FloatArray, star: FloatArray) -> _Model | None:
    """Differences of the costs at the ends and corners of a star; None where an end is not finite."""
    d = point.size
    up, down = star[:d], star[d:]
    if not np.all(np.isfinite(star)):
        return None
    matrix = np.diag(up + down - 2.0 * cost)
    if 1 < d <= _MIXED:
        i, j = np.triu_indices(d, 1)
        corners = arms[i] + arms[j]
        both = price(np.concatenate([point + corners, point - corners])).reshape(2, -1).sum(axis=0)
        mixed = 0.5 * (both - up[i] - down[i] - up[j] - down[j] + 2.0 * cost)
        matrix[i, j] = matrix[j, i] = np.where(np.isfinite(mixed), mixed, 0.0)
    return _Model(0.5 * (up - down), *np.linalg.eigh(matrix))
