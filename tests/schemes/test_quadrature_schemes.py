from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from cases import (
    SIGN_LOSSES,
    assert_close,
    assert_same,
    concave,
    fit,
    gaussian_cost,
    kl_divergence,
    logistic_factors,
    normalized,
    random_cavity,
    random_signs,
    seeds,
    standard_prior,
)
from cavity import CostFactor, FactorialGaussian, LinearFactor, schemes
from cavity.losses import Hinge, Logistic, QuasiZeroOne
from cavity.quadrature import GaussHermite, MonteCarlo, Precision3, Precision5
from cavity.schemes import GaussQuadrature, VariationalQuadrature
from cavity.testing import check_scheme

ROUNDING = 1e-9
SAME_MINIMUM = 1e-6
SMOOTH_TRUTH, KINKED_TRUTH, JUMPY_TRUTH = 1e-6, 5e-3, 3e-2
PRECISION_FIVE, SAMPLING = 0.03, 0.1
NEWTON = VariationalQuadrature(solver="newton")
CLOSED = VariationalQuadrature()
RICH_RULES = [GaussHermite(4), Precision5(), MonteCarlo(200), MonteCarlo(201, reflect=False)]


@pytest.mark.parametrize(
    "scheme",
    [
        *(GaussQuadrature(rule) for rule in (Precision3(), Precision3("yu"), Precision3("julier"), *RICH_RULES)),
        *(VariationalQuadrature(rule) for rule in (Precision3(), Precision3("yu"), Precision3("julier"))),
        *(VariationalQuadrature(rule, "newton") for rule in (Precision3(), Precision3(3.0), *RICH_RULES)),
    ],
    ids=repr,
)
def test_every_scheme_keeps_the_contract_with_every_rule(scheme):
    check_scheme(scheme)


def nodes_and_costs(factor, cavity, rule):
    points = cavity.mean + cavity.std * rule.node_set(cavity.dim).nodes
    return points, factor.cost(points)


@st.composite
def problems(draw, loss, least, most):
    """Factor, cavity and the beta at which log f spans between least and most over the nodes of the usual rule."""
    rng = np.random.default_rng(draw(seeds))
    dim, n = draw(st.integers(1, 6)), draw(st.integers(1, 10))
    factor = LinearFactor(loss, rng.standard_normal((n, dim)), random_signs(rng, n))
    cavity = random_cavity(rng, dim, spread=1.5)
    span = np.ptp(nodes_and_costs(factor, cavity, Precision3())[1])
    return factor, cavity, draw(st.floats(least, most)) / max(span, 1e-3)


@pytest.mark.parametrize("loss", SIGN_LOSSES, ids=repr)
@given(st.data())
def test_newton_finds_the_closed_form_where_log_f_spans_less_than_twenty(loss, data):
    factor, cavity, beta = data.draw(problems(loss, 0.01, 20.0))
    assert_same(NEWTON.approximate(factor, cavity, beta), CLOSED.approximate(factor, cavity, beta), SAME_MINIMUM)


@pytest.mark.parametrize("rule", [Precision3("yu"), Precision3("julier"), Precision3(1.3), Precision3()], ids=repr)
@pytest.mark.parametrize("loss", SIGN_LOSSES, ids=repr)
@given(st.data())
def test_the_closed_form_interpolates_log_f_at_every_node(loss, rule, data):
    factor, cavity, beta = data.draw(problems(loss, 0.01, 300.0))
    points, costs = nodes_and_costs(factor, cavity, rule)
    found = VariationalQuadrature(rule).approximate(factor, cavity, beta).log_density(points)
    assert_close(found, -beta * costs, ROUNDING * (1.0 + np.max(beta * costs)))


@pytest.mark.parametrize("loss", SIGN_LOSSES, ids=repr)
def test_beyond_a_span_of_forty_newton_is_flatter_though_it_sees_no_difference(loss):
    rng, ranges = np.random.default_rng(0), []
    for _ in range(40):
        dim = int(rng.integers(1, 6))
        factor = LinearFactor(loss, rng.standard_normal((6, dim)), random_signs(rng, 6))
        cavity = random_cavity(rng, dim)
        points, costs = nodes_and_costs(factor, cavity, Precision3())
        beta = rng.uniform(50.0, 100.0) / np.ptp(costs)
        log_f = -beta * (costs - costs.min())
        newton, closed = (
            scheme.approximate(factor, cavity, beta).log_density(points) + beta * costs.min()
            for scheme in (NEWTON, CLOSED)
        )
        # Both fit what double precision can see of f ...
        assert_close(np.exp(newton), np.exp(log_f), SAME_MINIMUM)
        assert_close(np.exp(closed), np.exp(log_f), SAME_MINIMUM)
        # ... but the closed form follows log f all the way down.
        assert np.ptp(closed) == pytest.approx(np.ptp(log_f))
        ranges.append((np.ptp(newton), np.ptp(closed)))
    newton, closed = np.array(ranges).T
    assert np.mean(newton < closed - 5.0) > 0.7
    assert np.median(newton) < 45.0 < np.median(closed)


