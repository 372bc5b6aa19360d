"""Random effects of columns of categories: variances found, intervals, time and memory, and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln, logsumexp

from benchmarks.bars import Row, markdown
from benchmarks.models_crossed import FEATURES, Outcome, Simulated, effects_of, run, simulate, titled
from benchmarks.sampling import draw, summary
from cavity import EPClassifier
from reference.problems import FloatArray

# Rows, levels of two crossed factors, and data sets. The best estimate of a variance from so many levels is itself
# uncertain by 2 to 3 %, so that single data sets lie beyond the bar: several tell a bias from that.
LARGE, LARGE_QUICK, SETS = (100_000, 1_000, 10_000), (20_000, 200, 2_000), 8
LONG, LONG_QUICK = (2_000_000, 30_000, 0), (200_000, 3_000, 0)
SMALL, SMALL_SETS = (2_000, 30, 50), 4
SECONDS, GIGABYTES, GIGABYTES_LONG = 30.0, 2.0, 4.0
SHARE, COVERAGE, RATIO = 0.05, (0.88, 0.92), (0.9, 1.1)
DRAWS, DRAWS_QUICK = 10_000, 500


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars, and tables of single data sets and of sampling."""
    rows, single = crossed(LARGE_QUICK if quick else LARGE, 2 if quick else SETS)
    more, line = _long(LONG_QUICK if quick else LONG)
    rows += more
    small, lines = against_sampling(*((DRAWS_QUICK, 1) if quick else (DRAWS, SMALL_SETS)))
    tables = {
        "models-mixed": markdown(_HEADER, [*single, *line]),
        "models-mixed-sampling": markdown(_SAMPLING_HEADER, lines),
    }
    return rows + small, tables


_HEADER = ("data", "seconds", "GB", "loops", "factor", "variance", "mean square of the effects", "ratio", "covered")


def _lines(title: str, o: Outcome) -> list[tuple[str, ...]]:
    cost = (f"{o.seconds:.1f}", f"{o.gigabytes:.2f}", f"{o.loops}" if o.converged else f"{o.loops}, not converged")
    found = [(n, v, o.mean_squares[n], o.covered[n]) for n, v in o.variances.items()]
    return [
        (title, *cost, name, f"{v:.4f}", f"{square:.4f}", f"{v / square:.3f}", f"{100.0 * share:.1f} %")
        for name, v, square, share in found
    ]


