"""Laws that hold for every scheme, and what each is exact on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    all_components,
    assert_close,
    assert_same,
    concave,
    fit,
    gaussian_cost,
    logistic_factors,
    random_cavity,
    seeds,
    size,
    standard_prior,
)
from cavity import CostFactor, FactorialGaussian, LinearFactor, Status, schemes
from cavity.losses import Logistic, Squared
from cavity.quadrature import Precision3, Precision5
from cavity.schemes import (
    ExactProjection,
    GaussQuadrature,
    Laplace,
    QuickLaplace,
    RecentredQuadrature,
    VariationalQuadrature,
)
from cavity.testing import check_scheme

EXACT = 1e-9
# Central differences: relative 1e-10 and 1e-8 for a cost near one, and costs here go to some hundreds.
DIFFERENCES = 1e-5
FIXED_POINT = 1e-6

SCHEMES = all_components(schemes)
# Those that take any cost, not rows only.
GENERAL = [scheme for scheme in SCHEMES if scheme != ExactProjection()]
NAMES = ["la", "qla", "gq", "vq", "rvq", "exact"]
NEWTON = VariationalQuadrature(solver="newton")
GAUSSIAN_SCHEMES = [Laplace(), QuickLaplace(), VariationalQuadrature(), RecentredQuadrature()]


def tightened(scheme):
    """The scheme with a tolerance that leaves no trace, if it has one."""
    return replace(scheme, tol=1e-9) if hasattr(scheme, "tol") else scheme


def visible(beta, factor, cavity, rule=NEWTON.rule):
    """Beta lowered until log f spans 8 over the nodes at most, which Newton's method can resolve to 1e-9."""
    costs = factor.cost(cavity.mean + cavity.std * rule.node_set(cavity.dim).nodes)
    return min(beta, 8.0 / np.ptp(costs))


@st.composite
def gaussian_problems(draw):
    """A factor that is a factorial Gaussian, of either sign, that Gaussian, a cavity and beta."""
    rng, dim = np.random.default_rng(draw(seeds)), draw(st.integers(1, 6))
    cavity, beta = random_cavity(rng, dim), draw(st.sampled_from([0.2, 1.0, 3.0]))
    precision = np.exp(rng.standard_normal(dim))
    if draw(st.booleans()):  # concave somewhere, as far as cavity times factor stays proper
        precision[0] = -rng.uniform(0.1, 0.9) * cavity.precision[0] / beta
    factor, exact = gaussian_cost(2.0 * rng.standard_normal(dim), precision, rng.uniform(-3.0, 3.0))
    return factor, exact, cavity, beta


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_every_scheme_keeps_the_contract(scheme):
    check_scheme(scheme)


@pytest.mark.parametrize("scheme", GAUSSIAN_SCHEMES, ids=repr)
@given(gaussian_problems())
def test_laplace_and_variational_schemes_are_exact_on_factorial_gaussians(scheme, problem):
    factor, exact, cavity, beta = problem
    assert_same(scheme.approximate(factor, cavity, beta), exact**beta, EXACT)


@pytest.mark.parametrize("rule", [Precision3(), Precision3(4.0), Precision5()], ids=repr)
@given(gaussian_problems())
def test_newtons_method_is_exact_on_factorial_gaussians_that_it_can_see(rule, problem):
    factor, exact, cavity, beta = problem
    scheme, beta = tightened(VariationalQuadrature(rule, "newton")), visible(beta, factor, cavity, rule)
    scheme.check(factor)
    assert_same(scheme.approximate(factor, cavity, beta), exact**beta, EXACT)


@pytest.mark.parametrize("scheme", [*GAUSSIAN_SCHEMES, NEWTON], ids=repr)
@given(seeds)
def test_linear_factors_along_the_axes_are_factorial_gaussians(scheme, seed):
    rng, dim = np.random.default_rng(seed), 4
    axes, entries = rng.integers(0, dim, 5), rng.uniform(-2.0, 2.0, 5)
    X, y, w, scale = np.zeros((5, dim)), rng.standard_normal(5), rng.uniform(0.5, 2.0, 5), rng.uniform(0.7, 2.0)
    X[np.arange(5), axes] = entries
    factor = LinearFactor(Squared(scale), X, y, w)
    cavity = FactorialGaussian.from_moments(0.5 * rng.standard_normal(size(factor)), 0.3)
    exact = FactorialGaussian(-0.5 * w @ y**2 / scale**2, (w * y) @ X / scale**2, w @ X**2 / scale**2)
    chosen = np.arange(dim) if factor.coordinates is None else factor.coordinates
    beta = visible(1.0, factor, cavity)
    assert_same(tightened(scheme).approximate(factor, cavity, beta), (exact**beta).take(chosen), EXACT)


@pytest.mark.parametrize("scheme", [Laplace(), QuickLaplace()], ids=repr)
@given(gaussian_problems())
def test_finite_differences_are_as_exact_as_documented(scheme, problem):
    factor, exact, cavity, beta = problem
    blind = CostFactor(factor.cost_function, factor.dim, vectorized=True)
    scale = 1.0 + np.max(np.abs(factor.cost(np.array([cavity.mean, scheme.approximate(factor, cavity, beta).shift]))))
    assert_same(scheme.approximate(blind, cavity, beta), exact**beta, DIFFERENCES * min(scale, 10.0))


