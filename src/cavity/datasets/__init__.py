"""The five UCI data sets of the paper, shipped with the package and checked on every load."""

from ._encode import Design, encode
from ._files import DataError
from ._tables import LOADERS, Dataset

__all__ = ["NAMES", "DataError", "Dataset", "Design", "load", "paper"]

NAMES: tuple[str, ...] = tuple(LOADERS)
"""Names that `load` and `paper` know."""


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
    features = {key: column for key, column in data.features.items() if key not in left_out}
    return encode(features, data.labels, scale)


def _require(what: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, valid))}; got {value!r}")
