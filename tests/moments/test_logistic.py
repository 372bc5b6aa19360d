"""The mean of the logistic function under a Gaussian: brute-force integration, laws, and borders."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_expit, ndtr

from cavity.losses import Logistic
from cavity.moments import log_mean_logistic, tilts
from cavity.moments.logistic import PROBIT_SQUARES, PROBIT_WEIGHTS

widths = st.floats(-3.0, 3.0).map(lambda a: 10.0**a)
# Means as shares of the variance, of the standard deviation, and as they are: all of them decide where the mass lies.
means = st.tuples(st.floats(-2.0, 2.0), st.floats(-6.0, 6.0), st.floats(-30.0, 30.0), st.sampled_from([0, 1, 2]))


def place(s, mean):
    return (mean[0] * s * s, mean[1] * s, mean[2])[mean[3]]


def by_panels(m, s):
    """Integrate in logarithms, on panels graded about zero and narrow about both Gaussians."""
    grades = np.concatenate([np.linspace(0.0, 60.0, 241), np.geomspace(60.0, 1e7, 300)])
    around = s * np.linspace(-40.0, 40.0, 641)
    edges = np.unique(np.concatenate([-grades, grades, m + around, m + s * s + around]))
    x, w = np.polynomial.legendre.leggauss(30)
    half = 0.5 * np.diff(edges)[:, None]
    u = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * x
    height = -0.5 * ((u - m) / s) ** 2 + log_expit(u)
    top = np.max(height)
    return top + math.log(np.sum(half * w * np.exp(height - top)) / (s * math.sqrt(2.0 * math.pi)))


def log_mean(m, v):
    return float(log_mean_logistic(np.array([m]), np.array([v]))[0])


def test_the_logistic_function_is_a_mixture_of_probits():
    z, s = np.linspace(-12.0, 0.0, 1201)[:, None], np.sqrt(PROBIT_SQUARES)
    mass = ndtr(z / s) @ PROBIT_WEIGHTS
    density = np.exp(-0.5 * (z / s) ** 2) @ (PROBIT_WEIGHTS / s) / math.sqrt(2.0 * math.pi)
    wanted = expit(z[:, 0])
    enough = wanted >= 1e-4
    assert np.max(np.abs(mass - wanted)) < 1e-14
    assert np.max(np.abs(mass / wanted - 1.0)[enough]) < 1e-11
    assert np.max(np.abs(density / (wanted * (1.0 - wanted)) - 1.0)[enough]) < 1e-11


@given(widths, means)
def test_the_mean_is_the_integral_far_into_the_tails(s, mean):
    m = place(s, mean)
    assert log_mean(m, s * s) == pytest.approx(by_panels(m, s), rel=1e-12, abs=1e-9)


@given(widths, means)
def test_both_labels_share_the_mass(s, mean):
    m = place(s, mean)
    assert math.exp(log_mean(m, s * s)) + math.exp(log_mean(-m, s * s)) == pytest.approx(1.0, abs=1e-13)


@given(st.floats(1.0, 600.0), st.floats(0.0, 5.0))
def test_a_probability_near_one_has_the_logarithm_of_what_it_lacks(m, s):
    other = log_mean(-m, s * s)
    assert log_mean(m, s * s) == pytest.approx(math.log1p(-math.exp(other)), rel=1e-8, abs=1e-300)


@given(st.floats(-800.0, 800.0))
def test_without_variance_it_is_the_logistic_function(m):
    assert log_mean(m, 0.0) == pytest.approx(float(log_expit(m)), rel=1e-12, abs=1e-13)


@given(st.floats(-2.0, 1.0).map(lambda a: 10.0**a), st.floats(-20.0, 20.0))
def test_it_is_the_mass_that_a_fit_matches(s, m):
    found = tilts(Logistic(), np.ones(1), np.array([m]), np.array([s * s]))
    assert log_mean(m, s * s) == pytest.approx(float(found.log_mass[0]), rel=1e-9, abs=1e-9)


def test_the_smallest_and_largest_numbers_are_no_trouble():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [[log_mean(sign * 1e300, v) for v in (0.0, 1.0, 1e6)] for sign in (1.0, -1.0)]
        assert log_mean(0.0, 1e300) == pytest.approx(math.log(0.5), abs=1e-13)
    assert found == [[0.0, 0.0, 0.0], [-1e300, -1e300, -1e300]]


@pytest.mark.parametrize(("m", "v"), [(np.nan, 1.0), (0.0, np.nan)])
def test_no_gaussian_has_no_mean(m, v):
    assert math.isnan(log_mean(m, v))


def test_rows_do_not_depend_on_each_other():
    rng = np.random.default_rng(0)
    s = 10.0 ** rng.uniform(-3.0, 3.0, 1500)
    m = s * s * rng.uniform(-2.0, 2.0, 1500)
    together = log_mean_logistic(m, s * s)
    alone = [log_mean(*row) for row in zip(m, s * s, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert log_mean_logistic(np.zeros(0), np.zeros(0)).shape == (0,)
