"""Where sites are kept: one per factor, one for all, none; products of Gaussians and full ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_same, finite, gaussians, standard_prior
from cavity import CostFactor, FactorialGaussian, schemes
from cavity.ep.driver import Diagnostics, Step, make_options
from cavity.ep.factorised import Factorised
from cavity.gaussians import FullGaussian

ROUNDING = 1e-12
DIM = 3
SUPPORTS = [None, np.array([0, 2]), np.array([1]), np.array([], dtype=np.intp)]
PRIORS = [standard_prior(DIM), FullGaussian.of(standard_prior(DIM))]


def backend(sites, prior=PRIORS[0], scheme=None, order="cyclic"):
    factors = [CostFactor(lambda t: float(np.log1p(t @ t)), DIM, coordinates=s) for s in SUPPORTS]
    options = make_options(len(factors), max_iter=1, sites=sites, order=order)
    return Factorised(factors, prior, scheme or schemes.VariationalQuadrature(), options)


class Given:
    """A scheme whose sites are given, in the order of the visits."""

    def __init__(self, sites):
        self.sites = list(sites)

    def approximate(self, factor, cavity, beta=1.0):
        return self.sites.pop(0)


def positive(dim, family, draw):
    """A site with positive precisions, so that nothing is damped."""
    g = draw(gaussians(dim))
    if family is FactorialGaussian:
        return g
    A = draw(st.lists(finite(1.0), min_size=dim * dim, max_size=dim * dim))
    A = np.array(A).reshape(dim, dim)
    return FullGaussian(g.log_scale, g.shift, np.diag(g.precision) + A @ A.T)


@pytest.mark.parametrize("prior", PRIORS, ids=["factorial", "full"])
@pytest.mark.parametrize("sites", ["own", "tied", "none"])
@given(data=st.data())
def test_the_posterior_is_the_prior_times_all_changes(prior, sites, data):
    wanted = [positive(DIM if s is None else s.size, type(prior), data.draw) for s in SUPPORTS]
    run = backend(sites, prior, Given(wanted))
    run.sweep(Step(0, 1.0, 0), diagnostics := Diagnostics())
    assert not diagnostics.refusals
    assert not diagnostics.dampings
    if sites == "none":
        assert run.stored == []
        for site, support in zip(wanted, SUPPORTS, strict=True):
            prior = prior * site.scatter(support, DIM)
        assert_same(run.posterior, prior, 1e3 * ROUNDING)
        return
    if sites == "own":
        assert [site == given for site, given in zip(run.stored, wanted, strict=True)] == [True] * 4
    before = run.posterior
    run.refresh(run.beta, diagnostics)
    assert_same(run.posterior, before, 1e3 * ROUNDING)


@pytest.mark.parametrize("prior", PRIORS, ids=["factorial", "full"])
@pytest.mark.parametrize("sites", ["own", "tied"])
def test_another_temperature_raises_every_site(prior, sites):
    given = type(prior)(1.0, np.array([1.0, 2.0, -1.0]), prior.precision)
    run = backend(sites, prior, Given(given.take(s) for s in SUPPORTS))
    run.sweep(Step(0, 1.0, 0), Diagnostics())
    before, likelihood = run.stored, run.posterior / prior
    run.refresh(0.5, Diagnostics())
    for a, b in zip(run.stored, before, strict=True):
        assert_same(a, b**0.5, ROUNDING)
    assert_same(run.posterior, prior * likelihood**0.5, 1e3 * ROUNDING)


def test_a_fresh_store_is_uniform_and_holds_one_site_a_factor_one_for_all_or_none():
    for prior in PRIORS:
        for sites, dims in (("own", [3, 2, 1, 0]), ("tied", [3]), ("averaged", [3]), ("none", [])):
            run = backend(sites, prior)
            assert run.stored == [type(prior).uniform(dim) for dim in dims]
            run.refresh(run.beta, Diagnostics())
            assert_same(run.posterior, prior, ROUNDING)


def test_a_tied_site_counts_the_factors_that_touch_a_coordinate():
    change = FactorialGaussian(4.0, [2.0] * 3, [6.0] * 3)
    uniform = [FactorialGaussian.uniform(n) for n in (2, 1, 0)]
    run = backend("tied", scheme=Given([change, *uniform]), order=[0])
    run.sweep(Step(0, 1.0, 0), Diagnostics())
    # All four factors have a constant, two of them each coordinate.
    assert_same(run.stored[0], FactorialGaussian(1.0, [1.0] * 3, [3.0] * 3), ROUNDING)


@pytest.mark.parametrize("family", [FactorialGaussian, FullGaussian])
def test_rounding_errors_of_a_difference_are_no_precision(family):
    def one(shift, precision):
        return family(0.0, np.array([shift]), np.full((1,) * (1 + (family is FullGaussian)), precision))

    posterior = one(0.0, 1.0)
    assert one(0.0, 1e-12).is_proper_beside(posterior)
    for precision in (1e-17, 0.0, -1e-17, np.nan, np.inf):
        assert not one(0.0, precision).is_proper_beside(posterior)
    assert not one(np.nan, 1.0).is_proper_beside(posterior)


@pytest.mark.parametrize("family", [FactorialGaussian, FullGaussian])
def test_scattering_undoes_taking(family):
    A = np.arange(9.0).reshape(3, 3) if family is FullGaussian else np.arange(3.0)
    g = family(0.5, np.array([1.0, 2.0, 3.0]), A + A.T)
    assert g.take(None) is g
    assert g.scatter(None, 3) is g
    taken = g.take(SUPPORTS[1])
    assert taken.shift.tolist() == [1.0, 3.0]
    assert taken.scatter(SUPPORTS[1], 3).take(SUPPORTS[1]) == taken
    assert taken.scatter(SUPPORTS[1], 3).precision.ravel()[-1] == g.precision.ravel()[-1]
