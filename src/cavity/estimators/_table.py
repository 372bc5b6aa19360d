"""A table of coefficients, as a DataFrame where pandas is installed and as text otherwise."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

FloatArray = NDArray[np.float64]


def coefficient_table(labels: list[Any], mean: FloatArray, std: FloatArray, level: float) -> Any:
    """Mean, standard deviation and the interval of a posterior probability, one coefficient per row."""
    width = ndtri(0.5 + 0.5 * level) * std
    percent = f"{100.0 * level:g}%"
    columns = {"mean": mean, "std": std, f"lower {percent}": mean - width, f"upper {percent}": mean + width}
    if find_spec("pandas") is not None:
        pandas = import_module("pandas")
        grouped = bool(labels) and isinstance(labels[0], tuple)
        index = pandas.MultiIndex.from_tuples(labels, names=["class", "coefficient"]) if grouped else labels
        table = pandas.DataFrame(columns, index=index)
        if not grouped:
            table.index.name = "coefficient"
        return table
    return as_text([" ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in labels], columns)


def as_text(labels: list[str], columns: dict[str, FloatArray]) -> str:
    """Write columns of numbers under their names, the labels before them."""
    room = max([len("coefficient"), *map(len, labels)])
    lines = [f"{'coefficient':{room}s}" + "".join(f"{name:>14s}" for name in columns)]
    for label, *numbers in zip(labels, *columns.values(), strict=True):
        lines.append(f"{label:{room}s}" + "".join(f"{number:14.4g}" for number in numbers))
    return "\n".join(lines)
