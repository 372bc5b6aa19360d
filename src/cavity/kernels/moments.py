"""Moments of a one-dimensional Gaussian times a row's factor: the compiled form of `cavity.moments`, for one row.

What serves a loss depends on what its class offers, when it is compiled. Careful scalar arithmetic is left as it is
written; only sums over nodes may be reordered.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from scipy.special import erfcx

from cavity.kernels.bridge import AS_WRITTEN, INNER, careful, kernel, open_method
from cavity.kernels.speed import exponential, log_one_plus
from cavity.losses import offers
from cavity.moments.logistic import LEAST_MASS, PROBIT_SQUARES, PROBIT_WEIGHTS, ROOT_2PI
from cavity.moments.tilted import (
    AGREEMENT,
    BEND_HIGH,
    BEND_LOW,
    DOUBLINGS,
    FALL,
    FAR_TAIL,
    HALVINGS,
    NARROW_NODES,
    NARROW_PIECE,
    NARROW_WEIGHTS,
    NEWTON_STEPS,
    PANEL_NODES,
    PANEL_WEIGHTS,
    PEAK_GAIN,
    SEARCH_STEPS,
    TAIL_TERMS,
)

# Factor of the arguments of erfc.
ROOT_HALF = math.sqrt(0.5)
# Log mass, shift of the mean in widths, ratio of the variances; or other three numbers.
Three = tuple[float, float, float]

# Where panels are cut: both ends, the peak, and where the loss begins to bend on either side.
_CUTS = 5


class Rules(NamedTuple):
    """Nodes and weights, and scratch memory for panels.

    Gauss-Hermite rules of an order, its double and so on lie one after the other, their weights for functions that hold
    the Gaussian themselves.
    """

    order: int
    hermite_nodes: Any
    hermite_weights: Any
    panel_nodes: Any  # of Gauss-Legendre: not constants of the code, for which `integrals` would compile a second time
    panel_weights: Any
    cuts: Any
    stack: Any


def rules_for(order: int) -> Rules:
    hermite = [np.polynomial.hermite_e.hermegauss(order * 2**doubling) for doubling in range(DOUBLINGS + 1)]
    nodes = np.concatenate([x for x, _ in hermite])
    weights = np.concatenate([w for _, w in hermite]) * np.exp(0.5 * nodes * nodes)
    stack = np.zeros((_CUTS + HALVINGS, 5))
    return Rules(order, nodes, weights, PANEL_NODES.copy(), PANEL_WEIGHTS.copy(), np.zeros(_CUTS), stack)


def tilt(loss: Any, y: float, m: float, v: float, beta: float, rules: Any) -> Three:
    """Log mass, shift of the mean in widths, ratio of the variances. Chosen by the loss when compiled."""
    raise NotImplementedError


@overload(tilt, strict=False, jit_options=AS_WRITTEN)
def _choose_tilt(loss: Any, y: Any, m: Any, v: Any, beta: Any, rules: Any) -> Any:
    offered = offers(loss.instance_class)
    if offered.pieces is not None:
        return _piecewise_tilt
    if offered.squared is not None:
        return _squared_tilt
    return _integrated_tilt if offered.logistic is None else _logistic_tilt


def _piecewise_tilt(loss: Any, y: float, m: float, v: float, beta: float, rules: Any) -> Three:
    return by_pieces(loss.pieces(y), m, math.sqrt(v), beta)


def _squared_tilt(loss: Any, y: float, m: float, v: float, beta: float, rules: Any) -> Three:
    noise = loss.scale * loss.scale / beta
    total, distance = v + noise, y - m
    ratio = noise / total
    return 0.5 * (np.log(ratio) - distance * distance / total), distance * math.sqrt(v) / total, ratio


def _integrated_tilt(loss: Any, y: float, m: float, v: float, beta: float, rules: Any) -> Three:
    peak, width, cost = find_peak(loss, y, m, v, beta)
    place = (y, m, v, beta, peak, width, cost)
    agree, moments = by_rules(loss, place, rules)
    if not agree:
        moments = by_panels(loss, place, rules)
    mass, mean, variance = central(moments)
    std, distance = math.sqrt(v), peak - m
    log_mass = np.log(mass * width / (std * ROOT_2PI)) - beta * cost - 0.5 * distance * distance / v
    return log_mass, (distance + width * mean) / std, width * width * variance / v


integrated_tilt = careful(_integrated_tilt)


def _logistic_tilt(loss: Any, y: float, m: float, v: float, beta: float, rules: Any) -> Three:
    if beta == 1.0:
        is_enough, found = by_probits(loss.sharpness * y, m, v)
        if is_enough:
            return found
    return integrated_tilt(loss, y, m, v, beta, rules)


@careful
def find_peak(loss: Any, y: float, m: float, v: float, beta: float) -> Three:
    """Search the peak by Newton's method, held within a bracket; give it, its width and a cost near it."""
    z, low, high, reach, last = m, -np.inf, np.inf, 8.0 * math.sqrt(v), np.inf
    value, curvature = np.nan, np.nan
    for _ in range(NEWTON_STEPS):
        value, slope, second = loss.derivatives(y, z)
        gradient, curvature = beta * slope + (z - m) / v, 1.0 / v + beta * max(second, 0.0)
        step = -gradient / curvature
        if not -gradient * step > PEAK_GAIN:
            z += step
            break
        if gradient < 0.0:
            low = z
        else:
            high = z
        if abs(gradient) * (high - low) <= PEAK_GAIN:
            break
        there = z + step
        if not low < there < high or abs(step) > 0.5 * last:
            there = 0.5 * (low + high)
        there = min(max(there, z - reach), z + reach)
        reach, last, z = 2.0 * reach, abs(there - z), there
    return z, 1.0 / math.sqrt(curvature), value


