"""Workers: processes with one thread each, that die with their parent and leave Ctrl-C to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import active_children, get_context, parent_process
from time import perf_counter
from typing import Any, NamedTuple

from paper.experiment import Task


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes; whatever happens, none of them outlives the block."""
    before = set(active_children())
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_prepare)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


class Answer(NamedTuple):
    """What came of a task, and how long it took its worker."""

    task: int
    value: Any
    seconds: float


def answers(pool: ProcessPoolExecutor, tasks: list[Task]) -> Iterator[Answer]:
    """Run all tasks, the longest first; gives each answer with the index of its task as it comes."""
    order = sorted(range(len(tasks)), key=lambda i: -tasks[i].weight)
    with _interrupts_held():
        futures: dict[Future[tuple[Any, float]], int] = {pool.submit(_timed, tasks[i]): i for i in order}
    for future in as_completed(futures):
        value, seconds = future.result()
        yield Answer(futures[future], value, seconds)


def answers_alone(pool: ProcessPoolExecutor, tasks: list[Task]) -> Iterator[Answer]:
    """Run one task after the other, nothing beside it."""
    for i, task in enumerate(tasks):
        with _interrupts_held():
            future = pool.submit(_timed, task)
        value, seconds = future.result()
        yield Answer(i, value, seconds)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends; for submitting tasks, which starts processes.

    An interrupt in the middle of a start would leave a worker without its instructions, and it would print a traceback.
    A worker that is still importing would do the same, so it is born with the signal blocked; `_prepare` ignores it.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        # Unblocked first, so that an interrupt that waits still finds the handler that only takes note of it.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def _timed(task: Task) -> tuple[Any, float]:
    begin = perf_counter()
    value = task.function(*task.arguments)
    return value, perf_counter() - begin


def _prepare() -> None:
    """Run in every worker first: no traceback on Ctrl-C, no life without the parent, one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()
    # Two workers with two threads each would only wait for one another, and the paper's times are single-threaded.
    import_module("threadpoolctl").threadpool_limits(1)
