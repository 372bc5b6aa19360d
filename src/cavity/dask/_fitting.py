"""What users call: a fit over partitions, and predictions of every partition."""

from __future__ import annotations

from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from distributed import Client
from sklearn.utils.validation import check_is_fitted

from cavity._checks import shown
from cavity.dask._collections import blocks_of
from cavity.dask._executors import executor_for
from cavity.dask._source import DaskSource
from cavity.estimators import EPClassifier, EPRegressor

Model = TypeVar("Model", EPClassifier, EPRegressor)


def fit(
    estimator: Model,
    X: Any,
    y: Any = None,
    *,
    client: Client | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    join: bool = True,
    checkpoint: Any = None,
    every: float = 60.0,
) -> Model:
    """Fit an estimator to rows in partitions, with the same posterior as for the same rows in memory.

    Parameters
    ----------
    estimator
        A `cavity.EPClassifier` or `cavity.EPRegressor`, which is fitted in place.
    X
        Rows, in one of three forms: a Dask array split by rows, with dense or CSR chunks; a Dask DataFrame, in which
        columns of strings or categories are random effects; or a list of blocks, lazy (`dask.delayed`, futures) or not.
        Without ``y``, blocks are pairs of rows and targets.
    y
        Labels or targets, with the same partitions as ``X``.
    client
        Client of the cluster. By default the current client, or if there is none, Dask's threads in this process.
    sample_weight, offset
        As in `fit` of the estimator, with the same partitions as ``X``.
    join
        Whether to join small neighbouring partitions, so that a task takes about 0.1 s or more.
    checkpoint
        File on the client's machine in which the state of the fit is saved, as in `fit` of the estimator. The fit can
        be continued with other partitions of the same rows.
    every
        Minimum number of seconds between two writes of the checkpoint.

    Returns
    -------
    Model
        The fitted estimator, which no longer needs Dask or the cluster. ``n_iter_`` counts rounds over all
        partitions.

    Raises
    ------
    ValueError
        If the rows are invalid. Messages count partitions from zero.
    RuntimeError
        If a partition fails three times, or the cluster is not available. If a single worker fails, its partitions are
        computed again elsewhere.

    Examples
    --------
    >>> import dask.array as da, numpy as np, cavity
    >>> X = da.from_array(np.random.default_rng(0).normal(size=(400, 3)), chunks=(100, 3))
    >>> model = fit(cavity.EPClassifier(), X, X[:, 0] > 0.0)
    >>> bool(model.coef_[0, 0] > 1.0)
    True
    """
    if not isinstance(estimator, EPClassifier | EPRegressor):
        raise ValueError(f"estimator must be an EPClassifier or an EPRegressor, got {shown(estimator)}")
    blocks = blocks_of(X, y, sample_weight, offset)
    executor = executor_for(client)
    try:
        estimator.fit(DaskSource(executor, blocks, join), checkpoint=checkpoint, every=every)
    finally:
        executor.close()
    return estimator


def predict(estimator: Any, X: Any) -> Any:
    """Predict labels or targets of rows in partitions, lazily.

    Parameters
    ----------
    estimator
        A fitted estimator.
    X
        Rows as in `fit`.

    Returns
    -------
    dask.array.Array, or list of delayed arrays
        The predictions, with the same partitions as ``X``; a list if ``X`` is a list of blocks.
    """
    check_is_fitted(estimator)
    like = estimator.classes_[:0] if hasattr(estimator, "classes_") else np.empty(0)
    return _per_partition(estimator, "predict", X, like)


def predict_proba(estimator: Any, X: Any) -> Any:
    """Predict probabilities of the classes of rows in partitions, lazily; arguments as in `predict`."""
    check_is_fitted(estimator)
    if not hasattr(estimator, "predict_proba"):
        raise ValueError(f"estimator must be a classifier, got {shown(estimator)}")
    return _per_partition(estimator, "predict_proba", X, np.empty((0, estimator.classes_.size)))


def _per_partition(estimator: Any, method: str, X: Any, like: Any) -> Any:
    model = dask.delayed(estimator, traverse=False)
    if isinstance(X, list | tuple):
        return [dask.delayed(_call)(model, method, block, like) for block in X]
    if isinstance(X, da.Array):
        if X.ndim != 2 or X.numblocks[1] != 1:
            raise ValueError("X must be a matrix that is split by rows only: X.rechunk({1: -1})")
        blocks, rows = X.to_delayed().ravel(), X.chunks[0]
    elif is_dask_collection(X) and hasattr(X, "columns"):
        blocks, rows = X.to_delayed(), [np.nan] * X.npartitions
    else:
        raise ValueError(f"X must be a Dask array, a Dask DataFrame or a list of blocks, got {shown(X)}")
    parts = [
        da.from_delayed(dask.delayed(_call)(model, method, block, like), (size, *like.shape[1:]), meta=like)
        for block, size in zip(blocks, rows, strict=True)
    ]
    return da.concatenate(parts)


def _call(model: Any, method: str, block: Any, like: Any) -> Any:
    """Predict rows of a partition, which may have none."""
    return getattr(model, method)(block) if block.shape[0] else like
