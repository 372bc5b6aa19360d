"""Gaussians by how they are kept: factorial, by a root of the covariance, by a sparse precision matrix; mixtures."""

from cavity.gaussians.affine import AffineGaussian, Change
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian, ImproperError
from cavity.gaussians.full import FullGaussian
from cavity.gaussians.mixture import GaussianMixture
from cavity.gaussians.sparse import Analysis, SparseGaussian, SparsePrecision, analyse, factorise

__all__ = [
    "AffineGaussian",
    "Analysis",
    "Change",
    "DenseGaussian",
    "FactorialGaussian",
    "FullGaussian",
    "GaussianMixture",
    "ImproperError",
    "SparseGaussian",
    "SparsePrecision",
    "analyse",
    "factorise",
]
