"""Random problems of every kind, and what must hold of whatever comes back; for `test_fuzz`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from cavity import CostFactor, FactorialGaussian, losses
from cavity.ep.factorised import prior_cost
from cavity.ep.result import Refusal, Result, Status
from cavity.schemes import NAMES

# Rounding of a sum, against the sum of its terms' sizes.
ROUNDING = 1e-9
# What a cost may differ by where it is compared with another; the engine's own leeway.
LEEWAY = 1e-8


class Rounded(NamedTuple):
    """A user's own smooth loss: a parabola that goes over into straight lines."""

    width: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.hypot(self.width, z - y) - self.width

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        length = np.hypot(self.width, z - y)
        return length - self.width, (z - y) / length, (self.width / length) ** 2 / length


class Sliding(NamedTuple):
    """Unbounded below: a straight line."""

    slope: float = 1.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return -self.slope * y * z

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return -self.slope * y * z, -self.slope * y + 0.0 * z, 0.0 * z


class Hill(NamedTuple):
    """Unbounded below: a concave parabola."""

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return -0.5 * ((z - y) / self.scale) ** 2

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        u = (z - y) / self.scale
        return -0.5 * u * u, -u / self.scale, 0.0 * z - 1.0 / self.scale**2


class Fenced(NamedTuple):
    """NaN beyond a fence."""

    fence: float = 2.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.abs(z - y) - np.sqrt(self.fence - z)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        root = np.sqrt(self.fence - z)
        return np.abs(z - y) - root, np.sign(z - y) + 0.5 / root, 0.25 / root**3


class Stumbling(NamedTuple):
    """Raises where a prediction is too large. The plain engine's only."""

    limit: float = 2.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        if np.any(np.abs(z) > self.limit):
            raise ArithmeticError("too far")
        return np.abs(z - y)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), np.sign(z - y), 0.0 * z


SHIPPED: tuple[Any, ...] = (
    losses.Logistic,
    losses.Hinge,
    losses.QuasiZeroOne,
    losses.Squared,
    losses.Absolute,
    losses.Huber,
    losses.Quantile,
    losses.Poisson,
    losses.NegativeBinomial,
    losses.Gamma,
)
assert {loss.__name__ for loss in SHIPPED} == set(losses.__all__)
OWN: tuple[Any, ...] = (Rounded, Sliding, Hill, Fenced)
SITES = ("own", "tied", "averaged", "none")

scales = st.sampled_from((1e-6, 1e-3, 1.0, 1e3, 1e6))


@dataclass(frozen=True)
class Data:
    """Rows, targets and weights, made from a seed."""

    rows: int
    columns: int
    seed: int
    scale: str
    odd: str
    answers: str
    weighing: str
    storage: str

    def matrix(self) -> Any:
        """Rows as they are given to the library."""
        rng, n, d = np.random.default_rng([self.seed, 1]), self.rows, self.columns
        X = rng.standard_normal((n, d))
        if self.odd == "binary":
            X = (X > 0.5).astype(float)
        if self.odd in ("constant", "mixed"):
            X[:, rng.integers(d)] = 1.0
        if self.odd in ("duplicated", "mixed"):
            X[:, rng.integers(d)] = X[:, rng.integers(d)]
        if self.scale == "columns":
            X = X * 10.0 ** rng.uniform(-6.0, 6.0, d)
        elif self.scale == "rows":
            X = X * 10.0 ** rng.uniform(-6.0, 6.0, n)[:, None]
        elif self.scale != "unit":
            X = X * float(self.scale)
        if self.odd in ("zero", "mixed"):
            X[:, rng.integers(d)] = 0.0
            X[rng.integers(n)] = 0.0
        if self.odd == "repeated":
            X[:] = X[0]
        if self.storage == "single":
            return X.astype(np.float32)
        return sparse.csr_array(X) if self.storage == "csr" else X

    def targets(self, kind: str) -> Any:
        """Targets of a kind: random, a function of the rows, or all the same."""
        rng, X = np.random.default_rng([self.seed, 2]), self.dense()
        size = np.sqrt(np.mean(X * X)) + 1e-300
        z = X @ rng.standard_normal(self.columns) / size
        if self.answers == "random":
            z = rng.standard_normal(self.rows)
        elif self.answers == "constant":
            z = np.full(self.rows, 0.7)
        elif self.answers == "huge":
            z = 1e6 * rng.standard_normal(self.rows)
        if kind == "signs":
            return np.where(z > 0.0, 1.0, -1.0)
        if kind == "positives":
            return np.exp(np.clip(z, -5.0, 12.0))
        return z if kind == "reals" else np.floor(np.exp(np.clip(z, -5.0, 12.0)))

    def weights(self) -> Any:
        """Weights, some of them zero."""
        rng = np.random.default_rng([self.seed, 3])
        if self.weighing == "none":
            return None
        w = 10.0 ** rng.uniform(-3.0, 3.0, self.rows)
        w[rng.uniform(size=self.rows) < 0.3] = 0.0
        if self.weighing == "some":
            w[rng.integers(self.rows)] = 1.0
        return w

    def dense(self) -> Any:
        X = self.matrix()
        return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=float)


