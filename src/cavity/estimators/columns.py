"""Columns as users give them: levels of categories, preprocessing of tables, the encoded matrix and its prior."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import _check_y, _get_feature_names, check_X_y, validate_data

from cavity._checks import shown
from cavity._types import FloatArray
from cavity.ep.hyperparameters import Group
from cavity.estimators.parameters import LARGEST_NUMBER, Parameters, numbers_per_feature
from cavity.factors import canonical
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.factorial import FactorialGaussian
from cavity.terms.prior import Prior


class EncodedRows(NamedTuple):
    """Rows that a source has encoded for a model: they need no further look."""

    matrix: Any


class Preprocessing(NamedTuple):
    """What is done to the columns of a table, by their names."""

    numbers: tuple[str, ...]  # columns of numbers
    means: FloatArray  # what stands in for missing ones
    filled: tuple[str, ...] = ()  # those where the mean stands in for missing ones, which a column of 0 and 1 marks
    # Columns that a fit took for these, None where there was none: files need not be told again.
    target: str | None = None
    weight: str | None = None
    offset: str | None = None

    @property
    def features(self) -> list[str]:
        """Names of the columns that it makes."""
        return [*self.numbers, *(f"{name} (missing)" for name in self.filled)]

    @property
    def width(self) -> int:
        """Number of the columns that it makes of numbers."""
        return len(self.numbers) + len(self.filled)

    def apply(self, values: FloatArray) -> FloatArray:
        """Fill columns of numbers, and append which were missing."""
        if not self.filled:
            return values
        missing = np.isnan(values)
        found = np.where(missing, self.means, values)
        places = [self.numbers.index(name) for name in self.filled]
        return np.column_stack([found, missing[:, places]])

    def plain(self) -> dict[str, Any]:
        """Give names, numbers and arrays only."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Preprocessing:
        """Undo `plain`; `ValueError` unless all parts fit together."""
        try:
            numbers, filled = tuple(plain["numbers"]), tuple(plain["filled"])
            means = np.asarray(plain["means"], dtype=np.float64)
        except (KeyError, TypeError) as error:
            raise ValueError(f"the model is not consistent: its preprocessing lacks {error}") from error
        fits = means.shape == (len(numbers),) and set(filled) <= set(numbers) and bool(np.all(np.isfinite(means)))
        fits &= all(isinstance(name, str) for name in numbers)
        roles = [plain.get(name) for name in ("target", "weight", "offset")]
        fits &= all(name is None or isinstance(name, str) for name in roles)
        if not fits:
            raise ValueError("the model is not consistent: its preprocessing does not fit together")
        return cls(numbers, means, filled, *roles)

    def frame(self, X: Any, categories: Sequence[str]) -> Any:
        """Apply it to a DataFrame, which keeps columns of numbers and of categories."""
        if not hasattr(X, "columns"):
            raise ValueError(f"X must be a table or a DataFrame with the columns {[*self.numbers, *categories]}")
        lacking = [name for name in (*self.numbers, *categories) if name not in X.columns]
        if lacking:
            raise ValueError(f"X has no column {lacking[0]!r}; it needs {[*self.numbers, *categories]}")
        values = np.empty((len(X), len(self.numbers)))
        for k, name in enumerate(self.numbers):
            values[:, k] = np.asarray(X[name], dtype=np.float64)
        made = dict(zip(self.features, self.apply(values).T, strict=True))
        return type(X)({**made, **{name: X[name] for name in categories}})


def encode_rows(
    numbers: FloatArray,
    codes: NDArray[np.int64],
    levels: Sequence[int],
    preprocessing: Preprocessing,
    dense: bool,
    constant: bool = False,
) -> Any:
    """Encode rows: numbers preprocessed, then one column per level and one for levels that are not known.

    ``codes`` has one column per column of categories, the number of levels for one that is not known. CSR without
    stored zeros, or dense, and then with a column of ones at the end if ``constant``.
    """
    made, n = preprocessing.apply(numbers), len(numbers)
    first = made.shape[1]
    starts = first + np.concatenate([[0], np.cumsum(np.asarray(levels, dtype=np.int64) + 1)])
    width = int(starts[-1])
    if dense or not len(levels):
        rows = np.zeros((n, width + constant))
        rows[:, :first] = made
        rows[:, width:] = 1.0
        for k in range(len(levels)):
            rows[np.arange(n), starts[k] + codes[:, k]] = 1.0
        return rows
    return with_levels(made, codes + starts[:-1], width)


