"""The mode of a linear model, sites that put the posterior there, and stages from there to the minimum."""

from cavity.mode._find import Mode, Stage, anneal, find_mode
from cavity.mode._sites import BatchSites, gaussians, sites_at

__all__ = ["BatchSites", "Mode", "Stage", "anneal", "find_mode", "gaussians", "sites_at"]
