"""Smooths, walks and autoregressive processes are the functions they stand for, wherever rows come from."""

import numpy as np
import pytest
from scipy.integrate import quad

from cavity.terms import Autoregressive, Design, Smooth, Walk

RNG = np.random.default_rng(0)
X = np.sort(RNG.gamma(2.0, 1.5, 80))
ONES = np.ones(X.size)


def dense(matrix):
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)


def covariance(learned, psi=None):
    """Covariance of the coefficients of a term with one structure."""
    structure = learned.parts[0].structure
    values = structure.entries(np.zeros(structure.lower.size) if psi is None else psi)
    found = np.zeros((structure.width, structure.width))
    found[structure.left, structure.right] = values
    return np.linalg.inv(found + np.triu(found, 1).T)


# Smooths.


@pytest.mark.parametrize("cyclic", [False, (0.0, 20.0)])
def test_the_penalty_of_a_smooth_is_its_integrated_squared_curvature(cyclic):
    learned = Smooth("x", k=7, cyclic=cyclic).learn({"x": X}, ONES)
    theta = RNG.normal(size=learned.values.shape[1])

    def curvature(z):
        return float((learned.spline(np.array([z]), 2) @ theta)[0] ** 2)

    whole = sum(quad(curvature, a, b)[0] for a, b in zip(learned.knots[:-1], learned.knots[1:], strict=True))
    one = sum(
        quad(lambda z: (learned.spline(np.array([z]), 2)[0, 0]) ** 2, a, b)[0]
        for a, b in zip(learned.knots[:-1], learned.knots[1:], strict=True)
    )
    assert whole == pytest.approx(one * float(theta @ theta), rel=1e-6)


def test_a_smooth_is_curved_only_and_of_mean_square_one():
    weights = RNG.uniform(0.5, 2.0, X.size)
    learned = Smooth("x").learn({"x": X}, weights)
    made = learned.columns({"x": X})
    straight = np.column_stack([ONES, X])
    np.testing.assert_allclose((weights[:, None] * straight).T @ made, 0.0, atol=1e-8)
    assert weights @ np.sum(made**2, axis=1) / np.sum(weights) == pytest.approx(1.0)


def test_smooth_and_straight_line_interpolate_at_the_knots():
    x = np.arange(9.0)
    learned = Smooth("x", k=9).learn({"x": x}, np.ones(9))
    whole = np.column_stack([np.ones(9), x, learned.columns({"x": x})])
    assert np.linalg.matrix_rank(whole) == 9


def test_smooths_go_on_as_straight_lines():
    learned = Smooth("x", k=6).learn({"x": X}, ONES)
    for ends in (X[-1] + np.array([1.0, 2.0, 3.0]), X[0] - np.array([3.0, 2.0, 1.0])):
        np.testing.assert_allclose(np.diff(learned.columns({"x": ends}), 2, axis=0), 0.0, atol=1e-10)


def test_cyclic_smooths_end_where_they_begin():
    learned = Smooth("x", k=8, cyclic=(0.0, 20.0)).learn({"x": X}, ONES)
    near = learned.columns({"x": np.array([0.0, 20.0, 1e-7, 20.0 - 1e-7, 23.0, 3.0])})
    np.testing.assert_allclose(near[0], near[1], atol=1e-9)
    np.testing.assert_allclose(near[2] - near[0], near[0] - near[3], atol=1e-9)
    np.testing.assert_allclose(near[4], near[5])


@pytest.mark.parametrize(("shift", "unit"), [(1e6, 1.0), (0.0, 1e-6), (-3.0, 1e4)])
def test_units_and_origins_of_columns_do_not_matter(shift, unit):
    one = Smooth("x").learn({"x": X}, ONES).columns({"x": X})
    other = Smooth("x").learn({"x": shift + unit * X}, ONES).columns({"x": shift + unit * X})
    np.testing.assert_allclose(np.abs(other), np.abs(one), atol=1e-5)


def test_smooths_times_a_column_and_of_every_level():
    frame = {"x": X, "z": RNG.normal(size=X.size), "g": RNG.choice(["a", "b"], X.size)}
    plain = Smooth("x", k=5).learn(frame, ONES).columns(frame)
    times = Smooth("x", k=5, by="z").learn(frame, ONES)
    np.testing.assert_allclose(times.columns(frame), frame["z"][:, None] * plain)
    assert Smooth("x", by="z").linear(frame) == ("z", "x:z")
    each = Smooth("x", k=5, by="g").learn(frame, ONES)
    found = dense(each.columns(frame))
    for k, level in enumerate(("a", "b")):
        np.testing.assert_allclose(found[:, 3 * k : 3 * k + 3], plain * (frame["g"] == level)[:, None])
    assert [part.label for part in each.parts] == ["s(x, g=a)", "s(x, g=b)"]
    with pytest.raises(ValueError, match="level 'c' had no rows in the fit"):
        each.columns({"x": [1.0], "g": ["c"]})


def test_a_column_of_two_values_is_no_curve():
    with pytest.raises(ValueError, match=r"s\(x\): column 'x' has 2 distinct values, which make no curve"):
        Smooth("x").learn({"x": np.array([0.0, 1.0, 1.0])}, np.ones(3))
    with pytest.raises(ValueError, match="outside of the period from 0 to 2"):
        Smooth("x", cyclic=(0.0, 2.0)).learn({"x": X}, ONES)


def test_the_straight_part_is_an_ordinary_coefficient_once():
    design, _ = Design.learn([Smooth("x"), Walk("x", order=2)], {"x": X})
    assert design.names.count("x") == 1


# Walks.

TIMES = np.array([0.0, 1.0, 1.5, 4.0, 5.0, 7.0])
LATER = np.array([0.5, 2.0, 6.9, 7.0, 9.0, -2.0])