@careful
def fall_at(loss: Any, place: Any, x: float) -> float:
    """How far the logarithm falls from the peak to x."""
    y, m, v, beta, peak, width, cost = place
    t = width * x
    return beta * (loss.value(y, peak + t) - cost) + t * (0.5 * t + (peak - m)) / v


@careful
def slope_at(loss: Any, place: Any, x: float) -> float:
    """Slope of the factor's part of the fall."""
    y, _, _, beta, peak, width, _ = place
    return beta * width * loss.derivatives(y, peak + width * x)[1]


def cost_at(loss: Any, y: float, z: float) -> float:
    """Loss at a node, in a form that vectorises where there is one. Chosen by the loss when compiled."""
    raise NotImplementedError


@overload(cost_at, strict=False, jit_options=INNER)
def _choose_cost(loss: Any, y: Any, z: Any) -> Any:
    return _any_cost if offers(loss.instance_class).logistic is None else _logistic_cost


def _any_cost(loss: Any, y: float, z: float) -> float:
    return loss.value(y, z)


def _logistic_cost(loss: Any, y: float, z: float) -> float:
    a = loss.sharpness * y * z
    return log_one_plus(exponential(-abs(a))) + (-a if a < 0.0 else 0.0)


@kernel
def integrals(loss: Any, place: Any, center: float, half: float, nodes: Any, weights: Any) -> Three:
    """Integrals of 1, x and x² times the product, relative to the peak, on the nodes moved and stretched."""
    y, m, v, beta, peak, width, cost = place
    inverse, distance = 1.0 / v, peak - m
    mass = first = second = 0.0
    for j in range(nodes.size):
        x = center + half * nodes[j]
        t = width * x
        fall = beta * (cost_at(loss, y, peak + t) - cost) + t * (0.5 * t + distance) * inverse
        f = weights[j] * exponential(-fall)
        mass += f
        first += f * x
        second += f * x * x
    return half * mass, half * first, half * second


@careful
def central(moments: Three) -> Three:
    mass, first, second = moments
    if not mass > 0.0:
        return np.nan, np.nan, np.nan
    mean = first / mass
    return mass, mean, second / mass - mean * mean


