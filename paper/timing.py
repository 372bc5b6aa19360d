"""Times of EP updates: `cavity.fit` without a callback, the whole of it divided by its updates, the best of a few."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from cavity.schemes._protocol import Scheme
from paper.curves import fit
from paper.experiment import Json
from paper.problems import Problem

_REPEATS, _BUDGET = 5, 0.25


def update_time(
    problem: Problem,
    scheme: Scheme,
    updates: int | None = None,
    batch_size: int | None = None,
    compiled: bool = False,
) -> Json:
    """Milliseconds an update; the data are cut and the code is compiled before the clock starts.

    Parameters
    ----------
    problem, scheme
        What to time.
    updates
        Take only so many mini-batches; None for all.
    batch_size
        Another size of the mini-batches.
    compiled
        Whether `fit` may choose its compiled loops, as it does by itself; otherwise the plain loops in NumPy.
    """
    fit(problem, scheme, problem.batches(2, batch_size), compiled=compiled)
    batches = problem.batches(updates, batch_size)
    seconds, repeats = best_of(lambda: fit(problem, scheme, batches, compiled=compiled))
    count = problem.loops * len(batches)
    return {"ms": 1e3 * seconds / count, "updates": count, "repeats": repeats}


def best_of(function: Callable[[], object], budget: float = _BUDGET) -> tuple[float, int]:
    """Least time of up to five calls, ended once the budget of seconds is spent; and how many there were."""
    best, spent, repeats = float("inf"), 0.0, 0
    while repeats < _REPEATS and (repeats == 0 or spent < budget):
        begin = perf_counter()
        function()
        elapsed = perf_counter() - begin
        best, spent, repeats = min(best, elapsed), spent + elapsed, repeats + 1
    return best, repeats
