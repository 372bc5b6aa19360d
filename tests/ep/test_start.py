"""Starting from given sites: settled sites stay settled, both engines agree, and what cannot be a start is refused."""

import numpy as np
import pytest
from scipy import sparse

import cavity
from cases import logistic_factors, random_rows, random_signs, standard_prior
from cavity import CostFactor, FactorialGaussian, LinearFactor, Status
from cavity.losses import Logistic

# Runs of few loops, compared with each other: that they have not converged is no news.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PARITY = 1e-10
STORAGES = {"dense": np.asarray, "csr": sparse.csr_array}
storages = pytest.mark.parametrize("storage", STORAGES)
engines = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])


def problem(storage="dense", seed=0, n=43, d=6):
    """Mini-batches that leave out columns, so that sites have fewer coordinates than the prior."""
    rng = np.random.default_rng(seed)
    X = 0.7 * random_rows(rng, n, d, density=0.3, untouched=False)
    X[:10, 2] = X[10:20, 4] = 0.0
    return LinearFactor.batches(Logistic(), STORAGES[storage](X), random_signs(rng, n), 10), standard_prior(d)


def assert_same(found, wanted, tol=PARITY):
    for a, b in zip((found.posterior, *found.sites), (wanted.posterior, *wanted.sites), strict=True):
        np.testing.assert_allclose(a.shift, b.shift, rtol=tol, atol=tol)
        np.testing.assert_allclose(a.precision, b.precision, rtol=tol, atol=tol)
        assert a.log_scale == pytest.approx(b.log_scale, rel=tol, abs=tol)


@storages
@engines
@pytest.mark.parametrize("scheme", ["la", "vq"])
def test_settled_sites_stay_settled(scheme, compiled, storage):
    factors, prior = problem(storage)
    settled = cavity.fit(factors, prior, scheme, max_iter=100, tol=1e-8, compiled=compiled)
    assert settled.status is Status.CONVERGED
    again = cavity.fit(factors, prior, scheme, max_iter=100, tol=1e-7, start=settled.sites, compiled=compiled)
    assert again.status is Status.CONVERGED
    assert len(again.trace.changes) == 1
    assert_same(again, settled, 1e-6)


@storages
@pytest.mark.parametrize("order", ["cyclic", "shuffled"])
def test_two_runs_in_turn_are_one(order, storage):
    """The order of the second run begins anew, so that only the cyclic one can be the same throughout."""
    factors, prior = problem(storage)
    options = {"tol": 0.0, "order": order}
    half = cavity.fit(factors, prior, "la", max_iter=2, **options)
    whole = cavity.fit(factors, prior, "la", max_iter=2, start=half.sites, **options)
    at_once = cavity.fit(factors, prior, "la", max_iter=4, **options)
    assert_same(whole, at_once, PARITY if order == "cyclic" else 0.1)


@storages
@pytest.mark.parametrize("kind", ["result", "list", "other storage", "plain"])
def test_compiled_equals_plain_from_any_form_of_the_same_sites(kind, storage):
    factors, prior = problem(storage)
    first = cavity.fit(factors, prior, "la", max_iter=2, tol=0.0)
    other, _ = problem("csr" if storage == "dense" else "dense")
    start = {
        "result": lambda: first.sites,
        "list": lambda: [FactorialGaussian(s.log_scale, s.shift, s.precision) for s in first.sites],
        "other storage": lambda: cavity.fit(other, prior, "la", max_iter=2, tol=0.0).sites,
        "plain": lambda: cavity.fit(factors, prior, "la", max_iter=2, tol=0.0, compiled=False).sites,
    }[kind]()
    for loops in (1, 3):
        options = {"max_iter": loops, "tol": 0.0, "start": start}
        plain = cavity.fit(factors, prior, "la", compiled=False, **options)
        fast = cavity.fit(factors, prior, "la", compiled=True, **options)
        assert plain.trace.updates == fast.trace.updates
        np.testing.assert_allclose(plain.trace.changes, fast.trace.changes, rtol=1e-6, atol=1e-10)
        assert_same(fast, plain)


@engines
def test_a_start_is_read_and_not_written(compiled):
    factors, prior = problem()
    sites = cavity.fit(factors, prior, "la", max_iter=1).sites
    before = [FactorialGaussian(s.log_scale, s.shift, s.precision) for s in sites]
    cavity.fit(factors, prior, "la", max_iter=5, start=sites, compiled=compiled)
    assert list(sites) == before


@engines
def test_uniform_sites_are_the_usual_start(compiled):
    factors, prior = problem()
    sizes = [factor.dim if factor.coordinates is None else factor.coordinates.size for factor in factors]
    uniform = [FactorialGaussian.uniform(size) for size in sizes]
    started = cavity.fit(factors, prior, "la", start=uniform, compiled=compiled)
    assert_same(started, cavity.fit(factors, prior, "la", compiled=compiled))


