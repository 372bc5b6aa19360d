"""Fitted attributes as numbers, arrays and names, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from cavity.correlated import CorrelatedGaussian
from cavity.estimators._frame import Frame, Posterior
from cavity.gaussian import FactorialGaussian
from cavity.result import Refusal, Status, Trace


def packed(model: Any) -> dict[str, Any]:
    """Attributes of a fitted model whose values have types of our own, in plain form."""
    if "_posteriors" not in vars(model):
        return {}
    traces = model.trace_ if isinstance(model.trace_, tuple) else (model.trace_,)
    return {
        "_posteriors": _pack_gaussians(model.posterior_),
        "_frame": _pack_frame(model._frame),
        "status_": model.status_.name,
        "trace_": [_pack_trace(trace) for trace in traces],
        "_refused": {why.name: count for why, count in getattr(model, "_refused", {}).items()},
    }


def unpacked(state: dict[str, Any]) -> dict[str, Any]:
    """Undo `packed` in a state that holds its outcome."""
    if "_posteriors" not in state:
        return state
    traces = tuple(_unpack_trace(trace) for trace in state["trace_"])
    return {
        **state,
        "_posteriors": _unpack_gaussians(state["_posteriors"]),
        "_frame": _unpack_frame(state["_frame"]),
        "status_": Status[state["status_"]],
        "trace_": traces[0] if len(traces) == 1 else traces,
        "_refused": Counter({Refusal[name]: count for name, count in state["_refused"].items()}),
    }


# Numbers that make up a Gaussian, by its kind.
_FACTORIAL, _CORRELATED = ("log_scale", "shift", "precision"), ("mean", "root", "log_mass")


def _pack_gaussians(gaussians: Sequence[Posterior]) -> dict[str, Any]:
    names = _CORRELATED if isinstance(gaussians[0], CorrelatedGaussian) else _FACTORIAL
    return {name: np.array([getattr(g, name) for g in gaussians]) for name in names}


def _unpack_gaussians(parts: dict[str, Any]) -> tuple[Any, ...]:
    if "root" in parts:
        rows = zip(*(parts[name] for name in _CORRELATED), strict=True)
        return tuple(CorrelatedGaussian(m, root, float(log_mass)) for m, root, log_mass in rows)
    rows = zip(*(parts[name] for name in _FACTORIAL), strict=True)
    return tuple(FactorialGaussian(float(s), r, p) for s, r, p in rows)


def _pack_frame(frame: Frame) -> dict[str, Any]:
    return {
        "features": frame.features,
        "intercept": frame.intercept,
        "prior": _pack_gaussians([frame.prior]),
        "basis": frame.basis,
    }


def _unpack_frame(parts: dict[str, Any]) -> Frame:
    return Frame(parts["features"], parts["intercept"], _unpack_gaussians(parts["prior"])[0], parts["basis"])


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