@careful
def by_rules(loss: Any, place: Any, rules: Any) -> tuple[bool, Three]:
    """Integrate by Gauss-Hermite rules of doubling order; whether two agreed, and the last."""
    x, w, first, last = rules.hermite_nodes, rules.hermite_weights, 0, 0
    after = (np.nan, np.nan, np.nan)
    old_mass, old_mean, old_variance = after
    size = rules.order
    for _ in range(DOUBLINGS + 1):
        first, last, size = last, last + size, 2 * size
        after = integrals(loss, place, 0.0, 1.0, x[first:last], w[first:last])
        mass, mean, variance = central(after)
        if (
            abs(mass - old_mass) <= AGREEMENT * mass
            and abs(variance - old_variance) <= AGREEMENT * variance
            and abs(mean - old_mean) <= AGREEMENT * np.sqrt(variance)
        ):
            return True, after
        old_mass, old_mean, old_variance = mass, mean, variance
    return False, after


@careful
def by_panels(loss: Any, place: Any, rules: Any) -> Three:
    """Integrate by Gauss-Legendre rules on panels, halved until a panel and its halves agree."""
    cuts, stack, x, w = rules.cuts, rules.stack, rules.panel_nodes, rules.panel_weights
    left, right = reach(loss, place, -8.0), reach(loss, place, 8.0)
    cuts[0], cuts[1], cuts[2] = left, right, 0.0
    cuts[3], cuts[4] = bend(loss, place, left, right), bend(loss, place, right, left)
    sort(cuts)
    count, mass, first, second = 0, 0.0, 0.0, 0.0
    for k in range(_CUTS - 1):
        if cuts[k] < cuts[k + 1]:
            a, b = cuts[k], cuts[k + 1]
            p0, p1, p2 = integrals(loss, place, 0.5 * (a + b), 0.5 * (b - a), x, w)
            push(stack, count, a, b, p0, p1, p2)
            mass, first, second, count = mass + p0, first + p1, second + p2, count + 1
    for _ in range(HALVINGS):
        if count == 0 or not mass > 0.0:
            break
        count -= 1
        a, b, w0, w1, w2 = stack[count, 0], stack[count, 1], stack[count, 2], stack[count, 3], stack[count, 4]
        middle = 0.5 * (a + b)
        l0, l1, l2 = integrals(loss, place, 0.5 * (a + middle), 0.5 * (middle - a), x, w)
        u0, u1, u2 = integrals(loss, place, 0.5 * (middle + b), 0.5 * (b - middle), x, w)
        d0, d1, d2 = l0 + u0 - w0, l1 + u1 - w1, l2 + u2 - w2
        mass, first, second = mass + d0, first + d1, second + d2
        if not (abs(d0) <= AGREEMENT * mass and abs(d2) <= AGREEMENT * second):
            push(stack, count, a, middle, l0, l1, l2)
            push(stack, count + 1, middle, b, u0, u1, u2)
            count += 2
    return mass, first, second


@careful
def push(stack: Any, place: int, a: float, b: float, mass: float, first: float, second: float) -> None:
    stack[place, 0], stack[place, 1] = a, b
    stack[place, 2], stack[place, 3], stack[place, 4] = mass, first, second


@careful
def sort(values: Any) -> None:
    for i in range(1, values.size):
        for j in range(i, 0, -1):
            if values[j] < values[j - 1]:
                values[j], values[j - 1] = values[j - 1], values[j]


@careful
def reach(loss: Any, place: Any, x: float) -> float:
    """Find where the product ends: go out by doubling, come back by halving, until the fall is once to twice enough."""
    inner, fall = 0.0, fall_at(loss, place, x)
    for _ in range(SEARCH_STEPS):
        if not fall < FALL:
            break
        inner, x = x, 2.0 * x
        fall = fall_at(loss, place, x)
    for _ in range(SEARCH_STEPS):
        if not fall > 2.0 * FALL:
            break
        middle = 0.5 * (inner + x)
        there = fall_at(loss, place, middle)
        if there < FALL:
            inner = middle
        else:
            x, fall = middle, there
    return x