def datasets(storages: tuple[str, ...] = ("dense", "csr", "single"), most: int = 30) -> st.SearchStrategy[Data]:
    """Data of every shape and scale that is asked about."""
    return st.builds(
        Data,
        rows=st.one_of(st.integers(1, 8), st.integers(1, most)),
        columns=st.one_of(st.integers(1, 4), st.integers(1, 12)),
        seed=st.integers(0, 2**32 - 1),
        scale=st.sampled_from(("unit", "columns", "rows", "1e-6", "1e6")),
        odd=st.sampled_from(("none", "constant", "zero", "duplicated", "binary", "repeated", "mixed")),
        answers=st.sampled_from(("random", "separable", "constant", "huge")),
        weighing=st.sampled_from(("none", "none", "some", "any")),
        storage=st.sampled_from(storages),
    )


@dataclass(frozen=True)
class Prior:
    """Where a run begins, made from a seed."""

    variance: float
    spread: bool
    away: float
    seed: int

    def gaussian(self, dim: int) -> FactorialGaussian:
        rng = np.random.default_rng(self.seed)
        uneven = 10.0 ** rng.uniform(-3.0, 3.0, dim) if self.spread else np.ones(dim)
        variance = self.variance * uneven
        return FactorialGaussian.from_moments(self.away * np.sqrt(variance) * rng.standard_normal(dim), variance)


priors = st.builds(
    Prior,
    variance=st.sampled_from((1e-6, 1.0, 25.0, 1e6)),
    spread=st.booleans(),
    away=st.sampled_from((0.0, 0.0, 1.0, 100.0)),
    seed=st.integers(0, 2**32 - 1),
)


def options(
    sites: tuple[str, ...] = SITES,
    starts: tuple[Any, ...] = (None, "mode", "sites"),
    schemes: tuple[str, ...] = tuple(NAMES),
) -> Any:
    """Draw options of `cavity.fit`, as a dictionary; ``start`` may be a word for sites still to be made."""

    def together(sites: str, max_iter: int, start: Any, **others: Any) -> dict[str, Any]:
        single = sites == "none"
        others |= {"sites": sites, "max_iter": 1 if single else max_iter, "start": start if sites == "own" else None}
        return others

    return st.builds(
        together,
        sites=st.sampled_from(sites),
        scheme=st.sampled_from(schemes),
        max_iter=st.integers(1, 4),
        start=st.sampled_from(starts),
        beta=st.sampled_from((1.0, 1.0, 1e-6, 1e-3, 30.0, 1e6, (0.1, 1.0, 10.0), (1e6, 1.0))),
        power=st.sampled_from((1.0, 1.0, 0.5, 2.0)),
        damping=st.sampled_from((1.0, 1.0, 0.5, 0.05)),
        negative=st.sampled_from(("keep", "floor", "skip")),
        order=st.sampled_from(("cyclic", "shuffled")),
        tol=st.sampled_from((1e-3, 0.1, 0.0)),
        safeguards=st.booleans(),
    )


def some_losses(kinds: tuple[Any, ...] = SHIPPED + OWN) -> st.SearchStrategy[Any]:
    """Losses with their defaults, or with a scale of their own; those that are in [0, 1] keep theirs."""

    def scaled(kind: Any, scale: float) -> Any:
        return kind() if kind in (losses.Quantile, losses.Poisson) else kind(scale)

    return st.builds(scaled, st.sampled_from(kinds), st.sampled_from((1.0, 1.0, 1e-3, 1e3)))


# Black boxes: what a cost may do, as functions of points ``(n, d)`` and a centre.

