"""Black boxes with all correlations: `cavity.fit` and `cavity.curve_fit` on fourteen problems against exact draws.

Curves, registrations and composite likelihoods of 2 to 10 parameters in 1 to 45 factors; smooth costs and kinks; priors
several times wider than the posterior, with the start at their mean, far from it. Exact draws are those of long
chains of elliptical slice sampling, started around the posterior found.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from scipy import optimize
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.special import expit

import cavity
from benchmarks.bars import Row, markdown
from cavity._types import FloatArray
from cavity.ep.draws import elliptical_slices
from reference.problems import LOSSES, SMALL
from reference.problems import Problem as PaperProblem

# Bars: distance of means in standard deviations, and ratios of standard deviations.
SMOOTH, KINKS = (0.05, 0.95, 1.05), (0.15, 0.85, 1.15)
MOST_VALUES = 20.0  # times (d + 1) (d + 2), per factor, on smooth problems
Curve = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Problem:
    """Costs of points ``(n, d)``, the coordinates that each depends on, and an independent Gaussian prior."""

    name: str
    costs: list[Callable[[FloatArray], FloatArray]]
    mean: FloatArray
    std: FloatArray
    is_smooth: bool
    is_gaussian: bool = True  # about one peak; where it is not, `check` has to say so
    supports: list[Any] = field(default_factory=list)
    # Of curves: the function, its data and the noise scale, for peers that fit them.
    curve: tuple[Curve, FloatArray, FloatArray, float] | None = None

    @property
    def prior(self) -> cavity.FactorialGaussian:
        """The prior as a value."""
        return cavity.FactorialGaussian.from_moments(self.mean, self.std**2)

    @property
    def factors(self) -> list[cavity.CostFactor]:
        """The costs as factors."""
        supports = self.supports or [None] * len(self.costs)
        dim = self.mean.size
        return [
            cavity.CostFactor(u, dim, coordinates=s, vectorized=True) for u, s in zip(self.costs, supports, strict=True)
        ]

    @property
    def width(self) -> int:
        """Largest number of coordinates of a factor."""
        return max(len(s) for s in self.supports) if self.supports else self.mean.size


def squared(e: FloatArray) -> FloatArray:
    return 0.5 * e * e


def huber(e: FloatArray) -> FloatArray:
    size = np.abs(e)
    return np.where(size < 1.345, 0.5 * size * size, 1.345 * (size - 0.5 * 1.345))


def quantile(e: FloatArray) -> FloatArray:
    return 2.0 * np.where(e > 0.0, 0.3 * e, -0.7 * e)


def power(t: FloatArray) -> FloatArray:
    """Exponential of a parameter, limited where no data could tell."""
    return np.exp(np.clip(t, -30.0, 30.0))


def decay(t: FloatArray, x: FloatArray) -> FloatArray:
    return t[:, :1] * np.exp(-power(t[:, 1:2]) * x) + t[:, 2:3]


def dose_response(t: FloatArray, x: FloatArray) -> FloatArray:
    steepness = power(np.clip(t[:, 3:4], -9.0, 5.0))
    return t[:, :1] + power(t[:, 1:2]) * expit(steepness * (np.log(x) - t[:, 2:3]))


def michaelis_menten(t: FloatArray, x: FloatArray) -> FloatArray:
    return power(t[:, :1]) * x / (power(t[:, 1:2]) + x)


def peaks(t: FloatArray, x: FloatArray) -> FloatArray:
    total = t[:, :1] + 0.0 * x
    for k in range(1, t.shape[1], 3):
        total = total + t[:, k : k + 1] * np.exp(-0.5 * ((x - t[:, k + 1 : k + 2]) / power(t[:, k + 2 : k + 3])) ** 2)
    return total


def sinusoid(t: FloatArray, x: FloatArray) -> FloatArray:
    return t[:, :1] * np.sin(t[:, 1:2] * x) + t[:, 2:3] * np.cos(t[:, 1:2] * x) + t[:, 3:4]


def curve_problem(
    name: str,
    curve: Curve,
    x: FloatArray,
    y: FloatArray,
    loss: Callable[[FloatArray], FloatArray],
    scale: float,
    count: int,
    mean: Sequence[float],
    std: Sequence[float],
    **options: Any,
) -> Problem:
    """Split the points of a curve into factors, every ``count``-th in one."""

    def cost_of(part: slice) -> Callable[[FloatArray], FloatArray]:
        return lambda t: loss((y[part] - curve(t, x[part])) / scale).sum(axis=1)

    costs = [cost_of(slice(k, None, count)) for k in range(count)]
    is_smooth = loss in (squared, huber)
    data = (curve, x, y, scale)
    return Problem(name, costs, np.array(mean, float), np.array(std, float), is_smooth, curve=data, **options)


def problems() -> list[Problem]:
    """All problems, with data from fixed seeds."""
    rng, found = np.random.default_rng(1), []
    x, t = np.linspace(0.0, 4.0, 60), np.array([[2.0, 0.3, 0.5]])
    y, y_kinks = decay(t, x)[0] + 0.2 * rng.standard_normal(60), decay(t, x)[0] + 0.2 * rng.laplace(size=60)
    start = ([1.0, 1.0, 0.0], [1.5, 1.5, 1.0])
    found.append(curve_problem("exponential, squared", decay, x, y, squared, 0.2, 1, *start))
    found.append(curve_problem("exponential, absolute", decay, x, y_kinks, np.abs, 0.2, 6, *start))
    x, t = np.geomspace(0.01, 100.0, 60), np.array([[0.5, 1.0, 0.3, 0.2]])
    y = dose_response(t, x)[0] + 0.2 * rng.standard_normal(60)
    y_far = dose_response(t, x)[0] + 0.15 * rng.standard_t(3, size=60)
    start = ([0.0] * 4, [2.0] * 4)
    found.append(curve_problem("dose-response, squared", dose_response, x, y, squared, 0.2, 6, *start))
    found.append(curve_problem("dose-response, Huber", dose_response, x, y_far, huber, 0.15, 30, *start))
    found.append(curve_problem("dose-response, absolute", dose_response, x, y_far, np.abs, 0.15, 1, *start))
    found.append(curve_problem("dose-response, absolute", dose_response, x, y_far, np.abs, 0.15, 6, *start))
    x, t = np.linspace(0.0, 10.0, 120), np.array([[0.2, 2.0, 3.0, -0.3, 1.5, 6.5, 0.0]])
    y = peaks(t, x)[0] + 0.15 * rng.standard_normal(120)
    start = ([0.0, 1.0, 2.5, 0.0, 1.0, 7.0, 0.0], [1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.5])
    found.append(curve_problem("two peaks, squared", peaks, x, y, squared, 0.15, 6, *start))
    t = np.array([[0.2, 2.0, 2.0, -0.5, 1.5, 5.0, -0.2, 1.8, 8.0, -0.4]])
    y = peaks(t, x)[0] + 0.15 * rng.standard_normal(120)
    start = ([0.0, 1.0, 2.5, 0.0, 1.0, 5.5, 0.0, 1.0, 7.5, 0.0], [1.0] + [1.0, 1.0, 0.5] * 3)
    found.append(curve_problem("three peaks, squared", peaks, x, y, squared, 0.15, 1, *start))
    x, t = np.linspace(0.0, 10.0, 80), np.array([[1.0, 2.0, 0.5, 0.3]])
    y = sinusoid(t, x)[0] + 0.3 * rng.standard_normal(80)
    found.append(
        curve_problem("sinusoid, squared", sinusoid, x, y, squared, 0.3, 6, [0.0, 1.85, 0.0, 0.0], [1.0, 0.2, 1.0, 1.0])
    )
    y = sinusoid(t, x)[0] + 0.3 * rng.laplace(size=80) / np.sqrt(2.0)
    start = ([0.0, 3.5, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    found.append(
        curve_problem("sinusoid from afar, absolute", sinusoid, x, y, np.abs, 0.2, 1, *start, is_gaussian=False)
    )
    x = np.repeat([0.1, 0.2, 0.5, 1.0, 2.0, 5.0], 10)
    y = michaelis_menten(np.array([[1.0, 0.0]]), x)[0] + 0.2 * rng.laplace(size=60)
    start = ([0.0, 1.0], [1.5, 1.5])
    found.append(curve_problem("Michaelis-Menten, quantile", michaelis_menten, x, y, quantile, 0.2, 30, *start))
    found += registrations()
    found += composites()
    return found


def registrations() -> list[Problem]:
    """A rigid map by squared differences, and an affine one of another modality by the correlation ratio."""
    rng = np.random.default_rng(5)
    scene = gaussian_filter(rng.standard_normal((60, 60)), 3.0)
    scene /= scene.std()
    down, right = np.mgrid[-16:17:1.0, -16:17:1.0]

    def moved(shift: FloatArray, matrix: FloatArray) -> FloatArray:
        places = [
            30.0 + shift[0] + matrix[0, 0] * down + matrix[0, 1] * right,
            30.0 + shift[1] + matrix[1, 0] * down + matrix[1, 1] * right,
        ]
        return np.asarray(map_coordinates(scene, places, order=3, mode="nearest"))

    def turned(t: FloatArray) -> FloatArray:
        c, s = np.cos(t[2]), np.sin(t[2])
        return moved(t[:2], np.array([[c, s], [-s, c]]))

    # Noise that neighbours share: nine pixels are worth one.
    noise = 0.5 * gaussian_filter(rng.standard_normal(down.shape), 0.6)
    fixed = turned(np.array([1.3, -0.8, 0.1])) + noise

    def rigid(points: FloatArray) -> FloatArray:
        return np.array([0.5 * np.sum((turned(t) - fixed) ** 2) / 0.5**2 / 9.0 for t in points])

    other = -np.tanh(moved(np.array([0.7, -0.5]), np.array([[1.05, 0.08], [-0.05, 0.97]])))
    other += 0.3 * rng.standard_normal(down.shape)
    levels = np.digitize(other, np.quantile(other, np.linspace(0.0, 1.0, 13)[1:-1])).ravel()
    sizes = np.bincount(levels, minlength=12)

    def affine(points: FloatArray) -> FloatArray:
        costs = []
        for t in points:
            grey = moved(t[:2], np.eye(2) + t[2:].reshape(2, 2)).ravel()
            means = np.bincount(levels, grey, 12) / sizes
            costs.append(0.5 * grey.size / 9.0 * np.log(np.mean((grey - means[levels]) ** 2) / np.var(grey)))
        return np.array(costs)

    return [
        Problem("registration, rigid", [rigid], np.zeros(3), np.array([2.0, 2.0, 0.2]), True),
        Problem("registration, affine", [affine], np.zeros(6), np.array([1.5, 1.5, 0.2, 0.2, 0.2, 0.2]), True),
    ]


def _field(
    name: str, repeats: int, rng: np.random.Generator, has_trend: bool, nugget: float = 0.0, **options: Any
) -> Problem:
    """Pairs of neighbours in fields: logarithms of variance and length, and a trend or the logarithm of a nugget."""
    places = rng.uniform(0.0, 2.0, (200, 2))
    distance = np.sqrt(np.sum((places[:, None] - places) ** 2, axis=2))
    values = np.linalg.cholesky(np.exp(-distance / 0.2) + nugget * np.eye(200)) @ rng.standard_normal((200, repeats))
    design = np.column_stack([np.ones(200), places - 1.0])
    mean, trend = values.mean(axis=1) + design @ np.array([0.5, -1.0, 1.0]) * has_trend, np.zeros(3)
    values = values - values.mean(axis=1, keepdims=True)
    i, j = np.nonzero(np.triu(distance < 0.4, 1))
    squares, products = np.mean(values[i] ** 2 + values[j] ** 2, axis=1), np.mean(values[i] * values[j], axis=1)

    def pairs(t: FloatArray, part: slice) -> FloatArray:
        variance, length = power(t[:, :1]), power(t[:, 1:2])
        noise = 0.0 if has_trend else power(t[:, 2:3])
        residual = mean - (t[:, 2:] @ design.T if has_trend else trend @ design.T)
        left, right = residual[..., i[part]], residual[..., j[part]]
        a, c = variance + noise, variance * np.exp(-distance[i[part], j[part]] / length)
        det = a * a - c * c
        both, product = squares[part] + left**2 + right**2, products[part] + left * right
        # A point is in about twenty pairs, which are worth one.
        return 0.5 * repeats / 20.0 * np.sum(np.log(det) + (a * both - 2.0 * c * product) / det, axis=1)

    costs = [partial(pairs, part=slice(k, None, 30)) for k in range(30)]
    start = [1.0, -1.0, 0.0, 0.0, 0.0] if has_trend else [1.0, -1.0, 0.5]
    return Problem(name, costs, np.array(start), np.full(len(start), 1.5), True, **options)


def composites() -> list[Problem]:
    """Composite likelihoods of the pairs of a field, and paired comparisons of ten players."""
    rng = np.random.default_rng(7)
    # Ten fields with a trend; and one with a nugget, which hardly shows in pairs at a distance: a bent ridge.
    found = [
        _field("composite likelihood", 10, rng, True),
        _field("composite likelihood, nugget", 1, rng, False, 0.1, is_gaussian=False),
    ]
    strength = rng.standard_normal(10)
    games, supports = [], []
    for a in range(10):
        for b in range(a):
            won = rng.binomial(10, expit(strength[b] - strength[a]))
            supports.append(np.array([b, a]))
            games.append(
                lambda t, won=won: 10.0 * np.logaddexp(0.0, t[:, 1] - t[:, 0]) + (10 - won) * (t[:, 0] - t[:, 1])
            )
    found.append(Problem("ten players", games, np.zeros(10), np.full(10, 5.0), True, supports=supports))
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """What was found on one problem, and what exact draws say."""

    problem: Problem
    status: str
    off: float
    ratios: tuple[float, float]
    values: float
    seconds: float
    r_hat: float
    shape: float
    other_peaks: int

    @property
    def label(self) -> str:
        p = self.problem
        return f"{p.name}, {p.mean.size} parameters, {len(p.costs)} factors"

    @property
    def bars(self) -> list[Row]:
        """Accuracy, and the number of values where the cost is smooth."""
        off, low, high = SMOOTH if self.problem.is_smooth else KINKS
        measured = (
            f"{self.status}; means {self.off:.3f} sd off, deviations {self.ratios[0]:.3f} to {self.ratios[1]:.3f}"
        )
        near = self.status == "CONVERGED" and self.off <= off and low <= self.ratios[0] and self.ratios[1] <= high
        bar = f"converged, {off:g} sd, {low:g} to {high:g}"
        if not self.problem.is_gaussian:
            measured = f"{self.status}; Pareto k {self.shape:.2f}, {self.other_peaks} other peaks"
            bar, near = "k above 0.7 or other peaks, by check", self.shape > 0.7 or self.other_peaks > 0
        rows = [Row(self.label, measured, bar, near)]
        if self.problem.is_smooth and self.problem.is_gaussian:
            size = (self.problem.width + 1) * (self.problem.width + 2)
            ratio = self.values / size
            rows.append(
                Row(self.label, f"{ratio:.1f} (d + 1)(d + 2) values", f"at most {MOST_VALUES:g}", ratio <= MOST_VALUES)
            )
        return rows

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a line of the table."""
        return (
            self.label,
            self.status,
            f"{self.off:.3f}",
            f"{self.ratios[0]:.3f} to {self.ratios[1]:.3f}",
            f"{self.values:.0f}",
            f"{self.seconds:.2f}",
            f"{self.shape:.2f}",
            f"{self.r_hat:.3f}",
        )


