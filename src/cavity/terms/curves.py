"""Functions of one column: penalised splines, random walks, and autoregressive processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from cavity._checks import positive_number, whole_number
from cavity._types import FloatArray
from cavity.terms.frames import codes, holds_numbers, numbers, places_of
from cavity.terms.protocol import Part, scattered
from cavity.terms.structures import Exponential, Scaled

# Times by which the spread of a walk is measured: it changes by less than a hundredth with twice as many.
_MEASURED = 200
# A gap, in median ones, over which no correlation that can be found is left.
_FAR = 1e10


@dataclass(frozen=True)
class Smooth:
    r"""A smooth curve: a natural cubic spline f whose :math:`\int f''(x)^2 dx` is penalised.

    The straight part of the curve belongs to the ordinary coefficients; what is left has one variance, and is zero
    where the data show no curvature. Beyond the data the curve goes on as a straight line.

    Parameters
    ----------
    x
        Column of numbers or dates.
    k
        Number of knots, which are quantiles of the distinct values: the most that the curve can bend. More knots cost
        time, and hardly change the curve.
    cyclic
        Whether the curve is periodic, between the smallest and the largest value, or two numbers between which it is.
    by
        A column of numbers that the curve is multiplied by, or of categories, whose levels have a curve each.

    Examples
    --------
    >>> learned = Smooth("x", k=5).learn({"x": np.arange(9.0)}, np.ones(9))
    >>> learned.columns({"x": np.array([3.0, 99.0])}).shape
    (2, 3)
    """

    x: str
    k: int = 20
    cyclic: bool | tuple[float, float] = False
    by: str | None = None

    def __post_init__(self) -> None:
        whole_number(f"k of {self.label}", self.k, least=4)
        if not isinstance(self.cyclic, bool):
            low, high = (float(one) for one in self.cyclic)
            if not low < high:
                raise ValueError(f"cyclic of {self.label} must be two numbers, the smaller one first")

    @property
    def label(self) -> str:
        """The term as formulas write it."""
        return f"s({self.x})" if self.by is None else f"s({self.x}, by={self.by})"

    def linear(self, frame: Any) -> tuple[str, ...]:
        """Name the straight part, but for cyclic curves."""
        straight = () if self.cyclic else (self.x,)
        if self.by is None:
            return straight
        numeric = holds_numbers(frame, self.by, self.label)
        return (*([self.by] if numeric else []), *(f"{one}:{self.by}" for one in straight))

    def learn(self, frame: Any, weights: FloatArray) -> LearnedSmooth:
        """Choose knots, and functions of unit penalty that are no straight lines in these rows."""
        x, where = numbers(frame, self.x, self.label), self.label
        distinct = np.unique(x)
        least = 3 if not self.cyclic else 4
        if distinct.size < least:
            raise ValueError(
                f"{where}: column {self.x!r} has {distinct.size} distinct values, which make no curve: use it as a "
                f"linear term, or C({self.x})"
            )
        low, high = (distinct[0], distinct[-1]) if isinstance(self.cyclic, bool) else self.cyclic
        if distinct[0] < low or distinct[-1] > high:
            raise ValueError(f"{where}: column {self.x!r} has values outside of the period from {low:g} to {high:g}")
        knots = np.quantile(distinct, np.linspace(0.0, 1.0, min(self.k, distinct.size)))
        knots[[0, -1]] = low, high
        knots = np.unique((knots - low) / (high - low))
        levels = None
        if self.by is not None and not holds_numbers(frame, self.by, where):
            levels = tuple(codes(frame, self.by, where)[1])
        n, period = knots.size - bool(self.cyclic), float(high - low)
        learned = LearnedSmooth(self.x, self.by, levels, bool(self.cyclic), float(low), period, knots, np.eye(n), where)
        curved, steps = learned.spline(knots, 2), np.diff(knots)[:, None] / 3.0
        left, right = curved[:-1], curved[1:]
        penalty = left.T @ (steps * left) + right.T @ (steps * right) + left.T @ (steps * right)
        values, vectors = np.linalg.eigh(0.5 * (penalty + penalty.T))
        free = 1 if self.cyclic else 2
        turned = vectors[:, free:] / np.sqrt(values[free:])
        # Straight parts over the rows are left to the ordinary coefficients, and the mean square is one.
        z = learned.scaled(x)
        made, flat = learned.spline(z), learned.straight(z)
        weighted = weights[:, None] * made / np.sum(weights)
        removed = np.linalg.solve((weights[:, None] * flat / np.sum(weights)).T @ flat, flat.T @ weighted)
        turned = turned - learned.straight(knots[:n]) @ (removed @ turned)
        size = float(np.sum(turned * ((made.T @ weighted) @ turned)))
        return replace(learned, values=turned / np.sqrt(size))


@dataclass(frozen=True, eq=False)
class LearnedSmooth:
    """Knots of a `Smooth` between zero and one, and the values of its functions there."""

    x: str
    by: str | None
    levels: tuple[str, ...] | None
    cyclic: bool
    origin: float
    unit: float
    knots: FloatArray
    values: FloatArray
    label: str

    shown = "curve"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        return (self.x,) if self.by is None else (self.x, self.by)

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [f"{part.label}[{k + 1}]" for part in self.parts for k in range(part.width)]

    @property
    def parts(self) -> tuple[Part, ...]:
        """One variance, or one per level."""
        width = int(self.values.shape[1])
        if self.levels is None:
            return (Part(self.label, width),)
        return tuple(Part(f"s({self.x}, {self.by}={level})", width, size=1.0) for level in self.levels)

    def scaled(self, x: FloatArray) -> FloatArray:
        """Bring to units in which the knots are between zero and one."""
        z = (x - self.origin) / self.unit
        return np.asarray(np.mod(z, 1.0) if self.cyclic else z)

    def straight(self, z: FloatArray) -> FloatArray:
        """Functions without a penalty."""
        return np.vander(z, 1 if self.cyclic else 2, increasing=True)

    def spline(self, z: FloatArray, derivative: int = 0) -> FloatArray:
        """Evaluate the functions; they are straight beyond the knots."""
        from scipy.interpolate import CubicSpline  # takes as long to import as all of this package

        if self.cyclic:
            values = np.vstack([self.values, self.values[:1]])
            return np.asarray(CubicSpline(self.knots, values, bc_type="periodic")(z, derivative))
        splines, inside = CubicSpline(self.knots, self.values, bc_type="natural"), np.clip(z, 0.0, 1.0)
        found = splines(inside, derivative)
        beyond = np.flatnonzero(z != inside)
        if beyond.size and not derivative:
            found[beyond] += (z - inside)[beyond, None] * splines(inside[beyond], 1)
        return np.asarray(found)

    def columns(self, frame: Any) -> Any:
        """Make its columns: dense, or CSR where every level has a curve."""
        made = self.spline(self.scaled(numbers(frame, self.x, self.label)))
        if self.by is None:
            return made
        if self.levels is None:
            return numbers(frame, self.by, self.label)[:, None] * made
        own, each = codes(frame, self.by, self.label)
        place, k = places_of(each, self.levels)[own], made.shape[1]
        unknown = np.flatnonzero(place == len(self.levels))
        if unknown.size:
            raise ValueError(
                f"{self.label}: level {each[own[unknown[0]]]!r} had no rows in the fit, so it has no curve"
            )
        return scattered(made, place[:, None] * k + np.arange(k), k * len(self.levels))


@dataclass(frozen=True)
class Walk:
    r"""A random walk over time: steps, or changes of steps, have one variance.

    Order 1 has :math:`x_{t+g} - x_t \sim N(0, v g)`, order 2 changes of slopes :math:`N(0, v (g + h) / 2)` between
    neighbouring gaps g and h. The level at the first time belongs to the intercept, and the straight line of a walk of
    order 2 to the ordinary coefficients.

    Parameters
    ----------
    time
        Column of numbers or dates, with any gaps; gaps of dates are in days.
    order
        1 or 2.
    period
        Length of a season in units of time: times are taken modulo it, and the walk returns to where it began.

    Examples
    --------
    >>> Walk("week").learn({"week": np.array([3.0, 1.0, 2.0, 3.0])}, np.ones(4)).names
    ['walk(week)[2]', 'walk(week)[3]', 'walk(week)[unseen]']
    """

    time: str
    order: int = 1
    period: float | None = None

    def __post_init__(self) -> None:
        whole_number(f"order of {self.label}", self.order, least=1, most=2)
        if self.period is not None:
            positive_number(f"period of {self.label}", self.period)

    @property
    def label(self) -> str:
        """The term as formulas write it."""
        options = ["order=2"] * (self.order == 2)
        options += [f"period={self.period:g}"] if self.period is not None else []
        return f"walk({', '.join([self.time, *options])})"

    def linear(self, frame: Any) -> tuple[str, ...]:
        """Name the straight line of a walk of order 2."""
        return (self.time,) if self.order == 2 and self.period is None else ()

    def learn(self, frame: Any, weights: FloatArray) -> LearnedWalk:
        """Learn times, and how far walks of unit variance go on average over the rows."""
        time, where = numbers(frame, self.time, self.label), self.label
        time = time if self.period is None else np.mod(time, self.period)
        knots, place = np.unique(time, return_inverse=True)
        if knots.size < self.order + 2:
            raise ValueError(
                f"{where}: column {self.time!r} has {knots.size} distinct times, a walk needs {self.order + 2} or more"
            )
        mass = np.bincount(place, weights, knots.size)
        learned = LearnedWalk(self.time, self.order, self.period, knots, 1.0, where)
        # The spread hardly depends on how finely time is cut: of a long walk some times stand for all.
        ends = np.cumsum(mass) / np.sum(mass)
        some = np.unique(np.append([0, knots.size - 1], np.searchsorted(ends, np.linspace(0.0, 1.0, _MEASURED)[1:-1])))
        short = replace(learned, knots=knots[some])
        shares = np.add.reduceat(mass, some) / np.sum(mass)
        made = short.rows(short.knots).toarray()[:, :-1]
        covariance = made @ np.linalg.solve(short.penalty.toarray()[:-1, :-1], made.T)
        flat = np.vander(short.knots - short.knots[0], 1 if self.period or self.order == 1 else 2, increasing=True)
        root = np.sqrt(shares)[:, None]
        basis = np.linalg.qr(root * flat)[0]
        whole = root * covariance * root.T
        return replace(learned, size=float(np.trace(whole) - np.trace(basis.T @ whole @ basis)))


@dataclass(frozen=True, eq=False)
class LearnedWalk:
    """Times of a `Walk`, and the variance of the linear predictor per unit of that of its steps.

    Coefficients are values at times, those left to the intercept and the straight line being zero: of the first time,
    and for order 2 without a period of the last one. A last one is for what happens between and after the times.
    """

    time: str
    order: int
    period: float | None
    knots: FloatArray
    size: float
    label: str

    shown = "curve"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        return (self.time,)

    @property
    def kept(self) -> slice:
        """Times that have a coefficient."""
        return slice(1, self.knots.size - (self.order == 2 and self.period is None))

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [f"{self.label}[{time:.10g}]" for time in self.knots[self.kept]] + [f"{self.label}[unseen]"]

    @property
    def penalty(self) -> sparse.csr_array:
        """Precision matrix of the coefficients where the variance is one."""
        n, gaps = self.knots.size, self.gaps
        here = np.arange(gaps.size)
        steps = sparse.csr_array(
            (np.tile([-1.0, 1.0], gaps.size), (np.repeat(here, 2), np.column_stack([here, (here + 1) % n]).ravel())),
            shape=(gaps.size, n),
        )
        if self.order == 1:
            found = steps.T @ sparse.diags_array(1.0 / gaps) @ steps
        else:
            slopes = sparse.csr_array(sparse.diags_array(1.0 / gaps) @ steps)
            if self.period is None:
                bends, widths = slopes[1:] - slopes[:-1], 0.5 * (gaps[1:] + gaps[:-1])
            else:
                before = (here - 1) % gaps.size
                bends, widths = slopes - slopes[before], 0.5 * (gaps + gaps[before])
            found = bends.T @ sparse.diags_array(1.0 / widths) @ bends
        found = sparse.csr_array(found)[self.kept][:, self.kept]
        return sparse.csr_array(sparse.block_diag([found, np.ones((1, 1))]))

    @property
    def gaps(self) -> FloatArray:
        """Gaps between times, that back to the first one included for a season."""
        found = np.diff(self.knots)
        if self.period is None:
            return found
        return np.append(found, self.period - (self.knots[-1] - self.knots[0]))

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the penalty, by the matrix-tree theorem: rounding spoils that of a factor."""
        gaps = self.gaps
        trees = -float(np.sum(np.log(gaps)))
        if self.order == 1:
            return trees + (0.0 if self.period is None else float(np.log(np.sum(gaps))))
        trees += float(np.log(np.sum(gaps)))
        if self.period is None:
            return 2.0 * trees - float(np.sum(np.log(0.5 * (gaps[1:] + gaps[:-1]))))
        widths = 0.5 * (gaps + np.roll(gaps, 1))
        return 2.0 * trees - float(np.sum(np.log(widths))) + float(np.log(np.sum(widths)))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """One structure, of full rank."""
        penalty = self.penalty
        return (
            Part(self.label, penalty.shape[0], Scaled(penalty, penalty.shape[0], self.size, self.log_det), floats=True),
        )

    def rows(self, time: FloatArray) -> sparse.csr_array:
        """Straight lines between the times, and the spread of what they lack."""
        knots, n = self.knots, self.knots.size
        if self.period is not None:
            time = knots[0] + np.mod(time - knots[0], self.period)
            ends = np.append(knots, knots[0] + self.period)
        else:
            ends = knots
        left = np.clip(np.searchsorted(ends, time, side="right") - 1, 0, ends.size - 2)
        gap = ends[left + 1] - ends[left]
        share = (time - ends[left]) / gap
        if self.order == 1 and self.period is None:
            share = np.clip(share, 0.0, 1.0)
        # Within a gap a bridge; beyond the last time a walk that goes on.
        inside = np.clip(share, 0.0, 1.0)
        bridge = gap * inside * (1.0 - inside)
        beyond = np.maximum(np.maximum(ends[0] - time, time - ends[-1]), 0.0)
        if self.order == 1:
            lacking = bridge + beyond
        else:
            lacking = bridge**2 / (3.0 * gap) + beyond * (beyond + gap) * (2.0 * beyond + gap) / 6.0 * (beyond > 0.0)
        right = (left + 1) % n
        made = scattered(
            np.column_stack([1.0 - share, share, np.sqrt(lacking)]),
            np.column_stack([left, right, np.full(left.size, n)]),
            n + 1,
        )
        made.eliminate_zeros()
        return made[:, np.append(np.arange(n)[self.kept], n)]

    def columns(self, frame: Any) -> sparse.csr_array:
        """Make its columns: two times per row at most."""
        return self.rows(numbers(frame, self.time, self.label))


