import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_same, gaussians, standard_prior
from cavity import FactorialGaussian
from cavity.ep.factorised import NoSites, OwnSites, TiedSites, is_proper_against, restrict

ROUNDING = 1e-12
DIM = 3
SUPPORTS = [None, np.array([0, 2]), np.array([1]), np.array([], dtype=np.intp)]
STORES = [OwnSites, TiedSites]


@st.composite
def changes(draw):
    """Some changes ``(k, change)`` of the factors, each in its own coordinates."""
    ks = draw(st.lists(st.integers(0, len(SUPPORTS) - 1), max_size=6))
    return [(k, draw(gaussians(DIM if SUPPORTS[k] is None else SUPPORTS[k].size, proper=False))) for k in ks]


@pytest.mark.parametrize("store", STORES)
@given(changes())
def test_the_posterior_is_the_prior_times_all_changes(store, made):
    sites, wanted = store(SUPPORTS, DIM), standard_prior(DIM)
    for k, change in made:
        sites.update(k, change)
        wanted = wanted * sites.extend(k, change)
    assert_same(sites.posterior(standard_prior(DIM)), wanted, 1e3 * ROUNDING)


@pytest.mark.parametrize("store", [*STORES, NoSites])
@given(made=changes(), data=st.data())
def test_looking_ahead_is_what_updating_gives(store, made, data):
    sites, posterior = store(SUPPORTS, DIM), standard_prior(DIM)
    for k, change in made:
        following = data.draw(st.integers(0, len(SUPPORTS) - 1))
        posterior = posterior * sites.extend(k, change)
        cavity = sites.following_cavity(posterior, k, change, following, 0.5)
        sites.update(k, change)
        assert_same(cavity, restrict(posterior, SUPPORTS[following]) / sites.site(following) ** 0.5, ROUNDING)


@pytest.mark.parametrize("store", STORES)
@given(changes(), st.floats(0.1, 10.0))
def test_a_power_raises_every_site_and_leaves_the_store_as_it_was(store, made, ratio):
    sites = store(SUPPORTS, DIM)
    for k, change in made:
        sites.update(k, change)
    before = sites.values()
    raised = sites.power(ratio)
    for k in range(len(SUPPORTS)):
        assert_same(raised.site(k), sites.site(k) ** ratio, ROUNDING)
    assert tuple(sites.values()) == tuple(before)
    raised.update(0, FactorialGaussian.uniform(DIM))
    assert_same(
        raised.posterior(FactorialGaussian.uniform(DIM)),
        sites.posterior(FactorialGaussian.uniform(DIM)) ** ratio,
        1e3 * ROUNDING,
    )


def test_a_fresh_store_is_uniform_and_holds_one_site_a_factor_one_for_all_or_none():
    for store, count in ((OwnSites, 4), (TiedSites, 1), (NoSites, 0)):
        sites = store(SUPPORTS, DIM)
        assert len(sites.values()) == count
        assert sites.posterior(standard_prior(DIM)) == standard_prior(DIM)
        for k, support in enumerate(SUPPORTS):
            assert sites.site(k) == FactorialGaussian.uniform(DIM if support is None else support.size)


def test_no_sites_forget():
    sites = NoSites(SUPPORTS, DIM)
    sites.update(0, FactorialGaussian(1.0, np.ones(DIM), np.ones(DIM)))
    assert sites.site(0) == FactorialGaussian.uniform(DIM)
    assert sites.power(2.0).values() == ()


def test_a_tied_site_counts_the_factors_that_touch_a_coordinate():
    sites = TiedSites([None, np.array([0])], 2)
    sites.update(0, FactorialGaussian(4.0, [2.0, 2.0], [6.0, 6.0]))
    assert_same(sites.site(0), FactorialGaussian(2.0, [1.0, 2.0], [3.0, 6.0]), ROUNDING)
    assert_same(sites.site(1), FactorialGaussian(2.0, [1.0], [3.0]), ROUNDING)


def test_rounding_errors_of_a_difference_are_no_precision():
    posterior = FactorialGaussian(0.0, [0.0], [1.0])
    assert is_proper_against(FactorialGaussian(0.0, [0.0], [1e-12]), posterior)
    for precision in (1e-17, 0.0, -1e-17, np.nan, np.inf):
        assert not is_proper_against(FactorialGaussian(0.0, [0.0], [precision]), posterior)
    assert not is_proper_against(FactorialGaussian(np.nan, [0.0], [1.0]), posterior)


def test_extending_undoes_restricting():
    g = FactorialGaussian(0.5, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert restrict(g, None) is g
    sites = OwnSites(SUPPORTS, DIM)
    assert sites.extend(0, g) is g
    assert restrict(g, SUPPORTS[1]).shift.tolist() == [1.0, 3.0]
    assert sites.extend(1, restrict(g, SUPPORTS[1])).precision.tolist() == [4.0, 0.0, 6.0]
