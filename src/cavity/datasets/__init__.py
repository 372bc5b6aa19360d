"""The five UCI data sets of the paper, shipped with the package and checked on every load."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from cavity._types import FloatArray

from ._files import DataError
from ._tables import LOADERS, Column, Dataset

__all__ = ["NAMES", "DataError", "Dataset", "Design", "load", "paper"]

NAMES: tuple[str, ...] = tuple(LOADERS)
"""Names that `load` and `paper` know."""


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
    _require("name", name, NAMES)
    return LOADERS[name]()


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
    _require("scale", scale, ("norm", "std", "raw"))
    data = load(name)
    # The first column of ionosphere is a flag, the second is zero in every row.
    left_out = ("Attribute1", "Attribute2") if name == "ionosphere" else ()
    features = ((key, column) for key, column in data.features.items() if key not in left_out)
    columns = dict(pair for feature in features for pair in _numeric(*feature))
    centred = [column if scale == "raw" else column - column.mean() for column in columns.values()]
    X = np.column_stack([*centred, np.ones(data.labels.size)])
    if scale != "raw":
        lengths = np.linalg.norm(X, axis=0)
        X /= lengths if scale == "norm" else lengths / sqrt(len(X))
    return Design(X, data.labels, (*columns, "constant"))


def _numeric(name: str, column: Column) -> list[tuple[str, FloatArray]]:
    """Name and numbers of a column, or of one indicator per level but the first in text order, the reference."""
    if column.dtype.kind != "U":
        return [(name, column.astype(np.float64))]
    return [(f"{name}={level}", (column == level).astype(np.float64)) for level in np.unique(column)[1:]]


def _require(what: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, valid))}; got {value!r}")
