"""Which form of posterior a model gets: decided once, from the shape of the data, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from cavity.gaussians import Analysis
from cavity.gaussians.dense import WIDEST_COVARIANCE

# Columns up to which `partial_fit` keeps one, whatever the storage: a factorisation then takes a few milliseconds.
WIDEST_STREAM = 500
# Loops that a fit is expected to take, for the estimate of its work only.
_EXPECTED_LOOPS = 12
# Floating-point operations that are bearable: about 1000 columns at 100,000 rows, two to four minutes on one core.
_BEARABLE = 4e12


@dataclass(frozen=True, slots=True)
class Plan:
    """The form of the posterior, and why it was chosen.

    Parameters
    ----------
    covariance
        ``"full"``, ``"sparse"`` or ``"diagonal"``.
    reason
        The reason, as text.
    chosen
        Whether the library made the choice, and not the user.
    """

    covariance: str
    reason: str
    chosen: bool = True

    def __str__(self) -> str:
        words = {
            "full": "full covariance",
            "sparse": "sparse precision matrix, all correlations exact",
            "diagonal": "diagonal covariance, standard deviations conditional on the other coefficients",
        }
        return f"{words[self.covariance]}: {self.reason}"


class PlannedRows(Protocol):
    """What is asked of rows before a fit."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the constant one."""

    @property
    def density(self) -> float:
        """Share of the entries that are not zero, the constant column left out."""

    @property
    def widest(self) -> int:
        """Most columns with which a full covariance can be fitted to these rows."""

    @property
    def patience(self) -> float:
        """How many times the work that is bearable in one process may be taken."""

    def analysis(self) -> Analysis | None:
        """Analyse the pattern of a sparse precision matrix; None where these rows cannot have one."""


def plan_fit(data: PlannedRows, covariance: str) -> tuple[Plan, Analysis | None]:
    """Decide on the posterior of a fit to these rows; if it is sparse, the analysis of its pattern comes with it."""
    rows, columns = data.shape
    if covariance in ("full", "diagonal"):
        if covariance == "full" and columns > data.widest:
            raise ValueError(
                f"covariance='full' has at most {data.widest} columns here, got {columns}; leave covariance at 'auto'"
            )
        return _as_asked(covariance, columns), None
    work, size = full_work(rows, columns), f"{rows} rows of {columns} columns"
    full = Plan("full", f"{size} take about {work:.1g} operations")
    # On a cluster as much is bearable as its user can wait for.
    bearable = work <= _BEARABLE * data.patience and columns <= data.widest
    if covariance == "auto" and bearable and columns <= 200:  # a sparse precision never pays
        return full, None
    # Dense rows with up to a tenth of entries that are not zero are treated as sparse ones.
    analysis = data.analysis() if covariance == "sparse" or data.density <= 0.1 else None
    if covariance == "sparse":
        if analysis is None:
            raise ValueError(f"covariance='sparse' needs all rows in memory, and {size} are too many")
        if not np.isfinite(analysis.work):
            raise ValueError(
                f"covariance='sparse' would fill in: the factor of {size} is too large; leave covariance at 'auto'"
            )
        return Plan(
            "sparse", f"asked for by covariance='sparse', {analysis.fill} numbers in its factor", False
        ), analysis
    # A sparse precision must save half of the work of a full fit.
    if analysis is not None and _EXPECTED_LOOPS * analysis.work <= (0.5 * work if bearable else _BEARABLE):
        return Plan("sparse", f"{size}, {analysis.fill} numbers in the factor of the precision matrix"), analysis
    if bearable:
        return full, None
    wide = f"{size} would take about {work:.1g} operations with a full covariance (covariance='full' if you can wait)"
    if columns > data.widest:
        wide = f"{size} are too many for a full covariance"
    why = "its sparse precision would fill in" if analysis is not None else "rows are not sparse"
    if analysis is None and data.density <= 0.1:
        why = "a sparse precision needs all rows in memory"
    return Plan("diagonal", f"{wide}, and {why}"), None


def plan_stream(columns: int, covariance: str, before: Plan | None = None) -> Plan:
    """Decide on the posterior of a stream: that of the calls before, unless it was sparse, which cannot take rows."""
    if before is not None:
        return before if before.covariance != "sparse" else plan_stream(columns, "auto")
    if covariance == "sparse":
        raise ValueError("covariance='sparse' needs all rows at once: call fit, or leave covariance at 'auto'")
    if covariance != "auto":
        return _as_asked(covariance, columns)
    if columns <= WIDEST_STREAM:
        return Plan("full", f"a stream of {columns} columns, at most {WIDEST_STREAM}")
    full = " (covariance='full' if you can wait)" if columns <= WIDEST_COVARIANCE else ""
    return Plan("diagonal", f"a stream of {columns} columns, more than {WIDEST_STREAM}{full}")


def plan_joint(rows: int, columns: int, predictors: int, covariance: str, stream: bool = False) -> Plan | None:
    """Plan one posterior of several linear predictors; None where it would be too wide.

    In a stream a factorisation of up to 1000 coefficients, some ten milliseconds, is bearable.
    """
    wide, size = columns * predictors, f"{predictors} predictors of {columns} columns"
    work = _EXPECTED_LOOPS * (2.0 * rows * wide**2 + max(1, min(16, rows // wide)) * float(wide) ** 3)
    fits = wide <= (2 * WIDEST_STREAM if stream else WIDEST_COVARIANCE)
    if covariance == "full" and wide <= WIDEST_COVARIANCE:
        return Plan("full", f"asked for by covariance='full', {size} together", chosen=False)
    if covariance != "auto" or not fits or work > _BEARABLE:
        return None
    return Plan("full", f"{size} together" if stream else f"{rows} rows, {size} together, about {work:.1g} operations")


def of_each(plan: Plan, posteriors: int) -> Plan:
    """Say so where every class has a posterior of its own."""
    if posteriors == 1:
        return plan
    return replace(plan, reason=f"{plan.reason}; one posterior for each of {posteriors} classes against the rest")


def full_work(rows: int, columns: int) -> float:
    """Floating-point operations of a fit with a full covariance: sums, variances and factorisations of all blocks."""
    blocks = max(1, min(16, rows // max(400, columns)))
    return _EXPECTED_LOOPS * (3.0 * rows * columns**2 + blocks * columns**3 / 3.0)


def _as_asked(covariance: str, columns: int) -> Plan:
    if covariance == "full" and columns > WIDEST_COVARIANCE:
        raise ValueError(
            f"covariance='full' keeps columns² numbers: at most {WIDEST_COVARIANCE} columns, got {columns}; leave "
            "covariance at 'auto'"
        )
    return Plan(covariance, f"asked for by covariance='{covariance}'", chosen=False)
