"""Laws of EP, by the plain engine."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import (
    Turning,
    assert_close,
    assert_same,
    concave,
    exact_posterior,
    fit,
    gaussian_cost,
    gaussian_factors,
    logistic_factors,
    random_cavity,
    random_rows,
    random_signs,
    seeds,
    standard_prior,
)
from cavity import FactorialGaussian, LinearFactor, Status, schedules, schemes
from cavity.ep.driver import make_options
from cavity.ep.factorised import Factorised
from cavity.ep.result import Refusal
from cavity.losses import Logistic, Squared

EXACT = 1e-9
FIXED_POINT = 1e-6
NAMES = ["la", "qla", "gq", "vq"]
GAUSSIAN_NAMES = ["la", "qla", "vq"]
SETTLED = {"tol": 1e-9, "max_iter": 400}
MODES = ["own", "tied", "averaged"]
few_examples = settings(max_examples=5)


@pytest.mark.parametrize("name", NAMES)
@few_examples
@given(seeds)
def test_the_order_of_identical_factors_is_immaterial_at_the_fixed_point(name, seed):
    rng = np.random.default_rng(seed)
    factors = logistic_factors(rng, count=1, rows=2, dim=2) * 4
    results = [
        fit(factors, standard_prior(2), name, order=order, **SETTLED).raise_for_status()
        for order in ("cyclic", [3, 1, 0, 2], schedules.Shuffled(seed))
    ]
    for other in results[1:]:
        assert_same(other.posterior, results[0].posterior, FIXED_POINT)
    for site in results[0].sites:
        assert_same(site, results[0].sites[0], FIXED_POINT)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sites", MODES)
@few_examples
@given(seeds)
def test_an_idle_visit_at_a_fixed_point_changes_nothing(name, sites, seed):
    rng = np.random.default_rng(seed)
    count = 1 if sites == "tied" else 4  # different factors leave a tied site on a cycle
    factors = logistic_factors(rng, count=count, rows=2, dim=2) * (4 // count)
    result = fit(factors, standard_prior(2), name, sites=sites, **SETTLED).raise_for_status()
    options = make_options(len(factors), max_iter=1, sites=sites)
    backend = Factorised(factors, standard_prior(2), schemes.resolve(name), options)
    backend.restore(result.state)
    changes = FactorialGaussian.uniform(2)
    for k in range(len(factors)):
        change, _, refusal = backend.visit(k)
        assert refusal is None
        changes = changes * change
        if sites != "averaged":
            assert_same(change, FactorialGaussian.uniform(2), FIXED_POINT)
    assert_same(changes, FactorialGaussian.uniform(2), FIXED_POINT)


@pytest.mark.parametrize("name", NAMES)
def test_another_loop_at_a_fixed_point_changes_nothing(name):
    factors = logistic_factors(np.random.default_rng(0), count=4, rows=2, dim=2)
    a, b = (fit(factors, standard_prior(2), name, max_iter=loops, tol=0.0) for loops in (60, 61))
    assert_same(a.posterior, b.posterior, EXACT)
    assert b.trace.changes[-1] < EXACT
    assert b.trace.updates == 4 * 61


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(seeds, st.floats(0.2, 5.0))
def test_beta_and_the_costs_scale_together(name, seed, beta):
    rng = np.random.default_rng(seed)
    data = [(rng.standard_normal((2, 2)), random_signs(rng, 2)) for _ in range(3)]
    cold = [LinearFactor(Logistic(), X, y) for X, y in data]
    heavy = [LinearFactor(Logistic(), X, y, np.full(2, beta)) for X, y in data]
    prior = standard_prior(2, 0.5)
    a, b = fit(cold, prior, name, beta=beta, max_iter=3), fit(heavy, prior, name, max_iter=3)
    assert_same(a.posterior, b.posterior, FIXED_POINT)


@pytest.mark.parametrize("name", NAMES)
@few_examples
@given(seeds)
def test_tied_and_averaged_are_own_for_identical_factors(name, seed):
    rng = np.random.default_rng(seed)
    factors = logistic_factors(rng, count=1, rows=2, dim=2) * 4
    own, tied, averaged = (
        fit(factors, standard_prior(2, 0.4), name, sites=sites, damping=0.5, **SETTLED).raise_for_status()
        for sites in MODES
    )
    assert_same(tied.posterior, own.posterior, FIXED_POINT)
    assert_same(averaged.posterior, tied.posterior, FIXED_POINT)
    assert len(tied.sites) == len(averaged.sites) == 1
    assert_same(tied.sites[0], own.sites[0], FIXED_POINT)


@pytest.mark.parametrize("sites", ["tied", "averaged"])
def test_a_shared_site_counts_the_factors_that_touch_a_coordinate(sites):
    rng = np.random.default_rng(1)
    common = LinearFactor(Squared(), [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]], [0.3, -1.0])
    alone = LinearFactor(Squared(), [[0.0, 0.0, 2.0]], [1.0])
    factors, prior = [common, alone, common], random_cavity(rng, 3)
    own, shared = (fit(factors, prior, sites=s, **SETTLED).raise_for_status() for s in ("own", sites))
    assert_close(shared.mean, own.mean, FIXED_POINT)
    assert_close(shared.variance, own.variance, FIXED_POINT)


@pytest.mark.parametrize("name", NAMES)
def test_averaged_sites_work_with_factors_of_different_coordinates(name):
    rng = np.random.default_rng(2)
    factors = [LinearFactor(Logistic(), random_rows(rng, 3, 4), random_signs(rng, 3)) for _ in range(6)]
    result = fit(factors, standard_prior(4), name, sites="averaged", damping=0.5, **SETTLED)
    assert result.status is Status.CONVERGED
    assert result.trace.refused == 0


def test_averaged_is_exact_on_gaussians_after_one_loop():
    rng = np.random.default_rng(3)
    factors, prior = gaussian_factors(rng), random_cavity(rng, 2)
    result = fit(factors, prior, sites="averaged", max_iter=1)
    assert_same(result.posterior, exact_posterior(factors, prior), EXACT)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sites", MODES)
def test_power_one_is_plain_and_other_powers_are_not(name, sites):
    factors = logistic_factors(np.random.default_rng(4))
    plain, one, half = (
        fit(factors, standard_prior(3), name, sites=sites, max_iter=5, **power)
        for power in ({}, {"power": 1.0}, {"power": 0.5})
    )
    assert plain.posterior == one.posterior
    if name != "qla":  # which does not see the width of the cavity, but its mean
        assert np.max(np.abs(half.variance / plain.variance - 1.0)) > FIXED_POINT


@pytest.mark.parametrize("name", GAUSSIAN_NAMES)
@pytest.mark.parametrize("power", [0.25, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("sites", ["own", "averaged", "none"])
def test_power_ep_is_exact_on_gaussians(name, power, sites):
    rng = np.random.default_rng(5)
    factors, prior = gaussian_factors(rng), random_cavity(rng, 2)
    result = fit(factors, prior, name, power=power, sites=sites, beta=0.7)
    exact = exact_posterior(factors, prior, 0.7)
    assert_same(result.posterior, exact, EXACT)
    assert result.log_evidence == pytest.approx(exact.log_mass, abs=EXACT)


def test_power_ep_removes_and_fits_that_much_of_a_factor():
    factor = logistic_factors(np.random.default_rng(6), count=1)[0]
    first = fit([factor], standard_prior(3), "vq", power=0.5, max_iter=1)
    scheme = schemes.VariationalQuadrature()
    site = scheme.approximate(factor, standard_prior(3), 0.5) ** 2.0
    assert_same(first.sites[0], site, EXACT)
    second = fit([factor], standard_prior(3), "vq", power=0.5, max_iter=2, tol=0.0)
    assert_same(second.sites[0], scheme.approximate(factor, first.posterior / site**0.5, 0.5) ** 2.0, EXACT)


@pytest.mark.parametrize("sites", MODES)
def test_damping_reaches_the_same_fixed_point(sites):
    factors = logistic_factors(np.random.default_rng(7), count=1, rows=3) * 3
    plain, damped = (
        fit(factors, standard_prior(3), sites=sites, damping=damping, **SETTLED).raise_for_status()
        for damping in (1.0, 0.3)
    )
    assert_same(damped.posterior, plain.posterior, FIXED_POINT)
    assert len(damped.trace.changes) > len(plain.trace.changes)


def test_damping_is_a_share_of_the_way():
    factor, exact = gaussian_cost([1.0, 2.0], [3.0, 0.5])
    result = fit([factor], standard_prior(2), damping=0.25, max_iter=2, tol=0.0)
    assert_same(result.sites[0], exact ** (1.0 - 0.75**2), EXACT)


@pytest.mark.parametrize("name", GAUSSIAN_NAMES)
@pytest.mark.parametrize("sites", MODES)
@pytest.mark.parametrize("beta", [[0.1, 0.5, 2.0], schedules.Annealing(5.0, 2.0, loops=4)], ids=repr)
def test_annealing_ends_at_the_direct_fit_of_gaussian_factors(name, sites, beta):
    rng = np.random.default_rng(8)
    factors, prior = gaussian_factors(rng, count=1) * 3, random_cavity(rng, 2)
    result = fit(factors, prior, name, sites=sites, beta=beta, **SETTLED).raise_for_status()
    direct = fit(factors, prior, name, sites=sites, beta=2.0, **SETTLED).raise_for_status()
    assert_same(result.posterior, direct.posterior, FIXED_POINT)
    assert_same(result.posterior, exact_posterior(factors, prior, 2.0), FIXED_POINT)
    assert result.trace.betas[-1] == 2.0


@pytest.mark.parametrize("sites", MODES)
def test_sites_and_posterior_are_rescaled_when_beta_changes(sites):
    # From the second loop on nothing is accepted: what changes is the rescaling alone.
    exact, prior = gaussian_cost([1.0, 1.0], [1.0, 1.0])[1], standard_prior(2)
    result = fit([Turning(first=2).factor(2)], prior, sites=sites, max_iter=2, beta=[0.5, 1.5])
    assert_same(result.sites[0], (exact**0.5) ** 3.0, EXACT)
    assert_same(result.posterior, prior * exact**1.5, EXACT)
    assert result.trace.betas == (0.5, 1.5)
    assert result.trace.refusals == Counter({(0, Refusal.NONFINITE): 1})


def test_annealing_does_not_end_before_its_last_temperature():
    result = fit([gaussian_cost([1.0], [1.0])[0]], standard_prior(1), beta=schedules.Annealing(0.999, 1.0, loops=6))
    assert len(result.trace.betas) >= 6
    assert result.status is Status.CONVERGED


def test_rescaling_that_would_leave_no_posterior_is_refused_and_said():
    result = fit([concave(0.4)], standard_prior(1), beta=[1.0, 3.0], max_iter=2)
    assert result.trace.refusals[-1, Refusal.RESCALING] == 1
    assert result.status is Status.IMPROPER_CAVITY
    assert result.posterior.is_proper
    assert_same(result.posterior, standard_prior(1) * result.sites[0], EXACT)


@pytest.mark.parametrize("name", GAUSSIAN_NAMES)
def test_the_single_pass_without_sites_is_exact_on_gaussians(name):
    rng = np.random.default_rng(9)
    factors, prior = gaussian_factors(rng), random_cavity(rng, 2)
    own, none = (fit(factors, prior, name, sites=sites) for sites in ("own", "none"))
    assert_same(none.posterior, own.posterior, EXACT)
    assert none.sites == ()
    assert none.status is Status.SINGLE_PASS
    assert none.trace.updates == len(factors)


@pytest.mark.parametrize("name", NAMES)
def test_the_single_pass_is_the_first_loop(name):
    factors = logistic_factors(np.random.default_rng(10))
    own, none = (fit(factors, standard_prior(3), name, sites=sites, max_iter=1) for sites in ("own", "none"))
    assert_same(none.posterior, own.posterior, EXACT)


def test_shuffled_order_is_reproducible():
    factors = logistic_factors(np.random.default_rng(11))

    def posterior(**kwargs):
        return fit(factors, standard_prior(3), max_iter=2, tol=0.0, **kwargs).posterior

    one = posterior(order="shuffled", random_state=1)
    assert one == posterior(order="shuffled", random_state=1) == posterior(order=schedules.Shuffled(1))
    assert one != posterior(order="shuffled", random_state=2)
    assert one != posterior(order="cyclic")


def test_a_given_order_may_leave_factors_out():
    rng = np.random.default_rng(12)
    factors, prior = gaussian_factors(rng), random_cavity(rng, 2)
    result = fit(factors, prior, order=[3, 1])
    assert_same(result.posterior, exact_posterior([factors[1], factors[3]], prior), EXACT)
    assert result.sites[0] == FactorialGaussian.uniform(2)


@pytest.mark.parametrize("name", NAMES)
def test_ep_beats_its_start_on_the_evidence(name):
    # One row in one dimension: the evidence by a fine sum, against which EP is a fit of one factor.
    factor, prior = LinearFactor(Logistic(), [[1.0]], [1.0]), standard_prior(1)
    t = np.linspace(-10.0, 10.0, 20_001)
    truth = np.log(np.sum(np.exp(prior.log_density(t[:, None]) - factor.cost(t[:, None]))) * (t[1] - t[0]))
    assert fit([factor], prior, name).log_evidence == pytest.approx(truth, abs=0.02)
