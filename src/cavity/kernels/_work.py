"""Scratch memory of a sweep, allocated once and handed down."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Work(NamedTuple):
    """Arrays over the coordinates that a mini-batch touches, and arrays over its rows."""

    coordinate: Any  # global number of every local coordinate, and room for one more
    touched: Any  # whether a local coordinate has a non-zero in the batch
    local: Any  # local coordinate of every stored entry (sparse rows only)
    change_scale: Any  # change of the log scale, one number
    conjugate: Any
    post_shift: Any
    post_precision: Any
    prior_precision: Any
    site_shift: Any
    site_precision: Any
    mean: Any
    precision: Any  # of the cavity
    fit_shift: Any
    fit_precision: Any
    up: Any
    down: Any
    step: Any
    site_steps: Any
    buffer: Any
    ones: Any  # weights of rows that have none
    z: Any
    slope: Any
    second: Any


def work_for(width: int, batch: int, entries: int) -> Work:
    """Allocate for at most so many coordinates, rows and stored entries per batch."""
    rows = np.zeros((4, batch))
    rows[0] = 1.0
    return Work(
        np.arange(width + 1, dtype=np.uint32),
        np.ones(width, dtype=np.bool_),
        np.zeros(entries, dtype=np.uint32),
        np.zeros(1),
        np.zeros((4, width)),
        *np.zeros((14, width)),
        *rows,
    )
