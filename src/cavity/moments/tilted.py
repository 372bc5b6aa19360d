r"""Moments of Gaussians times rows' factors: by closed forms where a loss offers one, else by quadrature.

**Straight pieces.** Truncated Gaussians, joined at their ends. On a piece the product is a Gaussian of the same
variance whose mean is moved against the slope. All lengths are in standard deviations and measured from the ends of the
pieces, and all sums are of positive terms, so that neither far tails nor extreme widths and powers cancel.

**Any loss.** Gauss-Hermite rules about the peak of the product, and panels where no two of them agree. Panels have
Gauss-Legendre rules. They are cut at the peak, where the loss begins to bend, and where the product ends, and are
halved until a panel and its halves agree: all panels of all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from cavity._types import FloatArray, IndexArray
from cavity.losses import Loss, offers
from cavity.moments.logistic import NUMBERS_AT_ONCE, ROOT_2PI, logistic_tilts
from cavity.quadrature import hermite

# Tails: from so many standard deviations on, this many terms of a continued fraction are exact to 1e-12, while
# differences of error functions lose digits.
FAR_TAIL, TAIL_TERMS = 4.5, 20
# Pieces over which the logarithm of the product changes by less than this: integrated by nodes, since differences of
# tails would cancel. Ten nodes are exact to 1e-12 there.
NARROW_PIECE = 2.0
NARROW_NODES, NARROW_WEIGHTS = np.polynomial.legendre.leggauss(10)

# How often the nodes of the first Gauss-Hermite rule are doubled, and the share of mass, variance and standard
# deviation to which two rules must agree: below the promised 1e-6, above the rounding of sums.
DOUBLINGS, AGREEMENT = 2, 1e-7
# The search for the peak ends where a Newton step would gain less than this of the logarithm: a rule about any point
# so near is as good.
PEAK_GAIN, NEWTON_STEPS = 0.0025, 100

# Panels end where the logarithm has fallen by this (e^-28 = 7e-13) to twice this.
FALL = 28.0
# Panels are cut where a loss begins to bend: where the change of its slope times the distance lies between these.
BEND_LOW, BEND_HIGH = 1e-6, 1e-3
# Most steps of a search by doubling or halving, and most panels of a row that are halved.
SEARCH_STEPS, HALVINGS = 80, 200
# Rule of a panel, which is halved until both halves agree with it.
PANEL_NODES, PANEL_WEIGHTS = np.polynomial.legendre.leggauss(16)

# Rows whose moments are computed at once: what they need in between stays within the caches.
_ROWS_AT_ONCE = 2048


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
    n, offered = mean.size, offers(loss)
    whole, powers = np.empty((3, n)), np.broadcast_to(np.asarray(power, dtype=np.float64), (n,))
    with np.errstate(all="ignore"):
        for start in range(0, n, _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows = y[part], mean[part], variance[part], powers[part]
            if offered.pieces is not None:
                whole[:, part] = piecewise_tilts(offered.pieces(rows[0]), *rows[1:])
            elif offered.squared is not None:
                target, m, v, beta = rows
                noise = offered.squared * offered.squared / beta
                distance, total = target - m, v + noise
                whole[0, part] = 0.5 * (np.log(noise / total) - distance * distance / total)
                whole[1, part] = distance * np.sqrt(v) / total
                whole[2, part] = noise / total
            elif offered.logistic is None:
                whole[:, part] = integrated_tilts(loss, *rows, order)
            else:
                whole[:, part] = found = logistic_tilts(offered.logistic * rows[0], *rows[1:])
                left = start + np.flatnonzero(np.isnan(found[1]))
                if left.size:
                    whole[:, left] = integrated_tilts(loss, y[left], mean[left], variance[left], powers[left], order)
        constant = np.flatnonzero(variance == 0.0)
        if constant.size:
            whole[0, constant] = -powers[constant] * loss.value(y[constant], mean[constant])
            whole[1:, constant] = [[0.0], [1.0]]
        whole[:, ~np.isfinite(np.sum(whole, axis=0))] = np.nan
    return Tilts(*whole)


def piecewise_tilts(
    pieces: Sequence[Any], mean: FloatArray, variance: FloatArray, power: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sum truncated Gaussians over the pieces ``(end, slope, offset)``, of arrays over rows or numbers.

    A piece between two ends is cut where the product is highest, so that all parts fall from an end or a peak on,
    towards the left or the right. The first and last piece are one part each, whose peak may lie within.
    """
    table = np.empty((len(pieces), 3, mean.size))
    for k, piece in enumerate(pieces):
        for row, member in zip(table[k], piece, strict=True):
            row[:] = member
    ends, slopes, offsets = table[:-1, 0], power * table[:, 1], power * table[:, 2]
    std = np.sqrt(variance)
    lean = slopes * std
    at_peak = 0.5 * lean * lean - (offsets + slopes * mean)  # logarithms of the product, above the top of the Gaussian
    if not len(ends):
        return at_peak[0], -lean[0], np.ones_like(mean)
    joints, widths = (ends - mean) / std, np.diff(ends, axis=0) / std
    at_joint = -(offsets[:-1] + slopes[:-1] * ends) - 0.5 * joints * joints  # for the parts on both sides alike
    # Parts to the left of every joint, then those to its right: how far the joint is beyond the peak of its piece.
    side = np.array([-1.0, 1.0])[:, None, None]
    leans, at_peaks = np.stack([lean[:-1], lean[1:]]), np.stack([at_peak[:-1], at_peak[1:]])
    beyond = side * (joints + leans)
    if len(joints) == 1:
        start, place, height = beyond, 0.0, 0.0
        mass, depth, spread = tail(start)
    else:  # pieces between two joints rise over one length, and fall over the other
        start, length = beyond.copy(), np.full_like(beyond, np.inf)
        place, height = np.empty((2, *beyond.shape))  # where a part begins
        rising, falling = np.clip(-beyond[1, :-1], 0.0, widths), np.clip(-beyond[0, 1:], 0.0, widths)
        start[0, 1:], start[1, :-1] = np.maximum(beyond[0, 1:], 0.0), np.maximum(beyond[1, :-1], 0.0)
        length[0, 1:], length[1, :-1] = rising, falling
        steps = np.empty((2, 2 * len(widths), mean.size))  # from joint to peak to joint, along and upwards
        steps[0, ::2], steps[1, ::2] = rising, rising * (start[0, 1:] + 0.5 * rising)
        steps[0, 1::2], steps[1, 1::2] = falling, -falling * (start[1, :-1] + 0.5 * falling)
        # Summed from the highest of these on, so that near it they are exact.
        is_after = np.arange(steps.shape[1])[:, None] > np.argmax(np.cumsum(steps[1], axis=0), axis=0)
        sums = np.zeros((2, steps.shape[1] + 1, mean.size))
        sums[:, 1:] = np.cumsum(is_after * steps, axis=1)
        sums[:, :-1] -= np.cumsum((~is_after * steps)[:, ::-1], axis=1)[:, ::-1]
        for target, values in zip((place, height), sums, strict=True):
            target[:], target[0, 1:], target[1, :-1] = values[::2], values[1::2], values[1::2]
        mass, depth, spread = falling_part(start, length)
    is_tail, below = beyond >= 0.0, np.minimum(start, 0.0)
    log_share = 0.5 * below * below + np.log(mass) + height
    # Where a joint or a slope is huge, the sums of one of these cancel.
    shift = np.where(is_tail, joints + side * depth, side * (depth + start) - leans)
    log_mass = np.where(is_tail, at_joint, at_peaks)
    # The heaviest part gives mean and height, and others their distances from it.
    parts = (-1, mean.size)
    share, rows = log_share.reshape(parts), np.arange(mean.size)
    top, heaviest = np.max(share, axis=0), rows
    for k in range(1, len(share)):  # as np.argmax, in a tenth of the time
        heaviest = np.where(share[k] == top, rows + k * mean.size, heaviest)
    share = np.exp(share - top)
    total = np.sum(share, axis=0)
    share /= total
    apart = place + side * depth
    apart = (apart - apart.take(heaviest)).reshape(parts)
    move = np.sum(share * apart, axis=0)
    ratio = np.sum(share * (spread.reshape(parts) + np.square(apart - move)), axis=0)
    log_mass = log_mass.take(heaviest) + np.log(mass.take(heaviest) * total / ROOT_2PI)
    return log_mass, shift.take(heaviest) + move, ratio


