from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from cases import (
    all_components,
    as_cost_factor,
    assert_close,
    assert_same,
    fit,
    random_rows,
    random_signs,
    random_targets,
    seeds,
    size,
    standard_prior,
)
from cavity import LinearFactor, losses
from cavity.factors import LinearBatches
from cavity.losses import Hinge, Logistic, Poisson, Squared

STAR = 1e-10
ROUNDING = 1e-10
GRADIENT_ERROR = 1e-7
LOSSES = all_components(losses)


@st.composite
def problems(draw, dim=None):
    """Generator of the targets, rows with zeros and untouched columns in either precision, weights or None."""
    rng = np.random.default_rng(draw(seeds))
    n, dim = draw(st.integers(1, 8)), draw(st.integers(1, 7)) if dim is None else dim
    X = random_rows(rng, n, dim, density=draw(st.sampled_from([0.3, 1.0])), untouched=draw(st.booleans()))
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], n) if draw(st.booleans()) else None
    return rng, X.astype(draw(st.sampled_from([np.float64, np.float32]))), weights


def pair(loss, problem):
    """The same factor from dense and from CSR rows."""
    rng, X, weights = problem
    y = random_targets(loss, rng, len(X))
    return LinearFactor(loss, X, y, weights), LinearFactor(loss, sparse.csr_array(X), y, weights)


def plain_cost(loss, X, y, weights):
    """The cost written out row by row over all coordinates."""
    X, weights = np.asarray(X, dtype=np.float64), np.ones(len(y)) if weights is None else weights
    return lambda t: sum(w * loss.value(k, row @ t) for w, k, row in zip(weights, y, X, strict=True))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(problems())
def test_the_star_is_that_of_the_same_cost_as_a_black_box(loss, problem):
    rng, X, weights = problem
    y = random_targets(loss, rng, len(X))
    plain, center = plain_cost(loss, X, y, weights), rng.standard_normal(X.shape[1])
    steps = rng.uniform(0.1, 3.0, X.shape[1])
    for rows in (X, sparse.csr_array(X)):
        factor = LinearFactor(loss, rows, y, weights)
        chosen = slice(None) if factor.coordinates is None else factor.coordinates
        found = factor.star(center[chosen], steps[chosen])
        wanted = as_cost_factor(factor).star(center[chosen], steps[chosen])
        scale = 1.0 + abs(wanted.center) + np.max(np.abs([wanted.up, wanted.down]), initial=0.0)
        assert_close(found.center, wanted.center, STAR * scale)
        assert_close(found.up, wanted.up, STAR * scale)
        assert_close(found.down, wanted.down, STAR * scale)
        arms = np.diag(steps)[chosen]
        assert_close(found.center, plain(center), STAR * scale)
        assert_close(found.up, [plain(center + arm) for arm in arms], STAR * scale)
        assert_close(found.down, [plain(center - arm) for arm in arms], STAR * scale)


def assert_near(found, wanted):
    """Compare arrays to rounding of their largest entry: a loss may grow exponentially."""
    assert_close(found, wanted, ROUNDING * (1.0 + np.max(np.abs(wanted), initial=0.0)))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(problems())
def test_dense_and_sparse_rows_give_the_same_factor(loss, problem):
    dense, csr = pair(loss, problem)
    rng, d = problem[0], size(dense)
    points, steps, precision = rng.standard_normal((3, d)), rng.uniform(0.1, 2.0, d), rng.uniform(0.5, 2.0, d)
    assert dense.dim == csr.dim
    assert (dense.coordinates is None) == (csr.coordinates is None)
    assert dense.coordinates is None or np.array_equal(dense.coordinates, csr.coordinates)
    assert_near(dense.cost(points), csr.cost(points))
    for curvature in ("exact", "slope"):
        for a, b in zip(dense.derivatives(points[0], curvature), csr.derivatives(points[0], curvature), strict=True):
            assert_near(a, b)
        directions = [f.newton_direction(points[0], steps, precision, 0.7, curvature) for f in (dense, csr)]
        assert_near(*directions)
    for a, b in zip(dense.star(points[0], steps), csr.star(points[0], steps), strict=True):
        assert_near(a, b)


