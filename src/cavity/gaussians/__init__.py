"""Gaussians by how they are kept: factorial, by a root of the covariance, or by a sparse precision matrix."""

from cavity.gaussians._analysis import Analysis, analyse
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.gaussians.sparse import SparseGaussian, SparsePrecision, factorise

__all__ = [
    "Analysis",
    "DenseGaussian",
    "FactorialGaussian",
    "ImproperError",
    "SparseGaussian",
    "SparsePrecision",
    "analyse",
    "factorise",
]
