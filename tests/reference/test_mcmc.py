"""Sampling against closed forms and quadrature, and what it says of its own length."""

import numpy as np
import pytest

from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Hinge, Squared
from reference.mcmc import Draws, disagreements, effective_sizes, elliptical_slices, sample

# Errors allowed, in standard errors of the sampler's own count of effective draws.
ERRORS = 4.5


def check_moments(draws, mean, std):
    size = draws.effective_size
    assert size > 500
    assert (np.abs(draws.mean - mean) / std).max() < ERRORS / np.sqrt(size)
    assert np.abs(np.log(draws.std / std)).max() < ERRORS / np.sqrt(2.0 * size)


def test_squared_loss_has_a_closed_form():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((12, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 1.0]])
    y = X @ np.array([1.0, -1.0, 0.5]) + rng.standard_normal(12)
    prior = FactorialGaussian.from_moments([0.5, 0.0, 0.0], [4.0, 2.0, 1.0])
    covariance = np.linalg.inv(X.T @ X + np.diag(prior.precision))
    mean = covariance @ (X.T @ y + prior.shift)
    # Whitened by something else: that may cost draws, but not the truth.
    wrong = mean + 0.3 * np.sqrt(np.diag(covariance)), 1.5 * np.diag(np.diag(covariance))
    draws = sample(LinearBatches(Squared(), X, y), prior, *wrong, chains=64, draws=150, thin=3)
    check_moments(draws, mean, np.sqrt(np.diag(covariance)))
    assert draws.disagreement < 1.05


def test_hinge_loss_against_quadrature():
    X, y = np.array([[0.3], [1.2], [-0.7], [2.0]]), np.array([1.0, 1.0, 1.0, -1.0])
    factors, prior = LinearBatches(Hinge(), X, y), FactorialGaussian.from_moments([0.0], [25.0])
    grid = np.linspace(-30.0, 30.0, 60_001)
    weights = np.exp(-factors.cost(grid[:, None]) - grid**2 / 50.0)
    weights /= weights.sum()
    mean = weights @ grid
    std = np.sqrt(weights @ (grid - mean) ** 2)
    draws = sample(factors, prior, np.zeros(1), np.eye(1), chains=64, draws=150, thin=3)
    check_moments(draws, np.array([mean]), np.array([std]))


def test_a_flat_level_leaves_the_normal_density_and_the_same_seed_the_same_draws():
    def run():
        start = np.zeros((64, 2))
        return elliptical_slices(lambda p: np.zeros(len(p)), start, 200, 1, 20, np.random.default_rng(3))

    values = run()
    assert values.shape == (200, 64, 2)
    check_moments(Draws(values), np.zeros(2), np.ones(2))
    np.testing.assert_array_equal(values, run())


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregression(correlation):
    rng = np.random.default_rng(0)
    values = np.empty((2000, 16, 1))
    values[0] = rng.standard_normal((16, 1))
    for t in range(1, 2000):
        values[t] = correlation * values[t - 1] + np.sqrt(1.0 - correlation**2) * rng.standard_normal((16, 1))
    expected = 2000 * 16 * (1.0 - correlation) / (1.0 + correlation)
    assert effective_sizes(values)[0] == pytest.approx(expected, rel=0.1)
    assert disagreements(values)[0] < 1.02


def test_chains_that_disagree_are_seen():
    values = np.random.default_rng(0).standard_normal((100, 8, 2))
    values[:, 0, 1] += 3.0
    r_hat = disagreements(values)
    assert r_hat[0] < 1.02
    assert r_hat[1] > 1.2
    sizes = effective_sizes(values)
    assert sizes[0] > 500.0
    assert sizes[1] < 50.0
