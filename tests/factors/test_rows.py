"""Sparse matrices with an index outside of them are refused before compiled code follows it."""

import numpy as np
import pytest
from scipy import sparse

from cavity import LinearFactor
from cavity.factors import canonical, check_csr
from cavity.losses import Squared

FORMATS = ("csr", "csc", "bsr", "coo", "lil", "dok", "dia")


def matrix(kind="csr", index=np.int32):
    X = sparse.csr_array(np.arange(1.0, 21.0).reshape(5, 4) * (np.arange(20).reshape(5, 4) % 3 > 0))
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    return X.asformat(kind)


def set_entry(name, place, value):
    def change(X):
        getattr(X, name)[place] = value

    return change


def cut(name, size):
    def change(X):
        setattr(X, name, getattr(X, name)[:size])

    return change


def as_floats(name):
    def change(X):
        setattr(X, name, getattr(X, name).astype(float))

    return change


def without_sign(X):
    X.indices = X.indices.astype(np.uint32)


def of_negative_shape(X):
    X._shape = (-5, 4)


def of_one_row(X):
    X._shape = (4,)


FAULTS = {
    "index one too large": set_entry("indices", 5, 4),
    "index far too large": set_entry("indices", 5, 10**9),
    "index negative": set_entry("indices", 0, -1),
    "index far below": set_entry("indices", -1, -(10**9)),
    "start far too large": set_entry("indptr", 2, 10**9),
    "start negative": set_entry("indptr", 2, -(10**9)),
    "starts decrease": set_entry("indptr", 2, 9),
    "starts not at zero": set_entry("indptr", 0, 1),
    "end too large": set_entry("indptr", -1, 10**9),
    "too few starts": cut("indptr", 3),
    "too few indices": cut("indices", 3),
    "too few entries": cut("data", 3),
    "indices not whole": as_floats("indices"),
    "starts not whole": as_floats("indptr"),
    "indices without sign": without_sign,
    "negative shape": of_negative_shape,
    "one dimension": of_one_row,
}
every_fault = pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS)


@every_fault
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_malformed_rows_are_refused(change, index):
    X = matrix(index=index)
    change(X)
    for use in (
        check_csr,
        canonical,
        lambda X: LinearFactor(Squared(), X, np.zeros(5)),
        lambda X: LinearFactor.batches(Squared(), X, np.zeros(5), 2),
    ):
        with pytest.raises(ValueError, match=r"X (is malformed|must be a matrix)"):
            use(X)


def test_indices_beyond_32_bits_do_not_wrap_around():
    X = matrix(index=np.int64)
    X.indices[3] += 2**32
    with pytest.raises(ValueError, match="indices must lie from 0 to 3"):
        canonical(X)


@pytest.mark.parametrize("kind", ["csc", "bsr"])
def test_other_compressed_forms_are_looked_at_too(kind):
    for name, value in (("indices", 10**9), ("indices", -1), ("indptr", 10**9), ("indptr", -1)):
        X = matrix(kind)
        getattr(X, name)[1] = value
        with pytest.raises(ValueError, match="X is malformed"):
            canonical(X)


def test_lists_of_entries_are_looked_at_too():
    for axis, value in ((0, 5), (1, 4), (0, -1), (1, 10**9)):
        X = matrix("coo")
        X.coords[axis][2] = value
        with pytest.raises(ValueError, match="X is malformed"):
            canonical(X)
    X = matrix("lil")
    X.rows[1][0] = 10**6
    with pytest.raises(ValueError, match="X is malformed"):
        canonical(X)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("kind", FORMATS)
def test_sound_matrices_of_every_kind_pass_and_stay_as_they_are(kind, index):
    X = matrix(kind, index)
    check_csr(X)
    found = canonical(X)
    np.testing.assert_array_equal(found.toarray(), matrix().toarray())
    np.testing.assert_array_equal(X.toarray(), matrix().toarray())
    assert found.has_canonical_format


def test_empty_ones_pass():
    for shape in ((0, 3), (3, 2), (1, 1)):
        check_csr(sparse.csr_array(shape))
        assert canonical(sparse.csr_array(shape)).shape == shape


def test_room_beyond_the_last_entry_is_no_fault():
    X = matrix()
    X.data, X.indices = np.append(X.data, 7.0), np.append(X.indices, 99).astype(np.int32)
    check_csr(X)
    np.testing.assert_array_equal(canonical(X).toarray(), matrix().toarray())


def test_duplicates_made_after_a_first_look_are_summed():
    X = matrix()
    assert X.has_canonical_format
    X.indices[1] = X.indices[0]
    first = X.data[0] + X.data[1]
    assert canonical(X).data[0] == first
