"""What is accepted, damped or refused on the way, and the books that are kept."""

from collections import Counter
from itertools import pairwise

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
    standard_prior,
)
from cavity import CostFactor, FactorError, FactorialGaussian, Status, Update, schedules, schemes
from cavity.ep.result import Refusal
from cavity.gaussians.factorial import SITE_FLOOR

EXACT = 1e-9
FIXED_POINT = 1e-6
NAMES = ["la", "qla", "gq", "vq"]
GAUSSIAN_NAMES = ["la", "qla", "vq"]


def product_of_sites(result, factors, prior):
    posterior = prior
    for factor, site in zip(factors, result.sites, strict=True):
        posterior = posterior * site.scatter(factor.coordinates, prior.dim)
    return posterior


# Acceptance


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_cost_that_turns_bad_is_refused_counted_and_named(name, bad):
    seen, loops_begun, prior = [], [], standard_prior(1)
    good = [gaussian_cost([2.0], [1.0])[0], gaussian_cost([-1.0], [0.5])[0]]

    def cost(points):
        values = 0.5 * np.sum((points - 1.0) ** 2, axis=1)
        return values if len(loops_begun) <= 1 else np.full_like(values, bad)

    def note(update):
        seen.append(update)
        if update.factor == 0:
            loops_begun.append(update.loop)

    factors = [good[0], CostFactor(cost, 1, vectorized=True), good[1]]
    result = fit(factors, prior, name, max_iter=3, tol=0.0, callback=note)
    assert result.trace.refusals == Counter({(1, Refusal.NONFINITE): 2})
    assert result.trace.refused == 2
    assert result.status is Status.NONFINITE
    assert "factor 1: the cost or its site is not finite, 2 times" in str(result.trace)
    for before, after in pairwise(seen):
        if after.refusal is not None:
            assert after.factor == 1
            assert after.refusal is Refusal.NONFINITE
            assert after.posterior == before.posterior
    assert_same(product_of_sites(result, factors, prior), result.posterior, EXACT)
    assert result.sites[1].precision[0] != 0.0  # the site of the first loop is kept


