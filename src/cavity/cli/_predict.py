"""``cavity predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cavity.cli._fit import Files, check_place
from cavity.cli._models import blocks_of, is_classifier, load_model, table_for
from cavity.cli._terminal import out
from cavity.losses import Quantile
from cavity.tables import Block, open_writer

Model = Annotated[Path, typer.Argument(help="File of a model.", metavar="MODEL", show_default=False)]


def predict(
    model: Model,
    files: Files,
    out_path: Annotated[
        Path, typer.Option("--out", help="File to write to: .parquet, .csv, .tsv or .npy, by its suffix.")
    ],
    quantile: Annotated[
        list[float] | None,
        typer.Option(help="Quantile of new targets to add, for regressors. May be repeated.", show_default=False),
    ] = None,
    offset: Annotated[
        str | None, typer.Option(help="Column of known parts of the predictor, if not that of the fit.")
    ] = None,
) -> None:
    """Predict for every row of files.

    A classifier gives a label and the probability of every class; a regressor the mean, the standard deviation of new
    targets, and quantiles.
    """
    check_place(out_path)
    fitted = load_model(model)
    if quantile and is_classifier(fitted):
        raise ValueError(f"--quantile is for regressors, and {model} holds a classifier")
    table, rows = table_for(fitted, files, {"offset": offset}, target=False), 0
    with open_writer(out_path) as write:
        for block in blocks_of(fitted, table):
            columns = _labels(fitted, block) if is_classifier(fitted) else _numbers(fitted, block, quantile or [])
            write(columns)
            rows += block.batch.n_rows
    out().print(f"{rows:,} rows to {out_path}: {', '.join(columns)}", markup=False)


def _labels(model: Any, block: Block) -> dict[str, Any]:
    """Give the label, and the probability of every class."""
    probabilities = model.predict_proba(block.rows, offset=block.offset)
    labels = model.classes_.astype(str) if model.classes_.dtype == object else model.classes_
    each = {f"p_{label}": np.ascontiguousarray(p) for label, p in zip(labels.tolist(), probabilities.T, strict=True)}
    return {"label": labels[np.argmax(probabilities, axis=1)], **each}


def _numbers(model: Any, block: Block, quantiles: list[float]) -> dict[str, Any]:
    """Mean, or the quantile that the loss is for, standard deviation, and quantiles."""
    mean, sd = model.predict(block.rows, return_std=True, offset=block.offset)
    name = "quantile" if isinstance(model._loss, Quantile) else "mean"
    each = {}
    if quantiles:
        found = model.predict(block.rows, quantile=quantiles, offset=block.offset)
        each = {f"q{level:g}": np.ascontiguousarray(q) for level, q in zip(quantiles, found.T, strict=True)}
    return {name: mean, "sd": sd, **each}