def quietly(call: Callable[[], Any]) -> Any:
    """Call without warnings: statuses are in the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def study(problem: Problem, draws: int) -> Line:
    """Fit, sample, compare."""
    begin = time.process_time()
    result = quietly(lambda: cavity.fit(problem.factors, problem.prior))
    seconds, values = time.process_time() - begin, result.evaluations / len(problem.costs)
    if not problem.is_gaussian:
        check = result.check(starts=8)
        return Line(
            problem,
            result.status.name,
            np.nan,
            (np.nan, np.nan),
            values,
            seconds,
            np.nan,
            check.shape,
            len(check.peaks),
        )
    exact = result.sample(draws, chains=80, warmup=100)
    off = float(np.max(np.abs(result.mean - exact.mean) / exact.std))
    ratios = result.std / exact.std
    return Line(
        problem,
        result.status.name,
        off,
        (float(ratios.min()), float(ratios.max())),
        values,
        seconds,
        float(np.max(exact.r_hat)),
        result.check(starts=0).shape,
        0,
    )


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars and tables: all problems, the schemes on them, and peers on the curves."""
    chosen = problems()
    chosen = chosen[::4] if quick else chosen
    lines = [
        study(problem, 4_000 if quick else 20_000 if "registration" in problem.name else 40_000) for problem in chosen
    ]
    header = (
        "problem",
        "status",
        "means off",
        "deviations",
        "values per factor",
        "seconds",
        "Pareto k",
        "R-hat of draws",
    )
    tables = {
        "problems": markdown(header, [line.cells for line in lines]),
        "schemes": schemes_compared(chosen, quick),
        "peers": peers(chosen, quick),
    }
    return [row for line in lines for row in line.bars], tables


