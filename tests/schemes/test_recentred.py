"""Recentred variational quadrature: where it ends, what it costs, what it makes of costs that are not finite."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import as_cost_factor, assert_same, fit, random_cavity, random_rows, random_signs, seeds, standard_prior
from cavity import CostFactor, FactorialGaussian, LinearFactor, datasets
from cavity.losses import Hinge, Logistic, QuasiZeroOne
from cavity.schemes import Laplace, RecentredQuadrature
from reference import solvers

SMALL = ("haberman", "ionosphere", "breast_cancer")
VARIANCE, BATCH, LOOPS = 25.0, 10, 15
WITHIN = 0.01
# Ends lie at 0.30, 0.65 and 0.86 of the cost of the logistic solution, to four digits from rows moved by 1e-9.
BELOW = 0.9
# Sums of the same numbers in another order.
ROUNDING = 1e-9


def objective(factor, cavity, point, beta=1.0):
    """What the search goes down on: the cost and the cavity's term."""
    return beta * factor.cost(point[None])[0] + 0.5 * cavity.precision @ (point - cavity.mean) ** 2


def end_cost(name, scale, loss, **options):
    """Rows times labels, and the cost at the posterior mean."""
    design = datasets.paper(name, scale)
    batches = LinearFactor.batches(loss, design.X, design.y, BATCH)
    mean = fit(batches, standard_prior(design.X.shape[1], VARIANCE), "rvq", max_iter=LOOPS, **options).mean
    A = design.y[:, None] * design.X
    return A, solvers.cost(loss, A, mean, VARIANCE)


@pytest.mark.parametrize("name", SMALL)
def test_smooth_and_hinge_costs_come_near_the_minimum(name):
    for loss, solve in ((Logistic(), solvers.newton_logistic), (Hinge(), solvers.hinge_program)):
        A, cost = end_cost(name, "norm", loss)
        assert cost <= (1.0 + WITHIN) * solvers.cost(loss, A, solve(A, VARIANCE).point, VARIANCE)


@pytest.mark.parametrize("name", SMALL)
def test_the_quasi_01_cost_ends_well_below_that_of_the_logistic_solution(name):
    """Which is unique, as its own cost is convex; the paper's search begins there."""
    loss = QuasiZeroOne(0.1)
    A, cost = end_cost(name, "norm", loss)
    assert cost <= BELOW * solvers.cost(loss, A, solvers.newton_logistic(A, VARIANCE).point, VARIANCE)


@pytest.mark.parametrize(
    ("loss", "safeguards"),
    [(Logistic(), False), (Hinge(), False), (QuasiZeroOne(0.1), False), (Hinge(), True)],
    ids=repr,
)
def test_standardised_columns_do_not_make_it_diverge(loss, safeguards):
    """Where VQ and QLA end at a hundred times the cost at zero."""
    A, cost = end_cost("breast_cancer", "std", loss, safeguards=safeguards)
    assert cost < 0.2 * solvers.cost(loss, A, np.zeros(A.shape[1]), VARIANCE)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=repr)
@given(seeds, st.floats(0.1, 10.0))
def test_a_convex_factor_draws_the_posterior_down_its_cost(loss, seed, beta):
    rng = np.random.default_rng(seed)
    factor = LinearFactor(loss, rng.standard_normal((5, 3)), random_signs(rng, 5))
    cavity = random_cavity(rng, 3)
    site = RecentredQuadrature(tol=1e-6, max_stars=1000).approximate(factor, cavity, beta)
    start = objective(factor, cavity, cavity.mean, beta)
    assert objective(factor, cavity, (cavity * site).mean, beta) <= start + ROUNDING * (1.0 + abs(start))


@given(seeds, st.floats(0.1, 10.0))
def test_a_smooth_narrow_factor_has_the_peak_of_laplaces_scheme(seed, beta):
    """A star that is small against the loss's own scale sees the derivatives."""
    rng = np.random.default_rng(seed)
    factor = LinearFactor(Logistic(), 0.01 * rng.standard_normal((5, 3)), random_signs(rng, 5))
    cavity = random_cavity(rng, 3)
    posterior = cavity * RecentredQuadrature(tol=1e-8).approximate(factor, cavity, beta)
    peak = Laplace(tol=1e-9).peak(factor, cavity, beta)
    assert np.max(np.abs(posterior.mean - peak) / cavity.std) < 1e-4