COSTS = {
    "bowl": lambda t, c: 0.5 * np.sum((t - c) ** 2, axis=1),
    "cone": lambda t, c: np.sum(np.abs(t - c), axis=1),
    "steps": lambda t, c: np.floor(np.sum(np.abs(t - c), axis=1)),
    "waves": lambda t, c: np.sum(np.sin(3.0 * (t - c)) + 0.01 * (t - c) ** 2, axis=1),
    "curved": lambda t, c: np.sum(t - c, axis=1) ** 2 + 10.0 * np.sum(t[:, :1] ** 2 - t, axis=1) ** 2,
    "flat": lambda t, c: np.zeros(len(t)),
    "fenced": lambda t, c: np.sum(np.sqrt(c + 2.0 - t), axis=1),
    "walled": lambda t, c: np.where(np.max(t - c, axis=1) > 1.0, np.inf, np.sum((t - c) ** 2, axis=1)),
    "sliding": lambda t, c: np.sum(t - c, axis=1),
    "hill": lambda t, c: -np.sum((t - c) ** 2, axis=1),
    "falling": lambda t, c: -np.exp(np.sum(t - c, axis=1)),
    "pole": lambda t, c: np.log(np.sum((t - c) ** 2, axis=1)),
}


class Box:
    """A cost; from call ``first`` to ``last`` it is NaN, or raises. Call 0 is the check at the start."""

    def __init__(self, kind: str, center: Any, size: float, fault: str, first: int, length: int) -> None:
        self.kind, self.center, self.size, self.fault = kind, center, size, fault
        self.first, self.last, self.calls = first, first + length, -1

    def __call__(self, points: Any) -> Any:
        self.calls += 1
        if self.first <= self.calls < self.last:
            if self.fault == "raises":
                raise ArithmeticError("the box is broken")
            if self.fault == "nan":
                return np.full(len(points), np.nan)
        return self.size * COSTS[self.kind](points, self.center)


@dataclass(frozen=True)
class Boxes:
    """A list of black boxes, made from a seed; those that are faulty are built again for every run."""

    kinds: tuple[str, ...]
    dim: int
    seed: int
    size: float
    fault: str
    first: int
    length: int

    def factors(self) -> list[CostFactor]:
        rng = np.random.default_rng(self.seed)
        made = []
        for kind in self.kinds:
            count = int(rng.integers(0, self.dim + 1))
            own = np.sort(rng.choice(self.dim, count, replace=False)) if count and rng.uniform() < 0.5 else None
            center = rng.standard_normal(self.dim if own is None else own.size)
            fault = self.fault if rng.uniform() < 0.5 else "none"
            box = Box(kind, center, self.size, fault, self.first, self.length)
            made.append(CostFactor(box, self.dim, coordinates=own, vectorized=True))
        return made


def boxes(faults: tuple[str, ...]) -> st.SearchStrategy[Boxes]:
    """A few black boxes."""
    return st.builds(
        Boxes,
        kinds=st.lists(st.sampled_from(tuple(COSTS)), min_size=1, max_size=4).map(tuple),
        dim=st.integers(1, 5),
        seed=st.integers(0, 2**32 - 1),
        size=scales,
        fault=st.sampled_from(faults),
        first=st.integers(1, 12),
        length=st.integers(1, 4),
    )


# What must hold of a result.


def total_cost(factors: Any, prior: FactorialGaussian, point: Any, beta: float) -> float:
    """Beta times all costs and the prior's term, with nothing but what factors offer."""
    with np.errstate(all="ignore"):
        costs = [f.cost((point if f.coordinates is None else point[f.coordinates])[None])[0] for f in factors]
        return float(beta * np.sum(costs) + prior_cost(prior, point))


def check_result(result: Result, factors: Any, prior: FactorialGaussian, given: dict[str, Any]) -> None:
    """Finite, proper, whole, and true about itself."""
    posterior, trace, loops = result.posterior, result.trace, given["max_iter"]
    assert posterior.is_proper
    for values in (result.mean, result.variance, result.std):
        assert np.all(np.isfinite(values))
    with np.errstate(over="ignore"):
        squares = np.sum(result.mean * posterior.shift)
    if np.isnan(result.log_evidence):  # there is none
        assert result.status is Status.DIVERGED or (trace.refused and np.array_equal(result.mean, prior.mean))
    else:
        assert np.isfinite(result.log_evidence) or squares == result.log_evidence == np.inf
    assert np.all(result.variance > 0.0)
    assert str(result)
    check_sites(result, factors, prior, given["sites"])
    # Counts of the trace.
    assert 1 <= len(trace.changes) == len(trace.betas) <= loops
    assert trace.updates == len(factors) * len(trace.changes)
    of_factors = sum(count for (factor, _), count in trace.refusals.items() if factor >= 0)
    assert of_factors <= trace.updates
    assert all(-1 <= factor < len(factors) for factor, _ in trace.refusals)
    check_status(result, given)