def with_levels(numbers: FloatArray, columns: NDArray[np.int64], width: int) -> Any:
    """Append to rows of numbers a one in each of some columns, which every row names; CSR without stored zeros."""
    (n, first), count = numbers.shape, columns.shape[1]
    data, indices = np.ones((n, first + count)), np.empty((n, first + count), dtype=np.int32)
    data[:, :first], indices[:, :first], indices[:, first:] = numbers, np.arange(first), columns
    starts = np.arange(n + 1, dtype=np.int64) * data.shape[1]
    starts = starts if starts[-1] > np.iinfo(np.int32).max else starts.astype(np.int32)
    found = sparse.csr_array((data.ravel(), indices.ravel(), starts), shape=(n, width))
    found.eliminate_zeros()
    return found


Levels = dict[str, list[Any]]

# A whole number as files write a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)\.0")


def level_text(level: Any) -> str:
    """Write a level as text: 5, 5.0, "5" and "5.0" are one level, whatever type a column has."""
    if isinstance(level, float | np.floating) and level.is_integer():
        return str(int(level))
    text = str(level)
    return text[:-2] if _WHOLE.fullmatch(text) else text


def level_order(level: str) -> tuple[bool, float, str]:
    """Key by which levels are sorted: numbers by their value, then other text."""
    try:
        value = float(level)
    except ValueError:
        value = np.inf
    return (False, value, level) if isfinite(value) else (True, 0.0, level)


def levels_of(X: Any) -> Levels:
    """Levels of every column of categories, by its name; none where ``X`` is not such a table."""
    if not (hasattr(X, "dtypes") and hasattr(X, "shape")):
        return {}
    found: Levels = {}
    for place, name in enumerate(X.columns):
        column = X.iloc[:, place] if hasattr(X, "iloc") else X[name]
        if _is_number(column.dtype):
            continue
        if getattr(column.dtype, "kind", "O") == "M" or str(column.dtype).startswith(("Date", "Datetime")):
            days = "days" if hasattr(X, "iloc") else "total_days()"  # of pandas, of polars
            raise ValueError(
                f"column {name!r} holds dates, which are not numbers: convert it, for example to days since the first "
                f"by (X[{name!r}] - X[{name!r}].min()).dt.{days}, or drop it"
            )
        levels = list(dict.fromkeys(_coded(column, name)[1]))
        if not getattr(column.dtype, "ordered", False):
            levels.sort(key=level_order)
        if not levels:
            raise ValueError(f"column {name!r} has no levels: it needs at least one row or one category")
        found[str(name)] = levels
    return found


def encode(X: Any, levels: Levels, unseen: bool) -> Any:
    """Numbers first, then one column per level and one for levels that are not known; CSR.

    Where ``unseen`` is False a level that is not known is an error.
    """
    numbers = [name for name in X.columns if str(name) not in levels]
    width, columns = len(numbers), np.empty((X.shape[0], len(levels)), dtype=np.int64)
    for k, (name, known) in enumerate(levels.items()):
        columns[:, k] = width + _codes(X[next(c for c in X.columns if str(c) == name)], name, known, unseen)
        width += len(known) + 1
    with naming_columns(X[numbers]):
        values = check_array(X[numbers], dtype=np.float64) if numbers else np.empty((X.shape[0], 0))
    return with_levels(values, columns, width)


