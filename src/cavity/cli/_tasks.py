"""Whether a target asks for a classifier or for a regressor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cavity.cli._options import ESTIMATORS
from cavity.tables import Texts, open_reader

# Different whole numbers up to which a target is taken for labels.
_MOST_LABELS = 10


def task_of(files: Sequence[Path], target: str, text: Collection[str], loss: Any) -> tuple[str, str]:
    """Decide by the loss if only one estimator has it, else by the first rows of the target; say why, too."""
    by_loss = [task for task in ESTIMATORS if _has_loss(task, loss)] if loss is not None else []
    if len(by_loss) == 1:
        return by_loss[0], f"it has the loss {loss!r}"
    values: set[float] = set()
    for path in files:
        for batch in open_reader(path, text=text).batches([target]):
            column = batch.columns[target]
            if isinstance(column, Texts):
                return "classify", f"{target!r} is text"
            values |= set(np.unique(np.asarray(column)[~np.isnan(column)]).tolist())
            if len(values) > 1:  # else the file may be sorted by it
                return _by_values(target, values)
    return _by_values(target, values)


def _by_values(target: str, values: set[float]) -> tuple[str, str]:
    whole = all(float(value).is_integer() for value in values)
    if whole and len(values) <= _MOST_LABELS:
        return "classify", f"{target!r} has {len(values)} different whole numbers; --task regress takes numbers"
    return "regress", f"{target!r} is a number"


def _has_loss(task: str, loss: Any) -> bool:
    try:
        ESTIMATORS[task](loss=loss)._make_loss()
    except ValueError:
        return False
    return True


__all__ = ["task_of"]
