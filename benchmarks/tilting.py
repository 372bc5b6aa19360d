"""Time per row of tilted moments, as arrays and one by one compiled, by loss and width of the Gaussian.

Run ``python -m benchmarks.tilting``. Processor time of one thread, best of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from benchmarks.bars import markdown
from cavity import losses
from cavity.kernels import moments as compiled
from cavity.moments import tilts

WIDTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 50.0)
SIZES = (200, 1000, 5000)
TARGETS = {"signs": (-1.0, 1.0), "reals": (-1.5, 2.0), "counts": (0.0, 3.0), "positives": (0.2, 3.0)}
REPEATS = 7
SECONDS = 0.01  # of one repeat, at least


@njit
def one_by_one(loss, y, mean, variance, rules, out):
    for i in range(y.size):
        log_mass, shift, ratio = compiled.tilt(loss, y[i], mean[i], variance[i], 1.0, rules)
        out[0, i], out[1, i], out[2, i] = log_mass, shift, ratio


def nanoseconds_per_row(work: Callable[[], object], n: int) -> float:
    work()
    best = float("inf")
    for _ in range(REPEATS):
        count, start = 0, time.process_time()
        while time.process_time() - start < SECONDS:
            work()
            count += 1
        best = min(best, (time.process_time() - start) / count)
    return 1e9 * best / n


def random_rows(loss: Any, width: float, n: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.choice(TARGETS[loss.targets], n) + (loss.targets == "reals") * rng.standard_normal(n)
    mean = np.minimum(width * rng.standard_normal(n) + rng.standard_normal(n), 20.0)
    return y, mean, width * width * rng.uniform(0.7, 1.3, n)


def times(loss: Any, n: int) -> list[float]:
    rows = [random_rows(loss, width, n) for width in WIDTHS]
    return [nanoseconds_per_row(lambda row=row: tilts(loss, *row), n) for row in rows]


def compiled_times(loss: Any, n: int) -> list[float]:
    rows, rules, out = [random_rows(loss, width, n) for width in WIDTHS], compiled.rules_for(8), np.empty((3, n))
    return [nanoseconds_per_row(lambda row=row: one_by_one(loss, *row, rules, out), n) for row in rows]


def main() -> None:
    rows = []
    for name in losses.__all__:
        loss = getattr(losses, name)()
        named = [(f"arrays of {n}", times(loss, n)) for n in SIZES] + [("compiled", compiled_times(loss, 1000))]
        rows += [(name, form, *(f"{t:.0f}" for t in found)) for form, found in named]
    print(markdown(("loss", "form", *(f"ns, sd {width:g}" for width in WIDTHS)), rows))


if __name__ == "__main__":
    main()
