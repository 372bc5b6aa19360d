"""Arrays in scratch files: what was written is read, no more than is used is resident, and a full disk is an error."""

import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from cavity import EPClassifier
from cavity.tables import Table
from cavity.tables.rows import Buckets, ScratchArray, ScratchCsr

bounds = st.one_of(st.none(), st.integers(0, 40))


@given(
    sizes=st.lists(st.integers(0, 9), max_size=5), start=bounds, stop=bounds, width=st.sampled_from([(), (3,), (2, 2)])
)
def test_slices_of_appended_rows_are_those_of_an_array(sizes, start, stop, width):
    parts = [np.random.default_rng(k).normal(size=(size, *width)) for k, size in enumerate(sizes)]
    array = ScratchArray(None, width)
    for part in parts:
        array.append(part)
    whole = np.concatenate([np.empty((0, *width)), *parts])
    assert array.shape == whole.shape
    assert array.nnz == whole.size
    np.testing.assert_array_equal(array[start:stop], whole[start:stop])
    array[:] = 2.0
    np.testing.assert_array_equal(array[:], np.full(whole.shape, 2.0))
    array[:] = whole
    np.testing.assert_array_equal(array[:], whole)
    other = ScratchArray.zeros(None, whole.shape)
    np.testing.assert_array_equal(other[:], np.zeros(whole.shape))
    other[:] = array  # chunk by chunk
    np.testing.assert_array_equal(other[start:stop], whole[start:stop])


def test_slices_are_maps_through_which_the_file_is_changed():
    array = ScratchArray.zeros(None, (10, 2))
    array[2:4][:, 1] += 5.0
    np.testing.assert_array_equal(array[:][:, 1], [0, 0, 5, 5, 0, 0, 0, 0, 0, 0])


@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), start=bounds, stop=bounds)
def test_slices_of_sparse_rows_are_those_of_a_matrix(seed, sizes, start, stop):
    rng = np.random.default_rng(seed)
    parts = [sparse.random_array((size, 6), density=0.3, random_state=rng, format="csr") for size in sizes]
    stored, whole = ScratchCsr(None, 6), sparse.csr_array(sparse.vstack(parts))
    for part in parts:
        stored.append(sparse.csr_array(part))
    assert (stored.shape, stored.nnz) == (whole.shape, whole.nnz)
    np.testing.assert_array_equal(stored[slice(start, stop)].toarray(), whole[slice(start, stop)].toarray())


@pytest.mark.parametrize("expected", [0, 1 << 28], ids=["one bucket", "several"])
def test_buckets_merge_equal_records_whatever_their_order(expected):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 6, (3000, 4)).astype(float)
    found = []
    for order in (np.arange(3000), rng.permutation(3000)):
        buckets = Buckets(None, 4, expected)
        for part in np.array_split(records[order], 7):
            buckets.add(part)
        found.append((np.concatenate(list(buckets.merged())), buckets.digest))
    assert found[0][1] == found[1][1]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    sums = pd.DataFrame(records).groupby([0, 1, 2])[3].sum().reset_index().to_numpy()
    merged = found[0][0]
    np.testing.assert_array_equal(merged[np.lexsort(merged[:, 2::-1].T)], sums)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for resident pages")
def test_only_what_is_used_is_resident():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    array, before = ScratchArray.zeros(None, (1 << 23,)), resident()
    array[:] = 1.0
    assert sum(float(np.sum(chunk)) for chunk in array.chunks()) == 1 << 23
    assert resident() - before < 1 << 25  # half of the array


FULL = """
import resource, sys
from cavity import EPClassifier
from cavity.tables import Table
from cavity.tables.rows import ScratchArray
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
for work in (
    lambda: ScratchArray.zeros(None, (40_000,)),
    lambda: EPClassifier().fit(Table(sys.argv[1], target="y", memory=0)),
):
    try:
        work()
    except OSError as error:
        print("error")
    else:
        print("done")
"""


@pytest.mark.parametrize(("most", "outcome"), [(100_000, "error"), (10_000_000, "done")])
def test_a_disk_without_room_is_an_error(tmp_path, most, outcome):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(5000, 5)), columns=list("abcde"))
    frame.assign(y=rng.integers(0, 2, 5000)).to_parquet(tmp_path / "rows.parquet")
    command = [sys.executable, "-c", FULL, str(tmp_path / "rows.parquet"), str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [outcome, outcome]


def test_rows_of_a_file_are_taken_once_where_the_covariance_is_diagonal(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(600, 4)), columns=list("abcd"))
    frame["kind"] = rng.choice([f"k{k}" for k in range(30)], 600)
    frame["y"] = np.where(2.0 * frame["a"] - frame["b"] + rng.logistic(size=600) > 0.0, "yes", "no")
    frame.to_parquet(tmp_path / "rows.parquet")
    table = Table(tmp_path / "rows.parquet", target="y", memory=0)
    model = EPClassifier(covariance="diagonal").fit(table)
    assert model.status_.name == "SINGLE_PASS"
    assert model.plan_.covariance == "diagonal"
    assert model.score(table) > 0.75
