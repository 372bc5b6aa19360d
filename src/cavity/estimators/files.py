"""Files of models: a zip archive of a JSON header and NumPy arrays, with nothing in it that could be run.

The header, ``cavity.json``, has the number of the format, the version of the library, and the model as a tree. Numbers,
text and lists stand for themselves; everything else has a ``type``: ``{"type": "array", "member": 0}`` is the member
``0.npy``, ``{"type": "tuple", "parts": [1, 2]}`` a tuple, ``{"type": "object", "class": "Huber", "fields": {...}}`` a
value of a class. Classes are those of this library, estimators of scikit-learn, and those that the reader passes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import sklearn
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from cavity import losses
from cavity._checks import as_float
from cavity._version import __version__
from cavity.ep.hyperparameters import Group
from cavity.ep.posteriors import DenseNatural, DiagonalNatural, SparseNatural
from cavity.ep.result import Refusal, Status, Trace
from cavity.ep.skewness import Shapes
from cavity.ep.wide import LinearKernel, RowsNatural
from cavity.estimators.checkpoints import PLAIN_KINDS, blaming, opened, read_array, replaced, write_array
from cavity.estimators.classifier import EPClassifier
from cavity.estimators.columns import ColumnDesign, Preprocessing
from cavity.estimators.fitted import Fitted, StreamState
from cavity.estimators.labels import Labels
from cavity.estimators.numbers import Numbers
from cavity.estimators.parameters import Plan
from cavity.estimators.regressor import EPRegressor
from cavity.estimators.row_findings import Densities, RowFindings
from cavity.estimators.rows import Data, KeptRows, Order, Totals
from cavity.estimators.term_design import TermDesign
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.wide import WideRows
from cavity.losses import joint
from cavity.terms import Autoregressive, Design, Effects, Formula, Known, Linear, Neighbours, Smooth, Walk
from cavity.terms.prior import Block, Prior, StructuredPrior
from cavity.terms.structures import Correlated, Exponential, Scaled

_HEADER, _FORMAT = "cavity.json", 3
_MODELS = (EPClassifier, EPRegressor)
_COVARIANCES = {"full": DenseNatural, "sparse": SparseNatural, "rows": RowsNatural, "diagonal": DiagonalNatural}
_PARTS_OF_MODELS = (
    *(Fitted, StreamState, ColumnDesign, TermDesign, Labels, Numbers),
    *(RowFindings, Densities, Shapes, LinearKernel, WideRows),
)
_STATE = (FactorialGaussian, Group, Plan, Totals, Columns, ColumnSums, Trace, Data, KeptRows, Order, Refusal, Status)
_STRUCTURES = (Block, StructuredPrior, Correlated, Exponential, Scaled)
_TERMS = (Autoregressive, Effects, Formula, Known, Linear, Neighbours, Smooth, Walk)
_LOSSES = [getattr(place, name) for place in (losses, joint) for name in place.__all__]
_PLAIN = (bool, int, float, str, object)
_OWN = {
    c.__name__: c
    for c in (*_MODELS, *_COVARIANCES.values(), *_PARTS_OF_MODELS, *_STATE, *_STRUCTURES, *_TERMS, *_LOSSES, *_PLAIN)
}
_SCALARS = (np.float64, np.float32, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint8, np.bool_, np.str_)
_COMPRESSED = (sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.csc_matrix)
# Kinds of targets that a loss may be made for.
_TARGETS = ("signs", "reals", "counts", "positives", "classes")


def _mapping(kind: Any, *items: Any) -> Any:
    """Make a mapping of its items."""
    made = kind()
    made.update(dict(items))
    return made


def _matrix(kind: Any, data: Any, indices: Any, indptr: Any, shape: Any) -> Any:
    """Make a sparse matrix of its parts, with every index looked at: compiled code trusts them later."""
    matrix = kind((data, indices, indptr), shape=tuple(shape))
    matrix.check_format(full_check=True)
    return matrix


def _random_state(name: str, key: Any, place: int, *spare: Any) -> np.random.RandomState:
    """Make a random state; NumPy would read numbers beyond the end of its key."""
    _need(len(key) == 624 and isinstance(place, int) and 0 <= place <= 624, "its random state is none")
    made = np.random.RandomState()
    made.set_state((name, key, place, *spare))
    return made


# Types with parts: how to take a value apart, and how to make one of such parts.
_PARTS: dict[str, tuple[Any, Any, Any]] = {
    kind.__name__: (kind, apart, make)
    for kind, apart, make in (
        (tuple, list, lambda *parts: parts),
        (set, list, lambda *parts: set(parts)),
        (frozenset, list, lambda *parts: frozenset(parts)),
        *((kind, lambda v: map(list, v.items()), partial(_mapping, kind)) for kind in (dict, Counter, Bunch)),
        (slice, lambda v: (v.start, v.stop, v.step), slice),
        (np.random.RandomState, lambda v: v.get_state(), _random_state),
        (np.dtype, lambda v: (v.str,), np.dtype),
        (Design, lambda v: (v.plain(),), Design.of),
        *((kind, lambda v: (v.item(),), kind) for kind in _SCALARS),
        *(
            (kind, lambda v: (v.data, v.indices, v.indptr, list(v.shape)), partial(_matrix, kind))
            for kind in _COMPRESSED
        ),
    )
}


def save(model: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Save a model to a file. The file is written completely or not at all.

    Parameters
    ----------
    model
        An `EPClassifier`, an `EPRegressor`, or a scikit-learn pipeline that contains one.
    path
        Path of the file. An existing file is replaced and keeps its permissions; a link is followed.

    Raises
    ------
    TypeError
        If it is not an estimator, or contains something that files cannot hold, such as the trees of a forest.
    """
    if not isinstance(model, BaseEstimator):
        raise TypeError(f"model must be an estimator, got {type(model).__name__}")
    if type(model).__module__.startswith("cavity.") and not isinstance(model, _MODELS):
        raise TypeError(
            "a file of a model cannot hold a Gaussian process, whose kernel may be anyone's; joblib.dump can"
        )
    arrays: list[Any] = []
    header = {"format": _FORMAT, "cavity": __version__, "model": _described(model, arrays)}
    with replaced(path) as file, ZipFile(file, "w") as archive:
        archive.writestr(ZipInfo(_HEADER), json.dumps(header))
        for k, array in enumerate(arrays):
            write_array(archive, f"{k}.npy", array)


