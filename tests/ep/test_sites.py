"""Sites of single rows: exact where factors are Gaussian, copies share one site, and steps remember turns."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import tilted_moments

from cavity.ep.blocks import RowSites, log_scale, propose
from cavity.losses import Hinge, Logistic, Squared
from cavity.moments import tilts

LOSSES = [Logistic(), Hinge(), Squared(0.5)]


def sites_at(mean, variance, rows=1):
    sites = RowSites.uniform(rows)
    sites.mean[:], sites.variance[:] = mean, variance
    return sites


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_fresh_site_has_the_moments_of_cavity_times_factor(loss):
    for m, v in ((0.3, 2.0), (-2.0, 0.1), (5.0, 30.0)):
        changes = propose(loss, np.array([1.0]), np.ones(1), sites_at(m, v), fresh=True)
        mean, variance = tilted_moments(loss, 1.0, m, v)
        assert 1.0 / v + changes.precision[0] == pytest.approx(1.0 / variance, rel=1e-5)
        assert m / v + changes.shift[0] == pytest.approx(mean / variance, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("weight", [1.0, 2.0, 7.5, 0.3])
def test_the_squared_loss_has_its_site_whatever_the_weight_and_the_power(weight):
    for power in (1.0, 0.5):
        changes = propose(
            Squared(0.5), np.array([2.0]), np.array([weight]), sites_at(0.3, 2.0), beta=0.7, power=power, fresh=True
        )
        assert changes.precision[0] == pytest.approx(0.7 * weight / 0.25, rel=1e-12)
        assert changes.shift[0] == pytest.approx(0.7 * weight * 2.0 / 0.25, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_site_at_rest_is_not_revised(loss):
    """Fit a row, put its site into the posterior, and fit it again: the cavity is the same, and so is the site."""
    first = propose(loss, np.array([1.0]), np.ones(1), sites_at(0.3, 2.0), fresh=True)
    precision = 1.0 / 2.0 + first.precision[0]
    sites = sites_at((0.3 / 2.0 + first.shift[0]) / precision, 1.0 / precision)
    sites.precision[:], sites.shift[:] = first.precision, first.shift
    again = propose(loss, np.array([1.0]), np.ones(1), sites)
    np.testing.assert_allclose([again.precision[0], again.shift[0]], 0.0, atol=1e-9)
    # Prior times site has then the mass of prior times factor.
    scale = log_scale(loss, np.array([1.0]), np.ones(1), sites)
    t, h = sites.precision[0], sites.shift[0]
    v, m = 1.0 / precision, sites.mean[0]
    mass = scale + 0.5 * np.log(v / 2.0) + 0.5 * m * m / v - 0.5 * 0.3**2 / 2.0
    assert mass == pytest.approx(tilts(loss, np.ones(1), np.array([0.3]), np.array([2.0])).log_mass[0], rel=1e-9)
    assert (t, h) == (first.precision[0], first.shift[0])


def test_steps_shrink_where_a_revision_turns_round_and_grow_otherwise():
    sites = sites_at([0.0, 0.0], [1.0, 1.0], rows=2)
    sites.step[:], sites.last_precision[:], sites.last_slope[:] = 0.5, [-1.0, 1.0], [0.0, 0.0]
    propose(Squared(1.0), np.zeros(2), np.ones(2), sites)
    assert sites.step[0] < 0.5 < sites.step[1]
    sites.max_step = 0.1
    changes = propose(Squared(1.0), np.zeros(2), np.ones(2), sites)
    assert np.all(sites.step <= 0.1)
    np.testing.assert_allclose(changes.precision, sites.step * sites.last_precision)


def test_rows_that_cannot_be_fitted_are_refused_and_say_nothing():
    sites = sites_at([0.0, 0.0, np.nan], [1.0, 1.0, 1.0], rows=3)
    sites.precision[:] = [1.0, 0.0, 0.0]  # nothing is left of the first predictor's precision
    changes = propose(Logistic(), np.ones(3), np.ones(3), sites)
    np.testing.assert_array_equal(changes.improper, [True, False, False])
    np.testing.assert_array_equal(changes.nonfinite, [False, False, True])
    np.testing.assert_array_equal(changes.precision != 0.0, [False, True, False])


def test_a_predictor_without_variance_keeps_its_site():
    changes = propose(Logistic(), np.ones(1), np.ones(1), sites_at(0.5, 0.0))
    assert (changes.precision[0], changes.shift[0]) == (0.0, 0.0)
    assert not changes.improper[0]
    assert not changes.nonfinite[0]


def test_parts_are_views():
    sites = RowSites.uniform(5)
    sites.part(slice(1, 3)).precision[:] = 7.0
    np.testing.assert_array_equal(sites.precision, [0.0, 7.0, 7.0, 0.0, 0.0])
