"""A table of coefficients, as a DataFrame where pandas is installed and as text otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from cavity._checks import as_float, shown

FloatArray = NDArray[np.float64]


def coefficient_table(
    labels: list[Any],
    mean: FloatArray,
    std: FloatArray,
    level: float,
    is_log: bool,
    components: Sequence[tuple[str, float, float]] = (),
    kind: str = "class",
) -> Any:
    """Mean, standard deviation, interval and probability to be positive, one coefficient per row.

    ``is_log`` adds the exponential of mean and interval: of log odds an odds ratio, of a log mean a ratio of means.
    Variance components, each a name, a value and its relative error, follow as further rows. ``kind`` is what the first
    of two labels stands for.
    """
    width = ndtri(0.5 + 0.5 * level) * std
    lower, upper = (f"{end} {100.0 * level:g}%" for end in ("lower", "upper"))
    columns = {"mean": mean, "std": std, lower: mean - width, upper: mean + width}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        columns["P(> 0)"] = np.where(std > 0.0, ndtr(mean / std), np.where(mean > 0.0, 1.0, 0.0))
        if is_log:
            ratios = {"exp(mean)": mean, f"exp({lower})": mean - width, f"exp({upper})": mean + width}
            columns |= {name: np.exp(value) for name, value in ratios.items()}
        for name, value, error in components:
            ends = value * np.exp(np.array([-1.0, 1.0]) * ndtri(0.5 + 0.5 * level) * error)
            row = [value, value * error, *ends, 1.0] + [np.nan] * (len(columns) - 5)
            columns = {key: np.append(old, new) for (key, old), new in zip(columns.items(), row, strict=True)}
            labels = [*labels, ("", name) if labels and isinstance(labels[0], tuple) else name]
    if find_spec("pandas") is not None:
        pandas = import_module("pandas")
        grouped = bool(labels) and isinstance(labels[0], tuple)
        index = pandas.MultiIndex.from_tuples(labels, names=[kind, "coefficient"]) if grouped else labels
        table = pandas.DataFrame(columns, index=index)
        if not grouped:
            table.index.name = "coefficient"
        return table
    return as_text([" ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in labels], columns)


def combinations(given: Any, names: Sequence[str]) -> tuple[list[str], FloatArray]:
    """Read linear combinations, ``{name: factor}`` or arrays in the order of the names; label them in words."""
    rows = []
    for one in given:
        if isinstance(one, Mapping):
            unknown = [name for name in one if str(name) not in names]
            if unknown:
                raise ValueError(f"a contrast must name coefficients among {_listed(names)}; got {unknown[0]!r}")
            row = np.zeros(len(names))
            for name, factor in one.items():
                row[names.index(str(name))] += as_float(factor)
        else:
            try:
                row = np.asarray(one, dtype=np.float64)
            except (TypeError, ValueError):
                row = np.empty(0)
        if row.shape != (len(names),) or not np.all(np.isfinite(row)):
            raise ValueError(
                f"a contrast must be a dict of names and finite factors, or {len(names)} finite numbers in the order "
                f"{_listed(names)}; got {shown(one)}"
            )
        rows.append(row)
    if not rows:
        raise ValueError("contrast needs at least one linear combination, such as {'x0': 1, 'x1': -1}")
    return [_in_words(row, names) for row in rows], np.array(rows)


def _listed(names: Sequence[str]) -> str:
    """Name the first coefficients."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more, see summary()" if len(names) > 10 else "")


def _in_words(row: FloatArray, names: Sequence[str]) -> str:
    """Write a linear combination as ``a - 2 b``."""
    words = ""
    for name, factor in zip(names, row, strict=True):
        if factor != 0.0:
            sign = "-" if factor < 0.0 else "+" if words else ""
            size = "" if abs(factor) == 1.0 else f"{abs(factor):g} "
            words += f" {sign} {size}{name}" if words else f"{sign}{size}{name}"
    return words or "0"


def as_text(labels: list[str], columns: dict[str, FloatArray]) -> str:
    """Write columns of numbers under their names, the labels before them."""
    room = max([len("coefficient"), *map(len, labels)])
    lines = [f"{'coefficient':{room}s}" + "".join(f"{name:>14s}" for name in columns)]
    for label, *numbers in zip(labels, *columns.values(), strict=True):
        lines.append(f"{label:{room}s}" + "".join(f"{number:14.4g}" for number in numbers))
    return "\n".join(lines)
