"""Kernels stay within their arrays.

Numba does not cache what checks bounds, so that the processes here compile for themselves. They are few, because what a
process has compiled for one kernel serves the next: each takes more than ten seconds, one process for each kernel
would take twice as long in all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

BOUNDS_CHECKED = textwrap.dedent(
    """
    import itertools
    import sys
    import numpy as np
    from scipy import sparse
    import cavity
    from numba import config
    assert config.BOUNDSCHECK == 1
    rng = np.random.default_rng(0)
    X = rng.normal(size=(23, 6)) * (rng.random((23, 6)) < 0.5)
    y = np.where(rng.random(23) < 0.5, 1.0, -1.0)
    w = rng.integers(0, 2, 23).astype(float)
    rows = X if sys.argv[1] == "dense" else sparse.csr_array(X)
    for steps in sys.argv[2:]:
        name, *schemes = steps.split()
        loss = getattr(cavity.losses, name)()
        for scheme, variance in itertools.product(schemes, (1.0, 1e6)):
            prior = cavity.FactorialGaussian.from_moments(np.zeros(6), variance)
            for sites, loops in (("own", 2), ("tied", 2), ("none", 1)):
                for batch, weights in ((7, w), (7, None), (1, None), (100, w)):
                    factors = cavity.LinearFactor.batches(loss, rows, y, batch, weights)
                    cavity.fit(factors, prior, scheme, sites=sites, max_iter=loops, compiled=True)
    """
)
# A factor all of whose weights are zero, first and last: a batch without rows. Only dense rows are marked by columns.
WITHOUT_ROWS = textwrap.dedent(
    """
    for none, scheme in itertools.product((0, 1), ("qla", "vq")):
        weights = [np.zeros(23) if k == none else np.ones(23) for k in (0, 1)]
        factors = [cavity.LinearFactor(cavity.losses.Logistic(), rows, y, weight) for weight in weights]
        prior = cavity.FactorialGaussian.from_moments(np.zeros(6), 1.0)
        plain, fast = (cavity.fit(factors, prior, scheme, max_iter=2, compiled=c) for c in (False, True))
        assert np.allclose(plain.mean, fast.mean, atol=1e-12)
    """
)
# The steps through rows, of which there are a few: of the logistic loss, of any loss, expansions, stars, exact
# projection by probits and by pieces. Each of them once; the rest of
# a kernel is the same for all.
DENSE = ("dense", "Logistic qla vq exact", "Hinge la rvq")
CSR = ("csr", "Hinge qla vq gq", "QuasiZeroOne exact")


@pytest.mark.parametrize(("steps", "more"), [(DENSE, WITHOUT_ROWS), (CSR, "")], ids=["dense", "csr"])
def test_kernels_stay_within_their_arrays(steps: tuple[str, ...], more: str, tmp_path: Any) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    code = BOUNDS_CHECKED + more + "print('within bounds')"
    done = subprocess.run([sys.executable, "-c", code, *steps], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "within bounds" in done.stdout
