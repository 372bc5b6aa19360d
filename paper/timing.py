"""Times of EP updates: `cavity.fit` without a callback, the whole of it divided by its updates, the best of a few."""

from __future__ import annotations

from cavity.schemes._protocol import Scheme
from paper.curves import fit
from paper.experiment import Json
from reference.problems import Problem
from reference.timing import best_of


def update_time(
    problem: Problem,
    scheme: Scheme,
    updates: int | None = None,
    batch_size: int | None = None,
    compiled: bool = False,
) -> Json:
    """Milliseconds per update; the data are cut and the code is compiled before the clock starts.

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
