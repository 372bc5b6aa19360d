"""Prior variance and noise scale that are found are fixed points, in any units and within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from cavity import FactorialGaussian
from cavity.ep.adaptation import LEAST_NOISE, Adaptive, Group, revised_variance, typical_variance
from cavity.ep.row_sites import RowSites
from cavity.losses import Logistic, Squared


def test_a_variance_at_rest_stays():
    """Where squares over known coefficients are the variance, with half a coefficient of typical size added."""
    v, typical, d = 3.0, 2.0, 8
    s2 = np.full(d, 0.4 * v)
    known = d - np.sum(s2) / v
    m = np.full(d, np.sqrt((v * (known + 0.5) - 0.5 * typical) / d))
    assert revised_variance(v, m, s2, typical, cautious=False) == pytest.approx(v, rel=1e-12)


@pytest.mark.parametrize("cautious", [True, False])
def test_units_do_not_matter(cautious):
    rng = np.random.default_rng(0)
    m, s2 = rng.normal(size=6), rng.uniform(0.1, 0.5, 6)
    plain = revised_variance(1.0, m, s2, 2.0, cautious)
    for factor in (1e-6, 1e6):
        found = revised_variance(factor**2, factor * m, factor**2 * s2, 2.0 * factor**2, cautious)
        assert found == pytest.approx(factor**2 * plain, rel=1e-9)


def test_a_step_is_bounded():
    for m in (np.zeros(3), np.full(3, 1e6)):
        for cautious in (True, False):
            new = revised_variance(1.0, m, np.full(3, 0.99), 1.0, cautious)
            assert 0.1 - 1e-12 <= new <= 10.0 + 1e-12


def test_nothing_free_keeps_the_prior_and_the_loss():
    prior = FactorialGaussian.from_moments(np.zeros(3), 1.0)
    for adaptation in (Adaptive(), Adaptive(())):
        assert adaptation.prior(prior, np.ones(3), np.ones(3), 5, 0.0) is prior
        loss = Logistic()
        assert adaptation.loss(loss, np.ones(2), np.ones(2), RowSites.start(2)) is loss


def test_only_the_free_coefficients_change():
    prior = FactorialGaussian.from_moments([0.5, 0.5, 2.0], [1.0, 1.0, 100.0])
    adaptation = Adaptive([Group(np.array([0, 1]), typical=1.0)])
    new = adaptation.prior(prior, np.array([3.0, -3.0, 50.0]), np.full(3, 0.1), 5, 0.0)
    np.testing.assert_allclose(new.mean, prior.mean)
    assert new.variance[0] == new.variance[1] > 1.0
    assert new.variance[2] == pytest.approx(100.0)


def test_the_noise_scale_is_that_of_the_residuals_above_a_floor():
    rng = np.random.default_rng(0)
    targets, sites = rng.normal(size=500), RowSites.start(500)
    sites.mean[:], sites.variance[:] = targets - 0.5 * rng.normal(size=500), 0.01
    found = Adaptive(scale=True).loss(Squared(1.0), targets, np.ones(500), sites)
    wanted = np.sqrt(np.mean((targets - sites.mean) ** 2 + 0.01))
    assert found.scale == pytest.approx(wanted, rel=1e-9)
    sites.mean[:], sites.variance[:] = targets, 0.0
    loss = Squared(1.0)
    for _ in range(10):
        loss = Adaptive(scale=True).loss(loss, targets, np.ones(500), sites)
    assert loss.scale == pytest.approx(LEAST_NOISE * np.std(targets), rel=1e-9)
    sites.mean[:] = np.inf
    assert Adaptive(scale=True).loss(loss, targets, np.ones(500), sites) is loss


def test_a_typical_variance_gives_an_average_row_its_spread():
    X = np.random.default_rng(0).normal(size=(50, 4))
    start = typical_variance(X)
    assert np.mean(np.sum(start * X**2, axis=1)) == pytest.approx(5.0)
    assert typical_variance(10.0 * X) == pytest.approx(start / 100.0)
    assert typical_variance(sparse.csr_array(X)) == pytest.approx(start)
    assert typical_variance(np.concatenate([X, X])) == pytest.approx(start)
    assert typical_variance(np.zeros((3, 2))) == 1.0
