"""Sparse precision matrices: all that they give is that of the dense inverse, and fill is predicted."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.linalg import LinAlgError, solveh_banded

from cavity.gaussians import SparseGaussian, SparsePrecision, analyse, elimination, factorise
from cavity.gaussians import sparse as sparse_module
from cavity.gaussians.sparse import PatternSums, Places, factorise_sums

CLOSE = 1e-8


def one_hot(levels: np.ndarray, size: int) -> sparse.csr_array:
    return sparse.csr_array((np.ones(levels.size), (np.arange(levels.size), levels)), shape=(levels.size, size))


def crossed(rng: np.random.Generator, n: int, a: int, b: int) -> sparse.csr_array:
    return sparse.hstack([one_hot(rng.integers(a, size=n), a), one_hot(rng.integers(b, size=n), b)]).tocsr()


def nested(rng: np.random.Generator, n: int, a: int, b: int) -> sparse.csr_array:
    patients = rng.integers(a * b, size=n)
    levels = ((patients, a * b), (patients % b, b), (patients % b % 3, 3))
    return sparse.hstack([one_hot(level, size) for level, size in levels]).tocsr()


def chain(rng: np.random.Generator, n: int, a: int, b: int) -> sparse.csr_array:
    width = 1 + a % 4
    starts = rng.integers(max(n - width, 1), size=n)
    columns = np.minimum(starts[:, None] + np.arange(width), n - 1)
    rows = np.repeat(np.arange(n), width)
    return sparse.csr_array((rng.normal(size=rows.size), (rows, columns.ravel())), shape=(n, n))


def scattered(rng: np.random.Generator, n: int, a: int, b: int) -> sparse.csr_array:
    shape = (n, a + b)
    return sparse.csr_array(rng.normal(size=shape) * (rng.random(shape) < rng.choice([0.01, 0.05, 0.2])))


def schools(rng: np.random.Generator, n: int, a: int, b: int) -> sparse.csr_array:
    school, pupil, question = rng.integers(7, size=n), rng.integers(a, size=n), rng.integers(b, size=n)
    return sparse.hstack([one_hot(school * a + pupil, 7 * a), one_hot(school * b + question, 7 * b)]).tocsr()


DESIGNS = (crossed, nested, chain, scattered, schools)


def with_dense_columns(rng: np.random.Generator, rows: sparse.csr_array, count: int) -> sparse.csr_array:
    """Rows with dense columns in between, in a random order of columns."""
    both = sparse.hstack([rows, sparse.csr_array(rng.normal(size=(rows.shape[0], count)))]).tocsr()
    return both[:, rng.permutation(both.shape[1])]


def eager(patch: pytest.MonkeyPatch) -> None:
    """Let sets be eliminated where a dense corner would be faster, since problems of tests are small."""
    for name in ("SET_WORK", "FRONT_WORK", "PAIR_WORK", "FLOP_WORK"):
        patch.setattr(elimination, name, 0.0)


def laplacian(left: np.ndarray, right: np.ndarray, size: int) -> sparse.csr_array:
    """Sum over edges of the squared differences of their ends."""
    edges = np.arange(left.size)
    ends = (np.tile(edges, 2), np.concatenate([left, right]))
    differences = sparse.csr_array((np.repeat([1.0, -1.0], left.size), ends), shape=(left.size, size))
    return sparse.csr_array(differences.T @ differences)


def walk(rng: np.random.Generator, size: int) -> sparse.csr_array:
    """A random walk of second order."""
    steps = sparse.eye_array(size, format="csr")
    for _ in range(2):
        steps = sparse.csr_array(steps[1:] - steps[:-1])
    return sparse.csr_array(steps.T @ steps)


def grid(rng: np.random.Generator, size: int) -> sparse.csr_array:
    side = int(np.sqrt(size))
    cells = np.arange(side * side).reshape(side, side)
    left, right = (np.concatenate(ends) for ends in zip(*neighbours(cells), strict=True))
    return laplacian(left, right, size)


def neighbours(cells: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(cells[:-1].ravel(), cells[1:].ravel()), (cells[:, :-1].ravel(), cells[:, 1:].ravel())]


def tree(rng: np.random.Generator, size: int) -> sparse.csr_array:
    children = np.arange(1, size)
    return laplacian(rng.integers(children), children, size)


def star(rng: np.random.Generator, size: int) -> sparse.csr_array:
    """One column that meets all others, of which some meet."""
    a = np.arange(1, size)
    return laplacian(np.concatenate([0 * a, a[:-1:3]]), np.concatenate([a, a[1::3]]), size)


def pieces(rng: np.random.Generator, size: int) -> sparse.csr_array:
    """Blocks of several sizes that do not meet, and columns on their own."""
    blocks = [np.full((k, k), 1.0) for k in rng.integers(1, 9, size=size)]
    whole = sparse.block_diag(blocks).tocsr()
    return sparse.csr_array(whole[:size][:, :size])


def regions(rng: np.random.Generator, size: int) -> sparse.csr_array:
    """Two coefficients for each cell of a grid: its effect, and the part of it that neighbours share."""
    own, shared = sparse.eye_array(size), grid(rng, size)
    return sparse.csr_array(sparse.block_array([[own, -0.5 * own], [-0.5 * own, shared + own]]))


STRUCTURES = (walk, grid, tree, star, pieces, regions)


def dense_precision(X, weights, precisions):
    rows = X.toarray()
    return np.diag(precisions) + rows.T @ (weights[:, None] * rows)


def assert_right(X: sparse.csr_array, weights: np.ndarray, precisions: np.ndarray) -> SparsePrecision:
    """Compare all that a factor gives with the dense inverse."""
    factor = factorise(analyse(X), weights, precisions)
    assert_is_that_of(factor, X, dense_precision(X, weights, precisions))
    return factor


def assert_is_that_of(factor: SparsePrecision, X: sparse.csr_array, matrix: np.ndarray) -> None:
    rows, inverse, identity = X.toarray(), np.linalg.inv(matrix), np.eye(X.shape[1])
    scale = CLOSE * np.max(np.abs(inverse), initial=1.0)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=CLOSE, atol=scale)

    close(factor.solve(identity), inverse)
    close(factor.solve(identity[0]), inverse[0])
    close(factor.variances(), np.diag(inverse))
    close(factor.row_variances(), np.sum((rows @ inverse) * rows, axis=1))
    assert factor.log_det == pytest.approx(np.linalg.slogdet(matrix)[1], rel=CLOSE, abs=CLOSE)
    draws = factor.draws(identity)
    close(draws.T @ draws, inverse)
    np.testing.assert_allclose(factor.matrix.toarray(), np.triu(matrix), rtol=CLOSE, atol=CLOSE * np.abs(matrix).max())
    # Rows with columns that never met, sparse and dense.
    others = np.roll(identity, 1, axis=0) + 0.5 * np.roll(identity, 3, axis=0)
    for form in (np.asarray, sparse.csr_array):
        close(factor.predictor_variance(form(others)), np.sum((others @ inverse) * others, axis=1))


def coupled_factor(X: sparse.csr_array, weights: np.ndarray, prior: sparse.csr_array) -> tuple[SparsePrecision, Places]:
    """Factorise sums over rows plus a sparse matrix, and say where the entries of that lie."""
    analysis, above = analyse(X, coupled=prior), sparse.triu(prior, 1).tocoo()
    places = Places.of(analysis.pattern, *(np.asarray(at, dtype=np.intp) for at in above.coords))
    sums = places.add(PatternSums.of(analysis.rows, weights), above.data)
    return factorise_sums(analysis.pattern, sums, prior.diagonal(), analysis.rows), places


@given(
    st.integers(0, 10_000),
    st.sampled_from(STRUCTURES),
    st.integers(1, 150),
    st.integers(0, 60),
    st.integers(0, 2),
    st.booleans(),
)
def test_rows_beside_a_structured_prior(seed, structure, size, n, border, with_steps):
    rng = np.random.default_rng(seed)
    prior = structure(rng, size)
    width = prior.shape[0]
    X = sparse.random_array((n, width), density=min(1.0, 2.0 / width), rng=rng, format="csr")
    X = sparse.csr_array(sparse.hstack([X, sparse.csr_array(rng.normal(size=(n, border)))]))
    prior = sparse.csr_array(sparse.block_diag([prior, sparse.csr_array((border, border))]))
    prior = sparse.csr_array(prior + 0.1 * sparse.eye_array(width + border))
    shuffled = rng.permutation(width + border)
    X, prior, weights = X[:, shuffled], prior[shuffled][:, shuffled], rng.gamma(1.0, size=n)
    with pytest.MonkeyPatch.context() as patch:
        if with_steps:
            eager(patch)
        factor, places = coupled_factor(X, weights, prior)
        matrix = prior.toarray() + dense_precision(X, weights, np.zeros(width + border))
        assert_is_that_of(factor, X, matrix)
        order = factor.pattern.order
        expected = np.linalg.inv(matrix)[order[places.left], order[places.right]]
        np.testing.assert_allclose(factor.covariances(places), expected, rtol=CLOSE, atol=CLOSE * 10.0)


def test_smooths_beside_levels():
    """Rows with some neighbouring columns of every smooth, and one of many levels."""
    rng = np.random.default_rng(6)
    n, k = 1500, 20
    smooths = []
    for _ in range(5):
        columns = rng.integers(k - 3, size=n)[:, None] + np.arange(4)
        smooths.append(sparse.csr_array((rng.random(4 * n), columns.ravel(), np.arange(0, 4 * n + 1, 4)), shape=(n, k)))
    X = sparse.csr_array(sparse.hstack([*smooths, one_hot(rng.integers(300, size=n), 300)]))
    prior = sparse.csr_array(sparse.block_diag([*[walk(rng, k)] * 5, sparse.eye_array(300)]) + sparse.eye_array(400))
    weights = rng.gamma(1.0, size=n)
    factor, _ = coupled_factor(X, weights, prior)
    assert_is_that_of(factor, X, prior.toarray() + dense_precision(X, weights, np.zeros(400)))


def test_an_analysis_serves_any_weights():
    rng = np.random.default_rng(9)
    X = with_dense_columns(rng, schools(rng, 300, 8, 12), 2)
    analysis = analyse(X)
    for _ in range(2):
        weights, precisions = rng.gamma(1.0, size=300), 0.1 + rng.random(X.shape[1])
        factor = factorise(analysis, weights, precisions)
        assert_is_that_of(factor, X, dense_precision(X, weights, precisions))


def test_an_ill_conditioned_walk_is_solved_as_accurately_as_in_order():
    """Rounding shows, as it must; the order of elimination adds nothing to it."""
    size = 5000
    rng = np.random.default_rng(10)
    weights = rng.gamma(2.0, size=size)
    right = weights * rng.normal(size=size)
    prior = sparse.csr_array(1e9 * walk(rng, size))
    factor, _ = coupled_factor(sparse.eye_array(size, format="csr"), weights, prior)
    matrix = prior.tolil()
    matrix.setdiag(prior.diagonal() + weights)
    banded = np.zeros((3, size))
    for k in range(3):
        banded[2 - k, k:] = matrix.diagonal(k)
    apart = (factor.solve(right) - solveh_banded(banded, right)) / np.sqrt(factor.variances())
    assert np.max(np.abs(apart)) < 1e-5


@pytest.mark.parametrize(
    ("structure", "small", "growth"),
    [(walk, 20_000, 2.1), (tree, 20_000, 2.1), (grid, 10_000, 3.0), (regions, 10_000, 3.0)],
)
def test_the_predicted_work_grows_as_is_known_of_the_pattern(structure, small, growth):
    """Chains and trees: as the number of columns. Grids: as its power of 1.5, at most."""
    rng = np.random.default_rng(7)
    found = []
    for size in (small, 2 * small):
        prior = structure(rng, size)
        width = prior.shape[0]
        found.append(analyse(sparse.csr_array((0, width)), coupled=prior))
    assert found[1].work < growth * found[0].work
    assert found[1].fill < growth * found[0].fill
    assert found[0].work < 5e9  # a quarter of a second


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_predicted_fill_is_that_of_the_factor(structure):
    rng = np.random.default_rng(8)
    prior = structure(rng, 900)
    prior = sparse.csr_array(prior + 0.1 * sparse.eye_array(prior.shape[0]))
    with pytest.MonkeyPatch.context() as patch:
        eager(patch)
        analysis = analyse(sparse.csr_array((0, prior.shape[0])), coupled=prior)
    order = analysis.pattern.order
    root = np.linalg.cholesky(prior.toarray()[order][:, order])
    entries = np.count_nonzero(np.abs(root) > 1e-12)
    # Blocks of pivots are counted as squares.
    assert entries <= analysis.fill <= 2 * entries


@given(
    st.integers(0, 10_000),
    st.sampled_from(DESIGNS),
    st.integers(1, 300),
    st.integers(1, 12),
    st.integers(1, 30),
    st.integers(0, 3),
    st.booleans(),
)
def test_everything_is_that_of_the_dense_inverse(seed, design, n, a, b, border, with_steps):
    rng = np.random.default_rng(seed)
    X = with_dense_columns(rng, design(rng, n, a, b), border)
    with pytest.MonkeyPatch.context() as patch:
        if with_steps:
            eager(patch)
        assert_right(X, rng.gamma(1.0, size=n), rng.gamma(2.0, size=X.shape[1]) + 0.1)


@pytest.mark.parametrize(
    ("design", "a", "b", "steps"),
    [(crossed, 40, 500, 1), (nested, 10, 60, 2), (chain, 3, 1, 8), (scattered, 40, 200, 1), (schools, 15, 60, 3)],
)
def test_several_steps_in_parts(design, a, b, steps, monkeypatch):
    """Small bounds on memory cut steps and rows into parts, which changes nothing."""
    rng = np.random.default_rng(0)
    eager(monkeypatch)
    X = with_dense_columns(rng, design(rng, 600, a, b), 2)
    weights, precisions = rng.gamma(1.0, size=600), np.ones(X.shape[1])
    whole = assert_right(X, weights, precisions)
    assert len(whole.factor.elimination.steps) >= steps
    monkeypatch.setattr(elimination, "_PAIRS_AT_ONCE", 50)
    monkeypatch.setattr(sparse_module, "_BORDER_ROWS_AT_ONCE", 100)
    monkeypatch.setattr(sparse_module, "_ENTRIES_AT_ONCE", 50_000)
    parts = assert_right(X, weights, precisions)
    assert len(parts.factor.elimination.steps) > len(whole.factor.elimination.steps)


def test_rows_that_meet_most_of_the_corner_are_treated_as_dense():
    rng = np.random.default_rng(1)
    X = crossed(rng, 6000, 60, 500)
    factor = assert_right(X, rng.random(6000), np.full(560, 0.5))
    assert any(step.targets is None for step in factor.factor.elimination.steps)


def test_a_chain_is_eliminated_in_few_steps_with_little_fill():
    d = 20_000
    X = sparse.diags_array([np.ones(d), -np.ones(d - 1)], offsets=[0, 1]).tocsr()
    analysis = analyse(X)
    assert analysis.fill < 5 * d
    factor = factorise(analysis, np.ones(d), np.full(d, 1e-3))
    # A random walk observed through a weak prior: far from both ends, the variance is that of the infinite walk.
    assert factor.variances()[d // 2] == pytest.approx(1.0 / np.sqrt((2.0 + 1e-3) ** 2 - 4.0), rel=1e-6)


@pytest.mark.parametrize(
    "X",
    [
        sparse.csr_array(np.array([[2.0]])),
        sparse.csr_array((1, 1)),
        sparse.csr_array((5, 3)),
        sparse.csr_array(np.array([[1.0, 0.0, 3.0, 0.0]])),
        sparse.csr_array(np.ones((4, 6))),
        sparse.csr_array(np.kron(np.eye(9), [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])),
        sparse.csr_array(([1.0, 2.0, 3.0], [1, 1, 0], [0, 3]), shape=(1, 2)),
        sparse.csr_array(([0.0, 2.0, 0.0], [0, 1, 2], [0, 2, 3]), shape=(2, 40)),
    ],
    ids=["one", "empty entry", "no entries", "one row", "all dense", "duplicates", "repeated entries", "stored zeros"],
)
def test_corner_cases(X):
    rng = np.random.default_rng(2)
    assert_right(X, rng.random(X.shape[0]), 1.0 + rng.random(X.shape[1]))


def test_no_rows_leave_the_prior():
    factor = factorise(analyse(sparse.csr_array((0, 4))), np.zeros(0), np.full(4, 2.0))
    np.testing.assert_allclose(factor.variances(), 0.5)
    assert factor.row_variances().shape == (0,)


@pytest.mark.parametrize("border", [0, 2])
def test_weights_of_any_sign_as_long_as_the_matrix_is_positive_definite(border):
    rng = np.random.default_rng(3)
    X = with_dense_columns(rng, crossed(rng, 600, 20, 200), border)
    weights, precisions = rng.normal(size=600), np.full(X.shape[1], 1.0)
    weights[:100] = 0.0
    lowest = np.linalg.eigvalsh(dense_precision(X, weights, precisions))[0]
    assert_right(X, weights, precisions + 0.1 - lowest)
    for bad in (precisions - 0.1 - lowest, np.full(X.shape[1], np.nan)):
        with pytest.raises(LinAlgError, match="not positive definite"):
            factorise(analyse(X), weights, bad)


def test_heavy_fill_is_refused_before_it_is_allocated():
    rng = np.random.default_rng(4)
    n, d, entries = 20_000, 20_000, 5
    columns = rng.integers(d, size=n * entries)
    X = sparse.csr_array((np.ones(n * entries), columns, np.arange(0, n * entries + 1, entries)), shape=(n, d))
    tracemalloc.start()
    analysis = analyse(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert analysis.work == np.inf
    assert peak < 0.25 * 8 * analysis.fill
    with pytest.raises(ValueError, match="too large"):
        factorise(analysis, np.ones(n), np.ones(d))
    small = crossed(rng, 500, 20, 300)
    assert analyse(small, max_memory=1e4).work == analyse(small, max_work=1e4).work == np.inf
    assert np.isfinite(analyse(small).work)


def test_the_search_for_an_order_ends_where_it_would_take_longer_than_a_factorisation(monkeypatch):
    """A long grid: sets become smaller and smaller, and what remains does not become dense."""
    long, wide = 150, 40
    places = np.arange(long * wide).reshape(long, wide)
    left = np.concatenate([places[:, :-1].ravel(), places[:-1].ravel()])
    right = np.concatenate([places[:, 1:].ravel(), places[1:].ravel()])
    met = sparse.coo_array((np.ones(left.size, dtype=bool), (left, right)), shape=(places.size,) * 2).tocsr()
    graph = sparse.csr_array(met + met.T + sparse.eye_array(places.size, dtype=bool))
    levels = len(elimination.dissect(graph, np.inf).levels)
    monkeypatch.setattr(elimination, "_MOST_LOOKED_AT", 5.0 * graph.nnz)
    assert 2 < len(elimination.dissect(graph, np.inf).levels) < 0.5 * levels


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="3 rows and 2 columns"):
        factorise(analyse(sparse.csr_array((3, 2))), np.ones(2), np.ones(2))


@pytest.mark.parametrize("design", DESIGNS)
def test_a_gaussian_is_rebuilt_from_its_matrix_and_border(design):
    rng = np.random.default_rng(5)
    X = with_dense_columns(rng, design(rng, 400, 10, 30), 2)
    d = X.shape[1]
    weights = np.where(rng.random(400) < 0.2, 0.0, rng.random(400))
    gaussian = SparseGaussian(rng.normal(size=d), factorise(analyse(X), weights, np.ones(d)), -1.5)
    factor = gaussian.factor
    copy = SparseGaussian(
        gaussian.mean, SparsePrecision.of(factor.matrix, factor.pattern.order[factor.inner :]), gaussian.log_mass
    )
    noise = rng.normal(size=(3, d))
    assert (copy.dim, copy.log_mass, copy.is_proper) == (d, -1.5, True)
    for a, b in ((copy.mean, gaussian.mean), (copy.std, gaussian.std), (copy.covariance, gaussian.covariance)):
        np.testing.assert_allclose(a, b, rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(copy.draws(noise), gaussian.draws(noise), rtol=CLOSE, atol=CLOSE)
    np.testing.assert_allclose(copy.predictor_variance(X), gaussian.factor.row_variances(), rtol=CLOSE)
    assert copy.factor.log_det == pytest.approx(gaussian.factor.log_det)
    with pytest.raises(ValueError, match="predictor_variance"):
        copy.factor.row_variances()


def test_a_large_covariance_matrix_is_not_made():
    d = 6000
    gaussian = SparseGaussian(np.zeros(d), factorise(analyse(sparse.eye_array(d).tocsr()), np.ones(d), np.ones(d)), 0.0)
    np.testing.assert_allclose(gaussian.variance, 0.5)
    with pytest.raises(ValueError, match="up to 5000 columns, got 6000"):
        _ = gaussian.covariance