@pytest.mark.parametrize("rule", [Precision3(), Precision3(3.0), *RICH_RULES, GaussHermite(9)], ids=repr)
@pytest.mark.parametrize("loss", SIGN_LOSSES, ids=repr)
def test_newton_makes_the_gradient_of_the_surrogate_vanish(loss, rule):
    rng = np.random.default_rng(1)
    for dim in (1, 2, 3):
        factor, cavity = (
            LinearFactor(loss, rng.standard_normal((5, dim)), random_signs(rng, 5)),
            random_cavity(rng, dim, 0.3),
        )
        scheme = VariationalQuadrature(rule, "newton", tol=1e-9)
        scheme.check(factor)
        site = scheme.approximate(factor, cavity, 0.5)
        nodes, weights = rule.node_set(dim)
        points, costs = nodes_and_costs(factor, cavity, rule)
        features = np.concatenate([np.ones((len(nodes), 1)), nodes, nodes**2], axis=1)
        f, g = np.exp(-0.5 * costs), np.exp(site.log_density(points))
        assert_close((weights * g) @ features / (weights @ f), (weights * f) @ features / (weights @ f), SAME_MINIMUM)


@pytest.mark.parametrize("rule", RICH_RULES, ids=repr)
def test_the_closed_form_is_refused_for_more_nodes_than_unknowns(rule):
    with pytest.raises(
        ValueError, match=r"closed form needs as many nodes as unknowns, but .* has more.*solver='newton'"
    ):
        VariationalQuadrature(rule)


@pytest.mark.parametrize(
    ("rule", "dim", "found"),
    [
        (Precision3("yu"), 2, "has 5 nodes and least weight"),
        (Precision3("yu"), 1, "has 3 nodes and least weight 0"),
        (Precision3("julier"), 4, r"has 9 nodes and least weight -0\.333"),
        (Precision3(1.0), 3, "has 7 nodes and least weight -2"),
        (MonteCarlo(4), 3, r"at least 7 nodes in 3 dimensions, but MonteCarlo\(size=4.* has 4 nodes"),
        (GaussHermite(2), 1, "at least 3 nodes in 1 dimensions, but .* has 2 nodes"),
    ],
)
def test_newton_is_refused_where_the_surrogate_has_no_unique_minimum(rule, dim, found):
    factor, scheme = concave(1.0, dim), VariationalQuadrature(rule, "newton")
    with pytest.raises(ValueError, match=f"Newton's method needs positive weights.*{found}"):
        scheme.check(factor)
    with pytest.raises(ValueError, match="Newton's method needs positive weights"):
        fit([factor], standard_prior(dim), scheme)


def test_newton_serves_weights_that_are_positive_in_few_dimensions():
    VariationalQuadrature(Precision3("julier"), "newton").check(concave(1.0, 2))


@pytest.mark.parametrize("scheme", [GaussQuadrature, lambda rule: VariationalQuadrature(rule, "newton")])
def test_a_rule_too_large_says_so_before_the_run(scheme):
    with pytest.raises(ValueError, match=r"needs 9\*\*12 nodes in 12 dimensions.*use Precision5"):
        fit([concave(0.1, 12)], standard_prior(12), scheme(GaussHermite(9)))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"solver": "cholesky"}, "solver must be 'closed' or 'newton', got 'cholesky'"),
        ({"solver": None}, "solver must be 'closed' or 'newton', got None"),
        *(({"tol": tol}, "tol must be positive and finite, got") for tol in (0.0, np.nan, np.inf, None, "x")),
    ],
)
def test_bad_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VariationalQuadrature(**kwargs)


@pytest.mark.parametrize("scheme", [GaussQuadrature, VariationalQuadrature])
@pytest.mark.parametrize("rule", [None, "paper", 3, Precision3])
def test_what_is_no_rule_is_refused(scheme, rule):
    with pytest.raises(ValueError, match=r"rule must be an integration rule such as cavity\.quadrature\.Precision3"):
        scheme(rule)


