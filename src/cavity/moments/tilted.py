r"""Moments of Gaussians times rows' factors: by closed forms where a loss offers one, else by quadrature.

**Straight pieces.** Truncated Gaussians, joined from left to right. On a piece the product is a Gaussian of the same
variance whose mean is moved against the slope. All lengths are in standard deviations and measured from the ends of the
pieces, and all sums are of positive terms, so that neither far tails nor extreme widths and powers cancel.

**The logistic loss.** Gauss-Hermite rules for narrow Gaussians, a mixture of probits for wide ones. With
:math:`u = b y z` of mean m and standard deviation s, and :math:`q = \sigma(m) = 1 - p`, the factor relative to its
value at the mean is

.. math:: \frac{\sigma(m + s x)}{\sigma(m)} = \frac{1}{q + p\, e^{-s x}},

which never overflows and takes one exponential per node.

**Any loss.** Gauss-Hermite rules about the peak of the product, and panels where no two of them agree. Panels have
Gauss-Legendre rules. They are cut at the peak, where the loss begins to bend, and where the product ends, and are
halved until a panel and its halves agree: all panels of all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, ndtr

from cavity._types import FloatArray, IndexArray
from cavity.losses import Loss, offers
from cavity.moments.constants import (
    AGREEMENT,
    BEND_HIGH,
    BEND_LOW,
    DOUBLINGS,
    FALL,
    FAR_TAIL,
    HALVINGS,
    LEAST_MASS,
    NARROW_NODES,
    NARROW_PIECE,
    NARROW_WEIGHTS,
    NEWTON_STEPS,
    PANEL_NODES,
    PANEL_WEIGHTS,
    PEAK_GAIN,
    PROBIT_SQUARES,
    PROBIT_WEIGHTS,
    ROOT_2PI,
    ROOT_HALF,
    SEARCH_STEPS,
    TAIL_TERMS,
)
from cavity.quadrature import hermite_polynomials


class Tilts(NamedTuple):
    """What the factors of rows do to their Gaussians; arrays of shape ``(n,)``.

    Parameters
    ----------
    log_mass
        Logarithm of the mass.
    shift
        Shift of the mean, in standard deviations of the Gaussian.
    ratio
        Variance after over variance before.
    """

    log_mass: FloatArray
    shift: FloatArray
    ratio: FloatArray


class Cavities(NamedTuple):
    """Targets of rows, means and variances of their predictors, powers of their factors; arrays of shape ``(n,)``."""

    y: FloatArray
    mean: FloatArray
    variance: FloatArray
    power: FloatArray

    def at(self, chosen: Any) -> Cavities:
        """Return some of the rows."""
        return Cavities(self.y[chosen], self.mean[chosen], self.variance[chosen], self.power[chosen])


def put(tilts: Tilts, chosen: Any, values: Tilts) -> None:
    """Write the values of some rows."""
    for target, value in zip(tilts, values, strict=True):
        target[chosen] = value


def slices(n: int, nodes: int) -> Iterator[slice]:
    """Cut ``n`` rows of so many nodes each into parts to be computed at once."""
    step = max(1, 8192 // nodes)  # so many numbers stay within the caches, and memory is bounded
    return (slice(start, start + step) for start in range(0, n, step))


def tilts(
    loss: Loss,
    y: FloatArray,
    mean: FloatArray,
    variance: FloatArray,
    power: FloatArray | float = 1.0,
    order: int = 8,
) -> Tilts:
    r"""Compute, for every row, log mass, shift and ratio of :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`.

    Parameters
    ----------
    loss
        The loss of a row.
    y, mean, variance
        Targets, and means and variances of the Gaussians, of shape ``(n,)``. Where a variance is zero, the factor is a
        constant.
    power
        The power :math:`\beta > 0` of the factors: a number, or one per row.
    order
        Nodes of the first Gauss-Hermite rule for losses without a closed form; doubled until two rules agree.

    Returns
    -------
    Tilts
        NaN in the rows whose cost is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from cavity.losses import Squared
    >>> found = tilts(Squared(), y=np.array([2.0, 0.0]), mean=np.zeros(2), variance=np.ones(2))
    >>> found.log_mass.round(6), found.shift.round(6), found.ratio.round(6)
    (array([-1.346574, -0.346574]), array([1., 0.]), array([0.5, 0.5]))
    """
    n = mean.size
    rows = Cavities(y, mean, variance, np.broadcast_to(np.asarray(power, dtype=np.float64), (n,)))
    result = Tilts(*np.empty((3, n)))
    at_once = 2048  # rows: what they need in between stays within the caches
    with np.errstate(all="ignore"):
        for start in range(0, n, at_once):
            some = slice(start, start + at_once)
            put(result, some, _checked(loss, rows.at(some), order))
    return result


def _checked(loss: Loss, rows: Cavities, order: int) -> Tilts:
    """Take care of variances of zero and of costs that are not finite."""
    others = np.flatnonzero(rows.variance)
    if others.size == rows.y.size:
        found = _by_form(loss, rows, order)
    else:
        found = Tilts(-rows.power * loss.value(rows.y, rows.mean), np.zeros(rows.y.size), np.ones(rows.y.size))
        if others.size:
            put(found, others, _by_form(loss, rows.at(others), order))
    is_bad = ~np.isfinite(found.log_mass + found.shift + found.ratio)
    if is_bad.any():
        put(found, is_bad, Tilts(*np.full((3, 1), np.nan)))
    return found


def _by_form(loss: Loss, rows: Cavities, order: int) -> Tilts:
    """Take the closed form that a loss offers, or integrate."""
    offered = offers(loss)
    if offered.pieces is not None:
        return by_pieces(offered.pieces(rows.y), rows.mean, np.sqrt(rows.variance), rows.power)
    if offered.squared is not None:
        noise = offered.squared * offered.squared / rows.power
        total = rows.variance + noise
        distance, ratio = rows.y - rows.mean, noise / total
        log_mass = 0.5 * (np.log(ratio) - distance * distance / total)
        return Tilts(log_mass, distance * np.sqrt(rows.variance) / total, ratio)
    if offered.logistic is None:
        return _by_integration(loss, rows, order)
    found = by_logistic(offered.logistic * rows.y, rows.mean, rows.variance, rows.power)
    left = np.flatnonzero(np.isnan(found.log_mass))
    if left.size:
        put(found, left, _by_integration(loss, rows.at(left), order))
    return found


def _by_integration(loss: Loss, rows: Cavities, order: int) -> Tilts:
    """Integrate by one rule where that is enough, else on panels."""
    products = find_peaks(loss, rows)
    moments, left = by_rules(products, order)
    if left.size:
        moments[:, left] = by_panels(products.at(left))
    return products.tilts(moments)


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


def by_logistic(slope: FloatArray, mean: FloatArray, variance: FloatArray, power: FloatArray) -> Tilts:
    r"""Tilts of :math:`N(z; m, v)\, \sigma(b z)^\beta` for slopes b, NaN where neither form serves."""
    m, s = slope * mean, slope * np.sqrt(variance)
    is_one = bool((power == 1.0).all())
    width = np.abs(s) if is_one else np.abs(s) * np.maximum(power, 1.0)
    least, most = width.min(), width.max()
    narrower, found = 0.0, Tilts(*np.full((3, m.size), np.nan))
    # Widths up to which a rule of so many nodes keeps the errors of log mass, of the shift in tilted standard
    # deviations and of the ratio below 3e-10 for every mean.
    for widest, order in (0.17, 6), (0.52, 12), (0.95, 24), (1.8, 64):
        if narrower <= least and most < widest:
            return _by_rule(order, m, s, None if is_one else power)
        chosen = np.flatnonzero((narrower <= width) & (width < widest))
        narrower = widest
        if chosen.size:
            put(found, chosen, _by_rule(order, m[chosen], s[chosen], None if is_one else power[chosen]))
    chosen = np.flatnonzero((narrower <= width) & (power == 1.0))
    if chosen.size:
        put(found, chosen, _by_probits_of_either_side(m[chosen], s[chosen]))
    return found


def _by_rule(order: int, m: FloatArray, s: FloatArray, power: FloatArray | None) -> Tilts:
    """Integrate by one Gauss-Hermite rule about the mean; no power stands for one."""
    nodes, weights = hermite_polynomials(order)
    margin = np.minimum(-m, 700.0)  # beyond, exp would overflow, and the loss is straight to rounding
    e = np.exp(margin)
    cost = np.log1p(e) - (m + margin)
    q = 1.0 / (1.0 + e)
    p, sums = e * q, np.empty((3, m.size))
    for some in slices(m.size, order):
        f = -nodes[:, None] * s[some]
        np.exp(f, out=f)
        f *= p[some]
        f += q[some]
        if power is None:
            np.divide(1.0, f, out=f)
        else:
            np.log(f, out=f)
            f *= -power[some]
            np.exp(f, out=f)
        np.matmul(weights, f, out=sums[:, some])
    mass, first, second = sums
    shift = first / mass
    log_mass = np.log(mass) - (cost if power is None else power * cost)
    return Tilts(log_mass, shift, 1.0 + (second / mass - shift * shift))


def _by_probits_of_either_side(m: FloatArray, s: FloatArray) -> Tilts:
    r"""Take the mixture, of :math:`\sigma(u) = e^u \sigma(-u)` where the mass is too small for that of the left side.

    The exponential moves the mean by the variance. Both masses are too small for large variances only.
    """
    found = by_probits(m, s)
    low = np.flatnonzero(np.isnan(found.log_mass))
    if low.size:
        m, s = m[low], s[low]
        v = s * s
        log_mass, shift, ratio = by_probits(-(m + v), -s)
        put(found, low, Tilts(m + 0.5 * v + log_mass, s + shift, ratio))
    return found


def by_probits(m: FloatArray, s: FloatArray) -> Tilts:
    """Sum the closed forms of the mixture of probits, NaN where the mass is too small for it.

    Errors of the log mass, of the shift in tilted standard deviations and of the ratio are below 1e-10.
    """
    v, a = s * s, -np.abs(m)
    # Far from zero is the smaller of the masses of both signs; the other is what is left.
    far, first, second = np.empty((3, m.size))
    squares, weights = PROBIT_SQUARES[:, None], PROBIT_WEIGHTS[:, None]
    densities = weights / ROOT_2PI
    for some in slices(m.size, squares.size):
        r = squares + v[some]
        np.sqrt(r, out=r)
        np.divide(1.0, r, out=r)
        u = a[some] * r
        tail = ndtr(u)
        tail *= weights
        np.sum(tail, axis=0, out=far[some])
        u *= u
        u *= -0.5
        np.exp(u, out=u)
        u *= r
        u *= densities
        np.sum(u, axis=0, out=first[some])
        r *= r
        u *= r
        np.sum(u, axis=0, out=second[some])
    mass = np.where(m > 0.0, 1.0 - far, far)
    mass = np.where(mass >= LEAST_MASS, mass, np.nan)
    change = first / mass
    log_mass = np.where(m > 0.0, np.log1p(-far), np.log(mass))
    return Tilts(log_mass, s * change, 1.0 - v * (m * second / mass + change * change))


class MomentRule(NamedTuple):
    """Nodes t of shape ``(k, 1)``, their powers 1, t and t² of shape ``(k, 3)``, weights times these of ``(3, k)``."""

    nodes: FloatArray
    powers: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, nodes: FloatArray, weights: FloatArray) -> MomentRule:
        """Build a rule for functions that hold their weights themselves."""
        powers = nodes[:, None] ** np.arange(3)
        return cls(nodes[:, None], powers, weights * powers.T)


class Products(NamedTuple):
    """Gaussians times factors, seen from near their peaks: z is ``peak`` plus ``width`` times x."""

    loss: Loss
    rows: Cavities
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

    def integrals(self, rule: MomentRule, center: Any = 0.0, half: Any = 1.0) -> FloatArray:
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


def find_peaks(loss: Loss, rows: Cavities) -> Products:
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
def _hermite(order: int) -> MomentRule:
    """Nodes, and weights for functions that hold the Gaussian themselves."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return MomentRule.of(x, w * np.exp(0.5 * x * x))


def by_panels(products: Products) -> FloatArray:
    """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``."""
    n, rule = products.peak.size, MomentRule.of(PANEL_NODES, PANEL_WEIGHTS)
    left, right = reach(products, -8.0), reach(products, 8.0)
    bends = bend(products, left, right), bend(products, right, left)
    cuts = np.sort(np.stack([left, right, np.zeros(n), *bends]), axis=0)
    part, row = np.nonzero(cuts[:-1] < cuts[1:])
    a, b = cuts[part, row], cuts[part + 1, row]  # the ends of every panel
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
        again = np.flatnonzero(~agree & (mass > 0.0) & (halved < HALVINGS)[row])
        row, a, b, middle = row[again], a[again], b[again], middle[again]
        row, a, b = np.concatenate([row, row]), np.concatenate([a, middle]), np.concatenate([middle, b])
        whole = np.concatenate([lower[:, again], upper[:, again]], axis=1)
    return total


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
