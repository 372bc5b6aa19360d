"""Expectation propagation by blocks of rows, with all correlations, for linear models."""

from cavity.ep.blocks import Outcome
from cavity.ep.fit import fit_blocks

__all__ = ["Outcome", "fit_blocks"]
