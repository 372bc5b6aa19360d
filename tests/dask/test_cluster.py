"""A cluster of two processes on this machine: the same posterior, also where workers die; nothing stays behind."""

import os
import signal
import time

import dask
import dask.array as da
import numpy as np
import pytest
from dask_cases import assert_same, chunked, labelled
from distributed import Client, LocalCluster, default_client

import cavity
import cavity.dask

ROWS = 16_000


def block(k):
    """Rows that can be computed again."""
    X, y = labelled(ROWS // 8, 6, seed=k)
    return X, y


def slow_block(k, seconds):
    time.sleep(seconds)
    return block(k)


@pytest.fixture(scope="module")
def cluster():
    # A worker that is killed comes back; on a busy machine that may take longer than the cluster waits by default.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "300s"}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # any free port
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False),
    ):
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
        yield client
        assert tasks_left(client) == []


def tasks_left(client):
    """What the scheduler still knows of, after what was released had time to go."""
    for _ in range(100):
        left = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
        if not left:
            break
        time.sleep(0.1)
    return left


@pytest.fixture(scope="module")
def blocks():
    lazy = [dask.delayed(block, nout=2)(k) for k in range(8)]
    return [pair[0] for pair in lazy], [pair[1] for pair in lazy]


@pytest.fixture(scope="module")
def expected():
    parts = [block(k) for k in range(8)]
    return cavity.EPClassifier("hinge").fit(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def test_the_same_posterior_as_in_memory(client, blocks, expected):
    found = cavity.dask.fit(cavity.EPClassifier("hinge"), *blocks, client=client)
    assert_same(found, expected, 0.03)


def test_a_scale_that_is_found_over_a_cluster(client):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=900)
    model = cavity.EPRegressor("absolute")
    found = cavity.dask.fit(model, chunked(X, 5), chunked(y, 5), client=client, join=False)
    assert_same(found, cavity.EPRegressor("absolute").fit(X, y), 0.03)


def test_a_worker_that_is_killed_changes_nothing(cluster, client, blocks, expected):
    """In the middle of the fit, with rows and sites on it."""
    seen = []

    def kill_in_the_third_round(progress):
        seen.append(progress.loop)
        if progress.loop == 2:
            os.kill(next(iter(cluster.workers.values())).process.pid, signal.SIGKILL)

    model = cavity.EPClassifier("hinge", verbose=kill_in_the_third_round)
    found = cavity.dask.fit(model, *blocks, client=client, join=False)
    assert_same(found, expected, 0.03)
    assert seen == list(range(found.n_iter_ + 1))
    assert found.n_iter_ > 2


def test_a_partition_that_fails_three_times_is_named(client, tmp_path):
    def count_and_fail(X):
        with (tmp_path / "tries").open("a") as file:
            file.write("x")
        raise KeyError("no such column")

    X, y = labelled(300)
    rows = [X[:100], dask.delayed(count_and_fail)(X[100:200]), X[200:]]
    with pytest.raises(KeyError, match="no such column"):
        cavity.dask.fit(cavity.EPClassifier(), rows, [y[:100], y[100:200], y[200:]], client=client)
    bad = X.copy()
    bad[250] = np.inf
    with pytest.raises(ValueError, match=r"partition 2 failed 3 times.*infinity"):
        cavity.dask.fit(cavity.EPClassifier(), chunked(bad, 3), chunked(y, 3), client=client)
    assert len((tmp_path / "tries").read_text()) == 3


def test_a_fit_that_is_interrupted_leaves_no_tasks(client, monkeypatch):
    def interrupt(futures, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr("cavity.dask.wait", interrupt)
    lazy = [dask.delayed(slow_block, nout=2)(k, 1.0) for k in range(8)]
    with pytest.raises(KeyboardInterrupt):
        cavity.dask.fit(cavity.EPClassifier(), [p[0] for p in lazy], [p[1] for p in lazy], client=client)
    assert tasks_left(client) == []


def test_futures_are_blocks_too(client):
    X, y = labelled(2000)
    rows = [client.submit(np.asarray, X[i::4]) for i in range(4)]
    assert_same(
        cavity.dask.fit(cavity.EPClassifier(), rows, [y[i::4] for i in range(4)], client=client),
        cavity.EPClassifier().fit(X, y),
        0.03,
    )
    del rows


def test_the_client_in_use_is_taken_and_a_closed_one_refused(cluster):
    X, y = labelled(200)
    rows, labels = chunked(X, 2), chunked(y, 2)
    with Client(cluster) as client:
        assert default_client() is client
        seen = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter)
        cavity.dask.fit(cavity.EPClassifier(), rows, labels)
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter) > seen
        assert isinstance(rows, da.Array)
    with pytest.raises(ValueError, match="open a new one"):
        cavity.dask.fit(cavity.EPClassifier(), rows, labels, client=client)
