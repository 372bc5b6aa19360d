"""What users give as rows and targets: Dask arrays, Dask DataFrames, and lists of blocks, as blocks of the four."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection

from cavity._checks import shown

# A block: rows, targets, weights or None, offsets or None; each lazy or a value.
Parts = tuple[Any, Any, Any, Any]


def blocks_of(X: Any, y: Any, sample_weight: Any, offset: Any) -> list[Parts]:
    """Split into blocks of rows, before anything is computed."""
    others = {"y": y, "sample_weight": sample_weight, "offset": offset}
    if isinstance(X, list | tuple):
        return _of_lists(X, others)
    if isinstance(X, da.Array):
        rows, split = _of_array(X), _like_array
    elif is_dask_collection(X) and hasattr(X, "columns") and hasattr(X, "to_delayed"):
        rows, split = X.to_delayed(), _like_table
    else:
        raise ValueError(
            "X must be a Dask array, a Dask DataFrame or a list of blocks, got "
            f"{shown(X)}; rows in memory are fitted by the estimator itself"
        )
    if y is None:
        raise ValueError("y is missing: pass the targets of the rows")
    each = [[None] * len(rows) if part is None else split(name, part, X) for name, part in others.items()]
    return list(zip(rows, *each, strict=True))


def _of_lists(X: Sequence[Any], others: dict[str, Any]) -> list[Parts]:
    if not X:
        raise ValueError("X must hold at least one block, got an empty list")
    if others["y"] is None:
        if any(part is not None for part in others.values()):
            raise ValueError(
                "blocks without y must hold their weights and offsets themselves: (X, y, weights, offsets)"
            )
        if not all(isinstance(block, list | tuple) and 2 <= len(block) <= 4 for block in X):
            raise ValueError("without y, X must be a list of pairs: rows and targets of each block")
        return [tuple([*block, None, None][:4]) for block in X]
    for name, part in others.items():
        if part is not None and not (isinstance(part, list | tuple) and len(part) == len(X)):
            came = f"{len(part)} blocks" if isinstance(part, list | tuple) else shown(part)
            raise ValueError(f"{name} must be a list of {len(X)} blocks, as X, got {came}")
    each = [[None] * len(X) if part is None else part for part in others.values()]
    return list(zip(X, *each, strict=True))


def _of_array(X: da.Array) -> list[Any]:
    if X.ndim != 2:
        raise ValueError(f"X must have two dimensions, got {X.ndim}")
    if X.dtype == object:
        raise ValueError("X must hold numbers, got dtype object: convert it with X.astype(float), or pass a DataFrame")
    if X.numblocks[1] != 1:
        raise ValueError(f"X must be split by rows only, got {X.numblocks[1]} blocks of columns: X.rechunk({{1: -1}})")
    _check_known("X", X)
    return list(X.to_delayed().ravel())


def _like_array(name: str, part: Any, X: da.Array) -> list[Any]:
    """Blocks of a vector that has the chunks of X; a vector in memory is cut into them."""
    rows = X.shape[0]
    if not isinstance(part, da.Array):
        if is_dask_collection(part):
            raise ValueError(f"{name} must be a Dask array, as X: use {name}.to_dask_array(lengths=True)")
        values = np.asarray(part)
        if values.shape != (rows,):
            raise ValueError(f"{name} must hold one value for each of {rows} rows, got shape {values.shape}")
        return [values[end - size : end] for end, size in zip(np.cumsum(X.chunks[0]), X.chunks[0], strict=True)]
    if part.ndim == 2 and part.shape[1] == 1:
        part = part[:, 0]
    if part.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got {part.ndim}")
    _check_known(name, part)
    if part.chunks[0] != X.chunks[0]:
        raise ValueError(
            f"{name} must have the chunks of X, but theirs are {_shortened(part.chunks[0])} and "
            f"{_shortened(X.chunks[0])}: use {name}.rechunk((X.chunks[0],))"
        )
    return list(part.to_delayed().ravel())


def _like_table(name: str, part: Any, X: Any) -> list[Any]:
    """Partitions of a column that has those of X."""
    if not (is_dask_collection(part) and hasattr(part, "npartitions") and hasattr(part, "to_delayed")):
        raise ValueError(f"{name} must be a column with the partitions of X, such as X[{name!r}], got {shown(part)}")
    if part.npartitions != X.npartitions:
        raise ValueError(
            f"{name} must have the {X.npartitions} partitions of X, got {part.npartitions}: take it from the same "
            "table, or repartition both"
        )
    one, two = getattr(part, "divisions", None), X.divisions
    if one is not None and None not in one and None not in two and tuple(one) != tuple(two):
        raise ValueError(f"{name} must be divided as X, got divisions {_shortened(one)} and {_shortened(two)}")
    return list(np.ravel(part.to_delayed()))


def _check_known(name: str, array: da.Array) -> None:
    if np.isnan(sum(array.chunks[0])):
        raise ValueError(f"the chunks of {name} have unknown sizes: call {name}.compute_chunk_sizes() first")


def _shortened(sizes: Sequence[Any]) -> str:
    text = ", ".join(map(str, sizes[:4]))
    return f"({text}{', ...' if len(sizes) > 4 else ''})"