def crossed(shape: tuple[int, int, int], count: int) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Two crossed factors, both variances found."""
    outcomes = [run(*shape, seed) for seed in range(count)]
    title = f"random effects, {titled(shape)}"
    seconds, gigabytes = min(o.seconds for o in outcomes), max(o.gigabytes for o in outcomes)
    rows = [
        Row(f"{title}: fit", f"{seconds:.1f} s", f"at most {SECONDS:g} s", seconds <= SECONDS),
        Row(f"{title}: peak memory", f"{gigabytes:.2f} GB", f"at most {GIGABYTES:g} GB", gigabytes <= GIGABYTES),
    ]
    for name in outcomes[0].variances:
        ratios = np.array([o.variances[name] / o.mean_squares[name] for o in outcomes])
        found = f"{np.min(ratios):.3f} to {np.max(ratios):.3f}, mean {np.mean(ratios):.3f}, {count} data sets; "
        found += f"deviation {np.std(ratios):.3f}, sampling alone gives at least {outcomes[0].scatter[name]:.3f}"
        met = bool(np.max(np.abs(ratios - 1.0)) <= SHARE)
        bar = f"within {100.0 * SHARE:g} % of the effects' mean square"
        rows.append(Row(f"{title}: variance of the {name} factor", found, bar, met))
        shares = np.array([o.covered[name] for o in outcomes])
        found = f"{100.0 * np.mean(shares):.1f} %, {100.0 * np.min(shares):.1f} to {100.0 * np.max(shares):.1f} %"
        met = bool(COVERAGE[0] <= np.mean(shares) <= COVERAGE[1])
        rows.append(Row(f"{title}: effects of the {name} factor in their 90 % intervals", found, "88 to 92 %", met))
    lines = [line for seed, o in enumerate(outcomes) for line in _lines(f"{titled(shape)}, seed {seed}", o)]
    return rows, lines


def _long(shape: tuple[int, int, int]) -> tuple[list[Row], list[tuple[str, ...]]]:
    """One factor, many rows."""
    outcome = run(*shape, 0)
    found = f"{outcome.gigabytes:.2f} GB, fitted in {outcome.seconds:.1f} s"
    bar, met = f"at most {GIGABYTES_LONG:g} GB", outcome.gigabytes <= GIGABYTES_LONG
    return [Row(f"random effects, {titled(shape)}: peak memory", found, bar, met)], _lines(titled(shape), outcome)


# The small case, against sampling.

_SAMPLING_HEADER = ("seed", "factor", "variance found", "posterior median", "at the mode of the deviation",
                    "deviations of the effects, ratio", "errors of means, sd", "draws")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class MixedTarget:
    """Minus the log posterior of coefficients, followed by the log standard deviation of every factor.

    The prior of the standard deviations is flat. ``variances`` are those of the coefficients that belong to no factor,
    infinite elsewhere; ``parts`` are the places of the factors' effects.
    """

    X: FloatArray
    signs: FloatArray
    variances: FloatArray
    parts: tuple[slice, ...]

    def value(self, theta: FloatArray) -> FloatArray:
        """At points ``(chains, dim)``."""
        coef, logs = self._split(theta)
        margins = self.signs[:, None] * (self.X @ coef.T)
        costs = np.maximum(-margins, 0.0) + np.log1p(np.exp(-np.abs(margins)))
        total = np.sum(costs, axis=0) + 0.5 * np.sum(coef**2 / self.variances, axis=1)
        for part, log in zip(self.parts, logs.T, strict=True):
            effects = coef[:, part]
            # One less than their number: the density of the logarithm has the deviation as a factor.
            total += (effects.shape[1] - 1) * log + 0.5 * np.sum(effects**2, axis=1) * np.exp(-2.0 * log)
        return np.asarray(total)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """At points."""
        coef, logs = self._split(theta)
        weights = self.signs[:, None] * expit(-self.signs[:, None] * (self.X @ coef.T))
        slopes = np.empty_like(theta)
        slopes[:, : coef.shape[1]] = coef / self.variances - weights.T @ self.X
        for k, (part, log) in enumerate(zip(self.parts, logs.T, strict=True)):
            effects, precision = coef[:, part], np.exp(-2.0 * log)
            slopes[:, part] += effects * precision[:, None]
            slopes[:, coef.shape[1] + k] = effects.shape[1] - 1 - np.sum(effects**2, axis=1) * precision
        return slopes

    def _split(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        count = theta.shape[1] - len(self.parts)
        return theta[:, :count], theta[:, count:]


def sampled(data: Simulated, model: EPClassifier, count: int) -> tuple[FloatArray, tuple[slice, ...]]:
    """Draws of features' coefficients, effects, intercept and log standard deviations; places of the effects."""
    n, sizes = data.y.size, [effects.size for effects in data.effects.values()]
    X = np.column_stack([data.x, *(np.eye(k)[c] for k, c in zip(sizes, data.codes.values(), strict=True)), np.ones(n)])
    starts = FEATURES + np.cumsum([0, *sizes])
    parts = tuple(slice(a, b) for a, b in pairwise(starts))
    variances = np.full(X.shape[1], np.inf)
    variances[:FEATURES] = model.prior_variance_["features"] / model.prior_units_[:FEATURES] ** 2
    variances[-1] = model.intercept_prior_variance
    unseen = [part.stop + k for k, part in enumerate(parts)]
    near = np.delete(model.posterior_[0].mean, unseen)
    covariance = np.delete(np.delete(model.posterior_[0].covariance, unseen, axis=0), unseen, axis=1)
    logs = 0.5 * np.log([model.prior_variance_[name] for name in data.codes])
    wide = np.zeros((near.size + logs.size,) * 2)
    wide[: near.size, : near.size] = covariance
    places = near.size + np.arange(logs.size)
    wide[places, places] = 0.5 / np.array(sizes)
    target = MixedTarget(X, 2.0 * data.y - 1.0, variances, parts)
    return draw(target, np.concatenate([near, logs]), wide, count), parts


