"""Prior variance and noise scale that are found are fixed points, in any units and within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from cavity import EPClassifier, FactorialGaussian
from cavity.ep.adaptation import (
    LEAST_NOISE,
    Adaptive,
    Group,
    revised_variance,
    typical_variance,
    widened,
    with_variances,
)
from cavity.ep.dense import DensePosterior
from cavity.ep.knowledge import DenseKnowledge
from cavity.ep.roles import Fixed
from cavity.ep.row_sites import RowSites
from cavity.losses import Hinge, Logistic, Squared


def test_a_variance_at_rest_stays():
    """Where squares over known coefficients are the variance, with half a coefficient of typical size added."""
    v, typical, d = 3.0, 2.0, 8
    s2 = np.full(d, 0.4 * v)
    known = d - np.sum(s2) / v
    m = np.full(d, np.sqrt((v * (known + 0.5) - 0.5 * typical) / d))
    assert revised_variance(v, m, s2, typical) == pytest.approx(v, rel=1e-12)


def test_units_do_not_matter():
    rng = np.random.default_rng(0)
    m, s2 = rng.normal(size=6), rng.uniform(0.1, 0.5, 6)
    plain = revised_variance(1.0, m, s2, 2.0)
    for factor in (1e-6, 1e6):
        found = revised_variance(factor**2, factor * m, factor**2 * s2, 2.0 * factor**2)
        assert found == pytest.approx(factor**2 * plain, rel=1e-9)


def test_a_step_is_bounded():
    for m in (np.zeros(3), np.full(3, 1e6)):
        new = revised_variance(1.0, m, np.full(3, 0.99), 1.0)
        assert 0.1 - 1e-12 <= new <= 10.0 + 1e-12


def posterior_of(prior: FactorialGaussian, information: np.ndarray, shift: np.ndarray) -> DensePosterior:
    """A dense posterior of rows that say this."""
    return DensePosterior(prior, DenseKnowledge(information, shift, 0.0))


def test_nothing_free_keeps_the_prior_and_the_loss():
    prior = FactorialGaussian.from_moments(np.zeros(3), 1.0)
    for adaptation in (Adaptive(), Adaptive(()), Fixed()):
        posterior = posterior_of(prior, np.eye(3), np.ones(3))
        adaptation.revise(posterior, 1)
        assert adaptation.end_loop(posterior, posterior.variance(), 5, 0.0) == 0.0
        assert posterior.prior is prior
        assert adaptation.is_done
        loss = Logistic()
        assert adaptation.loss(loss, np.ones(2), np.ones(2), RowSites.start(2)) is loss


def test_only_the_free_coefficients_change():
    prior = FactorialGaussian.from_moments([0.5, 0.5, 2.0], [1.0, 1.0, 100.0])
    posterior = posterior_of(prior, 10.0 * np.eye(3), np.array([30.0, -30.0, 500.0]))
    Adaptive([Group(np.array([0, 1]), typical=1.0)]).revise(posterior, 1)
    np.testing.assert_allclose(posterior.prior.mean, prior.mean)
    assert posterior.prior.variance[0] == posterior.prior.variance[1] > 1.0
    assert posterior.prior.variance[2] == pytest.approx(100.0)


def test_revisions_of_a_gaussian_posterior_end_at_the_largest_evidence():
    """Of rows that say a Gaussian, the evidence is known for every variance; half a typical coefficient is added."""
    rng = np.random.default_rng(0)
    X, d, typical = rng.normal(size=(20, 8)), 8, 1.0
    information, shift = X.T @ X, X.T @ (X @ rng.normal(size=d) + rng.normal(size=20))

    def evidence(v: float) -> float:
        precision = information + np.eye(d) / v
        value = 0.5 * shift @ np.linalg.solve(precision, shift) - 0.5 * np.linalg.slogdet(precision)[1]
        return float(value - 0.5 * d * np.log(v) - 0.25 * (np.log(v) + typical / v))

    posterior = posterior_of(FactorialGaussian.from_moments(np.zeros(d), 100.0), information, shift)
    adaptation = Adaptive([Group(np.arange(d), typical=typical)])
    for _ in range(5):
        adaptation.revise(posterior, 1)
    found = float(posterior.prior.variance[0])
    assert evidence(found) == pytest.approx(max(evidence(v) for v in np.geomspace(0.01, 100.0, 500)), abs=1e-3)


def test_movements_that_shrink_are_prolonged_to_where_they_end():
    """The prior variance moves by a fifth of what is left in every loop: the second loop knows the end."""
    d, end = 4, np.log(8.0)
    adaptation = Adaptive([Group(np.arange(d))])
    here, variance = 0.0, np.full(d, 0.1)

    def posterior() -> DensePosterior:
        return posterior_of(FactorialGaussian.from_moments(np.zeros(d), np.exp(here)), np.eye(d), np.zeros(d))

    assert adaptation.end_loop(posterior(), variance, 0, 1.0) == 0.0
    stretches = []
    for loop in (1, 2):
        here += 0.2 * (end - here)
        stretches.append(adaptation.end_loop(posterior(), variance, loop, 1.0))
    assert stretches == pytest.approx([0.0, end - here])
    assert not adaptation.is_done


@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=repr)
def test_the_variance_found_has_about_the_largest_evidence(loss):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 12))
    y = np.where(X @ rng.normal(size=12) + rng.logistic(size=300) > 0.0, 1.0, -1.0)
    free = EPClassifier(loss, fit_intercept=False).fit(X, y)
    fixed = [EPClassifier(loss, fit_intercept=False, prior_variance=v).fit(X, y) for v in np.geomspace(0.05, 50.0, 16)]
    assert free.log_evidence_ > max(model.log_evidence_ for model in fixed) - 0.3  # 0.25 of the added coefficient
    same = EPClassifier(loss, fit_intercept=False, prior_variance=free.prior_variance_).fit(X, y)
    assert free.n_iter_ <= 2 * same.n_iter_


def test_separable_classes_stretch_prior_and_posterior_together():
    """Without it the variance takes more than 30 loops."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 10))
    model = EPClassifier().fit(X, X @ rng.normal(size=10) > 0.0)
    assert model.status_.name == "CONVERGED"
    assert model.n_iter_ <= 20
    assert model.prior_variance_ > 100.0 * typical_variance(X)


