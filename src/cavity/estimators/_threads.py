"""How many threads linear algebra may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

# Below so many columns a block is too small to share between threads, and waiting for each other costs more.
_WORTH_THREADS = 300


@cache
def _controller() -> ThreadpoolController:
    """Find the thread pools once: looking for them takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def threads_for(columns: int) -> Iterator[None]:
    """Keep BLAS to one thread where matrices are small."""
    if columns >= _WORTH_THREADS:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