@given(problems())
def test_only_columns_with_a_non_zero_are_touched(problem):
    _, X, weights = problem
    kept = X if weights is None else X[weights > 0.0]
    wanted = np.flatnonzero(np.any(kept != 0.0, axis=0))
    for factor in pair(Logistic(), problem):
        found = np.arange(X.shape[1]) if factor.coordinates is None else factor.coordinates
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("loss", [Logistic(2.0), Squared(0.5)], ids=repr)
@given(problems())
def test_derivatives_are_those_of_the_cost(loss, problem):
    factor = pair(loss, problem)[0]
    point = problem[0].standard_normal(size(factor))
    value, gradient, curvature = factor.derivatives(point)
    wanted = as_cost_factor(factor).derivatives(point)
    scale = 1.0 + abs(value) + np.max(np.abs(curvature), initial=0.0)
    assert value == pytest.approx(wanted.value, rel=ROUNDING)
    assert_close(gradient, wanted.gradient, GRADIENT_ERROR * scale)
    assert_close(curvature, wanted.curvature, 10.0 * GRADIENT_ERROR * scale)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_slope_in_place_of_curvature_is_its_size_times_the_squares(loss):
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((6, 3)), random_targets(loss, rng, 6), rng.uniform(0.5, 2.0, 6)
    t = rng.standard_normal(3)
    factor = LinearFactor(loss, X, y, w)
    _, slope, second = loss.derivatives(y, X @ t)
    assert factor.has_slope
    assert_close(factor.derivatives(t, "exact").curvature, (w * second) @ X**2, ROUNDING)
    assert_close(factor.derivatives(t, "slope").curvature, (w * np.abs(slope)) @ X**2, ROUNDING)
    assert_close(factor.derivatives(t, "slope").gradient, (w * slope) @ X, ROUNDING)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (4, 4)])
@pytest.mark.parametrize("curvature", ["exact", "slope"])
def test_newtons_direction_solves_with_all_second_derivatives(shape, curvature):
    rng = np.random.default_rng(1)
    X, y, w = rng.standard_normal(shape), random_signs(rng, shape[0]), rng.uniform(0.5, 2.0, shape[0])
    point, gradient, precision = (
        rng.standard_normal(shape[1]),
        rng.standard_normal(shape[1]),
        rng.uniform(1, 2, shape[1]),
    )
    _, slope, second = Logistic().derivatives(y, X @ point)
    H = np.diag(precision) + 0.7 * (X.T * w * (second if curvature == "exact" else np.abs(slope))) @ X
    found = LinearFactor(Logistic(), X, y, w).newton_direction(point, gradient, precision, 0.7, curvature)
    assert_close(found, -np.linalg.solve(H, gradient), ROUNDING)


def test_newtons_direction_survives_what_is_not_finite():
    factor = LinearFactor(Logistic(), [[1.0, 2.0]], [1.0])
    with np.errstate(invalid="ignore"):
        direction = factor.newton_direction(np.full(2, np.nan), np.full(2, np.nan), np.ones(2), 1.0, "exact")
    assert direction.shape == (2,)


