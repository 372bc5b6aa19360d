"""``cavity inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table as Grid
from rich.text import Text

from cavity.cli._commands import Model
from cavity.cli._fit import check_places
from cavity.cli._models import is_classifier, load_model, status_of
from cavity.cli._page import Entry, coefficients_part, components_part, course_part, page
from cavity.cli._terminal import out, tell, visible
from cavity.estimators._preprocessing import Preprocessing
from cavity.estimators._reports import summary_columns

Columns = dict[str, NDArray[np.float64]]
# Coefficients that are shown in a terminal, and on a page, unless all are asked for.
_MOST, _MOST_OF_PAGE = 30, 500


def inspect(
    model: Model,
    every: Annotated[bool, typer.Option("--all", help="Show all coefficients, not only the largest.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures to this file instead.")] = None,
) -> None:
    """Show what is in a model.

    Its form of posterior, how the fit ended, its coefficients and its variance components.
    """
    check_places({"--html": html}, [model])
    fitted = load_model(model)
    if html is not None:
        _write_page(html, model.name, fitted, every)
        return
    console, facts = out(), _facts(fitted)
    room = max(map(len, facts))
    for name, value in facts.items():
        tell(f"{name:{room}s}  {value}")
    labels, columns = summary_columns(fitted)
    count = len(labels) - _components(fitted)
    kept = _largest(columns, count, count if every else _MOST)
    # The exponentials follow from the rest; without them 72 columns are enough. Intervals go where there are fewer.
    left_out = ("exp(",) if console.width >= 72 else ("exp(", "lower", "upper")
    shown = {name: values for name, values in columns.items() if not name.startswith(left_out)}
    console.print()
    console.print(_grid("coefficient", labels, shown, kept))
    if kept.size < count:
        console.print(f"{kept.size} of {count}, the largest against their standard deviation; --all shows all")
    if count < len(labels):
        console.print()
        console.print(_grid("variance component", labels, shown, np.arange(count, len(labels))))


def _write_page(path: Path, name: str, model: Any, every: bool) -> None:
    """Write coefficients, at most some hundred unless all are asked for, and variance components with pictures."""
    labels, columns = summary_columns(model)
    count = len(labels) - _components(model)
    numbers = np.column_stack(list(columns.values())[:5])
    entries = [Entry(_name(label), *map(float, row)) for label, row in zip(labels, numbers, strict=True)]
    traces = model.trace_ if isinstance(model.trace_, tuple) else (model.trace_,)
    kept = _largest(columns, count, count if every else _MOST_OF_PAGE)
    parts = coefficients_part([entries[k] for k in kept], count), components_part(entries[count:])
    path.write_text(page(name, _facts(model), *parts, course_part(traces, float(model.tol))), encoding="utf-8")
    tell(f"{path}: {kept.size:,} of {count:,} coefficients")


def _facts(model: Any) -> dict[str, str]:
    """Name what is to be known of a model beside its coefficients."""
    target = Preprocessing.of(model.preprocessing_).target
    facts = {"model": f"{type(model).__name__}(loss={model.loss!r})" + (f" of {target!r}" if target else "")}
    if is_classifier(model):
        facts["classes"] = _listed([str(label) for label in model.classes_.tolist()])
    facts |= {
        "rows": f"{model._totals.rows:,.10g}",
        "posterior": str(model.plan_),
        "status": status_of(model),
        "log evidence": f"{model.log_evidence_:,.2f}",
    }
    if not _components(model):
        facts["prior variance"] = _listed([f"{v:.3g}" for v in np.unique(np.atleast_1d(model.prior_variance_))])
    if not is_classifier(model) and model.loss != "poisson" and not model._is_spread:
        facts["noise scale"] = f"{model.scale_:.4g}"
    return {name: visible(value) for name, value in facts.items()}


def _components(model: Any) -> int:
    """Give the number of variance components, which are the last rows of a summary."""
    return len(model.prior_variance_) if isinstance(model.prior_variance_, dict) else 0


def _largest(columns: Columns, count: int, most: int) -> NDArray[np.intp]:
    """Places of the coefficients that are largest against their standard deviation, in their order."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.abs(columns["mean"][:count]) / columns["std"][:count])
    return np.sort(np.argsort(-ratio, kind="stable")[:most])


def _name(label: Any) -> str:
    """Write the name of a coefficient, of a class if there are several."""
    joined = " ".join(part for part in map(str, label) if part) if isinstance(label, tuple) else str(label)
    return visible(joined.removeprefix("variance of "))


def _grid(kind: str, labels: list[Any], columns: Columns, rows: NDArray[np.intp]) -> Grid:
    """Table of some rows; variances are positive anyway."""
    shown = [name for name in columns if kind == "coefficient" or name != "P(> 0)"]
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    grid.add_column(kind, overflow="fold")
    for name in shown:
        grid.add_column(name, justify="right", no_wrap=True)
    for k in rows:
        numbers = [f"{columns[c][k]:.4f}" if c == "P(> 0)" else f"{columns[c][k]:.4g}" for c in shown]
        grid.add_row(Text(_name(labels[k])), *numbers)
    return grid


def _listed(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
