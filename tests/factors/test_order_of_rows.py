"""The order of rows follows from their content: not from storage, sorting, repetition or the units of the targets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from cavity.factors import rows as module
from cavity.factors.rows import Rows, dense_rows

STORAGES = {
    "dense": np.asarray,
    "fortran": np.asfortranarray,
    "csr": sparse.csr_array,
    "float32": lambda X: X.astype(np.float32),
}


def data(n=60, d=4, seed=0, levels=3):
    """Rows with zeros of which many are equal, targets of two predictors, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, levels - 1, size=(n, d)).astype(float)
    return X, rng.integers(0, 2, size=(2, n)) * 2.0 - 1.0, rng.integers(0, 4, size=n).astype(float)


def content(rows):
    """Blocks, targets and weights in visiting order."""
    return rows.block(slice(0, rows.shape[0])), rows.targets, rows.weights


def assert_same(found, wanted, rtol=0.0):
    for a, b in zip(content(found), content(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=0.0)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("intercept", [True, False])
def test_storage_and_sorting_do_not_matter(storage, intercept):
    X, t, w = data()
    wanted = Rows.arrange(X, t, w, intercept)
    shuffled = np.random.default_rng(1).permutation(len(X))
    for order in (np.arange(len(X)), shuffled):
        assert_same(Rows.arrange(STORAGES[storage](X[order]), t[:, order], w[order], intercept), wanted)


def test_repeated_rows_are_weights():
    X, t, w = data()
    times = w.astype(int)
    wanted = Rows.arrange(X, t, w, True)
    assert_same(Rows.arrange(np.repeat(X, times, axis=0), np.repeat(t, times, axis=1), None, True), wanted)
    kept = w > 0.0
    assert_same(Rows.arrange(X[kept], t[:, kept], w[kept], True), wanted)
    assert np.sum(wanted.weights) == np.sum(w)
    assert wanted.shape == (len(np.unique(np.column_stack([X, t.T])[kept], axis=0)), 5)


def test_no_two_of_the_distinct_rows_are_equal_and_none_is_missing():
    X, t, _ = data()
    rows = Rows.arrange(X, t, None, False)
    block, targets, weights = content(rows)
    found, counts = np.unique(np.column_stack([X, t.T]), axis=0, return_counts=True)
    both = np.column_stack([block, targets.T])
    order = np.lexsort(both.T[::-1])
    np.testing.assert_array_equal(both[order], found)
    np.testing.assert_array_equal(weights[order], counts)


@pytest.mark.parametrize(("factor", "offset"), [(1.0 / 3.0, 0.1), (1e-9, 0.0), (7e5, -123.4)])
def test_the_units_of_the_targets_do_not_matter(factor, offset):
    """Targets are normalised by sums that round differently; equal rows of other targets keep their order."""
    X, _, _ = data()
    t = np.random.default_rng(2).normal(size=(1, len(X)))
    wanted, found = Rows.arrange(X, t, None, True), Rows.arrange(X, factor * t + offset, None, True)
    np.testing.assert_array_equal(found.order, wanted.order)


def test_minus_zero_and_stored_zeros_are_zeros():
    X, t, w = data()
    wanted = Rows.arrange(X, t, w, False)
    stored = sparse.csr_array(
        (np.where(X == 0.0, -0.0, X).ravel(), np.tile(np.arange(4), 60), np.arange(0, 241, 4)), shape=(60, 4)
    )
    assert_same(Rows.arrange(np.where(X == 0.0, -0.0, X), t, w, False), wanted)
    assert_same(Rows.arrange(stored, t, w, False), wanted)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_rows_whose_hashes_collide_stay_apart(storage, monkeypatch):
    X, t, w = data(levels=40)
    monkeypatch.setattr(module, "row_keys", lambda X, **_: np.zeros(X.shape[0], dtype=np.uint64))
    rows = Rows.arrange(storage(X), t, w, False)
    block, _, weights = content(rows)
    np.testing.assert_allclose((weights[:, None] * block).sum(axis=0), w @ X)
    assert np.sum(weights) == np.sum(w)


def test_the_matrix_is_that_of_the_blocks():
    X, t, w = data()
    for storage in (np.asarray, sparse.csr_array):
        for intercept in (True, False):
            rows = Rows.arrange(storage(X), t, w, intercept)
            np.testing.assert_array_equal(rows.matrix().toarray(), rows.block(slice(None)))
            assert rows.matrix().format == "csr"


def test_blocks_are_cut_from_the_callers_rows_in_double_precision():
    X, t, _ = data()
    for storage in STORAGES.values():
        rows = Rows.arrange(storage(X), t, None, True)
        part = rows.block(slice(5, 9))
        assert (part.dtype, part.flags.c_contiguous, part.shape) == (np.float64, True, (4, 5))
        np.testing.assert_array_equal(part[:, :4], X[rows.order[5:9]])
        np.testing.assert_array_equal(part[:, 4], 1.0)
    np.testing.assert_array_equal(dense_rows(sparse.csr_array(X), False), X)


def test_no_rows_and_no_weight_leave_nothing():
    X, t, w = data()
    assert Rows.arrange(X, t, np.zeros_like(w), True).shape == (0, 5)
    assert Rows.arrange(X[:0], t[:, :0], None, True).shape == (0, 5)


def test_keys_follow_from_content_alone():
    rng = np.random.default_rng(0)
    X, y = rng.integers(-2, 3, size=(200, 4)).astype(np.float32), rng.integers(0, 2, 200).astype(float)
    contents = []
    for matrix, targets in ((X, y), (sparse.csr_array(X[::-1].astype(np.float64)), y[::-1])):
        rows = Rows.arrange(matrix, targets[None], None, False)
        keys = map(tuple, rows.keys().tolist())
        contents.append(
            dict(zip(keys, np.column_stack([rows.block(slice(None)), rows.targets[0]]).tolist(), strict=True))
        )
    assert contents[0] == contents[1]
    assert len(contents[0]) == len(np.unique(np.column_stack([X, y]), axis=0))


def test_keys_differ_with_targets_offsets_and_places_of_columns():
    X, y, o = np.array([[1.0, 2.0], [2.0, 1.0]]), np.zeros((1, 2)), np.zeros(2)
    keys = [
        Rows.arrange(X, y, None, True).keys(),
        Rows.arrange(X, y + 1.0, None, True).keys(),
        Rows.arrange(X, y, None, True, o).keys(),
        Rows.arrange(X, y, None, True, o + 1.0).keys(),
    ]
    assert len({tuple(key) for some in keys for key in some.tolist()}) == 8
    for column in (0, 1):  # both halves tell them apart
        assert len({int(key[column]) for some in keys for key in some}) == 8
