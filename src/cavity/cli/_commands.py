"""``cavity predict``, ``cavity score`` and ``cavity update``: what is done with a model that was fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cavity.cli._fit import Files, check_places
from cavity.cli._models import check_levels, codes_of, is_classifier, load_model, table_for, targets_of, weights_of
from cavity.cli._terminal import TROUBLE, tell
from cavity.estimators import save
from cavity.estimators._reading import blocks_of
from cavity.estimators._scores import log_densities, score_of
from cavity.losses import Quantile
from cavity.tables import Block, Table, open_writer

Model = Annotated[Path, typer.Argument(help="File of a model.", metavar="MODEL", show_default=False)]


def predict(
    model: Model,
    files: Files,
    out_path: Annotated[
        Path, typer.Option("--out", help="File to write to: .parquet, .csv, .tsv or .npy, by its suffix.")
    ],
    quantile: Annotated[
        list[float] | None,
        typer.Option(help="Quantile of new targets, from 0 to 1, for regressors. May be repeated.", show_default=False),
    ] = None,
    offset: Annotated[
        str | None, typer.Option(help="Column of known parts of the predictor, if not that of the fit.")
    ] = None,
) -> None:
    """Predict for every row of files.

    A classifier writes the label and the probability of every class; a regressor the mean, the standard deviation of
    new targets, and the quantiles that were asked for.
    """
    check_places({"--out": out_path}, [model, *files])
    fitted = load_model(model)
    if quantile and is_classifier(fitted):
        raise ValueError(f"--quantile is for regressors, and {model} holds a classifier")
    table, rows = table_for(fitted, files, {"offset": offset}, target=False), 0
    with open_writer(out_path) as write:
        for block in blocks_of(fitted, table):
            columns = _labels(fitted, block) if is_classifier(fitted) else _numbers(fitted, block, quantile or [])
            write(columns)
            rows += block.batch.n_rows
    tell(f"{rows:,} rows to {out_path}: {', '.join(columns)}")


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


Target = Annotated[str | None, typer.Option(help="Column of labels or targets, if not that of the fit.")]
Weight = Annotated[str | None, typer.Option(help="Column of weights, if not that of the fit.")]
Offset = Annotated[str | None, typer.Option(help="Column of known parts of the predictor, if not that of the fit.")]
# Interval whose coverage is told, by the quantiles at its ends.
_ENDS = (0.05, 0.95)


def score(model: Model, files: Files, target: Target = None, weight: Weight = None, offset: Offset = None) -> None:
    """Measure how well a model predicts files.

    For a classifier: log loss and accuracy. For a regressor: the share of the loss of a constant prediction that it
    saves (R² or D²), the root mean square error, the mean log density of the targets, and the share of them inside
    their 90 % intervals.
    """
    fitted = load_model(model)
    table = table_for(fitted, files, {"target": target, "weight": weight, "offset": offset}, target=True)
    measured = _of_labels(fitted, table) if is_classifier(fitted) else _of_numbers(fitted, table)
    room = max(map(len, measured))
    for name, value in measured.items():
        tell(f"{name:{room}s}  {value}")


def _of_labels(model: Any, table: Table) -> dict[str, str]:
    loss = hits = weight = 0.0
    rows = 0
    for block in blocks_of(model, table):
        codes, w = codes_of(model, table, block), weights_of(table, block)
        probabilities = model.predict_proba(block.rows, offset=block.offset)
        chosen = np.maximum(probabilities[np.arange(codes.size), codes], np.finfo(np.float64).tiny)
        loss -= float(w @ np.log(chosen))
        hits += float(w @ (np.argmax(probabilities, axis=1) == codes))
        weight, rows = weight + float(np.sum(w)), rows + codes.size
    _need_weight(table, weight)
    return {"rows": f"{rows:,}", "log loss": f"{loss / weight:.4f}", "accuracy": f"{hits / weight:.4f}"}


def _of_numbers(model: Any, table: Table) -> dict[str, str]:
    """Scores of a regressor; its own needs all targets and predictions, 24 bytes per row."""
    parts, density, within = [], 0.0, 0.0
    noise_is_a_device = isinstance(model._loss, Quantile)
    for block in blocks_of(model, table):
        y, w = targets_of(table, block), weights_of(table, block)
        predicted = model.predict(block.rows, offset=block.offset)
        parts.append((y, predicted, w))
        if noise_is_a_device:
            within += float(w @ (y <= predicted))
        else:
            low, high = model.predict(block.rows, quantile=_ENDS, offset=block.offset).T
            within += float(w @ ((low <= y) & (y <= high)))
            density += float(w @ log_densities(model, block.rows, y, block.offset))
    y, predicted, w = (np.concatenate(part) for part in zip(*parts, strict=True))
    weight = float(np.sum(w))
    _need_weight(table, weight)
    error = float(np.sqrt(w @ np.square(y - predicted) / weight))
    name = "R²" if model.loss in ("squared", "normal", "huber") else "D²"  # as `EPRegressor.score` measures it
    found = {"rows": f"{y.size:,}", name: f"{score_of(model._loss, y, predicted, w):.4f}"}
    found["root mean square error"] = f"{error:.4g}"
    if noise_is_a_device:
        return {**found, f"targets up to the quantile {model._loss.quantile:g}": f"{within / weight:.4f}"}
    return {**found, "mean log density": f"{density / weight:.4f}", "in 90 % intervals": f"{within / weight:.4f}"}


def _need_weight(table: Table, weight: float) -> None:
    if weight == 0.0:
        raise ValueError(f"column {table.weight!r}: no row has a positive weight")


def update(
    model: Model,
    files: Files,
    halflife: Annotated[
        float | None,
        typer.Option(help="For data that drift: number of rows after which the weight of a row has halved."),
    ] = None,
    out_path: Annotated[
        Path | None, typer.Option("--out", help="File to write the new model to; the old one by default.")
    ] = None,
    target: Target = None,
    weight: Weight = None,
    offset: Offset = None,
) -> None:
    """Update a model with the rows of more files.

    Rows are read block by block. The model is replaced after the last one.
    """
    place = out_path or model
    check_places({"--out" if out_path else "the model": place}, files)
    fitted, rows, troubled = load_model(model), 0, False
    table = table_for(fitted, files, {"target": target, "weight": weight, "offset": offset}, target=True)
    for block in blocks_of(fitted, table):
        check_levels(fitted, block)
        known = fitted.classes_[codes_of(fitted, table, block)] if is_classifier(fitted) else targets_of(table, block)
        weights = None if block.weight is None else weights_of(table, block)
        fitted.partial_fit(block.rows, known, sample_weight=weights, offset=block.offset, halflife=halflife)
        rows, troubled = rows + block.batch.n_rows, troubled or not fitted.status_.is_success
    save(fitted, place)
    tell(f"{rows:,} rows added, {fitted._totals.rows:,.10g} in all: {place}")
    if troubled:
        raise typer.Exit(TROUBLE)
