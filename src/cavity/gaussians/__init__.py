"""Gaussians by how they are kept: with a sparse precision matrix."""

from cavity.gaussians.sparse import Analysis, SparseGaussian, SparsePrecision, analyse, factorise

__all__ = ["Analysis", "SparseGaussian", "SparsePrecision", "analyse", "factorise"]
