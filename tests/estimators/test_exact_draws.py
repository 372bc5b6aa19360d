"""The exact posterior: draws and checks against closed forms, quadrature and the Gaussian where it is right."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from cavity import EPClassifier, EPRegressor

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 2)) * [1.0, 3.0] + [0.0, 5.0]
Y = 10.0 * (X[:, 0] + RNG.standard_normal(80)) + 7.0


def test_draws_of_a_normal_model_are_those_of_its_posterior():
    """In raw units, with an intercept, targets and columns normalised inside."""
    model = EPRegressor(prior_variance=1.0, scale=10.0).fit(X, Y)
    draws = model.sample(X, Y, draws=2000)
    assert draws.names == ("x0", "x1", "intercept")
    wanted = np.append(model.coef_, model.intercept_), np.append(model.coef_std_, model.intercept_std_)
    assert np.min(draws.effective) >= 2000.0
    assert np.max(draws.r_hat) < 1.01
    assert_allclose(draws.mean, wanted[0], atol=0.12 * np.max(wanted[1]), rtol=0.0)
    assert_allclose(draws.std, wanted[1], rtol=0.08)
    assert "effective ones" in str(draws)
    found = model.check(X, Y)
    assert found.is_right
    assert "are right to" in str(found)
    assert_allclose(found.ratios, 1.0, atol=0.06)


def test_what_a_gaussian_cannot_hold_is_drawn():
    """A column of few rows, all of one class, under a wide prior: by quadrature over its coefficient."""
    rows = (np.arange(40) < 3).astype(float)[:, None]
    y = np.where(np.arange(40) < 3, 1, np.arange(40) % 2)
    model = EPClassifier(prior_variance=400.0, fit_intercept=False).fit(rows, y)
    grid = np.linspace(-30.0, 120.0, 30_001)
    density = expit(grid) ** 3 * np.exp(-0.5 * grid**2 / 400.0)
    density /= np.sum(density)
    mean = density @ grid
    std = np.sqrt(density @ (grid - mean) ** 2)
    draws = model.sample(rows, y, draws=2000)
    assert draws.mean[0] == pytest.approx(mean, abs=0.08 * std)
    assert draws.std[0] == pytest.approx(std, rel=0.06)
    ends = np.interp([0.05, 0.95], np.cumsum(density), grid)
    assert_allclose(draws.quantiles([0.05, 0.95])[:, 0], ends, atol=0.15 * std)


def test_a_posterior_that_is_too_narrow_is_told():
    """Separable classes and a loss with a kink: EP's deviations are a fifth too small."""
    rows = np.random.default_rng(3).standard_normal((30, 3))
    y = rows[:, 0] > 0.0
    model = EPClassifier("hinge", prior_variance=25.0).fit(rows, y)
    draws = model.sample(rows, y, draws=1000)
    assert np.min(np.append(model.coef_std_, model.intercept_std_) / draws.std) < 0.9
    found = model.check(rows, y)
    assert not found.is_right
    assert "model.sample" in str(found)


def test_weights_and_offsets_count():
    counts = RNG.poisson(np.exp(0.5 * X[:, 0])).astype(float)
    offset = 0.3 * RNG.standard_normal(80)
    weights = np.full(80, 2.0)
    model = EPRegressor("poisson", prior_variance=1.0).fit(X, counts, sample_weight=weights, offset=offset)
    assert model.check(X, counts, sample_weight=weights, offset=offset).is_right
    assert not model.check(X, counts, offset=offset).is_right  # half the rows: another posterior
    twice = model.check(np.repeat(X, 2, axis=0), np.repeat(counts, 2), offset=np.repeat(offset, 2))
    assert twice.is_right


def test_classes_have_draws_of_all_their_coefficients():
    labels = np.argmax(X @ [[1.0, -1.0, 0.0], [0.0, 0.2, 0.0]] + RNG.gumbel(size=(80, 3)), axis=1)
    model = EPClassifier(prior_variance=0.5).fit(X, labels)
    draws = model.sample(X, labels, draws=500)
    assert draws.coefficients.shape[2:] == (3, 3)
    assert_allclose(np.sum(draws.coefficients, axis=2), 0.0, atol=1e-9)
    assert draws.names[3] == "1 x0"
    wanted = np.column_stack([model.coef_, model.intercept_])
    spread = np.column_stack([model.coef_std_, model.intercept_std_])
    assert np.max(np.abs(draws.mean - wanted.ravel()) / spread.ravel()) < 0.3


def test_time_is_kept():
    model = EPClassifier("hinge").fit(X, Y > 0.0)
    with pytest.warns(ConvergenceWarning, match="stopped by max_seconds"):
        model.sample(X, Y > 0.0, draws=500, max_seconds=0.0)
