"""Structures: their derivatives match differences, and what they solve is what a dense matrix gives."""

import numpy as np
import pytest
from scipy import sparse

from cavity.terms.structures import RIDGE, Correlated, Exponential, Scaled


def rows(columns):
    rng = np.random.default_rng(0)
    return np.column_stack([np.ones(50), rng.normal(5.0, 2.0, 50), rng.normal(-3.0, 1.0, 50)])[:, :columns]


def moments(columns):
    return rows(columns).T @ rows(columns) / 50.0


def walk(n):
    steps = np.diff(np.eye(n), 2, axis=0)
    return sparse.csr_array(steps.T @ steps)


CASES = [
    Correlated(("one", "two", "three"), 4, moments(3)),
    Correlated(("one", "two"), 4, moments(2)),
    Correlated(("one",), 5, moments(1)),
    Exponential(np.array([0.5, 2.0, 1.0, 0.25, 1.0])),
    Scaled(walk(6), 4),
    Scaled(sparse.csr_array(np.eye(3) + 0.2), 3, 2.0),
]


def dense(structure, values):
    found = np.zeros((structure.width, structure.width))
    found[structure.left, structure.right] = values
    return found + np.triu(found, 1).T


def differences(function, psi, step=1e-6):
    ends = [(function(psi + step * e), function(psi - step * e)) for e in np.eye(psi.size)]
    return np.array([(above - below) / (2.0 * step) for above, below in ends])


def psi_of(structure, seed=1):
    return np.random.default_rng(seed).normal(0.0, 0.7, structure.lower.size)


@pytest.mark.parametrize("structure", CASES, ids=lambda s: type(s).__name__)
def test_derivatives_match_differences(structure):
    psi = psi_of(structure)
    assert np.allclose(structure.derivatives(psi), differences(structure.entries, psi), rtol=1e-5, atol=1e-6)
    assert np.allclose(structure.log_det(psi)[1], differences(lambda p: structure.log_det(p)[0], psi), atol=1e-6)
    slope = differences(lambda p: np.log(structure.spread(p)[0]), psi)
    assert np.allclose(structure.spread(psi)[1], slope, atol=1e-7)


