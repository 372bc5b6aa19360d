"""The command ``cavity``: fit, predict, score, inspect and update.

Results go to standard output; progress, warnings and errors to standard error. An error that users can do something
about is one line and an exit code.
"""

from __future__ import annotations

import functools
import glob
import json
import math
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, Self

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from cavity import datasets
from cavity._checks import shown
from cavity._version import __version__
from cavity.cli.page import course_part, intervals_part, page
from cavity.estimators import EPClassifier, EPRegressor, Progress, load, save
from cavity.estimators.columns import Preprocessing, level_text
from cavity.estimators.regressor import score_of
from cavity.losses import Quantile
from cavity.tables import Block, Table, Texts, open_reader, open_writer
from cavity.tables.first_pass import MISSING
from cavity.tables.readers import listed, where
from cavity.tables.schema import not_numbers
from cavity.terms import Formula

ESTIMATORS: dict[str, Any] = {"classify": EPClassifier, "regress": EPRegressor}
TROUBLE, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes; the last is that of programs ended by Ctrl-C

app = typer.Typer(
    name="cavity", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cavity {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Example:\n\ncavity example\n\ncavity fit train.csv --target deposit --model bank.cavity\n\n"
    "cavity score bank.cavity test.csv"
)
def cavity(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian linear models with error bars, fitted to files that may be larger than memory."""


# What is written to the terminal.


def visible(text: str) -> str:
    """Write control characters, which a terminal would obey, as escapes: files may have them in names and labels."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def warn(text: str) -> None:
    """Write one line to standard error."""
    typer.echo(f"cavity: {visible(' '.join(text.split()))}", err=True)


def results() -> Console:
    """Give the console of results, made when asked for: standard output may have been replaced."""
    return Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def show(text: str) -> None:
    """Write one line to standard output."""
    results().print(visible(text), markup=False)


def show_facts(facts: Mapping[str, str]) -> None:
    """Write one line per fact, values below each other."""
    room = max(map(len, facts))
    for name, value in facts.items():
        show(f"{name:{room}s}  {value}")


def reported(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors that users can do something about into one line and an exit code."""

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        try:
            with _warnings_as_lines():
                return command(**given)
        except OSError as error:
            warn(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
            raise typer.Exit(BAD_INPUT) from error
        except (ValueError, ImportError, MemoryError) as error:
            warn(str(error) or "not enough memory")
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as error:
            warn(str(error) or "interrupted; nothing was written")
            raise typer.Exit(INTERRUPTED) from error

    return run


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show warnings that are meant for users as lines, each once, and no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: warn(f"warning: {message}")
        yield


class FitProgress:
    """Shows a fit on standard error, and stops it after an iteration when Ctrl-C asks for that.

    With a checkpoint the first Ctrl-C lets the present iteration end and saves it; a second one, any without a
    checkpoint and any before the first iteration, stops at once.
    """

    def __init__(self, visible: bool, checkpoint: Path | None) -> None:
        self._visible, self._checkpoint = visible, checkpoint
        self._start, self._seconds = time.monotonic(), 0.0
        self._has_begun, self._stop_asked = False, False
        self._handler: Any = None

    def __enter__(self) -> Self:
        if self._checkpoint is not None and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    def __call__(self, progress: Progress) -> None:
        """Show where a fit is; `KeyboardInterrupt` where it is to stop."""
        self._has_begun = True
        if progress.loop == 0:
            self._seconds, line = 0.0, ""
            if progress.predictor == 0:
                line = f"read {progress.rows:,} distinct rows in {_time(time.monotonic() - self._start)}"
        else:
            speed = progress.rows / max(progress.seconds - self._seconds, 1e-9)
            which = f"class {progress.predictor + 1} of {progress.predictors}, " if progress.predictors > 1 else ""
            left = "" if math.isnan(progress.left) else f", about {_time(progress.left)} left"
            line = f"{which}loop {progress.loop}: {speed:,.0f} rows/s, changed by {progress.change:.2g} sd{left}"
            self._seconds = progress.seconds
        if self._visible and line:
            typer.echo(line, err=True)
        if self._stop_asked:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stop_asked or not self._has_begun:
            raise KeyboardInterrupt
        self._stop_asked = True
        text = "cavity: stopping after this loop; Ctrl-C again stops at once\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


def _time(seconds: float) -> str:
    """Write a duration: seconds to the nearest tenth below ten, minutes and hours where it is long."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


# Values of options and arguments, and files that are written.


def option(help: str, metavar: str | None = None) -> Any:  # noqa: A002
    """Describe an option whose help text ends with the default."""
    return typer.Option(help=help, metavar=metavar, show_default=False)


Files = Annotated[
    list[Path], typer.Argument(help="Files of one table: Parquet, CSV, NumPy.", metavar="FILE...", show_default=False)
]
Model = Annotated[Path, typer.Argument(help="File of a model.", metavar="MODEL", show_default=False)]
Target = Annotated[str | None, option("Column of labels or targets, if not that of the fit.", "COLUMN")]
Weight = Annotated[str | None, option("Column of weights, if not that of the fit.", "COLUMN")]
Offset = Annotated[str | None, option("Column of known parts of the predictor, if not that of the fit.", "COLUMN")]

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def plain_value(text: str) -> Any:
    """Read a number, or a list or an object of JSON; anything else is text."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{text!r} is not a list or object in JSON: {error}") from error
        return {plain_value(key): one for key, one in value.items()} if isinstance(value, dict) else value
    return text


def size_of(text: str) -> int:
    """Read a number of bytes, such as 512MB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].upper() not in _BYTES:
        raise ValueError(f"--memory must be a number of bytes such as 512MB or 2GB, got {text!r}")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def check_places(outputs: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """Raise for outputs that could not be written, or that would replace an input or each other."""
    taken = dict.fromkeys(inputs, "an input")
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file")
        if not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
        for other, role in taken.items():
            # One file through symbolic and hard links too, or one that will be when it is written.
            both = path.exists() and other.exists()
            if path.samefile(other) if both else os.path.realpath(path) == os.path.realpath(other):
                raise ValueError(f"{option} {path} would overwrite {other}, which is {role}; name another file")
        taken[path] = f"the file of {option}"


# cavity fit

LOSSES = {
    "classify": ("logistic", "hinge", "quasi01"),
    "regress": ("squared", "normal", "absolute", "huber", "quantile", "poisson", "negative_binomial", "gamma"),
}
# Options that have an effect with certain others only: which, and whether values of all parameters have them.
_NEEDED: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "quantile": ("--loss quantile", lambda every: every["loss"] == "quantile"),
    "epsilon": ("--loss huber", lambda every: every["loss"] == "huber"),
    "scale": ("a loss other than poisson", lambda every: every["loss"] != "poisson"),
    "normalize_y": (
        "a loss other than poisson, negative_binomial and gamma",
        lambda every: every["loss"] not in ("poisson", "negative_binomial", "gamma"),
    ),
    "intercept_prior_variance": ("--fit-intercept", lambda every: bool(every["fit_intercept"])),
    "random_state": ("--covariance diagonal", lambda every: every["covariance"] in ("diagonal", "auto")),
    "tol": ("--max-iter 2 or more", lambda every: every["max_iter"] != 1),
}
# Parameters of the estimators that are options of the same name.
PARAMETERS = {name for one in ESTIMATORS.values() for name in one().get_params()} - {"verbose"}
# Different whole numbers up to which a target is taken for labels.
_MOST_LABELS = 10


@app.command(
    epilog="Example:\n\ncavity fit train.parquet --target income --model model.cavity --checkpoint run.ckpt",
)
@reported
def fit(
    files: Files,
    model: Annotated[Path, option("File to write the model to.")],
    target: Annotated[str | None, option("Column to be predicted.", "COLUMN")] = None,
    checkpoint: Annotated[
        Path | None, option("File for the state of the fit; the same command continues from it.")
    ] = None,
    every: Annotated[
        float | None, option("Least number of seconds between two writes of the checkpoint. (default 60)")
    ] = None,
    task: Annotated[
        str, option("classify, regress, or auto, which decides by the loss or the target. (default auto)")
    ] = "auto",
    weight: Annotated[str | None, option("Column of weights: a row of weight w counts as w rows.", "COLUMN")] = None,
    offset: Annotated[
        str | None, option("Column of known terms of the linear predictor, such as logarithms of exposures.", "COLUMN")
    ] = None,
    category: Annotated[
        list[str] | None,
        option("Column of categories whatever is in it, such as identifiers. May be repeated.", "COLUMN"),
    ] = None,
    drop: Annotated[list[str] | None, option("Column that is ignored. May be repeated.", "COLUMN")] = None,
    missing: Annotated[
        str | None,
        option(
            "How to treat missing features: error raises an error; mean uses the mean of numbers and adds a column "
            "that marks them, and gives missing text a level of its own, (missing). (default error)"
        ),
    ] = None,
    memory: Annotated[
        str | None, option("Number of bytes that encoded rows may use in memory. (default 64MiB)", "SIZE")
    ] = None,
    scratch: Annotated[
        Path | None, option("Folder of the scratch file. (default the system's, for temporary files)", "FOLDER")
    ] = None,
    loss: Annotated[
        str | None,
        option(
            f"Loss of the linear predictor. Classifiers: {', '.join(LOSSES['classify'])} (default logistic). "
            f"Regressors: {', '.join(LOSSES['regress'])} (default squared)."
        ),
    ] = None,
    formula: Annotated[
        str | None,
        option(
            "The model as lme4, mgcv and others write it: 'y ~ x + s(z) + (1 | g)'. The columns that are not dropped "
            "are read into memory. A column left of the ~ is the target."
        ),
    ] = None,
    prior_variance: Annotated[
        str | None,
        option(
            "Prior variance of the coefficients, in raw units: auto, number or list of one per feature. (default auto)"
        ),
    ] = None,
    prior_groups: Annotated[
        str | None,
        option(
            "Groups of features; one prior variance is estimated per group: categories, a list of one label per "
            "feature, or an object of names and features."
        ),
    ] = None,
    prior_mean: Annotated[
        str | None, option("Prior mean of the coefficients: number or list of one per feature. (default 0.0)")
    ] = None,
    fit_intercept: Annotated[bool | None, option("Whether to add a constant column. (default true)")] = None,
    intercept_prior_variance: Annotated[
        float | None, option("Prior variance of the intercept. (default 100.0)")
    ] = None,
    covariance: Annotated[
        str | None, option("Form of the posterior: auto, full, sparse, diagonal. (default auto)")
    ] = None,
    max_iter: Annotated[int | None, option("Maximum number of loops over the rows. (default 100)")] = None,
    tol: Annotated[
        float | None,
        option(
            "The fit ends when the estimated remaining change is below this many standard deviations for every mean, "
            "and below this share for every variance. (default 0.01)"
        ),
    ] = None,
    class_weight: Annotated[
        str | None,
        option("Classifiers: weights of the classes, which multiply those of the rows: balanced, or an object."),
    ] = None,
    random_state: Annotated[str | None, option("Seed of the order of the rows with --covariance diagonal.")] = None,
    verbose: Annotated[
        bool | None, option("Whether to show the progress and the remaining time on standard error. (default true)")
    ] = None,
    quantile: Annotated[
        float | None, option("Regressors: the quantile that --loss quantile predicts. (default 0.5)")
    ] = None,
    epsilon: Annotated[
        float | None,
        option("Regressors: where --loss huber turns from squared to absolute, in units of the scale. (default 1.35)"),
    ] = None,
    scale: Annotated[
        str | None, option("Regressors: noise scale in units of the target: number, auto, linear. (default auto)")
    ] = None,
    normalize_y: Annotated[
        bool | None,
        option(
            "Regressors: whether the prior refers to targets with mean zero and standard deviation one, so that "
            "predictions do not depend on the units of the target. (default true)"
        ),
    ] = None,
) -> None:
    """Fit a model to files.

    The files may be larger than memory. Numbers may be in any units; a column of text is taken as categories.

    Options that take a list or an object read JSON, such as --class-weight '{"yes": 2, "no": 1}'.

    Exit codes: 0 if all is well; 1 if the fit had numerical trouble, and the model was written anyway; 2 if the input
    is bad, and nothing was written; 130 after Ctrl-C.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    check_places({"--model": model, "--checkpoint": checkpoint}, files)
    if every is not None and checkpoint is None:
        raise ValueError("--every has no effect here, it needs --checkpoint; leave it out")
    if checkpoint is not None and covariance == "diagonal":
        raise ValueError("--checkpoint has no effect here, it needs a --covariance other than diagonal; leave it out")
    if target is None and formula is not None:
        target = options["target"] = Formula.parse(formula).target
    if target is None:
        raise ValueError(
            f"--target is needed, the column to be predicted: {files[0]} has {listed(open_reader(files[0]).kinds)}"
        )
    names = ("target", "weight", "offset", "drop", "missing", "scratch")
    columns: dict[str, Any] = {name: options[name] for name in names if name in options}
    if memory is not None:
        columns["memory"] = size_of(memory)
    table = Table(files, categories=category or (), **columns)
    options = {
        name: plain_value(value) if isinstance(value, str) and name != "formula" else value
        for name, value in options.items()
        if name in PARAMETERS
    }
    if task == "auto":
        task, reason = task_of(files, target, table.categories, options.get("loss"))
        if verbose is not False:
            warn(f"fitting an {ESTIMATORS[task].__name__}: {reason}")
    elif task not in ESTIMATORS:
        raise ValueError(f"--task must be auto, {' or '.join(ESTIMATORS)}, got {task!r}")
    check_options(task, options)
    with FitProgress(verbose is not False, checkpoint) as progress:
        estimator = ESTIMATORS[task](**options, verbose=progress)
        try:
            estimator.fit(table, checkpoint=checkpoint, every=60.0 if every is None else every)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_interrupted(checkpoint)) from error
    estimator.set_params(verbose=None)
    save(estimator, model)
    if estimator.plan_.covariance != "diagonal":
        if checkpoint is not None:
            _remove(checkpoint)
        if random_state is not None:
            warn("warning: --random-state had no effect: only a diagonal covariance depends on the order of the rows")
    elif checkpoint is not None:
        warn("warning: --checkpoint had no effect: a fit with a diagonal covariance saves none")
    rows, features = estimator.n_samples_seen_, estimator.n_features_in_
    show(f"{type(estimator).__name__} of {target!r} by {features} columns, {rows:,.10g} rows")
    show_facts({"posterior": str(estimator.plan_), "status": status_of(estimator), "model": str(model)})
    if not estimator.status_.is_success:
        raise typer.Exit(TROUBLE)


def task_of(files: Sequence[Path], target: str, text: Iterable[str], loss: Any) -> tuple[str, str]:
    """Decide by the loss if there is one, else by the first rows of the target; return the task and the reason."""
    for task, names in LOSSES.items():
        if loss in names:
            return task, f"it has the loss {loss!r}"
    values: set[float] = set()
    for path in files:
        for batch in open_reader(path, text=list(text)).batches([target]):
            column = batch.columns[target]
            if isinstance(column, Texts):
                return "classify", f"{target!r} is text"
            values |= set(np.unique(np.asarray(column)[~np.isnan(column)]).tolist())
            if len(values) > 1:  # else the file may be sorted by it
                break
        if len(values) > 1:
            break
    if len(values) <= _MOST_LABELS and all(float(value).is_integer() for value in values):
        return "classify", f"{target!r} has {len(values)} different whole numbers; --task regress takes numbers"
    return "regress", f"{target!r} is a number"


def check_options(task: str, given: Mapping[str, Any]) -> None:
    """Raise for options that the estimator of a task does not have, or that have no effect."""
    every = {**ESTIMATORS[task]().get_params(), **given}
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if name not in ESTIMATORS[task]().get_params():
            raise ValueError(f"{option} is not an option of {ESTIMATORS[task].__name__}, which --task {task} fits")
        needed, is_met = _NEEDED.get(name, ("", lambda _: True))
        if not is_met(every):
            raise ValueError(f"{option} has no effect here, it needs {needed}; leave it out")


def _interrupted(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "interrupted; nothing was written (with --checkpoint the next run would continue)"
    if not checkpoint.exists():
        return "interrupted before the first checkpoint; nothing was written"
    return f"interrupted; run the same command again to continue from {checkpoint}"


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint that is not needed any more, and what a run that was killed may have left of one."""
    checkpoint.unlink(missing_ok=True)
    for left in checkpoint.parent.glob(f".{glob.escape(checkpoint.name)}.{'[0-9a-f]' * 16}"):
        left.unlink(missing_ok=True)


# Models, tables for them, and labels, targets and weights of a table's blocks as a model knows them.


def load_model(path: Path) -> Any:
    """Read a model that was fitted to a table."""
    model = load(path)
    needed = "the command needs one that was fitted to a table, such as by `cavity fit`"
    if not isinstance(model, tuple(ESTIMATORS.values())):
        raise ValueError(f"{path} holds a {type(model).__name__}; {needed}")
    if not hasattr(model, "preprocessing_"):
        raise ValueError(f"{path} holds a model of arrays; {needed}")
    return model


def status_of(model: Any) -> str:
    """Say how the fit of a model ended."""
    return f"{model.status_.value.partition(':')[0]}, {model.n_iter_} {'loop' if model.n_iter_ == 1 else 'loops'}"


def is_classifier(model: Any) -> bool:
    """Whether a model predicts labels."""
    return isinstance(model, EPClassifier)


def table_for(model: Any, files: Sequence[Path], offset: str | None) -> Table:
    """Make a table of files without targets whose columns have the roles they had when the model was fitted."""
    return Table(files, offset=offset or Preprocessing.of(model.preprocessing_).offset)


def table_with_target(
    model: Any, files: Sequence[Path], target: str | None, weight: str | None, offset: str | None
) -> Table:
    """Make a table of files whose columns have the roles they had when the model was fitted, unless given."""
    known = Preprocessing.of(model.preprocessing_)
    target = target or known.target
    if target is None:
        raise ValueError("the model does not know the name of its target: name it by --target")
    has_text = is_classifier(model) and model.classes_.dtype.kind in "UO"
    return Table(
        files,
        target=target,
        weight=weight or known.weight,
        offset=offset or known.offset,
        categories=[target] if has_text else [],
    )


def codes_of(model: Any, table: Table, block: Block) -> NDArray[np.intp]:
    """Places among the classes of a block's labels."""
    classes = {label: code for code, label in enumerate(model.classes_.tolist())}
    codes = np.array([classes.get(label, -1) for label in block.target.tolist()], dtype=np.intp)
    if np.any(codes < 0):
        label, place = block.target[np.argmin(codes)], where(block.batch, int(np.argmin(codes)), table.target)
        if label is None or label != label:
            raise ValueError(f"{place}: the label is missing; fill it, or leave the row out")
        names = ", ".join(map(shown, list(classes)[:10]))
        raise ValueError(f"{place}: the label {shown(label)} is none of the model's classes {names}")
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


# cavity example


@app.command(epilog="Example:\n\ncavity example --folder data")
@reported
def example(
    folder: Annotated[Path, option("Folder to write to. (default the current one)", "FOLDER")] = Path(),
) -> None:
    """Write a table to try the other commands on.

    The files train.csv and test.csv hold half each of the Bank data set of the UCI repository: clients of a bank, and
    whether they subscribed a deposit.
    """
    places = {name: folder / name for name in ("train.csv", "test.csv")}
    for place in places.values():
        check_places({"--folder": place}, [])
        if place.exists():
            raise ValueError(f"{place} exists; name another folder by --folder")
    data = datasets.load("bank")
    columns = {**data.features, "deposit": np.where(data.labels > 0.0, "yes", "no")}
    for first, place in enumerate(places.values()):
        with open_writer(place) as write:
            write({name: column[first::2] for name, column in columns.items()})
        show(f"{place}: {data.labels[first::2].size:,} rows of {len(columns)} columns")


# cavity predict


@app.command(epilog="Example:\n\ncavity predict model.cavity new.csv --out predictions.parquet")
@reported
def predict(
    model: Model,
    files: Files,
    out: Annotated[Path, option("File to write to: .parquet, .csv, .tsv or .npy, by its suffix.")],
    quantile: Annotated[
        list[float] | None, option("Quantile of new targets, from 0 to 1, for regressors. May be repeated.")
    ] = None,
    offset: Offset = None,
) -> None:
    """Predict for every row of files.

    A classifier writes the label and the probability of every class; a regressor the mean, the standard deviation of
    new targets, and the quantiles that were asked for.
    """
    check_places({"--out": out}, [model, *files])
    fitted, rows = load_model(model), 0
    if quantile and is_classifier(fitted):
        raise ValueError(f"--quantile is for regressors, and {model} holds a classifier")
    with open_writer(out) as write:
        for block in fitted.blocks(table_for(fitted, files, offset)):
            columns = _labels(fitted, block) if is_classifier(fitted) else _numbers(fitted, block, quantile or [])
            write(columns)
            rows += block.batch.n_rows
    show(f"{rows:,} rows to {out}: {', '.join(columns)}")


def _labels(model: Any, block: Block) -> dict[str, Any]:
    """Give the label, and the probability of every class."""
    probabilities = model.predict_proba(block.rows, offset=block.offset)
    labels = model.classes_.astype(str) if model.classes_.dtype == object else model.classes_
    each = {f"p_{label}": np.ascontiguousarray(p) for label, p in zip(labels.tolist(), probabilities.T, strict=True)}
    return {"label": labels[np.argmax(probabilities, axis=1)], **each}


def _numbers(model: Any, block: Block, quantiles: list[float]) -> dict[str, Any]:
    """Mean, or the quantile that the loss is for, standard deviation, and quantiles."""
    mean, sd = model.predict(block.rows, return_std=True, offset=block.offset)
    columns = {"quantile" if isinstance(model.loss_, Quantile) else "mean": mean, "sd": sd}
    if quantiles:
        found = model.predict(block.rows, quantile=quantiles, offset=block.offset)
        columns |= {f"q{level:g}": np.ascontiguousarray(q) for level, q in zip(quantiles, found.T, strict=True)}
    return columns


# cavity score


@app.command(epilog="Example:\n\ncavity score model.cavity test.csv")
@reported
def score(model: Model, files: Files, target: Target = None, weight: Weight = None, offset: Offset = None) -> None:
    """Measure how well a model predicts files.

    For a classifier: log loss and accuracy. For a regressor: the share of the loss of a constant prediction that it
    saves (R² or D²), the root mean square error, the mean log density of the targets, and the share of them inside
    their 90 % intervals.
    """
    fitted = load_model(model)
    table = table_with_target(fitted, files, target, weight, offset)
    show_facts(_scores_of_labels(fitted, table) if is_classifier(fitted) else _scores_of_numbers(fitted, table))


def _scores_of_labels(model: Any, table: Table) -> dict[str, str]:
    loss = hits = weight = 0.0
    rows = 0
    for block in model.blocks(table):
        codes, w = codes_of(model, table, block), weights_of(table, block)
        probabilities = model.predict_proba(block.rows, offset=block.offset)
        chosen = np.maximum(probabilities[np.arange(codes.size), codes], np.finfo(np.float64).tiny)
        loss -= float(w @ np.log(chosen))
        hits += float(w @ (np.argmax(probabilities, axis=1) == codes))
        weight, rows = weight + float(np.sum(w)), rows + codes.size
    _need_weight(table, weight)
    return {"rows": f"{rows:,}", "log loss": f"{loss / weight:.4f}", "accuracy": f"{hits / weight:.4f}"}


def _scores_of_numbers(model: Any, table: Table) -> dict[str, str]:
    """Scores of a regressor; its own needs all targets and predictions, 24 bytes per row."""
    parts, density, within = [], 0.0, 0.0
    noise_is_a_device = isinstance(model.loss_, Quantile)
    for block in model.blocks(table):
        y, w = targets_of(table, block), weights_of(table, block)
        predicted = model.predict(block.rows, offset=block.offset)
        parts.append((y, predicted, w))
        if noise_is_a_device:
            within += float(w @ (y <= predicted))
        else:
            low, high = model.predict(block.rows, quantile=(0.05, 0.95), offset=block.offset).T
            within += float(w @ ((low <= y) & (y <= high)))
            density += float(w @ model.log_densities(block.rows, y, block.offset))
    y, predicted, w = (np.concatenate(part) for part in zip(*parts, strict=True))
    weight = float(np.sum(w))
    _need_weight(table, weight)
    name = "R²" if model.loss in ("squared", "normal", "huber") else "D²"  # as `EPRegressor.score` measures it
    found = {"rows": f"{y.size:,}", name: f"{score_of(model.loss_, y, predicted, w):.4f}"}
    found["root mean square error"] = f"{np.sqrt(w @ np.square(y - predicted) / weight):.4g}"
    if noise_is_a_device:
        return {**found, f"targets up to the quantile {model.loss_.quantile:g}": f"{within / weight:.4f}"}
    return {**found, "mean log density": f"{density / weight:.4f}", "in 90 % intervals": f"{within / weight:.4f}"}


def _need_weight(table: Table, weight: float) -> None:
    if weight == 0.0:
        raise ValueError(f"column {table.weight!r}: no row has a positive weight")


# cavity inspect

# Coefficients that are shown in a terminal, and on a page, unless all are asked for.
_MOST, _MOST_OF_PAGE = 30, 500


@app.command(epilog="Example:\n\ncavity inspect model.cavity --html model.html")
@reported
def inspect(
    model: Model,
    every: Annotated[bool, typer.Option("--all", help="Show all coefficients, not only the largest.")] = False,
    html: Annotated[Path | None, option("Write a page with pictures to this file instead.")] = None,
) -> None:
    """Show what is in a model.

    Its form of posterior, how the fit ended, its coefficients and its variance components.
    """
    check_places({"--html": html}, [model])
    fitted = load_model(model)
    facts = _facts(fitted)
    labels, columns = fitted.summary_columns()
    names = [_name(label) for label in labels]
    variances = getattr(fitted, "prior_variance_", None)
    components = len(variances) if isinstance(variances, dict) else 0
    if variances is None:  # a model with terms, whose last blocks are not of coefficients
        components = sum(label[-2] in ("smooths", "components") for label in labels)
    count = len(names) - components  # the last rows of a summary are variance components
    most = _MOST if html is None else _MOST_OF_PAGE
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.abs(columns["mean"][:count]) / columns["std"][:count])
    kept = np.sort(np.argsort(-ratio, kind="stable")[: count if every else most])
    if html is not None:
        note = (
            "Mean and 95 % interval. A coefficient of a number is for a step of one standard deviation of its column. "
            "Coloured where the interval leaves out zero."
        )
        if kept.size < count:
            note += f" {kept.size:,} of {count:,}, the largest against their standard deviation."
        largest = {name: values[kept] for name, values in columns.items()}
        parts = [intervals_part("Coefficients", note, [names[k] for k in kept], largest)]
        if components:
            note = "Prior variances, or standard deviations, that were found: 95 % intervals on a logarithmic axis."
            # Correlations, and curves of which there are only degrees of freedom, have no place there.
            shown_ones = [k for k in range(count, len(names)) if columns["mean"][k] > 0.0 and "correl" not in names[k]]
            found = {name: values[shown_ones] for name, values in columns.items()}
            parts.append(intervals_part("Variance components", note, [names[k] for k in shown_ones], found, True))
        traces = fitted.trace_ if isinstance(fitted.trace_, tuple) else (fitted.trace_,)
        text = page(model.name, facts, *parts, course_part(traces, float(fitted.tol)))
        html.write_text(text, encoding="utf-8")
        show(f"{html}: {kept.size:,} of {count:,} coefficients")
        return
    show_facts(facts)
    console = results()
    # The exponentials follow from the rest; without them 72 columns are enough. Intervals go where there are fewer.
    left_out = ("exp(",) if console.width >= 72 else ("exp(", "lower", "upper")
    shown_columns = {name: values for name, values in columns.items() if not name.startswith(left_out)}
    console.print()
    console.print(_grid("coefficient", names, shown_columns, kept))
    if kept.size < count:
        console.print(f"{kept.size} of {count}, the largest against their standard deviation; --all shows all")
    if components:
        del shown_columns["P(> 0)"]  # variances are positive anyway
        console.print()
        console.print(_grid("variance component", names, shown_columns, range(count, len(names))))


def _facts(model: Any) -> dict[str, str]:
    """Describe a model, its coefficients apart."""
    target = Preprocessing.of(model.preprocessing_).target
    facts = {"model": f"{type(model).__name__}(loss={model.loss!r})" + (f" of {target!r}" if target else "")}
    if is_classifier(model):
        facts["classes"] = _first_ten([str(label) for label in model.classes_.tolist()])
    facts |= {
        "rows": f"{model.n_samples_seen_:,.10g}",
        "posterior": str(model.plan_),
        "status": status_of(model),
        "log evidence": f"{model.log_evidence_:,.2f}",
    }
    if not isinstance(getattr(model, "prior_variance_", {}), dict):
        facts["prior variance"] = _first_ten([f"{v:.3g}" for v in np.unique(np.atleast_1d(model.prior_variance_))])
    if not is_classifier(model) and model.loss != "poisson" and model.scale != "linear":
        facts["noise scale"] = f"{model.scale_:.4g}"
    return {name: visible(value) for name, value in facts.items()}


def _first_ten(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _name(label: Any) -> str:
    """Write the name of a coefficient, of a class if there are several."""
    parts = map(str, label) if isinstance(label, tuple) else [str(label)]
    joined = " ".join(part for part in parts if part and part not in ("fixed", "components", "smooths"))
    return visible(joined.removeprefix("variance of "))


def _grid(kind: str, names: Sequence[str], columns: Mapping[str, NDArray[Any]], rows: Iterable[int]) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    grid.add_column(kind, overflow="fold")
    rows = list(rows)
    columns = {name: values for name, values in columns.items() if not np.all(np.isnan(values[rows]))}
    for name in columns:
        grid.add_column(name, justify="right", no_wrap=True)
    for k in rows:
        numbers = [f"{values[k]:.4f}" if c == "P(> 0)" else f"{values[k]:.4g}" for c, values in columns.items()]
        grid.add_row(Text(names[k]), *numbers)
    return grid


# cavity update


@app.command(epilog="Example:\n\ncavity update model.cavity more.parquet --halflife 100000")
@reported
def update(
    model: Model,
    files: Files,
    halflife: Annotated[
        float | None, option("For data that drift: number of rows after which the weight of a row has halved.")
    ] = None,
    out: Annotated[Path | None, option("File to write the new model to; the old one by default.")] = None,
    target: Target = None,
    weight: Weight = None,
    offset: Offset = None,
) -> None:
    """Update a model with the rows of more files.

    Rows are read block by block. The model is replaced after the last one.
    """
    place = out or model
    check_places({"--out" if out else "the model": place}, files)
    fitted, rows, troubled = load_model(model), 0, False
    table = table_with_target(fitted, files, target, weight, offset)
    for block in fitted.blocks(table):
        check_levels(fitted, block)
        known = fitted.classes_[codes_of(fitted, table, block)] if is_classifier(fitted) else targets_of(table, block)
        weights = None if block.weight is None else weights_of(table, block)
        fitted.partial_fit(block.rows, known, sample_weight=weights, offset=block.offset, halflife=halflife)
        rows, troubled = rows + block.batch.n_rows, troubled or not fitted.status_.is_success
    save(fitted, place)
    show(f"{rows:,} rows added, {fitted.n_samples_seen_:,.10g} in all: {place}")
    if troubled:
        raise typer.Exit(TROUBLE)


def check_levels(model: Any, block: Block) -> None:
    """Raise for levels of categories that the model does not have, and so cannot learn from."""
    for name, known in getattr(model, "categories_", {}).items():
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