@contextmanager
def naming_columns(X: Any) -> Iterator[None]:
    """Let scikit-learn's error of a number in ``X`` that is missing or infinite name its columns, and what to do."""
    try:
        yield
    except ValueError as error:
        found = re.match(r"Input (?:X )?contains (NaN|infinity)", str(error))
        if found is None:
            raise
        values = check_array(X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        bad = (np.isnan if found[1] == "NaN" else np.isinf)(values.data if sparse.issparse(values) else values)
        where = sparse.csr_array((bad, values.indices, values.indptr), values.shape) if bad.ndim == 1 else bad
        rows, columns = (np.unique(places) for places in where.nonzero())
        names = [repr(str(X.columns[j])) if hasattr(X, "columns") else str(j) for j in columns[:10]]
        more = f" and {columns.size - 10} more" if columns.size > 10 else ""
        advice = "drop these rows, or replace the values"
        if found[1] == "NaN":
            advice = "drop these rows, or fill them, for example by sklearn.impute.SimpleImputer(add_indicator=True)"
        raise ValueError(
            f"Input X contains {found[1]} in {rows.size} of {values.shape[0]} rows, in "
            f"{'column' if columns.size == 1 else 'columns'} {', '.join(names)}{more}: {advice}"
        ) from error


def _codes(column: Any, name: str, known: list[Any], unseen: bool) -> NDArray[np.intp]:
    """Give the number of every row's level among the known ones, or their count where it is none of them."""
    codes, given = _coded(column, name)
    places = {level_text(level): j for j, level in enumerate(known)}
    each = np.array([places.get(level, len(known)) for level in given], dtype=np.intp)
    found: NDArray[np.intp] = each[codes]
    if not unseen and np.any(found == len(known)):
        new = [shown(level) for level in sorted({given[j] for j in np.unique(codes[found == len(known)])})]
        raise ValueError(
            f"column {name!r} has levels that were not among the known ones: {', '.join(new[:10])}; give it a "
            "categorical type that names all levels before the first call"
        )
    return found


def _coded(column: Any, name: Any) -> tuple[NDArray[Any], list[str]]:
    """Give the number of every row's level, and the levels: Python looks at each level once, not at each row."""
    if bool((column.isna() if hasattr(column, "isna") else column.is_null()).any()):
        raise ValueError(f"column {name!r} has missing values: give them a level of their own, such as 'missing'")
    try:
        if not hasattr(column, "factorize"):
            codes, each = _of_polars(column)
        elif hasattr(column, "cat"):
            codes, each = column.cat.codes, column.cat.categories
        else:
            codes, each = column.factorize()
    except TypeError:  # a level without a hash, such as a list
        raise ValueError(f"column {name!r} must hold strings, numbers or categories of these") from None
    return np.asarray(codes), [_text(level, name) for level in each]


def _of_polars(column: Any) -> tuple[Any, list[Any]]:
    """Do the same for a column of polars: an ``Enum`` names all its levels, other types have those that occur."""
    if str(column.dtype).startswith("Enum"):
        return column.to_physical(), list(column.dtype.categories)
    places: dict[Any, int] = {}
    return [places.setdefault(level, len(places)) for level in column], list(places)


def names_of(features: list[str], levels: Levels) -> list[str]:
    """Names of the columns that `encode` makes."""
    names = [name for name in features if name not in levels]
    for name, known in levels.items():
        names += [*(f"{name}={level}" for level in known), f"{name}=(unseen)"]
    return names


def columns_of(features: int, levels: Levels) -> dict[str, NDArray[np.intp]]:
    """Which of the columns that `encode` makes belong to which column of categories."""
    start, found = features - len(levels), {}
    for name, known in levels.items():
        found[name] = np.arange(start, start + len(known) + 1)
        start += len(known) + 1
    return found


def _is_number(dtype: Any) -> bool:
    if hasattr(dtype, "is_numeric"):  # polars
        return bool(dtype.is_numeric()) or str(dtype) == "Boolean"
    return getattr(dtype, "kind", "O") in "biufc" and not hasattr(dtype, "categories")


def _text(level: Any, name: Any) -> str:
    """Give a level that is a string, number or truth value as text."""
    if not isinstance(level, str | int | float | bool | np.number | np.bool_):
        raise ValueError(f"column {name!r} must hold strings, numbers or categories of these, got {shown(level)}")
    return level_text(level)


# Types of the entries of X that are kept as they are.
_KINDS = (np.float64, np.float32)


class FirstRows(NamedTuple):
    """Rows of a first call: checked and encoded, with their targets, and what names their columns."""

    matrix: Any
    targets: Any
    features: int
    names: Any
    levels: Levels

    @classmethod
    def of(cls, estimator: Any, X: Any, y: Any, numeric: bool) -> FirstRows:
        """Check rows and targets; ``numeric`` says whether targets must be numbers."""
        levels, names = levels_of(X) if hasattr(X, "columns") else {}, _get_feature_names(X)
        if not levels:
            matrix, y = _checked_numbers(X, partial(check_X_y, y=y, estimator=estimator, y_numeric=numeric))
            return cls(matrix, y, matrix.shape[1], names, levels)
        if y is None:
            raise ValueError(f"This {type(estimator).__name__} estimator requires y to be passed, but y is None")
        matrix, features = within_limits(encode(X, levels, unseen=False)), X.shape[1]
        return cls(matrix, _checked_targets(estimator, matrix, y, numeric), features, names, levels)


@dataclass(frozen=True, eq=False)
class ColumnDesign:
    """Plain columns, and columns of categories with a coefficient per level: their names, groups and prior.

    Parameters
    ----------
    features
        Number of columns that users give, a column of categories counted once.
    feature_names
        Their names; None where they have none.
    levels
        Levels of every column of categories.
    preprocessing
        What columns of a table went through, in plain form; None for other rows.
    intercept, intercept_variance
        Whether there is an intercept, and its prior variance.
    means, variances
        Prior means and variances of the coefficients; None where variances are to be found for all of them.
    groups
        Columns of every group that shares a variance which is to be found: all columns where no variances are given,
        else those of ``prior_groups`` and of categories.
    """

    features: int
    feature_names: Any
    levels: Levels
    preprocessing: Any
    intercept: bool
    intercept_variance: float
    means: FloatArray
    variances: FloatArray | None
    groups: dict[str, NDArray[np.intp]]

    offsets = ()  # of formulas

    @classmethod
    def of(
        cls, p: Parameters, features: int, names: Any = None, levels: Levels | None = None, preprocessing: Any = None
    ) -> ColumnDesign:
        """Find the prior and the groups of these columns, by the parameters of an estimator."""
        levels = levels or {}
        width = features + sum(len(known) for known in levels.values())
        each = p.prior_variance
        if each is not None:
            each = numbers_per_feature("prior_variance", each, width) * np.ones(width)
        groups = columns_of(features, levels) if levels else {}
        if p.prior_groups is not None:
            plain = [] if names is None else [str(name) for name in names if name not in levels]
            for name, columns in _as_asked(p.prior_groups, features - len(levels), plain).items():
                if name in groups:
                    raise ValueError(
                        f"prior_groups names {name!r}, which is a column of categories and has a variance already"
                    )
                groups[name] = columns
        rest = np.setdiff1d(np.arange(width), np.concatenate([np.empty(0, dtype=np.intp), *groups.values()]))
        if each is None and rest.size:
            groups = {REST: rest, **groups}
        means = numbers_per_feature("prior_mean", p.prior_mean, width) * np.ones(width)
        intercept = p.intercept, p.intercept_variance
        return cls(features, names, levels, preprocessing, *intercept, means, each, groups)

    def with_parameters(self, p: Parameters) -> ColumnDesign:
        """Columns as these, with the prior that other parameters ask for."""
        return ColumnDesign.of(p, self.features, self.feature_names, self.levels, self.preprocessing)

    @cached_property
    def width(self) -> int:
        """Number of coefficients of a linear predictor, the intercept not counted."""
        return self.means.size

    @property
    def names(self) -> list[str]:
        """Names of the coefficients, the intercept left out."""
        features = [f"x{j}" for j in range(self.features)] if self.feature_names is None else self.feature_names
        return names_of([str(name) for name in features], self.levels)

    @property
    def effects(self) -> tuple[NDArray[np.intp], ...]:
        """Columns of coefficients that are reported relative to their mean, the last of which does not count in it."""
        return tuple(columns_of(self.features, self.levels).values())

    @property
    def needs_sums(self) -> bool:
        """Whether sums over the rows decide on centres and units of columns."""
        return bool(self.groups.keys() - self.levels.keys())

    # Reading.

    def is_plain(self, X: Any) -> bool:
        """Whether rows need no further look: finite, of the right kind, order and width, and without names."""
        return (
            type(X) is np.ndarray
            and X.ndim == 2
            and X.dtype in _KINDS
            and X.flags.c_contiguous
            and X.shape[0] > 0
            and X.shape[1] == self.features
            and self.feature_names is None
            and not self.levels
            and float(np.max(np.abs(X))) <= LARGEST_NUMBER
        )

    def matrix(self, estimator: Any, X: Any, exclude: Sequence[str] = ()) -> Any:
        """Check and encode rows of an estimator that has this design; levels that are not known have a column."""
        if len(exclude):
            raise ValueError(f"exclude leaves out terms, and this model has none, got {shown(exclude)}")
        if self.is_plain(X):
            return X
        if isinstance(X, EncodedRows):
            return X.matrix
        if self.preprocessing is not None:
            X = Preprocessing.of(self.preprocessing).frame(X, list(self.levels))
        if self.levels:
            self._check_table(estimator, X)
            return within_limits(encode(X, self.levels, unseen=True))
        return _checked_numbers(X, partial(validate_data, estimator, reset=False))

    def rows(self, estimator: Any, X: Any, y: Any, numeric: bool) -> tuple[Any, Any]:
        """Check and encode rows with their targets; all levels must be known."""
        if isinstance(X, EncodedRows):
            return X.matrix, _check_y(y, y_numeric=numeric, estimator=estimator)
        if self.preprocessing is not None:
            X = Preprocessing.of(self.preprocessing).frame(X, list(self.levels))
        if self.levels:
            self._check_table(estimator, X)
            matrix = within_limits(encode(X, self.levels, unseen=y is None))
            return matrix, _checked_targets(estimator, matrix, y, numeric)
        found: tuple[Any, Any] = _checked_numbers(
            X, partial(validate_data, estimator, y=y, reset=False, y_numeric=numeric)
        )
        return found

    def _check_table(self, estimator: Any, X: Any) -> None:
        if not hasattr(X, "columns"):
            names = range(self.features) if self.feature_names is None else self.feature_names
            raise ValueError(f"X must be a DataFrame with the columns {list(names)}, as it was in fit")
        validate_data(estimator, X, reset=False, skip_check_array=True)

    # Prior.

    def columns(self, sums: ColumnSums | None) -> Columns:
        """Centres and units of all columns: of those whose variance is to be found, by sums over the rows.

        Levels of categories, and columns whose variance is given, are left as they are.
        """
        found = Columns.plain(self.width)
        if sums is None:
            return found
        measured = sums.columns(self.intercept)
        for name, columns in self.groups.items():
            if name not in self.levels:
                found.center[columns], found.unit[columns] = measured.center[columns], measured.unit[columns]
        return found

    def prior(
        self,
        columns: Columns,
        sizes: FloatArray,
        spread: float,
        rate: float,
        unit: float = 1.0,
        center: float = 0.0,
        predictors: int = 1,
    ) -> tuple[Prior, tuple[Group, ...]]:
        """Prior of the coefficients, the intercept last, for columns in these units, and groups to be found.

        Parameters
        ----------
        columns
            Centres and units of the columns.
        sizes
            Mean squares of the columns in these units.
        spread
            Variance that a group gives to the linear predictor at first.
        rate
            Rate of the half-normal prior of its standard deviation, for linear predictors in ``unit``.
        unit, center
            Given variances are in squares of ``unit``, given means in its multiples; ``center`` is the prior mean of
            the intercept.
        predictors
            Number of linear predictors, which have the same prior.
        """
        given, groups = self.variances, []
        variances = (1.0 if given is None else given * columns.unit**2) * np.full(self.width, unit**2)
        width = self.width + self.intercept
        for name, places in self.groups.items():
            total = 1.0 if name in self.levels else float(np.sum(sizes[places]))
            size = (total if 0.0 < total < np.inf else 1.0) / unit**2
            variances[places] = spread / size
            groups.append(Group((places + width * np.arange(predictors)[:, None]).ravel(), size, rate))
        means = self.means * columns.unit * unit
        if self.intercept:
            intercept = center + unit * float(self.means @ columns.center)
            means, variances = np.append(means, intercept), np.append(variances, self.intercept_variance * unit**2)
        return FactorialGaussian.from_moments(np.tile(means, predictors), np.tile(variances, predictors)), tuple(groups)

    def same_prior(self, other: Any) -> bool:
        """Whether another asks for the same prior of as many features."""
        one, two = self.variances, other.variances
        return (
            (one is two if one is None or two is None else np.array_equal(one, two))
            and np.array_equal(self.means, other.means)
            and self.groups.keys() == other.groups.keys()
            and all(np.array_equal(columns, other.groups[name]) for name, columns in self.groups.items())
            and (not self.intercept or self.intercept_variance == other.intercept_variance)
        )


def _checked_numbers(X: Any, check: Any) -> Any:
    """Let scikit-learn check an array, a sparse matrix or a table of numbers, and targets with it."""
    if sparse.issparse(X) and X.format == "csr":
        X = canonical(X)  # before anything in compiled code walks along its indices
    # A wide matrix, of which columns are read, stays in the order that it has.
    is_wide = isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[0] < X.shape[1]
    try:
        found = check(X=X, accept_sparse="csr", dtype=_KINDS, order=None if is_wide else "C")
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            with naming_columns(X):
                raise
        raise ValueError(
            f"X holds strings ({error}): pass a DataFrame of pandas or polars, whose columns of strings are "
            "categories, or encode them"
        ) from error
    if isinstance(found, tuple):
        return within_limits(found[0]), found[1]
    return within_limits(found)


def _checked_targets(estimator: Any, matrix: Any, y: Any, numeric: bool) -> Any:
    y = _check_y(y, multi_output=False, y_numeric=numeric, estimator=estimator)
    check_consistent_length(matrix, y)
    return y


def within_limits(rows: Any) -> Any:
    """Refuse numbers whose squares, times a prior variance, may not be finite; sparse rows become canonical."""
    entries = rows.data if sparse.issparse(rows) else rows
    if entries.size and max(float(np.max(entries)), -float(np.min(entries))) > LARGEST_NUMBER:
        raise ValueError(f"X must hold numbers of at most {LARGEST_NUMBER:g} in size; scale its columns")
    return canonical(rows) if sparse.issparse(rows) else rows


# What the group of all columns that no other group has is called.
REST = "features"


def _as_asked(given: Any, count: int, names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    if isinstance(given, Mapping):
        return _from_dict(given, count, names)
    if isinstance(given, str):
        if not names:
            raise ValueError("prior_groups='categories' needs the names of an encoder: pass X as a DataFrame")
        labels: list[Any] = [name.rpartition("_")[0] or REST for name in names]
        labels = [label if labels.count(label) > 1 else REST for label in labels]
    else:
        labels = list(given)
        if len(labels) != count:
            raise ValueError(f"prior_groups must have one label for each of {count} features, got {len(labels)}")
    found: dict[str, NDArray[np.intp]] = {}
    for label in dict.fromkeys(labels):
        if str(label) != REST:
            found[str(label)] = np.array([j for j, other in enumerate(labels) if other == label])
    return found


def _from_dict(given: Mapping[Any, Any], count: int, names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    found: dict[str, NDArray[np.intp]] = {}
    seen: set[int] = set()
    for group, members in given.items():
        columns = [_column(one, count, names) for one in ([members] if isinstance(members, str | int) else members)]
        if not columns:
            raise ValueError(f"prior_groups: group {group!r} has no features; leave it out")
        twice = seen.intersection(columns)
        if twice or len(set(columns)) < len(columns):
            raise ValueError(f"prior_groups names a feature twice, the last time in group {group!r}")
        seen.update(columns)
        found[str(group)] = np.array(columns)
    return found


def _column(member: Any, count: int, names: Sequence[str]) -> int:
    if isinstance(member, str):
        if member not in names:
            known = ", ".join(names[:10]) or "none: X has no names, use numbers of columns"
            raise ValueError(f"prior_groups names the feature {member!r}, which is not among: {known}")
        return list(names).index(member)
    if not isinstance(member, int | np.integer) or not 0 <= member < count:
        raise ValueError(f"prior_groups must name features or columns from 0 to {count - 1}, got {shown(member)}")
    return int(member)
