"""Linear algebra keeps to one thread unless both rows and columns are many."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from cavity.estimators import _threads


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
