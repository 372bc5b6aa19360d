"""Fits over partitions on a cluster of two processes: posterior, speed, rounds, losses of workers, memory."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import cavity.dask
from benchmarks.bars import Row, markdown
from benchmarks.data import load
from benchmarks.scale_model import described, fitted, round_seconds
from cavity import EPClassifier, EPRegressor
from cavity.dask import ClusterPartitions
from cavity.ep.partitions import Message, sweep
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Logistic

SETS, QUICK_SETS = ("haberman", "ionosphere", "breast_cancer", "bank", "census"), ("haberman",)
COUNTS, QUICK_COUNTS = (1, 2, 4, 16, 64), (2, 16)
PRIOR_VARIANCE = 25.0
# Bars: distances of means, in standard deviations, and of deviations, as shares; speed of two workers against one;
# rounds with 16 partitions, in loops of a fit in memory; seconds per round with 64 empty partitions; bytes of a worker,
# in those of its rows.
MEANS, STDS, FASTER, ROUNDS, EMPTY, MEMORY = 0.02, 0.02, 1.6, 3.0, 1.0, 1.3
LARGE, QUICK_LARGE = (2_000_000, 50), (40_000, 10)
KILLS, QUICK_KILLS = 50, 2
HEADER = (
    "data",
    "loss",
    "rows",
    "loops in memory",
    "rounds",
    "means, sd",
    "deviations",
)


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and the tables behind them."""
    rows, tables = [], {}
    with cluster(2) as client:
        more, tables["dask-posteriors"] = posteriors(client, quick)
        idle = [(count, empty(client, count)) for count in (1, 8, 64)]
        overhead = Row(
            "a round with 64 empty partitions", f"{idle[-1][1]:.2f} s", f"at most {EMPTY:g} s", idle[-1][1] <= EMPTY
        )
        rows += [*more, mixed(client, quick), overhead, *killed(client, quick)]
    times, tables["dask-rounds"] = speed(quick, idle)
    rows += [times, memory(quick), *([] if quick else [spilled()])]
    return rows, tables


@contextmanager
def cluster(workers: int, **options: Any) -> Iterator[Client]:
    """Processes of one thread on this machine."""
    settings = {"distributed.deploy.lost-worker-timeout": "600s", "distributed.worker.memory.spill": 0.7}
    with dask.config.set(settings):
        made = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
            **options,
        )
        with made, Client(made) as client:
            client.submit(_warmed_up).result()
            client.run(_warmed_up)
            yield client


def _warmed_up() -> int:
    """Import everything, and fit once."""
    X = np.random.default_rng(0).normal(size=(100, 2))
    return int(EPClassifier().fit(X, X[:, 0] > 0.0).n_iter_)


