"""The five UCI data sets of the paper, shipped with the package and checked on every load."""

import bz2
import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from math import sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from cavity._types import FloatArray

__all__ = ["NAMES", "DataError", "Dataset", "Design", "load", "paper"]

NAMES: tuple[str, ...] = ("haberman", "ionosphere", "breast_cancer", "bank", "census")
"""Names that `load` and `paper` know."""

Column: TypeAlias = FloatArray | NDArray[np.str_]


class _Source(NamedTuple):
    """A data set's file, as UCI publishes it, its columns, those of numbers, and the label of its positive class."""

    title: str
    filename: str
    sha256: str
    names: str
    numbers: str
    positive: str


_HABERMAN = "age year nodes"
_IONOSPHERE = " ".join(f"Attribute{i}" for i in range(1, 35))
# Positive is: died within five years of surgery; a radar return that shows structure in the ionosphere; the client of
# the bank subscribed a deposit; an income above 50 000 dollars a year. In breast cancer: malignant.
_SOURCES = {
    "haberman": _Source(
        "Haberman's survival",
        "haberman.data",
        "b4b7a32586a5668f9f4d6dc8be9d1bc8cd4822523affb1f6b5bfc350681ef3e2",
        _HABERMAN,
        _HABERMAN,
        positive="2",
    ),
    "ionosphere": _Source(
        "Ionosphere",
        "ionosphere.data",
        "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd",
        _IONOSPHERE,
        _IONOSPHERE,
        positive="g",
    ),
    "bank": _Source(
        "Bank marketing",
        "bank-full.csv",
        "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
        "age job marital education default balance housing loan contact day month duration campaign pdays "
        "previous poutcome",
        "age balance day duration campaign pdays previous",
        positive="yes",
    ),
    "census": _Source(
        "Census income",
        "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
        "capital-gain capital-loss hours-per-week native-country",
        "age fnlwgt education-num capital-gain capital-loss hours-per-week",
        positive=" >50K",
    ),
}


class DataError(RuntimeError):
    """A data file of the package is missing or damaged; reinstall the package."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Design matrix and labels, rows in file order.

    Attributes
    ----------
    X : array, shape (n_rows, n_columns)
        C-contiguous; the last column is the constant.
    y : array, shape (n_rows,)
        Labels in {-1, +1}.
    names : tuple of str
        Column names: a number's own, ``column=level`` for a category, ``constant`` at last.
    """

    X: FloatArray
    y: FloatArray
    names: tuple[str, ...]


def load(name: str) -> Dataset:
    """Load one data set as raw columns, in the row order of its UCI file.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Returns
    -------
    Dataset
        Numeric columns as float64; categories as the text of the file, a leading space included.

    Raises
    ------
    ValueError
        If the name is unknown.
    DataError
        If the data file is missing or its checksum is not that of the UCI original.

    Examples
    --------
    >>> data = load("haberman")
    >>> data.feature_names
    ('age', 'year', 'nodes')
    >>> int((data.labels > 0).sum()), len(data.labels)
    (81, 306)
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(map(repr, NAMES))}; got {name!r}")
    if name == "breast_cancer":
        bunch = load_breast_cancer()
        names = map(str, bunch.feature_names)
        features: dict[str, Column] = {key: x.copy() for key, x in zip(names, bunch.data.T, strict=True)}
        is_positive = bunch.target == list(bunch.target_names).index("malignant")
        return Dataset(name, "Breast cancer", features, np.where(is_positive, 1.0, -1.0))
    source = _SOURCES[name]
    is_bank = name == "bank"  # the only file with a header, and with semicolons
    rows = list(csv.reader(_text(source).splitlines(), delimiter=";" if is_bank else ","))
    *columns, answers = zip(*(row for row in rows[is_bank:] if row), strict=True)  # adult.data ends with a blank line
    features = {
        key: np.array(column, dtype=float if key in source.numbers.split() else str)
        for key, column in zip(source.names.split(), columns, strict=True)
    }
    return Dataset(name, source.title, features, np.where(np.array(answers) == source.positive, 1.0, -1.0))


def paper(name: str, scale: str = "norm") -> Design:
    r"""Load one data set encoded as in the paper.

    Each category becomes one indicator column per level, its first level (in text order) dropped; each
    column :math:`x` is centred and a constant column of ones is appended, not centred. Then, over
    :math:`n` rows,

    .. math:: x \leftarrow x / \lVert x \rVert_2 \;(\text{norm}), \qquad
              x \leftarrow \sqrt{n}\, x / \lVert x \rVert_2 \;(\text{std}).

    The first two columns of ionosphere are left out.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    scale : str
        ``"norm"``: every column, the constant included, has Euclidean norm one. ``"std"``: every column
        has (population) variance one, and the constant is 1. ``"raw"``: columns as they come, neither centred
        nor scaled, and the constant is 1.

    Returns
    -------
    Design
        Matrix, labels and column names; rows in file order.

    Raises
    ------
    ValueError
        If the name or the scale is unknown.
    DataError
        As for `load`.

    Examples
    --------
    >>> design = paper("haberman", scale="std")
    >>> design.X.shape, design.names
    ((306, 4), ('age', 'year', 'nodes', 'constant'))
    """
    if scale not in ("norm", "std", "raw"):
        raise ValueError(f"scale must be one of 'norm', 'std', 'raw'; got {scale!r}")
    data = load(name)
    # The first column of ionosphere is a flag, the second is zero in every row.
    left_out = ("Attribute1", "Attribute2") if name == "ionosphere" else ()
    columns: dict[str, FloatArray] = {}
    for key, column in data.features.items():
        if column.dtype.kind == "U":  # one indicator per level but the first in text order, the reference
            levels = np.unique(column)[1:]
            columns |= {f"{key}={level}": (column == level).astype(np.float64) for level in levels}
        elif key not in left_out:
            columns[key] = column.astype(np.float64)
    centred = [column if scale == "raw" else column - column.mean() for column in columns.values()]
    X = np.column_stack([*centred, np.ones(data.labels.size)])
    if scale != "raw":
        lengths = np.linalg.norm(X, axis=0)
        X /= lengths if scale == "norm" else lengths / sqrt(len(X))
    return Design(X, data.labels, (*columns, "constant"))


def _text(source: _Source) -> str:
    """Read the file of a data set, exactly as published; `DataError` if it is missing, damaged or another one."""
    try:
        original = bz2.decompress((resources.files("cavity") / "data" / f"{source.filename}.bz2").read_bytes())
        found = hashlib.sha256(original).hexdigest()
        if found != source.sha256:
            raise ValueError(f"sha256 is {found}, must be {source.sha256}")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"data file {source.filename}.bz2 of cavity.datasets is damaged ({error}); "
            "install the package again: pip install --force-reinstall --no-deps . in its folder"
        ) from error
    return original.decode("ascii")
