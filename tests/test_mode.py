"""The mode is where the gradient vanishes, smoothing is an expectation, and sites put the posterior there."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize as scipy_minimize
from scipy.optimize import minimize_scalar
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression

from cases import Asymmetric, bare_fit
from cavity import FactorialGaussian, datasets, losses
from cavity.factors import LinearBatches
from cavity.mode import (
    BatchSites,
    Mode,
    _smoothed_pieces,
    _smoothed_values,
    find_mode,
    gaussians,
    sites_at,
    smoothed,
)
from cavity.optimize import _stages
from reference.solvers import hinge_program

STORAGES = {"dense": np.asarray, "csr": sparse.csr_array}
RATES = (losses.Poisson(), losses.NegativeBinomial(), losses.Gamma(0.7))
SMOOTH = (losses.Logistic(), losses.Logistic(3.0), losses.Squared(0.7), losses.Huber(), *RATES)
KINKED = (losses.Hinge(), losses.QuasiZeroOne(), losses.Absolute(2.0), losses.Quantile(0.3))
ALL = (*SMOOTH, *KINKED)
assert {type(loss).__name__ for loss in ALL} >= set(losses.__all__)
# By type: Hinge() and Logistic() are equal tuples.
SMOOTH_TYPES = {type(loss) for loss in SMOOTH}


class Elastic(NamedTuple):
    """A kink in a curve: Newton's method gets stuck at it."""

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return self.scale * (np.abs(z - y) + 0.05 * (z - y) ** 2)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return self.value(y, z), self.scale * (np.sign(r) + 0.1 * r), self.scale * (0.1 + 0.0 * r)


class Heavy(NamedTuple):
    """A smooth loss that is not convex: noise of Student's kind."""

    freedom: float = 3.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return 0.5 * (self.freedom + 1.0) * np.log1p((z - y) ** 2 / self.freedom)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r, k = z - y, self.freedom + 1.0
        s = self.freedom + r * r
        return self.value(y, z), k * r / s, k * (self.freedom - r * r) / (s * s)


class Broken(NamedTuple):
    """A loss of which nothing is a number."""

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.nan * (z - y)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return np.nan * (z - y), np.nan * (z - y), np.nan * (z - y)


class Step(NamedTuple):
    """Pieces that do not meet, which the closed form does not take."""

    height: float = 1.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return self.height * (0.5 - 0.5 * np.sign(y * z))

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), 0.0 * y * z, 0.0 * y * z

    def pieces(self, y: Any) -> Any:
        return (0.0, 0.0, self.height * (y > 0.0)), (np.inf, 0.0, self.height * (y <= 0.0))


def targets_for(loss: Any, z: Any, rng: np.random.Generator) -> Any:
    if loss.targets == "signs":
        return np.where(z + rng.standard_normal(z.size) > 0.0, 1.0, -1.0)
    if loss.targets == "positives":
        return rng.gamma(2.0, 0.5 * np.exp(np.clip(z, -3, 3)))
    return z + rng.standard_normal(z.size) if loss.targets == "reals" else rng.poisson(np.exp(np.clip(z, -3, 3))) * 1.0


