"""The two measures, the sites in units of their cavity, and drawings that bear what diverged."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from cavity.experiments import posterior_panels
from cavity.experiments.posterior_fits import (
    Case,
    Fit,
    by_estimator,
    by_full_covariance,
    distance_of_means,
    ratio_of_deviations,
)
from cavity.experiments.posterior_sites import in_units_of, site_distances
from cavity.gaussian import FactorialGaussian


def marginals(mean, std):
    return SimpleNamespace(mean=np.array(mean), std=np.array(std))


def test_the_measures_by_hand():
    reference = marginals([0.0, 1.0, 2.0], [1.0, 2.0, 0.5])
    ours = marginals([3.0, 1.0, 4.0], [0.5, 2.0, 1.0])
    assert distance_of_means(ours, reference) == pytest.approx(np.sqrt((9.0 + 0.0 + 16.0) / 3.0))
    assert ratio_of_deviations(ours, reference) == pytest.approx(1.0)
    assert (distance_of_means(ours, ours), ratio_of_deviations(ours, ours)) == (0.0, 1.0)


def test_the_estimator_sees_the_problem_that_full_ep_sees():
    case = Case("haberman", "logistic")
    full, ours = by_full_covariance(case), by_estimator(case)
    assert ours.is_proper
    assert ours.loops <= case.loops
    assert distance_of_means(ours, full) < 0.02
    assert ratio_of_deviations(ours, full) == pytest.approx(1.0, abs=0.02)
    assert case.cost(ours.mean) < case.cost(np.zeros(4))


@pytest.mark.parametrize("broken", [[np.nan, 1.0], [np.inf, 1.0], [0.0, 1.0], [-1.0, 1.0]])
def test_a_broken_posterior_is_told(broken):
    assert not Fit(np.zeros(2), np.array(broken), 1, "").is_proper
    assert Fit(np.zeros(2), np.ones(2), 1, "").is_proper


def test_sites_in_units_of_the_cavity_do_not_depend_on_origin_and_scale():
    around, site = FactorialGaussian(0.0, [0.4, 1.0], [2.0, 0.5]), FactorialGaussian(0.0, [0.3, -2.0], [0.7, -0.1])

    def moved(g):  # the same density of 3 θ + 5
        precision = g.precision / 9.0
        return FactorialGaussian(0.0, g.shift / 3.0 + 5.0 * precision, precision)

    np.testing.assert_allclose(in_units_of(moved(around), moved(site)), in_units_of(around, site), rtol=1e-12)


def test_sites_of_exact_projection_are_its_own():
    found = site_distances(Case("haberman", "logistic"), ("exact", "vq", "la"))
    assert found["exact"] == {"missing": 0.0, "slope": 0.0, "precision": 0.0}
    assert 0.0 < found["vq"]["slope"] < 0.1
    assert 0.0 < found["la"]["slope"] < 0.1


def shown(mean, std):
    fit = {"mean": mean, "std": std, "dm_sampled": None, "sdr_sampled": None}
    return {"sampled": {"mean": [0.0, 1.0, -1.0], "std": [0.5, 0.5, 0.5]}, "fits": {"vq": fit}}


def test_what_diverged_does_not_decide_on_the_frame():
    frames, notes = [], []
    for mean, std in (([0.1, 1.1, -1.0], [0.4, 0.5, 0.5]), ([1e30, None, -1.0], [1e-9, None, 1e12])):
        axes = Figure().subplots()
        posterior_panels.coefficients(shown(mean, std), "vq", axes)
        frames.append((axes.get_xlim(), axes.get_ylim()))
        notes.append(axes.texts[0].get_text())
        axes.figure.canvas.draw()
    assert frames[0] == frames[1]
    assert "outside" not in notes[0]
    assert "2 of 3 means outside, to 1e+30" in notes[1]
