"""A logistic model with random effects of one or two factors: its simulation, and one fit in a process of its own.

`python -m benchmarks.models_crossed rows first second seed` prints the outcome as JSON; there is no second factor where
it has no levels. A process of its own tells the peak of memory, tables included.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any, NamedTuple

if __name__ == "__main__":  # one thread: set before any library reads it
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"

import numpy as np
import pandas as pd
from scipy import stats

from cavity import EPClassifier
from reference.problems import FloatArray

FEATURES, INTERCEPT = 5, -0.5
# Standard deviations of the effects of the first and the second factor, and of the coefficients.
DEVIATIONS, SLOPES = (0.7, 1.0), 0.5
LEVEL = 0.9
HALF = float(stats.norm.ppf(0.5 + LEVEL / 2.0))


class Simulated(NamedTuple):
    """Rows with their levels, labels 0 and 1, and the true effects of every factor."""

    x: FloatArray
    codes: dict[str, Any]
    y: Any
    effects: dict[str, FloatArray]

    def table(self) -> pd.DataFrame:
        """The first factor as strings, the second of a categorical type."""
        table = pd.DataFrame(self.x, columns=[f"x{k}" for k in range(FEATURES)])
        for name, codes in self.codes.items():
            names = np.array([f"{name}{k:07d}" for k in range(self.effects[name].size)], dtype=object)
            table[name] = names[codes] if name == "first" else pd.Categorical.from_codes(codes, names)
        return table


class Outcome(NamedTuple):
    """One fit: seconds, memory in GB, and for every factor the variance found, the mean square, and the coverage.

    ``scatter`` is the standard error of the variance around the mean square, as a share, that no estimate avoids.
    """

    seconds: float
    gigabytes: float
    loops: int
    converged: bool
    variances: dict[str, float]
    mean_squares: dict[str, float]
    covered: dict[str, float]
    scatter: dict[str, float]


def titled(shape: tuple[int, int, int]) -> str:
    """Rows and levels for people."""
    return f"{shape[0]:,} rows, {shape[1]:,} levels" + (f" crossed with {shape[2]:,}" if shape[2] else "")


def simulate(rows: int, first: int, second: int, seed: int) -> Simulated:
    """Levels of the first factor are about as frequent; those of the second are not: the first ones are frequent."""
    rng = np.random.default_rng(seed)
    codes, effects = {"first": rng.integers(first, size=rows)}, {"first": DEVIATIONS[0] * rng.standard_normal(first)}
    if second:
        codes["second"] = np.minimum((second * rng.random(rows) ** 1.5).astype(int), second - 1)
        effects["second"] = DEVIATIONS[1] * rng.standard_normal(second)
    x = rng.standard_normal((rows, FEATURES))
    z = x @ (SLOPES * rng.standard_normal(FEATURES)) + INTERCEPT + sum(effects[name][codes[name]] for name in codes)
    return Simulated(x, codes, (z + rng.logistic(size=rows) > 0.0).astype(int), effects)


def effects_of(model: EPClassifier) -> dict[str, tuple[FloatArray, FloatArray, Any]]:
    """Means and deviations of the effects of every factor, and the numbers of their levels."""
    found, start = {}, FEATURES
    for name, levels in model.categories_.items():
        part = slice(start, start + len(levels))
        numbers = np.array([int(level.removeprefix(name)) for level in levels])
        found[name] = model.coef_[0, part], model.coef_std_[0, part], numbers
        start += len(levels) + 1  # one more for levels that are not known
    return found


def covered(data: Simulated, model: EPClassifier) -> dict[str, float]:
    """Share of the effects of every factor that lie in their intervals."""
    return {
        name: float(np.mean(np.abs(data.effects[name][numbers] - mean) <= HALF * std))
        for name, (mean, std, numbers) in effects_of(model).items()
    }


def scatter(model: EPClassifier) -> dict[str, float]:
    r"""Standard error of a variance around the mean square of its k effects, as a share of it: a lower bound.

    The log evidence has the curvature :math:`\tfrac12 \sum_j \gamma_j^2` in the logarithm of the variance, where
    :math:`\gamma_j = 1 - s_j^2 / v` says how well the effect j is known, if its rows amount to a Gaussian; labels say
    less. The mean square itself has the variance 2 / k.
    """
    found = {}
    for name, (_, std, _) in effects_of(model).items():
        known = 1.0 - std**2 / model.prior_variance_[name]
        found[name] = float(np.sqrt(2.0 / np.sum(known**2) - 2.0 / std.size))
    return found


def run(rows: int, first: int, second: int, seed: int) -> Outcome:
    """Fit once in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.models_crossed", *(str(n) for n in (rows, first, second, seed))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Outcome(*json.loads(done.stdout))


def main() -> None:
    """Simulate, fit, print."""
    data = simulate(*(int(word) for word in sys.argv[1:5]))
    table = data.table()
    start = time.perf_counter()
    model = EPClassifier().fit(table, data.y)
    seconds = time.perf_counter() - start
    unit = 1e9 if sys.platform == "darwin" else 1e6  # bytes there, kB elsewhere
    outcome = Outcome(
        seconds,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
        model.n_iter_,
        bool(model.status_.is_success),
        {name: model.prior_variance_[name] for name in data.codes},
        {name: float(np.mean(effects**2)) for name, effects in data.effects.items()},
        covered(data, model),
        scatter(model),
    )
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
