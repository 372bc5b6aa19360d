"""Some of the rows that speak for all of them, where a search on a large data set begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.mode._newton import FACTORED, Problem

FloatArray = NDArray[np.float64]

# Entries, and rows for every column, below which nothing is gained.
_FEWEST_ENTRIES, _FEWEST_ROWS = 1 << 18, 128
# Share of the rows that are kept for their leverage, and which of the others are, with so many times the weight.
_KEPT = 1.0 / 16.0
STRIDE = 8


class Sample(NamedTuple):
    """A problem of fewer rows that is like the whole, and which rows they are."""

    problem: Problem
    rows: NDArray[np.intp]


def sampled(problem: Problem) -> Sample | None:
    r"""Keep every eighth row, and all that alone know of some column; None where all rows are few.

    The latter are those of largest leverage :math:`w_k \sum_i x_{ki}^2 / P_i`, with the diagonal :math:`P` of the
    precision. Without them a rare column would be left where it is, and a search on all rows would begin far off.
    """
    (n, d), design, weights = problem.design.shape, problem.design, problem.weights
    if d > FACTORED or n * d < _FEWEST_ENTRIES or n < _FEWEST_ROWS * d:
        return None
    stride = 2 * STRIDE
    diagonal = problem.precision + stride * design.every(stride).pull_squares(weights[::stride])
    leverage = weights * design.squared_lengths(1.0 / np.sqrt(diagonal))
    if not np.all(np.isfinite(leverage)):
        return None
    kept = leverage > np.partition(leverage, n - int(_KEPT * n))[n - int(_KEPT * n)]
    rest = np.flatnonzero(~kept)[::STRIDE]
    rows = np.sort(np.concatenate([np.flatnonzero(kept), rest]))
    share = weights[rows] * np.where(kept[rows], 1.0, STRIDE)
    return Sample(Problem(design.take(rows), share, problem.mean, problem.precision), rows)
