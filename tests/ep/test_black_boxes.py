"""Black boxes with all correlations: laws, truths, and what becomes of costs that misbehave."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cavity
from cases import assert_same, quietly, standard_prior
from cavity import CostFactor, FactorError, FactorialGaussian, FullGaussian, LinearFactor, Status
from cavity.losses import Squared

FULL_SCHEMES = ["la", "qla", "vq", "rvq"]
A = np.array([[2.0, 0.7, 0.0], [0.7, 1.0, -0.3], [0.0, -0.3, 0.5]])
CENTER = np.array([1.0, -2.0, 0.5])


def quadratic(points, matrix=A, center=CENTER):
    away = points - center
    return 0.5 * np.sum((away @ matrix) * away, axis=1) + 0.3


def box(cost, dim=1, **options):
    return CostFactor(cost, dim, vectorized=True, **options)


@pytest.mark.parametrize("scheme", [None, *FULL_SCHEMES])
@pytest.mark.parametrize("count", [1, 3])
def test_quadratic_costs_are_exact_with_all_correlations(scheme, count):
    factors = [box(lambda t: quadratic(t) / count, 3) for _ in range(count)]
    result = cavity.fit(factors, standard_prior(3), scheme)
    likelihood = FullGaussian(-0.3 - 0.5 * CENTER @ A @ CENTER, A @ CENTER, A)
    exact = FullGaussian.of(standard_prior(3)) * likelihood
    assert_same(result.posterior, exact, 1e-4 if scheme in ("la", "qla", "rvq", None) else 1e-8)
    assert result.log_evidence == pytest.approx(exact.log_mass, abs=1e-4)
    assert result.status is Status.CONVERGED
    assert result.evaluations > 0


def test_gaussian_quadrature_of_a_weak_factor_is_near():
    result = cavity.fit([box(lambda t: 0.1 * quadratic(t, center=0.3 * CENTER), 3)], standard_prior(3), "gq")
    assert result.covariance == pytest.approx(np.linalg.inv(np.eye(3) + 0.1 * A), abs=0.02)


def test_factors_of_some_coordinates_are_integrated_over_the_others():
    supports = [np.array([0, 1]), np.array([1, 2]), np.array([2])]
    factors = [box(lambda t, s=s: quadratic(t, A[np.ix_(s, s)], CENTER[s]), 3, coordinates=s) for s in supports]
    result = cavity.fit(factors, standard_prior(3))
    precision = np.eye(3)
    for s in supports:
        precision[np.ix_(s, s)] += A[np.ix_(s, s)]
    assert result.posterior.precision == pytest.approx(precision, abs=1e-5)
    assert [site.dim for site in result.sites] == [2, 2, 1]


def test_rows_of_a_linear_model_give_what_blocks_give():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    y = X @ CENTER + 0.5 * rng.standard_normal(30)
    rows = LinearFactor.batches(Squared(scale=0.5), X, y, 10)
    blocks = cavity.fit(rows, standard_prior(3), covariance="full")
    other = [*rows, LinearFactor(Squared(scale=2.0), [[0.0, 0.0, 1e-9]], [0.0])]  # of two losses
    factors = cavity.fit(other, standard_prior(3))
    assert factors.mean == pytest.approx(blocks.mean, abs=1e-4)
    assert factors.covariance == pytest.approx(blocks.posterior.covariance, rel=1e-3, abs=1e-6)


def test_moments_of_kinks_are_those_of_a_grid():
    y = np.random.default_rng(1).laplace(size=15)
    result = cavity.fit(
        [box(lambda t: np.abs(t - y).sum(axis=1)), box(lambda t: 3.0 * np.abs(t[:, 0] - 0.4))], standard_prior(1, 9.0)
    )
    grid = np.linspace(-8.0, 8.0, 200_001)
    log_density = -np.abs(grid[:, None] - y).sum(axis=1) - 3.0 * np.abs(grid - 0.4) - grid**2 / 18.0
    weights = np.exp(log_density - log_density.max())
    mean = np.average(grid, weights=weights)
    std = np.sqrt(np.average((grid - mean) ** 2, weights=weights))
    assert result.mean[0] == pytest.approx(mean, abs=0.1 * std)
    assert result.std[0] == pytest.approx(std, rel=0.1)


def test_units_of_the_parameters_do_not_matter():
    units = np.array([1e-6, 1.0, 1e5])

    def cost(points):
        return np.sum(np.log1p((points - CENTER) ** 2), axis=1) + 0.5 * (points[:, 0] - points[:, 1]) ** 2

    plain = cavity.fit([box(cost, 3)], FactorialGaussian.from_moments(np.zeros(3), 4.0))
    scaled = cavity.fit(
        [box(lambda t: cost(t / units), 3)], FactorialGaussian.from_moments(np.zeros(3), 4.0 * units**2)
    )
    assert scaled.mean / units == pytest.approx(plain.mean, rel=1e-6)
    assert scaled.covariance / np.outer(units, units) == pytest.approx(plain.covariance, rel=1e-6)
    assert scaled.evaluations == plain.evaluations


def test_a_prior_with_correlations_counts():
    prior = FullGaussian.from_moments(CENTER, np.linalg.inv(A))
    result = cavity.fit([box(lambda t: 0.5 * t[:, 0] ** 2, 3)], prior)
    precision = A + np.diag([1.0, 0.0, 0.0])
    assert result.covariance == pytest.approx(np.linalg.inv(precision), abs=1e-5)
    assert result.mean == pytest.approx(np.linalg.solve(precision, A @ CENTER), abs=1e-5)


def test_the_default_has_correlations_up_to_twelve_parameters():
    assert isinstance(cavity.fit([box(lambda t: t @ np.ones(12), 12)], standard_prior(12)).posterior, FullGaussian)
    with pytest.warns(UserWarning, match="more than 12 coordinates"):
        wide = cavity.fit([box(lambda t: t @ np.ones(13), 13)], standard_prior(13))
    assert isinstance(wide.posterior, FactorialGaussian)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cavity.fit([box(lambda t: t @ np.ones(13), 13)], standard_prior(13), covariance="full")


def test_a_run_continues_bit_for_bit():
    factors = [box(lambda t, k=k: np.log(np.cosh(2.0 * (t @ A[k] - k))), 3) for k in range(3)]
    options = {"tol": 0.0, "scheme": "rvq", "start": None}
    whole = quietly(cavity.fit, factors, standard_prior(3), max_iter=4, **options)
    half = quietly(cavity.fit, factors, standard_prior(3), max_iter=2, **options)
    rest = quietly(cavity.fit, factors, standard_prior(3), max_iter=4, state=half.state, **options)
    assert rest.posterior == whole.posterior
    assert rest.trace.changes == whole.trace.changes


# What the result can do


def bent():
    """A bent ridge, not a Gaussian."""
    return cavity.fit([box(lambda t: 8.0 * (t[:, 1] - t[:, 0] ** 2) ** 2, 2)], standard_prior(2))


def test_draws_are_exact_where_the_gaussian_is_not():
    draws = bent().sample(20_000, random_state=1)
    grid = np.stack(np.meshgrid(*[np.linspace(-4.0, 5.0, 901)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.exp(-8.0 * (grid[:, 1] - grid[:, 0] ** 2) ** 2 - 0.5 * np.sum(grid**2, axis=1))
    mean = np.average(grid, axis=0, weights=weights)
    std = np.sqrt(np.average((grid - mean) ** 2, axis=0, weights=weights))
    assert np.all(np.abs(draws.mean - mean) < 5.0 * std / np.sqrt(draws.effective))
    assert draws.std == pytest.approx(std, rel=0.1)


def test_check_tells_a_good_posterior_from_a_bad_one_and_sees_other_peaks():
    good = cavity.fit([box(quadratic, 3)], standard_prior(3)).check()
    assert good.is_reliable
    assert good.peaks == []
    assert good.log_evidence == pytest.approx(cavity.fit([box(quadratic, 3)], standard_prior(3)).log_evidence, abs=0.05)
    two = cavity.fit(
        [box(lambda t: -np.logaddexp(-50.0 * (t[:, 0] - 2.0) ** 2, -50.0 * (t[:, 0] + 2.0) ** 2))],
        standard_prior(1, 4.0),
    )
    check = two.check(starts=8)
    assert not check.is_reliable
    assert abs(check.peaks[0].point[0] + two.mean[0]) < 0.05
    assert check.peaks[0].log_odds == pytest.approx(0.0, abs=0.1)
    assert "another peak" in str(check)


def test_predictions_and_summaries_speak_of_the_parameters():
    result = cavity.fit([box(quadratic, 3)], standard_prior(3))
    found = result.predict(lambda t: np.array([t[0] + t[1], t[2]]), draws=4000)
    assert found.mean == pytest.approx([result.mean[:2].sum(), result.mean[2]], abs=0.06)
    assert found.std[0] == pytest.approx(np.sqrt(result.covariance[:2, :2].sum()), rel=0.05)
    assert np.all((found.lower < found.mean) & (found.mean < found.upper))
    table = result.summary(["a", "b", "c"])
    assert list(table.index) == ["a", "b", "c"]
    assert table["std"].to_numpy() == pytest.approx(result.std)
    with pytest.raises(ValueError, match="names must name each of 3 parameters, got 1"):
        result.summary(["a"])
    plain = cavity.fit([box(quadratic, 3)], standard_prior(3), covariance="diagonal")
    with pytest.raises(ValueError, match="did not keep its density"):
        plain.sample()


def test_pairs_are_plotted():
    pytest.importorskip("matplotlib").use("Agg")
    assert bent().plot(["first", "second"]).shape == (2, 2)


# Bounds


def test_bounds_keep_the_density_right():
    # An exponential density on a half line, times a Gaussian prior.
    result = cavity.fit([box(lambda t: 4.0 * t[:, 0])], standard_prior(1, 4.0), bounds=(0.0, np.inf))
    grid = np.linspace(0.0, 10.0, 200_001)
    weights = np.exp(-4.0 * grid - grid**2 / 8.0)
    mean = np.average(grid, weights=weights)
    std = np.sqrt(np.average((grid - mean) ** 2, weights=weights))
    # EP matches moments of the logarithm.
    log_mean = np.average(np.log(grid[1:]), weights=weights[1:])
    log_std = np.sqrt(np.average((np.log(grid[1:]) - log_mean) ** 2, weights=weights[1:]))
    assert result.posterior.mean[0] == pytest.approx(log_mean, abs=0.05 * log_std)
    assert result.posterior.std[0] == pytest.approx(log_std, rel=0.1)
    draws = result.sample(20_000)
    assert np.all(draws.values > 0.0)
    assert abs(draws.mean[0] - mean) < 5.0 * std / np.sqrt(draws.effective[0])
    mass = np.sum(weights) * (grid[1] - grid[0]) / np.sqrt(2.0 * np.pi * 4.0)
    assert result.check(4000).log_evidence == pytest.approx(np.log(mass), abs=0.1)


def test_bounds_far_away_change_nothing():
    plain = cavity.fit([box(quadratic, 3)], standard_prior(3))
    bounded = cavity.fit([box(quadratic, 3)], standard_prior(3), bounds=([-40.0, -np.inf, -30.0], [np.inf, 50.0, 30.0]))
    assert bounded.mean == pytest.approx(plain.mean, abs=0.01)
    assert bounded.covariance == pytest.approx(plain.covariance, abs=0.01)
    assert bounded.log_evidence == pytest.approx(plain.log_evidence, abs=0.01)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((1.0, 0.0), "lower bounds below upper ones"),
        (3.0, "pair of lower and upper bounds"),
        (([0.0, 0.0], 1.0), "pair of lower and upper bounds"),
        ((1e6, 2e6), "no mass between the bounds"),
    ],
)
def test_bad_bounds_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        cavity.fit([box(quadratic, 3)], standard_prior(3), bounds=bounds)


# Costs that misbehave


class Raising:
    def __init__(self, after):
        self.left = after

    def __call__(self, points):
        self.left -= 1
        if self.left < 0:
            raise OSError("the instrument is off")
        return np.sum(points**2, axis=1)


@pytest.mark.parametrize("after", [0, 1, 2, 20])
def test_a_cost_that_raises_is_named_whenever_it_does(after):
    factors = [box(quadratic, 3), box(Raising(after), 3)]
    with pytest.raises(FactorError, match="factor 1 raised OSError: the instrument is off") as info:
        cavity.fit(factors, standard_prior(3), tol=0.0)
    assert info.value.factor == 1
    assert info.value.result.status is Status.INTERRUPTED


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (lambda t: t, "must return one number per point"),
        (lambda t: np.sum(t, axis=1) + 1j, "real numbers"),
        (lambda t: "no", "could not convert|numbers"),
        (lambda t: np.zeros(len(t) + 1), "must return one number per point"),
    ],
)
def test_answers_of_a_wrong_kind_are_named(cost, message):
    with pytest.raises(FactorError, match=message):
        cavity.fit([box(cost, 2)], standard_prior(2))


@pytest.mark.parametrize("scheme", [None, *FULL_SCHEMES, "gq"])
@pytest.mark.parametrize(
    "cost",
    [
        lambda t: np.full(len(t), np.inf),
        lambda t: -np.exp(np.minimum(t[:, 0] ** 2, 600.0)),  # has no minimum
        lambda t: -10.0 * np.sum(t**2, axis=1),
        lambda t: np.where(np.all(t == 0.0, axis=1), 0.0, np.nan),
        lambda t: np.where(np.all(t == 0.0, axis=1), 0.0, -np.inf),
    ],
    ids=["infinite", "unbounded", "concave", "nan", "minus infinity"],
)
def test_costs_without_a_posterior_end_with_a_status_and_no_evidence(scheme, cost, request):
    if "concave-gq" in request.node.callspec.id:
        pytest.skip("the moments of a rule with finite nodes exist where those of the density do not")
    result = quietly(cavity.fit, [box(cost, 2)], standard_prior(2), scheme, max_iter=3)
    assert not result.status.is_success
    assert np.all(np.isfinite(result.mean))
    # Expansions at a point go on for ever, with less and less precision; what they have is not called converged.
    assert np.isnan(result.log_evidence) or result.status is Status.MAX_ITER


def test_a_constant_changes_the_evidence_only():
    result = cavity.fit([box(lambda t: np.full(len(t), 2.5), 2)], standard_prior(2))
    assert result.status is Status.CONVERGED
    assert result.mean == pytest.approx([0.0, 0.0], abs=1e-9)
    assert result.log_evidence == pytest.approx(-2.5, abs=1e-6)


def test_steps_and_edges_are_integrated():
    # Nodes come and go at the edge: near is all that can be asked for.
    step = box(lambda t: np.where(t[:, 0] > 0.0, 0.0, np.inf))
    edge = quietly(cavity.fit, [step], FactorialGaussian.from_moments([1.0], 1.0))
    assert edge.mean[0] == pytest.approx(1.2876, abs=0.25)  # of the truncated Gaussian
    steps = quietly(cavity.fit, [box(lambda t: np.floor(4.0 * t[:, 0] ** 2))], standard_prior(1))
    grid = np.linspace(-4.0, 4.0, 80_001)
    weights = np.exp(-np.floor(4.0 * grid**2) - 0.5 * grid**2)
    assert steps.std[0] == pytest.approx(np.sqrt(np.average(grid**2, weights=weights)), rel=0.15)


def test_schemes_and_options_without_a_full_form_say_so():
    factors = [box(quadratic, 3)]
    with pytest.raises(ValueError, match="compiled=True is not possible"):
        cavity.fit(factors, standard_prior(3), compiled=True)
    with pytest.raises(ValueError, match="start must be 'mode', with sites='own'"):
        cavity.fit(factors, standard_prior(3), sites="tied", start="mode")
    with pytest.raises(ValueError, match="bounds needs covariance='full'"):
        cavity.fit(factors, standard_prior(3), covariance="diagonal", bounds=(0, 1))


@pytest.mark.parametrize("sites", ["tied", "averaged", "none"])
def test_other_stores_of_sites_work(sites):
    factors = [box(lambda t: quadratic(t) / 4.0, 3) for _ in range(4)]
    result = quietly(
        cavity.fit, factors, standard_prior(3), "vq", sites=sites, **({} if sites == "none" else {"max_iter": 60})
    )
    assert result.mean == pytest.approx(np.linalg.solve(np.eye(3) + A, A @ CENTER), abs=0.01)


@pytest.mark.parametrize("kind", ["threads", "executor"])
def test_workers_give_the_same(kind):
    def cost(t):
        return float(quadratic(t[None])[0])

    with ThreadPoolExecutor(2) as pool:
        workers = 3 if kind == "threads" else pool
        shared = cavity.fit([CostFactor(cost, 3, workers=workers)], standard_prior(3))
    assert shared.posterior == cavity.fit([CostFactor(cost, 3)], standard_prior(3)).posterior
    with pytest.raises(ValueError, match="workers divide single points"):
        CostFactor(cost, 3, vectorized=True, workers=2)