def schemes_compared(chosen: Sequence[Problem], quick: bool) -> str:
    """The paper's four schemes and the default with all correlations, on curves and on the paper's small sets.

    Small sets are visited by mini-batches of ten rows, as in the paper, and compared with draws around the posterior of
    EP by blocks of rows.
    """
    rows, draws = [], 4_000 if quick else 20_000

    def compare(name: str, factors: Sequence[Any], prior: Any, exact: Any) -> None:
        for scheme in ("la", "qla", "gq", "vq", "rvq"):
            # The paper's schemes start at the prior, as there; all have the safeguards.
            start = "mode" if scheme == "rvq" else None
            result = quietly(
                lambda s=scheme, t=start: cavity.fit(factors, prior, s, covariance="full", start=t, max_iter=20)
            )
            off, ratios = np.max(np.abs(result.mean - exact.mean) / exact.std), result.std / exact.std
            loops = len(result.trace.changes)
            shown = f"{off:.2f}", f"{ratios.min():.2f} to {ratios.max():.2f}"
            rows.append((name, scheme, result.status.name, str(loops), *shown))

    for problem in chosen:
        if problem.curve is not None and problem.is_gaussian:
            exact = quietly(lambda p=problem: cavity.fit(p.factors, p.prior)).sample(draws, chains=40, warmup=200)
            compare(f"{problem.name}, {len(problem.costs)} factors", problem.factors, problem.prior, exact)
    for data in SMALL[:1] if quick else SMALL:
        for loss in LOSSES:
            small = PaperProblem(data, loss)
            factors, prior = small.batches(), small.prior()
            near = quietly(lambda f=factors, p=prior: cavity.fit(f, p, covariance="full")).posterior
            exact = elliptical_slices(
                lambda t, f=factors, p=prior: p.log_density(t) - f.cost(t),
                near, draws, np.random.default_rng(0), chains=40, warmup=200,
            )  # fmt: skip
            compare(small.title, list(factors), prior, exact)
    return markdown(("problem", "scheme", "status", "loops", "means off", "deviations"), rows)


