"""Exact projection: exact where it says so, equal when compiled, and the numbers of the prototype."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_breast_cancer

from cases import (
    Asymmetric,
    all_components,
    as_cost_factor,
    assert_close,
    assert_same,
    bare_fit,
    normalized,
    random_cavity,
    random_rows,
    random_signs,
    seeds,
    size,
    storages,
)
from cavity import FactorialGaussian, LinearFactor, losses
from cavity.schemes import ExactProjection
from cavity.testing import check_scheme

# Runs of few loops, compared with each other: that they have not converged is no news.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

EXACT = 1e-9
INTEGRATED = 1e-6
PARITY = 1e-10


LOSSES = [*all_components(losses), Asymmetric()]


def targets_for(loss, rng, n):
    draw = {"signs": random_signs, "reals": lambda r, n: r.standard_normal(n), "counts": lambda r, n: r.poisson(2.0, n)}
    draw["positives"] = lambda r, n: r.gamma(2.0, 1.0, n)
    return draw[loss.targets](rng, n)


def grid_moments(factor, cavity, beta, points=801, reach=9.0):
    """Log mass, means and variances of cavity times factor in two coordinates, by the trapezoidal rule."""
    x = np.linspace(-reach, reach, points)
    theta = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2) * cavity.std + cavity.mean
    height = normalized(cavity).log_density(theta) - beta * factor.cost(theta)
    f = np.exp(height - np.max(height))
    mass, mean = np.sum(f), f @ theta / np.sum(f)
    variance = f @ (theta - mean) ** 2 / mass
    return np.max(height) + np.log(mass * np.prod(cavity.std) * (x[1] - x[0]) ** 2), mean, variance


def test_the_scheme_keeps_the_contract():
    check_scheme(ExactProjection())


def test_what_is_not_linear_is_refused():
    factor = as_cost_factor(LinearFactor(losses.Hinge(), [[1.0]], [1.0]))
    with pytest.raises(ValueError, match=r"scheme='exact' needs a LinearFactor.*got CostFactor.*use scheme='vq'"):
        ExactProjection().check(factor)
    with pytest.raises(ValueError, match="needs a LinearFactor"):
        bare_fit([factor], FactorialGaussian.from_moments([0.0], 1.0), "exact")


@pytest.mark.parametrize("order", [0, 33, 2.5, None, True])
def test_a_bad_order_is_refused(order):
    with pytest.raises(ValueError, match=f"order must be a whole number from 1 to 32, got {order}"):
        ExactProjection(order)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_one_row_is_exact(loss):
    """Against integration in two dimensions, whose grid sees kinks less sharply."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        factor = LinearFactor(loss, rng.standard_normal((1, 2)), targets_for(loss, rng, 1), [1.3])
        cavity_ = random_cavity(rng, 2, 0.3)
        log_mass, mean, variance = grid_moments(factor, cavity_, 0.8)
        product = normalized(cavity_) * ExactProjection().approximate(factor, cavity_, 0.8)
        assert product.log_mass == pytest.approx(log_mass, abs=1e-4)
        assert_close((product.mean - mean) / cavity_.std, 0.0, 1e-4)
        assert_close(product.variance / variance, 1.0, 1e-4)


@given(seeds, st.integers(1, 6), st.floats(0.05, 20.0), st.sampled_from([0.3, 1.0]))
def test_one_row_of_the_squared_loss_is_the_projection_of_the_true_gaussian(seed, dim, scale, beta):
    rng = np.random.default_rng(seed)
    x, y, cavity_ = rng.standard_normal(dim) + 0.01, rng.standard_normal(), random_cavity(rng, dim)
    m, v, noise = x @ cavity_.mean, x**2 @ cavity_.variance, scale**2 / beta
    product = normalized(cavity_) * ExactProjection().approximate(
        LinearFactor(losses.Squared(scale), x[None], [y]), cavity_, beta
    )
    gain = cavity_.variance * x / (v + noise)
    assert_close(product.mean / cavity_.std, (cavity_.mean + gain * (y - m)) / cavity_.std, EXACT)
    assert_close(product.variance / cavity_.variance, 1.0 - gain * x, EXACT)
    evidence = 0.5 * np.log(noise / (v + noise)) - 0.5 * (y - m) ** 2 / (v + noise)
    assert product.log_mass == pytest.approx(evidence, rel=EXACT, abs=1e-7)


