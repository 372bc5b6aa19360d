"""Factors: what a scheme may ask of one term of the cost."""

from cavity.factors._cost import CostFactor
from cavity.factors._linear import LinearBatches, LinearFactor, checked_batch_size
from cavity.factors._protocol import Curvature, Derivatives, Factor, StarCosts
from cavity.factors.rows import canonical, check_compressed, check_csr

__all__ = [
    "CostFactor",
    "Curvature",
    "Derivatives",
    "Factor",
    "LinearBatches",
    "LinearFactor",
    "StarCosts",
    "canonical",
    "check_compressed",
    "check_csr",
    "checked_batch_size",
]
