"""Pictures of a fitted model. The only module of the estimators that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from cavity.ep.result import Trace

FloatArray = NDArray[np.float64]


def plot_coefficients(labels: list[Any], mean: FloatArray, std: FloatArray, *, ax: Any, top: int, level: float) -> Any:
    """Intervals of the coefficients that stand out most against their standard deviation, the strongest on top."""
    order = np.argsort(-np.abs(mean) / std, kind="stable")[:top][::-1]
    names = [" ".join(map(str, labels[j])) if isinstance(labels[j], tuple) else str(labels[j]) for j in order]
    if ax is None:
        _, ax = plt.subplots(figsize=(6.4, 1.0 + 0.26 * len(names)), layout="constrained")
    places = np.arange(len(names))
    ax.axvline(0.0, color="0.6", linewidth=0.8)
    ax.errorbar(mean[order], places, xerr=ndtri(0.5 + 0.5 * level) * std[order], fmt="o", markersize=4, capsize=2)
    ax.set_yticks(places, names)
    ax.set_xlabel(f"coefficient, with its {100.0 * level:g}% interval")
    ax.margins(y=0.02)
    return ax


def plot_trace(traces: Sequence[Trace], names: Sequence[str] | None, tol: float, *, ax: Any) -> Any:
    """Change of the posterior in every loop, on a logarithmic axis, and the tolerance."""
    if ax is None:
        _, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for k, trace in enumerate(traces):
        loops = np.arange(1, len(trace.changes) + 1)
        ax.plot(loops, trace.changes, marker="o", markersize=3, label=None if names is None else names[k])
    ax.axhline(tol, color="0.6", linestyle="--", linewidth=0.8)
    ax.set_yscale("log")
    ax.set_xlabel("loop")
    ax.set_ylabel("largest change, in standard deviations")
    if names is not None:
        ax.legend(title="class")
    return ax
