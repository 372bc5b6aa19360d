"""All experiments, in the order in which they run and appear."""

from __future__ import annotations

from paper import claims, closedform, fig1, fig2, fig3, minima, posterior, table1
from paper.experiment import Experiment

_ALL = (fig1, minima, fig2, fig3, table1, closedform, posterior, claims)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _ALL}