@dataclass(frozen=True)
class Autoregressive:
    r"""A process that returns to its mean: correlations :math:`\rho^{g}` over gaps g, AR(1) where all gaps are equal.

    Parameters
    ----------
    time
        Column of numbers or dates.
    ahead
        Number of median gaps beyond the last time that have coefficients, for predictions that return to the mean.
        Later times, and earlier ones, have the distribution of the whole process.

    Examples
    --------
    >>> Autoregressive("day").learn({"day": np.array([2.0, 3.0])}, np.ones(2)).names
    ['ar(day)[2]', 'ar(day)[3]', 'ar(day)[unseen]']
    """

    time: str
    ahead: int = 0

    def __post_init__(self) -> None:
        whole_number(f"ahead of {self.label}", self.ahead, least=0)

    @property
    def label(self) -> str:
        """The term as formulas write it."""
        return f"ar({self.time})"

    def linear(self, frame: Any) -> tuple[str, ...]:
        """None."""
        return ()

    def learn(self, frame: Any, weights: FloatArray) -> LearnedAutoregressive:
        """Learn the times."""
        knots = np.unique(numbers(frame, self.time, self.label))
        if knots.size < 2:
            raise ValueError(f"{self.label}: column {self.time!r} has one time only")
        unit = float(np.median(np.diff(knots)))
        knots = np.append(knots, knots[-1] + unit * np.arange(1, self.ahead + 1))
        return LearnedAutoregressive(self.time, knots, unit, self.label)


