"""Factors: what a scheme may ask of one term of the cost."""

from cavity.factors.cost import CostFactor, Curvature, Derivatives, Factor, StarCosts
from cavity.factors.linear import LinearBatches, LinearFactor
from cavity.factors.rows import canonical as canonical
from cavity.factors.rows import check_compressed as check_compressed
from cavity.factors.rows import check_csr as check_csr

__all__ = ["CostFactor", "Curvature", "Derivatives", "Factor", "LinearBatches", "LinearFactor", "StarCosts"]