def peers(chosen: Sequence[Problem], quick: bool) -> str:
    """Compare with SciPy's `curve_fit` and, where it is installed, emcee on curves with a squared loss."""
    curves = [problem for problem in chosen if problem.curve is not None and "squared" in problem.name]
    rows = [row for problem in curves for row in _peers_on(problem, quick)]
    return markdown(("problem", "method", "means off", "deviations", "values", "seconds"), rows)


def _peers_on(problem: Problem, quick: bool) -> list[tuple[str, ...]]:
    """Lines of one curve; a value is the cost of all points, or one curve."""
    assert problem.curve is not None
    (curve, x, y, scale), calls = problem.curve, [0]
    begin = time.process_time()
    result = quietly(lambda: cavity.fit(problem.factors, problem.prior))
    seconds = [time.process_time() - begin]
    exact = result.sample(4_000 if quick else 40_000, chains=80)

    def f(x: FloatArray, *t: float) -> FloatArray:
        calls[0] += 1
        return curve(np.array(t)[None], x)[0]

    def line(name: str, mean: FloatArray, covariance: FloatArray, values: float, seconds: float) -> tuple[str, ...]:
        std = np.sqrt(np.diag(covariance))
        off, ratios = np.max(np.abs(mean - exact.mean) / exact.std), std / exact.std
        shown = f"{ratios.min():.3f} to {ratios.max():.3f}"
        return problem.name, name, f"{off:.3f}", shown, f"{values:.0f}", f"{seconds:.2f}"

    rows = [line("cavity.fit", result.mean, result.covariance, result.evaluations / len(problem.costs), seconds[0])]
    begin = time.process_time()
    popt, pcov, _, _ = quietly(lambda: cavity.curve_fit(f, x, y, problem.mean, scale, True, prior=problem.prior))
    rows.append(line("cavity.curve_fit", popt, pcov, calls[0], time.process_time() - begin))
    calls[0], begin = 0, time.process_time()
    try:
        found = quietly(lambda: optimize.curve_fit(f, x, y, problem.mean, np.full(y.size, scale), True, maxfev=20_000))
        rows.append(line("SciPy curve_fit", *found, calls[0], time.process_time() - begin))
    except RuntimeError:
        rows.append((problem.name, "SciPy curve_fit", "failed", "", str(calls[0]), ""))
    try:
        emcee = import_module("emcee")
    except ImportError:
        return rows
    begin, start = time.process_time(), exact.values[:40]
    sampler = emcee.EnsembleSampler(
        40, problem.mean.size, lambda t: problem.prior.log_density(t) - sum(u(t) for u in problem.costs), vectorize=True
    )
    sampler.run_mcmc(start, 300 if quick else 2000)
    draws = sampler.get_chain(discard=100, flat=True)
    rows.append(
        line("emcee", draws.mean(axis=0), np.cov(draws.T), 40.0 * sampler.iteration, time.process_time() - begin)
    )
    return rows
