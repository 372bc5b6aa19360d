"""Expectation propagation: Bayesian linear models and additive costs in, means and deviations out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cavity import losses, quadrature, schedules, schemes
from cavity._version import __version__
from cavity.curves import CurveFit, curve_fit
from cavity.ep.factorised import Update
from cavity.ep.fit import fit
from cavity.ep.result import FactorError, Result, Status
from cavity.factors import CostFactor, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian
from cavity.optimize import Minimum, minimize

if TYPE_CHECKING:
    from cavity import datasets
    from cavity.estimators import EPClassifier, EPRegressor, compare, load, save
    from cavity.estimators.processes import EPGaussianProcessClassifier, EPGaussianProcessRegressor

__all__ = [
    "CostFactor",
    "CurveFit",
    "EPClassifier",
    "EPGaussianProcessClassifier",
    "EPGaussianProcessRegressor",
    "EPRegressor",
    "FactorError",
    "FactorialGaussian",
    "FullGaussian",
    "LinearFactor",
    "Minimum",
    "Result",
    "Status",
    "Update",
    "__version__",
    "compare",
    "curve_fit",
    "datasets",
    "fit",
    "load",
    "losses",
    "minimize",
    "quadrature",
    "save",
    "schedules",
    "schemes",
]


def __getattr__(name: str) -> Any:
    # scikit-learn and Numba are loaded when they are first needed: importing cavity stays quick.
    if name in ("dask", "datasets", "tables", "testing"):
        return import_module(f"cavity.{name}")
    if name in ("EPGaussianProcessClassifier", "EPGaussianProcessRegressor"):
        return getattr(import_module("cavity.estimators.processes"), name)
    if name in ("EPClassifier", "EPRegressor", "compare", "load", "save"):
        globals()[name] = getattr(import_module("cavity.estimators"), name)
        return globals()[name]
    raise AttributeError(f"module 'cavity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