def test_newtons_usual_tolerance_is_that_of_the_paper():
    assert VariationalQuadrature().tol == 1e-5


def true_moments_1d(factor, cavity, beta):
    """Logarithm of the mass, mean and variance of cavity times factor by adaptive integration."""
    ends = cavity.mean[0] - 12.0 * cavity.std[0], cavity.mean[0] + 12.0 * cavity.std[0]

    def integrand(t, k):
        return t**k * np.exp(float(cavity.log_density([t])) - beta * factor.cost(np.array([[t]]))[0])

    kinks = [t for t in (-1.0, 0.0, 0.05, 0.1, 0.5, 1.0, 2.0) if ends[0] < t < ends[1]]
    m0, m1, m2 = (quad(integrand, *ends, args=(k,), points=kinks, limit=300)[0] for k in range(3))
    return np.log(m0), np.array([m1 / m0]), np.array([m2 / m0 - (m1 / m0) ** 2])


def true_moments_2d(factor, cavity, beta, count=401):
    """The same in two dimensions on a dense grid."""
    axes = [np.linspace(m - 8.0 * s, m + 8.0 * s, count) for m, s in zip(cavity.mean, cavity.std, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(cavity.log_density(points) - beta * factor.cost(points))
    mass = density.sum()
    mean = density @ points / mass
    return np.log(mass * np.prod([a[1] - a[0] for a in axes])), mean, density @ points**2 / mass - mean**2


def assert_moments(scheme, factor, cavity, beta, truth, tol):
    tilted = cavity * scheme.approximate(factor, cavity, beta)
    assert tilted.log_mass == pytest.approx(truth[0], abs=tol)
    assert_close((tilted.mean - truth[1]) / cavity.std, 0.0, tol)
    assert_close(tilted.variance / truth[2], 1.0, tol)


ONE_ROW = [[1.0]], [1.0]
CASES_1D = [
    (LinearFactor(Logistic(), *ONE_ROW), 60, SMOOTH_TRUTH),
    (LinearFactor(Logistic(3.0), [[1.0], [-0.5]], [1.0, 1.0]), 100, 1e2 * SMOOTH_TRUTH),
    (gaussian_cost([1.0], [2.0])[0], 60, SMOOTH_TRUTH),
    (CostFactor(lambda t: np.sin(t).sum(axis=-1), 1, vectorized=True), 60, SMOOTH_TRUTH),
    (LinearFactor(Hinge(), *ONE_ROW), 150, KINKED_TRUTH),
    (LinearFactor(QuasiZeroOne(), *ONE_ROW), 150, JUMPY_TRUTH),
    (CostFactor(lambda t: np.abs(t).sum(axis=-1), 1, vectorized=True), 150, KINKED_TRUTH),
]


@pytest.mark.parametrize(("mean", "variance", "beta"), [(0.0, 1.0, 1.0), (0.8, 0.3, 2.0), (-1.5, 2.0, 0.5)])
@pytest.mark.parametrize(("factor", "order", "tol"), CASES_1D)
def test_gauss_quadrature_of_high_order_reaches_the_integrals_in_one_dimension(
    factor, order, tol, mean, variance, beta
):
    cavity = FactorialGaussian.from_moments([mean], variance, log_mass=0.4)
    truth = true_moments_1d(factor, cavity, beta)
    assert_moments(GaussQuadrature(GaussHermite(order)), factor, cavity, beta, truth, tol)


@pytest.mark.parametrize(
    ("loss", "order", "tol"),
    [(Logistic(), 40, SMOOTH_TRUTH), (Hinge(), 80, KINKED_TRUTH), (QuasiZeroOne(), 80, JUMPY_TRUTH)],
)
def test_gauss_quadrature_of_high_order_reaches_the_integrals_in_two_dimensions(loss, order, tol):
    cavity = FactorialGaussian.from_moments([0.3, -0.2], [1.0, 0.5], log_mass=-0.7)
    factor = LinearFactor(loss, [[1.0, 0.4], [0.3, -1.0]], [1.0, -1.0])
    truth = true_moments_2d(factor, cavity, 1.0)
    assert_moments(GaussQuadrature(GaussHermite(order)), factor, cavity, 1.0, truth, tol)


def test_richer_rules_come_closer_than_the_usual_one():
    cavity = FactorialGaussian.from_moments([0.3, -0.2], [1.0, 0.5])
    factor = LinearFactor(Logistic(), [[1.0, 0.4], [0.3, -1.0]], [1.0, -1.0])
    truth = FactorialGaussian.from_moments(*true_moments_2d(factor, cavity, 1.0)[1:])

    def error(rule):
        return kl_divergence(truth, normalized(cavity * GaussQuadrature(rule).approximate(factor, cavity)))

    assert error(GaussHermite(12)) < error(Precision5()) < error(Precision3())
    assert error(MonteCarlo(20_000)) < error(Precision3())


@pytest.mark.parametrize("star", [Precision3(), Precision3("julier"), Precision3(2.2)], ids=repr)
def test_the_star_of_gauss_quadrature_is_its_rule(star):
    rng = np.random.default_rng(4)
    factor, cavity = logistic_factors(rng, count=1, dim=4)[0], random_cavity(rng, 4, 0.3)
    nodes, weights = star.node_set(4)
    points = cavity.mean + cavity.std * nodes
    terms = weights * np.exp(-0.8 * factor.cost(points))
    mean = terms @ points / terms.sum()
    variance = terms @ points**2 / terms.sum() - mean**2
    wanted = FactorialGaussian.from_moments(mean, variance, log_mass=np.log(terms.sum())) / normalized(cavity)
    assert_same(GaussQuadrature(star).approximate(factor, cavity, 0.8), wanted, ROUNDING)


def test_costs_of_any_size_do_not_underflow():
    cavity = FactorialGaussian.from_moments([0.2, 0.1], [1.0, 2.0])
    for scheme in (GaussQuadrature(), GaussQuadrature(GaussHermite(5)), CLOSED, NEWTON):
        plain = scheme.approximate(CostFactor(lambda t: float(np.sum(t**4)), 2), cavity, 0.1)
        lifted = scheme.approximate(CostFactor(lambda t: float(np.sum(t**4)) + 1e5, 2), cavity, 0.1)
        assert_close(lifted.shift, plain.shift, SAME_MINIMUM)
        assert_close(lifted.precision, plain.precision, SAME_MINIMUM)
        assert lifted.log_scale == pytest.approx(plain.log_scale - 1e4)


def test_where_a_rule_gives_no_variance_there_is_no_site():
    # All weight at one far node: mean and second moment leave no variance.
    factor = CostFactor(lambda t: 1e4 * abs(t[0] - 1.0), 1)
    site = GaussQuadrature(Precision3("yu")).approximate(factor, FactorialGaussian(0.0, [0.0], [1.0]))
    assert not site.is_finite
    # Negative mass, from the negative weight at the centre.
    inside = CostFactor(lambda t: 50.0 * float(t @ t), 6)
    with np.errstate(all="ignore"):
        assert not GaussQuadrature(Precision3("julier")).approximate(inside, standard_prior(6)).is_finite


@pytest.mark.parametrize(
    "scheme",
    [
        GaussQuadrature(Precision5()),
        GaussQuadrature(MonteCarlo(40_000)),
        VariationalQuadrature(Precision5(), "newton"),
        VariationalQuadrature(MonteCarlo(40_000), "newton"),
    ],
    ids=repr,
)
def test_rich_rules_work_through_fit_and_agree_with_a_fine_grid(scheme):
    rng = np.random.default_rng(5)
    factors = [LinearFactor(Logistic(0.5), rng.standard_normal((3, 3)), random_signs(rng, 3)) for _ in range(5)]
    fine = replace(scheme, rule=GaussHermite(9))
    found, truth = (fit(factors, standard_prior(3, 0.3), s, tol=1e-6).raise_for_status() for s in (scheme, fine))
    tol = PRECISION_FIVE if scheme.rule == Precision5() else SAMPLING
    assert_close((found.mean - truth.mean) / truth.std, 0.0, tol)
    assert_close(found.variance / truth.variance, 1.0, tol)
    assert found.log_evidence == pytest.approx(truth.log_evidence, abs=tol)


def test_names_of_the_paper_are_the_usual_schemes():
    assert schemes.resolve("gq") == GaussQuadrature()
    assert schemes.resolve("vq") == VariationalQuadrature()
    assert schemes.resolve("la") == schemes.Laplace()
    assert schemes.resolve("qla") == schemes.QuickLaplace()
    assert schemes.resolve(CLOSED) is CLOSED
    assert {schemes.resolve(name).name for name in schemes.NAMES} == {
        getattr(schemes, name).name for name in schemes.__all__
    }
