"""Gaussians with a full covariance: natural parameters add, masses follow, and products of Gaussians are among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import multivariate_normal

from cavity import FactorialGaussian
from cavity.gaussians.dense import CorrelatedGaussian
from cavity.gaussians.factorial import ImproperError

CLOSE = 1e-9


def some(seed: int, dim: int, narrow: float = 1.0) -> CorrelatedGaussian:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    # Widths between 1/2 and 2: what rounding makes of a quotient grows with the ratio of the widths, squared.
    root = narrow * turn * rng.uniform(0.5, 2.0, dim)
    return CorrelatedGaussian(rng.normal(size=dim), root, float(rng.normal()))


def log_value(g: CorrelatedGaussian, points: np.ndarray) -> np.ndarray:
    return g.log_mass + multivariate_normal(g.mean, g.covariance).logpdf(points)


def assert_same(a: CorrelatedGaussian, b: CorrelatedGaussian, tol: float = CLOSE) -> None:
    np.testing.assert_allclose(a.mean, b.mean, rtol=tol, atol=tol)
    np.testing.assert_allclose(a.covariance, b.covariance, rtol=tol, atol=tol)
    assert a.log_mass == pytest.approx(b.log_mass, rel=tol, abs=tol)


@given(st.integers(0, 1000), st.integers(1, 5))
def test_products_quotients_and_powers_are_those_of_the_functions(seed, dim):
    a, b = some(seed, dim), some(seed + 1, dim)
    points = np.random.default_rng(seed).normal(size=(4, dim))
    la, lb = log_value(a, points), log_value(b, points)
    tol = CLOSE * (1.0 + np.max(np.abs(la)) + np.max(np.abs(lb)))
    np.testing.assert_allclose(log_value(a * b, points), la + lb, rtol=0.0, atol=tol)
    np.testing.assert_allclose(log_value(a**0.3, points), 0.3 * la, rtol=0.0, atol=tol)
    assert_same(a * b / b, a)
    assert_same(a**0.3 * a**0.7, a)


def test_a_product_of_gaussians_is_one_of_them():
    a = FactorialGaussian.from_moments([1.0, -2.0, 0.5], [4.0, 0.25, 1.0], log_mass=0.7)
    b = FactorialGaussian.from_moments([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], log_mass=-0.2)
    assert_same(CorrelatedGaussian.of(a) * CorrelatedGaussian.of(b), CorrelatedGaussian.of(a * b))
    assert_same(CorrelatedGaussian.of(a**0.4), CorrelatedGaussian.of(a) ** 0.4)
    rows, noise = np.random.default_rng(0).normal(size=(2, 5, 3))
    for form in (np.asarray, sparse.csr_array):
        np.testing.assert_allclose(CorrelatedGaussian.of(a).spread_along(form(rows)), a.spread_along(form(rows)))
    np.testing.assert_allclose(CorrelatedGaussian.of(a).draws(noise), a.draws(noise))
    np.testing.assert_allclose(CorrelatedGaussian.of(a).std, a.std)


def test_a_turned_product_has_the_covariance_of_the_turn():
    turn = np.random.default_rng(1).normal(size=(3, 3))
    g = FactorialGaussian.from_moments([1.0, -2.0, 0.5], [4.0, 0.25, 1.0])
    turned = CorrelatedGaussian.of(g, turn)
    np.testing.assert_allclose(turned.mean, turn @ g.mean)
    np.testing.assert_allclose(turned.covariance, turn @ np.diag(g.variance) @ turn.T)


def test_a_quotient_without_moments_is_refused():
    with pytest.raises(ImproperError, match="not proper"):
        some(0, 3) / some(0, 3, narrow=0.5)