@dataclass(frozen=True, eq=False)
class LearnedAutoregressive:
    """Times of an `Autoregressive` process, and their median gap, over which its correlation is given."""

    time: str
    knots: FloatArray
    unit: float
    label: str

    shown = "curve"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        return (self.time,)

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [f"{self.label}[{time:.10g}]" for time in self.knots] + [f"{self.label}[unseen]"]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """One structure; unseen times are as good as infinitely far away."""
        gaps = np.append(np.diff(self.knots) / self.unit, _FAR)
        return (Part(self.label, gaps.size + 1, Exponential(gaps)),)

    def columns(self, frame: Any) -> sparse.csr_array:
        """Make its columns: values at the times, straight lines in between, and a value of its own outside."""
        time, n = numbers(frame, self.time, self.label), self.knots.size
        left = np.clip(np.searchsorted(self.knots, time, side="right") - 1, 0, n - 2)
        share = (time - self.knots[left]) / (self.knots[left + 1] - self.knots[left])
        outside = (share < 0.0) | (share > 1.0)
        share = np.where(outside, 0.0, share)
        made = scattered(
            np.column_stack([np.where(outside, 0.0, 1.0 - share), share, outside]),
            np.column_stack([left, left + 1, np.full(left.size, n)]),
            n + 1,
        )
        made.eliminate_zeros()
        return made
