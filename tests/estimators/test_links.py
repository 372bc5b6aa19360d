"""Means of links are the integrals they stand for, for posteriors from a thousandth to a thousand wide."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from estimator_cases import SquaredHinge
from scipy.integrate import quad
from scipy.special import expit, log_ndtr, log_softmax, logit, logsumexp
from scipy.stats import norm

from cavity import EPClassifier
from cavity.estimators.classifier import log_probabilities, softmax_log_probability
from cavity.losses import Hinge, Logistic, QuasiZeroOne
from cavity.losses.joint import contrasts


def positive_probability(loss, mean, variance):
    return np.exp(log_probabilities(loss, mean, variance)[1])


def log_odds(loss, mean, variance):
    negative, positive = log_probabilities(loss, mean, variance)
    return positive - negative


class SteepHinge(NamedTuple):
    """Four times the hinge loss."""

    factor: float = 4.0

    def value(self, y: Any, z: Any) -> Any:
        return self.factor * Hinge().value(y, z)


# Absolute tolerances. Where a link has kinks, they are those of the module's own statement.
EXACT, KINKED = 1e-8, 1e-3
CASES = {
    "logistic": (Logistic(), EXACT),
    "sharp logistic": (Logistic(3.0), EXACT),
    "warm logistic": (Logistic(0.3), EXACT),
    "hinge": (Hinge(), KINKED),
    "steep hinge": (SteepHinge(), KINKED),
    "quasi 0-1": (QuasiZeroOne(), KINKED),
    "steep quasi 0-1": (QuasiZeroOne(0.02), KINKED),
    "own": (SquaredHinge(), KINKED),
}
every_case = pytest.mark.parametrize("case", CASES)
STDS = np.logspace(-3.0, 3.0, 13)
# Close to one, where one rule gives way to another, and where the steep part of a link meets the nodes of a rule.
CRITICAL = (0.05, 0.2, 0.56, 0.99, 1.0, 1.01)
MEANS = np.array([-30.0, -4.0, -1.01, -0.3, -0.04, 0.0, 0.07, 0.5, 1.0, 2.0, 11.3])


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)


def link(loss, z):
    return expit(loss.value(-1.0, z) - loss.value(1.0, z))


def integrated(loss, mean, std):
    """Integrate by forty points of Gauss and Legendre between any two places where the link or the normal bends."""
    bends = np.concatenate([np.linspace(-40.0, 40.0, 81), [-100.0, -0.1, -0.02, 0.02, 0.1, 100.0]])
    borders = np.unique(np.clip(np.append((bends - mean) / std, np.linspace(-10.0, 10.0, 21)), -10.0, 10.0))
    middle, half = 0.5 * (borders[1:] + borders[:-1])[:, None], 0.5 * np.diff(borders)[:, None]
    u = middle + half * _NODES
    return float(np.sum(half * _WEIGHTS * link(loss, mean + std * u) * np.exp(-0.5 * u * u)) / np.sqrt(2.0 * np.pi))


def test_integration_in_pieces_is_adaptive_integration():
    for loss, mean, std in ((Logistic(), 1.0, 3.0), (Hinge(), -0.5, 0.6), (QuasiZeroOne(), 0.3, 30.0)):
        borders = [-0.1, 0.0, 0.1, -1.0, 1.0, mean - 10.0 * std, mean + 10.0 * std]
        borders = sorted(b for b in borders if abs(b - mean) <= 10.0 * std)
        whole = sum(
            quad(lambda z: link(loss, z) * norm.pdf(z, mean, std), a, b, epsabs=1e-12)[0]  # noqa: B023
            for a, b in itertools.pairwise(borders)
        )
        assert integrated(loss, mean, std) == pytest.approx(whole, abs=1e-10)


@every_case
def test_means_are_those_of_the_integral(case):
    loss, tolerance = CASES[case]
    for std in (*STDS, *CRITICAL):
        found = positive_probability(loss, MEANS, np.full(MEANS.size, std**2))
        wanted = [integrated(loss, mean, std) for mean in MEANS]
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=tolerance, err_msg=f"std {std}")


@every_case
def test_without_doubt_it_is_the_link_itself(case):
    loss, _ = CASES[case]
    found = positive_probability(loss, MEANS, np.zeros(MEANS.size))
    np.testing.assert_allclose(found, link(loss, MEANS), rtol=1e-12)


@every_case
def test_doubt_leads_to_one_half_and_probabilities_rise_with_the_mean(case):
    loss, tolerance = CASES[case]
    means = np.linspace(-5.0, 5.0, 101)
    for std in STDS:
        found = positive_probability(loss, means, np.full(means.size, std**2))
        assert np.all((found >= 0.0) & (found <= 1.0))
        assert np.all(np.diff(found) > -2.0 * tolerance)
        np.testing.assert_allclose(found + found[::-1], 1.0, rtol=0.0, atol=2.0 * tolerance)
    np.testing.assert_allclose(positive_probability(loss, means, np.full(means.size, 1e12)), 0.5, atol=1e-3)


@every_case
def test_log_odds_are_those_of_the_probabilities(case):
    loss, tolerance = CASES[case]
    for std in (0.0, 0.5, 3.0, 100.0):
        variance = np.full(MEANS.size, std**2)
        chance = positive_probability(loss, MEANS, variance)
        inside = np.minimum(chance, 1.0 - chance) > 1e-4
        np.testing.assert_allclose(
            expit(log_odds(loss, MEANS, variance))[inside], chance[inside], rtol=0.0, atol=2.0 * tolerance
        )
    far = np.array([-35.0, -30.0, 30.0, 35.0])
    assert np.all(np.diff(log_odds(loss, far, np.zeros(4))) > 0.0)


def test_log_odds_of_the_logistic_link_without_doubt_are_the_predictor():
    z = np.array([-300.0, -2.0, 0.0, 1.0, 500.0])
    np.testing.assert_allclose(log_odds(Logistic(), z, np.zeros(5)), z, rtol=1e-12, atol=1e-12)
    assert np.all(np.isfinite(log_odds(Logistic(), 1e6 * z, np.zeros(5))))
    assert logit(0.25) == pytest.approx(log_odds(Logistic(), np.array([logit(0.25)]), np.zeros(1))[0])


def test_many_rows_are_taken_in_blocks_and_none_gives_none():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=10_001), rng.uniform(0.0, 4.0, 10_001)
    for loss in (Logistic(), Hinge()):
        whole = positive_probability(loss, mean, variance)
        parts = [positive_probability(loss, mean[i : i + 1], variance[i : i + 1])[0] for i in (0, 4095, 4096, 10_000)]
        np.testing.assert_allclose(whole[[0, 4095, 4096, 10_000]], parts, rtol=1e-13)
        assert positive_probability(loss, np.empty(0), np.empty(0)).shape == (0,)


# Far into the tails.


class Probit(NamedTuple):
    """Minus the logarithm of the normal distribution function."""

    factor: float = 1.0

    def value(self, y: Any, z: Any) -> Any:
        return -log_ndtr(self.factor * y * z)


def log_integrated(loss, sign, mean, std):
    """Logarithm of the mean of a link by a fine grid that is narrowed three times around where the product is large."""

    def product(z):
        return -np.logaddexp(0.0, loss.value(sign, z) - loss.value(-sign, z)) - 0.5 * np.square((z - mean) / std)

    bends = np.array([-1.0, -0.1, -0.02, 0.0, 0.02, 0.1, 1.0])
    z = np.concatenate([mean + std * np.linspace(-60.0, 60.0, 4001), np.sinh(np.linspace(-25.0, 25.0, 20_001)) / 10.0])
    for _ in range(3):
        z = np.unique(z)
        height = product(z)
        inside = np.flatnonzero(height > np.max(height) - 60.0)
        low, high = z[max(inside[0] - 1, 0)], z[min(inside[-1] + 1, z.size - 1)]
        z = np.concatenate([np.linspace(low, high, 40_001), bends[(bends > low) & (bends < high)]])
    z = np.unique(z)
    ends, middle, widths = product(z), product(0.5 * (z[1:] + z[:-1])), np.diff(z)
    parts = np.stack([ends[1:], ends[:-1], middle + np.log(4.0)]) + np.log(widths / 6.0)
    return logsumexp(parts) - np.log(np.sqrt(2.0 * np.pi) * std)


TAILS = {**CASES, "probit": (Probit(), KINKED), "slow probit": (Probit(0.1), KINKED)}


@pytest.mark.parametrize("case", TAILS)
def test_logarithms_are_those_of_the_integral_however_small(case):
    loss, tolerance = TAILS[case]
    for std in (0.01, 0.5, 1.0, 1.5, 4.0, 30.0):
        means = np.array([-700.0, -70.0, -30.0, -24.0, -5.0, 5.0, 24.0, 30.0, 70.0, 700.0])
        found = log_probabilities(loss, means, np.full(means.size, std**2))
        wanted = [[log_integrated(loss, sign, mean, std) for mean in means] for sign in (-1.0, 1.0)]
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=tolerance, err_msg=f"std {std}")


def test_logarithms_of_the_softmax_are_those_of_the_integral_however_small():
    basis = contrasts(3)
    for mean, variance in (((70.0, 20.0), np.eye(2)), ((3.0, -60.0), [[9.0, 2.0], [2.0, 16.0]])):
        found = softmax_log_probability(np.array([mean]), np.array([variance], dtype=np.float64), 3)[0]
        axis = np.linspace(-40.0, 40.0, 1601)
        nodes = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        scores = (np.array(mean) + nodes @ np.linalg.cholesky(variance).T) @ basis.T
        product = log_softmax(scores, axis=1) - 0.5 * np.sum(nodes**2, axis=1)[:, None]
        wanted = logsumexp(product, axis=0) + 2.0 * np.log(0.05) - np.log(2.0 * np.pi)
        assert np.min(wanted) < -40.0
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", ["logistic", "hinge", "quasi01"])
def test_log_odds_and_log_probabilities_of_far_rows_are_finite(loss, classes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    model = EPClassifier(loss, prior_variance=4.0).fit(x, np.digitize(x[:, 0], [0.0, 0.7][: classes - 1]))
    far = np.linspace(-300.0, 300.0, 12)[:, None]
    logs, odds = model.predict_log_proba(far), model.decision_function(far)
    assert np.all(np.isfinite(logs))
    assert np.all(np.isfinite(odds))
    np.testing.assert_allclose(np.exp(logs), model.predict_proba(far), atol=1e-4)
    np.testing.assert_allclose(logsumexp(logs, axis=1), 0.0, atol=1e-12)
    np.testing.assert_array_equal((odds if classes == 2 else odds[:, -1]) > 0.0, far[:, 0] > 0.0)