def test_a_passing_trouble_is_remembered_and_overcome():
    factors = [gaussian_cost([2.0], [1.0])[0], Turning(first=1, last=1).factor()]
    result = fit(factors, standard_prior(1))
    assert result.trace.refusals == Counter({(1, Refusal.NONFINITE): 1})
    assert result.status is Status.CONVERGED
    assert_same(
        result.posterior, exact_posterior([factors[0], gaussian_cost([1.0], [1.0])[0]], standard_prior(1)), EXACT
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_infinite_cost_from_the_start_leaves_the_rest_to_fit(name):
    factors = [gaussian_cost([2.0], [1.0])[0], CostFactor(lambda t: np.inf, 1)]
    result = fit(factors, standard_prior(1), name, max_iter=2, tol=0.0)
    alone = fit(factors[:1], standard_prior(1), name, max_iter=2, tol=0.0)
    assert result.trace.refusals == Counter({(1, Refusal.NONFINITE): 2})
    assert_same(result.posterior, alone.posterior, EXACT)


@pytest.mark.parametrize("name", GAUSSIAN_NAMES)
def test_floor_raises_precisions_and_keeps_shift_and_value(name):
    factor, exact = gaussian_cost([1.0, -2.0], [-0.3, -0.1])
    prior = FactorialGaussian.from_moments([0.5, -1.0], [1.0, 2.0])
    result = fit([factor], prior, name, negative="floor", max_iter=1)
    assert result.sites[0].precision.tolist() == [SITE_FLOOR, SITE_FLOOR] == [1e-10, 1e-10]
    assert_close(result.sites[0].shift, exact.shift, EXACT)
    assert float(result.sites[0].log_density(prior.mean)) == pytest.approx(
        float(exact.log_density(prior.mean)), abs=EXACT
    )
    assert result.trace.refused == 0


def test_floor_leaves_positive_precisions_alone():
    mixed, exact = gaussian_cost([1.0, 0.5], [2.0, -0.4])
    site = fit([mixed], standard_prior(2), negative="floor", max_iter=1).sites[0]
    assert site.precision == pytest.approx([2.0, SITE_FLOOR])
    assert_close(site.shift, exact.shift, EXACT)


def test_keep_allows_negative_precisions_while_all_is_proper():
    result = fit([concave(0.4, 2)], standard_prior(2), negative="keep")
    assert result.status is Status.CONVERGED
    assert_close(result.sites[0].precision, -0.4, EXACT)
    assert_close(result.variance, 1.0 / 0.6, EXACT)


def test_keep_refuses_what_no_damping_makes_proper():
    result = fit([gaussian_cost([1.0], [1.0])[0], concave(100.0)], standard_prior(1), max_iter=3)
    assert result.trace.refusals == Counter({(1, Refusal.IMPROPER_POSTERIOR): 3})
    assert result.status is Status.IMPROPER_CAVITY
    assert result.sites[1] == FactorialGaussian.uniform(1)
    assert_close(result.variance, 0.5, EXACT)


def test_keep_damps_what_damping_makes_proper():
    result = fit([concave(3.0)], standard_prior(1), max_iter=1)
    # 1 - 3 and 1 - 3/2 are improper, 1 - 3/4 is not.
    assert_close(result.sites[0].precision, -0.75, EXACT)
    assert result.trace.dampings == Counter({0: 1})
    assert result.trace.refused == 0
    assert result.status is Status.MAX_ITER
    assert "1 updates of 1 factors damped further" in str(result.trace)


def test_keep_damps_what_would_make_the_next_cavity_improper():
    convex, dented = gaussian_cost([0.0], [2.0])[0], concave(1.5)
    last = fit([convex, dented], standard_prior(1), sites="none")
    assert_close(last.posterior.precision, 1.5, EXACT)  # no cavity comes after it
    assert not last.trace.dampings
    both = fit([convex, dented], standard_prior(1), max_iter=2, order=[0, 1], tol=0.0, callback=(seen := []).append)
    # 3 - 1.5 leaves the first factor a cavity of -0.5; half of it leaves 0.25.
    assert_close(seen[1].posterior.precision, 2.25, EXACT)
    assert both.trace.dampings[1] >= 1
    assert both.posterior.is_proper


def test_an_improper_cavity_is_refused_and_named():
    # The second factor eats into what the first gave; the third is next, so nobody sees the first one's cavity.
    factors = [gaussian_cost([0.0], [5.0])[0], concave(3.0), gaussian_cost([0.0], [0.1])[0]]
    result = fit(factors, standard_prior(1), max_iter=2, tol=0.0)
    assert result.trace.refusals == Counter({(0, Refusal.IMPROPER_CAVITY): 1, (2, Refusal.IMPROPER_POSTERIOR): 2})
    assert result.status is Status.IMPROPER_CAVITY
    assert_same(result.posterior, product_of_sites(result, factors, standard_prior(1)), EXACT)


@pytest.mark.parametrize("sites", ["own", "tied", "averaged", "none"])
def test_skip_refuses_every_negative_precision(sites):
    factors = [gaussian_cost([1.0], [1.0])[0], concave(0.1)]
    result = fit(factors, standard_prior(1), negative="skip", sites=sites, max_iter=1)
    assert result.trace.refusals == Counter({(1, Refusal.NEGATIVE): 1})
    assert result.status is Status.NEGATIVE
    assert_close(result.variance, 0.5, EXACT)


def test_skip_does_not_take_rounding_for_a_negative_precision():
    slope = CostFactor(lambda t: 0.3 * t[0] + 1e3, 1)
    signs = set()
    # Second differences are rounding of either sign: of so many, a third or so are negative.
    for mean in np.linspace(-1.0, 1.0, 101):
        prior = FactorialGaussian.from_moments([mean], 1.0)
        signs.add(float(np.sign(schemes.VariationalQuadrature().approximate(slope, prior).precision[0])))
        result = fit([slope], prior, negative="skip", max_iter=1)
        assert result.trace.refused == 0
        assert_close(result.mean, mean - 0.3, FIXED_POINT)
    assert -1.0 in signs
    assert fit([concave(1e-6)], standard_prior(1), negative="skip", max_iter=1).trace.refused == 1


@pytest.mark.parametrize("negative", ["keep", "floor", "skip"])
def test_policies_agree_where_nothing_is_negative(negative):
    rng = np.random.default_rng(13)
    factors, prior = gaussian_factors(rng), random_cavity(rng, 2)
    assert_same(fit(factors, prior, negative=negative).posterior, exact_posterior(factors, prior), EXACT)


def test_averaged_damps_or_refuses_the_whole():
    damped = fit([concave(1.5)] * 2, standard_prior(1), sites="averaged", max_iter=1)
    assert damped.trace.dampings == Counter({-1: 1})
    assert damped.posterior.is_proper
    refused = fit([concave(100.0)] * 2, standard_prior(1), sites="averaged", max_iter=1)
    assert refused.trace.refusals == Counter({(-1, Refusal.IMPROPER_POSTERIOR): 1})
    assert refused.posterior == standard_prior(1)


@st.composite
def troublesome_factors(draw):
    """Gaussian factors of either sign over some of three coordinates, some of which turn bad."""
    factors = []
    for _ in range(draw(st.integers(1, 5))):
        coordinates = sorted(draw(st.sets(st.integers(0, 2), min_size=1)))
        strength, center = draw(st.sampled_from([-20.0, -0.9, -0.2, 0.3, 5.0])), draw(st.floats(-2.0, 2.0))
        start, bad = draw(st.integers(1, 8)), draw(st.sampled_from([np.nan, np.inf]))
        turning = Turning(bad, first=start if draw(st.booleans()) else np.inf)

        def cost(points, strength=strength, center=center, turning=turning):
            return strength * turning(points - center + 1.0)

        factors.append(CostFactor(cost, 3, coordinates=coordinates, vectorized=True))
    return factors


@pytest.mark.parametrize("negative", ["keep", "floor", "skip"])
@pytest.mark.parametrize("sites", ["own", "tied", "averaged", "none"])
@settings(max_examples=25)
@given(factors=troublesome_factors(), damping=st.sampled_from([1.0, 0.4]), power=st.sampled_from([1.0, 0.5]))
def test_whatever_is_refused_the_state_stays_whole(negative, sites, factors, damping, power):
    prior, seen = FactorialGaussian.from_moments([0.0, 1.0, -1.0], [1.0, 0.5, 2.0]), []
    loops = 1 if sites == "none" else 4
    result = fit(
        factors,
        prior,
        sites=sites,
        negative=negative,
        damping=damping,
        power=power,
        max_iter=loops,
        tol=0.0,
        callback=seen.append,
    )
    assert len(seen) == result.trace.updates == loops * len(factors)
    assert all(update.posterior.is_proper for update in seen)
    refused = Counter((update.factor, update.refusal) for update in seen if update.refusal is not None)
    assert refused == Counter({key: n for key, n in result.trace.refusals.items() if key[0] >= 0})
    previous = prior
    for update in seen:
        if update.refusal is not None and update.factor != 0:
            assert update.posterior == previous
        previous = update.posterior
    assert result.posterior.is_proper
    if sites == "own":
        assert_same(result.posterior, product_of_sites(result, factors, prior), EXACT)
        if negative != "keep":
            assert all(np.all(site.precision >= 0.0) for site in result.sites)


# Books


def test_a_factor_that_raises_is_named_with_the_state_before_it():
    class Worse(Turning):
        def __call__(self, points):
            if self.calls >= 1:
                raise ZeroDivisionError("no such thing")
            return super().__call__(points)

    factors = [gaussian_cost([2.0], [1.0])[0], Worse(first=np.inf).factor()]
    with pytest.raises(
        FactorError, match="factor 1 raised ZeroDivisionError: no such thing; the state before it"
    ) as info:
        fit(factors, standard_prior(1), max_iter=3, tol=0.0)
    error = info.value
    assert error.factor == 1
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.result.trace.updates == 4
    assert_same(error.result.posterior, product_of_sites(error.result, factors, standard_prior(1)), EXACT)
    assert_close(error.result.variance, 1.0 / 3.0, EXACT)


def test_a_callback_sees_every_visit():
    factors, seen = logistic_factors(np.random.default_rng(14), count=3), []
    order = schedules.Shuffled(5)
    result = fit(factors, standard_prior(3), max_iter=4, tol=0.0, order=order, callback=seen.append)
    assert [(u.loop, u.factor) for u in seen] == [(loop, k) for loop in range(4) for k in order.visits(3, loop)]
    assert_same(seen[-1].posterior, result.posterior, 1e-14)  # which is multiplied up anew at the end
    assert all(u.refusal is None for u in seen)
    assert all(isinstance(u, Update) for u in seen)


def test_a_run_ends_when_a_loop_changes_less_than_the_tolerance():
    factors = logistic_factors(np.random.default_rng(15))
    for tol in (1e-2, 1e-6):
        result = fit(factors, standard_prior(3), tol=tol, max_iter=100)
        assert result.status is Status.CONVERGED
        assert result.trace.changes[-1] < tol
        assert all(change >= tol for change in result.trace.changes[:-1])


def test_a_run_that_is_cut_short_says_so():
    result = fit(logistic_factors(np.random.default_rng(16)), standard_prior(3), max_iter=1)
    assert result.status is Status.MAX_ITER


def test_the_change_of_a_loop_is_in_deviations_and_in_logarithms_of_precisions():
    shift, _ = gaussian_cost([3.0], [1.0])
    result = fit([shift], standard_prior(1), max_iter=2, tol=0.0)
    # Mean 0 to 1.5 at a deviation of sqrt(1/2); precision 1 to 2.
    assert result.trace.changes[0] == pytest.approx(max(1.5 * np.sqrt(2.0), np.log(2.0)))
    assert result.trace.changes[1] == pytest.approx(0.0, abs=EXACT)
    wide = fit([gaussian_cost([0.0], [9.0])[0]], standard_prior(1), max_iter=1)
    assert wide.trace.changes[0] == pytest.approx(np.log(10.0))


def test_factors_and_prior_stay_as_they_were():
    factors, prior = logistic_factors(np.random.default_rng(17)), standard_prior(3)
    before = [(f.targets.copy(), f.weights.copy(), f.cost(np.ones((1, 3)))) for f in factors]
    first = fit(factors, prior)
    assert prior == standard_prior(3)
    for factor, (y, w, cost) in zip(factors, before, strict=True):
        assert np.array_equal(factor.targets, y)
        assert np.array_equal(factor.weights, w)
        assert np.array_equal(factor.cost(np.ones((1, 3))), cost)
    assert fit(factors, prior).posterior == first.posterior