def load(path: str | os.PathLike[str], trusted: Sequence[Any] = ()) -> Any:
    """Load a model from a file written by `save`. Loading runs no code from the file.

    Parameters
    ----------
    path
        Path of the file. The memory needed is proportional to its size, or, for a model with a sparse precision
        matrix, at most what a fit may need.
    trusted
        Classes and functions of your own that the file may contain, such as the class of your loss, ``[MyLoss]``. The
        file only has their names; what is passed here is used. Losses of cavity and estimators of scikit-learn need not
        be passed.

    Returns
    -------
    BaseEstimator
        The model as it was saved.

    Raises
    ------
    ValueError
        If the file was not written by `save`, is damaged, has another format, contains types that are not trusted, or
        contains an inconsistent model, or one that would need more memory or time than any fit. No code from the file
        has been run.
    """
    lacking = [one for one in trusted if not hasattr(one, "__qualname__")]
    if isinstance(trusted, str) or lacking:
        raise TypeError(f"trusted must be a list of classes or functions, as [MyLoss], got {trusted!r}")
    header, arrays = _read(Path(path))
    with blaming(f"{path} is damaged, or not a model"):
        names = set(_names(header["model"]))
        known = {**_OWN, **{_name_of(one): one for one in trusted}}
        found = {name: known.get(name) or _library_object(name) for name in names}
    strange = sorted(name for name, one in found.items() if one is None)
    if strange:
        raise ValueError(
            f"{path} contains types that are not trusted: {', '.join(strange)}; if you know them, pass them: "
            f"trusted=[{', '.join(name.rpartition(':')[2] for name in strange)}]"
        )
    with blaming(f"{path} contains a model that is not consistent"):
        model = _built(header["model"], arrays, found)
        if not isinstance(model, BaseEstimator) or arrays:
            raise ValueError(f"it holds a {type(model).__name__} and {len(arrays)} arrays that nothing refers to")
    return model