def check_status(result: Result, given: dict[str, Any]) -> None:
    """The status says no more than what happened."""
    trace, status, single = result.trace, result.status, given["sites"] == "none"
    reasons = {why for _, why in trace.refusals}
    if status is Status.CONVERGED:
        assert not single
        assert trace.changes[-1] < given["tol"]
    elif status is Status.SINGLE_PASS:
        assert single
    elif status is Status.MAX_ITER:
        assert not single
        assert len(trace.changes) == given["max_iter"]
        assert given["safeguards"] or not trace.changes[-1] < given["tol"] or len(set(trace.betas)) > 1
    else:
        wanted = {
            Status.NONFINITE: {Refusal.NONFINITE},
            Status.NEGATIVE: {Refusal.NEGATIVE},
            Status.DIVERGED: {Refusal.DIVERGED},
            Status.IMPROPER_CAVITY: {Refusal.IMPROPER_CAVITY, Refusal.IMPROPER_POSTERIOR, Refusal.RESCALING},
        }
        assert reasons & wanted[status]
    if len(trace.changes) == 1 and reasons:
        assert not status.is_success
    assert Refusal.NEGATIVE not in reasons or given["negative"] == "skip"
    assert Refusal.DIVERGED not in reasons or given["safeguards"]


def check_sites(result: Result, factors: Any, prior: FactorialGaussian, sites: str) -> None:
    """Sites are finite, and with the prior they make up the posterior, to the rounding of the sum."""
    assert all(site.is_finite for site in result.sites)
    if sites == "none":
        assert len(result.sites) == 0
        return
    assert len(result.sites) == (len(factors) if sites == "own" else 1)
    if sites != "own":
        return
    shift, precision = prior.shift.copy(), prior.precision.copy()
    sizes = np.abs(shift), np.abs(precision)
    for factor, site in zip(factors, result.sites, strict=True):
        own = slice(None) if factor.coordinates is None else factor.coordinates
        shift[own] += site.shift
        precision[own] += site.precision
        sizes[0][own] += np.abs(site.shift)
        sizes[1][own] += np.abs(site.precision)
    assert np.all(np.abs(shift - result.posterior.shift) <= ROUNDING * sizes[0] + 1e-300)
    assert np.all(np.abs(precision - result.posterior.precision) <= ROUNDING * sizes[1])


def check_guarded(result: Result, factors: Any, prior: FactorialGaussian, given: dict[str, Any]) -> None:
    """A guarded run ends no higher than the prior mean, or says that it had to go back and could not go low enough."""
    if not given["safeguards"] or given["sites"] == "none":
        return
    beta = result.trace.betas[-1]
    bound = total_cost(factors, prior, prior.mean, beta)
    if not np.isfinite(bound):
        return
    if result.status is Status.DIVERGED and (given["start"] is not None or len(set(result.trace.betas)) > 1):
        return
    assert total_cost(factors, prior, result.mean, beta) <= bound + LEEWAY * (1.0 + abs(bound))


def check_same(one: Result, other: Result) -> None:
    """Bit for bit."""
    assert one.posterior == other.posterior
    assert list(one.sites) == list(other.sites)
    assert one.status is other.status
    assert str(one.trace) == str(other.trace)
    assert np.array_equal(one.trace.changes, other.trace.changes, equal_nan=True)


def snapshot(*values: Any) -> list[Any]:
    """Copies of arrays, to see later that nobody wrote on them."""
    return [v.copy() if v is not None else None for v in values]


def check_untouched(values: list[Any], before: list[Any]) -> None:
    """Nobody wrote on them."""
    for now, then in zip(values, before, strict=True):
        if now is None:
            continue
        parts = ("data", "indices", "indptr") if sparse.issparse(now) else (None,)
        for part in parts:
            a, b = (now, then) if part is None else (getattr(now, part), getattr(then, part))
            assert np.array_equal(a, b)
