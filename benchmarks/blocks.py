"""Time of EP by blocks: against the mode alone, with one thread and with all, in streams, sparse, and in a new process.

Every time is taken in a process of its own, so that the number of threads can be set before any library reads it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from benchmarks.bars import Row, markdown
from benchmarks.data import REAL, load
from cavity import EPClassifier
from reference.problems import FloatArray
from reference.timing import best_times

PRIOR_VARIANCE = 25.0
SHAPES = ((300, 600), (1000, 1000), (5000, 500), (20_000, 300), (1_000_000, 20))
QUICK_SHAPES = ((300, 60), (2000, 20))
LOSSES = ("logistic", "hinge")
CROSSED, CROSSED_QUICK = (100_000, 1000, 10_000), (5000, 100, 1000)
# Times the time of newton-cholesky: on the two large sets, and in the geometric mean over the shapes.
LARGE_BAR, SHAPE_BAR = 5.0, 3.0
# What noise of a measurement may add where two times are to be equal, and seconds of the sparse problem at most.
LEEWAY, SPARSE_SECONDS = 1.1, 10.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
HEADER = ("data", "loss", "one thread, s", "default threads, s", "newton-cholesky, one thread, s", "times")


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and a table of the times."""
    repeats = 1 if quick else 5
    names = ["haberman"] if quick else ["census", "bank"]
    shapes = [f"{n}x{d}" for n, d in (QUICK_SHAPES if quick else SHAPES)]
    rows, cells, factors = [], [], []
    for name in (*names, *shapes):
        for loss in LOSSES:
            one, every = (
                _child(1, "fit", name, loss, str(repeats)),
                _child(None, "alone", name, loss, str(repeats)),
            )
            factor = one["ours"] / one["peer"]
            cells.append(
                (name, loss, f"{one['ours']:.3f}", f"{every['ours']:.3f}", f"{one['peer']:.3f}", f"{factor:.2f}")
            )
            title = f"{name}, {loss}, one thread"
            if name in names:
                found = f"{one['ours']:.3f} s against {one['peer']:.3f} s: {factor:.2f} x"
                rows.append(Row(title, found, f"at most {LARGE_BAR:g} x newton-cholesky", factor <= LARGE_BAR))
            elif loss == "logistic":
                factors.append(factor)
            rows.append(_threads_row(f"{name}, {loss}", one["ours"], every["ours"]))
    mean = float(np.exp(np.mean(np.log(factors))))
    found = f"{mean:.2f} x ({', '.join(f'{f:.2f}' for f in factors)})"
    bar = f"at most {SHAPE_BAR:g} x newton-cholesky in the geometric mean"
    rows.append(Row(f"{', '.join(shapes)}, logistic, one thread", found, bar, mean <= SHAPE_BAR))
    for name in names:
        one, every = (_child(threads, "stream", name, "logistic", str(repeats)) for threads in (1, None))
        rows.append(_threads_row(f"{name}, a stream in calls of 100 rows", one["ours"], every["ours"]))
    rows += [_crossed_row(CROSSED_QUICK if quick else CROSSED), *_first_process(repeats)]
    return rows, {"blocks-times": markdown(HEADER, cells)}


def _threads_row(title: str, one: float, every: float) -> Row:
    found = f"{every:.3f} s against {one:.3f} s"
    return Row(f"{title}: default threads", found, "never slower than one thread", every <= LEEWAY * one)


def _crossed_row(sizes: tuple[int, int, int]) -> Row:
    found = _child(None, "crossed", *map(str, sizes))
    measured = f"{found['seconds']:.1f} s, {found['loops']:.0f} loops, {found['plan']}"
    title = f"{sizes[0]:,} x {sizes[1] + sizes[2] + 5 + 1:,}, two crossed factors and 5 numbers"
    return Row(title, measured, f"at most {SPARSE_SECONDS:g} s", found["seconds"] <= SPARSE_SECONDS)


