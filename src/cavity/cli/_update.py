"""``cavity update``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cavity.cli._fit import Files, check_place
from cavity.cli._models import (
    blocks_of,
    check_levels,
    codes_of,
    is_classifier,
    load_model,
    table_for,
    targets_of,
    weights_of,
)
from cavity.cli._predict import Model
from cavity.cli._score import Offset, Target, Weight
from cavity.cli._terminal import TROUBLE, out
from cavity.estimators import save


def update(
    model: Model,
    files: Files,
    halflife: Annotated[
        float | None, typer.Option(help="Rows after which what a row said counts half, for data that drift.")
    ] = None,
    out_path: Annotated[
        Path | None, typer.Option("--out", help="File to write the new model to; the old one by default.")
    ] = None,
    target: Target = None,
    weight: Weight = None,
    offset: Offset = None,
) -> None:
    """Let a model learn from more files.

    Rows are taken in one block after the other. The model is replaced when all of them were.
    """
    place = out_path or model
    check_place(place)
    fitted, rows, troubled = load_model(model), 0, False
    table = table_for(fitted, files, {"target": target, "weight": weight, "offset": offset}, target=True)
    for block in blocks_of(fitted, table):
        check_levels(fitted, block)
        known = fitted.classes_[codes_of(fitted, table, block)] if is_classifier(fitted) else targets_of(table, block)
        weights = None if block.weight is None else weights_of(table, block)
        fitted.partial_fit(block.rows, known, sample_weight=weights, offset=block.offset, halflife=halflife)
        rows, troubled = rows + block.batch.n_rows, troubled or not fitted.status_.is_success
    save(fitted, place)
    out().print(f"{rows:,} rows taken in, {fitted._totals.rows:,.10g} in all: {place}", markup=False)
    if troubled:
        raise typer.Exit(TROUBLE)
