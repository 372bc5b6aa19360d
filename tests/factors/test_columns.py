"""Centres and units of columns follow the columns, whatever the storage, and leave predictions as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from cavity.factors.columns import Columns, ColumnSums

# Centres and units are rounded to a billionth of the unit.
ROUNDING = 2e-9


def data(n=60, seed=0):
    """Columns that are ordinary, full of zeros, constant, zero, of two values, and mostly at their smallest value."""
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [
            rng.normal(3.0, 2.0, n),
            rng.normal(size=n) * (rng.random(n) < 0.2),
            np.full(n, 7.0),
            np.zeros(n),
            rng.integers(0, 2, n),
            np.where(rng.random(n) < 0.3, rng.normal(20.0, 1.0, n), 5.0),
            rng.integers(0, 3, n),
        ]
    )


def assert_same(found, wanted):
    for name, one, other in zip(ColumnSums._fields, found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_the_same_dense_csr_and_added_up(weighted):
    X = data()
    w = np.random.default_rng(1).integers(1, 4, len(X)).astype(float) if weighted else None
    whole = ColumnSums.of(X, w)
    assert_same(ColumnSums.of(sparse.csr_array(X), w), whole)
    assert_same(ColumnSums.of(X.astype(np.float32), w), ColumnSums.of(X.astype(np.float32).astype(float), w))
    parts = [(X[i], None if w is None else w[i]) for i in np.array_split(np.arange(len(X)), 7)]
    for make in (np.asarray, sparse.csr_array):
        total = ColumnSums.nothing(X.shape[1])
        for rows, weights in parts:
            total = total.plus(ColumnSums.of(make(rows), weights))
        assert_same(total, whole)
    if w is not None:
        assert_same(ColumnSums.of(np.repeat(X, w.astype(int), axis=0)), whole)


def test_sums_are_what_their_names_say():
    X = data()
    found = ColumnSums.of(X)
    np.testing.assert_allclose(found.weight, 60.0)
    np.testing.assert_allclose(found.mean, X.mean(axis=0))
    np.testing.assert_allclose(found.squares, 60.0 * X.var(axis=0), atol=1e-9)
    np.testing.assert_array_equal(found.least, X.min(axis=0))
    np.testing.assert_array_equal(found.largest, X.max(axis=0))
    for name, value in (("at_least", X.min(axis=0)), ("at_largest", X.max(axis=0)), ("at_zero", 0.0)):
        np.testing.assert_array_equal(getattr(found, name), np.sum(value == X, axis=0), err_msg=name)


def test_a_row_is_a_matrix_of_one_row():
    for row in data()[:4]:
        assert_same(ColumnSums.of_row(row), ColumnSums.of(row[None]))
    total = ColumnSums.nothing(7)
    for row in data():
        total = total.plus(ColumnSums.of_row(row))
    assert_same(total, ColumnSums.of(data()))


def test_a_share_of_all_weights_leaves_means_and_units():
    whole = ColumnSums.of(data())
    less = whole.times(0.25)
    np.testing.assert_allclose(less.weight, 0.25 * whole.weight)
    assert_same(less, ColumnSums.of(data(), np.full(60, 0.25)))
    for one, other in zip(less.columns(), whole.columns(), strict=True):
        np.testing.assert_allclose(one, other, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("weighted", [False, True])
def test_missing_entries_do_not_count(weighted):
    X, rng = data(), np.random.default_rng(2)
    w = rng.uniform(0.5, 2.0, len(X)) if weighted else np.ones(len(X))
    holes = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    holes[:, 3] = np.nan
    found = ColumnSums.of(holes, w)
    for j in range(X.shape[1]):
        present = ~np.isnan(holes[:, j])
        if j == 3:
            assert found.weight[j] == found.squares[j] == found.at_zero[j] == 0.0
            continue
        wanted = ColumnSums.of(X[present, j : j + 1], w[present])
        assert_same([field[j : j + 1] for field in found], wanted)
    columns = found.columns()
    assert np.all(np.isfinite(columns.center))
    assert np.all(columns.unit > 0.0)
    assert_same(ColumnSums.of(holes[:30], w[:30]).plus(ColumnSums.of(holes[30:], w[30:])), found)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_flags_are_columns_of_zeros_and_ones(n, seed):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < share for share in (0.0, 0.1, 0.5, 0.9, 1.0)]).astype(float)
    assert_same(ColumnSums.of_flags(float(n), X.sum(axis=0)), ColumnSums.of(X))


def test_more_columns_stand_beside():
    X = data()
    left, right = ColumnSums.of(X[:, :3]), ColumnSums.of(X[:, 3:])
    assert_same(left.beside(right), ColumnSums.of(X))
    assert_same(left.wider(2), ColumnSums.of(np.column_stack([X[:, :3], np.zeros((60, 2))])))


# Centres and units.


KINDS = {
    "ordinary": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.lognormal(size=n),
    "two values": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "two values, one of them rare": lambda rng, n: (np.arange(n) % 20 == 0).astype(float),
    "mostly at the smallest": lambda rng, n: np.where(rng.random(n) < 0.3, rng.exponential(size=n), 0.0),
}


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("factor", [1e-8, 0.01, 1.0, 300.0, 1e8])
@pytest.mark.parametrize("kind", KINDS)
def test_units_are_those_of_the_columns(kind, factor, centred):
    x = KINDS[kind](np.random.default_rng(0), 200)
    plain, other = (ColumnSums.of(z[:, None]).columns(centred) for z in (x, factor * x))
    np.testing.assert_allclose(other.unit, factor * plain.unit, rtol=ROUNDING)
    np.testing.assert_allclose(other.center, factor * plain.center, rtol=ROUNDING, atol=ROUNDING * factor)


@pytest.mark.parametrize("shift", [-3.7, 0.25, 1000.0])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "skewed"])
def test_centres_follow_a_shift_and_units_do_not(kind, shift):
    """But for two values: of these zero is the centre where it is one of them, and the smaller otherwise."""
    x = KINDS[kind](np.random.default_rng(0), 200)
    plain, other = (ColumnSums.of(z[:, None]).columns() for z in (x, x + shift))
    np.testing.assert_allclose(other.unit, plain.unit, rtol=1e-6)
    np.testing.assert_allclose(other.center, plain.center + shift, rtol=1e-8, atol=1e-8)


def test_an_ordinary_column_has_its_mean_and_deviation():
    x = np.random.default_rng(0).normal(5.0, 3.0, 100)
    found = ColumnSums.of(x[:, None]).columns()
    assert found.center == pytest.approx(np.mean(x), rel=ROUNDING)
    assert found.unit == pytest.approx(np.std(x), rel=ROUNDING)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("ones", [1, 10, 499, 500, 990])
def test_a_rare_column_of_zeros_and_ones_has_the_unit_of_a_frequent_one(ones, centred):
    x = (np.arange(1000) < ones).astype(float)
    found = ColumnSums.of(x[:, None]).columns(centred)
    assert found.center == 0.0
    assert found.unit == 1.0


@pytest.mark.parametrize("common", ["zero", "smallest", "largest"])
def test_where_most_rows_hold_one_value_it_is_the_centre(common):
    rng = np.random.default_rng(0)
    other = np.arange(100) % 4 == 0
    value, apart = {"zero": (0.0, rng.normal(size=100)), "smallest": (3.0, rng.exponential(size=100))}.get(
        common, (3.0, -rng.exponential(size=100))
    )
    x = np.where(other, value + apart, value)
    found = ColumnSums.of(x[:, None]).columns()
    assert found.center == pytest.approx(value, rel=1e-9)
    assert found.unit == pytest.approx(np.sqrt(np.mean(apart[other] ** 2)), rel=1e-8)


def test_constant_columns_have_a_unit_that_is_a_number():
    X = np.column_stack([np.zeros(9), np.full(9, 7.0), np.full(9, -1e-5), 1e9 * (1.0 + 1e-16 * np.arange(9))])
    for centred in (True, False):
        found = ColumnSums.of(X).columns(centred)
        assert np.all(np.isfinite(found.center))
        assert np.all(found.unit > 0.0)
        assert np.all(np.abs(found.standardised(X)) <= 1.0 + 1e-9)
    nothing = ColumnSums.nothing(3).columns()
    np.testing.assert_array_equal(nothing.center, 0.0)
    np.testing.assert_array_equal(nothing.unit, 1.0)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", [1e-300, 1e-100])
def test_columns_too_small_for_variances_of_coefficients_are_zeros(size, centred):
    rng = np.random.default_rng(0)
    columns = ColumnSums.of(size * np.column_stack([np.ones(9), rng.normal(size=9), rng.random(9) < 0.5]))
    np.testing.assert_array_equal(columns.columns(centred).unit, 1.0)


def test_without_an_intercept_nothing_is_centred():
    X = data()
    found = ColumnSums.of(X).columns(centred=False)
    np.testing.assert_array_equal(found.center, 0.0)
    assert found.unit[0] == pytest.approx(np.sqrt(np.mean(X[:, 0] ** 2)), rel=ROUNDING)
    filled = X[X[:, 1] != 0.0, 1]
    assert found.unit[1] == pytest.approx(np.sqrt(np.mean(filled**2)), rel=ROUNDING)


@pytest.mark.parametrize("centred", [True, False])
def test_sizes_are_mean_squares_in_these_units(centred):
    X = data()
    sums = ColumnSums.of(X)
    columns = sums.columns(centred)
    wanted = np.mean(columns.standardised(X) ** 2, axis=0)
    np.testing.assert_allclose(sums.sizes(columns), wanted, rtol=1e-9, atol=1e-12)


# Rows and coefficients in these units.


def test_rows_are_brought_to_units_dense_as_csr():
    X = data()
    for centred in (True, False):
        columns = ColumnSums.of(X).columns(centred)
        wanted = (X - columns.center) / columns.unit
        np.testing.assert_array_equal(columns.standardised(X), wanted)
        found = columns.standardised(sparse.csr_array(X))
        assert sparse.issparse(found)
        np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-12, atol=1e-12)
        block = np.column_stack([X, np.ones(len(X))])
        columns.standardise(block)
        np.testing.assert_array_equal(block[:, -1], 1.0)
        np.testing.assert_allclose(block[:, :-1], wanted, rtol=1e-12, atol=1e-12)


def test_zeros_of_sparse_columns_stay_zeros():
    X = sparse.csr_array(data()[:, [1, 3, 4]])
    found = ColumnSums.of(X).columns().standardised(X)
    assert found.nnz == X.nnz


def test_plain_columns_leave_rows_as_they_are():
    plain = Columns.plain(7)
    X = data()
    assert plain.standardised(X) is X
    assert ColumnSums.of(X).columns().standardised(X) is not X


@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_change_so_that_predictions_stay(intercept):
    X, rng = data(), np.random.default_rng(3)
    some, other = ColumnSums.of(X).columns(intercept), ColumnSums.of(X[:20] ** 2 + X[:20]).columns(intercept)
    theta = rng.normal(size=7 + intercept)

    def predictions(columns, theta):
        return columns.standardised(X) @ theta[:7] + (theta[7] if intercept else 0.0)

    moved = some.matrix(other, intercept) @ theta
    np.testing.assert_allclose(predictions(other, moved), predictions(some, theta), rtol=1e-7, atol=1e-7)
    back = other.matrix(some, intercept) @ moved
    np.testing.assert_allclose(back, theta, rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(some.matrix(some, intercept), np.eye(7 + intercept))
