"""Parameters of the estimators, and groups of coefficients, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._checks import as_float, flag, nonnegative_number, one_of, shown, whole_number
from cavity.ep.hyperparameters import Group
from cavity.estimators._categories import columns_of
from cavity.estimators._progress import Verbose
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.factorial import FactorialGaussian

FloatArray = NDArray[np.float64]


# Largest size of an entry, a weight and a parameter, and of a target: their squares, times variances of any reasonable
# prior, are finite. The inverse of the first is the smallest prior variance and noise scale.
LARGEST_NUMBER, LARGEST_TARGET = 1e100, 1e150


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """What both estimators share, checked.

    ``named`` has the columns of every group that shares a variance which is to be found: all columns where
    ``prior_variance`` is None, else those of ``prior_groups`` and of categories.
    """

    prior_mean: FloatArray
    prior_variance: FloatArray | None
    named: dict[str, NDArray[np.intp]]
    categories: frozenset[str]
    intercept: bool
    intercept_variance: float
    covariance: str
    max_iter: int
    tol: float
    verbose: Verbose

    @classmethod
    def of(cls, model: Any, features: int | None = None) -> Parameters:
        """Check the parameters of an estimator; prior vectors also against the number of columns, once it is known."""
        variance = model.prior_variance
        each = None
        if isinstance(variance, str):
            if variance != "auto":
                raise ValueError(
                    f"prior_variance must be 'auto', a positive number or one number per feature, got {variance!r}"
                )
        else:
            each = _per_feature("prior_variance", variance, features)
            if not np.all((each >= 1.0 / LARGEST_NUMBER) & (each <= LARGEST_NUMBER)):
                raise _not_moderate("prior_variance", variance)
        check_groups(model.prior_groups)
        named = {} if features is None else named_groups(model, features)
        if each is not None:
            named.pop(REST, None)
        means = _per_feature("prior_mean", model.prior_mean, features)
        if not np.all(np.abs(means) <= LARGEST_NUMBER):
            raise ValueError(f"prior_mean must be finite and at most {LARGEST_NUMBER:g} in size")
        return cls(
            prior_mean=means,
            prior_variance=each,
            named=named,
            categories=frozenset(vars(model).get("categories_", ())),
            intercept=flag("fit_intercept", model.fit_intercept),
            intercept_variance=moderate_number("intercept_prior_variance", model.intercept_prior_variance),
            covariance=one_of("covariance", model.covariance, ("auto", "full", "sparse", "diagonal")),
            max_iter=whole_number("max_iter", model.max_iter, least=1),
            tol=nonnegative_number("tol", model.tol),
            verbose=_verbose(model.verbose),
        )

    def columns(self, sums: ColumnSums | None) -> Columns:
        """Centres and units of all columns: of those whose variance is to be found, by sums over the rows.

        Levels of categories, and columns whose variance is given, are left as they are.
        """
        found = Columns.plain(self.prior_mean.size)
        if sums is None:
            return found
        measured = sums.columns(self.intercept)
        for name, columns in self.named.items():
            if name not in self.categories:
                found.center[columns], found.unit[columns] = measured.center[columns], measured.unit[columns]
        return found

    def prior(
        self, spread: float, groups: Sequence[Group], columns: Columns, unit: float = 1.0, center: float = 0.0
    ) -> FactorialGaussian:
        """Prior of the coefficients, the intercept last, for columns in these units.

        ``spread`` is the variance that coefficients of a group whose variance is to be found give to the linear
        predictor at first. Given variances are in squares of ``unit``, given means in its multiples; ``center`` is the
        prior mean of the intercept.
        """
        given = self.prior_variance
        variances = (1.0 if given is None else given * columns.unit**2) * np.full(self.prior_mean.size, unit**2)
        for group in groups:
            variances[group.columns] = spread / group.size
        means = self.prior_mean * columns.unit * unit
        if self.intercept:
            intercept = center + unit * float(self.prior_mean @ columns.center)
            means, variances = np.append(means, intercept), np.append(variances, self.intercept_variance * unit**2)
        return FactorialGaussian.from_moments(means, variances)

    def same_prior(self, other: Parameters) -> bool:
        """Whether another asks for the same prior of as many features."""
        one, two = self.prior_variance, other.prior_variance
        return (
            (one is two if one is None or two is None else np.array_equal(one, two))
            and np.array_equal(self.prior_mean, other.prior_mean)
            and self.named.keys() == other.named.keys()
            and all(np.array_equal(columns, other.named[name]) for name, columns in self.named.items())
            and (not self.intercept or self.intercept_variance == other.intercept_variance)
        )

    def groups(self, sizes: FloatArray, rate: float, unit: float) -> tuple[Group, ...]:
        """Coefficients that share a prior variance which is to be found; none if all are given.

        ``sizes`` are mean squares of the columns in their units; ``rate`` is that of the exponential prior, for linear
        predictors in ``unit``.
        """
        found = []
        for name, columns in self.named.items():
            size = 1.0 if name in self.categories else float(np.sum(sizes[columns]))
            found.append(Group(columns, (size if 0.0 < size < np.inf else 1.0) / unit**2, rate))
        return tuple(found)


def moderate_number(name: str, value: Any) -> float:
    """Check a positive number whose square and its inverse are finite."""
    number = as_float(value)
    if not 1.0 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise _not_moderate(name, value)
    return number


def _verbose(value: Any) -> Verbose:
    """Check whether and how progress is shown."""
    if value is None or callable(value):
        told: Verbose = value
        return told
    try:
        return flag("verbose", value)
    except ValueError as error:
        raise ValueError(f"verbose must be True, False, None or a function, got {shown(value)}") from error


def _per_feature(name: str, value: Any, features: int | None) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    fits = array.ndim == 0 or (array.ndim == 1 and features in (None, array.size))
    if isinstance(value, bool | str | None.__class__) or not fits:
        which = "feature" if features is None else f"of {features} features"
        raise ValueError(f"{name} must be a number or one number for each {which}, got {shown(value)}")
    return np.broadcast_to(array, np.shape(array) or (features or 1,)).astype(np.float64)


def _not_moderate(name: str, value: Any) -> ValueError:
    bounds = f"from {1.0 / LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}"
    return ValueError(f"{name} must be positive and finite, {bounds}, got {shown(value)}")


# What the group of all columns that no other group has is called.
REST = "features"


def named_groups(model: Any, width: int) -> dict[str, NDArray[np.intp]]:
    """Columns of every group with a name: of columns of categories, and as ``prior_groups`` asks."""
    given = model.prior_groups
    levels = vars(model).get("categories_", {})
    groups = columns_of(model.n_features_in_, levels)
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    plain = [name for name in names if name not in levels] if levels else names
    count = width - sum(columns.size for columns in groups.values())
    for name, columns in _as_asked(given, count, plain).items():
        if name in groups:
            raise ValueError(f"prior_groups names {name!r}, which is a column of categories and has a variance already")
        groups[name] = columns
    taken = np.zeros(width, dtype=bool)
    for columns in groups.values():
        taken[columns] = True
    rest = np.flatnonzero(~taken)
    return {REST: rest, **groups} if rest.size else groups


def check_groups(given: Any) -> None:
    """Refuse what cannot name groups, before the data are looked at."""
    fits = given is None or isinstance(given, Mapping) or (isinstance(given, str) and given == "categories")
    if not fits and (isinstance(given, str | bytes) or np.ndim(given) != 1):
        raise ValueError(
            "prior_groups must be None, 'categories', one label per feature, or a dict of names and features, got "
            f"{shown(given)}"
        )


def _as_asked(given: Any, count: int, names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    if given is None:
        return {}
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
