"""Sparse precision matrices: the time of one cycle of EP's linear algebra by design, one thread.

Run by ``python -m benchmarks.sparse_precision``. A cycle is a factorisation for new weights, all variances of
coefficients and of the rows' predictors, the covariances of the pairs that the prior couples, and one solve. Set
``OPENBLAS_NUM_THREADS=1`` for one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.bars import Row, markdown
from cavity.gaussians import Analysis, analyse
from cavity.gaussians.sparse import PatternSums, Places, factorise_sums

HEADER = ("design", "analysis", "steps, corner", "cycle", "predicted", "memory")
REPEATS = 3
# Seconds for one cycle. A fit takes some 50 of them.
BARS = {
    "20,000 rows": 0.05,
    "100,000 rows, 1,000 and 10,000 levels crossed, 6": 0.3,
    "2,000,000 rows": 3.0,
    "a random walk of order 2": 0.15,
    "neighbours on a grid of 100 by 100": 0.2,
    "100,000 rows, 1,000 and 10,000 levels crossed, slopes of the 10,000": 0.2,
}


def designs() -> Iterator[tuple[str, Any, Any]]:
    """Name, rows, and the precision matrix of the prior but for a multiple of the identity, one after the other."""
    rng = np.random.default_rng(0)
    for n, a, b in ((20_000, 200, 2000), (100_000, 1000, 10_000)):
        i, j = rng.integers(a, size=n), np.minimum((b * rng.random(n) ** 1.5).astype(int), b - 1)
        name = f"{n:,} rows, {a:,} and {b:,} levels crossed, 6 dense columns"
        yield name, *_with_columns(rng, 6, _levels(i, a), _levels(j, b))
    slopes = rng.normal(size=n)
    for name, first, second in (
        ("slopes of the 10,000", _levels(i, a), _levels(j, b, slopes)),
        ("slopes of the 1,000", _levels(i, a, slopes), _levels(j, b)),
    ):
        yield f"{n:,} rows, {a:,} and {b:,} levels crossed, {name}", *_with_columns(rng, 2, first, second)
    n = 200_000
    patient = rng.integers(40_000, size=n)
    levels = (patient, 40_000), (patient % 3000, 3000), (patient % 3000 % 40, 40)
    yield (
        "200,000 rows, 40,000 patients in 3,000 hospitals in 40 regions",
        *_with_columns(rng, 5, *(_levels(*each) for each in levels)),
    )
    yield (
        "2,000,000 rows, 30,000 groups, 6 dense columns",
        *_with_columns(rng, 6, _levels(rng.integers(30_000, size=2_000_000), 30_000)),
    )
    d = 100_000
    second = sparse.diags_array([np.ones(d), np.full(d - 1, -2.0), np.ones(d - 2)], offsets=[0, 1, 2]).tocsr()[: d - 2]
    yield (
        "a random walk of order 2, 100,000 points",
        *_with_columns(rng, 1, (sparse.eye_array(d, format="csr"), second.T @ second)),
    )
    for size in (100, 300):
        edges, cells = _grid(size), sparse.eye_array(size * size, format="csr")
        coupled = sparse.block_array([[cells, -0.5 * cells], [-0.5 * cells, edges.T @ edges + cells]])
        rows = sparse.hstack([cells, sparse.csr_array(cells.shape)])
        yield f"neighbours on a grid of {size} by {size}, 2 columns per cell", *_with_columns(rng, 1, (rows, coupled))
    n, k = 100_000, 20
    curvature = np.diff(np.eye(k), 2, axis=0)
    smooths = [(_smooth(rng, n, k), sparse.csr_array(curvature.T @ curvature)) for _ in range(5)]
    name = "100,000 rows, 5 smooths of 20 columns and 5,000 groups"
    yield name, *_with_columns(rng, 1, *smooths, _levels(rng.integers(5000, size=n), 5000))
    k = 50
    words = np.minimum((10_000 * rng.random(20_000 * k) ** 2).astype(int), 9_999)
    texts = sparse.csr_array((np.ones(words.size), words, np.arange(0, words.size + 1, k)))
    yield "20,000 texts of 50 words out of 10,000", texts, sparse.csr_array((texts.shape[1],) * 2)


def _levels(levels: Any, size: int, slopes: Any = None) -> tuple[Any, Any]:
    """Columns of a factor, of the slopes of its levels beside them, and what couples them."""
    n = levels.size
    if slopes is None:
        return sparse.csr_array((np.ones(n), levels, np.arange(n + 1)), shape=(n, size)), sparse.csr_array((size, size))
    values, columns = np.stack([np.ones(n), slopes], axis=1), 2 * levels[:, None] + np.arange(2)
    rows = sparse.csr_array((values.ravel(), columns.ravel(), np.arange(0, 2 * n + 1, 2)), shape=(n, 2 * size))
    return rows, sparse.kron(sparse.eye_array(size), np.array([[0.4, 0.2], [0.2, 0.4]]))


def _smooth(rng: np.random.Generator, n: int, size: int) -> Any:
    """Cubic B-splines at random points."""
    at = rng.random(n) * (size - 3)
    first, u = at.astype(int), at % 1.0
    values = np.stack([(1 - u) ** 3, 3 * u**3 - 6 * u**2 + 4, 3 * (1 - u) ** 3 - 6 * (1 - u) ** 2 + 4, u**3], axis=1)
    columns = first[:, None] + np.arange(4)
    return sparse.csr_array((values.ravel() / 6, columns.ravel(), np.arange(0, 4 * n + 1, 4)), shape=(n, size))


def _with_columns(rng: np.random.Generator, dense: int, *blocks: tuple[Any, Any]) -> tuple[Any, Any]:
    """Rows of all blocks and dense columns, the last of which is constant, and the prior of all."""
    n = blocks[0][0].shape[0]
    beside = np.c_[rng.normal(size=(n, dense - 1)), np.ones(n)]
    X = sparse.hstack([*(rows for rows, _ in blocks), sparse.csr_array(beside)]).tocsr()
    prior = sparse.block_diag([*(coupled for _, coupled in blocks), sparse.csr_array((dense, dense))])
    return X, sparse.csr_array(prior)


def _grid(size: int) -> sparse.csr_array:
    index = np.arange(size * size).reshape(size, size)
    down, along = (index[:-1].ravel(), index[1:].ravel()), (index[:, :-1].ravel(), index[:, 1:].ravel())
    edges = np.concatenate([np.stack(down, axis=1), np.stack(along, axis=1)])
    return sparse.csr_array((np.tile([1.0, -1.0], len(edges)), edges.ravel(), np.arange(0, edges.size + 1, 2)))


def cycle(analysis: Analysis, prior: sparse.csr_array, places: Places, seed: int) -> float:
    """Seconds of the processor for one cycle."""
    pattern, rows = analysis.pattern, analysis.rows
    assert pattern is not None
    assert rows is not None
    rng = np.random.default_rng(seed)
    weights, right = rng.gamma(1.0, size=rows.inner.shape[0]), rng.normal(size=pattern.order.size)
    precisions, coupled = prior.diagonal() + 0.5, sparse.triu(prior, 1).tocoo().data
    start = time.process_time()
    sums = places.add(PatternSums.of(rows, weights), coupled)
    factor = factorise_sums(pattern, sums, precisions, rows)
    factor.variances(), factor.row_variances(), factor.covariances(places), factor.solve(right)
    return time.process_time() - start


def main() -> None:
    """Print the table and the bars."""
    table: list[tuple[str, ...]] = []
    lines: list[Row] = []
    for name, X, prior in designs():
        start = time.process_time()
        analysis = analyse(X, coupled=prior)
        spent = f"{time.process_time() - start:.2f} s"
        if analysis.pattern is None:
            table.append((name, spent, "refused", "", "", ""))
            continue
        elimination = analysis.pattern.elimination
        above = sparse.triu(prior, 1).tocoo()
        places = Places.of(analysis.pattern, *(at.astype(np.intp) for at in above.coords))
        best = min(cycle(analysis, prior, places, seed) for seed in range(REPEATS))
        shape = f"{len(elimination.steps)}, {elimination.layout.corner}"
        predicted, memory = f"{1e3 * analysis.work / 2e10:.0f} ms", f"{analysis.memory / 1e6:.0f} MB"
        table.append((name, spent, shape, f"{1e3 * best:.0f} ms", predicted, memory))
        bar = next((bar for start_, bar in BARS.items() if name.startswith(start_)), None)
        if bar is not None:
            lines.append(Row(name, f"{1e3 * best:.0f} ms", f"at most {1e3 * bar:.0f} ms", best <= bar))
    print(markdown(HEADER, table), "", markdown(("work", "measured", "bar", ""), [x.cells for x in lines]), sep="\n")


if __name__ == "__main__":
    main()
