import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from cases import (
    all_components,
    assert_close,
    assert_same,
    gaussian_cost,
    random_cavity,
    random_rows,
    random_signs,
    random_targets,
    seeds,
    size,
)
from cavity import CostFactor, FactorialGaussian, LinearFactor, losses
from cavity.losses import Hinge, Logistic
from cavity.schemes import Laplace, QuickLaplace
from cavity.testing import check_scheme

ROUNDING = 1e-10
TOL = 1e-5  # the scheme's own, relative
LOSSES = all_components(losses)
CURVATURES = ["exact", "slope"]


def objective(factor, cavity, beta):
    return lambda t: float(beta * factor.cost(t[None])[0] + 0.5 * cavity.precision @ (t - cavity.mean) ** 2)


def wavy(t):
    """A bounded cost with many hills and mixed second derivatives, and a kink."""
    return float(3.0 * np.sum(np.cos(3.0 * t)) + 2.0 * np.sin(t @ t) + 0.1 * np.sum(np.abs(t)))


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(seeds))
    dim, beta = draw(st.integers(1, 5)), draw(st.sampled_from([0.3, 1.0, 10.0]))
    return rng, dim, random_cavity(rng, dim, spread=1.5), beta


def linear(loss, rng, dim):
    n = int(rng.integers(1, 9))
    y = random_targets(loss, rng, n)
    return LinearFactor(loss, 2.0 * random_rows(rng, n, dim, density=0.9, untouched=False) + 0.01, y)


@pytest.mark.parametrize("curvature", CURVATURES)
@pytest.mark.parametrize("scheme", [Laplace, QuickLaplace])
def test_both_schemes_keep_the_contract(scheme, curvature):
    check_scheme(scheme(curvature=curvature))


@pytest.mark.parametrize("curvature", CURVATURES)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(problems())
def test_the_peak_is_never_worse_than_the_cavity_mean(loss, curvature, problem):
    rng, dim, cavity, beta = problem
    factor = linear(loss, rng, dim)
    height = objective(factor, cavity, beta)
    start = height(cavity.mean)
    assert height(Laplace(curvature).peak(factor, cavity, beta)) <= start + ROUNDING * (1.0 + abs(start))


@given(problems())
def test_the_peak_is_never_worse_for_a_cost_that_is_not_convex(problem):
    _, dim, cavity, beta = problem
    factor = CostFactor(wavy, dim)
    height, peak = objective(factor, cavity, beta), Laplace().peak(factor, cavity, beta)
    assert np.all(np.isfinite(peak))
    assert height(peak) <= height(cavity.mean) + ROUNDING * (1.0 + abs(height(cavity.mean)))


@given(problems())
def test_the_search_goes_down_where_it_can(problem):
    rng, dim, cavity, beta = problem
    factor = linear(Logistic(), rng, dim)
    height, slope = objective(factor, cavity, beta), beta * factor.derivatives(cavity.mean).gradient
    # What can be gained, to first order; next to nothing where all rows are far on their own side.
    assume(slope**2 @ cavity.variance > ROUNDING * height(cavity.mean))
    assert height(Laplace().peak(factor, cavity, beta)) < height(cavity.mean)


@pytest.mark.parametrize("curvature", CURVATURES)
@given(problems())
def test_the_peak_of_a_smooth_convex_cost_is_the_true_one(curvature, problem):
    rng, dim, cavity, beta = problem
    factor = linear(Logistic(), rng, dim)
    found = Laplace(curvature, max_steps=500).peak(factor, cavity, beta)
    gradient = beta * factor.derivatives(found).gradient + cavity.precision * (found - cavity.mean)
    step = factor.newton_direction(found, gradient, cavity.precision, beta, "exact")
    # Newton's own next step would be this short; with slopes in place of curvatures convergence is linear.
    assert np.linalg.norm(step) <= (1.0 if curvature == "exact" else 1e2) * TOL * np.linalg.norm(found)


@pytest.mark.parametrize(("center", "sigma"), [(0.4, 1.0), (-3.0, 0.2), (0.0, 5.0)])
def test_the_peak_in_one_dimension_is_that_of_a_scalar_search(center, sigma):
    factor, cavity = (
        LinearFactor(Logistic(3.0), [[1.0], [-0.4]], [1.0, 1.0]),
        FactorialGaussian.from_moments([center], sigma**2),
    )
    height = objective(factor, cavity, 2.0)
    true = minimize_scalar(lambda t: height(np.array([t])), bracket=(center - 1.0, center + 1.0), tol=1e-12).x
    assert Laplace().peak(factor, cavity, 2.0)[0] == pytest.approx(true, rel=TOL)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_tolerance_is_relative_to_the_point(unit):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((5, 3)), random_signs(rng, 5)
    cavity = random_cavity(rng, 3)
    scaled = FactorialGaussian.from_moments(unit * cavity.mean, unit**2 * cavity.variance)
    for tol in (1e-1, 1e-5):
        plain = Laplace(tol=tol).peak(LinearFactor(Logistic(), X, y), cavity)
        other = Laplace(tol=tol).peak(LinearFactor(Logistic(), X / unit, y), scaled)
        assert_close(other / unit, plain, ROUNDING)


