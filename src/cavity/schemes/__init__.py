"""Schemes: methods that approximate a factor by a Gaussian, called its site."""

from __future__ import annotations

from cavity._checks import shown
from cavity.schemes._exact import ExactProjection
from cavity.schemes._laplace import Laplace, QuickLaplace
from cavity.schemes._protocol import FullScheme as FullScheme
from cavity.schemes._protocol import Scheme
from cavity.schemes._quadrature import GaussQuadrature, RecentredQuadrature, VariationalQuadrature

__all__ = [
    "ExactProjection",
    "GaussQuadrature",
    "Laplace",
    "QuickLaplace",
    "RecentredQuadrature",
    "VariationalQuadrature",
]

# Schemes by the paper's names.
NAMES = {
    cls.name: cls
    for cls in (Laplace, QuickLaplace, GaussQuadrature, VariationalQuadrature, RecentredQuadrature, ExactProjection)
}


def resolve(scheme: str | Scheme) -> Scheme:
    """Turn a name such as ``"vq"`` into a scheme; a scheme passes through."""
    if not isinstance(scheme, str):
        has_methods = all(callable(getattr(scheme, name, None)) for name in ("approximate", "check"))
        if isinstance(scheme, type) or not has_methods:
            raise ValueError(
                f"scheme must be one of {', '.join(NAMES)}, or have methods approximate and check, got {shown(scheme)}"
            )
        return scheme
    if scheme not in NAMES:
        raise ValueError(f"scheme must be one of {', '.join(NAMES)}, or a scheme object, got {scheme!r}")
    built: Scheme = NAMES[scheme]()
    return built
