r"""How far the sites of a scheme lie from those of exact projection, at the cavities of its fixed point.

A site is compared by its slope at the cavity mean, :math:`g = r - p\mu`, and by its precision p, in units of the
cavity: :math:`g\sigma` and :math:`p\sigma^2`. Both are free of the origin and of the scale of the columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import cavity
from cavity import schemes
from cavity.experiments.experiment import Json
from cavity.experiments.posterior_fits import Case
from cavity.factors import Factor
from cavity.gaussian import FactorialGaussian
from cavity.schemes._protocol import Scheme

FloatArray = NDArray[np.float64]

# Most mini-batches compared, spread evenly.
_MOST = 50


def site_distances(case: Case, names: Iterable[str]) -> dict[str, Json]:
    """Compare the sites of schemes with exact projection's, on mini-batches of a case in its own columns.

    Returns
    -------
    dict
        For every scheme ``slope`` and ``precision``, root mean square distances as shares of the root mean square of
        exact projection's, over all sites that are finite; and ``missing``, the share that is not.
    """
    batches, prior = case.batches(), case.prior()
    with warnings.catch_warnings():  # sites are compared wherever the run ended
        warnings.simplefilter("ignore", ConvergenceWarning)
        fixed = cavity.fit(
            batches, prior, "exact", loops=case.loops, start="mode", safeguards=True, order="shuffled", tol=1e-3
        )
    exact = schemes.resolve("exact")
    found: dict[str, list[FloatArray]] = {name: [] for name in names}
    wanted = []
    for k in np.unique(np.linspace(0, len(batches) - 1, _MOST).astype(int)):
        factor, site = batches[int(k)], fixed.sites[int(k)]
        own = slice(None) if factor.coordinates is None else factor.coordinates
        posterior = FactorialGaussian(0.0, fixed.posterior.shift[own], fixed.posterior.precision[own])
        around = posterior / site
        if not around.is_proper:
            continue
        wanted.append(in_units_of(around, _site(exact, factor, around)))
        for name, sites in found.items():
            sites.append(in_units_of(around, _site(schemes.resolve(name), factor, around)))
    return {name: _apart(sites, wanted) for name, sites in found.items()}


def in_units_of(around: FactorialGaussian, site: FactorialGaussian) -> FloatArray:
    """Slope of a site at the cavity mean and its precision, in units of the cavity; a row each."""
    slope = (site.shift - site.precision * around.mean) * around.std
    return np.array([slope, site.precision * around.variance])


def _site(scheme: Scheme, factor: Factor, around: FactorialGaussian) -> FactorialGaussian:
    with np.errstate(all="ignore"):
        return scheme.approximate(factor, around, 1.0)


def _apart(sites: list[FloatArray], wanted: list[FloatArray]) -> Json:
    is_there = [bool(np.all(np.isfinite(site))) for site in sites]
    pairs = [(site, exact) for site, exact, there in zip(sites, wanted, is_there, strict=True) if there]
    answer: Json = {"missing": 1.0 - float(np.mean(is_there)), "slope": None, "precision": None}
    if pairs:
        ours, exact = (np.concatenate(part, axis=1) for part in zip(*pairs, strict=True))
        shares = np.sqrt(np.mean((ours - exact) ** 2, axis=1) / np.mean(exact**2, axis=1))
        answer |= {"slope": float(shares[0]), "precision": float(shares[1])}
    return answer
