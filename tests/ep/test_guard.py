"""Safeguards: no loop is worse than the prior, damping follows the change, and both engines do the same."""

import numpy as np
import pytest

from cases import standard_prior
from cavity import LinearFactor, fit, losses
from cavity.ep.factorised import Guard, Settings, prior_cost
from cavity.ep.result import Refusal, Status
from cavity.schedules import resolve_beta, resolve_order

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
    result = fit(factors, prior, scheme, loops=15, safeguards=True, compiled=False)
    assert result.posterior.is_proper
    assert total_cost(factors, prior, result.mean) <= total_cost(factors, prior, prior.mean) * (1.0 + 1e-9)


def test_without_safeguards_the_same_data_blow_up():
    factors = LinearFactor.batches(losses.Squared(), *correlated(), 60)
    prior = standard_prior(6, 25.0)
    result = fit(factors, prior, "qla", loops=15, compiled=False)
    assert total_cost(factors, prior, result.mean) > 10.0 * total_cost(factors, prior, prior.mean)


@pytest.mark.parametrize("scheme", ["qla", "vq", "gq"])
@pytest.mark.parametrize("sites", ["own", "tied"])
def test_compiled_and_plain_guards_agree(scheme, sites):
    X, y = correlated(rows=30, width=4)
    factors = LinearFactor.batches(losses.Hinge(), X, y, 5)
    prior = standard_prior(4, 25.0)
    plain, compiled = (
        fit(factors, prior, scheme, sites=sites, loops=4, tol=0.0, safeguards=True, compiled=c) for c in (False, True)
    )
    assert compiled.trace.refusals == plain.trace.refusals
    np.testing.assert_allclose(compiled.trace.changes, plain.trace.changes, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(compiled.mean, plain.mean, rtol=PARITY, atol=PARITY)
    np.testing.assert_allclose(compiled.std, plain.std, rtol=PARITY)


def test_a_lost_run_goes_back_and_says_so():
    factors = LinearFactor.batches(losses.Squared(), *correlated(), 60)
    prior = standard_prior(6, 25.0)
    result = fit(factors, prior, "qla", loops=1, safeguards=True, compiled=False)
    assert result.status is Status.DIVERGED
    assert result.trace.refusals[-1, Refusal.DIVERGED] == 1
    np.testing.assert_array_equal(result.mean, prior.mean)
    np.testing.assert_array_equal(result.variance, prior.variance)


def test_where_all_goes_well_safeguards_change_nothing():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 3)) / 5.0
    y = np.where(X @ [1.0, -1.0, 0.5] > 0.0, 1.0, -1.0)
    factors = LinearFactor.batches(losses.Logistic(), X, y, 10)
    guarded, bare = (fit(factors, standard_prior(3), "la", safeguards=s) for s in (True, False))
    assert guarded.status is bare.status is Status.CONVERGED
    np.testing.assert_allclose(guarded.mean, bare.mean, rtol=1e-12)


def guard(cost, damping=1.0):
    temperature, order = resolve_beta(1.0), resolve_order("cyclic")
    return Guard(Settings(9, "own", temperature, order, 1.0, damping, "keep", 1e-3, safeguards=True), cost)


def test_damping_halves_while_the_change_does_not_shrink_and_relaxes_after():
    g = guard(lambda point: 1.0, damping=0.8)
    assert g.begin_loop(1.0, np.zeros(1), np.zeros(1))
    seen = []
    for change in (1.0, 1.0, 1.0, 2.0, 0.5, 0.1):
        assert not g.end_loop(change, np.zeros(1))
        seen.append(g.damping)
    assert seen == pytest.approx([0.8, 0.8, 0.4, 0.2, 0.24, 0.288])
    assert not g.is_lost


def test_the_best_loop_is_known_and_a_nan_cost_is_lost():
    g = guard(lambda point: float(point[0]))
    g.begin_loop(1.0, np.array([5.0]), np.array([5.0]))
    assert [g.end_loop(1.0, np.array([cost])) for cost in (7.0, 4.0, 4.5, 3.0, 6.0)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert g.is_lost
    assert not g.end_loop(1.0, np.array([np.nan]))
    assert g.is_lost
    for _ in range(4):
        g.end_loop(1.0, np.array([6.0]))
    assert g.damping == 1.0 / 16.0
    assert g.relative_damping == 1.0 / 16.0


def test_another_temperature_begins_anew():
    g = guard(lambda point: float(point[0]))
    assert g.begin_loop(1.0, np.array([5.0]), np.array([5.0]))
    g.end_loop(1.0, np.array([1.0]))
    assert not g.begin_loop(1.0, np.array([5.0]), np.array([1.0]))
    assert g.begin_loop(2.0, np.array([9.0]), np.array([4.0]))
    assert not g.end_loop(1.0, np.array([5.0]))
    assert not g.is_lost
