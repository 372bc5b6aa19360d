"""What is public: the modules whose ``__all__`` the reference lists, and the protocols that describe methods once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

MODULES = (
    "cavity",
    "cavity.dask",
    "cavity.datasets",
    "cavity.estimators",
    "cavity.factors",
    "cavity.gaussians",
    "cavity.losses",
    "cavity.losses.joint",
    "cavity.losses.noise",
    "cavity.moments",
    "cavity.optimize",
    "cavity.quadrature",
    "cavity.schedules",
    "cavity.schemes",
    "cavity.tables",
    "cavity.terms",
    "cavity.testing",
)
# Methods of these are described there, and not again where a class has them.
PROTOCOLS = {
    "cavity.factors": ("cavity.factors.Factor",),
    "cavity.losses": ("cavity.losses.Loss", "cavity.losses.Offers", "cavity.losses.joint.JointLoss"),
    "cavity.quadrature": ("cavity.quadrature.Rule",),
    "cavity.schedules": ("cavity.schedules.Order", "cavity.schedules.FiniteTemperature"),
    "cavity.schemes": ("cavity.schemes.Scheme", "cavity.schemes.FullScheme"),
    "cavity.terms": ("cavity.terms.LearnedTerm", "cavity.terms.Structure", "cavity.terms.Term"),
}


def named(path: str) -> Any:
    """Import what a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def names() -> Iterator[str]:
    """Give the dotted path of everything in ``__all__`` of a public module, modules left out."""
    for module in MODULES:
        for name in import_module(module).__all__:
            if not name.startswith("__") and not inspect.ismodule(named(f"{module}.{name}")):
                yield f"{module}.{name}"


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Give the methods of a class that are ours and are described in its own place: name and function."""
    for name in dir(cls):
        found = inspect.getattr_static(cls, name)
        function = getattr(found, "__func__", found)
        if inspect.isfunction(function) and is_ours(name, function) and not is_of_protocol(cls, name):
            yield name, function


def is_ours(name: str, function: Any) -> bool:
    """Whether a member is for users and written here, not by scikit-learn, tuple or Exception.

    Names that begin with ``cavity_`` are for estimators, which ask sources of rows by them.
    """
    return not name.startswith(("_", "cavity_")) and str(getattr(function, "__module__", "")).startswith("cavity")


def is_of_protocol(cls: type, name: str) -> bool:
    """Whether a protocol describes this method of a class."""
    for package, paths in PROTOCOLS.items():
        if cls.__module__.startswith(package):
            protocols = [named(path) for path in paths]
            if cls not in protocols and any(hasattr(protocol, name) for protocol in protocols):
                return True
    return False
