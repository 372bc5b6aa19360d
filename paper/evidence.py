"""Curves and times as the claims see them: shares of the possible gain, movements, ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paper.closedform import SLOPE_SPAN
from paper.experiment import Json
from paper.minima import lookup
from reference.problems import LARGE, SMALL

FloatArray = NDArray[np.float64]
Cell = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Where "steady" and "close" end, in shares of the possible gain: cost at the prior mean less the minimum.

    Parameters
    ----------
    steady
        Most that the cost may still move, from lowest to highest, over the last two loops, or over the last tenth
        of a single pass.
    close
        Most that the last cost may lie above the minimum.
    """

    steady: float = 0.03
    close: float = 0.05

    def scaled(self, by: float) -> Tolerances:
        """Make all of them stricter or laxer by a factor."""
        return Tolerances(by * self.steady, by * self.close)


@dataclass(frozen=True, slots=True)
class Curve:
    """One cost curve as shares of the possible gain still missed: 0 at the minimum, 1 at the prior mean."""

    missed: FloatArray
    batches: int
    loops: int
    spread: float = 1.0

    @property
    def tail(self) -> FloatArray:
        """The last two loops, or the last tenth of a single pass."""
        length = 2 * self.batches if self.loops > 1 else max(2, len(self.missed) // 10)
        return self.missed[-length:]

    @property
    def end(self) -> float:
        """Share missed at last."""
        return float(self.missed[-1])

    @property
    def level(self) -> float:
        """Median share missed over the tail: where an unsteady curve hovers."""
        return float(np.median(self.tail))

    @property
    def movement(self) -> float:
        """Highest less lowest over the tail; infinite if a cost is no number."""
        return float(np.ptp(self.tail)) if np.all(np.isfinite(self.tail)) else float("inf")

    @property
    def roughness(self) -> float:
        """Movement up and down over the second half, added up; infinite if a cost is no number."""
        half = self.missed[len(self.missed) // 2 :]
        return float(np.sum(np.abs(np.diff(half)))) if np.all(np.isfinite(half)) else float("inf")

    def arrival(self, within: float) -> float:
        """Share of the updates after which the curve stays within so much of its end."""
        away = np.flatnonzero(~(np.abs(self.missed - self.end) <= within))
        return 0.0 if away.size == 0 else float(away[-1] + 1) / len(self.missed)

    def progress(self, since: float) -> float:
        """How much was still gained after a share of the updates."""
        return float(self.missed[int(since * len(self.missed))] - self.missed[-1])

    def is_steady(self, tolerances: Tolerances) -> bool:
        """Whether it no longer moves."""
        return self.movement <= tolerances.steady

    def is_close(self, tolerances: Tolerances) -> bool:
        """Whether it ended near the minimum."""
        return self.end <= tolerances.close

    def converged(self, tolerances: Tolerances) -> bool:
        """Steady, and close."""
        return self.is_steady(tolerances) and self.is_close(tolerances)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All numbers that a claim may ask for.

    Parameters
    ----------
    curves
        For every data set and loss the curves by scheme, measured against the best minimum known.
    paper_minimum
        Share of the possible gain that the minimum of the paper's own method misses.
    plain, compiled
        Milliseconds an update by scheme, ``newton`` being VQ by Newton: plain loops, and as `cavity.fit` runs them.
    dimension
        Number of columns of every data set.
    closedform
        Results of that experiment.
    noise
        Factor on all ratios of times, to see what a verdict would be had they come out otherwise.
    """

    curves: Mapping[Cell, Mapping[str, Curve]]
    paper_minimum: Mapping[Cell, float]
    plain: Mapping[Cell, Mapping[str, float]]
    compiled: Mapping[Cell, Mapping[str, float]]
    dimension: Mapping[str, int]
    closedform: Json
    noise: float = 1.0

    def with_noise(self, factor: float) -> Evidence:
        """Give the same evidence with all ratios of times multiplied by a factor."""
        return replace(self, noise=factor)

    def cells(self, losses: str = "logistic hinge quasi01", large: bool | None = None) -> list[Cell]:
        """Cells with one of the losses named, on the small sets, the large, or all (None)."""
        sets = {None: SMALL + LARGE, True: LARGE, False: SMALL}[large]
        wanted = losses.split()
        return [cell for cell in self.curves if cell[0] in sets and cell[1] in wanted]

    def curve(self, cell: Cell, scheme: str, suffix: str = "") -> Curve:
        """Curve of a scheme; the suffix takes the variant of LA and QLA."""
        return self.curves[cell][scheme + suffix if scheme in ("la", "qla") else scheme]

    def ratios(self, above: str, below: str, cells: list[Cell], compiled: bool = False) -> FloatArray:
        """How many times longer one scheme takes than another, in every cell."""
        times = self.compiled if compiled else self.plain
        return self.noise * np.array([times[cell][above] / times[cell][below] for cell in cells])

    def exponent(self, name: str) -> float:
        """Exponent of d in the time of an update, by its slope over the largest dimensions."""
        return float(self.closedform["slopes"][name]) + float(np.log(self.noise) / np.log(SLOPE_SPAN))


def assemble(needed: Mapping[str, Json]) -> Evidence:
    """Read the evidence out of the results of the other experiments."""
    known = lookup(needed["minima"])
    curves, paper = {}, {}
    for cell in (*needed["fig2"]["cells"], *needed["fig3"]["cells"]):
        key = (cell["data"], cell["loss"])
        # The 0-1 loss has no minimum of its own here: the lowest cost met stands in for it.
        lowest = min(min(_number(c) for c in curve["cost"]) for curve in cell["curves"].values())
        best = known[key]["best"]["cost"] if key in known else lowest
        gain = cell["start"] - best
        if key in known and known[key]["paper"] is not None:
            paper[key] = (known[key]["paper"]["cost"] - best) / gain
        curves[key] = {
            name: Curve(
                (np.array([_number(c) for c in curve["cost"]]) - best) / gain,
                cell["batches"],
                cell["loops"],
                _number(curve["spread"]),
            )
            for name, curve in cell["curves"].items()
        }
    rows = needed["table1"]["rows"]
    newton = {(c["data"], c["loss"]): c["times"]["newton"]["ms"] for c in needed["closedform"]["cells"]}
    plain, compiled = (
        {
            (row["data"], row["loss"]): {
                **{name: time[kind] for name, time in row["here"].items()},
                "newton": newton[row["data"], row["loss"]],
            }
            for row in rows
        }
        for kind in ("plain_ms", "ms")
    )
    dimension = {row["data"]: row["d"] for row in rows}
    return Evidence(curves, paper, plain, compiled, dimension, needed["closedform"])


def _number(value: float | None) -> float:
    return float("inf") if value is None else value
