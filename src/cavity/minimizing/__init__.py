"""Minima instead of posteriors: annealing as an optimiser."""

from cavity.minimizing._minimize import minimize
from cavity.minimizing._minimum import Ending, Minimum

__all__ = ["Ending", "Minimum", "minimize"]
