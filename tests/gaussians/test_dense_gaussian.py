"""Gaussians with a full covariance against factorial ones, and against the map of one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from cavity import FactorialGaussian
from cavity.gaussians.dense import DenseGaussian


@pytest.fixture
def factorial():
    return FactorialGaussian.from_moments([1.0, -2.0, 0.5], [4.0, 0.25, 1.0], log_mass=0.7)


def test_a_factorial_gaussian_is_one_of_them(factorial):
    dense = DenseGaussian(factorial.mean, np.diag(factorial.std), factorial.log_mass)
    rows, noise = np.random.default_rng(0).normal(size=(2, 5, 3))
    for form in (np.asarray, sparse.csr_array):
        np.testing.assert_allclose(dense.predictor_variance(form(rows)), factorial.predictor_variance(form(rows)))
    np.testing.assert_allclose(dense.draws(noise), factorial.draws(noise))
    np.testing.assert_allclose(dense.std, factorial.std)
    np.testing.assert_allclose(dense.covariance, factorial.covariance)
    assert dense.is_proper
    assert dense.dim == factorial.dim


def test_a_linear_map_has_the_covariance_of_the_map(factorial):
    turn = np.random.default_rng(1).normal(size=(3, 3))
    turned = DenseGaussian(turn @ factorial.mean, turn * factorial.std, factorial.log_mass)
    np.testing.assert_allclose(turned.covariance, turn @ np.diag(factorial.variance) @ turn.T)
    np.testing.assert_allclose(turned.variance, np.diag(turned.covariance))
    rows = np.random.default_rng(2).normal(size=(4, 3))
    np.testing.assert_allclose(turned.predictor_variance(rows), np.diag(rows @ turned.covariance @ rows.T))
    np.testing.assert_allclose(turned.draws(np.eye(3)) - turned.mean, (turn * factorial.std).T)


def test_a_number_that_is_not_finite_is_not_proper(factorial):
    assert not DenseGaussian(factorial.mean, np.full((3, 3), np.inf), 0.0).is_proper