def test_a_smaller_tolerance_takes_more_steps_and_comes_closer():
    rng = np.random.default_rng(1)
    factor, cavity = (
        LinearFactor(Logistic(10.0), rng.standard_normal((5, 3)), random_signs(rng, 5)),
        random_cavity(rng, 3),
    )
    exact = Laplace(tol=1e-14, max_steps=500).peak(factor, cavity)
    errors = [np.linalg.norm(Laplace(tol=tol).peak(factor, cavity) - exact) for tol in (1.0, 1e-5)]
    assert errors[0] > 1e-3 > TOL * np.linalg.norm(exact) > errors[1]


def test_the_search_is_bounded_and_stops_at_the_number_of_steps_allowed():
    factor, exact = gaussian_cost([3.0], [4.0])
    calls = []
    counted = CostFactor(
        factor.cost_function, 1, gradient=lambda t: calls.append(t) or factor.gradient(t), curvature=factor.curvature
    )
    cavity = FactorialGaussian(0.0, [0.0], [1.0])
    assert Laplace(max_steps=1).peak(counted, cavity) == pytest.approx((exact * cavity).mean)
    runaway = CostFactor(lambda t: -np.exp(t[0]), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        assert Laplace(max_steps=5).peak(runaway, cavity).shape == (1,)


@pytest.mark.parametrize("scheme", [QuickLaplace(), Laplace()], ids=repr)
def test_the_site_touches_the_factor_in_value_slope_and_curvature(scheme):
    rng = np.random.default_rng(2)
    factor, cavity, beta = linear(Logistic(), rng, 3), random_cavity(rng, 3), 0.7
    point = cavity.mean if scheme.name == "qla" else scheme.peak(factor, cavity, beta)
    site = scheme.approximate(factor, cavity, beta)
    value, gradient, curvature = factor.derivatives(point)
    assert float(site.log_density(point)) == pytest.approx(-beta * value, abs=ROUNDING)
    assert_close(site.shift - site.precision * point, -beta * gradient, ROUNDING)
    assert_close(site.precision, beta * curvature, ROUNDING)


def test_the_quick_site_does_not_depend_on_the_cavity_variance():
    rng = np.random.default_rng(3)
    factor, mean = linear(Logistic(), rng, 2), rng.standard_normal(2)
    sites = [QuickLaplace().approximate(factor, FactorialGaussian.from_moments(mean, v)) for v in (0.1, 10.0)]
    assert_same(*sites, ROUNDING)


def test_slopes_give_a_hinge_the_scale_that_its_curvature_lacks():
    factor = LinearFactor(Hinge(), [[2.0, 0.0], [1.0, 3.0]], [1.0, -1.0])
    cavity = FactorialGaussian.from_moments([0.0, 0.0], 1.0)
    exact = QuickLaplace().approximate(factor, cavity)
    slope = QuickLaplace(curvature="slope").approximate(factor, cavity)
    assert exact.precision.tolist() == [0.0, 0.0]
    assert slope.precision.tolist() == [5.0, 9.0]  # the sum of x**2 times |slope| = 1
    assert slope.shift.tolist() == exact.shift.tolist() == [2.0 - 1.0, -3.0]


@pytest.mark.parametrize("scheme", [Laplace, QuickLaplace])
def test_slopes_of_a_black_box_are_refused(scheme):
    with pytest.raises(ValueError, match=r"curvature='slope' needs a LinearFactor.*curvature='exact', or scheme='vq'"):
        scheme(curvature="slope").check(gaussian_cost([0.0], [1.0])[0])
    scheme(curvature="slope").check(LinearFactor(Hinge(), [[1.0]], [1.0]))
    scheme().check(gaussian_cost([0.0], [1.0])[0])


@pytest.mark.parametrize("scheme", [Laplace, QuickLaplace])
def test_an_unknown_curvature_is_refused(scheme):
    with pytest.raises(ValueError, match="curvature must be 'exact' or 'slope', got 'diagonal'"):
        scheme(curvature="diagonal")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        *(({"tol": tol}, "tol must be positive and finite, got") for tol in (0.0, np.nan, np.inf, None, "x")),
        *(
            ({"max_steps": steps}, "max_steps must be a whole number of at least 1, got")
            for steps in (0, 2.5, np.inf, None, "3", True)
        ),
    ],
)
def test_bad_settings_of_the_search_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Laplace(**kwargs)


def test_the_usual_tolerance_is_that_of_the_paper():
    assert Laplace().tol == TOL


def test_size_of_a_factor_with_untouched_columns_is_what_the_site_has():
    factor = LinearFactor(Logistic(), [[0.0, 1.0, 0.0]], [1.0])
    assert size(factor) == QuickLaplace().approximate(factor, FactorialGaussian(0.0, [0.0], [1.0])).dim == 1