def test_a_stretch_that_went_too_far_is_followed_by_shorter_ones():
    """Rows for which each stretch overshoots the last: it did not converge in 100 loops."""
    X, y = load_breast_cancer(return_X_y=True)
    X, _, y, _ = train_test_split(X, y, random_state=0)
    model = EPClassifier().fit(scale(X), y)
    assert model.status_.name == "CONVERGED"
    assert model.n_iter_ <= 30


def test_the_noise_scale_is_that_of_the_residuals_above_a_floor():
    rng = np.random.default_rng(0)
    targets, sites = rng.normal(size=500), RowSites.start(500)
    sites.mean[:], sites.variance[:] = targets - 0.5 * rng.normal(size=500), 0.01
    found = Adaptive(scale=True).loss(Squared(1.0), targets, np.ones(500), sites)
    wanted = np.sqrt(np.mean((targets - sites.mean) ** 2 + 0.01))
    assert found.scale == pytest.approx(wanted, rel=1e-9)
    sites.mean[:], sites.variance[:] = targets, 0.0
    loss = Squared(1.0)
    for _ in range(10):
        loss = Adaptive(scale=True).loss(loss, targets, np.ones(500), sites)
    assert loss.scale == pytest.approx(LEAST_NOISE * np.std(targets), rel=1e-9)
    sites.mean[:] = np.inf
    assert Adaptive(scale=True).loss(loss, targets, np.ones(500), sites) is loss


def test_a_typical_variance_gives_an_average_row_its_spread():
    X = np.random.default_rng(0).normal(size=(50, 4))
    start = typical_variance(X)
    assert np.mean(np.sum(start * X**2, axis=1)) == pytest.approx(5.0)
    assert typical_variance(10.0 * X) == pytest.approx(start / 100.0)
    assert typical_variance(sparse.csr_array(X)) == pytest.approx(start)
    assert typical_variance(np.concatenate([X, X])) == pytest.approx(start)
    assert typical_variance(np.zeros((3, 2))) == 1.0


def test_what_is_not_known_of_the_variances_widens_the_posterior_by_how_far_they_move_its_mean():
    rng = np.random.default_rng(3)
    rows, groups = rng.normal(size=(9, 6)), (Group(np.arange(3)), Group(np.array([3, 4])))
    known = DenseKnowledge(rows.T @ rows, 5.0 * rng.normal(size=6))
    prior = FactorialGaussian.from_moments(rng.normal(size=6), [0.1, 0.1, 0.1, 0.4, 0.4, 10.0])
    posterior, added = known.posterior(prior), 0.0
    for group in groups:
        v, h = prior.variance[group.columns[0]], 1e-5
        ends = [known.posterior(with_variances(prior, [group], [v * np.exp(s * h)])).mean for s in (1.0, -1.0)]
        slope = (ends[0] - ends[1]) / (2.0 * h)
        information = 0.5 * np.sum((1.0 - posterior.variance[group.columns] / v) ** 2) + 1.0
        added = added + np.outer(slope, slope) / information
    np.testing.assert_allclose(widened(posterior, prior, groups).covariance, posterior.covariance + added, rtol=1e-5)
    assert widened(posterior, prior, ()) is posterior


def test_many_determined_coefficients_leave_the_posterior_as_it_is():
    rng = np.random.default_rng(4)
    known = DenseKnowledge(1e4 * np.eye(50), 1e4 * rng.normal(size=50))
    prior = FactorialGaussian.from_moments(np.zeros(50), 1.0)
    posterior = known.posterior(prior)
    assert widened(posterior, prior, [Group(np.arange(50))]) is posterior
