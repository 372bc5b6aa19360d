"""Rows as users give them: arrays, sparse matrices, tables with columns of categories; and blocks of rows in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, check_is_fitted, validate_data

from cavity.estimators._categories import encode, levels_of, naming_columns
from cavity.estimators._parameters import LARGEST_NUMBER
from cavity.estimators._preprocessing import EncodedRows, Preprocessing
from cavity.estimators._reports import Reports
from cavity.estimators._sources import is_source
from cavity.factors import canonical

# Types of the entries of X that are kept as they are.
_KINDS = (np.float64, np.float32)


class ReadsRows(Reports):
    """Checks rows once, before anything is computed from them."""

    # What a table's columns went through, in plain form; models fitted to arrays have none.
    preprocessing_: Any

    def _check_X(self, X: Any, **options: Any) -> Any:  # noqa: N802
        if isinstance(X, EncodedRows):
            y = options.get("y")
            if y is None:
                return X.matrix
            return X.matrix, _check_y(y, y_numeric=options.get("y_numeric", False), estimator=self)
        if "preprocessing_" in self.__dict__ and not options.get("reset", True):
            done = Preprocessing.of(self.preprocessing_)
            X = done.frame(X, list(self.__dict__.get("categories_", {})))
        if options.get("reset", True):
            levels = levels_of(X)
            self.__dict__.pop("categories_", None)
            self.__dict__.update({"categories_": levels} if levels else {})
        checked = (self._encoded if "categories_" in self.__dict__ else self._validated)(X, **options)
        rows, *y = checked if isinstance(checked, tuple) else (checked,)
        entries = rows.data if sparse.issparse(rows) else rows
        if entries.size and max(float(np.max(entries)), -float(np.min(entries))) > LARGEST_NUMBER:
            raise ValueError(f"X must hold numbers of at most {LARGEST_NUMBER:g} in size; scale its columns")
        rows = canonical(rows) if sparse.issparse(rows) else rows
        return (rows, *y) if y else rows

    def _validated(self, X: Any, **options: Any) -> Any:
        """Check an array, a sparse matrix or a table of numbers."""
        if sparse.issparse(X) and X.format == "csr":
            X = canonical(X)  # before anything in compiled code walks along its indices
        try:
            with naming_columns(X):
                return validate_data(self, X, accept_sparse="csr", dtype=_KINDS, order="C", **options)
        except ValueError as error:
            if "could not convert string to float" not in str(error):
                raise
            raise ValueError(
                f"X holds strings ({error}): pass a DataFrame of pandas or polars, whose columns of strings are "
                "categories, or encode them"
            ) from error

    def _encoded(self, X: Any, y: Any = None, y_numeric: bool = False, reset: bool = True) -> Any:
        """Check a table with columns of categories, and give a matrix with one column per level."""
        if not hasattr(X, "columns"):
            names = list(vars(self).get("feature_names_in_", range(self.n_features_in_)))
            raise ValueError(f"X must be a DataFrame with the columns {names}, as it was in fit")
        validate_data(self, X, reset=reset, skip_check_array=True)
        rows = encode(X, self.categories_, unseen=y is None)
        if y is None:
            return rows
        y = _check_y(y, multi_output=False, y_numeric=y_numeric, estimator=self)
        check_consistent_length(rows, y)
        return rows, y

    def _checked_for_prediction(self, X: Any) -> Any:
        check_is_fitted(self)
        return X if self._is_plain(X) else self._check_X(X, reset=False)

    def _is_plain(self, X: Any) -> bool:
        """Whether rows need no further look: finite, of the right kind, order and width, and without names."""
        return (
            type(X) is np.ndarray
            and X.ndim == 2
            and X.dtype in _KINDS
            and X.flags.c_contiguous
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in self.__dict__
            and "categories_" not in self.__dict__
            and float(np.max(np.abs(X))) <= LARGEST_NUMBER
        )


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
    levels = vars(model).get("categories_", {})
    if "preprocessing_" in vars(model):
        done = Preprocessing.of(model.preprocessing_)
    elif "feature_names_in_" in vars(model):  # fitted to a DataFrame, which has the same columns
        numbers = tuple(name for name in model.feature_names_in_ if name not in levels)
        done = Preprocessing(numbers, np.zeros(len(numbers)))
    else:
        raise ValueError(
            "this model was fitted to arrays without names of columns: pass arrays to it, or fit a model to a table"
        )
    blocks: Iterator[Any] = table.cavity_blocks(done, levels, is_classifier(model))
    return blocks


def predicted_targets(model: Any, table: Any) -> tuple[Any, Any, Any]:
    """Targets, predictions and weights of all rows of a table; weights are None where it has none."""
    targets, predictions, weights = [], [], []
    for block in blocks_of(model, table):
        if block.target is None:
            raise ValueError("a table needs a target to be scored: Table(..., target=...)")
        targets.append(block.target)
        predictions.append(model.predict(block.rows, offset=block.offset))
        weights.append(block.weight)
    joined = np.concatenate(targets), np.concatenate(predictions)
    return *joined, None if weights[0] is None else np.concatenate(weights)