def _read(path: Path) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the header, and the arrays by their numbers."""
    with path.open("rb") as file:
        start = file.read(2)
    if start != b"PK":
        kind = " but a pickle, which can run code when it is opened" if start.startswith(b"\x80") else ""
        raise ValueError(f"{path} is not a model written by cavity.save{kind}; it was not read")
    with blaming(f"{path} is damaged or truncated"), opened(path) as archive:
        names = archive.namelist()
        header = json.loads(archive.read(_HEADER)) if _HEADER in names else None
        if isinstance(header, dict) and header.get("format") == _FORMAT:
            if names != [_HEADER, *(f"{k}.npy" for k in range(len(names) - 1))]:
                raise ValueError(f"it has the members {names[:5]}, and not a header and numbered arrays")
            return header, {k: read_array(archive, name) for k, name in enumerate(names[1:])}
    if not isinstance(header, dict):
        raise ValueError(f"{path} is a zip archive, but not one written by cavity.save: it has the members {names[:5]}")
    raise ValueError(
        f"{path} was written by cavity {header.get('cavity', 'unknown')} in a format that cavity {__version__} does "
        "not know: open it with that version, or fit the model again"
    )


def _name_of(kind: Any) -> str:
    """Name under which files know a class or a function: that of its library's public package, or of its module."""
    name = str(kind.__name__)
    if _OWN.get(name) is kind:
        return name
    if isinstance(kind, np.ufunc):
        return f"numpy:{name}"
    module = kind.__module__
    public = ".".join(part for part in module.split(".") if not part.startswith("_"))
    found = f"{public}:{kind.__qualname__}"
    return found if _library_object(found) is kind else f"{module}:{kind.__qualname__}"


def _library_object(name: str) -> Any:
    """Return an estimator of a public package of scikit-learn, a type of number or function of NumPy, or None.

    Nothing else is looked up, let alone imported, because a file names it.
    """
    module, _, name = name.partition(":")
    library, *parts = module.split(".")
    if module == "numpy":
        found = getattr(np, name, None)
        return found if isinstance(found, np.ufunc) or found in _SCALARS else None
    if library != "sklearn" or not parts or parts[0] not in sklearn.__all__ or "tests" in parts:
        return None
    found = getattr(import_module(module), name, None)
    return found if isinstance(found, type) and issubclass(found, BaseEstimator) else None


def _described(value: Any, arrays: list[Any]) -> Any:
    """Write a value as a tree for JSON, and append its arrays to the list."""
    kind: Any = np.dtype if isinstance(value, np.dtype) else type(value)
    part, apart, _ = _PARTS.get(kind.__name__, (None, None, None))
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_described(one, arrays) for one in value]
    if apart is not None and kind is part:
        return {"type": kind.__name__, "parts": [_described(one, arrays) for one in apart(value)]}
    if kind in (np.ndarray, np.memmap) and value.dtype.kind in PLAIN_KINDS:
        arrays.append(value)
        return {"type": "array", "member": len(arrays) - 1}
    if kind.__name__ == "DataFrame" and hasattr(value, "loc"):  # of pandas: a matrix whose rows and columns have names
        parts = (value.to_numpy(), value.index.tolist(), value.columns.tolist())
        return {"type": "frame", "parts": [_described(one, arrays) for one in parts]}
    if kind is np.ndarray and value.dtype == object:
        items = [_described(one, arrays) for one in value.ravel()]
        return {"type": "objects", "shape": list(value.shape), "items": items}
    if isinstance(value, type | np.ufunc) or hasattr(value, "__code__"):
        return {"type": "name", "class": _name_of(value)}
    if isinstance(value, Enum):
        return {"type": "member", "class": _name_of(kind), "name": value.name}
    state: Any = None
    if hasattr(value, "_fields"):
        state = value._asdict()
    elif isinstance(value, Fitted):
        state = value.stored()
    elif is_dataclass(value):
        state = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    # Compiled objects, and subclasses of numbers and text, have more than their attributes.
    elif hasattr(value, "__dict__") and all(
        getattr(kind, name) is getattr(object, name) for name in ("__new__", "__reduce__", "__reduce_ex__")
    ):
        state = value.__getstate__() or {}
    if not isinstance(state, dict):
        raise TypeError(f"a file of a model cannot hold a {kind.__module__}.{kind.__qualname__}; joblib.dump can")
    return {"type": "object", "class": _name_of(kind), "fields": {k: _described(v, arrays) for k, v in state.items()}}


def _names(node: Any) -> Iterator[str]:
    """Names of all classes and functions in a tree."""
    if isinstance(node, dict):
        if "class" in node:
            yield str(node["class"])
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _names(part)


