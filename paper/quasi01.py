r"""A search for the least quasi 0-1 cost, which is piecewise linear, non-convex, and has many local minima.

The loss is a difference of convex functions,

.. math:: \ell_\epsilon(a) = \tfrac1\epsilon \max(0, \epsilon - a) - (\tfrac1\epsilon - \epsilon) \max(0, -a),

so that with the rows on the wrong side named, and the second term replaced by its tangent there, a quadratic program
is left whose solution never costs more. Powell's line searches, which are blind to this, stop far above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cavity.losses import QuasiZeroOne
from reference.solvers import cost, hinge_program

FloatArray = NDArray[np.float64]

_PROGRAMS = 25  # quadratic programs per descent
_FLAT = 1e-14  # slope of a row along a direction, relative to the direction's size, that counts as zero
_TOLERATED = 0.01  # excess of a point over the best, as a share of it, from which the search goes on


def descend(
    loss: QuasiZeroOne,
    A: FloatArray,
    variance: float,
    point: FloatArray,
    tol: float = 1e-7,
    rounds: int = _PROGRAMS,
) -> FloatArray:
    """Repeat the quadratic program (the convex-concave procedure) while it goes down by a share ``tol``."""
    e = loss.epsilon
    here = cost(loss, A, point, variance)
    for _ in range(rounds):
        given_up = np.where(A @ point < 0.0, 1.0 / e - e, 0.0)
        trial = hinge_program(A, variance, slope=1.0 / e, margin=e, given_up=given_up, tol=tol).point
        there = cost(loss, A, trial, variance)
        if there > here * (1.0 - tol):
            break
        point, here = trial, there
    return point


def line_minimum(loss: QuasiZeroOne, z: FloatArray, w: FloatArray, inner: float, square: float) -> float:
    r"""Find the global minimum in t of :math:`\sum_k \ell(z_k + t w_k) + t p + t^2 q/2`, by sorting all kinks."""
    e = loss.epsilon
    moving = np.abs(w) > _FLAT * np.sqrt(square)
    z, w = z[moving], w[moving]
    if z.size == 0:
        return 0.0
    size = np.abs(w)
    kinks = np.concatenate([-z / w, (e - z) / w])
    bends = np.concatenate([size * (e - 1.0 / e), size / e])
    order = np.argsort(kinks)
    kinks = kinks[order]
    slopes = -e * float(np.sum(w[w > 0.0])) + np.concatenate([[0.0], np.cumsum(bends[order])])
    heights = np.concatenate([[0.0], np.cumsum(slopes[1:-1] * np.diff(kinks))])
    # On every piece the parabola has its lowest point where the slopes cancel, if that lies on the piece.
    ends = np.concatenate([[-np.inf], kinks, [np.inf]])
    inside = np.clip(-(slopes + inner) / square, ends[:-1], ends[1:])
    left = np.maximum(np.arange(inside.size) - 1, 0)
    values = heights[left] + slopes * (inside - kinks[left]) + inner * inside + 0.5 * square * inside**2
    return float(inside[np.argmin(values)])


def sweep(
    loss: QuasiZeroOne, A: FloatArray, variance: float, point: FloatArray, directions: Sequence[FloatArray]
) -> FloatArray:
    """Minimise exactly along one direction after the other."""
    z = A @ point
    for u in directions:
        w = A @ u
        t = line_minimum(loss, z, w, float(u @ point) / variance, float(u @ u) / variance)
        point, z = point + t * u, z + t * w
    return point


def search(
    loss: QuasiZeroOne,
    A: FloatArray,
    variance: float,
    starts: Sequence[FloatArray],
    hops: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Descend from every start; then shake the best, sweep, descend, and go on from what is not much worse."""
    d = A.shape[1]
    found = [descend(loss, A, variance, start) for start in starts]
    costs = [cost(loss, A, point, variance) for point in found]
    best = current = found[int(np.argmin(costs))]
    lowest = level = min(costs)
    for _ in range(hops):
        size = 10.0 ** rng.uniform(-1.5, 0.3) * np.linalg.norm(current) / np.sqrt(d)
        some = rng.random(d) < rng.choice([0.1, 0.3, 1.0])
        shaken = current + size * some * rng.standard_normal(d)
        directions = [*np.eye(d)[rng.permutation(d)], *rng.standard_normal((d, d))]
        point = descend(loss, A, variance, sweep(loss, A, variance, shaken, directions))
        there = cost(loss, A, point, variance)
        if there < level + _TOLERATED * lowest:
            current, level = point, there
        if there < lowest:
            best, lowest = point, there
    return best
