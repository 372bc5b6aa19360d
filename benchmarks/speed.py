"""The bars on speed: one pass over Census income, a long dense matrix, a wide sparse one, and growth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import SGDClassifier

import cavity
from benchmarks.bars import Row, at_least, at_most
from cavity import datasets, losses
from reference.timing import best_times

PRIOR_VARIANCE = 25.0
BATCH = 100


def one_pass(loss: Any, X: Any, y: Any, scheme: str, batch: int = BATCH) -> Callable[[], object]:
    """A single pass without stored sites, over data that were checked before."""
    factors = cavity.LinearFactor.batches(loss, X, y, batch)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(X.shape[1]), PRIOR_VARIANCE)
    return partial(cavity.fit, factors, prior, scheme, sites="none", compiled=True)


def one_pass_with_checks(loss: Any, X: Any, y: Any, scheme: str) -> Callable[[], object]:
    """The same from raw arrays: `LinearFactor.batches` looks at every entry once more, as SGD's own checks do."""
    return lambda: one_pass(loss, X, y, scheme)()


def sgd_epoch(loss: str, X: Any, y: Any) -> Callable[[], object]:
    """One epoch of scikit-learn's SGDClassifier, its checks of the data included."""
    return lambda: SGDClassifier(loss=loss, max_iter=1, tol=None).fit(X, y)


def census(repeats: int) -> list[Row]:
    """Bars on Census income as the paper encodes it."""
    design = datasets.paper("census")
    X, y = design.X, design.y
    every = {"logistic": losses.Logistic(), "hinge": losses.Hinge(), "quasi 0-1": losses.QuasiZeroOne()}
    works = {f"{s} {name}": one_pass(loss, X, y, s) for name, loss in every.items() for s in ("qla", "vq", "gq")}
    works["la logistic"] = one_pass(every["logistic"], X, y, "la")
    works["checked qla"] = one_pass_with_checks(every["logistic"], X, y, "qla")
    works["checked vq"] = one_pass_with_checks(every["hinge"], X, y, "vq")
    works["SGD log loss"], works["SGD hinge"] = sgd_epoch("log_loss", X, y), sgd_epoch("hinge", X, y)
    t = best_times(works, repeats)
    return [
        at_least("QLA logistic, one pass", t["qla logistic"], t["SGD log loss"], 5.0, "SGD log loss"),
        at_least("QLA logistic, data checks included", t["checked qla"], t["SGD log loss"], 5.0, "SGD log loss"),
        at_least("VQ hinge, data checks included", t["checked vq"], t["SGD hinge"], 4.0, "SGD hinge"),
        at_least("VQ hinge, one pass", t["vq hinge"], t["SGD hinge"], 4.0, "SGD hinge"),
        at_least("VQ quasi 0-1, one pass", t["vq quasi 0-1"], t["SGD hinge"], 4.0, "SGD hinge"),
        at_least("VQ logistic, one pass", t["vq logistic"], t["SGD log loss"], 1.0, "SGD log loss"),
        *(at_most(f"GQ {n}, one pass", t[f"gq {n}"], t[f"vq {n}"], 1.3, f"VQ {n}") for n in every),
        at_most("LA logistic, one pass", t["la logistic"], t["qla logistic"], 20.0, "QLA logistic"),
    ]


