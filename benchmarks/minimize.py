"""`cavity.minimize` on the paper's sets in both scalings, against certified minima or, where there are none, Powell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import cavity
from benchmarks.bars import Row, markdown
from cavity import datasets
from reference import solvers
from reference.problems import LARGE, LOSSES, PRIOR_VARIANCE, SMALL
from reference.timing import timed

SCALES = ("norm", "std")
# How far above a minimum we may end, as a share.
NEAR = 0.005
REFERENCES = {"logistic": "Newton", "hinge": "quadratic program", "quasi01": "Powell"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem, what we found and what the reference did."""

    data: str
    scale: str
    loss: str
    ours: float
    seconds: float
    reference: float
    reference_seconds: float
    status: str

    @property
    def bar(self) -> Row:
        """Within a share of the minimum; or no higher than Powell, and sooner."""
        work = f"minimize, {self.data}, {self.scale}, {self.loss}"
        measured = f"{self.ours:.4f} against {self.reference:.4f}: {self.ours / self.reference:.4f} x"
        if self.loss != "quasi01":
            bar = f"at most {1.0 + NEAR:g} x the minimum"
            return Row(work, measured, bar, self.ours <= (1.0 + NEAR) * self.reference)
        measured += f"; {1e3 * self.seconds:.1f} ms against {1e3 * self.reference_seconds:.1f} ms"
        met = self.ours <= self.reference and self.seconds < self.reference_seconds
        return Row(work, measured, "no higher than Powell, and sooner", met)

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a line of the table."""
        return (
            self.data,
            self.scale,
            self.loss,
            REFERENCES[self.loss],
            f"{self.reference:.3f}",
            f"{self.ours:.3f}",
            f"{self.ours / self.reference:.4f}",
            f"{1e3 * self.reference_seconds:.1f}",
            f"{1e3 * self.seconds:.1f}",
            self.status,
            "met" if self.bar.met else "MISSED",
        )


def compare(data: str, scale: str, loss: str) -> Cell:
    """Minimise one cost by both methods, from nothing but the rows; Powell's start is found before its time begins."""
    design = datasets.paper(data, scale=scale)
    A = design.y[:, None] * design.X
    factors = cavity.LinearFactor.batches(LOSSES[loss], design.X, design.y, 100 if data in LARGE else 10)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(A.shape[1]), PRIOR_VARIANCE)
    # Powell takes minutes on the large sets, and one time will do.
    repeats = 5 if data in SMALL else 1
    found, seconds = best(lambda: cavity.minimize(factors, prior), repeats)
    start = solvers.newton_logistic(A, PRIOR_VARIANCE).point
    point, reference_seconds = best(lambda: solvers.offline_minimum(loss, A, PRIOR_VARIANCE, start), repeats)
    ours, reference = (solvers.cost(LOSSES[loss], A, p, PRIOR_VARIANCE) for p in (found.point, point))
    return Cell(data, scale, loss, ours, seconds, reference, reference_seconds, found.status.name)


def best(work: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """Answer and best seconds."""
    runs = [timed(work) for _ in range(repeats)]
    return runs[-1][0], min(seconds for _, seconds in runs)


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All cells, as bars and as one table; small sets only if it has to be quick."""
    names = SMALL if quick else (*SMALL, *LARGE)
    cells = [compare(data, scale, loss) for data in names for scale in SCALES for loss in LOSSES]
    header = ("data", "scaling", "loss", "reference", "cost", "ours", "ratio", "ms", "ms, ours", "status", "")
    return [cell.bar for cell in cells], {"minima": markdown(header, [cell.cells for cell in cells])}
