"""The two measures, the problem that all methods of fitting see, and drawings that bear what diverged."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from paper import posterior_panels
from paper.posterior_fits import (
    Case,
    Fit,
    as_a_product,
    by_estimator,
    by_sampling,
    distance_of_means,
    ratios_of_deviations,
)


def marginals(mean, std):
    return SimpleNamespace(mean=np.array(mean), std=np.array(std))


def test_the_measures_by_hand():
    reference = marginals([0.0, 1.0, 2.0], [1.0, 2.0, 0.5])
    ours = marginals([3.0, 1.0, 4.0], [0.5, 2.0, 1.0])
    assert distance_of_means(ours, reference) == pytest.approx(4.0)
    assert ratios_of_deviations(ours, reference) == pytest.approx((0.5, 2.0))
    assert (distance_of_means(ours, ours), ratios_of_deviations(ours, ours)) == (0.0, (1.0, 1.0))


def test_the_classifier_sees_the_problem_that_the_sampler_sees():
    case = Case("haberman", "logistic")
    ours, drawn = by_estimator(case), by_sampling(case, chains=64, draws=200)
    assert ours.is_proper
    assert ours.status == "CONVERGED"
    assert drawn.effective_size > 1000.0
    assert distance_of_means(ours, drawn) < 0.15
    low, high = ratios_of_deviations(ours, drawn)
    assert 0.9 < low <= high < 1.1
    assert case.cost(ours.mean) < case.cost(np.zeros(4))


def test_a_product_of_gaussians_is_too_narrow():
    case = Case("breast_cancer", "logistic")
    product, full = as_a_product(case), by_estimator(case)
    assert product.is_proper
    assert ratios_of_deviations(product, full)[0] < 0.8


@pytest.mark.parametrize("broken", [[np.nan, 1.0], [np.inf, 1.0], [0.0, 1.0], [-1.0, 1.0]])
def test_a_broken_posterior_is_told(broken):
    assert not Fit(np.zeros(2), np.array(broken), 1, "").is_proper
    assert Fit(np.zeros(2), np.ones(2), 1, "").is_proper


def shown(mean, std):
    fit = {"mean": mean, "std": std, "distance": None, "ratios": [None, None]}
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
