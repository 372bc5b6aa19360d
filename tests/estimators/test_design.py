"""Rows as kernels see them are the user's, with a column of ones and without rows of weight zero."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import two_classes
from scipy import sparse

from cavity.estimators.rows import rows_of_weight, squared, with_intercept

KINDS = [np.float64, np.float32]


@pytest.mark.parametrize("dtype", KINDS)
def test_a_column_of_ones_comes_last_in_both_storages(dtype):
    X = two_classes()[0].astype(dtype)
    wanted = np.column_stack([X, np.ones(len(X))])
    for found in (with_intercept(X), with_intercept(sparse.csr_array(X)).toarray()):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, wanted)
    assert with_intercept(sparse.csr_array(X)).has_canonical_format
    assert with_intercept(X).flags.c_contiguous


def test_empty_rows_get_an_intercept_too():
    X = sparse.csr_array((3, 2))
    np.testing.assert_array_equal(with_intercept(X).toarray(), [[0.0, 0.0, 1.0]] * 3)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_rows_of_weight_zero_are_dropped(storage):
    X, targets, weights = storage(np.eye(4)), np.arange(8.0).reshape(2, 4), np.array([1.0, 0.0, 2.0, 0.0])
    rows, kept, left = rows_of_weight(X, targets, weights)
    np.testing.assert_array_equal(rows.toarray() if sparse.issparse(rows) else rows, np.eye(4)[[0, 2]])
    np.testing.assert_array_equal(kept, [[0.0, 2.0], [4.0, 6.0]])
    np.testing.assert_array_equal(left, [1.0, 2.0])
    for same in (None, np.ones(4)):
        rows, kept, left = rows_of_weight(X, targets, same)
        assert (rows is X, kept is targets, left is same) == (True, True, True)
    with pytest.raises(ValueError, match="positive for at least one row"):
        rows_of_weight(X, targets, None, np.zeros(4))


def test_squares_keep_the_storage():
    X = two_classes()[0]
    np.testing.assert_allclose(squared(X), X**2)
    assert sparse.issparse(squared(sparse.csr_array(X)))
    np.testing.assert_allclose(squared(sparse.csr_array(X)).toarray(), X**2)
