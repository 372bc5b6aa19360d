"""The closed form of the moments for losses of straight pieces, for one row: see `cavity.moments.tilted`.

A part is height, mass, drop to the left and right end, shift, distance to the left and right end, variance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cavity.kernels._bridge import careful, open_method
from cavity.moments.constants import (
    FAR_TAIL,
    NARROW_NODES,
    NARROW_PIECE,
    NARROW_WEIGHTS,
    ROOT_2PI,
    ROOT_HALF,
    TAIL_TERMS,
)

Part = tuple[float, float, float, float, float, float, float, float]
Three = tuple[float, float, float]


@careful
def by_pieces(pieces: Any, m: float, s: float, beta: float) -> Three:
    """Join the truncated Gaussians of the pieces from left to right."""
    whole = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    start, start_height, inverse = -np.inf, -np.inf, 1.0 / s
    for end, slope, offset in pieces:
        left, right, lean = (start - m) * inverse, (end - m) * inverse, beta * slope * s
        length = (end - start) * inverse
        end_height = -beta * (offset + slope * end) - 0.5 * right * right if end < np.inf else -np.inf
        if length <= NARROW_PIECE and 0.5 * length * abs(left + right + 2.0 * lean) <= NARROW_PIECE:
            part = narrow_part(left, length, lean, start_height)
        elif left + lean >= 0.0:
            part = tail_part(left, length, lean, start_height)
        elif right + lean <= 0.0:
            height, mass, drop_left, drop_right, shift, to_left, to_right, variance = tail_part(
                -right, length, -lean, end_height
            )
            part = (height, mass, drop_right, drop_left, -shift, to_right, to_left, variance)
        else:
            part = middle_part(left, right, lean, 0.5 * lean * lean - beta * (offset + slope * m))
        whole = part if start == -np.inf else joined(whole, part)
        start, start_height = end, end_height
    return whole[0] + np.log(whole[1] * (1.0 / ROOT_2PI)), whole[4], whole[7]


@careful
def joined(a: Part, b: Part) -> Part:
    """Join two neighbours: all sums are of positive terms, and the heavier one gives the mean."""
    rise = b[2] - a[3]
    e = np.exp(-abs(rise))
    height, drop_right = (b[0], b[3]) if rise > 0.0 else (a[0], b[3] - rise)
    mass_a, mass_b = (a[1] * e, b[1]) if rise > 0.0 else (a[1], b[1] * e)
    mass = mass_a + mass_b
    share_a, share_b, gap = mass_a / mass, mass_b / mass, a[6] + b[5]
    shift = a[4] + share_b * gap if share_a > share_b else b[4] - share_a * gap
    variance = share_a * a[7] + share_b * b[7] + share_a * share_b * gap * gap
    return height, mass, np.nan, drop_right, shift, np.nan, b[6] + share_a * gap, variance


@careful
def narrow_part(left: float, length: float, lean: float, start_height: float) -> Part:
    """Take a piece over which the product is as good as polynomial, by nodes about its middle."""
    half = 0.5 * length
    middle = left + lean + half
    mass = first = second = 0.0
    for j in range(NARROW_NODES.size):
        t = half * NARROW_NODES[j]
        f = half * NARROW_WEIGHTS[j] * np.exp(-t * (middle + 0.5 * t))
        mass += f
        first += f * t
        second += f * t * t
    mean = first / mass
    variance = second / mass - mean * mean
    drop_left, drop_right = -half * (middle - 0.5 * half), half * (middle + 0.5 * half)
    height, shift = start_height + drop_left, left + half + mean
    return height, mass, drop_left, drop_right, shift, half + mean, half - mean, variance


@careful
def tail_part(left: float, length: float, lean: float, start_height: float) -> Part:
    """Take a piece that falls from its left end on: a tail, less the tail beyond its right end."""
    mass, mean, variance = tail(left + lean)
    drop = length * (left + lean + 0.5 * length)
    if length < np.inf:
        mass_beyond, mean_beyond, variance_beyond = tail(left + lean + length)
        beyond = np.exp(-drop) * mass_beyond / mass
        kept = 1.0 - beyond
        mean_beyond += length
        mean = (mean - beyond * mean_beyond) / kept
        variance = (variance - beyond * variance_beyond) / kept - beyond * (mean_beyond - mean) ** 2
        mass *= kept
    return start_height, mass, 0.0, drop, left + mean, mean, length - mean, variance


@careful
def middle_part(left: float, right: float, lean: float, height: float) -> Part:
    """Take a piece that holds its own peak."""
    a, b = left + lean, right + lean
    at_a, at_b = np.exp(-0.5 * a * a), np.exp(-0.5 * b * b)
    mass = 0.5 * ROOT_2PI * (math.erf(ROOT_HALF * b) - math.erf(ROOT_HALF * a))
    mean = (at_a - at_b) / mass
    moment = (a * at_a if a > -np.inf else 0.0) - (b * at_b if b < np.inf else 0.0)
    variance = 1.0 + moment / mass - mean * mean
    return height, mass, 0.5 * a * a, 0.5 * b * b, mean - lean, mean - a, b - mean, variance


@careful
def tail(a: float) -> Three:
    """Mass, mean and variance of exp(-a t - t²/2) on the positive axis, for a not negative."""
    if a < FAR_TAIL:
        mass = 0.5 * ROOT_2PI * np.exp(0.5 * a * a) * math.erfc(ROOT_HALF * a)
        mean = 1.0 / mass - a
        return mass, mean, 1.0 - mean / mass
    ratio = 0.5 * (math.sqrt(a * a + (4.0 * TAIL_TERMS + 4.0)) - a)
    for n in range(TAIL_TERMS, 1, -1):
        ratio = n / (a + ratio)
    mean = 1.0 / (a + ratio)
    return 1.0 / (a + mean), mean, mean * (ratio - mean)


# As a loss writes it, like its other methods.
open_method("pieces", 1, reassociate=False)