def falling_part(a: FloatArray, length: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Compute mass, mean from a and variance of :math:`e^{-t^2/2}` between a and a + length.

    The mass is relative to the largest value there. Where the length is finite, a must not be negative.
    """
    mass, mean, variance = tail(a)
    bounded = np.isfinite(length)
    a, length = a[bounded], length[bounded]
    drop = length * (a + 0.5 * length)
    mass_a, mean_a, variance_a = mass[bounded], mean[bounded], variance[bounded]
    mass_b, mean_b, variance_b = tail(a + length)
    lost = np.exp(-drop) * mass_b / mass_a
    kept, mean_b = 1.0 - lost, mean_b + length
    between = (mean_a - lost * mean_b) / kept
    found = np.stack([mass_a * kept, between, (variance_a - lost * variance_b) / kept - lost * (mean_b - between) ** 2])
    narrow = np.flatnonzero(drop <= NARROW_PIECE)
    half = 0.5 * length[narrow]
    t = half * (1.0 + NARROW_NODES[:, None])
    f = np.exp(-t * (a[narrow] + 0.5 * t))
    sums = NARROW_WEIGHTS @ np.stack([f, f * t, f * t * t])
    middle = sums[1] / sums[0]
    found[:, narrow] = half * sums[0], middle, sums[2] / sums[0] - middle * middle
    mass[bounded], mean[bounded], variance[bounded] = found
    return mass, mean, variance


def tail(a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Compute mass, mean from a and variance of :math:`e^{-t^2/2}` beyond a, relative to the largest value there.

    Far out, the moments :math:`M_n` of :math:`e^{-a t - t^2/2}` on the positive axis obey
    :math:`M_{n-1} = (M_{n+1} + a M_n)/n`, and their ratios :math:`M_n/M_{n-1}` are continued fractions.
    """
    top, mass = np.exp(-0.5 * a * a), ROOT_2PI * ndtr(-a)
    mean = top / mass
    from_a = mean - a
    variance = 1.0 - mean * from_a
    mass /= np.where(a > 0.0, top, 1.0)
    is_far = a >= FAR_TAIL
    if np.any(is_far):
        far = a[is_far]
        ratio = 0.5 * (np.sqrt(far * far + (4.0 * TAIL_TERMS + 4.0)) - far)
        for n in range(TAIL_TERMS, 1, -1):
            ratio = n / (far + ratio)
        first = 1.0 / (far + ratio)
        mass[is_far], from_a[is_far], variance[is_far] = 1.0 / (far + first), first, first * (ratio - first)
    return mass, from_a, variance


class Products(NamedTuple):
    """Gaussians times factors, seen from near their peaks: z is ``peak`` plus ``width`` times x."""

    loss: Loss
    y: FloatArray
    mean: FloatArray
    variance: FloatArray
    power: FloatArray
    peak: FloatArray
    width: FloatArray
    cost: FloatArray  # near the peaks, for reference

    def at(self, chosen: Any) -> Products:
        """Return those of some rows."""
        return Products(self.loss, *(part[chosen] for part in self[1:]))

    def fall(self, x: FloatArray) -> FloatArray:
        """How far the logarithms fall from the peaks to x, of shape ``(n,)`` or ``(nodes, n)``."""
        t = self.width * x
        cost = self.power * (self.loss.value(self.y, self.peak + t) - self.cost)
        return np.asarray(cost + t * (0.5 * t + (self.peak - self.mean)) / self.variance)

    def slope(self, x: FloatArray) -> FloatArray:
        """Slopes of the factors' part of the fall."""
        return np.asarray(self.power * self.width * self.loss.derivatives(self.y, self.peak + self.width * x)[1])

    def integrals(self, nodes: FloatArray, weights: FloatArray, center: Any = 0.0, half: Any = 1.0) -> FloatArray:
        """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``.

        The rule is moved to a center and stretched by half a length, numbers or of shape ``(n,)``.
        """
        n = self.y.size
        center, half = np.broadcast_to(center, (n,)), np.broadcast_to(half, (n,))
        sums, length = np.empty((3, n)), max(1, NUMBERS_AT_ONCE // nodes.size)
        for start in range(0, n, length):
            some = slice(start, start + length)
            x = center[some] + half[some] * nodes[:, None]
            f = np.exp(-self.at(some).fall(x))
            for power in range(3):
                sums[power, some] = weights @ f
                f *= x
        moments: FloatArray = half * sums
        return moments


def integrated_tilts(
    loss: Loss, y: FloatArray, mean: FloatArray, variance: FloatArray, power: FloatArray, order: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Integrate by Gauss-Hermite rules of doubling order about the peaks, and on panels where no two of them agree."""
    products = find_peaks(loss, y, mean, variance, power)
    left, chosen = np.arange(y.size), products
    moments = products.integrals(*_hermite(order))
    for doubling in range(1, DOUBLINGS + 1):
        before = moments[:, left]
        moments[:, left] = after = chosen.integrals(*_hermite(order * 2**doubling))
        (mass, mean_x, variance_x), (old_mass, old_mean, old_variance) = central(after), central(before)
        agree = np.abs(mass - old_mass) <= AGREEMENT * mass
        agree &= np.abs(variance_x - old_variance) <= AGREEMENT * variance_x
        agree &= np.abs(mean_x - old_mean) <= AGREEMENT * np.sqrt(variance_x)
        left = left[~agree]
        if not left.size:
            break
        chosen = products.at(left)
    else:
        moments[:, left] = by_panels(chosen)
    mass, mean_x, variance_x = central(moments)
    std, distance, width = np.sqrt(variance), products.peak - mean, products.width
    log_mass = np.log(mass * width / (std * ROOT_2PI)) - power * products.cost - 0.5 * distance * distance / variance
    return log_mass, (distance + width * mean_x) / std, width * width * variance_x / variance


def central(moments: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mass, mean and variance; NaN where there is no mass."""
    mass = np.where(moments[0] > 0.0, moments[0], np.nan)
    mean = moments[1] / mass
    return mass, mean, moments[2] / mass - mean * mean


@cache
def _hermite(order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes, and weights for functions that hold the Gaussian themselves."""
    x, w = hermite(order)
    return x, w * ROOT_2PI * np.exp(0.5 * x * x)


def find_peaks(loss: Loss, y: FloatArray, mean: FloatArray, variance: FloatArray, power: FloatArray) -> Products:
    """Search the peaks by Newton's method, held within brackets; trouble ends in NaN."""
    peak, width, cost = np.empty((3, mean.size))
    z, low, high = mean, np.full(mean.size, -np.inf), np.full(mean.size, np.inf)
    reach, last, places = 8.0 * np.sqrt(variance), np.full(mean.size, np.inf), np.arange(mean.size)
    for _ in range(NEWTON_STEPS):
        value, slope, second = loss.derivatives(y[places], z)
        gradient = power[places] * slope + (z - mean[places]) / variance[places]
        curvature = 1.0 / variance[places] + power[places] * np.maximum(second, 0.0)
        step = -gradient / curvature
        near = ~(-gradient * step > PEAK_GAIN)
        low, high = np.where(gradient < 0.0, z, low), np.where(gradient < 0.0, high, z)
        at_kink = np.abs(gradient) * (high - low) <= PEAK_GAIN
        there = z + step
        halved = ~((low < there) & (there < high)) | (np.abs(step) > 0.5 * last)
        there = np.clip(np.where(halved, 0.5 * (low + high), there), z - reach, z + reach)
        there = np.where(near, z + step, np.where(at_kink, z, there))
        peak[places], width[places], cost[places] = there, 1.0 / np.sqrt(curvature), value
        left = np.flatnonzero(~(near | at_kink))
        if not left.size:
            break
        last, reach, low, high = np.abs(there - z)[left], 2.0 * reach[left], low[left], high[left]
        z, places = there[left], places[left]
    return Products(loss, y, mean, variance, power, peak, width, cost)


def by_panels(products: Products) -> FloatArray:
    """Integrals of 1, x and x² times the products, relative to their peaks; of shape ``(3, n)``."""
    n, rule = products.peak.size, (PANEL_NODES, PANEL_WEIGHTS)
    left, right = reach(products, -8.0), reach(products, 8.0)
    bends = bend(products, left, right), bend(products, right, left)
    cuts = np.sort(np.stack([left, right, np.zeros(n), *bends]), axis=0)
    part, row = np.nonzero(cuts[:-1] < cuts[1:])
    a, b = cuts[part, row], cuts[part + 1, row]  # the ends of every panel
    whole = products.at(row).integrals(*rule, 0.5 * (a + b), 0.5 * (b - a))
    total, halved = _by_row(row, whole, n), np.zeros(n, dtype=np.intp)
    while row.size:
        middle, quarter, chosen = 0.5 * (a + b), 0.25 * (b - a), products.at(row)
        lower = chosen.integrals(*rule, middle - quarter, quarter)
        upper = chosen.integrals(*rule, middle + quarter, quarter)
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