@pytest.mark.parametrize("scheme", [*GENERAL, NEWTON, GaussQuadrature(Precision5())], ids=repr)
@given(st.integers(1, 5), seeds, st.floats(-50.0, 50.0))
def test_every_scheme_is_exact_on_a_constant(scheme, dim, seed, constant):
    factor, cavity = CostFactor(lambda t: constant, dim), random_cavity(np.random.default_rng(seed), dim)
    exact = FactorialGaussian(-0.7 * constant, np.zeros(dim), np.zeros(dim))
    assert_same(scheme.approximate(factor, cavity, 0.7), exact, EXACT)


@pytest.mark.parametrize("scheme", [*SCHEMES, NEWTON, QuickLaplace("slope"), Laplace("slope")], ids=repr)
@given(seeds, st.floats(0.1, 10.0))
def test_only_the_product_of_beta_and_the_cost_counts(scheme, seed, ratio):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((4, 3)), rng.choice([-1.0, 1.0], 4)
    factor, weighted, cavity = (
        LinearFactor(Logistic(), X, y),
        LinearFactor(Logistic(), X, y, np.full(4, ratio)),
        random_cavity(rng, 3),
    )
    beta = visible(ratio, factor, cavity)
    a, b = (
        tightened(scheme).approximate(factor, cavity, beta),
        tightened(scheme).approximate(weighted, cavity, beta / ratio),
    )
    assert_same(a, b, FIXED_POINT)


@pytest.mark.parametrize("scheme", [*SCHEMES, NEWTON], ids=repr)
@given(seeds)
def test_the_scale_of_the_cavity_does_not_matter(scheme, seed):
    rng = np.random.default_rng(seed)
    factor, cavity = logistic_factors(rng, count=1)[0], random_cavity(rng, 3, 0.3)
    other = FactorialGaussian(cavity.log_scale + 17.0, cavity.shift, cavity.precision)
    assert scheme.approximate(factor, cavity) == scheme.approximate(factor, other)


@pytest.mark.parametrize("scheme", [*GENERAL, NEWTON], ids=repr)
@given(seeds, st.floats(-5.0, 5.0), st.floats(0.1, 10.0))
def test_schemes_do_not_see_where_the_origin_is_nor_the_unit(scheme, seed, move, unit):
    rng = np.random.default_rng(seed)
    factor, cavity = logistic_factors(rng, count=1)[0], random_cavity(rng, 3, 0.3)
    moved = CostFactor(
        lambda t: factor.cost(t / unit - move),
        3,
        gradient=lambda t: factor.derivatives(t / unit - move).gradient / unit,
        curvature=lambda t: factor.derivatives(t / unit - move).curvature / unit**2,
        vectorized=True,
    )
    far = FactorialGaussian.from_moments(unit * (cavity.mean + move), unit**2 * cavity.variance)
    tight = tightened(scheme)  # a relative tolerance sees the origin
    a, b = cavity * tight.approximate(factor, cavity), far * tight.approximate(moved, far)
    assert_close(b.mean / unit - move, a.mean, FIXED_POINT)
    assert_close(b.variance / unit**2, a.variance, FIXED_POINT)


@pytest.mark.parametrize("name", NAMES)
def test_names_work_as_strings_and_as_values(name):
    rng = np.random.default_rng(0)
    factors = logistic_factors(rng)
    by_name = fit(factors, standard_prior(3), name)
    assert by_name.posterior == fit(factors, standard_prior(3), schemes.resolve(name)).posterior


@pytest.mark.parametrize("scheme", [*GAUSSIAN_SCHEMES], ids=repr)
@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_fit_has_the_posterior_and_evidence_of_the_closed_form(scheme, dim, count, seed):
    rng = np.random.default_rng(seed)
    pairs = [
        gaussian_cost(rng.standard_normal(dim), np.exp(rng.standard_normal(dim)), rng.standard_normal())
        for _ in range(count)
    ]
    prior, beta = random_cavity(rng, dim), rng.uniform(0.5, 2.0)
    result = fit([factor for factor, _ in pairs], prior, scheme, beta=beta)
    posterior = prior
    for _, exact in pairs:
        posterior = posterior * exact**beta
    assert_same(result.posterior, posterior, EXACT)
    assert result.log_evidence == pytest.approx(posterior.log_mass, abs=EXACT * (1.0 + abs(posterior.log_scale)))
    assert result.status is Status.CONVERGED


def test_fit_of_constants_by_gauss_quadrature_is_the_prior_with_their_evidence():
    factors = [CostFactor(lambda t, c=c: c, 2) for c in (0.3, -1.2, 4.0)]
    result = fit(factors, standard_prior(2), "gq", beta=2.0)
    assert result.log_evidence == pytest.approx(-2.0 * 3.1, abs=EXACT)
    assert_close(result.variance, 1.0, EXACT)


def test_a_concave_factor_has_a_site_of_negative_precision():
    cavity_ = standard_prior(2)
    for scheme in GAUSSIAN_SCHEMES:
        assert_close(scheme.approximate(concave(0.5, 2), cavity_).precision, -0.5, EXACT)


@pytest.mark.parametrize("bad", ["mc", "VQ", ""])
def test_an_unknown_name_is_refused(bad):
    with pytest.raises(
        ValueError, match=f"scheme must be one of la, qla, gq, vq, rvq, exact, or a scheme object, got '{bad}'"
    ):
        schemes.resolve(bad)


@pytest.mark.parametrize("bad", [None, 3, object(), schemes.Laplace])
def test_what_is_no_scheme_is_refused(bad):
    with pytest.raises(
        ValueError,
        match="scheme must be one of la, qla, gq, vq, rvq, exact, or have methods approximate and check, got",
    ):
        schemes.resolve(bad)
