"""A table of coefficients, as a DataFrame where pandas is installed and as text otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from cavity._checks import as_float, shown
from cavity.gaussians.mixture import normal_mixture_quantile

FloatArray = NDArray[np.float64]


class Marginals(NamedTuple):
    """Means, standard deviations, ends of intervals and probabilities to be positive, one number per coefficient."""

    mean: FloatArray
    std: FloatArray
    lower: FloatArray
    upper: FloatArray
    positive: FloatArray

    @classmethod
    def of(cls, mean: FloatArray, variance: FloatArray, level: float, weights: FloatArray | None = None) -> Marginals:
        """Marginals of normal variables, or with ``weights`` of mixtures, whose arrays have a row per part."""
        std = np.sqrt(variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            positive = np.where(std > 0.0, ndtr(mean / std), np.where(mean > 0.0, 1.0, 0.0))
        if weights is None:
            reach = ndtri(0.5 + 0.5 * level) * std
            return cls(mean, std, mean - reach, mean + reach, positive)
        center = weights @ mean
        spread = np.sqrt(weights @ (variance + np.square(mean - center)))
        lower, upper = (normal_mixture_quantile(weights, mean, std, 0.5 + 0.5 * sign * level) for sign in (-1.0, 1.0))
        return cls(center, spread, lower, upper, weights @ positive)

    def changed(self, unit: Any, offset: Any) -> Marginals:
        """Multiply by positive units, and add offsets."""
        mean, lower, upper = (unit * a + offset for a in (self.mean, self.lower, self.upper))
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.where(self.std > 0.0, ndtr(mean / (unit * self.std)), np.where(mean > 0.0, 1.0, 0.0))
        return Marginals(mean, unit * self.std, lower, upper, np.where(offset == 0.0, self.positive, moved))

    def at(self, order: Any) -> Marginals:
        """Choose some coefficients."""
        return Marginals(*(a[order] for a in self))


def coefficient_columns(
    labels: list[Any],
    found: Marginals,
    level: float,
    is_log: bool,
    components: Sequence[tuple[str, float, float, float, float]] = (),
) -> tuple[list[Any], dict[str, FloatArray]]:
    """Labels, and mean, standard deviation, interval and probability to be positive, one coefficient per row.

    ``is_log`` adds the exponential of mean and interval: of log odds an odds ratio, of a log mean a ratio of means.
    Variance components, each a name, a value, its standard error and an interval, follow as further rows.
    """
    lower, upper = (f"{end} {100.0 * level:g}%" for end in ("lower", "upper"))
    columns = {"mean": found.mean, "std": found.std, lower: found.lower, upper: found.upper, "P(> 0)": found.positive}
    if is_log:
        with np.errstate(over="ignore"):
            ratios = {"exp(mean)": found.mean, f"exp({lower})": found.lower, f"exp({upper})": found.upper}
            columns |= {name: np.exp(value) for name, value in ratios.items()}
    for name, *numbers in components:
        row = [*numbers, 1.0] + [np.nan] * (len(columns) - 5)
        columns = {key: np.append(old, new) for (key, old), new in zip(columns.items(), row, strict=True)}
        labels = [*labels, ("", name) if labels and isinstance(labels[0], tuple) else name]
    return labels, columns


def coefficient_table(labels: list[Any], columns: dict[str, FloatArray], kind: str = "class") -> Any:
    """Make a table of such columns; ``kind`` is what the first of two labels stands for."""
    if find_spec("pandas") is not None:
        pandas = import_module("pandas")
        grouped = bool(labels) and isinstance(labels[0], tuple)
        index = pandas.MultiIndex.from_tuples(labels, names=[kind, "coefficient"]) if grouped else labels
        table = pandas.DataFrame(columns, index=index)
        if not grouped:
            table.index.name = "coefficient"
        return table
    return _as_text([in_one(label) for label in labels], columns)


def in_one(label: Any) -> str:
    """Write a label, or a pair of them, as text."""
    return " ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def combinations(
    given: Any, names: Sequence[str], groups: Sequence[str] | None = None
) -> tuple[list[str], list[FloatArray]]:
    """Read linear combinations, ``{name: factor}`` or arrays in the order of the names; label them in words.

    Where there are groups, a combination may join them by keys ``(group, name)``: it is then an array of one row per
    group.
    """
    rows = []
    for one in given:
        if isinstance(one, Mapping):
            row = _from_dict(one, names, groups)
        else:
            try:
                row = np.asarray(one, dtype=np.float64)
            except (TypeError, ValueError):
                row = np.empty(0)
        if row.shape[-1:] != (len(names),) or row.ndim > 2 or not np.all(np.isfinite(row)):
            raise ValueError(
                f"a contrast must be a dict of names and finite factors, or {len(names)} finite numbers in the order "
                f"{_listed(names)}; got {shown(one)}"
            )
        rows.append(row)
    if not rows:
        raise ValueError("contrast needs at least one linear combination, such as {'x0': 1, 'x1': -1}")
    if len({row.ndim for row in rows}) > 1:
        raise ValueError("contrasts within and between classes cannot be mixed in one table: ask for two")
    long = [f"{group} {name}" for group in groups or () for name in names]
    return [_in_words(row.ravel(), long if row.ndim == 2 else names) for row in rows], rows


def _from_dict(given: Mapping[Any, Any], names: Sequence[str], groups: Sequence[str] | None) -> FloatArray:
    between = groups is not None and any(isinstance(key, tuple) for key in given)
    row = np.zeros((len(groups or ()), len(names))) if between else np.zeros(len(names))
    for key, factor in given.items():
        fits = isinstance(key, tuple) and len(key) == 2 and str(key[0]) in (groups or ())
        name = str(key[1]) if between and fits else str(key)
        if name not in names or between != fits:
            pairs = f", or pairs of a class among {', '.join(groups)} and such a name" if groups else ""
            raise ValueError(f"a contrast must name coefficients among {_listed(names)}{pairs}; got {key!r}")
        place = names.index(name)
        row[(list(groups or ()).index(str(key[0])), place) if between else place] += as_float(factor)
    return row


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


def _as_text(labels: list[str], columns: dict[str, FloatArray]) -> str:
    """Write columns of numbers under their names, the labels before them."""
    room = max([len("coefficient"), *map(len, labels)])
    lines = [f"{'coefficient':{room}s}" + "".join(f"{name:>14s}" for name in columns)]
    for label, *numbers in zip(labels, *columns.values(), strict=True):
        lines.append(f"{label:{room}s}" + "".join(f"{number:14.4g}" for number in numbers))
    return "\n".join(lines)