def _child(threads: int | None, *arguments: str) -> dict[str, Any]:
    """What this module prints when it is run with these arguments and so many threads; the default number if None."""
    environment = {name: value for name, value in os.environ.items() if name not in _THREADS}
    if threads is not None:
        environment |= dict.fromkeys(_THREADS, str(threads))
    command = [sys.executable, "-m", "benchmarks.blocks", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# What runs in the processes.


def data_of(name: str) -> tuple[FloatArray, FloatArray]:
    """A set of the paper, or random columns of a shape like ``300x600`` with labels of a logistic model."""
    if name in REAL:
        data = load(name)
        return data.X, data.y
    n, d = map(int, name.split("x"))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, np.where(X @ rng.standard_normal(d) / np.sqrt(d) + rng.logistic(size=n) > 0.0, 1.0, -1.0)


def fit(name: str, loss: str, repeats: str) -> dict[str, float]:
    """Seconds of ours with the prior variance fixed, and of the mode with the same prior."""
    X, y = data_of(name)
    works: dict[str, Callable[[], object]] = {
        "ours": lambda: EPClassifier(loss, prior_variance=PRIOR_VARIANCE).fit(X, y),
        "peer": lambda: LogisticRegression(C=PRIOR_VARIANCE, solver="newton-cholesky").fit(X, y),
    }
    return best_times(works, int(repeats))


def alone(name: str, loss: str, repeats: str) -> dict[str, float]:
    """Seconds of ours by itself: threads that a peer leaves waiting take time from what comes after it."""
    X, y = data_of(name)
    return best_times({"ours": lambda: EPClassifier(loss, prior_variance=PRIOR_VARIANCE).fit(X, y)}, int(repeats))


def stream(name: str, loss: str, repeats: str) -> dict[str, float]:
    """Seconds of a stream in calls of 100 rows."""
    X, y = data_of(name)

    def work() -> None:
        model = EPClassifier(loss)
        for i in range(0, y.size, 100):
            model.partial_fit(X[i : i + 100], y[i : i + 100], classes=[-1.0, 1.0])

    return best_times({"ours": work}, int(repeats))


def crossed(rows: str, first: str, second: str) -> dict[str, Any]:
    """Seconds of a fit to two crossed factors of many levels, and five numbers."""
    n, levels = int(rows), (int(first), int(second))
    rng = np.random.default_rng(0)
    parts = [
        sparse.csr_array((np.ones(n), rng.integers(k, size=n), np.arange(n + 1)), shape=(n, k)) for k in levels
    ]  # fmt: skip
    X = sparse.csr_array(sparse.hstack([*parts, rng.standard_normal((n, 5))]))
    y = np.where(X @ rng.standard_normal(X.shape[1]) + rng.logistic(size=n) > 0.0, 1.0, -1.0)
    start = time.perf_counter()
    model = EPClassifier(prior_variance=1.0).fit(X, y)
    return {"seconds": time.perf_counter() - start, "loops": model.n_iter_, "plan": model.plan_.covariance}


# A new process.

_FRESH = """
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from cavity import EPClassifier
X, y = load_breast_cancer(return_X_y=True)
EPClassifier().fit(scale(X), y)
"""
_COMPILED = """
import numba.core.event as event
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
with event.install_recorder("numba:compile") as recorder:
    from cavity import EPClassifier
    X, y = load_breast_cancer(return_X_y=True)
    EPClassifier().fit(scale(X), y)
print(len(recorder.buffer))
"""


def _first_process(repeats: int) -> list[Row]:
    """A process with an empty cache against a second one with the same cache, import included; and what it compiled."""
    firsts, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(repeats + 1):
            environment = {**os.environ, "NUMBA_CACHE_DIR": str(Path(folder) / str(k))}
            for times in (firsts, seconds):
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", _FRESH], env=environment, capture_output=True, check=True)
                times.append(time.perf_counter() - start)
    ratio = min(firsts[1:]) / min(seconds[1:])
    done = subprocess.run([sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=True)
    events = int(done.stdout)
    measured = f"{min(firsts[1:]):.2f} s against {min(seconds[1:]):.2f} s: {ratio:.2f} x"
    return [
        Row(
            "an empty cache: import, fit of breast cancer",
            measured,
            "at most 2 x a second",
            ratio <= 2.0,
        ),
        Row("the same: functions compiled", f"{events // 2}", "none", events == 0),
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    work, *arguments = sys.argv[1:]
    print(json.dumps({"fit": fit, "alone": alone, "stream": stream, "crossed": crossed}[work](*arguments)))
