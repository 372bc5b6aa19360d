"""EP by blocks on random problems: does it converge, and to the same posterior as a longer run?

Run ``python -m benchmarks.fuzz_blocks [--cases 2000] [--seed 0]``: designs of random size and rank, rare columns,
columns of very different scale, repeated rows, separable labels, heavy-tailed targets, prior variances of 1 to 1000.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import cavity
from benchmarks.bars import markdown
from cavity import FactorialGaussian, LinearFactor, losses
from reference.problems import FloatArray

LOSSES: tuple[Any, ...] = (
    losses.Logistic(),
    losses.Hinge(),
    losses.QuasiZeroOne(),
    losses.Absolute(),
    losses.Huber(),
    losses.Quantile(0.9),
    losses.Poisson(),
)
# A run agrees with a longer one if no mean is so many standard deviations away and no deviation by such a share: what
# the two tolerances allow.
APART, LONG_TOL, LONG_LOOPS = 0.05, 1e-5, 3000


class Case(NamedTuple):
    """A random problem."""

    number: int
    loss: Any
    X: FloatArray
    y: FloatArray
    prior_variance: float

    def fit(self, **options: Any) -> cavity.Result:
        """Fit it, options as those of `cavity.fit`."""
        prior = FactorialGaussian.from_moments(np.zeros(self.X.shape[1]), self.prior_variance)
        factors = LinearFactor.batches(self.loss, self.X, self.y, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return cavity.fit(factors, prior, **{"covariance": "full", "tol": 0.01, **options})


class Verdict(NamedTuple):
    """How one case went; ``apart`` is None where the longer run did not converge either."""

    case: Case
    status: str
    loops: int
    apart: float | None

    @property
    def is_good(self) -> bool:
        """Whether it converged, and to the same as the longer run."""
        return self.status == "CONVERGED" and self.apart is not None and self.apart <= APART


def cases(count: int, seed: int) -> Iterator[Case]:
    """Random problems; each has a generator of its own, so that any of them can be made again."""
    for number in range(count):
        yield case(number, seed)


def case(number: int, seed: int = 0) -> Case:
    """One of them."""
    rng = np.random.default_rng([seed, number])
    n, d = int(10.0 ** rng.uniform(1.3, 3.4)), int(10.0 ** rng.uniform(0.0, 1.8))
    rank = max(1, int(d * rng.uniform(0.2, 1.0)))
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d)) / np.sqrt(rank)
    X += rng.choice([0.01, 0.1, 1.0]) * rng.standard_normal((n, d))
    if rng.random() < 0.4:
        X *= rng.random((n, d)) < rng.choice([0.02, 0.2])
    if rng.random() < 0.4:
        X *= 10.0 ** rng.uniform(-2.0, 2.0, d)
    if rng.random() < 0.2:
        X = X[rng.integers(n, size=n)]
    loss = LOSSES[int(rng.integers(len(LOSSES)))]
    theta = rng.standard_normal(d) * rng.choice([0.1, 1.0, 5.0])
    if loss.targets == "counts":
        X, theta = X / np.maximum(1.0, np.max(np.abs(X), axis=0)), theta / np.sqrt(d)
    y = _targets(loss, X @ theta, rng)
    return Case(number, loss, np.ascontiguousarray(X), y, float(rng.choice([1.0, 25.0, 1e3])))


def _targets(loss: Any, z: FloatArray, rng: np.random.Generator) -> FloatArray:
    if loss.targets == "signs":
        noise = rng.logistic(size=z.size) if rng.random() < 0.8 else 0.0  # without noise the labels are separable
        return np.where(z + noise > 0.0, 1.0, -1.0)
    if loss.targets == "counts":
        return rng.poisson(np.exp(np.clip(z, -5.0, 5.0))).astype(np.float64)
    return z + rng.standard_t(2.0, size=z.size) * rng.choice([0.1, 1.0, 10.0])


def judged(problem: Case) -> Verdict:
    """Fit by default and for long, and compare."""
    found, longer = problem.fit(), problem.fit(tol=LONG_TOL, max_iter=LONG_LOOPS)
    apart = None
    if longer.status.name == "CONVERGED":
        means = np.abs(found.mean - longer.mean) / longer.std
        apart = float(max(np.max(means), np.max(np.abs(found.std / longer.std - 1.0))))
    return Verdict(problem, found.status.name, len(found.trace.changes), apart)


def summary(verdicts: list[Verdict]) -> str:
    """One line per loss."""
    lines = []
    for loss in LOSSES:
        some = [v for v in verdicts if v.case.loss is loss]
        if not some:
            continue
        converged = [v for v in some if v.status == "CONVERGED"]
        loops = [v.loops for v in converged] or [0]
        apart = [v.apart for v in converged if v.apart is not None]
        lines.append(
            (
                type(loss).__name__,
                f"{len(some)}",
                f"{len(converged)}",
                f"{sum(v.is_good for v in some)}",
                f"{max(apart, default=np.nan):.3f}",
                f"{np.median(loops):.0f}, {np.quantile(loops, 0.95):.0f}, {max(loops)}",
            )
        )
    header = ("loss", "cases", "converged", "and agree", "furthest apart, sd", "loops: median, 95 %, most")
    return markdown(header, lines)


def main() -> int:
    """Print what failed as it comes, then the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_blocks", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    verdicts = []
    for problem in cases(options.cases, options.seed):
        verdict = judged(problem)
        verdicts.append(verdict)
        if not verdict.is_good:
            shape = f"{problem.X.shape[0]} x {problem.X.shape[1]}"
            print(
                f"case {problem.number}: {type(problem.loss).__name__} {shape}, prior variance "
                f"{problem.prior_variance:g}: {verdict.status}, {verdict.loops} loops, apart {verdict.apart}",
                flush=True,
            )
    print(summary(verdicts))
    convex = [v for v in verdicts if not isinstance(v.case.loss, losses.QuasiZeroOne)]
    return int(not all(v.is_good for v in convex))


if __name__ == "__main__":
    raise SystemExit(main())
