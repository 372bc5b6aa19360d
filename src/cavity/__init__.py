"""Fully factorized expectation propagation: additive costs in, means and variances out."""

from cavity import losses, quadrature, schedules, schemes
from cavity._version import __version__
from cavity.engine import FactorError, Update
from cavity.factors import CostFactor, LinearFactor
from cavity.fitting import fit
from cavity.gaussian import FactorialGaussian
from cavity.result import Result, Status

__all__ = [
    "CostFactor",
    "FactorError",
    "FactorialGaussian",
    "LinearFactor",
    "Result",
    "Status",
    "Update",
    "__version__",
    "fit",
    "losses",
    "quadrature",
    "schedules",
    "schemes",
]
