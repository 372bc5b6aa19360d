"""Starting at the mode: the same for every engine and storage, and nearer to the end than the prior."""

import numpy as np
import pytest
from scipy import sparse

from cases import gaussian_cost, standard_prior
from cavity import LinearFactor, datasets, fit, losses
from cavity.mode import find_mode

# Runs of few loops, compared with each other: that they have not converged is no news.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PARITY = 1e-10


def problem(loss, storage=np.asarray, rows=40, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 4)) * (rng.random((rows, 4)) < 0.6)
    X[:, 0] += 1.0
    y = np.where(X @ [1.0, -1.0, 0.5, 2.0] + rng.logistic(size=rows) > 0.0, 1.0, -1.0)
    return LinearFactor.batches(loss, storage(X), y, 5)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_compiled_and_plain_start_at_the_same_place(loss, storage):
    factors, prior = problem(loss, storage), standard_prior(4, 9.0)
    runs = [fit(factors, prior, "qla", max_iter=2, tol=0.0, start="mode", compiled=c) for c in (True, False)]
    np.testing.assert_allclose(runs[0].mean, runs[1].mean, rtol=PARITY, atol=PARITY)
    np.testing.assert_allclose(runs[0].std, runs[1].std, rtol=PARITY)
    assert runs[0].posterior.log_mass == pytest.approx(runs[1].posterior.log_mass, rel=PARITY)


def test_loose_factors_start_where_their_stack_does():
    factors, prior = problem(losses.Logistic()), standard_prior(4, 9.0)
    a, b = (fit(f, prior, "qla", max_iter=1, start="mode") for f in (factors, list(factors)))
    np.testing.assert_allclose(a.mean, b.mean, rtol=PARITY)


def test_a_gaussian_model_is_done_at_once():
    factors, prior = problem(losses.Squared()), standard_prior(4)
    result = fit(factors, prior, "la", start="mode", max_iter=2)
    np.testing.assert_allclose(result.mean, find_mode(factors, prior).point, rtol=1e-8)
    assert result.trace.changes[0] < 1e-8


def test_census_income_is_near_its_minimum_after_one_loop():
    design = datasets.paper("census", scale="std")
    X, y = design.X, design.y
    turned = X @ np.linalg.eigh(X.T @ X)[1]
    factors = LinearFactor.batches(losses.Logistic(), turned, y, 100)
    prior = standard_prior(X.shape[1], 25.0)
    result = fit(factors, prior, "exact", max_iter=1, start="mode")
    assert factors.cost(result.mean) + result.mean @ result.mean / 50.0 == pytest.approx(10283.0, abs=1.0)


def test_a_mode_known_before_is_not_looked_for_again():
    factors, prior = problem(losses.Logistic()), standard_prior(4, 9.0)
    known, found = (fit(factors, prior, "qla", max_iter=2, start=s) for s in (find_mode(factors, prior), "mode"))
    np.testing.assert_array_equal(known.mean, found.mean)
    other = find_mode(problem(losses.Logistic(), rows=30), prior)
    with pytest.raises(ValueError, match="the mode of these factors, 4 coordinates and 40 rows, got one of 4 and 30"):
        fit(factors, prior, "qla", start=other)


def test_what_cannot_start_at_a_mode_says_so():
    factors, prior = problem(losses.Logistic()), standard_prior(4)
    with pytest.raises(ValueError, match="start must be 'mode'"):
        fit(factors, prior, start="node")
    with pytest.raises(ValueError, match="needs sites='own'"):
        fit(factors, prior, sites="tied", start="mode")
    with pytest.raises(ValueError, match="linear factors of one loss"):
        fit([gaussian_cost([1.0], [1.0])[0]], standard_prior(1), start="mode", covariance="diagonal")
