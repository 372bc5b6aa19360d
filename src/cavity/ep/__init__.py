"""Expectation propagation: the loop, its backends, and what comes out."""

from cavity.ep.block_fit import fit_blocks
from cavity.ep.blocks import Outcome

__all__ = ["Outcome", "fit_blocks"]
