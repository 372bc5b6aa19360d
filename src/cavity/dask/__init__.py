"""Fit estimators with Dask, to rows on the workers of a cluster or in chunks on one machine.

Every partition processes its own rows, and sends one matrix of columns × columns per round. If a worker fails, its rows
are computed again from their source.
"""

from __future__ import annotations

try:
    from cavity.dask._fitting import fit, predict, predict_proba
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] not in ("dask", "distributed"):
        raise
    raise ImportError("cavity.dask needs dask and distributed: pip install 'dask[array]' distributed") from error

__all__ = ["fit", "predict", "predict_proba"]
