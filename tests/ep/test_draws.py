"""Exact draws: moments known in closed form, chains that do not mix are seen, parity with ArviZ."""

import numpy as np
import pytest

from cavity import FactorialGaussian
from cavity.ep.draws import effective_draws, elliptical_slices, r_hat
from cavity.gaussians import FullGaussian

CORRELATED = FullGaussian.from_moments([1.0, -2.0], [[2.0, 1.2], [1.2, 1.0]])


def in_errors(draws, mean):
    """Distance of the means, in their standard errors."""
    return np.max(np.abs(draws.mean - mean) / (draws.std / np.sqrt(draws.effective)))


def test_draws_of_the_gaussian_itself_are_its_own():
    draws = elliptical_slices(CORRELATED.log_density, CORRELATED, 20_000, np.random.default_rng(0))
    assert draws.chains.shape == (20, 1000, 2)
    assert in_errors(draws, CORRELATED.mean) < 4.0
    assert np.allclose(draws.covariance, CORRELATED.covariance, rtol=0.06, atol=0.06)
    assert np.all(draws.r_hat < 1.02)
    assert np.allclose(draws.log_density.ravel(), CORRELATED.log_density(draws.values))


def test_kinks_and_edges_are_drawn_exactly():
    # |z| times a half line: an exponential distribution.
    def log_density(points):
        return np.where(points[:, 0] > 0.0, -2.0 * points[:, 0], np.where(points[:, 0] < -1.0, np.nan, -np.inf))

    start = FactorialGaussian.from_moments([0.4], variance=0.3)
    draws = elliptical_slices(log_density, start, 20_000, np.random.default_rng(1))
    assert in_errors(draws, [0.5]) < 4.0
    assert draws.quantiles([0.5, 0.9])[:, 0] == pytest.approx(np.log([2.0, 10.0]) / 2.0, rel=0.06)


@pytest.mark.parametrize("width", [0.05, 20.0])
def test_an_ellipse_of_the_wrong_width_is_corrected_in_the_warm_up(width):
    start = FullGaussian.from_moments(CORRELATED.mean, width**2 * CORRELATED.covariance)
    draws = elliptical_slices(CORRELATED.log_density, start, 10_000, np.random.default_rng(2), warmup=400)
    assert np.all(draws.r_hat < 1.05)
    assert draws.std == pytest.approx(CORRELATED.std, rel=0.1)


def test_the_same_seed_gives_the_same_draws():
    a, b = (elliptical_slices(CORRELATED.log_density, CORRELATED, 100, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(a.chains, b.chains)
    assert a.evaluations == b.evaluations > 100


def test_a_density_that_is_zero_everywhere_is_an_error():
    with pytest.raises(ValueError, match="nothing to sample"):
        elliptical_slices(lambda p: np.full(len(p), -np.inf), CORRELATED, 10, np.random.default_rng(0))


def test_chains_in_different_places_have_a_large_r_hat():
    chains = np.random.default_rng(4).standard_normal((4, 200))
    assert r_hat(chains) < 1.02
    assert r_hat(chains + np.arange(4)[:, None]) > 1.3
    assert r_hat(chains * np.array([1.0, 1.0, 1.0, 5.0])[:, None]) > 1.1


def test_effective_draws_of_an_autoregression_are_known():
    rng, share = np.random.default_rng(5), 0.8
    chains = np.zeros((10, 4000))
    for t in range(1, 4000):
        chains[:, t] = share * chains[:, t - 1] + rng.standard_normal(10)
    assert effective_draws(chains) == pytest.approx(40_000 * (1.0 - share) / (1.0 + share), rel=0.15)
    assert effective_draws(rng.standard_normal((10, 4000))) == pytest.approx(40_000, rel=0.1)


def test_both_numbers_are_those_of_arviz():
    arviz = pytest.importorskip("arviz")
    chains = np.cumsum(np.random.default_rng(6).standard_normal((4, 500)), axis=1) * 0.1
    data = arviz.convert_to_dataset(chains)
    assert r_hat(chains) == pytest.approx(float(arviz.rhat(data)["x"]), rel=1e-6)
    split = np.concatenate([chains[:, :250], chains[:, 250:]])
    assert effective_draws(split) == pytest.approx(float(arviz.ess(data, method="mean")["x"]), rel=0.05)