def _built(node: Any, arrays: dict[int, Any], classes: dict[str, Any]) -> Any:
    """Undo `_described`. Every array is taken once: a small header cannot copy a large one many times."""
    if isinstance(node, list):
        return [_built(part, arrays, classes) for part in node]
    if not isinstance(node, dict):
        return node
    kind = node["type"]
    if kind in _PARTS:
        return _PARTS[kind][2](*_built(node["parts"], arrays, classes))
    if kind == "frame":
        values, index, columns = (_built(part, arrays, classes) for part in node["parts"])
        return import_module("pandas").DataFrame(values, index, columns)
    if kind == "array":
        return arrays.pop(node["member"])
    if kind == "objects":
        items = np.empty(len(node["items"]), dtype=object)
        for k, item in enumerate(node["items"]):
            items[k] = _built(item, arrays, classes)
        return items.reshape(node["shape"])
    found = classes[node["class"]]
    if kind == "name":
        return found
    if kind == "member":
        return found[node["name"]]
    _need(kind == "object", f"it has a value of the type {kind!r}")
    state: Any = {name: _built(part, arrays, classes) for name, part in node["fields"].items()}
    if hasattr(found, "_fields") or is_dataclass(found):
        value = found(**state)
        if found is Fitted:
            _need(value.live is None and value.found is None, "its state has more than sites")
            check_state(value)
        return value
    made = found.__new__(found)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state)
    if isinstance(made, BaseEstimator):
        made.get_params(deep=False)  # fails where a parameter is missing
    if found in _MODELS and "_state" in state:
        kind = Labels if found is EPClassifier else Numbers
        _need(isinstance(state["_state"], Fitted) and isinstance(state["_state"].targets, kind), "its state is another")
    return made


def check_state(fitted: Fitted) -> None:
    """Raise `ValueError` unless the parts of a state fit together: shapes, kinds, finite numbers, proper posteriors."""
    design, loss = fitted.design, fitted.loss
    _need(
        isinstance(design, ColumnDesign | TermDesign) and isinstance(fitted.targets, Labels | Numbers),
        "its parts are others",
    )
    _need(isinstance(fitted.plan, Plan), "it has no plan")
    width = _check_design(design) if isinstance(design, ColumnDesign) else _check_terms(design)
    _check_loss(loss)
    form, count = _COVARIANCES.get(fitted.plan.covariance, ()), len(fitted.sites)
    columns = (width + int(design.intercept)) * getattr(loss, "predictors", 1)
    _need(count >= 1 and len(fitted.priors) == count, "priors and posteriors differ in number")
    _need(all(isinstance(prior, Prior) for prior in fitted.priors), "a prior is none")
    for known, prior in zip(fitted.sites, fitted.priors, strict=True):
        _need(isinstance(known, form), f"the plan says {fitted.plan.covariance!r}")
        _need(prior.dim == columns and prior.is_proper, "a prior does not fit the columns")
        _check_sites(known, columns)
    _need(isinstance(fitted.totals, Totals) and _are_finite(*fitted.totals), "the totals are not finite")
    traces = fitted.trace if isinstance(fitted.trace, list | tuple) else [fitted.trace]
    _need(all(isinstance(trace, Trace) for trace in traces), "its traces are none")
    _check_columns(fitted.columns, width)
    sums = fitted.sums
    if sums is not None:
        fits = isinstance(sums, ColumnSums) and all(np.shape(part) == (width,) for part in sums)
        _need(fits and not any(np.any(np.isnan(part)) for part in sums), "sums do not fit the columns")
    groups, first = fitted.groups, fitted.priors[0]
    _need(isinstance(groups, tuple) and all(isinstance(group, Group) for group in groups), "its groups are no groups")
    for places, size, rate, block in groups:
        blocks = len(first.blocks) if isinstance(first, StructuredPrior) else 0
        _need(block is None or (isinstance(block, int) and 0 <= block < blocks), "a group has no block")
        _need(_are_places(places, columns) and np.size(places) > 0, "a group does not fit the columns")
        _need(0.0 < as_float(size) < np.inf and 0.0 <= as_float(rate) < np.inf, "a group's size is not positive")
    _need(isinstance(fitted.status, Status), f"its status is {fitted.status!r}")
    fault = fitted.targets.fault(fitted)
    _need(fault is None, str(fault))
    _check_stream(fitted.stream, width, columns, count)
    # One factorisation of a sparse matrix takes up to ten seconds, an average over hyperparameters up to a hundred.
    for posterior in fitted.posteriors if form is SparseNatural else fitted.posterior.each:
        finite = np.all(np.isfinite(posterior.mean)) and np.all(np.isfinite(posterior.variance))
        _need(bool(finite) and np.isfinite(posterior.log_mass), "a posterior is not finite")


