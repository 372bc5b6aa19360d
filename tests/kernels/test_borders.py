"""Nothing reaches a kernel with an index outside its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from cases import random_rows, random_signs, standard_prior
from cavity import LinearFactor, schemes
from cavity.ep import compiled, driver
from cavity.ep.fit import make_options
from cavity.ep.product_streams import Stream
from cavity.factors import LinearBatches
from cavity.losses import Logistic
from cavity.schedules import Given

STORAGES = {"dense": np.asarray, "csr": sparse.csr_array}
ROWS, WIDTH = 12, 4


def problem(storage="dense"):
    rng = np.random.default_rng(0)
    return STORAGES[storage](random_rows(rng, ROWS, WIDTH)), random_signs(rng, ROWS)


def run(factors, order="cyclic", sites="own"):
    """The compiled run, and nothing around it."""
    options = make_options(len(factors), max_iter=1 if sites == "none" else 2, sites=sites, order=order)
    return driver.run(compiled.Compiled(factors, standard_prior(WIDTH), schemes.Laplace(), options), options)


def stream_of(width):
    prior = standard_prior(width)
    return Stream(Logistic(), schemes.Laplace(), prior, prior.precision)


@pytest.mark.parametrize("width", [WIDTH - 1, WIDTH + 1, 1])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_stream_refuses_rows_of_another_width(storage, width):
    X, y = problem(storage)
    stream = stream_of(width)
    before = stream.posterior
    with pytest.raises(ValueError, match=f"a column for each of the {width} coordinates of the posterior, got {WIDTH}"):
        stream.take(X, y, None, 5)
    assert stream.posterior == before


@pytest.mark.parametrize("storage", STORAGES)
def test_a_stream_refuses_targets_and_weights_of_another_length(storage):
    X, y = problem(storage)
    stream = stream_of(WIDTH)
    for targets, weights in ((y[:-1], None), (np.append(y, 1.0), None), (y[:, None], None), (y, np.ones(ROWS - 1))):
        with pytest.raises(ValueError, match=f"{ROWS} rows need as many targets and weights"):
            stream.take(X, targets, weights, 5)


def test_a_stream_refuses_malformed_rows():
    for name, value in (("indices", WIDTH), ("indices", -1), ("indptr", 10**6)):
        X, y = problem("csr")
        getattr(X, name)[2] = value
        with pytest.raises(ValueError, match="X is malformed"):
            stream_of(WIDTH).take(X, y, None, 5)
    X, y = problem("csr")
    with pytest.raises(ValueError, match="must be in CSR form"):
        stream_of(WIDTH).take(X.tocsc(), y, None, 5)


@pytest.mark.parametrize("sites", ["own", "tied", "none"])
def test_rows_that_were_changed_behind_a_fit_are_refused(sites):
    X, y = problem("csr")
    factors = LinearFactor.batches(Logistic(), X, y, 5)
    factors.X.indices[3] = 10**6
    with pytest.raises(ValueError, match="X is malformed"):
        run(factors, sites=sites)


@pytest.mark.parametrize("storage", STORAGES)
def test_data_that_nobody_checked_are_refused_where_sizes_do_not_fit(storage):
    X, y = problem(storage)
    for targets, weights in ((y[:-1], None), (y, np.ones(ROWS + 1))):
        factors = LinearBatches.unchecked(Logistic(), X, targets, 5, weights)
        with pytest.raises(ValueError, match="rows need as many targets and weights"):
            run(factors)


class Beyond:
    """An order of visits that leaves the batches."""

    def __init__(self, visits):
        self._visits = np.asarray(visits)

    def visits(self, count, loop):
        return self._visits


@pytest.mark.parametrize("visits", [[0, 3], [-1, 0], [10**9], [0.0, 1.0], [[0, 1]]])
def test_visits_outside_the_batches_are_refused(visits):
    X, y = problem()
    factors = LinearFactor.batches(Logistic(), X, y, 5)
    with pytest.raises(ValueError, match="order must hold"):
        run(factors, Beyond(visits))
    run(factors, Given((2, 0)))