def test_another_prior_or_temperature_may_go_on_from_the_same_sites():
    factors, prior = problem()
    sites = cavity.fit(factors, prior, "la", max_iter=50, tol=1e-6).sites
    wider = standard_prior(6, 1.3)
    cold = cavity.fit(factors, wider, "la", max_iter=50, tol=1e-6)
    warm = cavity.fit(factors, wider, "la", max_iter=50, tol=1e-6, start=sites)
    assert_same(warm, cold, 1e-5)
    assert len(warm.trace.changes) < len(cold.trace.changes)


def test_factors_of_any_kind_may_start_from_sites():
    rng = np.random.default_rng(0)
    factors = [CostFactor(lambda t, a=a: 0.5 * float(np.sum((t - a) ** 2)), dim=2) for a in rng.normal(size=3)]
    prior = standard_prior(2)
    settled = cavity.fit(factors, prior, "la")
    assert len(cavity.fit(factors, prior, "la", start=settled.sites, tol=1e-5).trace.changes) == 1


# Refusals.


@engines
def test_the_number_of_sites_must_be_that_of_the_factors(compiled):
    factors, prior = problem()
    sites = list(cavity.fit(factors, prior, "la", max_iter=2).sites)
    for wrong in (sites[:-1], [*sites, sites[0]], []):
        with pytest.raises(ValueError, match=f"start must hold one site for each of 5 factors, got {len(wrong)}"):
            cavity.fit(factors, prior, "la", start=wrong, compiled=compiled)


@storages
@engines
def test_a_site_must_have_the_coordinates_of_its_factor(compiled, storage):
    factors, prior = problem(storage)
    sites = list(cavity.fit(factors, prior, "la", max_iter=2).sites)
    sizes = [site.dim for site in sites]
    assert sizes[0] == sizes[1] == 5
    for k, dim in ((0, 6), (1, 4), (4, sizes[4] + 1)):
        wrong = [*sites[:k], FactorialGaussian.uniform(dim), *sites[k + 1 :]]
        with pytest.raises(ValueError, match=rf"start\[{k}\] must be a finite site in the {sizes[k]} coordinates"):
            cavity.fit(factors, prior, "la", start=wrong, compiled=compiled)


@storages
@engines
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_site_must_be_finite(value, compiled, storage):
    factors, prior = problem(storage)
    sites = list(cavity.fit(factors, prior, "la", max_iter=2).sites)
    good = sites[2]
    for bad in (
        FactorialGaussian(value, good.shift, good.precision),
        FactorialGaussian(0.0, np.where(np.arange(good.dim) == 1, value, good.shift), good.precision),
        FactorialGaussian(0.0, good.shift, np.where(np.arange(good.dim) == 1, value, good.precision)),
    ):
        with pytest.raises(ValueError, match=r"start\[2\] must be a finite site"):
            cavity.fit(factors, prior, "la", start=[*sites[:2], bad, *sites[3:]], compiled=compiled)


@storages
@engines
def test_the_product_with_the_prior_must_be_proper(compiled, storage):
    factors, prior = problem(storage)
    sites = list(cavity.fit(factors, prior, "la", max_iter=2).sites)
    negative = FactorialGaussian(0.0, sites[0].shift, np.full(sites[0].dim, -1e3))
    with pytest.raises(ValueError, match="the prior times the sites of start is not proper"):
        cavity.fit(factors, prior, "la", start=[negative, *sites[1:]], compiled=compiled)
    slightly = FactorialGaussian(0.0, sites[0].shift, np.full(sites[0].dim, -0.01))
    cavity.fit(factors, prior, "la", start=[slightly, *sites[1:]], compiled=compiled)


@pytest.mark.parametrize("sites", ["tied", "averaged", "none"])
def test_only_sites_of_their_own_can_be_given(sites):
    factors, prior = problem()
    start = cavity.fit(factors, prior, "la", max_iter=2).sites
    with pytest.raises(ValueError, match=f"start needs sites='own', one site per factor, got sites='{sites}'"):
        cavity.fit(factors, prior, "la", sites=sites, start=start)


def test_a_list_of_factors_may_start_too():
    factors = logistic_factors(np.random.default_rng(0))
    prior = standard_prior(3)
    for compiled in (True, False):
        settled = cavity.fit(factors, prior, "la", max_iter=50, tol=1e-8, compiled=compiled)
        again = cavity.fit(factors, prior, "la", tol=1e-7, start=settled.sites, compiled=compiled)
        assert len(again.trace.changes) == 1