@pytest.mark.parametrize("structure", CASES, ids=lambda s: type(s).__name__)
def test_the_determinant_is_that_of_a_dense_matrix(structure):
    for seed in (1, 2):
        psi = psi_of(structure, seed)
        expected = np.linalg.slogdet(dense(structure, structure.entries(psi)))[1]
        assert structure.log_det(psi)[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("structure", CASES, ids=lambda s: type(s).__name__)
def test_follow_solves_for_the_derivatives(structure):
    psi, x = psi_of(structure), np.random.default_rng(3).normal(size=structure.width)
    precision = dense(structure, structure.entries(psi))
    for slope, found in zip(structure.derivatives(psi), structure.follow(psi, x), strict=True):
        slope = dense(structure, slope)
        assert np.allclose(slope @ found, slope @ np.linalg.solve(precision, slope @ x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("structure", CASES, ids=lambda s: type(s).__name__)
def test_it_starts_at_the_spread_that_is_asked_for(structure):
    assert structure.spread(structure.start(3.0))[0] == pytest.approx(3.0)
    assert np.all((structure.lower < structure.start(3.0)) & (structure.start(3.0) < structure.upper))


def test_the_spread_of_correlated_effects_is_that_of_their_predictors():
    structure, psi = CASES[0], psi_of(CASES[0])
    covariance = structure.covariance(psi)
    each = np.einsum("ij,jk,ik->i", rows(3), covariance, rows(3))
    assert structure.spread(psi)[0] == pytest.approx(float(np.mean(each)))


def test_units_and_origins_of_slopes_change_nothing():
    change = np.array([[1.0, 100.0], [0.0, 0.01]])
    one, two = (Correlated(("one", "two"), 1, part.T @ part / 50.0) for part in (rows(2), rows(2) @ change))
    psi = psi_of(one)
    back = np.linalg.inv(change)
    assert np.allclose(back @ one.covariance(psi) @ back.T, two.covariance(psi))


def test_quantities_are_those_of_the_covariance():
    structure, psi = CASES[1], np.array([0.3, -0.8, 0.5])
    covariance = structure.covariance(psi)
    found = structure.quantities(psi)
    assert found["sd(one)"] == pytest.approx(np.sqrt(covariance[0, 0]))
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert found["correlation(one, two)"] == pytest.approx(correlation)


def test_exponential_correlations_are_powers_of_the_gap():
    structure, psi = CASES[3], np.array([0.4, 0.8])
    covariance = np.linalg.inv(dense(structure, structure.entries(psi)))
    rho = structure.quantities(psi)["correlation"]
    times = np.append(0.0, np.cumsum(structure.gaps))
    assert np.allclose(covariance, np.exp(0.4) * rho ** np.abs(times[:, None] - times))


def test_an_intrinsic_structure_has_a_ridge():
    precision = dense(CASES[4], CASES[4].entries(np.zeros(1)))
    assert np.linalg.eigvalsh(precision)[:2] == pytest.approx([RIDGE, RIDGE], rel=1e-3)


@pytest.mark.parametrize("log_variance", [-25.0, -12.0, 0.0, 12.0, 20.0])
def test_the_determinant_of_a_long_walk_knows_the_ridge(log_variance):
    """Of 500 points many directions have a smaller penalty than the ridge: the gradient is not the rank."""
    structure, psi = Scaled(walk(500), 498), np.array([log_variance])
    eigenvalues = np.linalg.eigvalsh(walk(500).toarray())
    eigenvalues[:2] = 0.0
    each = eigenvalues * np.exp(-log_variance)
    value, gradient = structure.log_det(psi)
    assert value == pytest.approx(np.sum(np.log(each + RIDGE)), abs=0.01)
    assert gradient[0] == pytest.approx(-np.sum(each / (each + RIDGE)), abs=0.01)


def test_effects_of_very_different_variances_keep_their_precision():
    structure, psi = Correlated(("one", "two"), 1, moments(2)), np.array([-22.0, 16.0, 2.0])
    r, sd, root = np.tanh(psi[2]), np.exp(0.5 * psi[:2]), np.linalg.cholesky(moments(2))
    inner = np.array([[1.0, -r], [-r, 1.0]]) / (1.0 - r**2) / np.outer(sd, sd)
    np.testing.assert_allclose(dense(structure, structure.entries(psi)), root @ inner @ root.T, rtol=1e-10)


def test_correlations_close_to_one_are_exact():
    structure, psi = Exponential(np.full(4, 1e-3)), np.array([0.0, 14.0])
    gap = 1e-3 * np.log1p(np.exp(-14.0))
    assert structure.entries(psi)[0] == pytest.approx(1.0 / -np.expm1(-2.0 * gap), rel=1e-12)
    assert structure.log_det(psi)[0] == pytest.approx(-4.0 * np.log(-np.expm1(-2.0 * gap)), rel=1e-12)


@pytest.mark.parametrize(
    ("structure", "data"),
    [
        (Correlated(("one", "two", "three"), 4, moments(3)), np.kron(np.eye(4), 7.0 * moments(3))),
        (Correlated(("one", "two"), 5, moments(2)), np.kron(np.eye(5), 0.2 * moments(2))),
        (Exponential(np.array([0.7])), np.diag([2.0, 5.0])),
        (Scaled(sparse.csr_array(np.eye(4)), 4), 3.0 * np.eye(4)),
    ],
    ids=lambda s: type(s).__name__,
)
def test_information_is_that_of_a_dense_matrix(structure, data):
    """Where rows of one level, or of one pair of times, say nothing of others; up to a constant."""
    apart = []
    for seed in range(5):
        psi = psi_of(structure, seed)
        precision = dense(structure, structure.entries(psi))
        V = np.linalg.inv(precision + data)
        free = np.linalg.inv(precision) - V
        each = [free @ dense(structure, slope) for slope in structure.derivatives(psi)]
        wanted = 0.5 * np.linalg.slogdet([[np.trace(a @ b) for a in each] for b in each])[1]
        beside = V[structure.left[structure.width :], structure.right[structure.width :]]
        apart.append(structure.log_information(psi, np.diagonal(V)[None], beside[None]) - wanted)
    np.testing.assert_allclose(apart, apart[0], atol=1e-9)


@pytest.mark.parametrize("log_variance", [-3.0, -1.5, -0.7, 0.2, 1.2])
def test_information_about_perfect_correlations_depends_on_no_origin(log_variance):
    """Far from the origin of the slope, numbers of the prior and posterior covariances cancel."""
    psi, found = np.array([log_variance, -5.9, 7.0]), []
    for origin in (0.0, 50.0):
        change = np.array([[1.0, origin], [0.0, 10.0]])
        M = change.T @ change
        structure = Correlated(("one", "two"), 6, M)
        V = np.linalg.inv(structure.precision(psi) + 400.0 * M)
        found.append(structure.log_information(psi, np.tile(np.diagonal(V), 6)[None], np.full((1, 6), V[0, 1])))
    assert found[1] == pytest.approx(found[0], abs=0.2)