@given(seeds)
def test_gaussian_factors_along_the_axes_are_their_own_sites(seed):
    rng, dim = np.random.default_rng(seed), 4
    axes, entries = rng.integers(0, dim, 5), rng.uniform(0.5, 2.0, 5) * random_signs(rng, 5)
    X, y, w, scale = np.zeros((5, dim)), rng.standard_normal(5), rng.uniform(0.5, 2.0, 5), rng.uniform(0.7, 2.0)
    X[np.arange(5), axes] = entries
    factor = LinearFactor(losses.Squared(scale), X, y, w)
    exact = FactorialGaussian(-0.5 * w @ y**2 / scale**2, (w * y) @ X / scale**2, w @ X**2 / scale**2)
    chosen = np.arange(dim) if factor.coordinates is None else factor.coordinates
    cavity_ = random_cavity(rng, size(factor), 0.5)
    assert_same(ExactProjection().approximate(factor, cavity_, 0.7), (exact**0.7).take(chosen), EXACT)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seeds)
def test_rows_that_share_nothing_commute_and_multiply(loss, seed):
    rng = np.random.default_rng(seed)
    X, y, cavity_ = np.diag(rng.uniform(0.5, 2.0, 3)), targets_for(loss, rng, 3), random_cavity(rng, 3)
    site = ExactProjection().approximate(LinearFactor(loss, X, y), cavity_)
    order = rng.permutation(3)
    assert_same(ExactProjection().approximate(LinearFactor(loss, X[order], y[order]), cavity_), site, EXACT)
    for j in range(3):
        one = ExactProjection().approximate(
            LinearFactor(loss, X[j : j + 1, j : j + 1], y[j : j + 1]), cavity_.take([j])
        )
        assert_close(one.precision, site.precision[j], EXACT * (1.0 + abs(site.precision[j])))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_batch_is_its_rows_one_after_the_other(loss):
    rng = np.random.default_rng(1)
    X, y, cavity_ = random_rows(rng, 6, 3, 0.9, untouched=False), targets_for(loss, rng, 6), random_cavity(rng, 3)
    product = cavity_
    for x, target in zip(X, y, strict=True):
        factor = LinearFactor(loss, x[None], [target])
        chosen = np.arange(3) if factor.coordinates is None else factor.coordinates
        product = product * ExactProjection().approximate(factor, product.take(chosen)).scatter(chosen, 3)
    whole = cavity_ * ExactProjection().approximate(LinearFactor(loss, X, y), cavity_)
    assert_same(whole, product, EXACT)


def test_rows_of_zeros_are_constants_and_weights_are_powers():
    cavity_ = FactorialGaussian.from_moments([0.2, -0.4], 1.5)
    rows, y = [[1.0, 0.5], [0.0, 0.0], [0.3, -1.0]], [1.0, -1.0, -1.0]
    for loss in (losses.Hinge(), losses.Logistic()):
        with_zeros = ExactProjection().approximate(LinearFactor(loss, rows, y), cavity_, 0.7)
        without = ExactProjection().approximate(LinearFactor(loss, rows[::2], y[::2]), cavity_, 0.7)
        constant = FactorialGaussian(-0.7 * loss.value(-1.0, 0.0), np.zeros(2), np.zeros(2))
        assert_same(with_zeros, without * constant, EXACT)
        weighted = ExactProjection().approximate(LinearFactor(loss, rows, y, [0.7] * 3), cavity_)
        assert_same(weighted, with_zeros, EXACT)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seeds, st.floats(0.1, 30.0))
