"""The five sets as raw columns and labels: one function per set."""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from cavity._types import FloatArray

from . import _files

Column: TypeAlias = FloatArray | NDArray[np.str_]
Kinds: TypeAlias = Mapping[str, type[float] | type[str]]


def _kinds(numbers: str, names: str) -> Kinds:
    """Kind of every column: numbers are named twice."""
    return {name: float if name in numbers.split() else str for name in names.split()}


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """One data set as its file states it, rows in file order.

    Attributes
    ----------
    name : str
        The name `load` knows it by.
    title : str
        The name people know it by.
    features : mapping of str to array
        Raw columns in file order: numbers as float64, categories as text.
    labels : array
        +1 for the positive class, -1 for the other.
    """

    name: str
    title: str
    features: Mapping[str, Column]
    labels: FloatArray

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the raw columns, in file order."""
        return tuple(self.features)


def haberman() -> Dataset:
    """Survival of breast cancer surgery; positive: died within five years."""
    kinds: Kinds = dict.fromkeys(("age", "year", "nodes"), float)
    return _dataset("haberman", "Haberman's survival", kinds, _rows("haberman.data"), positive="2")


def ionosphere() -> Dataset:
    """Radar returns; positive: a good one, which shows structure in the ionosphere."""
    kinds: Kinds = {f"Attribute{i}": float for i in range(1, 35)}
    return _dataset("ionosphere", "Ionosphere", kinds, _rows("ionosphere.data"), positive="g")


def breast_cancer() -> Dataset:
    """Cell nuclei of breast masses, from scikit-learn's copy; positive: malignant."""
    bunch = load_breast_cancer()
    names = map(str, bunch.feature_names)
    features = {name: column.copy() for name, column in zip(names, bunch.data.T, strict=True)}
    malignant = list(bunch.target_names).index("malignant")
    return Dataset("breast_cancer", "Breast cancer", features, _signs(bunch.target == malignant))


def bank() -> Dataset:
    """Telephone marketing of a bank; positive: the client subscribed a deposit."""
    _header, *rows = _rows("bank-full.csv", delimiter=";")
    kinds = _kinds(
        "age balance day duration campaign pdays previous",
        "age job marital education default balance housing loan contact day month duration campaign pdays previous "
        "poutcome",
    )
    return _dataset("bank", "Bank marketing", kinds, rows, positive="yes")


def census() -> Dataset:
    """Income from census data; positive: above 50 000 dollars a year."""
    kinds = _kinds(
        "age fnlwgt education-num capital-gain capital-loss hours-per-week",
        "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
        "capital-loss hours-per-week native-country",
    )
    return _dataset("census", "Census income", kinds, _rows("adult.data"), positive=" >50K")


# Data sets by name.
LOADERS: dict[str, Callable[[], Dataset]] = {
    "haberman": haberman,
    "ionosphere": ionosphere,
    "breast_cancer": breast_cancer,
    "bank": bank,
    "census": census,
}


def _rows(filename: str, delimiter: str = ",") -> list[list[str]]:
    lines = _files.text(filename).splitlines()
    return [row for row in csv.reader(lines, delimiter=delimiter) if row]  # adult.data ends with a blank line


def _dataset(name: str, title: str, kinds: Kinds, rows: list[list[str]], positive: str) -> Dataset:
    *columns, answers = zip(*rows, strict=True)
    pairs = zip(kinds.items(), columns, strict=True)
    features = {key: np.array(column, dtype=kind) for (key, kind), column in pairs}
    return Dataset(name, title, features, _signs(np.array(answers) == positive))


def _signs(is_positive: NDArray[np.bool_]) -> FloatArray:
    return np.where(is_positive, 1.0, -1.0)