@given(seeds, st.sampled_from([Logistic(), Hinge(), QuasiZeroOne()]))
def test_a_black_box_gets_the_site_of_its_rows(seed, loss):
    rng = np.random.default_rng(seed)
    factor = LinearFactor(loss, random_rows(rng, 6, 4, density=0.9), random_signs(rng, 6))
    box = as_cost_factor(factor)
    cavity = random_cavity(rng, 4 if factor.coordinates is None else factor.coordinates.size, 0.5)
    scheme = RecentredQuadrature()
    assert_same(scheme.approximate(box, cavity), scheme.approximate(factor, cavity), ROUNDING)


@pytest.mark.parametrize("strength", [20.0, 2000.0])
def test_a_strong_kink_holds_the_mean_and_narrows_it(strength):
    factor = CostFactor(lambda t: strength * abs(float(t[0]) - 1.0), 1)
    cavity = FactorialGaussian.from_moments([0.0], 1.0)
    posterior = cavity * RecentredQuadrature().approximate(factor, cavity)
    assert posterior.mean[0] == pytest.approx(1.0, abs=0.1 / strength)
    # Of the density exp(-strength |t - 1|) the standard deviation is sqrt(2) / strength.
    assert 0.5 < posterior.std[0] * strength / np.sqrt(2.0) < 2.0


@pytest.mark.parametrize("outside", [np.inf, np.nan])
def test_a_wall_within_reach_of_the_star_shortens_its_arms(outside):
    factor = CostFactor(lambda t: float(t[0] + 0.5 * t[1] ** 2) if t[0] > -0.3 else outside, 2)
    cavity = FactorialGaussian.from_moments([0.0, 0.5], 1.0)
    site = RecentredQuadrature().approximate(factor, cavity)
    assert site.is_finite
    assert -0.3 < (cavity * site).mean[0] < 0.0
    assert site.precision[1] == pytest.approx(1.0)


def test_a_hole_in_the_middle_is_refused():
    factor = CostFactor(lambda t: np.nan if 0.1 < abs(t[0]) < 50.0 else 0.0, 1)
    assert not RecentredQuadrature().approximate(factor, FactorialGaussian.from_moments([0.1 + 1e-9], 1.0)).is_finite


@given(seeds)
def test_costs_without_sense_end_in_time_with_a_finite_posterior(seed):
    """Jumps, holes and noise: few calls, and whatever is not finite is refused by the engine."""
    rng, calls = np.random.default_rng(seed), []

    def cost(points):
        calls.append(len(points))
        values = 10.0 * np.sign(points[:, 0]) + rng.standard_normal(len(points))
        if len(calls) > 1:  # the first call asks whether the run can begin
            values[rng.random(len(points)) < 0.05] = rng.choice([np.nan, np.inf, -np.inf])
        return values

    scheme, loops = RecentredQuadrature(max_stars=20), 3
    result = fit([CostFactor(cost, 2, vectorized=True)], random_cavity(rng, 2), scheme, max_iter=loops)
    assert result.posterior.is_proper
    assert sum(calls) <= 1 + loops * 20 * (5 + 30)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"spread": 0.0}, "spread must be positive and finite, got 0.0"),
        ({"spread": np.inf}, "spread must be positive and finite, got inf"),
        ({"spread": None}, "spread must be positive and finite, got None"),
        ({"tol": 0.0}, "tol must be positive and finite, got 0.0"),
        ({"tol": "x"}, "tol must be positive and finite, got 'x'"),
        ({"max_stars": 10}, "max_stars must be a whole number of at least 11, got 10"),
        ({"max_stars": 20.5}, "max_stars must be a whole number of at least 11, got 20.5"),
    ],
)
def test_wrong_numbers_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        RecentredQuadrature(**wrong)
