"""Predictions and scores for tables, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from cavity.estimators._preprocessing import Preprocessing
from cavity.estimators._sources import is_source


def over_blocks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that takes rows also take a table: it then gives an iterator over the table's blocks, in order."""

    @wraps(method)
    def predict(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not is_source(X):
            return method(self, X, *args, **options)
        if options.get("offset") is not None:
            raise ValueError("a table names its offsets itself: pass the table alone")
        blocks = blocks_of(self, X)
        return (method(self, block.rows, *args, **{**options, "offset": block.offset}) for block in blocks)

    return predict


def blocks_of(model: Any, table: Any) -> Iterator[Any]:
    """Blocks of a table, encoded for a model."""
    check_is_fitted(model)
    if "preprocessing_" not in vars(model):
        raise ValueError("this model was fitted to arrays: it predicts from arrays, or fit it to a table")
    levels = vars(model).get("categories_", {})
    blocks: Iterator[Any] = table.cavity_blocks(Preprocessing.of(model.preprocessing_), levels)
    return blocks


def predicted_targets(model: Any, table: Any) -> tuple[Any, Any, Any]:
    """Targets, predictions and weights of all rows of a table; weights are None where it has none."""
    targets, predictions, weights = [], [], []
    for block in blocks_of(model, table):
        if block.target is None:
            raise ValueError("a table needs target= to be scored")
        targets.append(block.target)
        predictions.append(model.predict(block.rows, offset=block.offset))
        weights.append(block.weight)
    joined = np.concatenate(targets), np.concatenate(predictions)
    return *joined, None if weights[0] is None else np.concatenate(weights)


__all__ = ["blocks_of", "over_blocks", "predicted_targets"]