def test_products_stay_proper_and_log_concave_factors_narrow(loss, seed, spread):
    rng = np.random.default_rng(seed)
    factor = LinearFactor(loss, rng.standard_normal((5, 4)), targets_for(loss, rng, 5))
    cavity_ = FactorialGaussian.from_moments(np.minimum(spread * rng.standard_normal(4), 2.0), spread**2)
    site = ExactProjection().approximate(factor, cavity_)
    assert (cavity_ * site).is_proper
    if not isinstance(loss, losses.QuasiZeroOne):
        assert np.all(site.precision >= -INTEGRATED * cavity_.precision)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_evidence_in_one_dimension(loss):
    """One row: exact. Six rows: what EP makes of them, near what integration gives unless there are several peaks."""
    rng = np.random.default_rng(2)
    X, y = rng.uniform(0.5, 1.5, (6, 1)), targets_for(loss, rng, 6)
    prior = FactorialGaussian.from_moments([0.1], 2.0)
    t = np.linspace(-15.0, 15.0, 200_001)[:, None]
    for n, tol in ((1, INTEGRATED), (6, 0.3 if isinstance(loss, losses.QuasiZeroOne) else 0.05)):
        factors = LinearFactor.batches(loss, X[:n], y[:n], 1)
        height = prior.log_density(t) - factors.cost(t)
        f = np.exp(height)
        truth = np.log(np.sum(f) * (t[1, 0] - t[0, 0]))
        result = bare_fit(factors, prior, "exact", compiled=False, tol=1e-10, max_iter=50)
        assert result.log_evidence == pytest.approx(truth, abs=tol)
        assert result.mean[0] == pytest.approx(np.sum(f * t[:, 0]) / np.sum(f), abs=tol)


def problem():
    """Rows with many zeros, one column missing from the first batch, weights of which some are zero."""
    rng = np.random.default_rng(0)
    X = 0.5 * rng.normal(size=(57, 9)) * (rng.random((57, 9)) < 0.4)
    X[:10, 3] = 0.0
    weights = rng.integers(0, 3, 57).astype(float)
    return X, weights, FactorialGaussian.from_moments(0.1 * rng.normal(size=9), 2.0)


def gap(a, b):
    """Largest difference relative to one plus the size."""
    a, b = np.asarray(a), np.asarray(b)
    return float(np.max(np.abs(a - b) / (1.0 + np.abs(a)), initial=0.0))


def assert_same_run(plain, fast, tol=PARITY):
    assert plain.status is fast.status
    assert plain.trace.refusals == fast.trace.refusals
    assert plain.trace.dampings == fast.trace.dampings
    assert gap(plain.mean, fast.mean) < tol
    assert gap(plain.variance, fast.variance) < tol
    assert abs(plain.posterior.log_mass - fast.posterior.log_mass) < tol * (1.0 + abs(plain.posterior.log_scale))
    assert len(plain.sites) == len(fast.sites)
    for one, other in zip(plain.sites, fast.sites, strict=True):
        assert gap(one.log_scale, other.log_scale) < tol
        assert gap(one.shift, other.shift) < tol
        assert gap(one.precision, other.precision) < tol


# Each is a compilation of five seconds. Kernels have forms of their own for the logistic loss, for straight pieces and
# for the squared loss, and integrate any other; the first two meet both storages. What they make of every loss
# is compared in test_compiled_moments.py.
@pytest.mark.parametrize(
    ("loss", "storage"),
    [
        *((loss, "csr") for loss in (losses.Logistic(), losses.Hinge(), losses.Squared())),
        *((loss, "dense") for loss in (losses.Logistic(), losses.Hinge(), losses.Huber())),
    ],
    ids=repr,
)
def test_compiled_equals_plain(loss, storage):
    X, weights, prior = problem()
    y = targets_for(loss, np.random.default_rng(1), len(X))
    rows = storages(X)[storage]
    for sites in ("own", "tied", "none"):
        for w, negative in ((None, "keep"), (weights, "keep"), (weights, "floor"), (weights, "skip")):
            factors = LinearFactor.batches(loss, rows, y, 10, w)
            loops = {"max_iter": 1} if sites == "none" else {"max_iter": 2, "beta": [0.5, 1.0]}
            options = {"power": 0.7, "damping": 0.8, "order": "shuffled", "tol": 0.0, "negative": negative}
            plain, fast = (
                bare_fit(factors, prior, "exact", sites=sites, compiled=compiled, **loops, **options)
                for compiled in (False, True)
            )
            assert_same_run(plain, fast)


