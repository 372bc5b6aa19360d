"""Safeguards: no loop is worse than the prior, damping follows the change, and both engines do the same."""

import numpy as np
import pytest

from cases import standard_prior
from cavity import LinearFactor, fit, losses
from cavity.ep.driver import Guard
from cavity.ep.factorised import prior_cost
from cavity.ep.result import Refusal, Status

# Runs of few loops, compared with each other: that they have not converged is no news.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PARITY = 1e-10


def correlated(rows: int = 60, width: int = 6, seed: int = 0):
    """Columns that are nearly the same: all coordinates move at once, each as if alone."""
    rng = np.random.default_rng(seed)
    X = 2.0 * rng.standard_normal((rows, 1)) + 0.1 * rng.standard_normal((rows, width))
    return X, np.where(X[:, 0] + 0.5 * rng.standard_normal(rows) > 0.0, 1.0, -1.0)


def total_cost(factors, prior, point):
    return float(factors.cost(point)) + prior_cost(prior, point)


@pytest.mark.parametrize("scheme", ["qla", "vq", "gq", "la"])
@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge(), losses.Squared()], ids=repr)
@pytest.mark.parametrize("batch", [5, 60])
def test_guarded_runs_never_end_above_the_cost_of_the_prior_mean(loss, scheme, batch):
    factors = LinearFactor.batches(loss, *correlated(), batch)
    prior = standard_prior(6, 25.0)
    result = fit(factors, prior, scheme, max_iter=15, safeguards=True, compiled=False)
    assert result.posterior.is_proper
    assert total_cost(factors, prior, result.mean) <= total_cost(factors, prior, prior.mean) * (1.0 + 1e-9)


def test_without_safeguards_the_same_data_blow_up():
    factors = LinearFactor.batches(losses.Squared(), *correlated(), 60)
    prior = standard_prior(6, 25.0)
    result = fit(factors, prior, "qla", max_iter=15, safeguards=False, compiled=False)
    assert total_cost(factors, prior, result.mean) > 10.0 * total_cost(factors, prior, prior.mean)


# A guard sees costs and posteriors only: pairs that `kernels/test_linear.py` compiles too.
@pytest.mark.parametrize(
    ("scheme", "loss"), [("qla", losses.Hinge()), ("vq", losses.Logistic()), ("gq", losses.QuasiZeroOne(0.3))]
)
@pytest.mark.parametrize("sites", ["own", "tied"])
def test_compiled_and_plain_guards_agree(scheme, loss, sites):
    X, y = correlated(rows=30, width=4)
    factors = LinearFactor.batches(loss, X, y, 5)
    prior = standard_prior(4, 25.0)
    plain, compiled = (
        fit(factors, prior, scheme, sites=sites, max_iter=4, tol=0.0, safeguards=True, compiled=c)
        for c in (False, True)
    )
    assert compiled.trace.refusals == plain.trace.refusals
    np.testing.assert_allclose(compiled.trace.changes, plain.trace.changes, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(compiled.mean, plain.mean, rtol=PARITY, atol=PARITY)
    np.testing.assert_allclose(compiled.std, plain.std, rtol=PARITY)


def test_a_run_worse_than_its_prior_goes_back_and_says_so():
    factors = LinearFactor.batches(losses.Squared(), *correlated(), 60)
    prior = standard_prior(6, 25.0)
    result = fit(factors, prior, "qla", max_iter=1, safeguards=True, compiled=False)
    assert result.status is Status.DIVERGED
    assert result.trace.refusals[-1, Refusal.DIVERGED] == 1
    np.testing.assert_array_equal(result.mean, prior.mean)
    np.testing.assert_array_equal(result.variance, prior.variance)
    assert np.isnan(result.log_evidence)  # zero would beat every honest run


def test_where_all_goes_well_safeguards_change_nothing():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 3)) / 5.0
    y = np.where(X @ [1.0, -1.0, 0.5] > 0.0, 1.0, -1.0)
    factors = LinearFactor.batches(losses.Logistic(), X, y, 10)
    guarded, bare = (fit(factors, standard_prior(3), "la", safeguards=s) for s in (True, False))
    assert guarded.status is bare.status is Status.CONVERGED
    np.testing.assert_allclose(guarded.mean, bare.mean, rtol=1e-12)


class Watched:
    """A guard, and the number of states it has kept."""

    def __init__(self, cost, damping=1.0):
        self.guard, self.kept = Guard(cost, damping), 0

    def snapshot(self):
        self.kept += 1
        return {"kept": self.kept}

    def begin(self, beta, prior_mean, mean):
        """Whether the state was kept."""
        before = self.kept
        self.guard.begin_loop(beta, np.array([prior_mean]), np.array([mean]), self.snapshot)
        return self.kept > before

    def end(self, change, mean):
        before = self.kept
        self.guard.end_loop(change, np.array([mean]), self.snapshot)
        return self.kept > before


def test_damping_halves_while_the_change_does_not_shrink_and_relaxes_after():
    watched = Watched(lambda point: 1.0, damping=0.8)
    assert watched.begin(1.0, 0.0, 0.0)
    seen = []
    for change in (1.0, 1.0, 1.0, 2.0, 0.5, 0.1):
        assert not watched.end(change, 0.0)
        seen.append(watched.guard.damping)
    assert seen == pytest.approx([0.8, 0.8, 0.4, 0.2, 0.24, 0.288])
    assert not watched.guard.is_worse_than_prior


def test_the_best_loop_is_known_and_a_nan_cost_is_worse_than_the_prior():
    watched = Watched(lambda point: float(point[0]))
    watched.begin(1.0, 5.0, 5.0)
    assert [watched.end(1.0, cost) for cost in (7.0, 4.0, 4.5, 3.0, 6.0)] == [False, True, False, True, False]
    assert watched.guard.best == {"kept": 3}
    assert watched.guard.is_worse_than_prior
    assert not watched.end(1.0, np.nan)
    assert watched.guard.is_worse_than_prior
    for _ in range(4):
        watched.end(1.0, 6.0)
    assert watched.guard.damping == 1.0 / 16.0


def test_another_temperature_starts_over():
    watched = Watched(lambda point: float(point[0]))
    assert watched.begin(1.0, 5.0, 5.0)
    watched.end(1.0, 1.0)
    assert not watched.begin(1.0, 5.0, 1.0)
    assert watched.begin(2.0, 9.0, 4.0)
    assert not watched.end(1.0, 5.0)
    assert not watched.guard.is_worse_than_prior
