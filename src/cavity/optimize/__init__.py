"""Minima instead of posteriors: annealing as an optimiser."""

from cavity.optimize._minimize import minimize
from cavity.optimize._minimum import Ending, Minimum

__all__ = ["Ending", "Minimum", "minimize"]