def _check_design(design: ColumnDesign) -> int:
    """Look at what names the columns, and return how many coefficients they have."""
    features, names, levels = design.features, design.feature_names, design.levels
    _need(isinstance(features, int) and features >= 1, f"its features are {features!r}")
    _need(isinstance(design.intercept, bool), f"its intercept is {design.intercept!r}")
    _need(names is None or np.shape(names) == (features,), "its names do not fit the columns")
    fine = isinstance(levels, dict) and all(isinstance(known, list) and known for known in levels.values())
    fine = fine and all(isinstance(one, str) for known in levels.values() for one in known)
    _need(fine, "its levels are no lists")
    if design.preprocessing is not None:
        made = Preprocessing.of(design.preprocessing).width + len(levels)
        _need(made == features, f"its preprocessing makes {made} columns, and it has {features}")
    width = features + sum(len(known) for known in levels.values())
    _need(_is_array(design.means, (width,)), "prior means do not fit the columns")
    variances = design.variances
    fine = variances is None or (_is_array(variances, (width,)) and bool(np.all(variances > 0.0)))
    _need(fine and 0.0 < as_float(design.intercept_variance) < np.inf, "prior variances do not fit the columns")
    groups = design.groups
    fine = isinstance(groups, dict) and all(isinstance(name, str) for name in groups)
    _need(fine and all(_are_places(places, width) for places in groups.values()), "its groups do not fit the columns")
    return width


def _check_terms(design: TermDesign) -> int:
    """Look at terms, which were checked when they were built, and return how many coefficients they have."""
    _need(isinstance(design.terms, Design), "its terms are none")
    fine = all(0.0 < as_float(number) < np.inf for number in (design.intercept_variance, design.weak))
    fine = fine and isinstance(design.offsets, tuple) and isinstance(design.text, str)
    fine = fine and all(isinstance(one, str) for one in (design.target or "", *design.offsets))
    _need(fine and isinstance(design.intercept, bool), "its terms do not fit together")
    return design.width


def _check_stream(stream: Any, width: int, columns: int, count: int) -> None:
    """Look at what a stream keeps."""
    _need(isinstance(stream, StreamState) and isinstance(stream.is_behind, bool), "its stream is none")
    told, order = stream.parameters, stream.order
    fine = told is None or (isinstance(told, dict) and all(isinstance(one, str) for one in told.values()))
    _need(fine and (stream.rows_before is None or _are_finite(stream.rows_before)), "its stream does not fit together")
    _need(isinstance(order, Order) and isinstance(order.counts, tuple), "its order is none")
    numbers = [*order._replace(counts=()), *order.counts]
    _need(not any(np.isnan(as_float(one)) for one in numbers if one != ()), "its order holds no numbers")
    if stream.kept is not None:
        _check_kept(stream.kept, width, columns, count)


def _check_loss(loss: Any) -> None:
    """Look for what is asked of a loss; of one that is a tuple the fields are numbers."""
    needed = ("value",) if isinstance(loss, joint.Softmax | joint.Normal) else ("value", "derivatives")
    fine = all(callable(getattr(loss, name, None)) for name in needed) and getattr(loss, "targets", None) in _TARGETS
    fine = fine and (not isinstance(loss, joint.Softmax) or (isinstance(loss.classes, int) and loss.classes > 2))
    fine = fine and (not isinstance(loss, tuple) or _are_finite(*loss))
    _need(fine and as_float(getattr(loss, "scale", 1.0)) > 0.0, f"its loss is {loss!r}")


def _check_sites(known: Any, columns: int) -> None:
    """Look at the product of all sites of a linear predictor."""
    if isinstance(known, DiagonalNatural):
        _need(known.sites.dim == columns and known.sites.is_finite, "a product of Gaussians does not fit the columns")
        return
    if isinstance(known, RowsNatural):
        _check_rows(known, columns)
        return
    information, shift = known.information, known.shift
    _need(_is_array(shift, (columns,)), "a shift does not fit the columns, or is not finite")
    _need(_are_finite(known.log_scale), "a scale is not finite")
    if isinstance(known, DenseNatural):
        _need(_is_array(information, (columns, columns)), "an information does not fit the columns, or is not finite")
        _need(bool(np.array_equal(information, information.T)), "an information matrix is not symmetric")
        return
    fits = sparse.issparse(information) and information.format == "csc" and information.shape == (columns, columns)
    _need(fits and _is_array(information.data, information.data.shape), "an information does not fit, or is not finite")
    information.sum_duplicates()
    entries, border = information.tocoo(), known.border
    _need(bool(np.all(entries.row <= entries.col)), "an information matrix is not an upper triangle")
    _need(_are_places(border, columns), "a border does not fit the columns")
    _need(np.unique(border).size == border.size, "a border names a column twice")


