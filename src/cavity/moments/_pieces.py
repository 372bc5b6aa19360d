r"""The closed form for losses of straight pieces: truncated Gaussians, joined from left to right.

On a piece the product is a Gaussian of the same variance whose mean is moved against the slope. All
lengths are in standard deviations and measured from the ends of the pieces, and all sums are of positive terms, so that
neither far tails nor extreme widths and powers cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, ndtr

from cavity._types import FloatArray
from cavity.moments._values import Tilts, slices
from cavity.moments.constants import (
    FAR_TAIL,
    NARROW_NODES,
    NARROW_PIECE,
    NARROW_WEIGHTS,
    ROOT_2PI,
    ROOT_HALF,
    TAIL_TERMS,
)

# Weights of 1, t and t² at the nodes.
_POLYNOMIALS = NARROW_WEIGHTS * NARROW_NODES ** np.arange(3)[:, None]


class _Part(NamedTuple):
    """One piece, or several joined, as arrays over rows.

    ``height`` is the logarithm of the product at a reference point, relative to the top of the Gaussian; ``mass`` is
    relative to the product there; ``drop_left`` and ``drop_right`` are how much higher it is than the product's
    logarithm at either end. ``shift`` leads from the Gaussian's mean to the part's, ``to_left`` and ``to_right`` from
    there to the ends.
    """

    height: FloatArray
    mass: FloatArray
    drop_left: Any
    drop_right: Any
    shift: FloatArray
    to_left: Any
    to_right: Any
    variance: FloatArray

    @property
    def mirrored(self) -> _Part:
        """Left and right exchanged."""
        height, mass, drop_left, drop_right, shift, to_left, to_right, variance = self
        return _Part(height, mass, drop_right, drop_left, -shift, to_right, to_left, variance)


class _Line(NamedTuple):
    """A piece between two ends: its ends from the mean, its slope, and the product's logarithm at ends and peak."""

    left: FloatArray
    right: FloatArray
    length: FloatArray
    lean: FloatArray
    at_left: FloatArray
    at_right: FloatArray
    at_peak: FloatArray

    def at(self, chosen: Any) -> _Line:
        return _Line(*(field[chosen] for field in self))

    @property
    def mirrored(self) -> _Line:
        left, right, length, lean, at_left, at_right, at_peak = self
        return _Line(-right, -left, length, -lean, at_right, at_left, at_peak)


def by_pieces(pieces: Sequence[Any], mean: FloatArray, std: FloatArray, power: FloatArray) -> Tilts:
    """Join the truncated Gaussians of the pieces ``(end, slope, offset)``, arrays over rows or numbers."""
    ends, slopes, offsets = (np.empty((len(pieces), mean.size)) for _ in range(3))
    for k, piece in enumerate(pieces):
        ends[k], slopes[k], offsets[k] = piece
    slopes *= power
    offsets *= power
    lean = slopes * std
    at_peak = 0.5 * lean * lean - (offsets + slopes * mean)
    if len(pieces) == 1:
        return Tilts(at_peak[0], -lean[0], np.ones_like(mean))
    ends = ends[:-1]
    joints = (ends - mean) / std
    # The height of a joint is taken from one side for both.
    at_joints = -(offsets[:-1] + slopes[:-1] * ends) - 0.5 * joints * joints
    whole, last = _outer(joints, lean, at_joints, at_peak)
    for k, (a, b) in enumerate(pairwise(range(len(joints))), start=1):
        length = (ends[b] - ends[a]) / std
        line = _Line(joints[a], joints[b], length, lean[k], at_joints[a], at_joints[b], at_peak[k])
        whole = joined(whole, _between(line))
    whole = joined(whole, last)
    return Tilts(whole.height + np.log(whole.mass / ROOT_2PI), whole.shift, whole.variance)


def joined(a: _Part, b: _Part) -> _Part:
    """Join two neighbours: all sums are of positive terms, and the heavier one gives the mean."""
    rise = b.drop_left - a.drop_right  # of the reference height
    down = np.minimum(rise, 0.0)
    mass_a, mass_b = a.mass * np.exp(down - rise), b.mass * np.exp(down)
    mass = mass_a + mass_b
    share_a, share_b, gap = mass_a / mass, mass_b / mass, a.to_right + b.to_left
    move_a, move_b = share_b * gap, share_a * gap
    shift = np.where(share_a > share_b, a.shift + move_a, b.shift - move_b)
    variance = share_a * a.variance + share_b * b.variance + move_a * move_b
    height = np.where(rise > 0.0, b.height, a.height)
    return _Part(height, mass, np.nan, b.drop_right - down, shift, np.nan, b.to_right + move_b, variance)