def against_sampling(count: int, sets: int) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Variances and deviations of effects where the variances are sampled too."""
    compared = [line for seed in range(sets) for line in _compared(seed, count)]
    rows, title = [], f"random effects, {titled(SMALL)}, against sampling, {sets} data sets"
    for name in dict.fromkeys(one.factor for one in compared):
        here = [one for one in compared if one.factor == name]
        shares = np.array([one.variance / one.median for one in here])
        modes = np.array([one.variance / one.mode for one in here])
        measured = f"{np.min(shares):.3f} to {np.max(shares):.3f} of the median; "
        measured += f"{np.min(modes):.3f} to {np.max(modes):.3f} of the mode"
        bar, met = f"within {100.0 * SHARE:g} % of the median", bool(np.max(np.abs(shares - 1.0)) <= SHARE)
        rows.append(Row(f"{title}: variance of the {name} factor", measured, bar, met))
        low, high = min(one.least for one in here), max(one.most for one in here)
        met = low >= RATIO[0] and high <= RATIO[1]
        what = f"{title}: deviations of the {name} factor's effects"
        rows.append(Row(what, f"{low:.3f} to {high:.3f}", f"{RATIO[0]:g} to {RATIO[1]:g}", met))
    return rows, [one.cells for one in compared]


class Compared(NamedTuple):
    """One factor of one data set: variances, and deviations of its effects against those of draws."""

    seed: int
    factor: str
    variance: float
    median: float
    mode: float
    least: float
    most: float
    error: float
    draws: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table."""
        variances = (f"{v:.4f}" for v in (self.variance, self.median, self.mode))
        ratios = f"{self.least:.3f} to {self.most:.3f}"
        return f"{self.seed}", self.factor, *variances, ratios, f"{self.error:.3f}", f"{self.draws:,.0f}"


def _compared(seed: int, count: int) -> list[Compared]:
    data = simulate(*SMALL, seed)
    model = EPClassifier().fit(data.table(), data.y)
    draws, parts = sampled(data, model, count)
    found, lines = summary(draws), []
    for k, (name, part) in enumerate(zip(data.codes, parts, strict=True)):
        median = float(np.exp(2.0 * np.median(draws[:, :, k - len(parts)])))
        mode = _mode(np.sum(draws[:, :, part] ** 2, axis=2).ravel(), part.stop - part.start)
        mean, std, _ = effects_of(model)[name]
        ratios, errors = std / found.std[part], np.abs(mean - found.mean[part]) / found.std[part]
        spread = float(np.min(ratios)), float(np.max(ratios)), float(np.max(errors))
        variance = model.prior_variance_[name]
        lines.append(Compared(seed, name, variance, median, mode, *spread, float(np.min(found.effective))))
    return lines


def _mode(squares: FloatArray, size: int) -> float:
    r"""Variance where the marginal density of the standard deviation is highest.

    The density is the mean over draws of the one given the effects, whose ``size`` squares sum to S:

    .. math:: p(\sigma \mid S) = 2 (S/2)^{(k-1)/2} \Gamma(\tfrac{k-1}{2})^{-1} \sigma^{-k} e^{-S / (2 \sigma^2)}
    """
    grid = np.geomspace(0.2, 5.0, 1000) * np.sqrt(np.median(squares) / size)
    half, chosen = 0.5 * (size - 1), squares[:: max(1, squares.size // 5000)]
    logs = half * np.log(0.5 * chosen) - gammaln(half) - 0.5 * chosen / grid[:, None] ** 2
    return float(grid[np.argmax(logsumexp(logs, axis=1) - size * np.log(grid))] ** 2)