@dataclass
class Counting:
    """Logistic loss that counts how many entries it was asked for."""

    asked: list = field(default_factory=list)
    targets: str = "signs"

    def value(self, y, z):
        self.asked.append(np.broadcast(y, z).size)
        return Logistic().value(y, z)

    derivatives = None


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_the_star_costs_one_loss_an_entry_and_direction(storage):
    rng = np.random.default_rng(0)
    X, loss = random_rows(rng, 20, 50, density=0.1, untouched=False), Counting()
    factor = LinearFactor(loss, storage(X), random_signs(rng, 20))
    d = size(factor)
    factor.star(np.zeros(d), np.ones(d))
    entries = 20 * d if storage is np.asarray else np.count_nonzero(X)
    assert sum(loss.asked) <= 2 * entries + 20


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("scheme", ["la", "qla", "gq", "vq"])
def test_a_whole_weight_is_a_row_repeated(loss, scheme):
    rng = np.random.default_rng(3)
    X, y, w = rng.standard_normal((5, 3)), random_targets(loss, rng, 5), np.array([1, 3, 2, 1, 4])
    weighted = fit([LinearFactor(loss, X, y, w)], standard_prior(3, 0.2), scheme)
    repeated = fit([LinearFactor(loss, np.repeat(X, w, axis=0), np.repeat(y, w))], standard_prior(3, 0.2), scheme)
    assert_close(weighted.mean, repeated.mean, ROUNDING)
    assert_close(weighted.variance, repeated.variance, ROUNDING)
    assert weighted.log_evidence == pytest.approx(repeated.log_evidence, abs=ROUNDING)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("scheme", ["la", "qla", "gq", "vq"])
def test_weight_zero_is_the_row_removed(scheme, storage):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((6, 4)), random_signs(rng, 6)
    X[:5, 2] = 0.0  # touched by the last row only
    w = np.array([1.0, 0.0, 2.0, 1.0, 0.0, 0.0])
    kept = w > 0.0
    zero = LinearFactor(Logistic(), storage(X), y, w)
    gone = LinearFactor(Logistic(), storage(X[kept]), y[kept], w[kept])
    assert zero.coordinates.tolist() == gone.coordinates.tolist() == [0, 1, 3]
    a, b = (fit([factor], standard_prior(4), scheme) for factor in (zero, gone))
    assert_same(a.posterior, b.posterior, ROUNDING)
    assert_same(a.sites[0], b.sites[0], ROUNDING)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_all_weights_zero_is_the_constant_factor(storage):
    factor = LinearFactor(Logistic(), storage(np.eye(3)), np.ones(3), np.zeros(3))
    assert factor.coordinates.size == 0
    for scheme in ("la", "qla", "gq", "vq"):
        result = fit([factor], standard_prior(3), scheme)
        assert result.log_evidence == pytest.approx(0.0, abs=ROUNDING)
        assert_close(result.variance, np.ones(3), ROUNDING)


def test_sparse_rows_of_any_form_are_brought_into_order_and_left_as_they_were():
    X = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    doubled = sparse.coo_array(([1.0, 1.0, 3.0, 0.0], ([0, 0, 1, 1], [1, 1, 0, 2])), shape=(2, 3))
    messy = sparse.csr_array(([1.0, 1.0, 0.0, 3.0], [1, 1, 2, 0], [0, 2, 4]), shape=(2, 3))
    before = messy.data.copy(), messy.indices.copy()
    wanted = LinearFactor(Hinge(), X, [1, -1])
    point = np.array([[0.3, -0.2]])
    for rows in (doubled, messy, sparse.csc_array(X), sparse.csr_matrix(X), sparse.csr_array(X.astype(int))):
        factor = LinearFactor(Hinge(), rows, [1, -1])
        assert factor.coordinates.tolist() == [0, 1]  # a stored zero touches nothing
        assert_close(factor.cost(point), wanted.cost(point), ROUNDING)
        assert_close(factor.star(point[0], np.ones(2)).up, wanted.star(point[0], np.ones(2)).up, ROUNDING)
    assert np.array_equal(messy.data, before[0])
    assert np.array_equal(messy.indices, before[1])


