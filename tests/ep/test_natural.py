"""What rows say adds up, moves and multiplies, in all three forms, and makes the posterior that it should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from cavity import FactorialGaussian
from cavity.ep.posteriors import DenseNatural, DiagonalNatural, SparseNatural
from cavity.gaussians.factorial import ImproperError

PRIOR = FactorialGaussian.from_moments([0.1, -0.2, 0.3], [1.0, 2.0, 0.5])


def matrices(seed):
    """A diagonal matrix, so that all three forms can hold it, or a full one."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(5, 3))
    return A.T @ A, rng.normal(size=3), float(rng.normal())


def dense(G, h, c):
    return DenseNatural(G, h, c)


def in_csc(G, h, c):
    return SparseNatural(sparse.csc_array(np.triu(G)), h, np.array([2]), c)


def diagonal(G, h, c):
    return DiagonalNatural(FactorialGaussian(c, h, np.diag(G).copy()))


FORMS = {"dense": dense, "sparse": in_csc, "diagonal": diagonal}
every_form = pytest.mark.parametrize("form", FORMS)


def known(form, seed=0):
    G, h, c = matrices(seed)
    if form == "diagonal":
        G = np.diag(np.diag(G))
    return FORMS[form](G, h, c), G, h, c


def assert_posterior(posterior, G, h, c, prior=PRIOR):
    P = G + np.diag(prior.precision)
    right = h + prior.shift
    mean = np.linalg.solve(P, right)
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(posterior.covariance, np.linalg.inv(P), rtol=1e-9, atol=1e-12)
    mass = c + prior.log_scale + 0.5 * (mean @ right + 3 * np.log(2.0 * np.pi) - np.linalg.slogdet(P)[1])
    assert posterior.log_mass == pytest.approx(mass, rel=1e-10)


@every_form
def test_a_posterior_is_prior_times_sites(form):
    knowledge, G, h, c = known(form)
    posterior = knowledge.posterior(PRIOR)
    assert_posterior(posterior, G, h, c)
    rows = np.random.default_rng(1).normal(size=(4, 3))
    spread = np.sum(rows @ posterior.covariance * rows, axis=1)
    np.testing.assert_allclose(posterior.predictor_variance(rows), spread, rtol=1e-9)
    np.testing.assert_allclose(posterior.predictor_variance(sparse.csr_array(rows)), spread, rtol=1e-9)
    np.testing.assert_allclose(posterior.draws(np.zeros((1, 3)))[0], posterior.mean)


@every_form
def test_sums_and_shares(form):
    one, G, h, c = known(form, 0)
    two, G2, h2, c2 = known(form, 1)
    assert_posterior(one.plus(two).posterior(PRIOR), G + G2, h + h2, c + c2)
    assert_posterior(one.times(0.3).posterior(PRIOR), 0.3 * G, 0.3 * h, 0.3 * c)


@every_form
@pytest.mark.parametrize("ratio", [1.0, 0.2, 30.0])
def test_the_same_is_said_of_coefficients_in_other_units(form, ratio):
    """The density at a point is that of the same point in the old units."""
    knowledge, G, h, c = known(form)
    shift = np.array([0.0, 0.0, 0.7])
    moved = knowledge.moved(ratio, shift)
    new_prior = FactorialGaussian.from_moments(ratio * PRIOR.mean + shift, ratio**2 * PRIOR.variance)
    a, b = knowledge.posterior(PRIOR), moved.posterior(new_prior)
    np.testing.assert_allclose(b.mean, ratio * a.mean + shift, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(b.covariance, ratio**2 * a.covariance, rtol=1e-9, atol=1e-12)
    assert b.log_mass == pytest.approx(a.log_mass, rel=1e-9)
    assert (G.shape, h.shape, isinstance(c, float)) == ((3, 3), (3,), True)


@every_form
def test_an_improper_product_says_so(form):
    with pytest.raises(ImproperError):
        FORMS[form](-10.0 * np.eye(3), np.zeros(3), 0.0).posterior(PRIOR)


def test_nothing_leaves_the_prior():
    for nothing in (DenseNatural.zero(3), DiagonalNatural.zero(3)):
        posterior = nothing.posterior(PRIOR)
        np.testing.assert_allclose(posterior.mean, PRIOR.mean)
        np.testing.assert_allclose(posterior.variance, PRIOR.variance)
        assert posterior.log_mass == pytest.approx(0.0, abs=1e-12)
