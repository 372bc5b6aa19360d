"""How many threads linear algebra may use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from cavity.gaussians import Analysis


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looking for thread pools takes milliseconds


def threads_for(shape: tuple[int, int], analysis: Analysis | None = None) -> AbstractContextManager[Any]:
    """Keep BLAS to one thread unless rows and columns are many; a single row is not worth the 50 µs that this takes.

    With a sparse precision matrix, of which there is an analysis, its dense corner must be large.
    """
    rows, columns = shape
    if analysis is not None and analysis.pattern is not None:
        # Measured on two cores: with a corner of 200 columns a fit took 0.61 s with default threads and 0.17 s with
        # one, with one of 1,100 columns 2.1 s and 1.9 s.
        large = analysis.pattern.elimination.layout.corner >= 2000
    else:
        # Measured on two cores. With fewer rows than columns, 300 rows of 600 columns took 0.125 s with default
        # threads, 0.088 s with one.
        large = columns >= 300 and rows >= columns
    if rows == 1 or large:
        return nullcontext()
    limits: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limits
