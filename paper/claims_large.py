"""What the paper says of the two large sets (section 3.4 of its text, figure 3)."""

from __future__ import annotations

import numpy as np

from paper.claim import Claim, Finding, listed, name, percent
from paper.evidence import Cell, Evidence, Tolerances

_NO_SET = Finding(None, "no large set")
# "Much before" the end, as a share of the pass; "strong" underestimation of deviations.
_MUCH_BEFORE = 0.5
_STRONG = 0.5


def laplace_steadier(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """On average LA and QLA move less, and end nearer to VQ, than on the small sets."""
    small, large = evidence.cells("quasi01", large=False), evidence.cells("quasi01", large=True)
    if not small or not large:
        return Finding(None, "needs small and large sets")

    def means(cells: list[Cell]) -> tuple[float, float]:
        curves = [(evidence.curve(c, s, suffix), evidence.curve(c, "vq")) for c in cells for s in ("la", "qla")]
        moves = float(np.mean([curve.movement for curve, _ in curves]))
        return moves, float(np.mean([abs(curve.level - vq.level) for curve, vq in curves]))

    (before, apart), (after, near) = means(small), means(large)
    measured = (
        f"mean movement {percent(after)} on the large sets, {percent(before)} on the small; "
        f"mean distance from VQ {percent(near)} against {percent(apart)}"
    )
    return Finding(after < before and near < apart, measured)


def gq_underestimates(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """GQ's standard deviations at the end are less than half of VQ's."""
    cells = evidence.cells(large=True)
    if not cells:
        return _NO_SET
    ratios = [evidence.curve(c, "gq").spread / evidence.curve(c, "vq").spread for c in cells]
    measured = f"GQ’s posterior standard deviations are at most {max(ratios):.1g} times VQ’s (geometric means)"
    return Finding(max(ratios) < _STRONG, measured)


def gq_gets_stuck(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """GQ gains nothing after the first tenth of the pass, and VQ ends lower."""
    cells = evidence.cells(large=True)
    if not cells:
        return _NO_SET
    stuck = [
        cell
        for cell in cells
        if evidence.curve(cell, "gq").progress(0.1) <= tolerances.steady
        and evidence.curve(cell, "gq").level > evidence.curve(cell, "vq").level
    ]
    missed = [evidence.curve(cell, "gq").end for cell in cells]
    measured = (
        f"stuck above VQ in {len(stuck)} of {len(cells)} cells; at the end GQ misses {percent(min(missed))} to "
        f"{percent(max(missed))} of the possible gain"
    )
    return Finding(len(stuck) == len(cells), measured)


def early(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA, QLA and VQ are near their last cost, for good, within the first half of the pass."""
    cells = evidence.cells("logistic hinge", large=True)
    if not cells:
        return _NO_SET
    arrivals = {
        (scheme, cell): evidence.curve(cell, scheme, suffix).arrival(tolerances.close)
        for cell in cells
        for scheme in ("la", "qla", "vq")
    }
    late = max(arrivals, key=lambda key: arrivals[key])
    measured = f"at the latest after {percent(arrivals[late])} of the pass ({late[0].upper()}, {name(late[1])})"
    return Finding(arrivals[late] <= _MUCH_BEFORE, measured)


def qla_below_vq(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """QLA ends lower than VQ on both sets."""
    cells = evidence.cells("quasi01", large=True)
    if not cells:
        return _NO_SET
    gaps = {c: evidence.curve(c, "qla", suffix).end - evidence.curve(c, "vq").end for c in cells}
    gaps_text = "; ".join(f"{name(c)} {'−' if g < 0 else '+'}{percent(abs(g))}" for c, g in gaps.items())
    return Finding(all(gap < 0.0 for gap in gaps.values()), f"QLA less VQ, in the possible gain: {gaps_text}")


def qla_rougher(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """QLA's cost moves more, up and down, over the second half of the pass."""
    cells = evidence.cells("quasi01", large=True)
    if not cells:
        return _NO_SET
    ratios = [evidence.curve(c, "qla", suffix).roughness / evidence.curve(c, "vq").roughness for c in cells]
    ratios_text = ", ".join(f"{name(c)} {r:.2g}×" for c, r in zip(cells, ratios, strict=True))
    return Finding(
        min(ratios) > 1.0, f"movement up and down over the second half of the pass, against VQ’s: {ratios_text}"
    )


def la_no_better(evidence: Evidence, tolerances: Tolerances, suffix: str) -> Finding:
    """LA ends no lower than the better of QLA and VQ, but for what counts as steady."""
    cells = evidence.cells(large=True)
    if not cells:
        return _NO_SET
    leads = {
        c: min(evidence.curve(c, "qla", suffix).end, evidence.curve(c, "vq").end) - evidence.curve(c, "la", suffix).end
        for c in cells
    }
    better = [cell for cell, lead in leads.items() if lead > tolerances.steady]
    most = max(leads, key=lambda cell: leads[cell])
    measured = (
        f"LA ends lower than both by at most {percent(max(leads[most], 0.0))} of the possible gain; "
        f"clearly better in: {listed(better)}"
    )
    return Finding(not better, measured)


CLAIMS = (
    Claim(
        "laplace-steadier",
        "section 3.4",
        "On the large sets, LA and QLA are steadier and nearer to VQ on the quasi 0–1 loss",
        "mean movement of LA and QLA, and mean distance of their median cost from VQ’s, less than on the small sets",
        laplace_steadier,
        laplace=True,
    ),
    Claim(
        "gq-variances",
        "section 3.4",
        "GQ tends to make factors too narrow",
        "GQ’s standard deviations after the pass are less than half of VQ’s in all 6 cells",
        gq_underestimates,
    ),
    Claim(
        "gq-stuck",
        "section 3.4",
        "GQ soon comes to rest above the minimum",
        "in all 6 cells GQ gains at most what counts as steady after the first tenth of the pass, and VQ is lower",
        gq_gets_stuck,
    ),
    Claim(
        "early",
        "section 3.4",
        "On logistic and hinge losses LA, QLA and VQ converge long before the pass is over",
        "every one of these curves stays close to its last cost from the first half of the pass on",
        early,
        laplace=True,
    ),
    Claim(
        "qla-below-vq",
        "section 3.4",
        "On the quasi 0–1 loss QLA ends slightly below VQ",
        "QLA ends below VQ on both sets",
        qla_below_vq,
        laplace=True,
    ),
    Claim(
        "qla-rougher",
        "section 3.4",
        "On the quasi 0–1 loss QLA’s curve is rougher than VQ’s",
        "over the second half of the pass QLA’s cost moves more, up and down, than VQ’s, on both sets",
        qla_rougher,
        laplace=True,
    ),
    Claim(
        "la-no-better",
        "section 3.4",
        "LA reaches nothing that QLA and VQ do not",
        "in no cell LA ends lower than both by more than what counts as steady",
        la_no_better,
        laplace=True,
    ),
)