@careful
def bend(loss: Any, place: Any, end: float, other: float) -> float:
    """Find where, coming from one end, the loss begins to bend: by halving, to within a bend hardly seen."""
    near, far, slope = end, other, slope_at(loss, place, end)
    near_slope, far_slope = slope, slope_at(loss, place, other)
    if not abs(far_slope - slope) * abs(other - end) > BEND_HIGH:
        return other
    for _ in range(SEARCH_STEPS):
        middle = 0.5 * (near + far)
        here = slope_at(loss, place, middle)
        change = abs(here - slope) * abs(middle - end)
        if BEND_LOW <= change <= BEND_HIGH:
            return middle
        if change < BEND_LOW:
            near, near_slope = middle, here
        else:
            far, far_slope = middle, here
        if not abs(far_slope - near_slope) * abs(far - near) > BEND_LOW:
            break
    return near


# Straight pieces, in closed form: see `cavity.moments.tilted`. A part is height, mass, drop to the left and right end,
# shift, distance to the left and right end, variance.
Part = tuple[float, float, float, float, float, float, float, float]


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


# The logistic function as a mixture of probits: all nodes take the same steps, and so go in vectors.

# Argument of Mills' ratio that the variable of its polynomial takes to zero: with degree 18, exact to 1e-13.
_CENTER = 5.0


def _mills_coefficients() -> Any:
    """Interpolate Mills' ratio times u + center, as a function of t = (u - center) / (u + center); highest first."""

    def scaled(t: Any) -> Any:
        u = _CENTER * (1.0 + t) / (1.0 - t)
        return (u + _CENTER) * 0.5 * ROOT_2PI * erfcx(u * ROOT_HALF)

    chebyshev = np.polynomial.chebyshev
    return np.ascontiguousarray(chebyshev.cheb2poly(chebyshev.chebinterpolate(scaled, 18))[::-1])


# Coefficients of that polynomial, the highest power first.
_MILLS = _mills_coefficients()


@kernel
def sums(a: float, v: float) -> Three:
    """Mass beyond a > 0 of the mixture under a Gaussian of variance v, its density at a, and minus its slope over a."""
    far = first = second = 0.0
    for j in range(PROBIT_SQUARES.size):
        square = PROBIT_SQUARES[j] + v
        c = math.sqrt(square)
        total = a + _CENTER * c
        inverse = 1.0 / (c * total)  # one division for all
        r = total * inverse
        u = a * r
        g = PROBIT_WEIGHTS[j] * exponential(-0.5 * u * u)
        t, mills = (a - _CENTER * c) * (c * inverse), 0.0
        for power in range(_MILLS.size):
            mills = mills * t + _MILLS[power]
        far += g * (square * inverse) * mills
        first += g * r
        second += g * r * (r * r)
    scale = 1.0 / ROOT_2PI
    return scale * far, scale * first, scale * second


@careful
def by_probits(slope: float, mean: float, variance: float) -> tuple[bool, Three]:
    """Whether the mass is large enough, and log mass, shift in widths and ratio of variances."""
    m, v = slope * mean, slope * slope * variance
    far, first, second = sums(abs(m), v)
    mass = 1.0 - far if m > 0.0 else far
    if not mass >= LEAST_MASS:
        return False, (np.nan, np.nan, np.nan)
    change = first / mass
    log_mass = math.log1p(-far) if m > 0.0 else math.log(far)
    return True, (log_mass, slope * math.sqrt(variance) * change, 1.0 - v * (m * second / mass + change * change))


# Methods of losses are compiled as they are written: reassociation would undo their care.
open_method("value", 2, AS_WRITTEN)
open_method("derivatives", 2, AS_WRITTEN)
open_method("pieces", 1, AS_WRITTEN)
