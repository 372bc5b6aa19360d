"""Where partitions go: they stay where they are unless a worker has more than its share."""

from __future__ import annotations

import pytest

from cavity.dask._executors import Local, balanced


def loads(chosen, sizes):
    found = {}
    for place, size in zip(chosen, sizes, strict=True):
        found[place] = found.get(place, 0) + size
    return found


def test_partitions_in_balance_stay_where_they_are():
    held = ["a", "b", "b", "a"]
    assert balanced(held, [5, 5, 5, 5], {"a": 1, "b": 1}) == held


@pytest.mark.parametrize("held", [["a"] * 8, [None] * 8, ["gone"] * 8])
def test_every_thread_gets_its_share(held):
    chosen = balanced(held, [10] * 8, {"a": 1, "b": 3})
    assert loads(chosen, [10] * 8) == {"a": 20, "b": 60}


def test_large_and_small_partitions_are_mixed():
    sizes = [80, 10, 10, 10, 10, 10, 10, 20]
    assert loads(balanced(["a"] * 8, sizes, {"a": 1, "b": 1}), sizes) == {"a": 80, "b": 80}


def test_two_partitions_of_one_worker_go_to_two():
    assert sorted(balanced(["a", "a"], [7, 7], {"a": 1, "b": 1})) == ["a", "b"]


def test_empty_partitions_and_no_workers():
    assert balanced(["a", "a"], [0, 0], {"a": 1, "b": 1}) == ["a", "a"]
    assert balanced(["a"], [3], {}) is None
    assert Local().places([[1]], [3]) is None
