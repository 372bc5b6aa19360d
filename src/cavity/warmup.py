"""Compile ahead of time what is common: ``python -m cavity.warmup``.

The estimators need none of it, unless their posterior is a product of Gaussians. `cavity.fit` on linear factors
compiles once for every pair of scheme and loss, for dense and for sparse rows; later processes find the result in
Numba's cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy import sparse

from cavity import losses
from cavity.ep.fit import fit
from cavity.factors import LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes import NAMES

# What `cavity.fit` takes by default, what the estimators take for products of Gaussians, and the paper's fastest.
COMMON_SCHEMES, COMMON_LOSSES = ("exact", "qla", "vq"), ("Logistic", "Hinge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, and say what and how long it took."""
    names = losses.__all__
    description = "Compile the loops of cavity.fit for linear factors ahead of their use, into the cache of Numba."
    parser = argparse.ArgumentParser(prog="python -m cavity.warmup", description=description)
    parser.add_argument(
        "--schemes",
        nargs="+",
        choices=sorted(NAMES),
        default=COMMON_SCHEMES,
        metavar="SCHEME",
        help=f"some of {', '.join(sorted(NAMES))}; by default {', '.join(COMMON_SCHEMES)}",
    )
    parser.add_argument(
        "--losses",
        nargs="+",
        choices=names,
        default=COMMON_LOSSES,
        metavar="LOSS",
        help=f"some of {', '.join(names)}; by default {', '.join(COMMON_LOSSES)}",
    )
    chosen = parser.parse_args(arguments)
    os.environ["CAVITY_NOTICES"] = "off"
    pairs = list(product(chosen.schemes, chosen.losses, ("dense", "sparse")))
    print(f"compiling {len(pairs)} forms of loops; those that are in Numba's cache already take no time", flush=True)
    begin = time.perf_counter()
    for scheme, loss, rows in pairs:
        print(f"  {scheme:<6} {loss:<12} {rows:<7}", end="", flush=True)
        start = time.perf_counter()
        compile_for(scheme, loss, rows)
        print(f"{time.perf_counter() - start:6.1f} s", flush=True)
    print(f"done in {time.perf_counter() - begin:.0f} s")
    return 0


def compile_for(scheme: str, loss: str, rows: str) -> None:
    """Fit a small problem, by loops and in a single pass: sparse rows have another form for each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    y = np.where(rng.random(20) < 0.5, -1.0, 1.0)
    one: losses.Loss = getattr(losses, loss)()
    targets = y if one.targets == "signs" else np.abs(y)
    factors = LinearFactor.batches(one, sparse.csr_array(X) if rows == "sparse" else X, targets, batch_size=10)
    prior = FactorialGaussian.from_moments(np.zeros(3), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two loops need not converge
        fit(factors, prior, scheme, max_iter=2)
        fit(factors, prior, scheme, sites="none")


if __name__ == "__main__":
    sys.exit(main())