def _check_rows(known: RowsNatural, columns: int) -> None:
    """Look at sites in the space of the rows, and at these rows."""
    kernel, precisions, shift = known.kernel, known.precisions, known.shift
    _need(isinstance(kernel, LinearKernel) and isinstance(kernel.rows, WideRows), "its rows are none")
    rows = kernel.rows
    X, order = rows.X, rows.order
    dense = isinstance(X, np.ndarray) and X.ndim == 2
    _need(dense or (sparse.issparse(X) and X.format == "csr"), "its rows are no matrix")
    entries = X if dense else X.data
    _need(entries.dtype in (np.float64, np.float32) and bool(np.all(np.isfinite(entries))), "its rows are not finite")
    if not dense:
        X.sum_duplicates()
    _need(isinstance(rows.intercept, bool), "its rows have no intercept")
    _check_columns(Columns(rows.center, rows.unit), X.shape[1])
    _need(_are_places(order, X.shape[0]) and order.size > 0, "its rows are no rows")
    predictors, odd = divmod(columns, rows.shape[1])
    vector = () if predictors == 1 else (predictors,)
    _need(predictors >= 1 and odd == 0, "its rows do not fit the columns")
    _need(_is_array(shift, (order.size, *vector)), "a shift does not fit the rows, or is not finite")
    _need(_is_array(precisions, (order.size, *vector, *vector)), "a precision does not fit the rows, or is not finite")
    _need(_are_finite(known.log_scale), "a scale is not finite")
    groups = kernel.groups
    _need(isinstance(groups, tuple) and all(_are_places(one, columns) for one in groups), "its groups are none")
    _need(all(one.size and np.all(np.diff(one) > 0) for one in groups), "a group names a column twice")


def _check_columns(columns: Any, width: int) -> None:
    """Look at centres and units of the columns."""
    _need(isinstance(columns, Columns) and all(_is_array(part, (width,)) for part in columns), "centres do not fit")
    _need(bool(np.all(columns.unit > 0.0)), "a unit is not positive")


def _check_kept(kept: Any, width: int, columns: int, count: int) -> None:
    """Look at the last rows of a stream, and at what was known before them."""
    fine = isinstance(kept, KeptRows) and isinstance(kept.fitted, int) and isinstance(kept.parts, tuple)
    _need(fine and all(isinstance(part, Data) for part in kept.parts), "its last rows are of another kind")
    same = isinstance(kept.known, tuple) and len(kept.known) == count
    _need(same and all(isinstance(one, DenseNatural) for one in kept.known), "what was known before is no posterior")
    for known in kept.known:
        _check_sites(known, columns)
    _check_columns(kept.columns, width)
    fine = isinstance(kept.totals, Totals) and _are_finite(*kept.totals, *kept.noise, kept.scale)
    _need(fine and kept.scale > 0.0, "a sum is not finite")
    for X, targets, weights, offset in kept.parts:
        _need(np.ndim(targets) == 2 and np.shape(X) == (np.shape(targets)[1], width), "its last rows do not fit")
        for array in (X.data if sparse.issparse(X) else X, targets, weights, offset):
            kind = np.asarray(0.0 if array is None else array)
            _need(kind.dtype.kind == "f" and bool(np.all(np.isfinite(kind))), "a number of the last rows is not finite")
        lengths = [np.shape(array) for array in (weights, offset) if array is not None]
        _need(all(length == np.shape(X)[:1] for length in lengths), "weights or offsets do not fit the last rows")
        _need(weights is None or bool(np.all(weights > 0.0)), "a weight of the last rows is not positive")


def _is_array(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array of finite numbers in double precision."""
    fits = isinstance(value, np.ndarray) and value.shape == shape and value.dtype == np.float64
    return fits and bool(np.all(np.isfinite(value)))


def _are_finite(*values: Any) -> bool:
    """Whether all are finite numbers."""
    return bool(np.all(np.isfinite([as_float(value) for value in values])))


def _are_places(value: Any, columns: int) -> bool:
    """Whether a value is an array of numbers of columns."""
    fits = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "i"
    return fits and bool(np.all((value >= 0) & (value < columns)))


def _need(condition: Any, fault: str) -> None:
    if not condition:
        raise ValueError(f"the model is not consistent: {fault}")