def test_increments_of_a_walk_have_variances_in_proportion_to_time():
    learned = Walk("t").learn({"t": TIMES}, np.ones(6))
    cov = covariance(learned)
    for a, b in ((0.0, 7.0), (1.5, 4.0), (1.0, 5.0), (2.0, 5.0), (0.5, 7.0), (4.0, 10.0)):
        step = np.diff(dense(learned.rows(np.array([a, b]))), axis=0)[0]
        assert step @ cov @ step == pytest.approx(b - a)


def test_a_walk_that_is_looked_at_more_often_is_the_same_walk():
    frame = {"t": TIMES}
    more = {"t": np.linspace(0.0, 7.0, 15)}
    for order in (1, 2):
        one = Walk("t", order).learn(frame, np.ones(6))
        other = Walk("t", order).learn(more, np.ones(15))
        rows = [dense(learned.rows(TIMES[[1, 3, 4]])) for learned in (one, other)]
        found = [made @ covariance(learned) @ made.T for made, learned in zip(rows, (one, other), strict=True)]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-9 if order == 1 else 0.2)


def test_second_order_walks_change_slopes():
    learned = Walk("t", 2).learn({"t": TIMES}, np.ones(6))
    cov = covariance(learned)
    made, gaps = dense(learned.rows(TIMES)), np.diff(TIMES)
    bends = np.diff(np.diff(made, axis=0) / gaps[:, None], axis=0)
    np.testing.assert_allclose(bends @ cov @ bends.T, np.diag(0.5 * (gaps[1:] + gaps[:-1])), atol=1e-9)


def test_forecasts_of_second_order_walks_go_on_with_growing_spread():
    t = np.arange(10.0)
    learned = Walk("t", 2).learn({"t": t}, np.ones(10))
    made = dense(learned.rows(np.array([8.0, 9.0, 10.0, 12.0])))
    line = made[1:2] + np.array([[1.0], [3.0]]) * (made[1] - made[0])
    np.testing.assert_allclose(made[2:, :-1], line[:, :-1])
    # m steps beyond the end their variance is that of sums of sums of m steps.
    np.testing.assert_allclose(made[2:, -1] ** 2, [1.0, 1.0 + 4.0 + 9.0])


@pytest.mark.parametrize("order", [1, 2])
def test_a_season_returns_to_where_it_began(order):
    learned = Walk("t", order, period=7.0).learn({"t": np.arange(30.0)}, np.ones(30))
    assert learned.knots.size == 7
    made = dense(learned.rows(np.array([0.0, 7.0, 3.25, 31.25, -3.75])))
    np.testing.assert_allclose(made[0], made[1])
    np.testing.assert_allclose(made[2], made[3])
    np.testing.assert_allclose(made[2], made[4])
    # All times are alike: differences to the next one have the same variance.
    steps = np.diff(dense(learned.rows(np.arange(8.0))), axis=0)
    variances = np.diagonal(steps @ covariance(learned) @ steps.T)
    np.testing.assert_allclose(variances, variances[0])


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("period", [None, 9.0])
def test_size_and_determinant_are_those_of_the_dense_matrix(order, period):
    rng = np.random.default_rng(1)
    time, weights = rng.choice(np.append(TIMES, [2.0, 8.0]), 40), rng.uniform(0.5, 2.0, 40)
    learned = Walk("t", order, period).learn({"t": time}, weights)
    structure = learned.parts[0].structure
    assert structure.log_det(np.zeros(1))[0] == pytest.approx(np.linalg.slogdet(dense(learned.penalty))[1])
    made = dense(learned.columns({"t": time}))
    straight = np.vander(time, 1 if period or order == 1 else 2)
    root = np.sqrt(weights)[:, None]
    basis = np.linalg.qr(root * straight)[0]
    rest = root * made - basis @ (basis.T @ (root * made))
    spread = np.trace(rest @ covariance(learned) @ rest.T) / np.sum(weights)
    assert learned.size == pytest.approx(spread)


def test_the_spread_of_long_walks_is_measured_at_some_times():
    t = np.sort(RNG.random(5000))
    assert Walk("t").learn({"t": t}, np.ones(5000)).size == pytest.approx(1.0 / 6.0, rel=0.05)


def test_dates_are_days():
    days = np.array(["2024-01-01", "2024-01-03", "2024-01-10"], dtype="datetime64[D]")
    learned = Walk("t").learn({"t": days}, np.ones(3))
    np.testing.assert_allclose(np.diff(learned.knots), [2.0, 7.0])


def test_walks_need_times():
    with pytest.raises(ValueError, match=r"walk\(t, order=2\): column 't' has 3 distinct times, a walk needs 4"):
        Walk("t", 2).learn({"t": np.arange(3.0)}, np.ones(3))
    with pytest.raises(ValueError, match="order of walk"):
        Walk("t", 3)


# Autoregressive processes.


def test_correlations_fall_with_time():
    learned = Autoregressive("t", ahead=2).learn({"t": TIMES}, np.ones(6))
    rho = 0.7
    cov = covariance(learned, np.array([0.0, np.log(rho / (1.0 - rho))]))
    times = np.append(TIMES, [8.0, 9.0])
    np.testing.assert_allclose(cov[:-1, :-1], rho ** np.abs(times[:, None] - times), atol=1e-12)
    np.testing.assert_allclose(cov[-1], np.eye(1, 9, 8)[0], atol=1e-12)
    made = dense(learned.columns({"t": np.array([1.25, 4.0, 8.5, 40.0, -1.0])}))
    np.testing.assert_allclose(made.sum(axis=1), 1.0)
    np.testing.assert_allclose(made[0, 1:3], 0.5)
    np.testing.assert_allclose(made[3:, -1], 1.0)
