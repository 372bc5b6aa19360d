"""Sparse precision matrices: the time of one cycle of EP's linear algebra by design, one thread.

Run by ``python -m benchmarks.sparse_precision``. A cycle is a factorisation for new weights, all variances of
coefficients and of the rows' predictors, and one solve. Set ``OPENBLAS_NUM_THREADS=1`` for one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from scipy import sparse

from benchmarks.bars import Row, markdown
from cavity.gaussians import Analysis, analyse, factorise

HEADER = ("design", "analysis", "steps, corner", "cycle", "predicted", "memory")
REPEATS = 3


def designs() -> Iterator[tuple[str, sparse.csr_array]]:
    """Name and rows, one design after the other."""
    rng = np.random.default_rng(0)
    for n, a, b in ((20_000, 200, 2000), (100_000, 1000, 10_000)):
        i, j = rng.integers(a, size=n), np.minimum((b * rng.random(n) ** 1.5).astype(int), b - 1)
        yield f"{n:,} rows, {a:,} and {b:,} levels crossed, 6 dense columns", _stacked(rng, 5, (i, a), (j, b))
    n = 200_000
    patient = rng.integers(40_000, size=n)
    levels = (patient, 40_000), (patient % 3000, 3000), (patient % 3000 % 40, 40)
    yield "200,000 rows, 40,000 patients in 3,000 hospitals in 40 regions", _stacked(rng, 4, *levels)
    yield (
        "2,000,000 rows, 30,000 groups, 6 dense columns",
        _stacked(rng, 5, (rng.integers(30_000, size=2_000_000), 30_000)),
    )
    d = 100_000
    yield "a chain of 100,000 columns", sparse.diags_array([np.ones(d), -np.ones(d - 1)], offsets=[0, 1]).tocsr()
    yield "a grid of 100 by 100 columns", _grid(100)
    k = 50
    words = np.minimum((10_000 * rng.random(20_000 * k) ** 2).astype(int), 9_999)
    indptr = np.arange(0, words.size + 1, k)
    yield "20,000 texts of 50 words out of 10,000", sparse.csr_array((np.ones(words.size), words, indptr))


def _stacked(rng: np.random.Generator, dense: int, *factors: tuple[np.ndarray, int]) -> sparse.csr_array:
    n = factors[0][0].size
    blocks = [sparse.csr_array((np.ones(n), levels, np.arange(n + 1)), shape=(n, size)) for levels, size in factors]
    return sparse.hstack([*blocks, sparse.csr_array(np.c_[rng.normal(size=(n, dense)), np.ones(n)])]).tocsr()


def _grid(size: int) -> sparse.csr_array:
    index = np.arange(size * size).reshape(size, size)
    down, along = (index[:-1].ravel(), index[1:].ravel()), (index[:, :-1].ravel(), index[:, 1:].ravel())
    edges = np.concatenate([np.stack(down, axis=1), np.stack(along, axis=1)])
    return sparse.csr_array((np.tile([1.0, -1.0], len(edges)), edges.ravel(), np.arange(0, edges.size + 1, 2)))


def cycle(analysis: Analysis, rows: int, columns: int, seed: int) -> float:
    """Seconds of the processor for one cycle."""
    rng = np.random.default_rng(seed)
    weights, precisions, right = rng.gamma(1.0, size=rows), np.full(columns, 0.5), rng.normal(size=columns)
    start = time.process_time()
    factor = factorise(analysis, weights, precisions)
    factor.variances(), factor.row_variances(), factor.solve(right)
    return time.process_time() - start


def main() -> None:
    """Print the table and the bars."""
    table: list[tuple[str, ...]] = []
    bars = {"20,000 rows": 0.05, "100,000 rows": 0.3, "2,000,000 rows": 3.0}
    lines: list[Row] = []
    for name, X in designs():
        start = time.process_time()
        analysis = analyse(X)
        spent = f"{time.process_time() - start:.2f} s"
        if analysis.pattern is None:
            table.append((name, spent, "refused", "", "", ""))
            continue
        elimination = analysis.pattern.elimination
        best = min(cycle(analysis, *X.shape, seed) for seed in range(REPEATS))
        shape = f"{len(elimination.steps)}, {elimination.layout.corner}"
        predicted, memory = f"{1e3 * analysis.work / 2e10:.0f} ms", f"{analysis.memory / 1e6:.0f} MB"
        table.append((name, spent, shape, f"{1e3 * best:.0f} ms", predicted, memory))
        bar = next((bar for start_, bar in bars.items() if name.startswith(start_)), None)
        if bar is not None:
            lines.append(Row(name, f"{1e3 * best:.0f} ms", f"at most {1e3 * bar:.0f} ms", best <= bar))
    print(markdown(HEADER, table), "", markdown(("work", "measured", "bar", ""), [x.cells for x in lines]), sep="\n")


if __name__ == "__main__":
    main()
