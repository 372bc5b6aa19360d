"""The estimators on Dask: the same fit where rows are on the workers of a cluster, or in chunks on a laptop.

Every partition sweeps its own rows; what travels per round is one matrix of columns × columns per partition. Where a
worker is lost, its rows are computed again from their source, and what they said is derived from the posterior.
"""

from __future__ import annotations

try:
    from cavity.dask._fitting import fit, predict, predict_proba
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] not in ("dask", "distributed"):
        raise
    raise ImportError("cavity.dask needs dask and distributed: pip install 'cavity[dask]'") from error

__all__ = ["fit", "predict", "predict_proba"]