def long_matrix(repeats: int, rows: int = 1_000_000) -> list[Row]:
    """QLA on a long dense matrix against one product with a vector: both are bound by memory."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 100)) / 10.0
    v = rng.standard_normal(100)
    y = np.where(X @ v + rng.logistic(size=rows) > 0.0, 1.0, -1.0)
    works = {"qla": one_pass(losses.Logistic(), X, y, "qla"), "product": lambda: X @ v}
    t = best_times(works, repeats)
    return [at_most(f"QLA logistic on {rows:,} x 100", t["qla"], t["product"], 1.0 / 0.75, "one product X @ v")]


def sparse_problem(rows: int, width: int, nonzeros: int = 50, seed: int = 0, uniform: bool = False) -> tuple[Any, Any]:
    """Rows of norm one, equal non-zeros at columns of a Zipf-like or a uniform law, labels of a logistic model."""
    rng = np.random.default_rng(seed)
    draws = rng.random((rows, nonzeros))
    ranks = draws * width if uniform else np.exp(draws * np.log(width)) - 1.0
    columns = np.minimum(ranks.astype(np.int32), width - 1)
    data = np.full(rows * nonzeros, 1.0 / np.sqrt(nonzeros))
    starts = np.arange(0, (rows + 1) * nonzeros, nonzeros, dtype=np.int32)
    X = sparse.csr_array((data, columns.ravel(), starts), shape=(rows, width))
    X.sum_duplicates()
    theta = 3.0 * rng.standard_normal(width)
    return X, np.where(X @ theta + rng.logistic(size=rows) > 0.0, 1.0, -1.0)


def sparse_pass(repeats: int, rows: int = 200_000, width: int = 100_000) -> list[Row]:
    """QLA and VQ hinge on a wide CSR matrix against SGD, and their cost as the width grows ten times.

    The cost of a non-zero is that of the second half of the rows: beginning and ending cost O(width), rows or not.
    """
    X, y = sparse_problem(rows, width)
    wide, y_wide = sparse_problem(rows, 10 * width)
    even, y_even = sparse_problem(rows, width, uniform=True)
    works = {
        "qla": one_pass(losses.Logistic(), X, y, "qla"),
        "vq": one_pass(losses.Hinge(), X, y, "vq"),
        "SGD log": sgd_epoch("log_loss", X, y),
        "SGD hinge": sgd_epoch("hinge", X, y),
        "even qla": one_pass(losses.Logistic(), even, y_even, "qla"),
        "even vq": one_pass(losses.Hinge(), even, y_even, "vq"),
        "even SGD log": sgd_epoch("log_loss", even, y_even),
        "even SGD hinge": sgd_epoch("hinge", even, y_even),
    }
    half = rows // 2
    for scheme, loss in (("qla", losses.Logistic()), ("vq", losses.Hinge())):
        works[f"{scheme} half"] = one_pass(loss, X[:half], y[:half], scheme)
        works[f"{scheme} wide"] = one_pass(loss, wide, y_wide, scheme)
        works[f"{scheme} wide half"] = one_pass(loss, wide[:half], y_wide[:half], scheme)
    t = best_times(works, repeats)
    narrow_entries, wide_entries = X.nnz - X[:half].nnz, wide.nnz - wide[:half].nnz
    shape = f"CSR {rows:,} x {width:,}"
    return [
        at_least(f"QLA logistic, {shape}", t["qla"], t["SGD log"], 1.0, "SGD log loss"),
        at_least(f"VQ hinge, {shape}", t["vq"], t["SGD hinge"], 1.0, "SGD hinge"),
        at_least(f"QLA logistic, {shape}, uniform", t["even qla"], t["even SGD log"], 1.0, "SGD log loss"),
        at_least(f"VQ hinge, {shape}, uniform", t["even vq"], t["even SGD hinge"], 1.0, "SGD hinge"),
        *(
            _cost_of_a_nonzero(
                s,
                (t[s] - t[f"{s} half"]) / narrow_entries,
                (t[f"{s} wide"] - t[f"{s} wide half"]) / wide_entries,
                (t[f"{s} wide"] / wide.nnz) / (t[s] / X.nnz),
            )
            for s in ("qla", "vq")
        ),
    ]


def _cost_of_a_nonzero(scheme: str, narrow: float, wide: float, whole: float) -> Row:
    """One width against ten times the width; whole fits beside it."""
    return Row(
        f"{scheme.upper()} cost per non-zero, width ten times",
        f"{1e9 * narrow:.2f} ns to {1e9 * wide:.2f} ns: {wide / narrow:.2f} x (whole fits {whole:.2f} x)",
        "constant (at most 1.25 x)",
        wide <= 1.25 * narrow,
    )


def growth(repeats: int) -> list[Row]:
    """Log-log slope of time against the width and against the number of rows."""
    rng = np.random.default_rng(0)
    rows = []
    logistic, hinge = losses.Logistic(), losses.Hinge()
    for scheme, loss in (("qla", logistic), ("qla", hinge), ("vq", hinge), ("gq", hinge)):
        for what, sizes in (("d", (30, 100, 300, 1000, 3000)), ("n", (10_000, 30_000, 100_000, 300_000))):
            times = []
            for size in sizes:
                n, d = (20_000, size) if what == "d" else (size, 100)
                X = rng.standard_normal((n, d)) / np.sqrt(d)
                y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
                times.append(best_times({"pass": one_pass(loss, X, y, scheme)}, repeats)["pass"])
            slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
            spans = f"{what} from {sizes[0]:,} to {sizes[-1]:,}"
            rows.append(
                Row(
                    f"{scheme.upper()} {type(loss).__name__.lower()} growth with {spans}",
                    f"slope {slope:.3f}",
                    "within 0.1 of 1",
                    abs(slope - 1.0) <= 0.1,
                )
            )
    return rows