@pytest.mark.parametrize("dtype", [bool, int, np.float32, np.float64])
def test_rows_of_any_real_kind_are_taken(dtype):
    factor = LinearFactor(Hinge(), np.eye(2).astype(dtype), [1, -1])
    assert factor.cost(np.array([[0.5, 0.5]])) == [2.0]
    assert factor.cost(np.array([[0.1, 0.0]])).dtype == np.float64


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("weighted", [False, True])
def test_batches_are_consecutive_rows_and_the_last_may_be_short(storage, weighted):
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((11, 3)), random_signs(rng, 11)
    w = rng.uniform(0.5, 2.0, 11) if weighted else None
    batches = LinearFactor.batches(Logistic(), storage(X), y, batch_size=4, weights=w)
    assert len(batches) == 3
    assert batches.dim == 3
    assert [f.targets.size for f in batches] == [4, 4, 3]
    point = rng.standard_normal((2, 3))
    for k, factor in enumerate(batches):
        rows = slice(4 * k, 4 * k + 4)
        alone = LinearFactor(Logistic(), X[rows], y[rows], None if w is None else w[rows])
        assert_close(factor.cost(point), alone.cost(point), ROUNDING)
    assert_close(batches.cost(point), sum(f.cost(point) for f in batches), ROUNDING)
    assert batches.cost(point[0]) == pytest.approx(batches.cost(point)[0])
    assert_close(batches[-1].cost(point), batches[2].cost(point), 0.0)
    assert [f.targets.size for f in batches[1:]] == [4, 3]
    with pytest.raises(IndexError):
        batches[3]


def test_batches_do_not_copy_the_data():
    X = np.random.default_rng(0).standard_normal((10, 2))
    batches = LinearFactor.batches(Logistic(), X, np.ones(10))
    assert np.shares_memory(batches.X, X)
    big = sparse.csr_array(X)
    assert np.shares_memory(LinearFactor.batches(Logistic(), big, np.ones(10)).X.data, big.data)


@pytest.mark.parametrize("loss", [Hinge(), Squared()], ids=repr)
@given(problems())
def test_rows_come_back_in_all_coordinates(loss, problem):
    _, X, weights = problem
    kept = X if weights is None else X[weights > 0.0]
    dense, csr = pair(loss, problem)
    assert np.array_equal(dense.rows, kept)
    assert sparse.issparse(csr.rows)
    assert np.array_equal(csr.rows.toarray(), kept)


@given(st.lists(problems(dim=3), min_size=1, max_size=3), st.sampled_from(["dense", "csr", "mixed"]))
def test_factors_stacked_are_batches_of_the_same_factors(parts, storage):
    pairs = [pair(Logistic(), part) for part in parts]
    factors = [p[{"dense": 0, "csr": 1, "mixed": k % 2}[storage]] for k, p in enumerate(pairs)]
    stacked = LinearBatches.stack(factors)
    points = np.random.default_rng(0).standard_normal((2, 3))
    assert len(stacked) == len(factors)
    for k, factor in enumerate(factors):
        chosen = slice(None) if factor.coordinates is None else factor.coordinates
        assert_close(stacked[k].cost(points[:, chosen]), factor.cost(points[:, chosen]), ROUNDING)
        assert np.array_equal(stacked[k].targets, factor.targets)
    total = sum(f.cost(points[:, slice(None) if f.coordinates is None else f.coordinates]) for f in factors)
    assert_close(stacked.cost(points), total, ROUNDING)


def test_losses_of_every_row_are_without_weights():
    batches = LinearFactor.batches(Hinge(), [[1.0], [2.0]], [1, -1], weights=[3.0, 5.0])
    assert batches.losses([0.5]).tolist() == [0.5, 2.0]
    assert batches.losses([[0.0], [0.5]]).tolist() == [[1.0, 1.0], [0.5, 2.0]]
    assert batches.cost([0.5]) == 3.0 * 0.5 + 5.0 * 2.0


def test_the_usual_batch_size_is_ten():
    assert len(LinearFactor.batches(Logistic(), np.ones((31, 1)), np.ones(31))) == 4


X2 = np.ones((2, 2))