def _outer(joints: FloatArray, lean: FloatArray, at_joints: FloatArray, at_peak: FloatArray) -> tuple[_Part, _Part]:
    """Take the first and the last piece, which have one end each, both at once and the first mirrored.

    Each is a tail, or the larger part of a Gaussian where it holds its own peak.
    """
    n = joints.shape[1]
    left, steep = np.empty((2, n)), np.empty((2, n))
    np.negative(joints[0], out=left[0])
    np.negative(lean[0], out=steep[0])
    left[1], steep[1] = joints[-1], lean[-1]
    a = left + steep
    is_tail = a >= 0.0
    mass, to_left, variance = tail(a)
    # Where an end or the slope is huge, the sums of one of these cancel.
    shift = np.where(is_tail, left + to_left, (to_left + a) - steep)
    below = np.minimum(a, 0.0)
    drop = 0.5 * below * below
    height = np.where(is_tail, at_joints[:: max(len(joints) - 1, 1)], at_peak[:: len(joints)])
    first, last = (
        _Part(height[k], mass[k], drop[k], np.inf, shift[k], to_left[k], np.inf, variance[k]) for k in (0, 1)
    )
    return first.mirrored, last


def tail(a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Mass, mean from a and variance of :math:`e^{-t^2/2}` beyond a; the mass relative to the largest value there."""
    square = a * a
    square *= -0.5
    top, mass = np.exp(square), ndtr(-a)
    mass *= ROOT_2PI
    mean = top / mass
    from_a = mean - a
    variance = 1.0 - mean * from_a
    mass /= np.where(a > 0.0, top, 1.0)
    far = np.flatnonzero(a >= FAR_TAIL)
    if far.size:
        for target, value in zip((mass, from_a, variance), _far_tail(a.ravel()[far]), strict=True):
            target.ravel()[far] = value  # a view: all of them are contiguous
    return mass, from_a, variance


def _far_tail(a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Mass, mean and variance of :math:`e^{-a t - t^2/2}` on the positive axis, for large a.

    The moments obey :math:`M_{n-1} = (M_{n+1} + a M_n)/n`, whose ratios :math:`M_n/M_{n-1}` are continued fractions.
    """
    ratio = 0.5 * (np.sqrt(a * a + (4.0 * TAIL_TERMS + 4.0)) - a)
    for n in range(TAIL_TERMS, 1, -1):
        ratio += a
        np.divide(n, ratio, out=ratio)
    mean = 1.0 / (a + ratio)
    return 1.0 / (a + mean), mean, mean * (ratio - mean)


def _between(line: _Line) -> _Part:
    """Take a piece between two ends, each row by the form that does not cancel."""
    a, b = line.left + line.lean, line.right + line.lean
    narrow = (line.length <= NARROW_PIECE) & (0.5 * line.length * np.abs(a + b) <= NARROW_PIECE)
    falls, rises = ~narrow & (a >= 0.0), ~narrow & (b <= 0.0) & ~(a >= 0.0)
    part = _Part(*(np.empty_like(a) for _ in _Part._fields))
    for chosen, form in (
        (narrow, narrow_part),
        (falls, tail_part),
        (rises, _rising_part),
        (~(narrow | falls | rises), middle_part),
    ):
        places = np.flatnonzero(chosen)
        if places.size:
            for target, value in zip(part, form(line.at(places)), strict=True):
                target[places] = value
    return part


def narrow_part(line: _Line) -> _Part:
    """Take a piece over which the product is as good as polynomial, by nodes about its middle."""
    half = 0.5 * line.length
    middle, sums = line.left + line.lean + half, np.empty((3, half.size))
    for some in slices(half.size, NARROW_NODES.size):
        t = NARROW_NODES[:, None] * half[some]
        f = -t * (middle[some] + 0.5 * t)
        np.exp(f, out=f)
        np.matmul(_POLYNOMIALS, f, out=sums[:, some])
    mass, first, second = sums
    mean, spread = first / mass, half * half
    variance = spread * (second / mass - mean * mean)
    mean *= half
    mass *= half
    drop_left, drop_right = -half * (middle - 0.5 * half), half * (middle + 0.5 * half)
    height, shift = line.at_left + drop_left, line.left + half + mean
    return _Part(height, mass, drop_left, drop_right, shift, half + mean, half - mean, variance)


def tail_part(line: _Line) -> _Part:
    """Take a piece that falls from its left end on: a tail, less the tail beyond its right end."""
    length, a = line.length, line.left + line.lean
    mass, mean, variance = tail(a)
    mass_beyond, mean_beyond, variance_beyond = tail(a + length)
    drop = length * (a + 0.5 * length)
    beyond = np.exp(-drop) * mass_beyond / mass
    kept, mean_beyond = 1.0 - beyond, mean_beyond + length
    mean = (mean - beyond * mean_beyond) / kept
    variance = (variance - beyond * variance_beyond) / kept - beyond * (mean_beyond - mean) ** 2
    return _Part(line.at_left, mass * kept, 0.0, drop, line.left + mean, mean, length - mean, variance)


def _rising_part(line: _Line) -> _Part:
    """Take a piece that rises up to its right end."""
    return tail_part(line.mirrored).mirrored


def middle_part(line: _Line) -> _Part:
    """Take a piece that holds its own peak."""
    a, b = line.left + line.lean, line.right + line.lean
    at_a, at_b = np.exp(-0.5 * a * a), np.exp(-0.5 * b * b)
    mass = 0.5 * ROOT_2PI * (erf(ROOT_HALF * b) - erf(ROOT_HALF * a))
    mean = (at_a - at_b) / mass
    variance = 1.0 + (a * at_a - b * at_b) / mass - mean * mean
    return _Part(line.at_peak, mass, 0.5 * a * a, 0.5 * b * b, mean - line.lean, mean - a, b - mean, variance)
