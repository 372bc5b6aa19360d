"""Fitted attributes as numbers, arrays and names, and back; and whether what came back fits together."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any

import numpy as np
from scipy import sparse

from cavity._checks import as_float
from cavity.ep.hyperparameters import Group
from cavity.ep.natural import DenseNatural, DiagonalNatural, NaturalParameters, SparseNatural
from cavity.ep.result import Refusal, Status, Trace
from cavity.estimators._design import Data, KeptRows, Order, Totals
from cavity.estimators._plan import Plan
from cavity.estimators._preprocessing import Preprocessing
from cavity.factors import canonical
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses.joint import Normal, Softmax

# Attributes of a fitted model that have types of our own, and these types.
PACKED = (
    "_knowledge",
    "_priors",
    "_totals",
    "_columns",
    "_sums",
    "_free",
    "_kept",
    "_order",
    "plan_",
    "status_",
    "trace_",
)
_KNOWLEDGE = {"full": DenseNatural, "sparse": SparseNatural, "diagonal": DiagonalNatural}
_RECORDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *_KNOWLEDGE.values(),
        FactorialGaussian,
        Group,
        Plan,
        Totals,
        Columns,
        ColumnSums,
        Trace,
        Data,
        KeptRows,
        Order,
    )
}
_WORDS: dict[str, type[Enum]] = {"Status": Status, "Refusal": Refusal}
# Kinds of targets that a loss may be made for.
_TARGETS = ("signs", "reals", "counts", "positives", "classes")


def pack(value: Any) -> Any:
    """Write a value as dicts, lists, arrays, numbers and names, each dict with the name of its type."""
    name = type(value).__name__
    if name in _RECORDS:
        fields = getattr(value, "_fields", None) or value.__dataclass_fields__
        return {"type": name, **{field: pack(getattr(value, field)) for field in fields}}
    if name in _WORDS:
        return {"type": name, "name": value.name}
    if isinstance(value, Counter):
        return {"type": "Counter", "counts": [[pack(key), count] for key, count in value.items()]}
    if isinstance(value, tuple):
        return {"type": "tuple", "parts": [pack(part) for part in value]}
    if sparse.issparse(value):
        arrays = {"data": value.data, "indices": value.indices, "indptr": value.indptr}
        return {"type": value.format, **arrays, "shape": list(value.shape)}
    return value


def unpack(value: Any) -> Any:
    """Undo `pack`."""
    if not isinstance(value, dict):
        return value
    parts = {key: unpack(part) for key, part in value.items() if key != "type"}
    kind = value["type"]
    if kind in _RECORDS:
        return _RECORDS[kind](**parts)
    if kind in _WORDS:
        return _WORDS[kind][parts["name"]]
    if kind == "Counter":
        return Counter({unpack(key): count for key, count in parts["counts"]})
    if kind == "tuple":
        return tuple(unpack(part) for part in parts["parts"])
    # A CSC matrix is checked as CSR of the transpose, which has the same three arrays.
    data, indices, indptr = (np.asarray(parts[name]) for name in ("data", "indices", "indptr"))
    rows, columns = parts["shape"]
    if kind == "csr":
        return canonical(sparse.csr_array((data, indices, indptr), shape=(rows, columns)))
    return sparse.csc_array(canonical(sparse.csr_array((data, indices, indptr), shape=(columns, rows))).T)


def check_state(model: Any) -> None:
    """Raise `ValueError` unless the parts of a model fit together: shapes, kinds, finite numbers, proper posteriors."""
    if "_knowledge" not in vars(model):
        return
    parts = ("_priors", "_totals", "_columns", "_sums", "_free", "_loss", "_intercept")
    missing = [name for name in (*parts, "plan_", "status_", "trace_", "n_iter_") if name not in vars(model)]
    _need(not missing, f"it has no {', '.join(missing)}")
    features, intercept = vars(model).get("n_features_in_"), vars(model).get("_intercept")
    _need(isinstance(features, int) and features >= 1, f"n_features_in_ is {features!r}")
    _need(isinstance(intercept, bool), f"_intercept is {intercept!r}")
    _check_categories(vars(model).get("categories_", {}))
    if "preprocessing_" in vars(model):
        done = Preprocessing.of(model.preprocessing_)
        made = done.width + done.wide + len(vars(model).get("categories_", {}))
        _need(made == features, f"its preprocessing makes {made} columns, and it has {features}")
    _check_loss(model._loss)
    columns, count = model._width + int(intercept), len(model._knowledge)
    columns *= getattr(model._loss, "predictors", 1)
    _need(count >= 1 and len(model._priors) == count, "priors and posteriors differ in number")
    kind = _KNOWLEDGE.get(model.plan_.covariance)
    for known, prior in zip(model._knowledge, model._priors, strict=True):
        _need(isinstance(known, kind or ()), f"the plan says {model.plan_.covariance!r}")
        _need(prior.dim == columns and prior.is_proper, "a prior does not fit the columns")
        _check_knowledge(known, columns)
    _need(bool(np.all(np.isfinite(model._totals))), "the totals are not finite")
    _check_columns(model._columns, model._sums, model._width)
    _check_groups(model._free, columns)
    _need(isinstance(model.status_, Status), f"status_ is {model.status_!r}")
    names = vars(model).get("feature_names_in_")
    _need(names is None or np.shape(names) == (features,), "feature_names_in_ does not fit the columns")
    # One factorisation of a sparse matrix takes up to ten seconds, an average over hyperparameters up to a hundred.
    for posterior in model._whole_posteriors() if kind is SparseNatural else model.posterior_:
        finite = np.all(np.isfinite(posterior.mean)) and np.all(np.isfinite(posterior.variance))
        _need(bool(finite) and np.isfinite(posterior.log_mass), "a posterior is not finite")
    _check_kept(vars(model).get("_kept"), model, columns)
    model._check_own_state()


def _check_groups(groups: Any, columns: int) -> None:
    """Look at the groups of coefficients whose variances were found."""
    _need(isinstance(groups, tuple) and all(isinstance(group, Group) for group in groups), "its groups are no groups")
    for places, size, rate in groups:
        fine = np.ndim(places) == 1 and np.size(places) > 0 and np.asarray(places).dtype.kind == "i"
        _need(fine and np.min(places) >= 0 and np.max(places) < columns, "a group does not fit the columns")
        _need(0.0 < as_float(size) < np.inf and 0.0 <= as_float(rate) < np.inf, "a group's size is not positive")


def _check_columns(columns: Any, sums: Any, width: int) -> None:
    """Look at centres and units of the columns, and the sums behind them."""
    _need(isinstance(columns, Columns), "its columns are of another kind")
    shapes = all(np.shape(part) == (width,) for part in columns)
    _need(shapes and bool(np.all(np.isfinite(columns.center))), "centres do not fit the columns")
    _need(bool(np.all((columns.unit > 0.0) & (columns.unit < np.inf))), "a unit is not positive")
    if sums is not None:
        fits = isinstance(sums, ColumnSums) and all(np.shape(part) == (width,) for part in sums)
        _need(fits and not any(np.any(np.isnan(part)) for part in sums), "sums do not fit the columns")


def _check_kept(kept: Any, model: Any, columns: int) -> None:
    """Look at the last rows of a stream, if they are kept, and at what was known before them."""
    if kept is None:
        return
    width = model._width
    fine = isinstance(kept, KeptRows) and isinstance(kept.fitted, int) and isinstance(kept.parts, tuple)
    _need(fine and all(isinstance(part, Data) for part in kept.parts), "its last rows are of another kind")
    same = isinstance(kept.known, tuple) and len(kept.known) == len(model._knowledge)
    _need(same and all(isinstance(one, DenseNatural) for one in kept.known), "what was known before is no posterior")
    for known in kept.known:
        _check_knowledge(known, columns)
    _check_columns(kept.columns, None, width)
    numbers = (*kept.totals, *kept.noise, kept.scale)
    _need(bool(np.all(np.isfinite([as_float(one) for one in numbers]))) and kept.scale > 0.0, "a sum is not finite")
    for X, targets, weights, offset in kept.parts:
        shape, numbers = np.shape(X), X.data if sparse.issparse(X) else X
        _need(len(shape) == 2 and shape[1] == width, "its last rows do not fit the columns")
        _need(np.ndim(targets) == 2 and np.shape(targets)[1] == shape[0], "targets do not fit the last rows")
        for array in (numbers, targets, weights, offset):
            kind = np.asarray(0.0 if array is None else array)
            _need(kind.dtype.kind == "f" and bool(np.all(np.isfinite(kind))), "a number of the last rows is not finite")
        lengths = [np.shape(array) for array in (weights, offset) if array is not None]
        _need(all(length == shape[:1] for length in lengths), "weights or offsets do not fit the last rows")
        _need(weights is None or bool(np.all(weights > 0.0)), "a weight of the last rows is not positive")


def _check_loss(loss: Any) -> None:
    """Look for what is asked of a loss; of one that is a tuple the fields are numbers."""
    joint = isinstance(loss, Softmax | Normal)
    offers = all(callable(getattr(loss, name, None)) for name in (("value",) if joint else ("value", "derivatives")))
    _need(offers and getattr(loss, "targets", None) in _TARGETS, f"its loss is {loss!r}")
    _need(
        not isinstance(loss, Softmax) or (isinstance(loss.classes, int) and loss.classes > 2), f"its loss is {loss!r}"
    )
    if isinstance(loss, tuple):
        _need(all(np.isfinite(as_float(field)) for field in loss), f"its loss is {loss!r}")
    _need(as_float(getattr(loss, "scale", 1.0)) > 0.0, f"its loss is {loss!r}")


def _check_categories(levels: Any) -> None:
    """Look at the levels of columns of categories."""
    fine = isinstance(levels, dict) and all(isinstance(known, list) and known for known in levels.values())
    kinds = (str, int, float, bool)
    _need(fine and all(isinstance(one, kinds) for known in levels.values() for one in known), "its levels are no lists")


def _check_knowledge(known: NaturalParameters, columns: int) -> None:
    if isinstance(known, DiagonalNatural):
        _need(known.sites.dim == columns and known.sites.is_finite, "a product of Gaussians does not fit the columns")
        return
    information, shift = known.information, known.shift  # type: ignore[attr-defined]
    _need(shift.shape == (columns,) and shift.dtype == np.float64, "a shift does not fit the columns")
    _need(bool(np.all(np.isfinite(shift))), "a shift is not finite")
    _need(np.isfinite(known.log_scale), "a scale is not finite")  # type: ignore[attr-defined]
    _need(information.shape == (columns, columns), "an information matrix does not fit the columns")
    if isinstance(known, SparseNatural):
        border = known.border
        _need(border.ndim == 1 and border.dtype.kind == "i", "a border is not a list of columns")
        _need(border.size == 0 or (border.min() >= 0 and border.max() < columns), "a border does not fit the columns")
        _need(np.unique(border).size == border.size, "a border names a column twice")
        _need(bool(np.all(np.isfinite(information.data))), "an information matrix is not finite")
        entries = information.tocoo()
        _need(bool(np.all(entries.row <= entries.col)), "an information matrix is not an upper triangle")
        return
    _need(information.dtype == np.float64 and bool(np.all(np.isfinite(information))), "an information is not finite")
    _need(bool(np.array_equal(information, information.T)), "an information matrix is not symmetric")


def _need(condition: Any, fault: str) -> None:
    if not condition:
        raise ValueError(f"the model is not consistent: {fault}; take another copy of its file")
