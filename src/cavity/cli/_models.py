"""Models from files, tables for them, and labels and targets of a table's blocks as a model knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._checks import shown
from cavity.cli._options import ESTIMATORS
from cavity.estimators import load
from cavity.estimators._categories import level_text
from cavity.estimators._preprocessing import Preprocessing
from cavity.tables import Block, Table, Texts, open_reader
from cavity.tables.first_pass import MISSING
from cavity.tables.readers import where
from cavity.tables.schema import not_numbers


def load_model(path: Path) -> Any:
    """Read a model that was fitted to a table."""
    model = load(path)
    needed = "the command needs one that was fitted to a table, such as by `cavity fit`"
    if not isinstance(model, tuple(ESTIMATORS.values())):
        raise ValueError(f"{path} holds a {type(model).__name__}; {needed}")
    if "preprocessing_" not in vars(model):
        raise ValueError(f"{path} holds a model of arrays; {needed}")
    return model


def status_of(model: Any) -> str:
    """Say how the fit of a model ended."""
    return f"{model.status_.value.partition(':')[0]}, {model.n_iter_} {'loop' if model.n_iter_ == 1 else 'loops'}"


def is_classifier(model: Any) -> bool:
    """Whether a model predicts labels."""
    return isinstance(model, ESTIMATORS["classify"])


def table_for(model: Any, files: Sequence[Path], given: Mapping[str, str | None], target: bool) -> Table:
    """Make a table of files whose columns have the roles they had when the model was fitted, unless given."""
    known = Preprocessing.of(model.preprocessing_)
    roles: dict[str, Any] = {name: given.get(name) or getattr(known, name) for name in ("target", "weight", "offset")}
    if not target:
        roles["target"] = roles["weight"] = None
    elif roles["target"] is None:
        raise ValueError("the model does not know the name of its target: give it by --target")
    labels = is_classifier(model) and model.classes_.dtype.kind in "UO" and roles["target"] is not None
    return Table(files, **roles, categories=[roles["target"]] if labels else [])


def codes_of(model: Any, table: Table, block: Block) -> NDArray[np.intp]:
    """Places among the classes of a block's labels."""
    classes = {label: code for code, label in enumerate(model.classes_.tolist())}
    labels, places = np.unique(np.asarray(block.target), return_inverse=True)
    codes = np.array([classes.get(label, -1) for label in labels.tolist()], dtype=np.intp)[places]
    if np.any(codes < 0):
        row = int(np.argmin(codes))
        raise ValueError(
            f"{where(block.batch, row, table.target)}: the label {shown(block.target[row])} is none of the model's "
            f"classes {', '.join(map(shown, list(classes)[:10]))}"
        )
    return codes


def targets_of(table: Table, block: Block) -> NDArray[np.float64]:
    """Numbers of a block's target column."""
    if isinstance(block.batch.columns[str(table.target)], Texts):
        remedy = "correct it, or name another column by --target"
        raise not_numbers(open_reader(block.batch.path), str(table.target), "targets must be numbers", remedy)
    values: NDArray[Any] = np.asarray(block.target)
    if np.any(np.isnan(values)):
        row = int(np.argmax(np.isnan(values)))
        raise ValueError(f"{where(block.batch, row, table.target)}: the number is missing; fill it, or leave it out")
    return values


def weights_of(table: Table, block: Block) -> NDArray[np.float64]:
    """Weights of a block's rows, one where the table has none."""
    if block.weight is None:
        return np.ones(block.batch.n_rows)
    weights: NDArray[Any] = np.asarray(block.weight)
    bad = ~((weights >= 0.0) & (weights < np.inf))
    if np.any(bad):
        row = int(np.argmax(bad))
        raise ValueError(
            f"{where(block.batch, row, table.weight)}: a weight must be a number of zero or more, got "
            f"{shown(weights[row])}"
        )
    return weights


def check_levels(model: Any, block: Block) -> None:
    """Refuse levels of categories that the model does not know, and so cannot learn from."""
    for name, known in vars(model).get("categories_", {}).items():
        column: Any = block.batch.columns[name]
        levels = set(map(level_text, known))
        strange = np.array([level_text(one) not in levels for one in column.levels] + [MISSING not in levels])
        rows = np.flatnonzero(strange[column.codes])  # the code -1, of missing ones, takes the last
        if rows.size:
            code = column.codes[rows[0]]
            what = f"the level {shown(column.levels[code])}" if code >= 0 else "a missing level"
            raise ValueError(
                f"{where(block.batch, int(rows[0]), name)}: {what} was not in the rows of the fit, and an update "
                "cannot add one; fit again with all rows"
            )