@pytest.mark.parametrize("loss", [losses.QuasiZeroOne(), losses.Logistic()], ids=repr)
def test_compiled_equals_plain_on_hard_data(loss):
    """Correlated columns, a wide prior, factors that widen: refusals and dampings, if any, are the same."""
    rng = np.random.default_rng(1)
    common = rng.normal(size=(60, 1))
    X = common + 0.1 * rng.normal(size=(60, 6))
    y = np.where(common[:, 0] + 0.5 * rng.normal(size=60) > 0.0, 1.0, -1.0)
    prior = FactorialGaussian.from_moments(np.zeros(6), 100.0)
    factors = LinearFactor.batches(loss, X, y, 5)
    plain, fast = (bare_fit(factors, prior, "exact", max_iter=5, compiled=compiled) for compiled in (False, True))
    assert_same_run(plain, fast, 1e-8)


def test_compiled_equals_plain_for_odd_batches_and_single_precision():
    X, weights, prior = problem()
    y = random_signs(np.random.default_rng(1), len(X))
    X[10:20] = 0.0
    weights[20:30] = 0.0
    for rows in (*storages(X).values(), X.astype(np.float32), sparse.csr_array(X.astype(np.float32))):
        for batch, w in ((10, weights), (1, None), (1000, None)):
            factors = LinearFactor.batches(losses.Hinge(), rows, y, batch, w)
            assert_same_run(*(bare_fit(factors, prior, "exact", max_iter=2, compiled=c) for c in (False, True)))


def prototype(loss, A, batch, loops, variance, x, w):
    """Exact projection in a dozen lines: moments of every margin on a grid, one stored site a batch."""
    n, d = A.shape
    starts = range(0, n, batch)
    Q, B = np.zeros((len(starts), d)), np.zeros((len(starts), d))
    q, b = np.full(d, 1.0 / variance), np.zeros(d)
    for _ in range(loops):
        for k, first in enumerate(starts):
            left, shift = q - Q[k], b - B[k]
            v = 1.0 / left
            m = shift * v
            for a in A[first : first + batch]:
                mean, width = a @ m, np.sqrt(a**2 @ v)
                f = w * np.exp(-loss.value(1.0, mean + width * x))
                e = f @ x / np.sum(f)
                ratio = f @ (x - e) ** 2 / np.sum(f)
                m, v = m + v * a * e / width, v + (v * a) ** 2 * (ratio - 1.0) / width**2
            q, b = 1.0 / v, m / v
            Q[k], B[k] = q - left, b - shift
    return b / q, 1.0 / q


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
def test_the_numbers_of_the_prototype(loss):
    X, y = load_breast_cancer(return_X_y=True)
    X, y = np.c_[(X - X.mean(0)) / X.std(0), np.ones(len(X))], np.where(y == 0, 1.0, -1.0)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    prior = FactorialGaussian.from_moments(np.zeros(X.shape[1]), 25.0)
    result = bare_fit(
        LinearFactor.batches(loss, X, y, 10), prior, "exact", max_iter=15, tol=0.0, negative="keep", compiled=True
    )
    x = np.linspace(-9.0, 9.0, 4001)
    mean, variance = prototype(loss, X * y[:, None], 10, 15, 25.0, x, np.exp(-0.5 * x * x))
    assert result.trace.updates == 15 * 57
    assert not result.trace.refusals
    assert_close((result.mean - mean) / np.sqrt(variance), 0.0, 1e-4)
    assert_close(result.variance / variance, 1.0, 1e-4)
    # With 24 nodes a row, which wide cavities outrun in the first loop, the prototype itself ended this far off.
    x, w = np.polynomial.hermite_e.hermegauss(24)
    mean, variance = prototype(loss, X * y[:, None], 10, 15, 25.0, x, w)
    assert_close((result.mean - mean) / np.sqrt(variance), 0.0, 0.15)
    assert_close(result.variance / variance, 1.0, 0.03)
