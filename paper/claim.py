"""What a claim is, and how a verdict is computed from the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from paper.evidence import Evidence, Tolerances
from paper.experiment import Json
from reference.problems import LOSS_TITLES, TITLES

HOLDS = "holds"
ONLY_SLOPE = 'holds only with curvature="slope"'
FAILS = "does not hold"
UNDECIDED = "undecided here"
UNKNOWN = "not measured"

_SLOPE = "_slope"
# Ratios of times within this factor of a threshold decide nothing. Chosen, not measured: machines have other work.
NOISE = 1.25


class Finding(NamedTuple):
    """Whether a criterion is met, and the numbers that say so.

    Parameters
    ----------
    holds
        Whether the criterion is met; None where there is nothing to judge it by.
    measured
        The numbers, in words.
    every
        Where the criterion speaks of most cells or an average: whether every single cell would pass.
    """

    holds: bool | None
    measured: str
    every: bool = True


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of the paper.

    Parameters
    ----------
    key
        Short name.
    section
        Where the paper says it.
    statement
        What the sentence says, in other words.
    criterion
        What is asked of the numbers, in words.
    judge
        The same in code: from evidence, tolerances, and which LA and QLA to take (``""`` or ``"_slope"``).
    laplace
        Whether LA or QLA matter, so that both curvatures are judged.
    """

    key: str
    section: str
    statement: str
    criterion: str
    judge: Callable[[Evidence, Tolerances, str], Finding]
    laplace: bool = False


def verdict(claim: Claim, evidence: Evidence, tolerances: Tolerances) -> tuple[str, list[Finding]]:
    """Judge a claim with the true curvature and, where it matters, with the slope in its place.

    What times that differ by `NOISE` would decide otherwise is not decided.
    """
    findings = _findings(claim, evidence, tolerances)
    found = _named(findings)
    others = {_named(_findings(claim, evidence.with_noise(by), tolerances)) for by in (1.0 / NOISE, NOISE)}
    return (found if others == {found} else UNDECIDED), findings


def _findings(claim: Claim, evidence: Evidence, tolerances: Tolerances) -> list[Finding]:
    return [claim.judge(evidence, tolerances, suffix) for suffix in (("", _SLOPE) if claim.laplace else ("",))]


def _named(findings: list[Finding]) -> str:
    if findings[0].holds is None:
        return UNKNOWN
    if findings[0].holds:
        return HOLDS
    return ONLY_SLOPE if any(finding.holds for finding in findings) else FAILS


def judged(claim: Claim, evidence: Evidence, tolerances: Tolerances) -> Json:
    """Verdict and numbers, and whether half or double the tolerances would change the verdict."""
    result, findings = verdict(claim, evidence, tolerances)
    others = {by: verdict(claim, evidence, tolerances.scaled(by))[0] for by in (0.5, 2.0)}
    return {
        "key": claim.key,
        "section": claim.section,
        "statement": claim.statement,
        "criterion": claim.criterion,
        "measured": findings[0].measured,
        "measured_slope": findings[1].measured if claim.laplace else None,
        "verdict": result,
        "verdict_slope": {True: HOLDS, False: FAILS, None: UNKNOWN}[findings[-1].holds] if claim.laplace else None,
        "every_cell": findings[0].every,
        "half_tolerances": others[0.5],
        "double_tolerances": others[2.0],
    }


def percent(share: float) -> str:
    """Write a share for people."""
    if not isfinite(share):
        return "∞"
    digits = 2 if 0.0 < abs(share) < 0.00995 else 1 if abs(share) < 0.0995 else 0
    return f"{100.0 * share:,.{digits}f}\N{NO-BREAK SPACE}%"


def span(values: Iterable[float], unit: str = "×") -> str:
    """Least and largest of some numbers."""
    ordered = sorted(values)
    first, last = (f"{v:.2g}" if v < 99.5 else f"{v:,.0f}" for v in (ordered[0], ordered[-1]))
    return f"{first}{unit}" if first == last else f"{first} to {last}{unit}"


def name(cell: tuple[str, str]) -> str:
    """Name a cell for people."""
    return f"{TITLES[cell[0]]} {LOSS_TITLES[cell[1]]}"


def listed(cells: Sequence[tuple[str, str]]) -> str:
    """Name cells, or say that there are none."""
    return ", ".join(map(name, cells)) or "none"
