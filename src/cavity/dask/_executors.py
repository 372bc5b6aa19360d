"""Where tasks run: on the workers of a cluster, or in this process by one of Dask's local schedulers.

A *handle* is what a task gives, a future on a cluster and the value itself in this process; tasks take handles as
arguments.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import dask
import dask.system
from distributed import Client, Future, KilledWorker, default_client, wait

# Times that a task is tried, and seconds without any worker after which a fit is given up.
_TRIES, _PATIENCE = 3, 120.0
# Seconds in which a message must reach a worker; else it is sent again.
_SCATTER_SECONDS = 20.0


class LostError(Exception):
    """Results are gone with the worker that held them, and cannot be computed again."""


class Executor(Protocol):
    """Runs tasks."""

    @property
    def threads(self) -> int:
        """Tasks that run at the same time."""

    def load(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a function on parts of Dask collections, one task for each tuple of arguments."""

    def map(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        names: Sequence[object] | None = None,
        places: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Run a function once for each tuple of arguments, in these places if that is possible.

        A task that fails is named in the error.
        """

    def places(self, groups: Sequence[Sequence[Any]], sizes: Sequence[int]) -> Sequence[Any] | None:
        """Wait for tasks, and say where groups of their results should go, so that every thread has as much to do."""

    def share(self, value: Any) -> Any:
        """Send a value to all workers."""

    def fetch(self, handles: Sequence[Any]) -> list[Any]:
        """Wait for tasks, and give their values; `LostError` if one cannot be computed any more."""

    def neighbours(self, handles: Sequence[Any]) -> list[list[Any]]:
        """Wait for tasks, and group them by where their results are."""

    def is_lost(self, handle: Any) -> bool:
        """Whether a result is gone for good."""

    def close(self) -> None:
        """Cancel what still runs, and release everything."""


class Local:
    """Tasks in this process, by Dask's threads or one after the other, as Dask is configured."""

    def __init__(self) -> None:
        chosen = dask.config.get("scheduler", "threads")
        self._scheduler = "sync" if chosen in ("sync", "synchronous", "single-threaded") else "threads"

    @property
    def threads(self) -> int:
        """Tasks that run at the same time."""
        return 1 if self._scheduler == "sync" else int(dask.system.CPU_COUNT)

    def load(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Compute."""
        task = dask.delayed(named, pure=False)
        return self._computed([task(function, k, 1, *args) for k, args in enumerate(arguments)])

    def map(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        names: Sequence[object] | None = None,
        places: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Compute."""
        each = [None] * len(arguments) if names is None else names
        # Dask does not look into what is bound: values of earlier tasks are handed over as they are.
        calls = [partial(named, function, name, 1, *args) for name, args in zip(each, arguments, strict=True)]
        return self._computed([dask.delayed(call, pure=False)() for call in calls])

    def places(self, groups: Sequence[Sequence[Any]], sizes: Sequence[int]) -> Sequence[Any] | None:
        """All in one place."""
        return None

    def share(self, value: Any) -> Any:
        """Nothing to do."""
        return value

    def fetch(self, handles: Sequence[Any]) -> list[Any]:
        """Nothing to do."""
        return list(handles)

    def neighbours(self, handles: Sequence[Any]) -> list[list[Any]]:
        """All in one place."""
        return [list(handles)]

    def is_lost(self, handle: Any) -> bool:
        """Nothing can be lost."""
        return False

    def close(self) -> None:
        """Nothing to do."""

    def _computed(self, tasks: list[Any]) -> list[Any]:
        return list(dask.compute(*tasks, scheduler=self._scheduler))


class Cluster:
    """Tasks on the workers of a cluster.

    A task of EP depends on a message that is scattered, and released when its round is over. Dask then knows that it
    cannot compute the task again: where a worker is lost, so are the sites on it, at once, and not all past rounds are
    repeated. Rows depend on nothing but their source, and Dask computes them again.
    """

    def __init__(self, client: Client) -> None:
        if client.status != "running":
            raise ValueError(f"client must be connected to a cluster, but it is {client.status}: open a new one")
        if client.asynchronous:
            raise ValueError("client must not be asynchronous: make it with Client(..., asynchronous=False)")
        self.client = client
        self._futures: weakref.WeakSet[Future] = weakref.WeakSet()

    @property
    def threads(self) -> int:
        """Threads of all workers."""
        return max(1, int(sum(self.client.nthreads().values())))

    def load(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Submit one graph for all parts."""
        task = dask.delayed(named, pure=False)
        keys = [f"cavity-{function.__name__}-{uuid.uuid4().hex}" for _ in arguments]
        parts = [
            task(function, k, _TRIES, *args, dask_key_name=key)
            for k, (key, args) in enumerate(zip(keys, arguments, strict=True))
        ]
        return self._kept(self.client.compute(parts, retries=_TRIES - 1))

    def map(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        names: Sequence[object] | None = None,
        places: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Submit one task per tuple."""
        each = [None] * len(arguments) if names is None else names
        where = [None] * len(arguments) if places is None else places
        futures = [
            self.client.submit(
                named,
                function,
                name,
                _TRIES,
                *args,
                key=f"cavity-{function.__name__}-{uuid.uuid4().hex}",
                retries=_TRIES - 1,
                pure=False,
                workers=place,
                allow_other_workers=place is not None,
            )
            for name, place, args in zip(each, where, arguments, strict=True)
        ]
        return self._kept(futures)

    def share(self, value: Any) -> Any:
        """Scatter to a worker, from which the others take it."""

        async def scattered() -> list[Future]:
            # A list of one: a tuple would be taken for several values. It goes to one worker, from which others take
            # it: the scheduler waits without end for a worker that dies while something is sent to all.
            sent = self.client.scatter([value], hash=False, asynchronous=True)
            return await asyncio.wait_for(sent, _SCATTER_SECONDS)

        start = time.monotonic()
        while True:
            try:
                return self._kept(self.client.sync(scattered))[0]
            except (TimeoutError, OSError):  # a worker went away meanwhile, or there is none
                self._check_connected()
                if time.monotonic() - start > _PATIENCE:
                    raise

    def fetch(self, handles: Sequence[Any]) -> list[Any]:
        """Wait, look after the cluster meanwhile, and gather."""
        futures = list(handles)
        self._wait(futures)
        try:
            return list(self.client.gather(futures))
        except CancelledError as error:
            raise LostError from error
        except KilledWorker as error:
            raise RuntimeError(
                f"workers died again and again with the same task, probably for want of memory ({error}): give X "
                "smaller partitions, or the workers more memory"
            ) from error

    def neighbours(self, handles: Sequence[Any]) -> list[list[Any]]:
        """Group by worker; what has failed or is lost stands alone."""
        self._wait(list(handles))
        groups: dict[object, list[Any]] = {}
        places = self.client.who_has(handles)
        for future in handles:
            where = places.get(future.key) or (future.key,)
            groups.setdefault(where[0], []).append(future)
        return list(groups.values())

    def places(self, groups: Sequence[Sequence[Any]], sizes: Sequence[int]) -> Sequence[Any] | None:
        """Leave groups where their first result is, unless that worker would have more than its share."""
        self._wait([handle for group in groups for handle in group])
        held = self.client.who_has([group[0] for group in groups])
        return balanced(
            [next(iter(held.get(group[0].key) or ()), None) for group in groups], sizes, self.client.nthreads()
        )

    def is_lost(self, handle: Any) -> bool:
        """Whether a future was cancelled, by the scheduler."""
        return isinstance(handle, Future) and handle.status == "cancelled"

    def close(self) -> None:
        """Cancel what still runs, and release all futures."""
        alive = list(self._futures)
        self._futures.clear()
        running = [future for future in alive if not future.done()]
        if running and self.client.status == "running":
            with suppress(Exception):  # a cluster that is gone holds nothing
                self.client.cancel(running)
        for future in alive:
            future.release()

    def _check_connected(self) -> None:
        if self.client.status != "running":
            raise RuntimeError("the connection to the cluster was closed during the fit")

    def _kept(self, futures: list[Future]) -> list[Future]:
        self._futures.update(futures)
        return futures

    def _wait(self, futures: list[Future]) -> None:
        """Wait until all are done or one is cancelled; give up where the cluster is gone."""
        without = time.monotonic()
        while True:
            try:
                with self.client.as_current():
                    wait(futures, timeout=5.0)
                return
            except TimeoutError:
                self._check_connected()
                if self.client.scheduler_info(n_workers=-1)["workers"]:
                    without = time.monotonic()
                elif time.monotonic() - without > _PATIENCE:
                    raise RuntimeError(f"the cluster has had no worker for {_PATIENCE:.0f} s") from None
            except CancelledError as error:
                raise LostError from error


def balanced(held: Sequence[Any], sizes: Sequence[int], threads: Mapping[Any, int]) -> list[Any] | None:
    """Choose workers for partitions of these sizes, those that hold them if that leaves every thread its share.

    None if no worker is known.
    """
    if not threads:
        return None
    share, load = sum(sizes) / sum(threads.values()), dict.fromkeys(sorted(threads), 0.0)
    chosen = []
    for place, size in zip(held, sizes, strict=True):
        if place not in load or load[place] + 0.5 * size > share * threads[place]:
            place = min(load, key=lambda worker: (load[worker] + size) / threads[worker])
        load[place] += size
        chosen.append(place)
    return chosen


def executor_for(client: Client | None) -> Executor:
    """Take the client given, else the one that is in use, else one of Dask's local schedulers."""
    if client is None:
        try:
            return Cluster(default_client())
        except ValueError:
            return Local()
    if not isinstance(client, Client):
        raise ValueError(f"client must be a distributed.Client or None, got {type(client).__name__}")
    return Cluster(client)


def named(function: Callable[..., Any], name: object, tries: int, *arguments: Any) -> Any:
    """Call a function, and name the partition in an error of its own."""
    try:
        return function(*arguments)
    except Exception as error:
        if name is None:
            raise
        often = "" if tries == 1 else f" {tries} times"
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        raise kind(f"partition {name} failed{often}: {error or type(error).__name__}") from error


__all__ = ["Cluster", "Executor", "Local", "LostError", "balanced", "executor_for", "named"]
