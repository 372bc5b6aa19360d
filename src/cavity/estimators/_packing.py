"""Fitted attributes as numbers, arrays and names, and back; and whether what came back fits together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from cavity._checks import as_float
from cavity.ep.knowledge import DenseKnowledge, DiagonalKnowledge, Knowledge, SparseKnowledge
from cavity.ep.result import Refusal, Status, Trace
from cavity.estimators._plan import Plan
from cavity.estimators._preprocessing import Preprocessing
from cavity.estimators._totals import Totals
from cavity.factors import canonical
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses.joint import Normal, Softmax

# Kinds of targets that a loss may be made for.
_TARGETS = ("signs", "reals", "counts", "positives", "classes")


def packed(model: Any) -> dict[str, Any]:
    """Attributes of a fitted model whose values have types of our own, in plain form."""
    if "_knowledge" not in vars(model):
        return {}
    traces, plan = model.trace_ if isinstance(model.trace_, tuple) else (model.trace_,), model.plan_
    return {
        "_knowledge": [_pack_knowledge(k) for k in model._known()],
        "_priors": _pack_gaussians(model._priors),
        "_totals": list(model._totals),
        "plan_": [plan.covariance, plan.reason, plan.chosen],
        "status_": model.status_.name,
        "trace_": [_pack_trace(trace) for trace in traces],
        "_refused": {why.name: count for why, count in getattr(model, "_refused", {}).items()},
    }


def unpacked(state: dict[str, Any]) -> dict[str, Any]:
    """Undo `packed` in a state that holds its outcome."""
    if "_knowledge" not in state:
        return state
    traces = tuple(_unpack_trace(trace) for trace in state["trace_"])
    return {
        **state,
        "_knowledge": tuple(_unpack_knowledge(parts) for parts in state["_knowledge"]),
        "_priors": _unpack_gaussians(state["_priors"]),
        "_totals": Totals(*map(float, state["_totals"])),
        "plan_": Plan(*state["plan_"]),
        "status_": Status[state["status_"]],
        "trace_": traces[0] if len(traces) == 1 else traces,
        "_refused": Counter({Refusal[name]: count for name, count in state["_refused"].items()}),
    }


def check_state(model: Any) -> None:
    """Raise `ValueError` unless the parts of a model fit together: shapes, kinds, finite numbers, proper posteriors."""
    if "_knowledge" not in vars(model):
        return
    needed = ("_priors", "_totals", "_loss", "_intercept", "plan_", "status_", "trace_", "n_iter_")
    missing = [name for name in needed if name not in vars(model)]
    _need(not missing, f"it has no {', '.join(missing)}")
    features, intercept = vars(model).get("n_features_in_"), vars(model).get("_intercept")
    _need(isinstance(features, int) and features >= 1, f"n_features_in_ is {features!r}")
    _need(isinstance(intercept, bool), f"_intercept is {intercept!r}")
    _check_categories(vars(model).get("categories_", {}))
    if "preprocessing_" in vars(model):
        Preprocessing.of(model.preprocessing_)
    _check_loss(model._loss)
    columns, count = model._width + int(intercept), len(model._knowledge)
    columns *= getattr(model._loss, "predictors", 1)
    _need(count >= 1 and len(model._priors) == count, "priors and posteriors differ in number")
    kinds = {"full": DenseKnowledge, "sparse": SparseKnowledge, "diagonal": DiagonalKnowledge}
    kind = kinds.get(model.plan_.covariance)
    for known, prior in zip(model._knowledge, model._priors, strict=True):
        _need(isinstance(known, kind or ()), f"the plan says {model.plan_.covariance!r}")
        _need(prior.dim == columns and prior.is_proper, "a prior does not fit the columns")
        _check_knowledge(known, columns)
    _need(bool(np.all(np.isfinite(model._totals))), "the totals are not finite")
    _need(isinstance(model.status_, Status), f"status_ is {model.status_!r}")
    names = vars(model).get("feature_names_in_")
    _need(names is None or np.shape(names) == (features,), "feature_names_in_ does not fit the columns")
    for posterior in model.posterior_:
        finite = np.all(np.isfinite(posterior.mean)) and np.all(np.isfinite(posterior.variance))
        _need(bool(finite) and np.isfinite(posterior.log_mass), "a posterior is not finite")
    model._check_own_state()


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


def _check_knowledge(known: Knowledge, columns: int) -> None:
    if isinstance(known, DiagonalKnowledge):
        _need(known.sites.dim == columns and known.sites.is_finite, "a product of Gaussians does not fit the columns")
        return
    information, shift = known.information, known.shift  # type: ignore[attr-defined]
    _need(shift.shape == (columns,) and shift.dtype == np.float64, "a shift does not fit the columns")
    _need(bool(np.all(np.isfinite(shift))), "a shift is not finite")
    _need(np.isfinite(known.log_scale), "a scale is not finite")  # type: ignore[attr-defined]
    _need(information.shape == (columns, columns), "an information matrix does not fit the columns")
    if isinstance(known, SparseKnowledge):
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


def _pack_knowledge(known: Knowledge) -> dict[str, Any]:
    if isinstance(known, DiagonalKnowledge):
        return _pack_gaussians([known.sites])
    if isinstance(known, DenseKnowledge):
        return {"information": known.information, "shift": known.shift, "log_scale": known.log_scale}
    assert isinstance(known, SparseKnowledge)
    matrix = known.information
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    return {**parts, "shift": known.shift, "border": known.border, "log_scale": known.log_scale}


def _unpack_knowledge(parts: dict[str, Any]) -> Knowledge:
    if "precision" in parts:
        return DiagonalKnowledge(_unpack_gaussians(parts)[0])
    shift, log_scale = np.asarray(parts["shift"]), float(parts["log_scale"])
    if "information" in parts:
        return DenseKnowledge(np.asarray(parts["information"]), shift, log_scale)
    # Checked as CSR of the transpose, which has the same three arrays.
    arrays = (np.asarray(parts["data"]), np.asarray(parts["indices"]), np.asarray(parts["indptr"]))
    rows = canonical(sparse.csr_array(arrays, shape=(shift.size, shift.size)))
    return SparseKnowledge(sparse.csc_array(rows.T), shift, np.asarray(parts["border"]), log_scale)


def _pack_gaussians(gaussians: Sequence[FactorialGaussian]) -> dict[str, Any]:
    return {name: np.array([getattr(g, name) for g in gaussians]) for name in ("log_scale", "shift", "precision")}


def _unpack_gaussians(parts: dict[str, Any]) -> tuple[FactorialGaussian, ...]:
    rows = zip(*(parts[name] for name in ("log_scale", "shift", "precision")), strict=True)
    return tuple(FactorialGaussian(float(s), r, p) for s, r, p in rows)


def _pack_trace(trace: Trace) -> dict[str, Any]:
    return {
        "updates": trace.updates,
        "changes": list(trace.changes),
        "betas": list(trace.betas),
        "refusals": [[factor, why.name, count] for (factor, why), count in trace.refusals.items()],
        "dampings": [[factor, count] for factor, count in trace.dampings.items()],
    }


def _unpack_trace(parts: dict[str, Any]) -> Trace:
    return Trace(
        parts["updates"],
        tuple(parts["changes"]),
        tuple(parts["betas"]),
        Counter({(factor, Refusal[name]): count for factor, name, count in parts["refusals"]}),
        Counter(dict(parts["dampings"])),
    )