@pytest.mark.parametrize("build", [LinearFactor, LinearFactor.batches], ids=["factor", "batches"])
@pytest.mark.parametrize(
    ("loss", "X", "y", "kwargs", "message"),
    [
        (Hinge(), X2, [1, -1, 1], {}, r"targets must be one number per row, shape \(2,\), got \(3,\)"),
        (Hinge(), X2, [[1], [-1]], {}, r"targets must be one number per row, shape \(2,\), got \(2, 1\)"),
        (Hinge(), np.ones(2), [1, -1], {}, r"X must be a matrix with at least one column, got shape \(2,\)"),
        (Hinge(), np.ones((2, 0)), [1, -1], {}, r"X must be a matrix with at least one column, got shape \(2, 0\)"),
        (Hinge(), np.ones((2, 2, 2)), [1, -1], {}, r"X must be a matrix .* got shape \(2, 2, 2\)"),
        (Hinge(), X2, [0, 1], {}, r"Hinge needs the labels -1 and \+1, got 0, 1; map two classes with np\.where"),
        (Logistic(), X2, [True, False], {}, r"Logistic needs the labels -1 and \+1, got 0, 1; map two classes"),
        (Logistic(), X2, [1, 2], {}, r"Logistic needs the labels -1 and \+1, got 1, 2"),
        (Hinge(), np.ones((3, 1)), [1, 2, 3], {}, r"-1 and \+1, got 1, 2, 3; take one against the rest"),
        (Hinge(), np.ones((6, 1)), range(6), {}, r"got 0, 1, 2, 3, \.\.\.; take one against the rest"),
        (Hinge(), X2, ["g", "b"], {}, r"targets must be numbers, got <U1; encode the classes as -1 and \+1"),
        (Poisson(), X2, [3, -1], {}, r"Poisson needs counts of zero or more, got -1 in row 1; drop .* real targets"),
        (Squared(), X2, [0.5, np.nan], {}, "targets must be finite, got NaN or infinity; drop these rows"),
        (Hinge(), [[1.0, 1.0], [1.0, np.nan]], [1, -1], {}, "X must be finite, but row 1 has NaN or infinity; drop or"),
        (Hinge(), [[-np.inf, 1.0], [1.0, 1.0]], [1, -1], {}, "X must be finite, but row 0 has NaN or infinity"),
        (Hinge(), sparse.csr_array([[0, 1], [1, np.inf]]), [1, -1], {}, "X must be finite, but row 1 has NaN or inf"),
        (Hinge(), sparse.csr_array([[0, 0], [np.nan, 1]]), [1, -1], {}, "X must be finite, but row 1 has NaN or inf"),
        (Hinge(), np.array([["a"], ["b"]]), [1, -1], {}, "X must hold real numbers, got <U1"),
        (Hinge(), 1j * X2, [1, -1], {}, "X must hold real numbers, got complex128"),
        (Hinge(), sparse.csr_array(1j * X2), [1, -1], {}, "X must hold real numbers, got complex128"),
        (Squared(), X2, [1j, 2j], {}, "targets must be .*numbers, got complex128"),
        (Hinge(), X2, [1, -1], {"weights": [1.0]}, r"weights must be one number per row, shape \(2,\), got \(1,\)"),
        (Hinge(), X2, [1, -1], {"weights": [1.0, -1.0]}, "weights must be finite and not negative"),
        (Hinge(), X2, [1, -1], {"weights": [1.0, np.nan]}, "weights must be finite and not negative"),
        (Hinge(), X2, [1, -1], {"weights": [1.0, np.inf]}, "weights must be finite and not negative"),
    ],
)
def test_bad_data_are_refused(build, loss, X, y, kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(loss, X, y, **kwargs)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, np.inf, np.nan, None, "3", True])
def test_bad_batch_sizes_are_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size must be a whole number of at least 1, got {batch_size!r}"):
        LinearFactor.batches(Hinge(), X2, [1, -1], batch_size)


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="X must have at least one row, got none"):
        LinearFactor.batches(Hinge(), np.ones((0, 2)), [])