def problem(
    loss: Any, rows: int = 120, width: int = 7, seed: int = 0, storage: Any = np.asarray, variance: float = 2.0
) -> tuple[LinearBatches, FactorialGaussian]:
    """Rows with many zeros, one column missing from the first batch, weights of which some are zero."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, width)) * (rng.random((rows, width)) < 0.6)
    X[:10, width // 2] = 0.0
    y = targets_for(loss, X @ rng.standard_normal(width), rng)
    weights = rng.integers(0, 3, rows).astype(float)
    prior = FactorialGaussian.from_moments(0.1 * rng.standard_normal(width), variance)
    return LinearBatches(loss, storage(X), y, 10, weights), prior


def total_cost(factors: LinearBatches, prior: FactorialGaussian, point: Any, beta: float = 1.0) -> float:
    return float(beta * factors.cost(point) + 0.5 * prior.precision @ (point - prior.mean) ** 2)


def gradient(factors: LinearBatches, prior: FactorialGaussian, mode: Mode, beta: float) -> Any:
    weights = np.ones(factors.targets.size) if factors.weights is None else factors.weights
    return beta * (factors.X.T @ (weights * mode.slopes)) + prior.precision * (mode.point - prior.mean)


def posterior(factors: LinearBatches, prior: FactorialGaussian, sites: BatchSites) -> FactorialGaussian:
    shift, precision = np.zeros((2, prior.dim))
    for factor, site in zip(factors, gaussians(factors, sites), strict=True):
        own = slice(None) if factor.coordinates is None else factor.coordinates
        shift[own] += site.shift
        precision[own] += site.precision
    return prior * FactorialGaussian(float(np.sum(sites.log_scales)), shift, precision)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", SMOOTH, ids=repr)
@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_gradient_of_a_smooth_loss_vanishes_at_the_mode(loss: Any, storage: str, beta: float) -> None:
    factors, prior = problem(loss, storage=STORAGES[storage])
    mode = find_mode(factors, prior, beta)
    assert mode.converged
    assert mode.cost == pytest.approx(total_cost(factors, prior, mode.point, beta), rel=1e-12)
    _, slope, curvature = loss.derivatives(factors.targets, factors.X @ mode.point)
    np.testing.assert_allclose(mode.slopes, slope, atol=1e-9)
    np.testing.assert_allclose(mode.curvatures, curvature, atol=1e-9)
    assert not np.any(mode.widths)
    assert np.max(np.abs(gradient(factors, prior, mode, beta))) < 1e-5


@pytest.mark.parametrize("loss", SMOOTH, ids=repr)
def test_a_smooth_mode_is_the_one_scipy_finds(loss: Any) -> None:
    factors, prior = problem(loss)

    def both(point: Any) -> tuple[float, Any]:
        slope = loss.derivatives(factors.targets, factors.X @ point)[1]
        away = point - prior.mean
        return total_cost(factors, prior, point), factors.X.T @ (factors.weights * slope) + prior.precision * away

    found = scipy_minimize(both, prior.mean, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    np.testing.assert_allclose(find_mode(factors, prior).point, found.x, atol=1e-6)


def test_the_logistic_mode_is_that_of_scikit_learn() -> None:
    factors, _ = problem(losses.Logistic(), rows=300)
    prior = FactorialGaussian.from_moments(np.zeros(factors.dim), 5.0)
    model = LogisticRegression(C=5.0, fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(factors.X, factors.targets, sample_weight=factors.weights)
    np.testing.assert_allclose(find_mode(factors, prior).point, model.coef_[0], atol=1e-6)


@pytest.mark.parametrize("loss", [*ALL, Asymmetric(), Elastic(), Heavy()], ids=repr)
def test_storage_precision_and_batches_do_not_matter(loss: Any) -> None:
    factors, prior = problem(loss)
    mode = find_mode(factors, prior)
    for X, batch in ((sparse.csr_array(factors.X), 10), (factors.X, 33), (np.asfortranarray(factors.X), 10)):
        other = find_mode(LinearBatches(loss, X, factors.targets, batch, factors.weights), prior)
        np.testing.assert_allclose(other.point, mode.point, atol=1e-6)
        np.testing.assert_allclose(other.curvatures, mode.curvatures, atol=1e-5)
    single = factors.X.astype(np.float32)
    dense, csr = (
        find_mode(LinearBatches(loss, convert(single), factors.targets, 10, factors.weights), prior)
        for convert in STORAGES.values()
    )
    np.testing.assert_allclose(csr.point, dense.point, atol=1e-6)
    np.testing.assert_allclose(dense.point, mode.point, atol=1e-3)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_weights_count_as_rows_do(loss: Any) -> None:
    factors, prior = problem(loss)
    times = factors.weights.astype(int)
    repeated = LinearBatches(loss, np.repeat(factors.X, times, axis=0), np.repeat(factors.targets, times))
    if not isinstance(loss, losses.QuasiZeroOne):  # it has many minima
        assert find_mode(repeated, prior).cost == pytest.approx(find_mode(factors, prior).cost, rel=0.02)
    doubled = LinearBatches(loss, factors.X, factors.targets, 10, 2.0 * factors.weights)
    np.testing.assert_allclose(find_mode(doubled, prior, 0.5).point, find_mode(factors, prior).point, atol=1e-8)


@pytest.mark.parametrize("loss", KINKED, ids=repr)
@pytest.mark.parametrize("y", [-1.0, 1.0])
@pytest.mark.parametrize("width", [0.05, 1.0])
def test_smoothing_is_the_mean_under_noise(loss: Any, y: float, width: float) -> None:
    z = np.linspace(-2.5, 2.5, 41)
    curve = smoothed(loss, np.full(z.size, y), np.full(z.size, width))
    step = 1e-3
    noise = np.arange(-9.0, 9.0, step) + 0.5 * step
    density = np.exp(-0.5 * noise**2) / np.sqrt(2.0 * np.pi) * step
    there = loss.value(y, z[:, None] + width * noise)
    value, slope, curvature = curve(z)
    np.testing.assert_allclose(value, there @ density, atol=1e-5)
    np.testing.assert_allclose(slope, there @ (density * noise) / width, atol=1e-4)
    np.testing.assert_allclose(curvature, there @ (density * (noise**2 - 1.0)) / width**2, atol=3e-3 / width)
    h = 1e-5
    up, down = curve(z + h), curve(z - h)
    np.testing.assert_allclose(slope, (up[0] - down[0]) / (2.0 * h), atol=1e-6)
    np.testing.assert_allclose(curvature, (up[1] - down[1]) / (2.0 * h), atol=1e-5 / width**3)


class BareHinge(NamedTuple):
    """A hinge that does not name its pieces."""

    margin: float = 1.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return np.maximum(self.margin - y * z, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return losses.Hinge(self.margin).derivatives(y, z)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Squared(), BareHinge()], ids=repr)
def test_values_alone_give_slope_and_curvature(loss: Any) -> None:
    y, z, width = np.ones(21), np.linspace(-2.0, 2.0, 21), np.full(21, 0.7)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    there = loss.derivatives(y[:, None], z[:, None] + width[:, None] * nodes)
    exact = [part @ weights / np.sum(weights) for part in there]
    has_kinks = isinstance(loss, BareHinge)
    if has_kinks:
        exact = list(smoothed(losses.Hinge(), y, width)(z))
    tolerances = (0.02, 0.05, 0.25) if has_kinks else (1e-9, 1e-8, 1e-7)
    for found, wanted, atol in zip(smoothed(loss, y, width)(z), exact, tolerances, strict=True):
        np.testing.assert_allclose(found, wanted, atol=atol)


def test_the_closed_form_serves_pieces_that_meet() -> None:
    rng = np.random.default_rng(0)
    y, narrow = rng.standard_normal(500), np.full(500, 1e-9)
    z = y + rng.standard_normal(500)
    curve: Any = smoothed(losses.Quantile(0.2, 0.5), y, narrow)
    assert curve.func is _smoothed_pieces
    np.testing.assert_allclose(curve(z)[0], losses.Quantile(0.2, 0.5).value(y, z), atol=1e-7)


def test_other_losses_are_smoothed_by_quadrature() -> None:
    for loss in (Step(), Asymmetric()):  # pieces that do not meet, and none
        curve: Any = smoothed(loss, np.array([1.0, -1.0]), np.ones(2))
        assert curve.func is _smoothed_values


@pytest.mark.parametrize("shape", [(60, 4), (400, 8), (20, 30)])
def test_the_hinge_mode_leads_to_the_minimum(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal(shape)
    y = np.where(X @ rng.standard_normal(shape[1]) + rng.standard_normal(shape[0]) > 0.0, 1.0, -1.0)
    factors, prior = LinearBatches(losses.Hinge(), X, y), FactorialGaussian.from_moments(np.zeros(shape[1]), 4.0)
    certified = hinge_program(y[:, None] * X, 4.0)
    least = total_cost(factors, prior, certified.point)
    mode = find_mode(factors, prior)
    assert mode.converged
    assert least - certified.gap <= mode.cost <= least + 0.5 * shape[1]
    last = list(islice(_stages(factors, prior, accuracy=1e-9), 30))[-1][1]
    assert least - certified.gap <= last.cost <= (1.0 + 1e-6) * least


def test_an_absolute_mode_is_the_median() -> None:
    y = np.random.default_rng(0).standard_normal(101)
    factors = LinearBatches(losses.Absolute(), np.ones((101, 1)), y)
    prior = FactorialGaussian.from_moments([0.0], 1e4)
    *_, (_, last, _) = islice(_stages(factors, prior, accuracy=1e-9), 20)
    assert last.point[0] == pytest.approx(np.median(y), abs=1e-3)
    own = LinearBatches(Asymmetric(1.0), np.ones((101, 1)), y)
    assert find_mode(own, prior).point[0] == pytest.approx(find_mode(factors, prior).point[0], abs=0.05)


@pytest.mark.parametrize("loss", [Asymmetric(), Elastic()], ids=repr)
def test_a_users_loss_with_kinks_comes_near_its_minimum(loss: Any) -> None:
    factors, prior = problem(loss, rows=400, width=3)
    best = min(
        (scipy_minimize(lambda t: total_cost(factors, prior, t), s, method="Powell") for s in (prior.mean, np.ones(3))),
        key=lambda found: found.fun,
    )
    assert find_mode(factors, prior).cost <= best.fun + 1.0


def test_a_smooth_loss_need_not_be_convex() -> None:
    factors, prior = problem(Heavy(), rows=300)
    mode = find_mode(factors, prior)
    assert mode.converged
    assert np.max(np.abs(gradient(factors, prior, mode, 1.0))) < 1e-4


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.001])
@pytest.mark.parametrize("seed", range(5))
def test_quasi_zero_one_never_costs_more_than_the_prior_mean(epsilon: float, seed: int) -> None:
    factors, prior = problem(losses.QuasiZeroOne(epsilon), seed=seed, variance=(0.01, 1.0, 100.0)[seed % 3])
    mode = find_mode(factors, prior)
    assert mode.cost == pytest.approx(total_cost(factors, prior, mode.point), rel=1e-12)
    assert mode.cost <= total_cost(factors, prior, prior.mean)
    assert posterior(factors, prior, sites_at(factors, prior, mode)).is_proper


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", [*ALL, Asymmetric(), Elastic(), Heavy(), Step()], ids=repr)
@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_prior_times_sites_has_its_mean_at_the_mode(loss: Any, storage: str, beta: float) -> None:
    factors, prior = problem(loss, storage=STORAGES[storage])
    mode = find_mode(factors, prior, beta)
    sites = sites_at(factors, prior, mode, beta)
    whole = posterior(factors, prior, sites)
    np.testing.assert_allclose(whole.mean, mode.point, atol=1e-8)
    each = gaussians(factors, sites)
    for factor, site in zip(factors, each, strict=True):
        own = mode.point if factor.coordinates is None else mode.point[factor.coordinates]
        assert site.dim == own.size
        assert float(site.log_density(own)) == pytest.approx(-beta * factor.cost(own[None])[0], abs=1e-9)
        at = prior.precision if factor.coordinates is None else prior.precision[factor.coordinates]
        rest = whole.precision if factor.coordinates is None else whole.precision[factor.coordinates]
        assert np.all(rest - site.precision >= (1.0 - 1e-9) * at)


@pytest.mark.parametrize("loss", SMOOTH, ids=repr)
def test_sites_are_the_second_order_expansion(loss: Any) -> None:
    factors, prior = problem(loss)
    mode = find_mode(factors, prior)
    for factor, site in zip(factors, gaussians(factors, sites_at(factors, prior, mode)), strict=True):
        own = mode.point if factor.coordinates is None else mode.point[factor.coordinates]
        _, slope, curvature = factor.derivatives(own, "exact")
        np.testing.assert_allclose(site.precision, curvature, atol=1e-9)
        np.testing.assert_allclose(site.shift, curvature * own - slope, atol=1e-6)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_sparse_sites_name_the_columns_that_batches_touch(loss: Any) -> None:
    dense, prior = problem(loss)
    dense.X[0, :], dense.X[1, :] = 1.0, -1.0  # slopes that cancel leave the pattern as it is
    factors = LinearBatches(loss, sparse.csr_array(dense.X), dense.targets, 10, dense.weights)
    mode = find_mode(dense, prior)
    wide, narrow = sites_at(dense, prior, mode), sites_at(factors, prior, mode)
    for k, factor in enumerate(factors):
        touched = np.arange(factors.dim) if factor.coordinates is None else factor.coordinates
        assert narrow.starts[k + 1] - narrow.starts[k] == touched.size
    for a, b in zip(gaussians(factors, narrow), gaussians(dense, wide), strict=True):
        np.testing.assert_allclose(a.shift, b.shift, atol=1e-9)
        np.testing.assert_allclose(a.precision, b.precision, atol=1e-9)
        assert a.log_scale == pytest.approx(b.log_scale, abs=1e-8)


def test_a_start_at_the_mode_is_a_fixed_point_of_laplace_on_squares() -> None:
    _, prior = problem(losses.Squared(0.8))
    diagonal = LinearBatches(losses.Squared(0.8), np.diag(np.arange(1.0, 8.0)), np.arange(7.0), 1)
    sites = gaussians(diagonal, sites_at(diagonal, prior, find_mode(diagonal, prior)))
    fitted = bare_fit(diagonal, prior, "la", compiled=False)
    for start, end in zip(sites, fitted.sites, strict=True):
        np.testing.assert_allclose(start.shift, end.shift, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(start.precision, end.precision, rtol=1e-6)
        assert start.log_scale == pytest.approx(end.log_scale, abs=1e-6)


def awkward() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    degenerate = rng.standard_normal((80, 6))
    degenerate[:, 1], degenerate[:, 2], degenerate[:, 4] = 1.0, degenerate[:, 3], 0.0
    rare = np.c_[np.ones(300), np.zeros((300, 2)), rng.standard_normal((300, 3))]
    rare[3, 1], rare[4, 2] = 180.0, -180.0
    return {
        "one row": rng.standard_normal((1, 4)),
        "wide": rng.standard_normal((15, 40)),
        "degenerate": degenerate,
        "scaled": rng.standard_normal((80, 6)) * np.array([1e-3, 1.0, 1e3, 1.0, 1e-3, 1e3]),
        "rare": rare,
    }


@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shape", awkward())
@pytest.mark.parametrize("loss", [*ALL, Asymmetric(), Heavy()], ids=repr)
def test_awkward_data_give_a_proper_start(loss: Any, shape: str, variance: float) -> None:
    X, rng = awkward()[shape], np.random.default_rng(6)
    d = X.shape[1]
    prior = FactorialGaussian.from_moments(0.1 * rng.standard_normal(d), variance)
    truth = rng.standard_normal(d) / np.maximum(1.0, np.max(np.abs(X), axis=0))
    for noise in (1.0, 0.0):  # zero: separable, or an exact fit
        z = X @ truth
        y = (
            targets_for(loss, z, rng)
            if noise
            else {"signs": np.where(z > 0.0, 1.0, -1.0), "reals": z}.get(loss.targets)
        )
        factors = LinearBatches(loss, X, np.full(len(z), 1e4) if y is None else y, 7)
        mode = find_mode(factors, prior)
        sites = sites_at(factors, prior, mode)
        whole = posterior(factors, prior, sites)
        assert mode.cost <= total_cost(factors, prior, prior.mean) * (1.0 + 1e-12) + 1e-12
        assert whole.is_proper
        assert np.all(whole.precision - sites.precisions.reshape(-1, d) > 0.0)
        assert np.max(np.abs(whole.mean - mode.point) / whole.std) < 1e-6
        assert np.all(np.isfinite(sites.log_scales))
        if type(loss) in SMOOTH_TYPES and shape != "rare":
            assert mode.converged


def test_columns_and_prior_may_have_any_scale() -> None:
    factors, _ = problem(losses.Logistic(), rows=200)
    scale = 10.0 ** np.array([3, -3, 0, 2, -2, 1, -1])
    plain = FactorialGaussian.from_moments(np.zeros(7), 3.0)
    scaled = FactorialGaussian.from_moments(np.zeros(7), 3.0 / scale**2)
    other = LinearBatches(factors.loss, factors.X * scale, factors.targets, 10, factors.weights)
    here, there = find_mode(factors, plain), find_mode(other, scaled)
    np.testing.assert_allclose(there.point * scale, here.point, atol=1e-5)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Poisson(), losses.Hinge()], ids=repr)
@pytest.mark.parametrize("storage", STORAGES)
def test_conjugate_gradients_find_the_same_mode(loss: Any, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, prior = problem(loss, storage=STORAGES[storage])
    direct = find_mode(factors, prior)
    monkeypatch.setattr("cavity.mode._WIDEST_HESSIAN", 3)
    implicit = find_mode(factors, prior)
    assert implicit.converged
    if type(loss) in SMOOTH_TYPES:
        np.testing.assert_allclose(implicit.point, direct.point, atol=1e-5)
    else:  # the widths are those of a diagonal
        assert implicit.cost == pytest.approx(direct.cost, rel=0.05)


@pytest.mark.parametrize("storage", STORAGES)
def test_trouble_is_reported_and_not_raised(storage: str) -> None:
    factors, prior = problem(Broken(), storage=STORAGES[storage])
    mode = find_mode(factors, prior)
    assert not mode.converged
    np.testing.assert_array_equal(mode.point, prior.mean)
    assert posterior(factors, prior, sites_at(factors, prior, mode)).is_proper
    logistic, prior = problem(losses.Logistic(), storage=STORAGES[storage])
    nothing = LinearBatches(losses.Hinge(), logistic.X, logistic.targets, 10, np.zeros(len(logistic.targets)))
    np.testing.assert_allclose(find_mode(nothing, prior).point, prior.mean, atol=1e-12)


def test_one_row_of_absolute_loss_by_hand() -> None:
    factors = LinearBatches(losses.Absolute(), [[1.0]], [2.0])
    prior = FactorialGaussian.from_moments([0.0], 4.0)
    mode = find_mode(factors, prior, beta=3.0)
    h = float(mode.widths[0])

    def smoothed(z: float) -> float:
        u = (z - 2.0) / h
        return (
            3.0 * ((z - 2.0) * (2.0 * ndtr(u) - 1.0) + 2.0 * h * np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi)) + z**2 / 8
        )

    assert mode.point[0] == pytest.approx(minimize_scalar(smoothed, bracket=(1.0, 2.0)).x, abs=1e-6)
    width = 1.0 / np.sqrt(3.0 * mode.curvatures[0] + 0.25)
    assert h == pytest.approx(width, rel=0.3)


def test_bad_input_is_refused() -> None:
    factors, prior = problem(losses.Logistic())
    with pytest.raises(ValueError, match="beta must be positive and finite, got 0"):
        find_mode(factors, prior, 0.0)
    with pytest.raises(ValueError, match="must be proper and have the 7 coordinates"):
        find_mode(factors, FactorialGaussian.uniform(7))
    with pytest.raises(ValueError, match="got 3 coordinates"):
        find_mode(factors, FactorialGaussian.from_moments(np.zeros(3), 1.0))


@pytest.mark.parametrize(
    ("data", "loss", "least", "most"),
    [
        ("census", losses.Logistic(), 10282.75, 10282.85),
        ("bank", losses.Logistic(), 10781.3, 10781.4),
        ("census", losses.Hinge(), 11076.9, 11085.0),
    ],
)
def test_known_minima_on_standardised_data(data: str, loss: Any, least: float, most: float) -> None:
    design = datasets.paper(data, scale="std")
    factors = LinearBatches(loss, design.X, design.y, 100)
    prior = FactorialGaussian.from_moments(np.zeros(factors.dim), 25.0)
    mode = find_mode(factors, prior)
    assert mode.converged
    assert least <= mode.cost <= most
    np.testing.assert_allclose(posterior(factors, prior, sites_at(factors, prior, mode)).mean, mode.point, atol=1e-8)
