"""A run that is written to a file and continued is the run that was never stopped, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import cavity
from cases import quietly, standard_prior
from cavity import CostFactor, LinearFactor, losses
from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import Group, Hyperparameters
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.factors.rows import Rows
from cavity.gaussians import analyse

STORAGES = {"dense": np.asarray, "csr": sparse.csr_array}
LOOPS, STOP = 7, 3


def problem(storage="dense"):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4)) * (rng.random((60, 4)) < 0.6)
    y = np.where(X @ [1.0, -1.0, 0.5, 2.0] + rng.logistic(size=60) > 0.0, 1.0, -1.0)
    return STORAGES[storage](X), y


def through_a_file(state, tmp_path):
    np.savez(tmp_path / "state.npz", **state)
    with np.load(tmp_path / "state.npz") as saved:  # no pickles are allowed: these are numbers and arrays
        return dict(saved)


def assert_identical(a, b):
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.log_evidence == b.log_evidence
    assert a.status is b.status
    assert a.trace == b.trace


CHOICES = [
    {"scheme": "exact", "safeguards": True},
    {"scheme": "exact", "compiled": False},
    {"scheme": "vq", "sites": "tied", "damping": 0.5, "order": "shuffled", "compiled": False},
    {"scheme": "vq", "sites": "tied", "damping": 0.5, "order": "shuffled"},
    {"scheme": "qla", "beta": [0.2, 0.5, 1.0, 1.0, 2.0], "power": 0.5},
    {"scheme": "gq", "sites": "averaged"},
    {"covariance": "full"},
    {"covariance": "sparse", "beta": [0.5, 1.0, 1.0, 1.0, 2.0]},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_a_continued_run_is_the_whole_one(choices, tmp_path):
    storage = "csr" if choices.get("covariance") == "sparse" else "dense"
    factors = LinearFactor.batches(losses.Logistic(), *problem(storage), 10)

    def fit(loops, state=None):
        return quietly(cavity.fit, factors, standard_prior(4, 5.0), tol=0.0, max_iter=loops, state=state, **choices)

    part = fit(STOP)
    assert_identical(fit(LOOPS, through_a_file(part.state, tmp_path)), fit(LOOPS))


def test_black_boxes_are_continued_too(tmp_path):
    factors = [CostFactor(lambda t, a=a: float(np.abs(t - a).sum() + 0.1 * (t @ t) ** 2), dim=2) for a in (1.0, 2.0)]

    def fit(loops, state=None):
        return quietly(cavity.fit, factors, standard_prior(2, 5.0), tol=0.0, max_iter=loops, state=state)

    part = fit(STOP)
    assert_identical(fit(LOOPS, through_a_file(part.state, tmp_path)), fit(LOOPS))


@pytest.mark.parametrize("storage", STORAGES)
def test_prior_variance_and_noise_scale_are_continued(storage, tmp_path):
    X, _ = problem(storage)
    y = X @ [1.0, -1.0, 0.5, 2.0] + np.random.default_rng(1).standard_normal(60)
    rows, prior = Rows.arrange(X, y[None], None, intercept=False), standard_prior(4, 5.0)

    def fit(loops, state=None):
        matrix = rows.matrix()
        work = (
            DensePosterior(rows, prior) if storage == "dense" else SparsePosterior(rows, analyse(matrix), prior, matrix)
        )
        free = Hyperparameters([Group(np.arange(4))], scale=True)
        return run(losses.Absolute(), rows, work, Options(loops, 0.0), hyperparameters=free, state=state)

    part, whole = fit(STOP), fit(LOOPS)
    assert whole.prior != prior
    assert whole.loss.scale != 1.0
    found = fit(LOOPS, through_a_file(part.state, tmp_path))
    assert_identical(found, whole)
    assert found.prior == whole.prior
    assert found.loss == whole.loss
