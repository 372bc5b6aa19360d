"""The cross-check on Ionosphere against an independent implementation."""

import numpy as np
import pytest

import cavity
from cases import bare_fit, storages
from cavity import LinearFactor, datasets
from cavity.losses import Hinge, Logistic
from cavity.schemes import GaussQuadrature, Laplace, QuickLaplace, VariationalQuadrature

# Runs of few loops, compared with each other: that they have not converged is no news.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MATCH = 0.01
VARIANCE = 25.0


@pytest.fixture(scope="module")
def ionosphere():
    design = datasets.paper("ionosphere")
    assert design.X.shape == (351, 33)
    return design


NUMBERS = [
    (VariationalQuadrature(), Logistic(), 129.507),
    (GaussQuadrature(), Logistic(), 208.335),
    (QuickLaplace(), Logistic(), 128.861),
    (Laplace(), Logistic(), 127.89),
    (VariationalQuadrature(), Hinge(), 119.933),
    (QuickLaplace(curvature="slope"), Hinge(), 112.853),
]


def total_cost(design, scheme, loss, storage, compiled):
    """Sum of the losses and of the prior's cost, at the posterior mean, in the setting of the cross-check."""
    X, y = storages(design.X)[storage], design.y
    prior = cavity.FactorialGaussian.from_moments(np.zeros(33), VARIANCE)
    batches = LinearFactor.batches(loss, X, y, 10)
    result = bare_fit(batches, prior, scheme, max_iter=5, tol=0.0, negative="floor", compiled=compiled)
    assert result.trace.updates == 5 * 36
    return np.sum(loss.value(y, design.X @ result.mean)) + result.mean @ result.mean / (2.0 * VARIANCE)


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize(("scheme", "loss", "cost"), NUMBERS)
def test_total_cost_at_the_posterior_mean(ionosphere, scheme, loss, cost, storage):
    assert total_cost(ionosphere, scheme, loss, storage, compiled=False) == pytest.approx(cost, abs=MATCH)


@pytest.mark.parametrize(("scheme", "loss", "cost"), [NUMBERS[0], NUMBERS[-1]])
def test_compiled_loops_find_the_same(ionosphere, scheme, loss, cost):
    assert total_cost(ionosphere, scheme, loss, "dense", compiled=True) == pytest.approx(cost, abs=MATCH)
