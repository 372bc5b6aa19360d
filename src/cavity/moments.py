r"""Moments of a one-dimensional Gaussian times a row's factor, :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`.

A row of a linear model sees :math:`\theta` through :math:`z = x^\top \theta` only, and under a factorial cavity z is
Gaussian: these moments are all that exact projection needs.

A loss that has ``pieces``, straight lines from end to end, has a closed form: on a piece the product is a truncated
Gaussian of shifted mean. Everything is measured from the ends of the pieces, in positive terms, so that neither far
tails nor extreme widths and temperatures cancel. Against 120 digits, over means to 1e6, widths from 1e-8 to 1e8 and
beta to 1e6, the errors are below 1e-9, and below 1e-12 but where rounding of the arguments alone makes more of them.

The logistic loss at beta one is a mixture of probits (`cavity.mixture`), in closed form but for masses below 1e-4.

Any other loss is integrated. Gauss-Hermite rules about the peak of the product, of doubling order, end where two agree,
which narrow cavities reach at once. Else panels, cut at the peak, where the loss begins to bend, and where the product
ends, are halved until Gauss-Legendre rules agree. Against brute force, over widths of z from 1e-3 to 1e4 times the
loss's own scale, the errors of log mass, mean and variance are below 1e-6 for any convex loss, kinks or not, and below
1e-10 for smooth ones that are wider than z.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from cavity.losses import Loss
from cavity.mixture import tilt_by_probits

FloatArray = NDArray[np.float64]

_ROOT_2PI = math.sqrt(2.0 * math.pi)
_ROOT_HALF = math.sqrt(0.5)

# From here on a continued fraction is exact, and differences of tail functions are not; how many terms it takes.
_FAR, _TERMS = 4.5, 20
_FARTHER, _FEWER_TERMS = 8.0, 12
# A piece over which the exponent changes by less than this is integrated by nodes: its ends would cancel.
_NARROW = 2.0

# Orders of Gauss-Hermite rules are doubled so often, until two agree to this share of mass, width and variance.
_DOUBLINGS = 2
_AGREEMENT = 1e-7
# The peak is near enough when a Newton step would gain so little of the logarithm.
_NEAR = 0.0025
_NEWTON_STEPS = 100
# Beyond a fall of the logarithm by this, nothing counts.
_REACH = 28.0
# A loss begins to bend where the change of its slope, times the distance, is between these.
_BEND = 1e-6, 1e-3
_HALVINGS = 200
_SEARCH_STEPS = 80


class Tilt(NamedTuple):
    """What a factor does to a Gaussian: logarithm of the mass, shift of the mean in its widths, ratio of variances."""

    log_mass: float
    shift: float
    ratio: float


def tilted(loss: Loss, y: float, mean: float, variance: float, beta: float = 1.0) -> tuple[float, float, float]:
    r"""Log mass, mean and variance of :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`.

    Examples
    --------
    >>> from cavity.losses import Squared
    >>> log_mass, mean, variance = tilted(Squared(), y=2.0, mean=0.0, variance=1.0)
    >>> round(log_mass, 6), round(mean, 6), round(variance, 6)
    (-1.346574, 1.0, 0.5)
    """
    t = tilt(loss, y, mean, variance, beta)
    return t.log_mass, mean + t.shift * math.sqrt(variance), t.ratio * variance


def tilt(loss: Loss, y: float, mean: float, variance: float, beta: float, order: int = 8) -> Tilt:
    """Compute the same relative to the Gaussian, which is what a small change needs to keep its digits.

    ``order`` is that of the first Gauss-Hermite rule. Without variance the factor is a constant. Where a cost is not
    finite, neither are the answers.
    """
    if variance == 0.0:
        return Tilt(-beta * float(loss.value(y, mean)), 0.0, 1.0)
    pieces = getattr(loss, "pieces", None)
    if pieces is not None:
        return _piecewise(pieces(y), mean, math.sqrt(variance), beta)
    sharpness = getattr(loss, "as_logistic", None)
    if sharpness is not None and beta == 1.0:
        found = tilt_by_probits(sharpness * y, mean, variance)
        if found is not None:
            return Tilt(*found)
    product = _Product.at_peak(loss, y, mean, variance, beta)
    moments = _by_rules(product, order)
    return product.tilt(_by_panels(product) if moments is None else moments)


class _Part(NamedTuple):
    """One piece, or several joined. Lengths are in widths of the Gaussian.

    ``height`` is the logarithm of the product at a reference point, relative to the top of the Gaussian; ``mass`` is
    relative to the product there; ``drop_left`` and ``drop_right`` are how much higher it is than the product's
    logarithm at either end. ``shift`` leads from the Gaussian's mean to the part's, ``to_left`` and ``to_right`` from
    there to the ends.
    """

    height: float
    mass: float
    drop_left: float
    drop_right: float
    shift: float
    to_left: float
    to_right: float
    variance: float


def _piecewise(pieces: tuple[tuple[float, float, float], ...], m: float, s: float, beta: float) -> Tilt:
    """Join the truncated Gaussians of the pieces from left to right."""
    whole: _Part | None = None
    start, start_height = -math.inf, -math.inf
    for end, slope, offset in pieces:
        left, right, length, lean = (start - m) / s, (end - m) / s, (end - start) / s, beta * slope * s
        # The height of a joint is taken from one side for both.
        end_height = -beta * (offset + slope * end) - 0.5 * right * right if end < math.inf else -math.inf
        if length <= _NARROW and 0.5 * length * abs(left + right + 2.0 * lean) <= _NARROW:
            part = _narrow_part(left, length, lean, start_height)
        elif left + lean >= 0.0:
            part = _tail_part(left, length, lean, start_height)
        elif right + lean <= 0.0:
            part = _mirrored(_tail_part(-right, length, -lean, end_height))
        else:
            part = _middle_part(left, right, lean, 0.5 * lean * lean - beta * (offset + slope * m))
        whole = part if whole is None else _joined(whole, part)
        start, start_height = end, end_height
    assert whole is not None
    return Tilt(whole.height + math.log(whole.mass / _ROOT_2PI), whole.shift, whole.variance)


def _joined(a: _Part, b: _Part) -> _Part:
    """Join two neighbours: all sums are of positive terms, and the heavier one gives the mean."""
    rise = b.drop_left - a.drop_right  # of the reference height
    base, drop_right = (b, b.drop_right) if rise > 0.0 else (a, b.drop_right - rise)
    mass_a, mass_b = a.mass * math.exp(min(-rise, 0.0)), b.mass * math.exp(min(rise, 0.0))
    mass = mass_a + mass_b
    share_a, share_b, gap = mass_a / mass, mass_b / mass, a.to_right + b.to_left
    shift = a.shift + share_b * gap if share_a > share_b else b.shift - share_a * gap
    variance = share_a * a.variance + share_b * b.variance + share_a * share_b * gap * gap
    to_right = b.to_right + share_a * gap
    return _Part(base.height, mass, math.nan, drop_right, shift, math.nan, to_right, variance)


def _narrow_part(left: float, length: float, lean: float, start_height: float) -> _Part:
    """Take a piece over which the product is as good as polynomial, by nodes about its middle."""
    x, w = _legendre(10)
    t, middle = 0.5 * length * x, left + lean + 0.5 * length
    f = 0.5 * length * w * np.exp(-t * (middle + 0.5 * t))
    mass = float(np.sum(f))
    mean = float(f @ t) / mass
    variance = float(f @ (t - mean) ** 2) / mass
    half = 0.5 * length
    drop_left, drop_right = -half * (middle - 0.5 * half), half * (middle + 0.5 * half)
    return _Part(
        start_height + drop_left, mass, drop_left, drop_right, left + half + mean, half + mean, half - mean, variance
    )


def _tail_part(left: float, length: float, lean: float, start_height: float) -> _Part:
    """Take a piece that falls from its left end on: a tail, less the tail beyond its right end."""
    mass, mean, variance = tail(left + lean)
    drop = length * (left + lean + 0.5 * length)
    if length < math.inf:
        mass_beyond, mean_beyond, variance_beyond = tail(left + lean + length)
        lost = math.exp(-drop) * mass_beyond / mass
        kept, mean_beyond = 1.0 - lost, mean_beyond + length
        mean = (mean - lost * mean_beyond) / kept
        variance = (variance - lost * variance_beyond) / kept - lost * (mean_beyond - mean) ** 2
        mass *= kept
    return _Part(start_height, mass, 0.0, drop, left + mean, mean, length - mean, variance)


def _mirrored(part: _Part) -> _Part:
    """Exchange left and right."""
    height, mass, drop_left, drop_right, shift, to_left, to_right, variance = part
    return _Part(height, mass, drop_right, drop_left, -shift, to_right, to_left, variance)


def _middle_part(left: float, right: float, lean: float, height: float) -> _Part:
    """Take a piece that holds its own peak."""
    a, b = left + lean, right + lean
    at_a, at_b = math.exp(-0.5 * a * a), math.exp(-0.5 * b * b)
    mass = 0.5 * _ROOT_2PI * (math.erf(_ROOT_HALF * b) - math.erf(_ROOT_HALF * a))
    mean = (at_a - at_b) / mass
    # At an infinite end the product is zero, and so is its moment.
    moment = (a * at_a if a > -math.inf else 0.0) - (b * at_b if b < math.inf else 0.0)
    variance = 1.0 + moment / mass - mean * mean
    return _Part(height, mass, 0.5 * a * a, 0.5 * b * b, mean - lean, mean - a, b - mean, variance)


def tail(a: float) -> tuple[float, float, float]:
    r"""Mass, mean and variance of :math:`e^{-a t - t^2/2}` on the positive axis, for :math:`a \ge 0`.

    The moments obey :math:`M_{n-1} = (M_{n+1} + a M_n)/n`, whose ratios :math:`M_n/M_{n-1}` are continued fractions.
    """
    if a < _FAR:
        mass = 0.5 * _ROOT_2PI * float(erfcx(_ROOT_HALF * a))
        mean = 1.0 / mass - a
        return mass, mean, 1.0 - mean / mass
    terms = _TERMS if a < _FARTHER else _FEWER_TERMS
    ratio = 0.5 * (math.sqrt(a * a + 4.0 * terms + 4.0) - a)
    for n in range(terms, 1, -1):
        ratio = n / (a + ratio)
    mean = 1.0 / (a + ratio)
    return 1.0 / (a + mean), mean, mean * (ratio - mean)


class _Product(NamedTuple):
    """Gaussian times factor, seen from near its peak: z is ``peak`` plus ``width`` times x."""

    loss: Loss
    y: float
    m: float
    v: float
    beta: float
    peak: float
    width: float
    cost: float  # of the row near the peak, for reference

    @classmethod
    def at_peak(cls, loss: Loss, y: float, m: float, v: float, beta: float) -> _Product:
        """Search the peak by Newton's method, held within a bracket; trouble ends in NaN."""
        z, low, high, reach, last = m, -math.inf, math.inf, 8.0 * math.sqrt(v), math.inf
        for _ in range(_NEWTON_STEPS):
            value, slope, second = (float(a) for a in loss.derivatives(y, z))
            gradient, curvature = beta * slope + (z - m) / v, 1.0 / v + beta * max(second, 0.0)
            step = -gradient / curvature
            if not -gradient * step > _NEAR:
                z += step
                break
            low, high = (z, high) if gradient < 0.0 else (low, z)
            if abs(gradient) * (high - low) <= _NEAR:  # a kink
                break
            there = z + step
            if not low < there < high or abs(step) > 0.5 * last:
                there = 0.5 * (low + high)
            there = min(max(there, z - reach), z + reach)
            reach, last, z = 2.0 * reach, abs(there - z), there
        return cls(loss, y, m, v, beta, z, 1.0 / math.sqrt(curvature), value)

    def fall(self, x: Any) -> Any:
        """How far the logarithm falls from the peak to x."""
        t = self.width * x
        cost = self.loss.value(self.y, self.peak + t) - self.cost
        return self.beta * cost + t * (0.5 * t + (self.peak - self.m)) / self.v

    def slope(self, x: float) -> float:
        """Slope of the factor's part of the fall."""
        return self.beta * self.width * float(self.loss.derivatives(self.y, self.peak + self.width * x)[1])

    def moments(self, x: FloatArray, w: FloatArray) -> FloatArray:
        """Integrals of 1, x and x² times the product, relative to the peak."""
        f = w * np.exp(-self.fall(x))
        return np.array([np.sum(f), f @ x, f @ (x * x)])

    def tilt(self, moments: FloatArray) -> Tilt:
        """Turn these integrals into what was asked for."""
        mass, mean, variance = _central(moments)
        std, distance = math.sqrt(self.v), self.peak - self.m
        log_mass = math.log(mass * self.width / (std * _ROOT_2PI)) if mass > 0.0 else math.nan
        return Tilt(
            log_mass - self.beta * self.cost - 0.5 * distance * distance / self.v,
            (distance + self.width * mean) / std,
            self.width * self.width * variance / self.v,
        )


def _central(moments: FloatArray) -> tuple[float, float, float]:
    """Mass, mean and variance."""
    mass, first, second = (float(a) for a in moments)
    if not mass > 0.0:
        return math.nan, math.nan, math.nan
    mean = first / mass
    return mass, mean, second / mass - mean * mean


def _by_rules(product: _Product, order: int) -> FloatArray | None:
    """Integrate by Gauss-Hermite rules of doubling order; nothing if no two agree."""
    before = product.moments(*_hermite(order))
    for doubling in range(1, _DOUBLINGS + 1):
        after = product.moments(*_hermite(order * 2**doubling))
        (mass, mean, variance), (old_mass, old_mean, old_variance) = _central(after), _central(before)
        if (
            abs(mass - old_mass) <= _AGREEMENT * mass
            and abs(variance - old_variance) <= _AGREEMENT * variance
            and abs(mean - old_mean) <= _AGREEMENT * math.sqrt(variance)
        ):
            return after
        before = after
    return None


def _by_panels(product: _Product) -> FloatArray:
    """Integrate by Gauss-Legendre rules on panels, halved until a panel and its halves agree."""
    x, w = _legendre(16)

    def panel(a: float, b: float) -> FloatArray:
        half = 0.5 * (b - a)
        return product.moments(0.5 * (a + b) + half * x, half * w)

    left, right = _reach(product, -8.0), _reach(product, 8.0)
    cuts = sorted({left, right, 0.0, _bend(product, left, right), _bend(product, right, left)})
    stack = [(a, b, panel(a, b)) for a, b in pairwise(cuts)]
    total: FloatArray = np.sum([moments for _, _, moments in stack], axis=0)
    for _ in range(_HALVINGS):
        if not stack or not total[0] > 0.0:
            break
        a, b, whole = stack.pop()
        middle = 0.5 * (a + b)
        lower, upper = panel(a, middle), panel(middle, b)
        change = lower + upper - whole
        total = total + change
        if not np.all(np.abs(change[::2]) <= _AGREEMENT * total[::2]):
            stack += [(a, middle, lower), (middle, b, upper)]
    return total


def _reach(product: _Product, x: float) -> float:
    """Find where the product ends: go out by doubling, come back by halving, until the fall is once to twice enough."""
    inner, fall = 0.0, product.fall(x)
    for _ in range(_SEARCH_STEPS):
        if not fall < _REACH:
            break
        inner, x = x, 2.0 * x
        fall = product.fall(x)
    for _ in range(_SEARCH_STEPS):
        if not fall > 2.0 * _REACH:
            break
        middle = 0.5 * (inner + x)
        there = product.fall(middle)
        if there < _REACH:
            inner = middle
        else:
            x, fall = middle, there
    return x


def _bend(product: _Product, end: float, other: float) -> float:
    """Find where, coming from one end, the loss begins to bend: by halving, to within a bend hardly seen."""
    low, high = _BEND
    near, far, slope = end, other, product.slope(end)
    near_slope, far_slope = slope, product.slope(other)
    if not abs(far_slope - slope) * abs(other - end) > high:
        return other
    for _ in range(_SEARCH_STEPS):
        middle = 0.5 * (near + far)
        here = product.slope(middle)
        bend = abs(here - slope) * abs(middle - end)
        if low <= bend <= high:
            return middle
        if bend < low:
            near, near_slope = middle, here
        else:
            far, far_slope = middle, here
        if not abs(far_slope - near_slope) * abs(far - near) > low:  # a kink
            break
    return near


@cache
def _hermite(order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes, and weights for functions that hold the Gaussian themselves."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return x, w * np.exp(0.5 * x * x)


@cache
def _legendre(order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights between minus one and one."""
    x, w = np.polynomial.legendre.leggauss(order)
    return x, w
