"""Linear algebra keeps to one thread unless both rows and columns are many."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from scipy import sparse

from cavity.estimators import parameters as _threads
from cavity.gaussians import analyse


@pytest.mark.parametrize(
    ("shape", "limited"),
    [
        ((100, 10), True),
        ((10**6, 299), True),
        ((300, 600), True),
        ((599, 600), True),
        ((300, 300), False),
        ((10**5, 1000), False),
        ((1, 20), False),  # a single row is done before the limit is set
    ],
)
def test_threads_are_limited_by_shape(shape, limited, monkeypatch):
    calls = []

    class Controller:
        def limit(self, **options):
            calls.append(options)
            return nullcontext()

    monkeypatch.setattr(_threads, "_controller", Controller)
    with _threads.threads_for(shape):
        assert calls == ([{"limits": 1, "user_api": "blas"}] if limited else [])


@pytest.mark.parametrize(("levels", "limited"), [((40, 300), True), ((2100, 2100), False)])
def test_a_sparse_precision_has_several_threads_only_where_its_corner_is_large(levels, limited, monkeypatch):
    """Two crossed factors: the smaller one is the corner."""
    rng, calls = np.random.default_rng(0), []
    codes = np.column_stack([rng.integers(0, count, 40_000) for count in levels])
    columns = codes + np.array([0, levels[0]])
    rows = sparse.csr_array(
        (np.ones(codes.size), columns.ravel(), np.arange(0, codes.size + 1, 2)), shape=(40_000, sum(levels))
    )

    class Controller:
        def limit(self, **options):
            calls.append(options)
            return nullcontext()

    monkeypatch.setattr(_threads, "_controller", Controller)
    with _threads.threads_for(rows.shape, analyse(rows)):
        assert bool(calls) == limited
