"""What the paper concludes from all of its experiments (abstract and section 4 of its text)."""

from __future__ import annotations

from paper.claim import Claim, Finding, percent
from paper.evidence import Evidence, Tolerances

_NO_SET = Finding(None, "no data set")
_TITLES = {"la": "LA", "qla": "QLA", "gq": "GQ", "vq": "VQ"}


def _counts(
    evidence: Evidence, tolerances: Tolerances, suffix: str, losses: str = "logistic hinge quasi01"
) -> dict[str, int]:
    cells = evidence.cells(losses)
    return {s: sum(evidence.curve(c, s, suffix).converged(tolerances) for c in cells) for s in _TITLES}


def vq_converges_best(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ converges in more cells than any other scheme."""
    cells = evidence.cells()
    if not cells:
        return _NO_SET
    counts = _counts(evidence, tolerances, suffix)
    listed_counts = ", ".join(f"{_TITLES[s]} {count}" for s, count in counts.items())
    others = max(count for s, count in counts.items() if s != "vq")
    return Finding(counts["vq"] > others, f"steady and close, of {len(cells)} cells: {listed_counts}")


def laplace_smooth(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA and QLA converge in all logistic cells."""
    cells = evidence.cells("logistic")
    if not cells:
        return _NO_SET
    counts = _counts(evidence, tolerances, suffix, "logistic")
    measured = f"steady and close, of {len(cells)} logistic cells: LA {counts['la']}, QLA {counts['qla']}"
    return Finding(counts["la"] == counts["qla"] == len(cells), measured)


def laplace_rough(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA and QLA fail to become steady in some of the cells with kinks, more often than VQ does."""
    cells = evidence.cells("hinge quasi01")
    if not cells:
        return _NO_SET
    restless = {s: sum(not evidence.curve(c, s, suffix).is_steady(tolerances) for c in cells) for s in _TITLES}
    measured = f"unsteady, of {len(cells)} hinge and quasi 0–1 cells: " + ", ".join(
        f"{_TITLES[s]} {restless[s]}" for s in ("la", "qla", "vq")
    )
    return Finding(min(restless["la"], restless["qla"]) > restless["vq"], measured)


def gq_mostly_fails(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """GQ fails to converge in more than half of the cells."""
    cells = evidence.cells()
    if not cells:
        return _NO_SET
    done = _counts(evidence, tolerances, suffix)["gq"]
    measured = f"GQ is unsteady or steady away from the minimum in {len(cells) - done} of {len(cells)} cells"
    return Finding(2 * done < len(cells), measured)


def laplace_beats_gq(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA hovers lower than GQ in at least two thirds of the cells."""
    cells = evidence.cells()
    if not cells:
        return _NO_SET
    lower = sum(evidence.curve(c, "la", suffix).level < evidence.curve(c, "gq").level for c in cells)
    measured = f"LA’s median cost at the end is below GQ’s in {lower} of {len(cells)} cells"
    return Finding(3 * lower >= 2 * len(cells), measured, every=lower == len(cells))


def quick_is_enough(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """QLA hovers no higher than LA, but for what counts as close."""
    cells = evidence.cells()
    if not cells:
        return _NO_SET
    leads = [evidence.curve(c, "qla", suffix).level - evidence.curve(c, "la", suffix).level for c in cells]
    worse = sum(lead > tolerances.close for lead in leads)
    measured = (
        f"QLA is clearly worse than LA in {worse} of {len(cells)} cells, by up to {percent(max(leads))} of the gain"
    )
    return Finding(worse == 0, measured)


def dramatic_improvement(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """VQ converges in at least three times as many cells as GQ, at the same nodes."""
    cells = evidence.cells()
    if not cells:
        return _NO_SET
    counts = _counts(evidence, tolerances, suffix)
    measured = f"steady and close, of {len(cells)} cells: GQ {counts['gq']}, VQ {counts['vq']}"
    return Finding(counts["vq"] >= 3 * counts["gq"] and counts["vq"] > 0, measured)


CLAIMS = (
    Claim(
        "vq-best",
        "Abstract",
        "EP converges best with VQ",
        "VQ is steady and close in more of the 15 cells than any other scheme",
        vq_converges_best,
        laplace=True,
    ),
    Claim(
        "laplace-smooth",
        "Abstract",
        "With smooth factors EP converges well with LA and QLA",
        "LA and QLA are steady and close in all 5 logistic cells",
        laplace_smooth,
        laplace=True,
    ),
    Claim(
        "laplace-rough",
        "Abstract, section 4",
        "With factors that have kinks LA and QLA tend to be unstable",
        "LA and QLA are each unsteady in more of the 10 hinge and quasi 0–1 cells than VQ",
        laplace_rough,
        laplace=True,
    ),
    Claim(
        "gq-most",
        "Abstract",
        "GQ is unstable or ends above the minimum in most experiments",
        "GQ is steady and close in less than half of the 15 cells",
        gq_mostly_fails,
    ),
    Claim(
        "laplace-gq",
        "section 4",
        "LA serves EP better than GQ",
        "LA’s median cost at the end is below GQ’s in at least two thirds of the 15 cells",
        laplace_beats_gq,
        laplace=True,
    ),
    Claim(
        "quick-enough",
        "section 4",
        "Leaving out LA’s optimisation, as QLA does, saves time and costs nothing",
        "in none of the 15 cells QLA’s median cost at the end is above LA’s by more than what counts as close",
        quick_is_enough,
        laplace=True,
    ),
    Claim(
        "dramatic",
        "section 4",
        "With the nodes of GQ, VQ does far better",
        "VQ is steady and close in at least three times as many of the 15 cells as GQ",
        dramatic_improvement,
    ),
)