def in_partitions(X: Any, y: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Rows as lazy blocks."""
    cuts = np.array_split(np.arange(len(y)), count)
    return [dask.delayed(X[cut]) for cut in cuts], [dask.delayed(y[cut]) for cut in cuts]


def distance(found: Any, expected: Any) -> tuple[float, float]:
    """Largest distance of a mean, in standard deviations, and of the logarithm of a deviation."""
    means = np.abs(found.coef_ - expected.coef_) / expected.coef_std_
    return float(np.max(means)), float(np.max(np.abs(np.log(found.coef_std_ / expected.coef_std_))))


def posteriors(client: Client, quick: bool) -> tuple[list[Row], str]:
    """Every set, loss, order and number of partitions against the fit in memory."""
    lines, worst, slowest, slow = [], np.zeros(2), 0.0, ""
    for name in QUICK_SETS if quick else SETS:
        data = load(name)
        for loss in ("logistic", "hinge"):
            expected = EPClassifier(loss, prior_variance=PRIOR_VARIANCE).fit(data.X, data.y)
            for order in ("shuffled", "sorted"):
                places = np.arange(data.y.size) if order == "shuffled" else np.lexsort((data.X[:, 0], data.y))
                rounds, apart = {}, np.zeros(2)
                for count in QUICK_COUNTS if quick else COUNTS:
                    parts = in_partitions(data.X[places], data.y[places], count)
                    model = EPClassifier(loss, prior_variance=PRIOR_VARIANCE)
                    found = cavity.dask.fit(model, *parts, client=client, join=False)
                    rounds[count], apart = found.n_iter_, np.maximum(apart, distance(found, expected))
                worst = np.maximum(worst, apart)
                if rounds[16] / expected.n_iter_ > slowest:
                    slowest, slow = rounds[16] / expected.n_iter_, f"{name}, {loss}, {order}"
                each = ", ".join(map(str, rounds.values()))
                lines.append(
                    (data.title, loss, order, str(expected.n_iter_), each, f"{apart[0]:.4f}", f"{apart[1]:.4f}")
                )
    found_bar = f"means to {worst[0]:.4f} sd, deviations to {100 * worst[1]:.2f} %"
    bar = f"means to {MEANS:g} sd, deviations to {100 * STDS:g} %"
    rows = [
        Row("posteriors over partitions against memory", found_bar, bar, worst[0] <= MEANS and worst[1] <= STDS),
        Row(
            "rounds with 16 partitions",
            f"{slowest:.2f} x the loops in memory ({slow})",
            f"at most {ROUNDS:g} x",
            slowest <= ROUNDS,
        ),
    ]
    return rows, markdown(HEADER, lines)


def mixed(client: Client, quick: bool) -> Row:
    """A mixed model whose levels are spread over the partitions."""
    rng, n = np.random.default_rng(0), 2000 if quick else 20_000
    table = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    shops, products = rng.integers(0, 40, n), rng.integers(0, 15, n)
    effects = rng.normal(size=40)[shops] + 0.5 * rng.normal(size=15)[products]
    table["shop"], table["product"] = [f"s{k}" for k in shops], [f"p{k}" for k in products]
    y = (table["a"] + effects + rng.normal(size=n)).to_numpy()
    expected = EPRegressor().fit(table, y)
    cuts = np.array_split(np.arange(n), 16)
    blocks = [dask.delayed(table.iloc[cut]) for cut in cuts]
    found = cavity.dask.fit(EPRegressor(), blocks, [dask.delayed(y[cut]) for cut in cuts], client=client, join=False)
    means, stds = distance(found, expected)
    measured = f"means to {means:.4f} sd, deviations to {100 * stds:.2f} %"
    bar = f"means to {MEANS:g} sd, deviations to {100 * STDS:g} %"
    return Row(f"mixed model, {n:,} rows, 16 partitions", measured, bar, means <= MEANS and stds <= STDS)


def empty(client: Client, count: int) -> float:
    """Seconds of a round where there is nothing to do but for one small partition."""
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = X[:, 0] > 0.3
    parts = [dask.delayed(X), *(dask.delayed(X[:0]) for _ in range(count - 1))]
    labels = [dask.delayed(y), *(dask.delayed(y[:0]) for _ in range(count - 1))]
    model = EPClassifier(prior_variance=1.0, max_iter=8, tol=0.0)
    with warnings.catch_warnings(), timed_rounds() as rounds:
        warnings.simplefilter("ignore")  # a fit that is cut short says so
        cavity.dask.fit(model, parts, labels, client=client, join=False)
    return float(np.median(np.diff(rounds)))


@contextmanager
def timed_rounds() -> Iterator[list[float]]:
    """Times at which the rounds of a fit begin, but for the first, which comes in waves."""
    begun, plain = [], ClusterPartitions.sweep

    def timed(partitions: ClusterPartitions, message: Message) -> Any:
        if message.wave is None:
            begun.append(time.perf_counter())
        return plain(partitions, message)

    ClusterPartitions.sweep = timed  # type: ignore[method-assign]
    try:
        yield begun
    finally:
        ClusterPartitions.sweep = plain  # type: ignore[method-assign]


def sweeps(quick: bool) -> list[tuple[int, int, float]]:
    """Seconds that one thread takes to sweep one partition, by rows and columns."""
    found = []
    for n, d in ((4000, 10), (4000, 60)) if quick else ((500_000, 10), (200_000, 50), (50_000, 200), (20_000, 600)):
        found.append((n, d + 1, min(_swept(n, d, 1) for _ in range(3))))
    return found


def killed(client: Client, quick: bool) -> list[Row]:
    """Fits during which a worker process is killed, once or twice."""
    lazy = [dask.delayed(made, nout=2)(k, 4000, 20) for k in range(16)]
    parts = [pair[0] for pair in lazy], [pair[1] for pair in lazy]
    whole = [made(k, 4000, 20) for k in range(16)]
    expected = EPClassifier("hinge").fit(*(np.concatenate(part) for part in zip(*whole, strict=True)))
    seconds = _seconds(lambda: cavity.dask.fit(EPClassifier("hinge"), *parts, client=client, join=False))
    same = clean = 0
    runs = QUICK_KILLS if quick else KILLS
    for run in range(runs):
        client.wait_for_workers(2, timeout=300)
        killer = threading.Thread(target=_kill, args=(client.cluster, random.Random(run), seconds))
        killer.start()
        found = cavity.dask.fit(EPClassifier("hinge"), *parts, client=client, join=False)
        killer.join()
        means, stds = distance(found, expected)
        same += found.status_.is_success and means <= MEANS and stds <= STDS
        clean += _is_clean(client)
    title = f"{runs} fits during which workers are killed"
    return [
        Row(title, f"{same} of {runs} end with the same posterior", "all", same == runs),
        Row(f"{title}: the cluster afterwards", f"{clean} of {runs} times without a task", "all", clean == runs),
    ]


def _kill(made: Any, rng: random.Random, seconds: float) -> None:
    """Kill one worker, or two one after the other, at random moments of the fit."""
    for _ in range(rng.choice((1, 2))):
        time.sleep(rng.uniform(0.0, seconds))
        alive = [nanny.process.pid for nanny in made.workers.values() if nanny.process and nanny.process.is_alive()]
        if alive:
            os.kill(rng.choice(alive), signal.SIGKILL)


def _is_clean(client: Client) -> bool:
    for _ in range(50):
        if not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            return True
        time.sleep(0.1)
    return False


def speed(quick: bool, idle: list[tuple[int, float]]) -> tuple[Row, str]:
    """Two workers against one on a large table, and rounds beside the model of their cost."""
    n, d = QUICK_LARGE if quick else LARGE
    machine, seconds, lines = fitted(sweeps(quick), idle), {}, []
    for workers in (1, 2):
        with cluster(workers) as client:
            for count in QUICK_COUNTS if quick else COUNTS:
                lazy = [dask.delayed(made, nout=2)(k, n // count, d) for k in range(count)]
                parts, labels = [pair[0] for pair in lazy], [pair[1] for pair in lazy]
                fit = partial(
                    cavity.dask.fit, EPClassifier(prior_variance=1.0), parts, labels, client=client, join=False
                )
                with timed_rounds() as rounds:
                    seconds[workers, count] = _seconds(fit)
                one = float(np.median(np.diff(rounds)))
                model = sum(round_seconds(machine, n, d + 1, workers, count).values())
                whole = f"{seconds[workers, count]:.1f}"
                lines.append((f"{n:,} x {d + 1}", str(workers), str(count), f"{one:.2f}", f"{model:.2f}", whole))
    header = ("rows x columns", "workers", "partitions", "seconds per round", "by the model", "seconds of the fit")
    best = {w: min(s for (k, _), s in seconds.items() if k == w) for w in (1, 2)}
    ratio = best[1] / best[2]
    found = f"{best[2]:.1f} s against {best[1]:.1f} s: {ratio:.2f} x; without a cluster {both_cores(quick):.2f} x"
    row = Row(f"two workers on {n:,} x {d}", found, f"at least {FASTER} x", ratio >= FASTER)
    far = described(machine, 1e9, 1000, 100, 800, 20)
    return row, f"{markdown(header, lines)}\n\nBy the same model, with 1 GB/s between machines: {far}."


def both_cores(quick: bool) -> float:
    """Sweeps per second of two processes apart from each other, in those of one: what the machine can give."""
    n, d = (4000, 10) if quick else (125_000, 50)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        each = []
        for count in (2, 1, 2, 1, 2):
            each.append((count, max(pool.map(_swept, [n] * count, [d] * count))))
    alone, both = (min(seconds for count, seconds in each[1:] if count == k) for k in (1, 2))
    return 2.0 * alone / both


def _swept(n: int, d: int, times: int = 10) -> float:
    """Seconds of so many sweeps over one partition."""
    X, y = made(0, n, d)
    rows = Rows.arrange(X, np.where(y, 1.0, -1.0)[None], None, True)
    prior = FactorialGaussian.from_moments(np.zeros(d + 1), 1.0)
    nothing = np.zeros((d + 1) * (d + 2) // 2), np.zeros(d + 1)
    sites, sums = sweep(rows, None, Message(Logistic(), prior, *nothing, wave=(0.0, 0.5)))
    message = Message(Logistic(), prior, sums.information, sums.shift)
    return _seconds(lambda: [sweep(rows, sites, message) for _ in range(times)])


def memory(quick: bool) -> Row:
    """Most memory of a worker beyond what it had before, in bytes of its rows."""
    n, d = (100_000, 50) if quick else (2_000_000, 50)
    with cluster(1) as client:
        before, peak = _resident(client), [0.0]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                peak[0] = max(peak[0], _resident(client))

        watcher = threading.Thread(target=watch)
        watcher.start()
        lazy = [dask.delayed(made, nout=2)(k, n // 16, d) for k in range(16)]
        cavity.dask.fit(EPClassifier(prior_variance=1.0), [p[0] for p in lazy], [p[1] for p in lazy], client=client)
        done.set()
        watcher.join()
    times = (peak[0] - before) / (8.0 * n * (d + 1))
    return Row(f"memory of a worker, {n:,} x {d}", f"{times:.2f} x its rows", f"at most {MEMORY} x", times <= MEMORY)


def spilled() -> Row:
    """Rows of twice the memory of the workers, spilled to disk."""
    limit = 700e6  # a process takes 200 MB before it holds any row
    n, d = int(4 * limit / (8.0 * 100)), 100
    with cluster(2, memory_limit=int(limit)) as client:
        lazy = [dask.delayed(made, nout=2)(k, n // 128, d) for k in range(128)]
        model = EPClassifier(prior_variance=1.0)
        start = time.perf_counter()
        cavity.dask.fit(model, [p[0] for p in lazy], [p[1] for p in lazy], client=client, join=False)
        seconds = time.perf_counter() - start
    title = f"{8e-9 * n * d:.1f} GB of rows, two workers of {1e-9 * limit:.1f} GB"
    return Row(title, f"{model.status_.name.lower()} in {seconds:.0f} s", "converged", model.status_.is_success)


def _resident(client: Client) -> float:
    found = client.run(_resident_here)
    return float(max(found.values()))


def _resident_here() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss)


def made(k: int, rows: int, columns: int) -> tuple[Any, Any]:
    """Rows and labels that can be made again."""
    rng = np.random.default_rng(k)
    X = rng.normal(size=(rows, columns))
    return X, X @ np.linspace(-1.0, 1.0, columns) + rng.logistic(size=rows) > 0.0


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
