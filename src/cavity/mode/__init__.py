"""The mode of a linear model, and sites that put the posterior there: where EP starts on ordinary data."""

from cavity.mode._anneal import Stage, anneal
from cavity.mode._find import Mode, find_mode, information, is_convex, near_mode
from cavity.mode._sites import BatchSites, gaussians, sites_at

__all__ = [
    "BatchSites",
    "Mode",
    "Stage",
    "anneal",
    "find_mode",
    "gaussians",
    "information",
    "is_convex",
    "near_mode",
    "sites_at",
]
