"""``cavity fit``: options, the choice between classifier and regressor, the fit, and what is said about it."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cavity.cli._models import status_of
from cavity.cli._options import ESTIMATORS, estimator_choices, parameters_for, plain_value, table_choices, table_values
from cavity.cli._terminal import TROUBLE, FitProgress, say, tell
from cavity.estimators import save
from cavity.tables import Table, Texts, open_reader
from cavity.tables.readers import listed

Files = Annotated[
    list[Path],
    typer.Argument(help="Files of one table: Parquet, CSV, NumPy.", metavar="FILE...", show_default=False),
]

# Different whole numbers up to which a target is taken for labels.
_MOST_LABELS = 10
CHOICES = [*table_choices(), *estimator_choices()]


def fit(
    files: Files,
    model: Annotated[Path, typer.Option(help="File to write the model to.")],
    target: Annotated[str | None, typer.Option(help="Column to be predicted.", metavar="COLUMN")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File that keeps the state of the fit; the same command continues from it."),
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="Least number of seconds between two writes of the checkpoint. (default 60)")
    ] = None,
    task: Annotated[str, typer.Option(help="classify, regress, or auto, which decides by the target.")] = "auto",
    **choices: Any,
) -> None:
    """Fit a model to files.

    The files may be larger than memory. Numbers may be in any units; a column of text is taken as categories.

    Options that take a list or a dict read JSON, such as --class-weight '{"yes": 2, "no": 1}'.

    Exit codes: 0 if all is well; 1 if the fit had numerical trouble, and the model was written anyway; 2 if the input
    is bad, and nothing was written; 130 after Ctrl-C.
    """
    check_places({"--model": model, "--checkpoint": checkpoint}, files)
    if every is not None and checkpoint is None:
        raise ValueError("--every has no effect here, it needs --checkpoint; leave it out")
    if checkpoint is not None and choices.get("covariance") == "diagonal":
        raise ValueError("--checkpoint has no effect here, it needs a --covariance other than diagonal; leave it out")
    names = [choice.name for choice in table_choices()]
    given = {name: value for name, value in choices.items() if value is not None and value != []}
    if target is None:
        columns = listed(open_reader(files[0]).kinds)
        raise ValueError(f"--target is needed, the column to be predicted: {files[0]} has {columns}")
    table = Table(files, target=target, **table_values({name: given.pop(name) for name in names if name in given}))
    kind = _task(task, table, files, given)
    visible, seed = given.pop("verbose", True), given.get("random_state")
    with FitProgress(visible, checkpoint) as progress:
        estimator = ESTIMATORS[kind](**parameters_for(kind, given), verbose=progress)
        try:
            estimator.fit(table, checkpoint=checkpoint, every=60.0 if every is None else every)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_interrupted(checkpoint)) from error
    estimator.set_params(verbose=None)
    save(estimator, model)
    if estimator.plan_.covariance != "diagonal":
        _remove(checkpoint)
        if seed is not None:
            say("warning: --random-state had no effect: only a diagonal covariance depends on the order of the rows")
    elif checkpoint is not None:
        say("warning: --checkpoint had no effect: a fit with a diagonal covariance keeps none")
    _tell(estimator, model, target)
    if not estimator.status_.is_success:
        raise typer.Exit(TROUBLE)


def check_places(outputs: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """Refuse files that could not be written, or that would replace an input or each other, before any work is done."""
    taken = dict.fromkeys(inputs, "an input")
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
        for other, role in taken.items():
            if _is_same(path, other):
                raise ValueError(f"{option} {path} would overwrite {other}, which is {role}; name another file")
        taken[path] = f"the file of {option}"


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, through symbolic and hard links too, or will when it is written."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _task(task: str, table: Table, files: list[Path], given: dict[str, Any]) -> str:
    if task in ESTIMATORS:
        return task
    if task != "auto":
        raise ValueError(f"--task must be auto, {' or '.join(ESTIMATORS)}, got {task!r}")
    loss = plain_value(given["loss"]) if "loss" in given else None
    found, reason = task_of(files, str(table.target), table.categories, loss)
    if given.get("verbose", True):
        say(f"fitting an {ESTIMATORS[found].__name__}: {reason}")
    return found


def _interrupted(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "interrupted; nothing was written (with --checkpoint the next run would continue)"
    if not checkpoint.exists():
        return "interrupted before the first checkpoint; nothing was written"
    return f"interrupted; run the same command again to continue from {checkpoint}"


def _remove(checkpoint: Path | None) -> None:
    """Remove a checkpoint that is not needed any more, and what a run that was killed may have left of one."""
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
        for left in checkpoint.parent.glob(f".{glob.escape(checkpoint.name)}.{'[0-9a-f]' * 16}"):
            left.unlink(missing_ok=True)


def _tell(estimator: Any, model: Path, target: str) -> None:
    """Say what was fitted, and how it ended."""
    rows, features = estimator._totals.rows, estimator.n_features_in_
    tell(f"{type(estimator).__name__} of {target!r} by {features} columns, {rows:,.10g} rows")
    tell(f"posterior  {estimator.plan_}")
    tell(f"status     {status_of(estimator)}")
    tell(f"model      {model}")


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
