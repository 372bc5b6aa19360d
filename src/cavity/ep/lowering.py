"""Which scheme a kernel serves: its compiled form, with its numbers in it."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from cavity.kernels import _schemes as compiled
from cavity.kernels._exact import ExactProjection as CompiledProjection
from cavity.kernels._moments import rules_for
from cavity.kernels._recentred import RecentredQuadrature as CompiledRecentring
from cavity.quadrature import Precision3, Rule
from cavity.schemes import (
    ExactProjection,
    GaussQuadrature,
    Laplace,
    QuickLaplace,
    RecentredQuadrature,
    VariationalQuadrature,
)


@singledispatch
def lower(scheme: object) -> Any | None:
    """Return the compiled form of a scheme, or None where there is none."""
    return None


@lower.register
def _(scheme: QuickLaplace) -> Any:
    return compiled.QuickLaplace(scheme.curvature == "slope")


@lower.register
def _(scheme: Laplace) -> Any:
    return compiled.Laplace(scheme.curvature == "slope", scheme.tol, scheme.max_steps)


@lower.register
def _(scheme: VariationalQuadrature) -> Any | None:
    spread = _spread(scheme.rule)
    return None if spread is None or scheme.solver != "closed" else compiled.VariationalQuadrature(spread)


@lower.register
def _(scheme: GaussQuadrature) -> Any | None:
    spread = _spread(scheme.rule)
    return None if spread is None else compiled.GaussQuadrature(spread)


@lower.register
def _(scheme: RecentredQuadrature) -> Any:
    return CompiledRecentring(scheme.spread, scheme.tol, scheme.max_stars)


@lower.register
def _(scheme: ExactProjection) -> Any:
    return CompiledProjection(rules_for(scheme.order))


def _spread(rule: Rule) -> float | None:
    """Spread of a star as the kernels know it."""
    if not isinstance(rule, Precision3):
        return None
    named = {"paper": 0.0, "yu": -1.0, "julier": float(np.sqrt(3.0))}
    return named[rule.spread] if isinstance(rule.spread, str) else float(rule.spread)
