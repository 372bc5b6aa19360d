"""One entry on one task, in a process of its own: `python -m benchmarks.comparison.child TASK NUMBER SECONDS [quick]`.

Prints seconds, score, coverage and memory as JSON. It ends itself where fits take longer than SECONDS each.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # one thread: set before any library reads it
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"

from benchmarks.comparison import nuts
from benchmarks.comparison.core import Entry, Prediction, Task, covered
from benchmarks.comparison.tasks import TASKS

# Fits are repeated until so many more are done or so many seconds are spent: the best time counts.
REPEATS, BUDGET = 5, 2.0
# What the process returns when it was stopped.
STOPPED = 124


def measure(task: Task, entry: Entry, quick: bool, limit: float | None = None) -> dict[str, float | None]:
    """Work on all data sets of the task: seconds of one, and means of the scores."""
    for module in entry.needs:
        importlib.import_module(module)
    problems = task.load(quick)
    if entry.prepare is not None:
        entry.prepare(problems[0])
    if limit is not None:
        _stop_after(limit * len(problems))
    times, scores, coefficients, targets = [], [], [], []
    before = _start_of_peak()
    for problem in problems:
        prediction, seconds = _timed(lambda problem=problem: entry.solve(problem))
        times.append(seconds)
        scores.append(task.score(problem, prediction.held_out))
        coefficients.append(covered(prediction.coefficients, problem.truth))
        targets.append(covered(prediction.targets, problem.y_new))
    memory = _peak() - before
    if not quick:
        times = [_best(lambda p=p: entry.solve(p), first) for first, p in zip(times, problems, strict=True)]
    return {
        "seconds": sum(times) / len(times),
        "score": sum(scores) / len(scores),
        "coefficients": _mean(coefficients),
        "targets": _mean(targets),
        "megabytes": memory / 1e6,
    }


def _stop_after(seconds: float) -> None:
    """End the process once it has used so much processor time. A limit of the system would make that clock coarse."""
    last = time.process_time() + seconds

    def watch() -> None:
        while time.process_time() < last:
            time.sleep(0.5)
        os._exit(STOPPED)

    threading.Thread(target=watch, daemon=True).start()


def _timed(work: Callable[[], Prediction]) -> tuple[Prediction, float]:
    """Processor time: with one thread it is the time on a quiet machine, on a busy one it is still nearly that."""
    begin = time.process_time()
    answer = work()
    return answer, time.process_time() - begin


def _best(work: Callable[[], Prediction], first: float) -> float:
    """The best of several more calls, unless the first took long already."""
    times, spent = [], first
    while len(times) < REPEATS and spent < BUDGET:
        times.append(_timed(work)[1])
        spent += times[-1]
    return min(times, default=first)


def _mean(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def _start_of_peak() -> float:
    """Bytes resident now. On Linux the peak counts from here, elsewhere from the start of the process."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    """Most bytes resident so far."""
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # bytes on macOS


def main() -> None:
    """Measure and print."""
    name, number, limit, *rest = sys.argv[1:]
    task = TASKS[name]
    warnings.simplefilter("ignore")
    if rest == ["quick"]:
        nuts.DRAWS.update(draws=20, tune=20)
    print(json.dumps(measure(task, task.entries[int(number)], rest == ["quick"], float(limit))))


if __name__ == "__main__":
    main()
