"""What a new process pays: import, the first fit with a cold cache, and with a warm one; memory of a single pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tracemalloc

import numpy as np

import cavity
from benchmarks.bars import Row
from cavity import losses
from cavity.schemes import NAMES

_IMPORT = """
import time, numpy, scipy.sparse, scipy.linalg
t = time.perf_counter()
import cavity
print(time.perf_counter() - t)
"""
_ESTIMATORS = """
import time
t = time.perf_counter()
import cavity
cavity.EPClassifier
print(time.perf_counter() - t)
"""
_SCIKIT_LEARN = """
import time
t = time.perf_counter()
import sklearn.base
print(time.perf_counter() - t)
"""
_FIT = """
import time, numpy as np, cavity, sklearn.exceptions
from scipy.sparse import csr_array
X = np.random.default_rng(0).standard_normal((1000, 20)); y = np.where(X[:, 0] > 0, 1.0, -1.0)
prior = cavity.FactorialGaussian.from_moments(np.zeros(20), 25.0)
t = time.perf_counter()
factors = cavity.LinearFactor.batches(cavity.losses.{loss}(), {rows}(X), y, 100)
cavity.fit(factors, prior, "{scheme}", sites="{sites}", max_iter={loops})  # warns by a class of scikit-learn
print(time.perf_counter() - t)
"""


def _run(code: str, cache: str) -> float:
    """Seconds that a new process says it took, which finds the bytecode that earlier ones wrote."""
    folders = {"NUMBA_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": f"{cache}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
    environment = {**os.environ, **folders}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def first_use() -> list[Row]:
    """Seconds of a new process."""
    with tempfile.TemporaryDirectory() as cache:
        imports = min(_run(_IMPORT, cache) for _ in range(5))
        rows = [Row("import cavity, beyond numpy and scipy", f"{imports:.3f} s", "under 0.5 s", imports < 0.5)]
        whole, sklearn = (min(_run(code, cache) for _ in range(5)) for code in (_ESTIMATORS, _SCIKIT_LEARN))
        of = f"{whole:.3f} s, of which sklearn.base {sklearn:.3f} s"
        rows.append(Row("import cavity with the estimators, all of it", of, "under 0.5 s", whole < 0.5))
        dense = {"rows": "np.asarray", "sites": "own", "loops": 2}
        single = {"rows": "csr_array", "sites": "none", "loops": 1}
        _run(_FIT.format(scheme="qla", loss="Squared", **dense), cache)  # writes bytecode
        fits = [(scheme, dense, "") for scheme in NAMES]
        for scheme, rows_of, words in [*fits, *((s, single, ", one pass over sparse rows") for s in ("qla", "vq"))]:
            code = _FIT.format(scheme=scheme, loss="Logistic", **rows_of)
            cold, warm = _run(code, cache), min(_run(code, cache) for _ in range(3))
            name = f"first fit, {scheme.upper()} logistic{words}"
            rows.append(Row(f"{name}, cold cache", f"{cold:.2f} s", "under 6 s", cold < 6.0))
            rows.append(Row(f"{name}, warm cache", f"{warm:.2f} s", "under 0.5 s", warm < 0.5))
    return rows


def memory() -> list[Row]:
    """Peak memory of a single pass beside the data."""
    rng = np.random.default_rng(0)
    rows = []
    for n in (50_000, 200_000):
        X = rng.standard_normal((n, 50))
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        prior = cavity.FactorialGaussian.from_moments(np.zeros(50), 25.0)
        factors = cavity.LinearFactor.batches(losses.Hinge(), X, y, 100)
        cavity.fit(factors, prior, "vq", sites="none")
        tracemalloc.start()
        cavity.fit(factors, prior, "vq", sites="none")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        share = peak / X.nbytes
        rows.append(
            Row(
                f"memory of a single pass, {n:,} x 50",
                f"{peak / 1e3:.0f} kB, {100 * share:.2f} % of X",
                "no copy of X",
                share < 0.02,
            )
        )
    return rows
