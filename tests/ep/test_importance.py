"""Weighted draws: right where the Gaussian is near, and a shape that says where it is not."""

import numpy as np
import pytest

from cavity import FactorialGaussian
from cavity.ep.importance import pareto_smoothed, weighted_draws
from cavity.gaussians import FullGaussian

TRUE = FullGaussian.from_moments([0.0, 1.0], [[1.0, 0.5], [0.5, 1.0]], log_mass=3.0)


@pytest.mark.parametrize("family", ["full", "factorial"])
def test_weights_correct_a_gaussian_that_is_nearly_right(family):
    near = FullGaussian.from_moments([0.3, 1.2], [[1.3, 0.5], [0.5, 1.2]])
    if family == "factorial":
        near = FactorialGaussian.from_moments([0.3, 1.2], [1.5, 1.5])
    found = weighted_draws(TRUE.log_density, near, 20_000, np.random.default_rng(0))
    assert found.is_reliable
    assert found.mean == pytest.approx(TRUE.mean, abs=0.04)
    assert found.std == pytest.approx(TRUE.std, rel=0.04)
    assert found.log_mass == pytest.approx(3.0, abs=0.03)
    assert 5_000 < found.effective < 20_000


def test_the_density_itself_has_equal_weights():
    found = weighted_draws(TRUE.log_density, TRUE, 1000, np.random.default_rng(0))
    assert found.shape < 0.5
    assert found.effective == pytest.approx(1000.0)
    assert found.log_mass == pytest.approx(3.0)


def test_a_gaussian_that_is_too_narrow_is_not_reliable():
    narrow = FullGaussian.from_moments(TRUE.mean, 0.2 * TRUE.covariance)
    assert not weighted_draws(TRUE.log_density, narrow, 4000, np.random.default_rng(0)).is_reliable
    assert weighted_draws(TRUE.log_density, narrow, 4000, np.random.default_rng(0), widening=2.5).is_reliable


def test_a_density_of_zero_is_not_reliable():
    found = weighted_draws(lambda p: np.full(len(p), np.nan), TRUE, 100, np.random.default_rng(0))
    assert not found.is_reliable


@pytest.mark.parametrize("shape", [0.2, 0.5, 1.0])
def test_the_shape_of_pareto_weights_is_found(shape):
    ratios = shape * np.random.default_rng(1).exponential(size=50_000)
    assert pareto_smoothed(ratios)[1] == pytest.approx(shape, abs=0.15)


@pytest.mark.parametrize("shape", [0.2, 0.7, 1.5])
def test_smoothing_is_that_of_arviz(shape):
    arviz = pytest.importorskip("arviz")
    ratios = shape * np.random.default_rng(2).exponential(size=2000)
    found, k = pareto_smoothed(ratios)
    wanted, k_wanted = arviz.psislw(ratios)
    assert k == pytest.approx(float(k_wanted))
    assert found == pytest.approx(wanted)
