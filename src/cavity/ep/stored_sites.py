"""The sites of a compiled run, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.kernels._store import TIED, Store
from cavity.mode import BatchSites


class StoredSites(Sequence[FactorialGaussian]):
    """The sites of a compiled run in their factors' own coordinates, each made when asked for."""

    def __init__(self, factors: LinearBatches, store: Store) -> None:
        self._factors, self._store = factors, store

    def __len__(self) -> int:
        return len(self._factors)

    def fits(self, store: Store) -> bool:
        """Whether the sites lie as those of another store do."""
        own = self._store
        return np.array_equal(own.starts, store.starts) and np.array_equal(own.support, store.support)

    def copy_to(self, store: Store) -> None:
        """Write the sites into another store of the same layout."""
        own = self._store
        store.shifts[:], store.precisions[:], store.scales[:] = own.shifts, own.precisions, own.scales

    @overload
    def __getitem__(self, index: int) -> FactorialGaussian: ...
    @overload
    def __getitem__(self, index: slice) -> list[FactorialGaussian]: ...
    def __getitem__(self, index: int | slice) -> FactorialGaussian | list[FactorialGaussian]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        s, own = self._store, self._factors[k].coordinates
        span = slice(s.starts[k], s.starts[k + 1])
        site = FactorialGaussian(s.scales[k], s.shifts[span], s.precisions[span])
        if s.support.size:
            return site.take(np.argsort(s.support[span]))
        return site if own is None else site.take(own)


def fill_store(store: Store, sites: BatchSites) -> None:
    """Write sites of all batches into a store of own sites."""
    order: Any = slice(None)
    if store.support.size:  # a store has columns as they first appear, the sites have them in ascending order
        batch = np.repeat(np.arange(store.starts.size - 1), np.diff(store.starts))
        order = np.lexsort((store.support, batch))
    store.shifts[order], store.precisions[order] = sites.shifts, sites.precisions
    store.scales[:] = sites.log_scales


def product(store: Store, prior: FactorialGaussian) -> FactorialGaussian:
    """Give prior times all sites."""
    s, d = store, prior.dim
    if s.mode == TIED:
        count = s.starts.size - 1
        return prior * FactorialGaussian(count * s.scales[0], s.touches * s.shifts, s.touches * s.precisions)
    if s.support.size:
        shift = np.bincount(s.support, weights=s.shifts, minlength=d).astype(np.float64)
        precision = np.bincount(s.support, weights=s.precisions, minlength=d).astype(np.float64)
    else:
        shift, precision = s.shifts.reshape(-1, d).sum(axis=0), s.precisions.reshape(-1, d).sum(axis=0)
    return prior * FactorialGaussian(float(np.sum(s.scales)), shift, precision)


def sites_of(factors: LinearBatches, store: Store) -> Sequence[FactorialGaussian]:
    """Give the stored sites as values: one per factor, or one for all."""
    if store.mode == TIED:
        return (FactorialGaussian(store.scales[0], store.shifts, store.precisions),)
    return StoredSites(factors, store)
