"""Kernels without tricks give the same numbers."""

import os
import subprocess
import sys
import textwrap

PLAIN_KERNELS = textwrap.dedent(
    """
    import numpy as np
    from scipy import sparse
    import cavity
    from cavity.kernels import _tricks

    assert not _tricks.ARE_ON
    assert "_nrt" not in _tricks.OUTER and "_nrt" not in _tricks.INNER
    assert _tricks.with_quick_numpy(len) is len
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(23, 6)), np.where(rng.random(23) < 0.5, 1.0, -1.0)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(6), 1.0)
    # Of all compiled entries one that is compiled soon and has all tricks.
    factors = cavity.LinearFactor.batches(cavity.losses.Hinge(), sparse.csr_array(X), y, 7)
    fast, plain = (cavity.fit(factors, prior, "vq", sites="none", compiled=c) for c in (True, False))
    np.testing.assert_allclose(fast.mean, plain.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fast.variance, plain.variance, rtol=1e-10)
    print("the same")
    """
)


def test_kernels_without_tricks_give_the_same_numbers(tmp_path):
    environment = {**os.environ, "CAVITY_TRICKS": "off", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    done = subprocess.run([sys.executable, "-c", PLAIN_KERNELS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the same" in done.stdout
